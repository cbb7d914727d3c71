# SPDX-License-Identifier: Apache-2.0
"""Runs on a machine with an NVIDIA GPU everything that a machine without one cannot, in half an hour: GPU tests, local
ranks against one rank and the host, NCCL by processes and threads, tensor ranks and pipeline stages, a kill and a resume,
language models at full size with predictions before and after `measure`, kernel benchmarks against cudaMemcpyAsync, the
same models in PyTorch (FSDP2 and torch.compile) where it is installed, and compute-sanitizer. Not yet run on a GPU.

  gpu_check [--out results.json] [--only PART...] [--models NAME...] [--minutes N]
  gpu_check --show results.json        prints a results file as Markdown
  gpu_check --nodes 2 --node 0 --meet HOST:PORT --shared FOLDER     on each of several machines, with its own --node:
                                       what only these can show (gpu_checks/nodes.py)

Which driver a build needs, `shardwright doctor` says. It takes prebuilt programs from the folder that
scripts/gpu_package made (its own), or from --build. The results are one JSON file with the GPU, the driver and every
library's version; `shardwright validate --gpu-results` predicts its runs anew. It is written after every step, and parts
that --only leaves out keep what the file holds of them. A part that fails is told as failed and the others go on; one
that this machine has nothing for (memory, a second GPU, PyTorch, a tool) is told as skipped, one whose time was over as
unfinished, and rows that would not have ended in time are named. Exit codes: 0 all is well, 1 a part failed, or is
unfinished that is not one of benchmarks, pytorch and sanitizer, 5 no GPU, or no programs for it.

Needs python3, and nothing beside its standard library."""
import argparse
import json
import pathlib
import sys
import time

from gpu_checks import machine, report
from gpu_checks.benchmarks import check_benchmarks
from gpu_checks.budget import ALL_MINUTES, MINUTES, OPTIONAL, Budget
from gpu_checks.layouts import check_layouts
from gpu_checks.measure import check_measure
from gpu_checks.models import MODELS, check_models
from gpu_checks.nodes import check_nodes
from gpu_checks.process import Failed, Missing, OutOfTime, Skipped
from gpu_checks.programs import Programs
from gpu_checks.pytorch import check_pytorch
from gpu_checks.ranks import check_nccl, check_ranks
from gpu_checks.restart import check_restart
from gpu_checks.sanitizer import check_sanitizer
from gpu_checks.unit_tests import check_tests

CHECKS = {"tests": check_tests, "ranks": check_ranks, "nccl": check_nccl, "layouts": check_layouts,
          "restart": check_restart,
          "models": check_models, "measure": check_measure, "benchmarks": check_benchmarks, "pytorch": check_pytorch,
          "sanitizer": check_sanitizer, "nodes": check_nodes}
PARTS = list(MINUTES)
SCHEMA = "shardwright.gpu_results/1.0"


class Check:
    """What every part sees: programs, machine, options, what was found so far, the time that is left."""

    def __init__(self, options, programs, described):
        self.options, self.programs, self.machine = options, programs, described
        self.budget = Budget(options.only, options.minutes)
        self.left = self.budget.left
        self.scratch = options.out.resolve().parent / (options.out.stem + ".scratch")
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.results = earlier(options.out, described)
        self.results.update(schema=SCHEMA, machine=described, when=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))

    def save(self):
        temporary = self.options.out.with_suffix(self.options.out.suffix + ".tmp")
        temporary.write_text(json.dumps(self.results, indent=1) + "\n")
        temporary.replace(self.options.out)

    def run(self, part):
        begin = time.monotonic()
        told = {"verdict": "unfinished", "why": "it was cut off"}
        self.results["parts"].pop(part, None)
        self.results["parts"][part] = told
        self.budget.begin(part)
        self.save()
        try:
            self.left()
            CHECKS[part](self, told)
            told.update(verdict="passed", why="")
            if "left_out" in told:
                told["why"] = f"left out, because they would not have ended in time: {', '.join(told['left_out'])}"
        except Skipped as why:
            told.update(verdict="skipped", why=str(why))
        except OutOfTime as why:
            wrong = wrong_so_far(told)
            told.update(verdict="failed" if wrong else "unfinished", why="; ".join([*wrong, str(why)])[:2000])
        except Failed as why:
            told.update(verdict="failed", why=str(why))
        except Exception as error:  # whatever it is must not cost the other parts
            told.update(verdict="failed", why=f"{type(error).__name__}: {error}")
        told["took_s"] = time.monotonic() - begin
        self.save()
        return told


def wrong_so_far(told):
    """What a part that was not ended has found wrong."""
    rows = [f"{row.get('name') or row.get('model')}: {row['problem']}" for row in told.get("runs", []) if "problem" in row]
    return rows + [f"{entry['program']}: {name}" for entry in told.get("programs", []) for name in entry["failed"]]


def earlier(path, described):
    """What the file holds of the same GPUs."""
    try:
        results = json.loads(path.read_text())
    except (OSError, ValueError):
        return {"parts": {}}
    same = results.get("schema") == SCHEMA and results.get("machine", {}).get("gpus") == described["gpus"]
    return results if same else {"parts": {}}


def arguments():
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu_check.json"), help="the results file")
    parser.add_argument("--build", help="a build's folder, instead of a package")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="the parts to run")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="models that are trained at full size")
    parser.add_argument("--cluster", help="what predictions before measure are made for")
    parser.add_argument("--minutes", type=float, default=ALL_MINUTES, help="no new work is begun after these")
    parser.add_argument("--sanitize", default="*", metavar="FILTER",
                        help="kernel tests that compute-sanitizer repeats; empty: none")
    parser.add_argument("--nodes", type=int, default=1, help="how many machines take part in the part nodes")
    parser.add_argument("--node", type=int, default=0, help="which of them this is, from 0")
    parser.add_argument("--meet", metavar="HOST:PORT", help="node 0, and the first of eight free ports there")
    parser.add_argument("--shared", type=pathlib.Path, help="a folder that all nodes see")
    parser.add_argument("--show", type=pathlib.Path, help="print this results file and do nothing else")
    options = parser.parse_args()
    options.only = [part for part in PARTS if part in options.only]
    if options.nodes > 1:
        if not options.meet or not options.meet.rpartition(":")[2].isdigit() or not options.shared:
            parser.error("--nodes wants --meet HOST:PORT and --shared FOLDER, the same on every node")
        if not 0 <= options.node < options.nodes:
            parser.error(f"--node is {options.node}, expected 0 to {options.nodes - 1}")
        options.only = ["nodes"]
    return options


def main():
    options = arguments()
    if options.show:
        print(report.markdown(json.loads(options.show.read_text())), end="")
        return 0
    try:
        programs = Programs(options.build)
        check = Check(options, programs, machine.describe(programs))
    except (Missing, Failed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 5
    for lack in check.machine["lacks"]:
        print(f"note: {lack}", file=sys.stderr)
    for part in options.only:
        print(f"==> {part}", file=sys.stderr, flush=True)
        told = check.run(part)
        print(f"    {told['verdict']} in {told['took_s']:.0f} s  {told['why']}", file=sys.stderr, flush=True)
    print(report.markdown(check.results), end="")
    verdicts = {part: check.results["parts"][part]["verdict"] for part in options.only}
    return int(any(told == "failed" or told == "unfinished" and part not in OPTIONAL for part, told in verdicts.items()))
