# SPDX-License-Identifier: Apache-2.0
"""The tiny model in tensor ranks and pipeline stages, by local ranks on one GPU and by NCCL on 2, 4 and 8: every layout
learns what one rank learns that takes as many micro-batches. Not yet run on a GPU.

Products of parts and of fewer layers may be given other algorithms than those of one rank, so bits are told, not asked
for; losses are."""
from gpu_checks import training
from gpu_checks.ranks import NCCL_BOUND, attempt, judge, tiny

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
    cuda = ["--param-dtype", "fp32", "--device", "cuda"]
    _, one = attempt(check, report, "1 rank", lambda: training.train(
        check, tiny(check, MICRO_STEPS, *cuda, "--ranks", 1), "layouts"))

    def compare(name, start):
        row, curve = attempt(check, report, name, start)
        if one and curve:
            row["largest_loss_difference"] = training.apart(one, curve)
            row["has_bits_of_one_rank"] = curve == one
            if row["largest_loss_difference"] >= NCCL_BOUND:
                row["problem"] = f"loss is further than {NCCL_BOUND} from one rank's"

    def arguments(ranks, flags, communicator):
        return tiny(check, MICRO_STEPS // replicas_of(ranks, flags), *cuda, "--communicator", communicator, "--strategy",
                    "yafsdp", *flags)

    for ranks in (2, 4):
        for name, flags in LAYOUTS[ranks]:
            compare(f"{ranks} local ranks, {name}", lambda: training.train(
                check, [*arguments(ranks, flags, "local"), "--ranks", ranks], "layouts", CUDA_VISIBLE_DEVICES="0"))
    for ranks in [count for count in LAYOUTS if count <= gpus]:
        for name, flags in LAYOUTS[ranks]:
            compare(f"{ranks} threads, {name}", lambda: training.train(
                check, [*arguments(ranks, flags, "nccl"), "--ranks", ranks, "--rank-processes", "off"], "layouts"))
        name, flags = LAYOUTS[ranks][0]
        compare(f"{ranks} processes, {name}", lambda: training.train_processes(
            check, arguments(ranks, flags, "nccl"), "layouts", ranks))
    judge(report)
