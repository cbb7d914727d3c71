# SPDX-License-Identifier: Apache-2.0
"""Finds what stands in profiles/data/fitted from the published rows beside it, and writes what moved.

  python3 -m profiles.research [NAME...] [--check] [--date YYYY-MM-DD]
  python3 -m profiles.research steps --ledger FILE

NAMEs, in this order where none are given: {names}.
--check writes nothing: it says what would move, and ends with 1 where something does. With --ledger the constants of steps
are fitted to somebody's own table, without each of its runs, and what is then predicted is recorded in FILE.left_out.json,
for `shardwright validate --ledger FILE --leave-one-out`; the data that ship stay as they are.
"""
from __future__ import annotations

import argparse
import datetime
import json
import math
import pathlib
import sys
import tempfile

from profiles.research import (anchored, critical_batch, kernels, model_parallel, novelty, product, scale_loss, software_age,
                               steps, whole_runs)

# Each of what those before it wrote.
FITS = {name: lambda date, to, name=name: kernels.fit(name, date, to) for name in kernels.FITS} | {
    "steps": steps.fit, "software-age": software_age.fit, "scale-loss": scale_loss.fit, "model-parallel": model_parallel.fit,
    "novelty": novelty.fit, "anchored": anchored.fit, "whole-runs": whole_runs.fit, "critical-batch": critical_batch.fit}


# By how a key begins: what a fit again may differ by, absolutely or of the number. Fits without a run end somewhere in a flat
# valley: a single error may come out elsewhere, the mean of all hardly.
ABSOLUTE = {"log_error": 0.03, "mape": 0.004, "median": 0.006, "p90": 0.02, "simulated": 0.01, "more": 2e-3, "less": 2e-3}
RELATIVE = {"interval": 0.5, "run_out": 0.3, "source_out": 0.5}


def moved(old, new, path=""):
    """Sentences on what differs by more than that; which runs lie inside intervals follows from their errors."""
    key = path.rsplit(".", 1)[-1]
    if key in ("date", "inside", "command"):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            yield from moved(old.get(name), new.get(name), f"{path}.{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for a, b in zip(old, new):
            yield from moved(a, b, path)
    elif isinstance(old, float) and isinstance(new, float):
        within = lambda table, usual: next((near for begin, near in table.items() if key.startswith(begin)), usual)
        if not math.isclose(old, new, rel_tol=within(RELATIVE, 2e-3), abs_tol=within(ABSOLUTE, 0.0)):
            yield f"{path[1:]} was {old:g} and is {new:g}"
    elif old != new:
        yield f"{path[1:]} was {old} and is {new}"


def check(name, date):
    """Says what the fit would move."""
    with tempfile.TemporaryDirectory(prefix="research-") as folder:
        to = pathlib.Path(folder)
        FITS[name](date, to)
        read = lambda path: json.loads(path.read_text(encoding="utf-8"))
        news = {path.relative_to(to): list(moved(read(product.DATA / path.relative_to(to)), read(path)))
                for path in sorted(to.rglob("*.json"))}
    for path, sentences in news.items():
        for sentence in sentences[:20]:
            print(f"{path}: {sentence}")
    return any(news.values())


def main():
    names = ", ".join(FITS)
    parser = argparse.ArgumentParser(prog="python3 -m profiles.research", description=__doc__.format(names=names),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where something would move")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="to record")
    parser.add_argument("--ledger", help="a table of one's own")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in FITS]
    if unknown:
        parser.error(f"'{unknown[0]}' is nothing that is fitted here, expected of {names}")
    if given.ledger and (given.names != ["steps"] or given.check):
        parser.error("--ledger is of steps alone, and writes, expected: steps --ledger FILE")
    try:
        if given.ledger:
            steps.fit(given.date, ledger=given.ledger)
            return 0
        wrong = False
        for name in given.names or FITS:
            if len(given.names) != 1:
                print(f"== {name}", flush=True)
            if given.check:
                wrong = check(name, given.date) or wrong
            else:
                FITS[name](given.date, product.DATA)
        return int(wrong)
    except product.Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 3


sys.exit(main())
