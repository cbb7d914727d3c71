# SPDX-License-Identifier: Apache-2.0
"""Rates of kernels and of attention, beside what cudaMemcpyAsync reaches on this GPU in the same process."""
import json

from gpu_checks.process import TROUBLE, Failed, within

OF_COPY = 0.8  # what streaming kernels are meant to reach of a copy's rate
KEPT = ("name", "real_time", "time_unit", "bytes_per_second", "items_per_second", "TFLOP/s", "of_copy", "label")


def rows_of(program, output):
    for row in json.loads(output)["benchmarks"]:
        if row.get("run_type") == "aggregate" or row.get("error_occurred"):
            continue
        kept = {key: row[key] for key in KEPT if key in row}
        if "bytes/s" in row:
            kept["bytes_per_second"] = row["bytes/s"]
        yield {"program": program.name, **kept}


def check_benchmarks(check, report):
    if not check.programs.benchmarks:
        raise Failed("the package holds no CUDA benchmarks")
    report.update(rows=[], failed={})
    for program in check.programs.benchmarks:
        try:
            with within(check, 240) as limit:
                told = check.programs.run([program, "--benchmark_format=json", "--benchmark_min_time=0.2"], limit)
            report["rows"] += rows_of(program, told.stdout)
        except TROUBLE as error:
            report["failed"][program.name] = str(error)
        check.save()
    rows = report["rows"]
    copies = [row["bytes_per_second"] / row["of_copy"] for row in rows if row.get("of_copy")]
    report["copy_bytes_per_second"] = max(copies, default=None)
    report["below_target"] = [row["name"] for row in rows if row.get("of_copy", 1) < OF_COPY]
    if report["failed"]:
        raise Failed("; ".join(f"{name}: {why}" for name, why in report["failed"].items()))
    if not rows:
        raise Failed("no benchmark gave a number")
