# SPDX-License-Identifier: Apache-2.0
"""A tiny model by ranks that are threads, by NCCL and by processes: W ranks learn what one rank learns that takes W
micro-batches. Local ranks do to the bit in fp32; NCCL adds in an order of its own."""
from gpu_checks import machine, training
from gpu_checks.process import TROUBLE, Failed, Skipped

STEPS = 20
BEHIND = 1.05       # that the choice of collectives' multiprocessors may be
NCCL_BOUND = 1e-4   # of the loss, in fp32
HOST_BOUNDS = {"fp32": 2e-3, "bf16": 5e-2}


def tiny(check, micro_steps, *arguments):
    """Arguments of a training of the tiny model; every run sees the same sequences in a step, and multiplies by the
    library's first choice: an algorithm that a clock chose may add in another order than that of the run before."""
    return ["--model", check.programs.examples / "tiny-llama.json", "--data",
            check.programs.examples / "pride-and-prejudice.txt", "--seq-len", 128, "--micro-batch", 2, "--lr", "3e-3",
            "--products", "first",
            *([] if "--steps" in arguments else ["--steps", STEPS]), "--eval-sequences", 16, "--grad-accum", micro_steps,
            *arguments]


def attempt(check, report, name, start):
    """Runs `start`, notes it as a row of the report, and returns (row, curve); the curve of a failed one is None."""
    row = {"name": name}
    report["runs"].append(row)
    try:
        summary, metrics = start()
        row.update(loss=summary["loss"], step_s=training.steady_step_s(metrics),
                   attention=(summary.get("attention") or {}).get("kernel"),
                   peak_is_planned=summary["peak_memory_bytes"] == summary["planned_memory_bytes"])
        if not row["peak_is_planned"]:
            row["problem"] = f"memory is {summary['peak_memory_bytes']} of {summary['planned_memory_bytes']} bytes planned"
        return row, training.curve_of(metrics)
    except TROUBLE as error:
        row["problem"] = str(error)
        return row, None
    finally:
        check.save()


def judge(report):
    bad = [f"{row['name']}: {row['problem']}" for row in report["runs"] if "problem" in row]
    if bad:
        raise Failed("; ".join(bad)[:2000])


