#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says whether a job runs as predicted, from its log.

  watch.py LOG [--expected FILE] [--follow] [--json]

LOG is what the job printed (torchtitan, Megatron, the Trainer of Hugging Face) or its metrics.jsonl;
- is standard input. FILE (expected.json beside this script) is what shardwright predicted. --follow
goes on reading until it can tell, or until the log has been still for ten minutes.

A step time is off when the 99 % confidence interval of the median of the steps so far (order
statistics, no assumption about their distribution) lies outside the predicted interval; so eight
steps after the warm-up can be enough. Memory is off when the peak lies outside its interval.

A loss or a gradient norm that is no number is off at once.

Ends with 0 as predicted, 6 off, 3 when the log holds no step, 2 for wrong usage.
"""
import argparse
import json
import math
import os
import re
import sys
import time

ANSI = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?)"
TITAN = re.compile(r"step:\s*(\d+)\s+loss:.*?memory:\s*" + NUMBER + r"GiB.*?tps:\s*" + NUMBER)
MEGATRON = re.compile(r"iteration\s+(\d+)/\s*\d+.*?elapsed time per iteration \(ms\):\s*" + NUMBER)
MEGATRON_MEMORY = re.compile(r"memory \(MB\).*?max reserved:\s*" + NUMBER)
TRAINER_BAR = re.compile(r"(\d+)/\d+ \[[^\]]*?,\s*" + NUMBER + r"(s/it|it/s)")
LONGEST_LINE = 2048  # of a step; patterns take time that grows faster than the line
# A loss or a gradient norm that is no number, as the same trainers print it.
DIVERGED = re.compile(r"(?:\b(?:lm )?loss|grad[_ ]norm)\W{1,12}[-+]?(?:nan|inf)\b|number of nan iterations:\s*[1-9]", re.IGNORECASE)
STEP = re.compile(r"(?:step:\s*|iteration\s+)(\d+)")
OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|HIP out of memory")


def number(text):
    return float(text.replace(",", ""))


class Log:
    """Steps (number, seconds) and the peak of reserved memory of a log that is read line by line."""

    def __init__(self, expected):
        self.expected = expected
        self.format = None
        self.steps = []
        self.reserved_gib = None
        self.out_of_memory = False
        self.diverged = None  # the first step (0: unknown) whose loss or gradients are no numbers

    def add(self, step, seconds, name):
        self.format = self.format or name
        if name == self.format and 0 < seconds < 1e9 and (not self.steps or step > self.steps[-1][0]):
            self.steps.append((step, seconds))

    def reserve(self, gib):
        if gib < 1e9:
            self.reserved_gib = max(gib, self.reserved_gib or 0)

    def take(self, line):
        line = ANSI.sub("", line[:LONGEST_LINE])
        self.out_of_memory = self.out_of_memory or OUT_OF_MEMORY.search(line) is not None
        if self.diverged is None and DIVERGED.search(line):
            numbered = STEP.search(line)
            self.diverged = int(numbered[1]) if numbered else (self.steps[-1][0] if self.steps else 0)
        if line.lstrip().startswith("{"):
            return self.take_json(line)
        found = TITAN.search(line)
        if found:
            self.reserve(number(found[2]))
            rate = number(found[3]) * self.expected["gpus"]
            if rate > 0:
                self.add(int(found[1]), self.expected["tokens_per_step"] / rate, "torchtitan")
            return None
        found = MEGATRON.search(line)
        if found:
            return self.add(int(found[1]), number(found[2]) / 1e3, "Megatron")
        found = MEGATRON_MEMORY.search(line)
        if found:
            return self.reserve(number(found[1]) / 1024)
        for found in TRAINER_BAR.finditer(line):
            rate = number(found[2])
            if rate > 0:
                self.add(int(found[1]), rate if found[3] == "s/it" else 1 / rate, "Hugging Face Trainer")
        return None

    def take_json(self, line):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(entry, dict) and isinstance(entry.get("step"), int) and \
                isinstance(entry.get("step_time_s"), (int, float)):
            self.add(entry["step"], entry["step_time_s"], "metrics.jsonl")


def median_interval(values, level=0.99):
    """(low, median, high); low and high are None where the values are too few for the level."""
    ordered = sorted(values)
    n = len(ordered)
    middle = ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2
    below, rank = 0.0, -1  # the chance that at most `rank` values lie below the median
    while rank + 1 < n // 2 and 2 * (below + math.comb(n, rank + 1) / 2 ** n) <= 1 - level:
        rank += 1
        below += math.comb(n, rank) / 2 ** n
    if rank < 0:
        return None, middle, None
    return ordered[rank], middle, ordered[n - 1 - rank]


def judge_time(steps, expected):
    low, high = expected["step_time_interval_s"]
    counted = steps[expected["warmup_steps"]:]
    for count in range(1, len(counted) + 1):
        # Only the newest: a job that recovers is no longer off.
        sample = [seconds for _, seconds in counted[max(0, count - 200):count]]
        least, middle, most = median_interval(sample)
        if least is None:
            continue
        if least > high or most < low:
            rest = [seconds for _, seconds in counted]
            middle = median_interval(rest[-200:])[1]
            if not low <= middle <= high:
                return {"verdict": "off", "since_step": counted[count - 1][0], "steps": count, "step_time_s": middle}
    if not counted:
        return {"verdict": "unknown", "step_time_s": None}
    middle = median_interval([seconds for _, seconds in counted][-200:])
    return {"verdict": "as predicted" if middle[0] is not None else "unknown", "step_time_s": middle[1]}


def judge_memory(log, expected):
    if log.out_of_memory:
        return {"verdict": "out of memory", "reserved_gib": log.reserved_gib}
    if log.reserved_gib is None or "reserved_gib" not in expected:
        return {"verdict": "unknown", "reserved_gib": log.reserved_gib}
    low, high = expected["reserved_interval_gib"]
    inside = low <= log.reserved_gib <= high
    return {"verdict": "as predicted" if inside else "off", "reserved_gib": log.reserved_gib,
            "off_by": log.reserved_gib / expected["reserved_gib"] - 1 if expected["reserved_gib"] > 0 else None}


def judged(log):
    loss = {"verdict": "not a number" if log.diverged is not None else "a number" if log.steps else "unknown",
            "since_step": log.diverged}
    return {"format": log.format, "steps": len(log.steps), "loss": loss,
            "time": judge_time(log.steps, log.expected), "memory": judge_memory(log, log.expected)}


def say(answer, expected):
    skipped = min(answer["steps"], expected["warmup_steps"])
    if answer["steps"]:
        print(f"{answer['steps']} steps read ({answer['format']}), the first {skipped} not counted.")
    else:
        print("No step was finished.")
    if answer["loss"]["verdict"] == "not a number":
        since = f" since step {answer['loss']['since_step']}" if answer["loss"]["since_step"] else ""
        print(f"loss or gradients are no numbers{since}: the training has diverged, stop it and go back to a checkpoint")
    took, low_high = answer["time"], expected["step_time_interval_s"]
    if took["step_time_s"] is not None:
        off = took["step_time_s"] / expected["step_time_s"] - 1
        line = (f"step time {took['step_time_s']:.4g} s, predicted {expected['step_time_s']:.4g} s "
                f"({low_high[0]:.4g} to {low_high[1]:.4g}): ")
        if took["verdict"] == "off":
            line += (f"{abs(off) * 100:.0f} % {'slower' if off > 0 else 'faster'}, certain since step "
                     f"{took['since_step']}, after {took['steps']} steps")
        else:
            line += "as predicted" if took["verdict"] == "as predicted" else "too few steps to tell"
        print(line)
        if took["verdict"] == "off" and off > 0:
            print("To find out where: record a trace of two steps with torch.profiler and give it to "
                  "shardwright calibrate.")
    used = answer["memory"]
    if used["verdict"] == "out of memory":
        print("memory: the job ran out of it")
    elif used["reserved_gib"] is not None:
        low_high = expected["reserved_interval_gib"]
        print(f"memory reserved {used['reserved_gib']:.2f} GiB, predicted {expected['reserved_gib']:.2f} GiB "
              f"({low_high[0]:.2f} to {low_high[1]:.2f}): {memory_words(used)}")


def memory_words(used):
    if used["verdict"] != "off" or used.get("off_by") is None:
        return used["verdict"]
    if used["off_by"] > 0:
        return f"{used['off_by'] * 100:.0f} % more; checkpoint more layers before it grows out of the GPU"
    return f"{-used['off_by'] * 100:.0f} % less; fewer checkpointed layers or a larger micro-batch would fit"


def lines_of(file, follow):
    """Pieces that end in a newline or a carriage return, as progress bars have them."""
    still_since = time.monotonic()
    rest = ""
    while True:
        text = file.read(1 << 16)
        if text:
            still_since = time.monotonic()
            *whole, rest = re.split(r"[\r\n]", rest + text)
            rest = rest[:LONGEST_LINE]
            yield from whole
        elif follow and time.monotonic() - still_since < 600:
            time.sleep(1)
            yield None
        else:
            break
    if rest:
        yield rest


def read_expected(path):
    """What shardwright kit wrote; ValueError says what is wrong."""
    with open(path, encoding="utf-8") as file:
        expected = json.load(file)
    if not isinstance(expected, dict) or not str(expected.get("schema", "")).startswith("shardwright.expected/1."):
        raise ValueError("is no shardwright.expected/1 document")
    for key, size in (("gpus", 0), ("tokens_per_step", 0), ("warmup_steps", 0), ("step_time_s", 0), ("reserved_gib", 0),
                      ("step_time_interval_s", 2), ("reserved_interval_gib", 2)):
        value = expected.get(key)
        values = value if size and isinstance(value, list) else [value]
        if len(values) != max(1, size) or not all(type(of) in (int, float) and -1e15 < of < 1e15 for of in values):
            raise ValueError(f"{key} is missing or wrong, expected {'two numbers' if size else 'a number'}")
    if expected["step_time_s"] <= 0 or not isinstance(expected["warmup_steps"], int):
        raise ValueError("step_time_s must be above 0 and warmup_steps a whole number")
    return expected


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("log")
    parser.add_argument("--expected", default=os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                            "expected.json"))
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        expected = read_expected(options.expected)
    except (OSError, ValueError, RecursionError) as problem:
        print(f"error: {options.expected}: {problem}", file=sys.stderr)
        return 3
    try:
        file = sys.stdin if options.log == "-" else open(options.log, encoding="utf-8", errors="replace", newline="")
    except OSError as problem:
        print(f"error: {options.log}: {problem.strerror}", file=sys.stderr)
        return 3
    log = Log(expected)
    for line in lines_of(file, options.follow):
        if line is not None:
            log.take(line)
        elif log.diverged is not None or (log.steps and judged(log)["time"]["verdict"] != "unknown"):
            break
    answer = judged(log)
    if options.json:
        print(json.dumps({"schema": "shardwright.watch/1.0", **answer}, indent=2))
    elif log.steps or log.out_of_memory or log.diverged is not None:
        say(answer, expected)
    if not log.steps and not log.out_of_memory and log.diverged is None:
        print(f"error: {options.log}: holds no step of torchtitan, Megatron, the Hugging Face Trainer or "
              "metrics.jsonl", file=sys.stderr)
        return 3
    off = (answer["time"]["verdict"] == "off" or answer["memory"]["verdict"] in ("off", "out of memory") or
           answer["loss"]["verdict"] == "not a number")
    return 6 if off else 0


if __name__ == "__main__":
    sys.exit(main())
