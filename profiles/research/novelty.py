# SPDX-License-Identifier: Apache-2.0
"""How wide intervals of times have to be, by what is new (fitted/novelty.json).

Every published run is predicted as that of a stranger: without its source's name and constants, without
its release's preset, and by the stack that its own one builds on where no other source ran that stack.
Constants of data parallelism are those that were fitted without the source (fitted/residuals.json). So
that each kind of novelty is seen more than once, runs are also predicted with the clocks that GPUs ship
with on which nobody trained (regime gpu), and by the stack that theirs builds on (regime framework).

An error's scale is the root of the summed squares of a base and of what is new about the run (axes). The
scales are those of the greatest likelihood of errors of two exponentials; a cell (what one source
measured of a model on a GPU) weighs the root of its runs. A scale that few units show (GPUs, stacks or
sources) is wider by Student's t. The half-widths are the scales times the factor that covers nine of ten
strangers' runs, one cell more counted as outside (normalized conformal prediction).

Prints, and writes as "coverage", how many runs lie inside intervals that were fitted without their source.
"""
from __future__ import annotations

import collections
import json
import math
import statistics

from profiles.research import conformal, product
from profiles.research.software_age import release_month

LEVEL = 0.9
OFTEN = 3  # cells, from which on a GPU or a pair counts as known; kOften of uncertainty.cc
LEAST_RUNS = 8  # of a class that is judged by itself
MOST_T = 2.2
FEW_UNITS = 3
EXTRA_REGIME_WEIGHT = 0.34
UNMEASURED_CLOCKS = {"cost.gemm.sustained_factor": 0.9}  # their upper quartile: how far 0.7, their lower one, is off nobody has seen
UNDESCRIBED = {"torch-eager": "torch-compile"}  # of a stack without a base; others: torch-eager
STATIC = "native"  # builds on nothing, and nothing resembles it
DATA = product.DATA
AGE = product.read_fitted("software_age")
FIFTH = 0.05  # quantile of the fastest layers
SIZES = ("seq_len", "hidden")  # that widen beyond the largest

#: What counts as one observation of an axis.
UNITS = {
    "gpu": lambda run: run["gpu"],
    "framework": lambda run: run["stack"],
    "framework_moe": lambda run: run["stack"],
    "framework_on_gpu": lambda run: (run["stack"], run["gpu"]),
    "precision": lambda run: run["source"],
    "precision_on_gpu": lambda run: run["gpu"],
    "model_class": lambda run: run["source"],
    "size": lambda run: run["source"],
}
AXES = tuple(UNITS)


def student(units):
    """The quantile of a new unit's error over that of a normal one, where `units` tell the spread."""
    table = (6.31, 2.92, 2.353, 2.132, 2.015, 1.943, 1.895, 1.86, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753)
    if units < 2:
        return MOST_T
    quantile = table[units - 2] if units - 2 < len(table) else 1.645 + 1.6 / units
    return min(MOST_T, quantile * math.sqrt(1 + 1 / units) / 1.645)


def stack_bases():
    similar = json.loads((DATA / "similar_stacks.json").read_text())["similar"]
    bases = {}
    for file in sorted((DATA / "stacks").glob("*.json")):
        base = json.loads(file.read_text()).get("base")
        bases[file.stem] = base or UNDESCRIBED.get(file.stem, "torch-eager")
    return similar, bases


def trains(stack, strategy):
    """Whether this framework, or the one that it is built on, runs the strategy; all do that say nothing of it."""
    document = json.loads((DATA / f"stacks/{stack}.json").read_text())
    while "strategies" not in document and document.get("base"):
        document = json.loads((DATA / f"stacks/{document['base']}.json").read_text())
    return strategy in document.get("strategies", {"value": [strategy]})["value"]


def read_runs():
    similar, bases = stack_bases()
    runs = []
    for name in ("parallel", "ledger"):
        for row in product.read_table(name):
            if not row["iter_time_s"] and not row["peak_mem_gib"]:
                continue
            stack = similar.get(row["stack"], row["stack"])
            runs.append(
                {
                    "row": row,
                    "id": row["id"],
                    "source": row["source"],
                    "stack": stack,
                    "gpu": row["gpu"],
                    "ledger": name,
                    "model_parallel": any(int(row.get(axis) or 1) > 1 for axis in ("tp", "pp", "cp", "ep", "etp")),
                    "moe": row.get("experts", "") not in ("", "0"),
                    "precision": row.get("precision") or "bf16",
                    "cell": (row["source"], row["gpu"], row["model"]),
                    "layer_s": float(row["iter_time_s"] or "nan")
                    / (int(row["layers"]) / int(row.get("pp") or 1) * int(row["grad_accum"])),
                    "graphs": "full_iteration" in row.get("cuda_graph", ""),
                }
            )
    return runs, bases


