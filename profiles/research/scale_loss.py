# SPDX-License-Identifier: Apache-2.0
"""How far machines differ in what a step loses with every doubling of the GPUs beyond a node (fitted/scale_residuals.json).

A series is published runs of one source that differ in their number of GPUs alone: each GPU does the same work. It is
predicted without any loss of scale; its own loss is the slope of log(measured / predicted) over doublings beyond a node. The
loss of a machine (the runs of one source on one GPU) is the median of its series. The half-width is that of the next
machine's loss: Student's t at the level, over the spread of these, whatever their network. Of a kind of network on which
nobody published a series it is sqrt(2) times as much: kinds are taken to differ from each other as machines of the same kind
do. published/networks.csv says which network a source had.
"""
from __future__ import annotations

import itertools
import math
import statistics

from scipy.stats import t as student

from profiles.research import product

LEVEL = 0.9
TABLES = {"ledger": "cost.contention.scale_loss", "parallel": "stack.parallel.step_jitter_per_doubling"}
RESULTS = ("id", "locator", "notes", "note", "gpus", "dp", "global_batch", "iter_time_s", "time_kind",
           "tokens_per_gpu_s", "peak_mem_gib", "mem_kind", "outcome", "tflops_per_gpu", "mfu_published",
           "mfu_check", "tflops_check", "quality", "task", "software")


def series():
    """(source, GPU) -> list of series, each a list of (doublings beyond a node, log error)."""
    found = {}
    for table, loss in TABLES.items():
        rows = {row["id"]: row for row in product.read_table(table)}
        for run, error in product.log_errors(product.validate(list(rows.values()), {loss: 0})).items():
            row = rows[run]
            if row["shard_group"] == row["gpus"]:
                row["shard_group"] = "all"
            key = tuple(value for name, value in row.items() if name not in RESULTS)
            doublings = max(0.0, math.log2(int(row["gpus"]) / int(row["gpus_per_node"])))
            found.setdefault((row["source"], row["gpu"]), {}).setdefault(key, []).append((doublings, -error))
    return {machine: [own for own in by_key.values() if len({x for x, _ in own}) > 1] for machine, by_key in found.items()}


def typical_slope(own):
    """Median of the slopes between any two runs of a series, weighted by the doublings between them: absolute deviations, as
    in the fit of the step parameters."""
    pairs = sorted(((b[1] - a[1]) / (b[0] - a[0]), abs(b[0] - a[0]))
                   for runs in own for a, b in itertools.combinations(runs, 2) if a[0] != b[0])
    half = sum(weight for _, weight in pairs) / 2
    for value, weight in pairs:
        half -= weight
        if half <= 0:
            return value
    return None


def fit(date, to):
    networks = {(row["source"], row["gpu"]): row["network"] for row in product.read_table("networks")}
    found = [{"source": source, "gpu": gpu, "network": networks.get((source, gpu), ""), "series": len(own),
              "runs": sum(map(len, own)), "loss": round(typical_slope(own), 5)}
             for (source, gpu), own in sorted(series().items()) if own]
    for one in found:
        print(f"{one['source']}, {one['gpu']}: {100 * one['loss']:.2f} % a doubling "
              f"({one['network'] or 'network not said'}; {one['series']} series, {one['runs']} runs)")
    losses = [one["loss"] for one in found]
    mean, spread = statistics.mean(losses), statistics.stdev(losses)
    quantile = round(float(student.ppf((1 + LEVEL) / 2, len(losses) - 1)), 3)
    width = quantile * spread * math.sqrt(1 + 1 / len(losses))
    print(f"all {len(losses)}: mean {100 * mean:.2f} %, spread {100 * spread:.2f} %, "
          f"the next one give or take {100 * width:.2f} %")
    kinds = sorted({one["network"] for one in found} - {""})
    for kind in kinds:
        own = [one["loss"] for one in found if one["network"] == kind]
        sources = {one["source"].split()[0] for one in found if one["network"] == kind}
        print(f"{kind}: mean {100 * statistics.mean(own):.2f} % of {len(own)}, from {100 * min(own):.2f} to "
              f"{100 * max(own):.2f} %, {len(sources)} operator{'s' if len(sources) > 1 else ''}")
    product.write_fitted(to, "scale_residuals", {
        "schema": "shardwright.scale_residuals/1.0",
        "source": "series of published runs that differ in their number of GPUs alone "
                  "(published/ledger.csv, published/parallel.csv)",
        "command": f"{product.COMMAND} scale-loss",
        "date": date,
        "level": LEVEL,
        "half_width_per_doubling": round(width, 5),
        "unmeasured_factor": round(math.sqrt(2), 5),
        "networks": kinds,
        "machines": found,
    })
