# SPDX-License-Identifier: Apache-2.0
"""How far a measured step carries to others (fitted/anchored_residuals.json).

Takes each published run as the one that was measured and predicts the other runs of its cell (what one source measured of a
model on a GPU with a framework), each shifted by the share of the first one's error that
profiles/uncertainty/uncertainty.h expects of it. Of the part of an error that a run has alone the least half-width is
taken with which nine of ten such predictions lie inside their intervals, where cells weigh equally and one more counts as
outside (conformal.py). Errors of data-parallel runs are those by constants that were fitted without their source
(fitted/residuals.json); of model-parallel runs, to which nothing is fitted run by run, those of validate. Half-widths are
those that somebody gets whose runs are not published. Prints what becomes of runs of other models and GPUs, which are not
narrowed.
"""
from __future__ import annotations

import collections
import math

from profiles.research import product

LEVEL = 0.9


def runs(ledger):
    """Rows of the ledger with the logarithms of predicted over measured and of the interval's half-width."""
    table = {row["id"]: row for row in product.read_table(ledger)}
    held_out = {run["id"]: run["log_error_source_out"] for run in product.read_fitted("residuals")["runs"]}
    of_strangers = product.read_fitted("novelty")["base"]["data_parallel"]
    answer = product.validate(list(table.values()))
    errors = product.log_errors(answer)
    for row in answer["rows"]:
        if row["id"] not in errors:
            continue
        own = table[row["id"]]
        low, high = row["predicted_interval_s"]
        yield {
            "software": (own["source"], own["stack"], own.get("version", ""), own.get("precision", "")),
            "gpu": own["gpu"],
            "model": own["model"],
            "error": held_out.get(row["id"], errors[row["id"]]),
            "half_width": of_strangers if row["id"] in held_out else math.log(high / low) / 2,
        }


def pairs(every, together, apart=lambda one, other: True):
    """(cell, measured run, predicted run) for all runs that are `together` and `apart`."""
    cells = collections.defaultdict(list)
    for run in every:
        cells[together(run)].append(run)
    return [(cell, one, other) for cell, members in cells.items() for one in members for other in members
            if one is not other and apart(one, other)]


def by_cell(of, value):
    cells = collections.defaultdict(list)
    for cell, one, other in of:
        cells[cell].append(value(one, other))
    return [sum(own) / len(own) for own in cells.values()]


def covered(of, own):
    """The share of the pairs that lies inside with this part of a run's own."""

    def inside(one, other):
        expected = (1 - min(1.0, (own / one["half_width"]) ** 2)) * one["error"]
        others = min(1.0, (own / other["half_width"]) ** 2)
        return abs(other["error"] - expected) <= other["half_width"] * math.sqrt(others * (2 - others))

    shares = by_cell(of, inside)
    return sum(shares) / (len(shares) + 1)


def spread(of, share):
    """Root mean square of errors with this share of the measured run's error taken off."""
    squares = by_cell(of, lambda one, other: (other["error"] - share * one["error"]) ** 2)
    return math.sqrt(sum(squares) / len(squares))


def fit(date, to):
    document = {
        "schema": "shardwright.anchored_residuals/1.0",
        "source": "iteration times of published/ledger.csv (source left out) and published/parallel.csv",
        "command": f"{product.COMMAND} anchored",
        "date": date,
        "level": LEVEL,
        "widths": [],
    }
    for model_parallel, ledger in ((False, "ledger"), (True, "parallel")):
        every = list(runs(ledger))
        same = pairs(every, lambda run: (run["software"], run["gpu"], run["model"]))
        widths = [0.001 * i for i in range(1, 200)]
        own = next((own for own in widths if covered(same, own) >= LEVEL), widths[-1])
        document["widths"].append({"model_parallel": model_parallel, "own": round(own, 4),
                                   "runs": len({id(other) for _, _, other in same}),
                                   "cells": len({cell for cell, _, _ in same})})
        other_model = pairs(every, lambda run: (run["software"], run["gpu"]), lambda one, other: one["model"] != other["model"])
        other_gpu = pairs(every, lambda run: run["software"], lambda one, other: one["gpu"] != other["gpu"])
        print(f"{ledger}.csv: a run's own half-width {own:.3f}")
        for name, of in (("same model and GPU", same), ("another model", other_model), ("another GPU", other_gpu)):
            errors = ", ".join(f"{share:g}: {spread(of, share):.3f}" for share in (0, 0.25, 0.5, 0.75, 1))
            print(f"  {name}: root mean square of errors by the share carried: {errors}")
    product.write_fitted(to, "anchored_residuals", document)
