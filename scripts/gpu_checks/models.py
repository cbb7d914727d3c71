# SPDX-License-Identifier: Apache-2.0
"""Language models at full size, on one GPU and on all: what `tune` chose, what it predicted, and what a step takes.
A model that has no plan on so many GPUs is skipped with what it needs."""
import json
import math
import shutil

from gpu_checks import machine, training
from gpu_checks.budget import run_rows
from gpu_checks.process import TROUBLE, Failed, OutOfTime, Skipped, within
from gpu_checks.published import published

# llmq publishes the Qwen models at the length of its own runs, with many micro-batches a step; torchtitan the last two.
MODELS = {"llama-3.2-1b": 4096, "llama-3.2-3b": 4096, "llama-3.1-8b": 4096, "qwen2.5-7b": 1024, "qwen2.5-1.5b": 1024,
          "llama-3-8b": 8192, "llama-2-7b": 2048}
ONLY_BESIDE_OTHERS = {"llama-3-8b", "llama-2-7b"}  # on as many GPUs as others published
SEQUENCE = 4096  # of models that are not among them
# Trained in fp8, too, by tensor, on one GPU that has it.
IN_FP8 = ("llama-3.1-8b", "qwen2.5-1.5b")
FP8 = ["--precision", "fp8", "--fp8-recipe", "tensorwise"]
MICRO_STEPS = {"qwen2.5-7b": 8, "qwen2.5-1.5b": 8}
START_S, STEPS_S = 25, 30  # that a run is expected to start in; how long its steps may take
STEPS, LEAST_STEPS = 12, 6
WORTH = 0.9  # wider types are taken unless narrower ones are more than a tenth faster
# What is kept of a parameter, the widest first: moments, then master weights and gradients, too, in bf16.
STATES = {"fp32": ["--moment-dtype", "fp32"], "bf16 moments": ["--moment-dtype", "bf16"],
          "bf16": ["--master-dtype", "bf16", "--reduce-dtype", "bf16", "--moment-dtype", "bf16"]}


def sequence_of(model):
    return MODELS.get(model, SEQUENCE)


def gib(value):
    return f"{value / 2**30:.1f} GiB"


def refusal(output, gpus):
    """What `tune` says that a model needs, of its JSON."""
    told = json.loads(output)
    memory = (told.get("closest") or {}).get("prediction", {}).get("memory", {})
    if "total_bytes" not in memory:
        return " ".join(told.get("why", [])) or "tune finds no plan"
    few = f"each of {gpus} GPUs" if gpus > 1 else "one GPU"
    more = (told.get("nearest_feasible") or {}).get("flags")
    return (f"needs {gib(memory['total_bytes'])} on {few}, which has {gib(memory['usable_bytes'])} for it"
            + (f"; would fit with {more}" if more else ""))


