# SPDX-License-Identifier: Apache-2.0
"""Several machines: every one runs `gpu_check --nodes N --node K --meet HOST:PORT --shared FOLDER`, and all train the
same four things together, a process a GPU: sharded over all, hybrid with a shard group in each node, a model of one
billion parameters, and one that goes on from the first's checkpoint. Node 0 compares. HOST is node 0's, the folder one
that all of them see, and SHARDWRIGHT_MEETING_KEY the same secret everywhere."""
import os

from gpu_checks import training
from gpu_checks.process import TROUBLE, Failed, Skipped, last_words
from gpu_checks.ranks import NCCL_BOUND, STEPS, tiny

MORE_STEPS = 10


def jobs(check, world, gpus):
    """(name, folder, arguments) of what all nodes run, in this order."""
    fp32 = ["--param-dtype", "fp32", "--device", "cuda", "--communicator", "nccl", "--schedule", "constant"]
    micro_steps = max(1, 16 // world)
    billion = ["--model", check.programs.models / "llama-3.2-1b.json", "--data", "synthetic", "--hold-out", "0",
               "--seq-len", 1024, "--micro-batch", 1, "--strategy", "hsdp", "--shard-group", gpus, "--steps", 10,
               "--save", "none", "--products", "first"]
    return [("yafsdp over all GPUs", "sharded", tiny(check, micro_steps, *fp32, "--strategy", "yafsdp")),
            ("hsdp, a shard group a node", "hybrid", tiny(check, micro_steps, *fp32, "--strategy", "hsdp", "--shard-group",
                                                          gpus)),
            ("llama-3.2-1b, hsdp", "billion", billion),
            ("yafsdp, goes on from its checkpoint", "sharded",
             tiny(check, micro_steps, *fp32, "--strategy", "yafsdp", "--steps", STEPS + MORE_STEPS, "--resume", "auto"))]


def check_nodes(check, report):
    options, gpus = check.options, len(check.machine["gpus"])
    if options.nodes < 2:
        raise Skipped("one machine; give --nodes, --node, --meet and --shared on each of several")
    if "SHARDWRIGHT_MEETING_KEY" not in os.environ:
        raise Failed("SHARDWRIGHT_MEETING_KEY is not set, expected the same secret on all nodes")
    world = options.nodes * gpus
    host, port = options.meet.rsplit(":", 1)
    report.update(nodes=options.nodes, gpus=gpus, runs=[])
    for number, (name, folder, arguments) in enumerate(jobs(check, world, gpus)):
        row = {"name": f"{world} processes on {options.nodes} nodes, {name}"}
        report["runs"].append(row)
        try:
            job = training.Processes(check, arguments, options.shared / folder, gpus, first=options.node * gpus, world=world,
                                     meet=(host, int(port) + 2 * number))
            try:
                for local, code in enumerate(job.wait(check.left(120))):
                    if code != 0:
                        raise Failed(f"rank {options.node * gpus + local} ended with {code}: "
                                     f"{last_words(job.said(local, errors=True))}")
                if options.node == 0:
                    summary, metrics = training.results_of(job.said(0), job.out)
                    row.update(loss=summary["loss"], step_s=training.steady_step_s(metrics), steps=len(metrics))
            finally:
                job.close()
        except TROUBLE as error:
            row["problem"] = str(error)
        check.save()
    judge(check, report)


def judge(check, report):
    """Node 0 holds the runs against each other and against one rank of its own."""
    runs = report["runs"]
    if check.options.node == 0 and not any("problem" in row for row in runs):
        summary, _ = training.train(check, tiny(check, 16, "--param-dtype", "fp32", "--device", "cuda", "--ranks", 1,
                                                "--schedule", "constant"), "alone")
        for row in runs[:2]:
            row["largest_loss_difference"] = abs(row["loss"] - summary["loss"])
            if row["largest_loss_difference"] >= NCCL_BOUND:
                row["problem"] = f"loss is further than {NCCL_BOUND} from one rank's"
        if runs[3]["loss"] >= runs[0]["loss"]:
            runs[3]["problem"] = "it has learned nothing more"
    bad = [f"{row['name']}: {row['problem']}" for row in runs if "problem" in row]
    if bad:
        raise Failed("; ".join(bad)[:2000])