def check_ranks(check, report):
    """One GPU, or local ranks over several, where these read each other's memory; otherwise they share the first."""
    report["runs"] = []
    apart = check.machine.get("peer_access") is False
    report["gpus"] = 1 if apart else len(check.machine["gpus"])
    sees = {"CUDA_VISIBLE_DEVICES": "0"} if apart else {}

    def go(name, *arguments, micro_steps=4):
        return attempt(check, report, name, lambda: training.train(
            check, tiny(check, micro_steps, *arguments), "ranks", **sees))

    cuda = ["--param-dtype", "fp32", "--device", "cuda", "--ranks"]
    _, one = go("1 rank, fp32, 4 micro-steps", *cuda, 1)
    for ranks in (2, 4):
        for strategy in ("yafsdp", "fsdp2", "zero2"):
            row, curve = go(f"{ranks} local ranks, fp32, {strategy}", *cuda, ranks, "--strategy", strategy,
                            "--communicator", "local", micro_steps=4 // ranks)
            if one and curve:
                row["same_bits_as_one_rank"] = curve == one
                if curve != one:
                    row["problem"] = "other bits than one rank"
    pairs = []  # of a row, its curve, the host's, and how far they may be apart
    _, host = go("1 rank, fp32, host", "--param-dtype", "fp32", "--device", "host", "--ranks", 1)
    bf16_row, bf16 = go("1 rank, bf16", "--param-dtype", "bf16", "--device", "cuda", "--ranks", 1)
    pairs += [(report["runs"][0], one, host, HOST_BOUNDS["fp32"]), (bf16_row, bf16, host, HOST_BOUNDS["bf16"])]
    for recipe in machine.fp8_recipes(check.machine["gpus"][0]):
        fp8 = ["--param-dtype", "bf16", "--precision", "fp8", "--fp8-recipe", recipe, "--ranks", 1]
        row, curve = go(f"1 rank, fp8 {recipe}", *fp8, "--device", "cuda")
        _, host_curve = go(f"1 rank, fp8 {recipe}, host", *fp8, "--device", "host")
        pairs.append((row, curve, host_curve, HOST_BOUNDS["bf16"]))
    for row, curve, others, bound in pairs:
        if others and curve:
            row["largest_loss_difference_to_host"] = training.apart(others, curve)
            if row["largest_loss_difference_to_host"] >= bound:
                row["problem"] = f"loss is further than {bound} from the host's"
    judge(report)


def compare_collective_sms(check, report, gpus):
    """What a step of a model that communicates much takes by the multiprocessors that collectives may have. What a run
    takes by itself should not be far behind the best."""
    report["collective_sms"] = {}
    rows = []
    model = ["--model", check.programs.models / "llama-3.2-1b.json", "--data", "synthetic", "--hold-out", "0", "--seq-len",
             1024, "--micro-batch", 1, "--strategy", "yafsdp", "--steps", 10, "--save", "none", "--products", "first"]
    for sms in ("auto", 8, 16, 32):
        row, _ = attempt(check, report, f"{gpus} ranks, 1B, collectives on {sms} SMs", lambda: training.train(
            check, [*model, "--device", "cuda", "--communicator", "nccl", "--ranks", gpus, "--collective-sms", sms], "nccl"))
        report["collective_sms"][str(sms)] = row.get("step_s")
        rows.append(row)
    best = min((row["step_s"] for row in rows if row.get("step_s")), default=0)
    if best and rows[0].get("step_s", 0) > BEHIND * best:
        rows[0]["problem"] = f"a step takes {rows[0]['step_s']:.3g} s, the fastest of these {best:.3g} s"


def check_nccl(check, report):
    """NCCL by threads of one process and by processes, sharded and hybrid, on as many GPUs as there are."""
    gpus = len(check.machine["gpus"])
    report.update(runs=[], gpus=gpus)
    fp32 = ["--param-dtype", "fp32", "--device", "cuda", "--communicator", "nccl"]
    _, one = attempt(check, report, "1 rank alone", lambda: training.train(
        check, tiny(check, 8, "--param-dtype", "fp32", "--device", "cuda", "--ranks", 1), "nccl"))

    def compare(name, start):
        row, curve = attempt(check, report, name, start)
        if one and curve:
            row["largest_loss_difference"] = training.apart(one, curve)
            if row["largest_loss_difference"] >= NCCL_BOUND:
                row["problem"] = f"loss is further than {NCCL_BOUND} from one rank's"

    compare("1 rank over NCCL, yafsdp", lambda: training.train(
        check, tiny(check, 8, *fp32, "--ranks", 1, "--strategy", "yafsdp"), "nccl"))
    for ranks in [count for count in (2, 4, 8) if count <= gpus]:
        for strategy in ("yafsdp", "fsdp2", "hsdp"):
            if strategy == "hsdp" and ranks < 4:
                continue
            shape = ["--strategy", strategy, *(["--shard-group", ranks // 2] if strategy == "hsdp" else [])]
            arguments = tiny(check, 8 // ranks, *fp32, *shape)
            compare(f"{ranks} threads, {strategy}",
                    lambda: training.train(check, [*arguments, "--ranks", ranks, "--rank-processes", "off"], "nccl"))
            compare(f"{ranks} processes, {strategy}",
                    lambda: training.train_processes(check, arguments, "nccl", ranks))
    if gpus >= 2:
        compare_collective_sms(check, report, gpus)
    judge(report)
    if gpus < 2:
        raise Skipped("one rank over NCCL learns as alone; more ranks need more than one GPU")
