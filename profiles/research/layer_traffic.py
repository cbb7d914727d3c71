# SPDX-License-Identifier: Apache-2.0
"""What the steps of one stack's runs miss: bytes between the products of a layer, and seconds a step.

  python3 -m profiles.research.layer_traffic aleph-alpha
  python3 -m profiles.research.layer_traffic megatron-deepspeed --bytes-only

Predicts the runs of published/parallel.csv that the stack took, with neither, and fits both to what is left by least squares of
relative errors: a layer moves so many bytes more for each hidden element of a token between the matrices (a third in forward), a
step takes so long whatever its micro-batches (--bytes-only: no longer than the stack says). Prints both for all runs, and for
each sheet or section of the source the mean error without them, with them, and with those of the others. Nothing is written:
the constants stand in the stack's data file, in `residual` (two of them a layer, so each has half) and `host.step_s`.
"""
from __future__ import annotations

import sys

import numpy as np

from profiles.research import product

ADD_BYTES = 6  # of a residual alone: two read, one written
BANDWIDTH = 2.039e12 * 0.82  # bytes per second that kernels of an A100 stream


def runs(stack, bytes_only):
    without = {f"stack.residual.{way}_bytes": ADD_BYTES for way in ("forward", "backward")}
    if not bytes_only:
        without["stack.host.step_s"] = 0
    table = {row["id"]: row for row in product.read_table("parallel") if row["stack"] == stack}
    for row in product.validate(list(table.values()), without)["rows"]:
        own = table[row["id"]]
        if row["time_error"] is None or row["suspect"]:
            continue
        shards = int(own["tp"]) if own["sp"] == "1" else 1
        tokens = int(own["micro_batch"]) * int(own["grad_accum"]) * int(own["seq_len"])
        passes = 4 / 3 if own["recompute"] == "full" else 1
        elements = passes * tokens * int(own["hidden"]) * int(own["layers"]) / int(own["pp"]) / shards
        measured = float(own["iter_time_s"])
        yield {
            "sheet": own["locator"].rsplit("/", 1)[-1].rsplit("section ", 1)[-1].strip('" '),
            "traffic": elements / BANDWIDTH / measured,
            "step": 0 if bytes_only else 1 / measured,
            "error": row["time_error"],
        }


def solve(own):
    """Both constants, least squares of error + traffic * bytes + step * seconds; runs that are off by
    more than a fifth with the fit of all are left out of a second one."""
    kept = own
    for _ in range(2):
        slopes = np.array([[r["traffic"], r["step"]] for r in kept])
        found = np.linalg.lstsq(slopes, [-r["error"] for r in kept], rcond=None)[0]
        kept = [r for r in own if abs(left(r, found)) < 0.2]
    return found


def left(run, found):
    return run["error"] + run["traffic"] * found[0] + run["step"] * found[1]


def mean(own, found):
    return 100 * sum(abs(left(r, found)) for r in own) / len(own)


def main():
    bytes_only = sys.argv[2:] == ["--bytes-only"]
    if len(sys.argv) != 2 and not bytes_only:
        sys.exit(__doc__.strip())
    every = list(runs(sys.argv[1], bytes_only))
    found = solve(every)
    print(f"{len(every)} runs: {found[0]:.0f} bytes an element and layer, {found[1]:.1f} s a step")
    print(f"mean error {mean(every, (0, 0)):.1f} % without, {mean(every, found):.1f} % with them")
    for sheet in sorted({r["sheet"] for r in every}):
        own = [r for r in every if r["sheet"] == sheet]
        others = solve([r for r in every if r["sheet"] != sheet])
        print(
            f"{sheet}: {mean(own, (0, 0)):.1f} %, {mean(own, found):.1f} %, of other sheets "
            f"({others[0]:.0f}, {others[1]:.1f}) {mean(own, others):.1f} %"
        )


if __name__ == "__main__":
    main()
