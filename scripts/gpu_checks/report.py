# SPDX-License-Identifier: Apache-2.0
"""A results file as Markdown, for people and for the README."""
from gpu_checks.benchmarks import OF_COPY


def percent(value):
    return "-" if value is None else f"{100 * value:+.1f} %"


def markdown(results):
    machine = results["machine"]
    gpus = machine["gpus"]
    lines = [f"# GPU check: {len(gpus)} x {gpus[0]['name'] if gpus else '?'}", "",
             f"{results['when']}, driver {machine.get('driver') or '?'}, {machine['operating_system']}, "
             f"{machine['processor']}; commit {machine['commit'] or '?'}.", "", verdicts(results), ""]
    lines += [f"* {name} {version}" for name, version in machine["versions"].items()]
    lines += [f"* {lack}" for lack in machine.get("lacks", [])]
    for part, told in results["parts"].items():
        lines += ["", f"## {part}: {told['verdict']}", ""]
        if told.get("why"):
            lines += [told["why"], ""]
        lines += SECTIONS.get(part, lambda told: [])(told)
    return "\n".join(lines) + "\n"


def verdicts(results):
    """One sentence: what passed, what failed, what proves nothing."""
    by_verdict = {}
    for part, told in results["parts"].items():
        by_verdict.setdefault(told["verdict"], []).append(part)
    return "; ".join(f"{verdict}: {', '.join(parts)}" for verdict, parts in by_verdict.items()) + "."


def of_tests(told):
    if "programs" not in told:
        return []
    lines = [f"{told.get('passed', 0)} passed, {told.get('failed', 0)} failed, {told.get('skipped', 0)} skipped."]
    for entry in told["programs"]:
        for name in entry.get("failed", []):
            alone = " (passes alone)" if name in entry.get("pass_alone", []) else ""
            lines += [f"* {entry['program']}: {name}{alone}: {first_line(entry['why'].get(name, ''))}"]
    return lines


def first_line(text):
    return text.strip().splitlines()[0][:200] if text.strip() else ""


def of_runs(told):
    if not told.get("runs"):
        return []
    lines = [f"On {told['gpus']} GPU{'s' if told['gpus'] != 1 else ''}.", ""] if "gpus" in told else []
    lines += ["| run | loss | step | compared |", "|---|---|---|---|"]
    for row in told["runs"]:
        compared = ""
        if "same_bits_as_one_rank" in row:
            compared = "same bits as one rank"
        for key, other in (("largest_loss_difference", "one rank"), ("largest_loss_difference_to_host", "the host")):
            if key in row:
                compared = f"{row[key]:.1e} from {other}"
        if "problem" in row:
            compared = f"FAILED: {row['problem']}"
        loss = f"{row['loss']:.4f}" if "loss" in row else "-"
        step = f"{1e3 * row['step_s']:.2f} ms" if "step_s" in row else "-"
        lines += [f"| {row['name']} | {loss} | {step} | {compared} |"]
    return lines


def of_restart(told):
    if "ended_after_s" not in told:
        return []
    lines = [f"* one of {told['ranks']} ranks killed; all had ended after {told['ended_after_s']:.1f} s"]
    if "same_bits" in told:
        how = "bit for bit" if told["same_bits"] else f"within {told['largest_loss_difference']:.1e}"
        lines += [f"* resumed, the run learned what the undisturbed one did, {how}"]
    if "steps_on_half_the_ranks" in told:
        lines += [f"* {told['steps_on_half_the_ranks']} more steps on half the ranks"]
    return lines


def of_others(row):
    """What others published of such a run, all GPUs together."""
    other = row.get("published")
    if not other:
        return ""
    where = f" on {other['on']}" if "on" in other else ""
    return f"{other['by']} {row['gpus'] * other['tokens_per_gpu_s']:.0f}{where}"


def of_models(told):
    if not told.get("runs"):
        return []
    lines = [f"Predicted for {told['cluster']} before anything was measured; states: what is kept of a parameter.", "",
             "| model | GPUs | tokens of a sequence | precision | states | step | tokens/s | published | MFU | predicted | memory | "
             "attention |", "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in told["runs"]:
        precision = row.get("precision", "bf16")
        if "step_s" not in row:
            why = row.get("skipped") and f"skipped: {row['skipped']}" or f"FAILED: {row.get('problem')}"
            lines += [f"| {row['model']} | {row['gpus']} | {row['sequence']} | {precision} | | {why} | | {of_others(row)} | | | | |"]
            continue
        mfu = f"{100 * row['mfu']:.1f} %" if row.get("mfu") else "-"
        lines += [f"| {row['model']} | {row['gpus']} | {row['sequence']} | {precision} | {row['states']} | {1e3 * row['step_s']:.1f} ms | "
                  f"{row['tokens_per_s']:.0f} | {of_others(row)} | {mfu} | "
                  f"{percent(row['predicted_error'])} | {row['peak_bytes'] / 2**30:.1f} GiB, "
                  f"{'as planned' if row['peak_is_planned'] else 'NOT as planned'} | "
                  f"{(row.get('attention') or {}).get('kernel') or '-'} |"]
        if "problem" in row:
            lines += ["", f"{row['model']}: {row['problem']}"]
    return lines


def of_measure(told):
    return [f"* {row['model']} in {row.get('precision', 'bf16')} on {row['gpus']}: predicted after measure {percent(row.get('error'))} "
            f"{row.get('problem', '')}".rstrip() for row in told.get("runs", [])]


def of_benchmarks(told):
    if not told.get("rows"):
        return []
    lines = ["| benchmark | time | rate | of the copy |", "|---|---|---|---|"]
    for row in told["rows"]:
        rate = (f"{row['TFLOP/s']:.0f} TFLOP/s" if row.get("TFLOP/s") else
                f"{row['bytes_per_second'] * 1e-9:.0f} GB/s" if row.get("bytes_per_second") else "-")
        share = f"{100 * row['of_copy']:.0f} %" if row.get("of_copy") else "-"
        lines += [f"| {row['name']} | {row['real_time']:.3g} {row['time_unit']} | {rate} | {share} |"]
    if told.get("below_target"):
        lines += ["", f"Below {100 * OF_COPY:.0f} % of the copy: {', '.join(told['below_target'])}."]
    return lines


def of_pytorch(told):
    lines = []
    for row in told.get("runs", []):
        head = f"* {row['model']} on {row['gpus']}: "
        if "step_s" not in row:
            lines += [head + f"PyTorch {' '.join(row['arguments'])} failed: {first_line(row.get('problem', ''))}"]
        else:
            lines += [head + f"our PyTorch step, {row['torch']} {row['how']}: {1e3 * row['step_s']:.1f} ms, "
                      f"{row['tokens_per_s']:.0f} tokens/s; Shardwright is {row['times_as_fast']:.2f} times as fast"]
    return lines


def of_sanitizer(told):
    return [f"* {row['tool']}: {row['verdict']}" for row in told.get("tools", [])]


SECTIONS = {"tests": of_tests, "ranks": of_runs, "nccl": of_runs, "layouts": of_runs, "restart": of_restart, "models": of_models,
            "measure": of_measure, "benchmarks": of_benchmarks, "pytorch": of_pytorch, "sanitizer": of_sanitizer, "nodes": of_runs}