def plan_for(check, model, cluster, gpus, report_row):
    """The best plan of `tune` in the row's precision, and the seconds that a step is predicted to take; Skipped where
    none fits."""
    found, refused = {}, ""
    fp8 = FP8 if report_row["precision"] == "fp8" else []
    memory = ["--set", f"gpu.memory_bytes={check.machine['gpus'][0]['memory_bytes']}"]
    steps = ["--grad-accum", MICRO_STEPS[model]] if model in MICRO_STEPS else []
    for states, types in STATES.items():
        path = check.scratch / f"{model}-{gpus}-{report_row['precision']}-{states.replace(' ', '-')}.plan.json"
        path.unlink(missing_ok=True)
        with within(check, 90) as limit:
            done = check.programs.run([check.programs.shardwright, "tune", "--model", model, "--cluster", cluster, "--gpus",
                                       gpus, "--seq-len", sequence_of(model), *steps, "--stack", "native", "--param-dtype",
                                       "bf16", *types, *fp8, *memory, "--json", "--out", path], limit, check=False)
        if done.returncode == 0:
            found[states] = path, json.loads(done.stdout)["best"]["prediction"]
        elif done.returncode == 4:
            refused = refusal(done.stdout, gpus)
        else:
            raise Failed(f"tune ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    if not found:
        raise Skipped(refused)
    rate = {states: prediction["tokens_per_gpu_s"] for states, (_, prediction) in found.items()}
    report_row["states"] = next(states for states in rate if rate[states] >= WORTH * max(rate.values()))
    path, prediction = found[report_row["states"]]
    return path, prediction["iteration_time_s"]


def run_plan(check, plan, cluster, name, steps, trace=None):
    arguments = ["--plan", plan, "--data", "synthetic", "--device", "cuda", "--steps", steps, "--lr", "1e-4",
                 "--cluster", cluster, "--hold-out", "0", "--save", "none"]
    if trace:
        arguments += ["--trace", trace, "--trace-steps", 2]
    return training.train(check, arguments, name, 300)


def error_of(predicted, measured):
    return None if predicted is None or not measured else predicted / measured - 1


def fill(check, report, row, plan, cluster):
    """Trains, and notes the row in the report; what goes wrong is the row's problem."""
    report["runs"].append(row)
    try:
        train(check, row, plan, cluster)
    except OutOfTime:
        report["runs"].remove(row)
        raise
    except TROUBLE as error:
        row["problem"] = str(error)
    finally:
        check.save()


def train(check, row, plan, cluster):
    summary, metrics = run_plan(check, plan, cluster, "model", row["steps"])
    losses = [step["loss"] for step in metrics]
    step_s = training.steady_step_s(metrics)
    batch = summary["plan"]["micro_batch"] * summary["plan"]["grad_accum"] * row["gpus"]
    predicted = summary.get("predicted_step_time_s")
    row.update(plan=summary["plan"], plan_document=json.loads(plan.read_text()), attention=summary.get("attention"),
               step_s=step_s, first_step_s=metrics[0]["step_time_s"], seconds=summary.get("seconds"),
               tokens_per_s=batch * row["sequence"] / step_s, losses=[losses[0], losses[-1]], mfu=summary.get("mfu"),
               share_of_best_product=metrics[-1].get("share_of_best_product"),
               planned_bytes=summary["planned_memory_bytes"], peak_bytes=summary["peak_memory_bytes"],
               predicted_step_s=predicted, predicted_error=error_of(predicted, step_s))
    row["products"] = training.products_of(check.scratch / "model")
    row["peak_is_planned"] = row["planned_bytes"] == row["peak_bytes"]
    ran, planned = ((row["attention"] or {}).get(key) for key in ("kernel", "planned"))
    if planned and ran != planned:
        raise Failed(f"attention ran by {ran}, but the plan counts on {planned}: {row['attention'].get('why')}")
    if not row["peak_is_planned"]:
        raise Failed(f"memory is {row['peak_bytes']} of {row['planned_bytes']} bytes planned")
    if not math.isfinite(losses[-1]):
        raise Failed("the loss is no number")


def check_models(check, report):
    gpu = check.machine["gpus"][0]["name"]
    cluster = check.options.cluster or machine.cluster_of(gpu)
    if cluster is None:
        raise Failed(f"no shipped cluster has a {gpu}; give one with --cluster")
    report.update(cluster=cluster, runs=[])
    run_rows(check, report, rows_of(check, report, cluster))
    bad = [f"{row['model']} on {row['gpus']}: {row['problem']}" for row in report["runs"] if "problem" in row]
    if bad:
        raise Failed("; ".join(bad))
    if not any("step_s" in row for row in report["runs"]):
        if "left_out" in report:
            raise OutOfTime("the time given to this part is over")
        raise Skipped("; ".join(f"{row['model']} {row['skipped']}" for row in report["runs"]))


def rows_of(check, report, cluster):
    """The first model and its trace, what others published, then the rest; each planned when its turn comes."""
    gpus = len(check.machine["gpus"])
    has_fp8 = "tensorwise" in machine.fp8_recipes(check.machine["gpus"][0])
    runs = [(model, count, "bf16") for model in check.options.models for count in sorted({1, gpus})]
    runs += [(model, 1, "fp8") for model in check.options.models if has_fp8 and model in IN_FP8]
    rows = [{"model": model, "gpus": count, "precision": precision, "sequence": sequence_of(model), "published":
             published(check.programs.data, cluster, model, count, sequence_of(model), precision)}
            for model, count, precision in runs]
    rows = [row for row in rows if row["published"] or row["model"] not in ONLY_BESIDE_OTHERS]
    rows.sort(key=lambda row: (0, 0) if row["model"] == check.options.models[0] else
              (1, -row["gpus"]) if row["published"] else (2, 0))
    is_traced = False
    for row in rows:
        name = f"{row['model']} in {row['precision']} on {row['gpus']}"
        try:
            plan, step_s = plan_for(check, row["model"], cluster, row["gpus"], row)
            row["steps"] = min(STEPS, max(LEAST_STEPS, int(STEPS_S / step_s)))
            yield name, START_S + row["steps"] * step_s, lambda: fill(check, report, row, plan, cluster)
        except OutOfTime:
            report.setdefault("left_out", []).append(name)
        except Skipped as why:
            report["runs"].append({**row, "skipped": str(why)})
        except TROUBLE as error:
            report["runs"].append({**row, "problem": str(error)})
        check.save()
        if "step_s" in row and not is_traced:
            is_traced = True
            yield f"trace of {name}", START_S + LEAST_STEPS * row["step_s"], lambda: trace_one(check, row, cluster)


def trace_one(check, row, cluster):
    """The run once more with a trace, which is kept beside the results: predicted beside measured."""
    plan = check.scratch / "traced.plan.json"
    plan.write_text(json.dumps(row["plan_document"]))
    trace = check.options.out.with_suffix(".trace.json")
    try:
        summary, _ = run_plan(check, plan, cluster, "traced", LEAST_STEPS, trace)
        row["trace"] = {"file": trace.name, "report": summary.get("trace_report", "")}
        shutil.rmtree(check.scratch / "traced", ignore_errors=True)
    except TROUBLE as error:
        row["problem"] = f"with a trace: {error}"