def predict(runs, change, settings=None):
    """log(predicted / measured) of times and of peaks by run, each row changed as `change` says."""
    times, peaks = {}, {}
    for name in ("parallel", "ledger"):
        answer = product.validate([change(run) for run in runs if run["ledger"] == name], settings)
        times |= product.log_errors(answer)
        peaks |= product.log_errors(answer, "memory_error")
    return times, peaks


def month_of(row):
    """The month of the release, in words that no preset's begin with; a stranger knows his own."""
    month = release_month(row, AGE["releases"]) if row["gpu"] in AGE["gpus"] else ""
    return f"release {month}" if month else ""


def nameless(run, source="nobody", stack=None):
    row = dict(run["row"], source=source)
    month = month_of(row)
    for column in ("version", "software"):
        if column in row:
            row[column] = month
    if stack:
        row["stack"] = stack
    return row


class Known:
    """What some runs show."""

    def __init__(self, runs):
        self.cells = collections.defaultdict(set)
        self.largest = {}
        for run in runs:
            engine, gpu, stack = run["model_parallel"], run["gpu"], run["stack"]
            for key in (
                ("gpu", gpu),
                ("stack", stack),
                ("pair", stack, gpu),
                ("moe", stack, run["moe"]),
                ("precision", gpu, run["precision"]),
            ):
                self.cells[key].add(run["cell"])
            for size in SIZES:
                key = (engine, size)
                self.largest[key] = max(self.largest.get(key, 0), int(run["row"][size]))

    def count(self, *key):
        return len(self.cells.get(key, ()))

    def novelties(self, run):
        """The axes on which `run` is new, as uncertainty.cc finds them."""
        stack, gpu = run["stack"], run["gpu"]
        axes = []
        if run["moe"]:
            axes.append("model_class")
        if run["precision"] in ("fp8", "nvfp4"):
            axes.append("precision")
        if not self.count("stack", stack) or (run["moe"] and not self.count("moe", stack, True)):
            axes.append("framework_moe" if run["moe"] else "framework")
        if self.count("gpu", gpu) < OFTEN:
            axes.append("gpu")
        elif self.count("pair", stack, gpu) < OFTEN and not any(axis.startswith("framework") for axis in axes):
            axes.append("framework_on_gpu")
        if "precision" in axes and not self.count("precision", gpu, run["precision"]):
            axes.append("precision_on_gpu")
        if any(int(run["row"][size]) > self.largest.get((run["model_parallel"], size), 0) for size in SIZES):
            axes.append("size")
        return axes


class Examples:
    """Runs with errors of each regime, and what was new in it."""

    def __init__(self, runs, bases):
        self.runs = runs
        self.bases = bases
        sources_of = collections.defaultdict(set)
        for run in runs:
            if run["row"]["iter_time_s"]:
                sources_of[run["stack"]].add(run["source"])

        def descend(run, stack, good):
            while not (good(stack) and trains(stack, run["row"]["strategy"])) and stack != STATIC and bases.get(stack, stack) != stack:
                stack = bases[stack]
            return nameless(run, stack=stack)

        def others(run):
            return descend(run, run["stack"], lambda stack: sources_of[stack] - {run["source"]})

        def base(run):
            return descend(run, run["stack"] if run["stack"] == STATIC else bases[run["stack"]], lambda stack: True)

        self.named, _ = predict(runs, lambda run: run["row"])
        released, _ = predict(runs, lambda run: nameless(run, source=run["source"]))
        self.stranger, peaks = predict(runs, others)
        self.other_gpu, _ = predict(runs, others, UNMEASURED_CLOCKS)
        self.named_gpu, _ = predict(runs, nameless, UNMEASURED_CLOCKS)
        self.framework, _ = predict(runs, base)
        self.peaks = [(run["source"], run["cell"], peaks[run["id"]]) for run in runs if run["id"] in peaks]
        held_out = product.read_fitted("residuals")["runs"]
        self.known_source = {}
        for run in held_out:
            preset = released[run["id"]] - self.named[run["id"]]
            self.stranger[run["id"]] = run["log_error_source_out"] + preset
            self.known_source[run["id"]] = run["log_error_cell_out"] + preset
        self.runs = [run for run in runs if run["id"] in self.stranger]

    def of(self, runs):
        """(run, regime, axes, |error|, weight) of all runs, as new as they are to other sources of `runs`."""
        by_source = {source: Known([run for run in runs if run["source"] != source]) for source in sources(runs)}
        kept = ("model_class", "precision", "size")
        for run in runs:
            axes = by_source[run["source"]].novelties(run)
            new_gpu = "gpu" in axes
            error = (self.other_gpu if new_gpu else self.stranger)[run["id"]]
            yield run, "stranger", tuple(axes), abs(error), 1.0
            rest = [axis for axis in axes if axis in kept]
            if not new_gpu:
                yield run, "gpu", (*rest, "gpu"), abs(self.named_gpu[run["id"]]), EXTRA_REGIME_WEIGHT
            if run["stack"] != STATIC and not any(axis.startswith("framework") and axis != "framework_on_gpu" for axis in axes):
                axis = "framework_moe" if run["moe"] else "framework"
                yield run, "framework", (*rest, axis), abs(self.framework[run["id"]]), EXTRA_REGIME_WEIGHT


