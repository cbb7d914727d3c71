# SPDX-License-Identifier: Apache-2.0
"""compute-sanitizer over kernel tests. It slows them a hundredfold: a tool that does not end in its time is told as
that, which proves nothing and refutes nothing."""
import shutil

from gpu_checks.process import Failed, OutOfTime, Skipped, Slow

TOOLS = ["memcheck", "initcheck", "synccheck", "racecheck"]  # the fastest first
FOUND_ERRORS = 9


def check_sanitizer(check, report):
    sanitizer = shutil.which("compute-sanitizer", path=check.programs.environment.get("PATH"))
    sanitizer = sanitizer or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    kernels = [program for program in check.programs.tests if "kernel" in program.name]
    if not check.options.sanitize:
        raise Skipped("not asked for")
    if not sanitizer:
        raise Skipped("there is no compute-sanitizer here")
    if not kernels:
        raise Skipped("the package holds no tests of kernels")
    report["tools"] = []
    for place, tool in enumerate(TOOLS):
        row = {"tool": tool}
        report["tools"].append(row)
        command = [sanitizer, "--tool", tool, "--error-exitcode", FOUND_ERRORS, kernels[0],
                   f"--gtest_filter={check.options.sanitize}", "--gtest_brief=1"]
        try:
            done = check.programs.run(command, check.left() / (len(TOOLS) - place), check=False)
            row["verdict"] = {0: "clean", FOUND_ERRORS: "errors"}.get(done.returncode, f"ended with {done.returncode}")
            row["said"] = [line for line in done.stdout.splitlines() if "SUMMARY" in line or "error" in line.lower()][-3:]
        except (Slow, Failed, OutOfTime) as error:
            row["verdict"] = f"not finished: {error}"
        check.save()
    bad = [row["tool"] for row in report["tools"] if row["verdict"] == "errors"]
    if bad:
        raise Failed(f"{', '.join(bad)} found errors")
    if not any(row["verdict"] == "clean" for row in report["tools"]):
        raise Skipped("no tool finished")
