# SPDX-License-Identifier: Apache-2.0
"""What products in few bits of a young GPU gained with the months (fitted/software_age.json).

Steps of data centers' Blackwell in fp8 and nvfp4 whose release names a month (published/parallel.csv): the share of products
in few bits loses so much for each month before the newest such release of a dense model, back to "oldest", since when more
than one run is published. Fitted are the loss, and the level of today's share over what gpu_cost.json has (1 once that is
entered there): the least sum of absolute logarithms of predicted over measured, a source of n runs weighing the root of n.
Prints what every source is off without ages, with them, and with ages fitted to the other sources.
"""
from __future__ import annotations

import collections
import math
import re

from profiles.research import product

LOSSES = [step / 500 for step in range(8)]
LEVELS = [0.94 + step / 50 for step in range(11)]
NARROW = ("fp8", "nvfp4")


def month_in(text):
    """Of "NeMo 26.04.01" that is "2026-04"; empty where the text names none."""
    found = re.search(r"\b(?:20)?(2\d)[-.](\d\d)", text)
    return f"20{found[1]}-{found[2]}" if found else ""


def release_month(row, releases):
    """Of the row's version, or what `releases` (fitted/software_age.json) says of versions that begin so."""
    version = row.get("version", "")
    known = releases.get(row["stack"], {})
    return month_in(version) or next((month for begin, month in known.items() if version.startswith(begin)), "")


def month_number(text):
    year, month = text.split("-")
    return 12 * int(year) + int(month)


def read_rows(age):
    rows = []
    for row in product.read_table("parallel"):
        month = release_month(row, age["releases"])
        if row["gpu"] in age["gpus"] and row["precision"] in NARROW and row["iter_time_s"] and month:
            rows.append((row, month_number(month)))
    return rows


class Errors:
    """|log(predicted / measured)| of every row by the share of products in few bits."""

    def __init__(self, rows):
        self.rows = [row for row, _ in rows]
        self.costs = product.read_fitted("gpu_cost")["gpus"]
        self.kept = {}

    def of(self, factors):
        """By source (mean, runs); `factors` by row: of the share that gpu_cost.json has, rounded so that few are
        simulated."""
        factors = [round(factor, 2) for factor in factors]
        groups = collections.defaultdict(list)
        for row, factor in zip(self.rows, factors):
            if (row["id"], factor) not in self.kept:
                groups[row["gpu"], row["precision"], factor].append(row)
        for (gpu, precision, factor), rows in groups.items():
            share = self.costs[gpu]["low_precision"]["values"][f"{precision}_share"] * factor
            found = product.log_errors(product.validate(rows, {f"cost.low_precision.{precision}_share": share}))
            self.kept |= {(row["id"], factor): found.get(row["id"]) for row in rows}
        sources = collections.defaultdict(list)
        for row, factor in zip(self.rows, factors):
            error = self.kept[row["id"], factor]
            if error is not None:
                sources[row["source"]].append(abs(error))
        return {source: (sum(own) / len(own), len(own)) for source, own in sources.items()}


def fit(date, to):
    age = product.read_fitted("software_age")
    rows = read_rows(age)
    oldest = month_number(age["oldest"])
    newest = max(month for row, month in rows if row["experts"] in ("", "0"))
    errors = Errors(rows)
    table = {(loss, level): errors.of([level * (1 - loss * max(0, newest - max(month, oldest))) for _, month in rows])
             for loss in LOSSES for level in LEVELS}

    def best(without=None):
        cost = lambda choice: sum(mean * math.sqrt(n) for source, (mean, n) in table[choice].items() if source != without)
        return min(table, key=cost)

    loss, level = best()
    old = table[0.0, min(LEVELS, key=lambda one: abs(one - 1))]
    for source, (mean, n) in table[loss, level].items():
        others = best(source)
        print(f"{source}: {n} runs, {old[source][0]:.1%} without, {mean:.1%} with, "
              f"{table[others][source][0]:.1%} fitted to the others {others}")
    month = f"{(newest - 1) // 12}-{(newest - 1) % 12 + 1:02d}"
    print(f"loses {loss:.3f} a month before {month}, today's share {level:.2f} of gpu_cost.json's")
    age |= {"command": f"{product.COMMAND} software-age", "lost_a_month": loss, "newest": month, "date": date}
    product.write_fitted(to, "software_age", age)