def sources(runs):
    return sorted({run["source"] for run in runs})


def scale(scales, run, axes):
    return math.sqrt(scales[run["model_parallel"]] ** 2 + sum(scales[axis] ** 2 for axis in axes))


def likeliest(examples):
    """Scales by coordinate descent; bases stand under the engine (True: model-parallel)."""
    runs_of = collections.Counter((run["cell"], regime) for run, regime, *_ in examples)
    weights = [weight / math.sqrt(runs_of[run["cell"], regime]) for run, regime, _, _, weight in examples]
    errors = [example[3] for example in examples]
    keys = [False, True, *AXES]
    scales = {key: 0.05 for key in keys}
    members = {
        key: [i for i, (run, _, axes, _, _) in enumerate(examples) if key in axes or key is run["model_parallel"]]
        for key in keys
    }
    squares = [scale(scales, run, axes) ** 2 for run, _, axes, _, _ in examples]
    for _ in range(40):
        moved = False
        for key in keys:
            old = scales[key] ** 2
            candidates = [old * factor for factor in (1, 0.5, 0.8, 0.95, 1.05, 1.25, 2)]
            if key in AXES:
                candidates += [1e-8, 1e-4, 9e-4]

            def loss(square):
                total = 0.0
                for i in members[key]:
                    spread = math.sqrt(squares[i] - old + square)
                    total += weights[i] * (math.log(spread) + errors[i] / spread)
                return total

            best = min((c for c in candidates if key in AXES or c >= 1e-4), key=loss) if members[key] else old
            if best != old and loss(best) < loss(old) - 1e-9:
                for i in members[key]:
                    squares[i] += best - old
                scales[key] = math.sqrt(best)
                moved = True
        if not moved:
            break
    return scales


def covering(errors, level=LEVEL):
    """The least of the errors that covers `level`: (cell, error), a cell of n runs weighs sqrt(n)."""
    runs_of = collections.Counter(cell for cell, _ in errors)
    total = sum(math.sqrt(n) for n in runs_of.values()) + 1
    share = 0.0
    for cell, error in sorted(errors, key=lambda pair: pair[1]):
        share += 1 / math.sqrt(runs_of[cell]) / total
        if share >= level - 1e-9:
            return error
    return conformal.BEYOND * max(error for _, error in errors)


def fit_widths(examples):
    """Half-widths by base and axis, and how many units show each axis."""
    scales = likeliest(examples)
    units = {axis: len({UNITS[axis](run) for run, _, axes, _, _ in examples if axis in axes}) for axis in AXES}
    for axis in AXES:
        # Stacks of MoE models are too few for a spread, and what each differs by is the whole description.
        if axis != "framework_moe":
            scales[axis] *= student(units[axis])
    # An axis that hardly anybody shows is not told to be worse than the worst of the others.
    worst = max(scales[axis] for axis in AXES if units[axis] >= FEW_UNITS and axis != "framework_moe")
    for axis in AXES:
        if units[axis] < FEW_UNITS and axis != "framework_moe":
            scales[axis] = min(scales[axis], worst)
    strangers = [(run["cell"], error / scale(scales, run, axes)) for run, regime, axes, error, _ in examples if regime == "stranger"]
    factor = covering(strangers)
    return {key: factor * value for key, value in scales.items()}, units


def inside_of(examples, widths):
    return [
        {
            "class": f"{'MoE' if run['moe'] else 'dense'}, {run['precision']}" if run["model_parallel"] else "data parallelism",
            "novelty": ", ".join(axis for axis in axes if axis not in ("model_class", "precision")) or "source alone",
            "source": run["source"],
            "width": scale(widths, run, axes),
            "inside": error <= scale(widths, run, axes),
        }
        for run, regime, axes, error, _ in examples
        if regime == "stranger"
    ]


def grouped(rows, key):
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row[key]].append(row)
    return {
        name: {
            "runs": len(own),
            "inside": sum(row["inside"] for row in own),
            "median_half_width": round(statistics.median(row["width"] for row in own), 4),
        }
        for name, own in sorted(groups.items())
    }


