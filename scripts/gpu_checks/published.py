# SPDX-License-Identifier: Apache-2.0
"""What others have published of the same model on the same GPU, from the ledger that the package carries."""
import csv
import json


def gpu_of(data, cluster):
    """The id of the GPU in a shipped cluster; empty where the cluster is a file of somebody's own."""
    try:
        return json.loads((data / "clusters" / f"{cluster}.json").read_text()).get("gpu", "")
    except (OSError, ValueError):
        return ""


# Who published runs that ours stand beside: how their sources begin, and on which similar GPU where not on this one.
AUTHORS = ("llmq", "torchtitan")
SIMILAR = {"torchtitan": {"h100-80g": "h100-96g-500w"}}


def rate_of(row):
    return float(row["tokens_per_gpu_s"] or 0)


# Where rows of a precision stand.
LEDGERS = {"bf16": "ledger.csv", "fp8": "parallel.csv"}


def published(data, cluster, model, gpus, sequence, precision="bf16"):
    """Of the fastest such run: whose it is, the row's id, tokens a second of one GPU, where that stands, and on which GPU
    where it is only similar; None where nobody published one."""
    gpu = gpu_of(data, cluster)
    try:
        with open(data / "published" / LEDGERS[precision], newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["model"].lower() == model and int(row["gpus"]) == gpus
                    and int(row["seq_len"]) == sequence and row.get("precision", "bf16") == precision]
    except (OSError, KeyError, ValueError):
        return None
    for by in AUTHORS:
        for name in (gpu, SIMILAR.get(by, {}).get(gpu)):
            row = max((row for row in rows if row["source"].startswith(by) and row["gpu"] == name), key=rate_of, default=None)
            if row and rate_of(row):
                return {"by": by, "id": row["id"], "tokens_per_gpu_s": rate_of(row), "locator": row["locator"],
                        **({"on": name} if name != gpu else {})}
    return None
