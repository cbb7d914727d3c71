# SPDX-License-Identifier: Apache-2.0
"""The same models and batches by PyTorch's FSDP2 with torch.compile, where PyTorch is installed."""
import glob
import json
import shutil
import subprocess
import sys

from gpu_checks.budget import run_rows
from gpu_checks.process import TROUBLE, OutOfTime, Skipped, run, within
from gpu_checks.programs import SCRIPTS

# Recomputing nothing is fastest where it fits; then every layer; states in bf16 only where fp32 ones do not fit.
START_S = 40  # with compiling
WAYS = [[], ["--checkpoint-layers"], ["--checkpoint-layers", "--all-bf16"]]


def python_with_torch():
    for python in [sys.executable, shutil.which("python3"), *glob.glob("/opt/*/.venv/bin/python3")]:
        try:
            if python and subprocess.run([python, "-c", "import torch"], capture_output=True, timeout=120).returncode == 0:
                return python
        except (OSError, subprocess.TimeoutExpired):
            pass
    raise Skipped("PyTorch is not installed here")


def check_pytorch(check, report):
    python = python_with_torch()
    ours = [row for row in check.results["parts"].get("models", {}).get("runs", [])
            if "step_s" in row and row.get("precision", "bf16") == "bf16"]
    if not ours:
        raise Skipped("no model was trained that it could be compared with")
    report["runs"] = []
    run_rows(check, report, [(f"{own['model']} on {own['gpus']}", START_S + own["steps"] * own["step_s"],
                              lambda own=own: compare(check, report, python, own)) for own in ours])
    if not any("step_s" in row for row in report["runs"]):
        raise Skipped(report["runs"][-1]["problem"])


def compare(check, report, python, own):
    launcher = [python] if own["gpus"] == 1 else [python, "-m", "torch.distributed.run", "--standalone",
                                                   f"--nproc-per-node={own['gpus']}"]
    for way in WAYS:
        row = {"model": own["model"], "gpus": own["gpus"], "arguments": way}
        report["runs"].append(row)
        try:
            with within(check, 240) as limit:
                told = run([*launcher, SCRIPTS / "pytorch_fsdp2_step.py", "--config",
                            check.programs.models / f"{own['model']}.json", "--seq-len", own["sequence"], "--micro-batch",
                            own["plan"]["micro_batch"], "--steps", own["steps"], *way], limit)
            row.update(json.loads(told.stdout.strip().splitlines()[-1]))
            row["times_as_fast"] = own["tokens_per_s"] / row["tokens_per_s"]
            return
        except OutOfTime:
            report["runs"].remove(row)
            raise
        except TROUBLE as error:
            row["problem"] = str(error)[-400:]
        finally:
            check.save()