def by_source(examples, left_out):
    """Of each source what its runs are off as they are named, and without all that it taught."""
    scores = grouped(left_out, "source")
    for source, score in scores.items():
        own = [run["id"] for run in examples.runs if run["source"] == source]
        for name, errors in (("named", examples.named), ("stranger", examples.stranger)):
            score[f"mean_error_{name}"] = round(statistics.mean(abs(math.expm1(errors[run])) for run in own), 4)
    return scores


def estimated_gpu(runs):
    """Half-width of the rate of products under load, as a share of the peak, from GPU to GPU."""
    costs = product.read_fitted("gpu_cost")["gpus"]
    measured = sorted({run["gpu"] for run in runs})
    logs = [math.log(costs[gpu]["gemm"]["values"]["e"] * costs[gpu]["gemm"]["values"]["sustained_factor"]) for gpu in measured]
    return 1.645 * statistics.stdev(logs) * student(len(logs)), len(logs)


def less_memory(peaks):
    """Half-width of what is needed less than predicted: one side of two, as of intervals.h."""
    return covering([(cell, max(0.0, error)) for _, cell, error in peaks], (1 + LEVEL) / 2)


def fastest(runs):
    """By MoE: what one layer of one micro-batch took in the quickest published steps without graphs."""
    result = {}
    for moe, name in ((False, "dense"), (True, "moe")):
        layers = sorted(run["layer_s"] for run in runs if run["moe"] == moe and not run["graphs"])
        result[name] = layers[int(FIFTH * len(layers))]
    return result


def fit(date, to):
    runs, bases = read_runs()
    examples = Examples(runs, bases)
    runs = examples.runs
    every = list(examples.of(runs))
    widths, units = fit_widths(every)
    left_out = []
    for source in sources(runs):
        others, _ = fit_widths(list(examples.of([run for run in runs if run["source"] != source])))
        left_out += inside_of([example for example in every if example[0]["source"] == source], others)
    known = covering([(run["cell"], abs(examples.known_source[run["id"]])) for run in runs if run["ledger"] == "ledger"])
    estimated, gpus = estimated_gpu(runs)
    memory_inside = sum(
        error <= less_memory([peak for peak in examples.peaks if peak[0] != source])
        for source, _, error in examples.peaks
    )
    cells = collections.defaultdict(set)
    for run in runs:
        cells[run["model_parallel"], run["stack"], run["gpu"], run["moe"], run["precision"]].add(run["cell"])
    up = lambda width: math.ceil(width * 1e4) / 1e4
    covered = sum(row["inside"] for row in left_out)
    document = {
        "schema": "shardwright.novelty/1.0",
        "source": "iteration times of published/ledger.csv and parallel.csv, predicted as those of strangers",
        "command": f"{product.COMMAND} novelty",
        "date": date,
        "level": LEVEL,
        "base": {
            "data_parallel": up(widths[False]),
            "data_parallel_known_source": up(min(known, widths[False])),
            "model_parallel": up(widths[True]),
        },
        "axes": {axis: {"half_width": up(widths[axis]), "units": units[axis]} for axis in AXES}
        | {"gpu_estimated": {"half_width": up(max(estimated, widths["gpu"])), "units": gpus}},
        "memory": {
            "less": up(less_memory(examples.peaks)),
            "runs": len(examples.peaks),
            "inside_source_out": memory_inside,
        },
        "fastest_layer_s": {name: round(seconds, 6) for name, seconds in fastest(runs).items()},
        "largest": {
            name: {size: max(int(run["row"][size]) for run in runs if run["model_parallel"] == engine) for size in ("gpus", *SIZES)}
            for engine, name in ((False, "data_parallel"), (True, "model_parallel"))
        },
        "coverage": {
            "runs": len(left_out),
            "inside": covered,
            "by_class": grouped(left_out, "class"),
            "by_novelty": grouped(left_out, "novelty"),
            "by_source": by_source(examples, left_out),
        },
        "cells": [
            {
                "model_parallel": engine,
                "stack": stack,
                "gpu": gpu,
                "architecture": json.loads((DATA / "gpus" / f"{gpu}.json").read_text())["architecture"]["value"],
                "moe": moe,
                "precision": precision,
                "cells": len(own),
            }
            for (engine, stack, gpu, moe, precision), own in sorted(cells.items())
        ],
    }
    product.write_fitted(to, "novelty", document)
    print(f"with widths of the other sources {covered} of {len(left_out)} inside ({covered / len(left_out):.1%})")
    for key in ("class", "novelty", "source"):
        for name, score in grouped(left_out, key).items():
            note = "  <- below 75 %" if score["runs"] >= LEAST_RUNS and score["inside"] < 0.75 * score["runs"] else ""
            print(f"  {key} {name}: {score['inside']} of {score['runs']}, half-width {score['median_half_width']:.3f}{note}")
    print("memory", document["memory"])
    print({key: document["base"][key] for key in document["base"]})
    print({axis: entry["half_width"] for axis, entry in document["axes"].items()})

