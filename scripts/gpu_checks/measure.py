# SPDX-License-Identifier: Apache-2.0
"""Measures this machine with `shardwright measure`, then predicts the runs of the part before with what was measured."""
import json

from gpu_checks import machine
from gpu_checks.models import error_of
from gpu_checks.process import TROUBLE, Failed, within


def check_measure(check, report):
    models = check.results["parts"].get("models", {})
    runs = [row for row in models.get("runs", []) if "step_s" in row]
    model = runs[0]["model"] if runs else check.options.models[0]
    base = models.get("cluster") or check.options.cluster or machine.cluster_of(check.machine["gpus"][0]["name"])
    profile = check.options.out.with_suffix(".profile.json")
    with within(check, 420) as limit:
        done = check.programs.run([check.programs.shardwright, "measure", "--device", "cuda", "--model", model, "--out",
                                   profile, *(["--base", base] if base else [])], limit)
    report.update(seconds=done.seconds, profile=profile.name, profile_document=json.loads(profile.read_text()), runs=[])
    for run in runs:
        row = {"model": run["model"], "gpus": run["gpus"], "precision": run.get("precision", "bf16")}
        report["runs"].append(row)
        plan = check.scratch / "plan-again.json"
        try:
            plan.write_text(json.dumps(run["plan_document"]))
            told = check.programs.run([check.programs.shardwright, "predict", "--plan", plan, "--cluster", profile,
                                       "--json"], check.left(60))
            row["predicted_step_s"] = json.loads(told.stdout)["iteration_time_s"]
            row["error"] = error_of(row["predicted_step_s"], run["step_s"])
        except TROUBLE as error:
            row["problem"] = str(error)
        check.save()
    bad = [f"{row['model']}: {row['problem']}" for row in report["runs"] if "problem" in row]
    if bad:
        raise Failed("; ".join(bad))
