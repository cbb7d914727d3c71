# SPDX-License-Identifier: Apache-2.0
"""Judges published laws of the critical batch by the batches of published trainings (fitted/critical_batch.json).

Of each law: how many batches of trainings that went well it calls larger than critical, how large a share of it they are, how
much that scatters. The one with the fewest ships, of equal ones that with the least scatter.
"""
from __future__ import annotations

import math

import numpy as np

from profiles.research import product


def judged(shares):
    """What the trainings' shares of a law's critical batch say of it."""
    logs = np.log(shares)
    return {"n": len(shares), "beyond": sum(share > 1 for share in shares), "median_share": round(float(np.median(shares)), 4),
            # Up, so that the training whose share it is lies within.
            "greatest_share": math.ceil(max(shares) * 1e4) / 1e4, "spread": round(float(np.std(logs)), 4)}


def fit(date, to):
    of_trainings = [run["share_of_critical_batch"] for run in product.trainings() if run["share_of_critical_batch"]]
    if not of_trainings:
        raise product.Refused("no published training has a batch and an architecture, expected at least one")
    laws = []
    for row in product.read_table("batch_laws"):
        by_loss = row["form"] == "loss"
        values = {} if by_loss else {name: float(row[name]) for name in ("coefficient", "tokens_exponent")}
        laws.append({"id": row["id"], "words": row["words"], "by_loss": by_loss} | values
                    | judged([shares[row["id"]] for shares in of_trainings]))
        law = laws[-1]
        print(f"{law['id']:<14} {law['beyond']} of {law['n']} published batches beyond critical; share {law['median_share']:.2f} "
              f"in the middle, {law['greatest_share']:.2f} at most; scatter x/: {math.exp(law['spread']):.2f}")
    ships = min(laws, key=lambda law: (law["beyond"], law["spread"]))["id"]
    print(f"ships: {ships}")
    product.write_fitted(to, "critical_batch", {
        "schema": "shardwright.critical_batch/1.0",
        "source": "published/batch_laws.csv, judged by the batches of published/whole_runs.csv",
        "command": f"{product.COMMAND} critical-batch", "date": date, "law": ships, "laws": laws})
