# SPDX-License-Identifier: Apache-2.0
"""The tests that only a GPU can run. What they print is read line by line, so that a program that crashes or hangs
costs the test that it did so in and no other: the rest is run by a new process."""
import re

from gpu_checks.process import Failed, Slow

MOST_STARTS = 6  # of one program
MOST_ALONE = 20  # failed tests that are repeated alone
LINE = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([\w/.]+)")


def read(output):
    """What a program of GoogleTest says of each test: {name: "OK", "FAILED", "SKIPPED", or "RUN" when it never ended},
    and what it printed while those that failed ran."""
    states, words, current = {}, {}, None
    for line in output.splitlines():
        found = LINE.match(line)
        if found and "." in found[2] and (found[1] == "RUN" or found[2] in states):
            states[found[2]] = found[1]
            current = found[2] if found[1] == "RUN" else None
        elif current:
            words.setdefault(current, []).append(line)
    return states, {name: "\n".join(lines)[:500] for name, lines in words.items() if states[name] in ("FAILED", "RUN")}


def start(check, program, wanted):
    """(output, how it ended) of one process."""
    try:
        done = check.programs.run([program, f"--gtest_filter={wanted}"], check.left(240), check=False)
        return done.stdout, "" if done.returncode in (0, 1) else f"ended with {done.returncode}: {done.stderr.strip()[-300:]}"
    except Slow as slow:
        return slow.said, str(slow)


def run_program(check, program, report):
    entry = {"program": program.name, "tests": 0, "passed": 0, "skipped": 0, "failed": [], "why": {}}
    report["programs"].append(entry)
    states = {}
    for _ in range(MOST_STARTS):
        wanted = "*-" + ":".join(states) if states else "*"
        output, ended = start(check, program, wanted)
        found, words = read(output)
        states.update(found)
        entry["why"].update(words)
        stuck = [name for name, state in found.items() if state == "RUN"]
        for name in stuck:
            states[name] = "FAILED"
            entry["why"][name] = f"{ended} {entry['why'].get(name, '')}".strip()
        entry.update(tests=len(states), passed=sum(state == "OK" for state in states.values()),
                     skipped=sum(state == "SKIPPED" for state in states.values()),
                     failed=[name for name, state in states.items() if state == "FAILED"])
        check.save()
        if not stuck:
            break
    if ended and not stuck:
        entry["failed"].append("(the program itself)")
        entry["why"]["(the program itself)"] = ended
    repeat_alone(check, program, entry)


def repeat_alone(check, program, entry):
    """A GPU that met a wrong address fails every later test of its process; those pass alone."""
    entry["pass_alone"] = []
    if len(entry["failed"]) < 2:
        return
    for name in [name for name in entry["failed"] if "." in name][:MOST_ALONE]:
        states, _ = read(start(check, program, name)[0])
        if states.get(name) == "OK":
            entry["pass_alone"].append(name)
    check.save()


def check_tests(check, report):
    if not check.programs.tests:
        raise Failed("the package holds no GPU tests")
    report["programs"] = []
    for program in check.programs.tests:
        try:
            run_program(check, program, report)
        except (Failed, OSError) as error:
            report["programs"].append({"program": program.name, "failed": ["(the program itself)"],
                                       "why": {"(the program itself)": str(error)}})
    for key in ("passed", "skipped"):
        report[key] = sum(entry.get(key, 0) for entry in report["programs"])
    report["failed"] = sum(len(entry["failed"]) for entry in report["programs"])
    if report["failed"]:
        raise Failed(f"{report['failed']} tests failed")
    if not report["passed"]:
        raise Failed("every test skipped itself")
