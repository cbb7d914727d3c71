# SPDX-License-Identifier: Apache-2.0
"""The tiny model in tensor ranks and pipeline stages, by local ranks on one GPU and by NCCL on 2, 4 and 8: every layout
learns what one rank learns that takes as many micro-batches. Not yet run on a GPU.

Products of parts and of fewer layers may be given other algorithms than those of one rank, so bits are told, not asked
for; losses are."""
from gpu_checks.budget import run_rows
from gpu_checks.ranks import judge, rows_against_one, tiny

MICRO_STEPS = 8  # of a replica

# Tensor ranks x stages, and how they are given.
LAYOUTS = {2: [("tp 2", ["--tp", 2]),
               ("tp 2 with sp", ["--tp", 2, "--sp", "on"]),
               ("pp 2", ["--pp", 2]),
               ("pp 2, 2 chunks", ["--pp", 2, "--virtual-stages", 2]),
               ("pp 2, zb1p", ["--pp", 2, "--pp-schedule", "zb1p"]),
               ("pp 2, zbv", ["--pp", 2, "--pp-schedule", "zbv"])],
           4: [("tp 2, pp 2", ["--tp", 2, "--pp", 2]),
               ("pp 4, zb1p", ["--pp", 4, "--pp-schedule", "zb1p"]),
               ("tp 2, pp 2, 2 chunks", ["--tp", 2, "--pp", 2, "--virtual-stages", 2])],
           8: [("tp 2, pp 4", ["--tp", 2, "--pp", 4]),
               ("tp 2, pp 2, dp 2", ["--tp", 2, "--pp", 2])]}


def replicas_of(ranks, flags):
    parts = 1
    for flag, count in zip(flags, flags[1:]):
        parts *= count if flag in ("--tp", "--pp") else 1
    return ranks // parts


def check_layouts(check, report):
    gpus = len(check.machine["gpus"])
    report.update(runs=[], gpus=gpus)
    row = rows_against_one(check, report, "layouts")
    cuda = ["--param-dtype", "fp32", "--device", "cuda"]

    def of(how, counts, most=None):
        return [row(how, ranks, name,
                    tiny(check, MICRO_STEPS // replicas_of(ranks, flags), *cuda, "--strategy", "yafsdp", *flags))
                for ranks in counts for name, flags in LAYOUTS[ranks][:most]]

    counts = [count for count in (8, 4, 2) if count <= gpus]
    rows = [row("local ranks", 1, "1 rank", tiny(check, MICRO_STEPS, *cuda))]
    run_rows(check, report, rows + of("processes", counts, 1) + of("local ranks", (2, 4)) + of("threads", counts), core=2)
    judge(report)
