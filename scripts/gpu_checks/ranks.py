# SPDX-License-Identifier: Apache-2.0
"""A tiny model by ranks that are threads, by NCCL and by processes: W ranks learn what one rank learns that takes W
micro-batches. Local ranks do to the bit in fp32; NCCL adds in an order of its own."""
from gpu_checks import machine, training
from gpu_checks.budget import run_rows
from gpu_checks.process import TROUBLE, Failed, OutOfTime, Skipped

STEPS = 20
ROW_S, RANK_S = 5, 1  # that a row is expected to take, and each of its ranks
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
    except OutOfTime:
        report["runs"].remove(row)
        raise
    except TROUBLE as error:
        row["problem"] = str(error)
        return row, None
    finally:
        check.save()


def judge(report):
    bad = [f"{row['name']}: {row['problem']}" for row in report["runs"] if "problem" in row]
    if bad:
        raise Failed("; ".join(bad)[:2000])


def rows_against_one(check, report, part):
    """What makes rows whose losses are held against those of the first, a rank alone. HOW: threads or processes over NCCL,
    or local ranks of the first GPU."""
    one = []

    def start(how, ranks, arguments):
        arguments = [*arguments, "--communicator", "local" if how == "local ranks" else "nccl"]
        if how == "processes":
            return training.train_processes(check, arguments, part, ranks)
        return training.train(check, [*arguments, "--ranks", ranks, *(["--rank-processes", "off"] if how == "threads" else [])],
                              part, **({"CUDA_VISIBLE_DEVICES": "0"} if how == "local ranks" else {}))

    def row(how, ranks, name, arguments):
        name = f"{ranks} {how}, {name}" if ranks > 1 else name

        def compare():
            told, curve = attempt(check, report, name, lambda: start(how, ranks, arguments))
            one.append(curve)
            if one[0] and curve and len(one) > 1:
                told["largest_loss_difference"] = training.apart(one[0], curve)
                told["has_bits_of_one_rank"] = curve == one[0]
                if told["largest_loss_difference"] >= NCCL_BOUND:
                    told["problem"] = f"loss is further than {NCCL_BOUND} from one rank's"
        return name, ROW_S + RANK_S * ranks, compare
    return row


def check_ranks(check, report):
    """One GPU, or local ranks over several, where these read each other's memory; otherwise they share the first."""
    report["runs"] = []
    apart = check.machine.get("peer_access") is False
    report["gpus"] = 1 if apart else len(check.machine["gpus"])
    sees = {"CUDA_VISIBLE_DEVICES": "0"} if apart else {}
    curves = {}

    def row(name, *arguments, micro_steps=4, bits_of=None, near=None, bound=None):
        def start():
            row, curve = attempt(check, report, name, lambda: training.train(
                check, tiny(check, micro_steps, *arguments), "ranks", **sees))
            curves[name] = curve
            if curve and curves.get(bits_of):
                row["same_bits_as_one_rank"] = curve == curves[bits_of]
                if curve != curves[bits_of]:
                    row["problem"] = "other bits than one rank"
            if curve and curves.get(near):
                row["largest_loss_difference_to_host"] = training.apart(curves[near], curve)
                if row["largest_loss_difference_to_host"] >= bound:
                    row["problem"] = f"loss is further than {bound} from the host's"
        return name, ROW_S, start

    host, one = "1 rank, fp32, host", "1 rank, fp32, 4 micro-steps"
    cuda = ["--param-dtype", "fp32", "--device", "cuda", "--ranks"]
    bf16 = ["--param-dtype", "bf16", "--ranks", 1]
    rows = [row(host, "--param-dtype", "fp32", "--device", "host", "--ranks", 1),
            row(one, *cuda, 1, near=host, bound=HOST_BOUNDS["fp32"])]
    local = [row(f"{ranks} local ranks, fp32, {strategy}", *cuda, ranks, "--strategy", strategy, "--communicator", "local",
                 micro_steps=4 // ranks, bits_of=one) for strategy in ("yafsdp", "fsdp2", "zero2") for ranks in (2, 4)]
    rows += [local.pop(0), row("1 rank, bf16", *bf16, "--device", "cuda", near=host, bound=HOST_BOUNDS["bf16"])]
    for recipe in machine.fp8_recipes(check.machine["gpus"][0]):
        name = f"1 rank, fp8 {recipe}"
        fp8 = [*bf16, "--precision", "fp8", "--fp8-recipe", recipe, "--device"]
        rows += [row(f"{name}, host", *fp8, "host"), row(name, *fp8, "cuda", near=f"{name}, host", bound=HOST_BOUNDS["bf16"])]
    run_rows(check, report, rows + local, core=3)
    judge(report)


def compared_collective_sms(check, report, gpus):
    """Rows of a model that communicates much, by the multiprocessors that collectives may have."""
    model = ["--model", check.programs.models / "llama-3.2-1b.json", "--data", "synthetic", "--hold-out", "0", "--seq-len",
             1024, "--micro-batch", 1, "--strategy", "yafsdp", "--steps", 10, "--save", "none", "--products", "first"]
    report["collective_sms"] = {}
    first = []

    def row(sms):
        name = f"{gpus} ranks, 1B, collectives on {sms} SMs"

        def start():
            row, _ = attempt(check, report, name, lambda: training.train(
                check, [*model, "--device", "cuda", "--communicator", "nccl", "--ranks", gpus, "--collective-sms", sms], "nccl"))
            first.append(row)
            steps = report["collective_sms"]
            steps[str(sms)] = row.get("step_s")
            best = min((step for step in steps.values() if step), default=0)
            # What a run takes by itself is not far behind the best.
            if steps["auto"] and steps["auto"] > BEHIND * best:
                first[0]["problem"] = f"a step takes {steps['auto']:.3g} s, the fastest of these {best:.3g} s"
        return name, 4 * ROW_S + RANK_S * gpus, start
    return [row(sms) for sms in ("auto", 8, 16, 32)]


def check_nccl(check, report):
    """NCCL by processes and by threads of one process, sharded and hybrid, on as many GPUs as there are."""
    gpus = len(check.machine["gpus"])
    report.update(runs=[], gpus=gpus)
    fp32 = ["--param-dtype", "fp32", "--device", "cuda"]
    row = rows_against_one(check, report, "nccl")

    def several(how):
        return [row(how, ranks, strategy, tiny(check, 8 // ranks, *fp32, "--strategy", strategy,
                                               *(["--shard-group", ranks // 2] if strategy == "hsdp" else [])))
                for ranks in (8, 4, 2) if ranks <= gpus for strategy in ("yafsdp", "fsdp2", "hsdp")[:3 if ranks >= 4 else 2]]

    rows = [row("local ranks", 1, "1 rank alone", tiny(check, 8, *fp32)),
            row("threads", 1, "1 rank over NCCL, yafsdp", tiny(check, 8, *fp32, "--strategy", "yafsdp"))]
    sms = compared_collective_sms(check, report, gpus) if gpus >= 2 else []
    run_rows(check, report, rows + several("processes") + sms + several("threads"), core=3)
    judge(report)
    if gpus < 2:
        raise Skipped("one rank over NCCL learns as alone; more ranks need more than one GPU")
