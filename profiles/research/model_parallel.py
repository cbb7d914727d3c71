# SPDX-License-Identifier: Apache-2.0
"""How wide intervals of memory of model-parallel plans have to be, and what was published of such plans
(fitted/model_parallel_residuals.json).

Predicts every run of published/parallel.csv and takes the half-width of memory that covers nine of ten runs of a new cell,
where a cell is what one source measured of a model on a GPU (conformal.py) and weighs the root of its runs. It is that of
software that always divides (peaks of stacks that also run data parallelism alone are in the width of that): a measured peak
needs its error; of the runs that were predicted near the edge one that fitted or went out of memory against the prediction
needs at least what the prediction lacks to the edge, and one that was told rightly needs nothing, but says so only of widths
that reach the edge. Prints how many runs lie inside with all sources known, and with widths taken from the other sources only.
"""
from __future__ import annotations

import math

from profiles.research import conformal, product

LEVEL = 0.9
DATA_PARALLEL = ("torch", "native", "mpt-eager")  # stacks that also run the other engine
NEAR = 0.25  # of the logarithm of memory: what is further from the edge tells nothing


def half_width(runs):
    """The least absolute log error that covers LEVEL of the runs. A cell of n runs weighs sqrt(n)."""
    for width in sorted({run["error"] for run in runs}):
        cells = {}
        for run in runs:
            if run["tells_from"] <= width:
                cells.setdefault(run["cell"], []).append(run["error"] <= width)
        weights = {cell: math.sqrt(len(own)) for cell, own in cells.items()}
        covered = sum(weights[cell] * sum(own) / len(own) for cell, own in cells.items())
        if covered >= LEVEL * (sum(weights.values()) + 1):
            return width
    return max(run["error"] for run in runs) * conformal.BEYOND


def needed_memory(row):
    """Widths that the run asks for, of the logarithm of what is reserved, and from which it tells."""
    share = math.log(row["memory_share"])
    if abs(share) < NEAR:
        error = max(0.0, -share if row["outcome"] == "oom" else share)
        yield error, 0.0 if error > 0 else abs(share)
    if row["memory_error"] is not None:
        yield abs(math.log1p(row["memory_error"])), 0.0


def cell_of(own):
    return own["source"], own["gpu"], own["model"]


def held_out(every):
    """How many lie inside with the width of the other sources."""
    inside = 0
    for source in {run["source"] for run in every}:
        width = half_width([run for run in every if run["source"] != source])
        inside += sum(run["error"] <= width for run in every if run["source"] == source)
    return inside


def fit(date, to):
    table = {row["id"]: row for row in product.read_table("parallel")}
    rows = [row for row in product.validate(list(table.values()))["rows"] if not row["suspect"]]
    every = [table[row["id"]] for row in rows if row["time_error"] is not None]
    memory = [{"source": row["source"], "cell": cell_of(table[row["id"]]), "error": error, "tells_from": tells_from}
              for row in rows if row["memory_share"] is not None and not table[row["id"]]["stack"].startswith(DATA_PARALLEL)
              for error, tells_from in needed_memory(row)]
    width = half_width(memory)
    inside, outside = sum(run["error"] <= width for run in memory), held_out(memory)
    of_stack = {stack: [row for row in every if row["stack"] == stack] for stack in sorted({row["stack"] for row in every})}
    product.write_fitted(to, "model_parallel_residuals", {
        "schema": "shardwright.model_parallel_residuals/1.0",
        "source": "runs of published/parallel.csv",
        "command": f"{product.COMMAND} model-parallel",
        "date": date,
        "level": LEVEL,
        "memory": {
            "half_width": math.ceil(width * 1e4) / 1e4,
            "runs": len(memory),
            "cells": len({run["cell"] for run in memory}),
            "inside": round(inside / len(memory), 4),
            "inside_source_out": round(outside / len(memory), 4),
        },
        "gpus": sorted({row["gpu"] for row in every}),
        "most_gpus": max(int(row["gpus"]) for row in every),
        "stacks": [{"stack": stack, "series": len(set(map(cell_of, own))), "gpus": sorted({row["gpu"] for row in own})}
                   for stack, own in of_stack.items()],
    })
    print(f"memory: half-width {width:.3f}; {inside} of {len(memory)} inside; {outside} with the width of the other sources")
