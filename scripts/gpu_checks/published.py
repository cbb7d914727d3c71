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


def published(data, cluster, model, gpus, sequence, source="llmq"):
    """The row's id, tokens a second of one GPU and where that stands; None where nobody published such a run."""
    gpu = gpu_of(data, cluster)
    try:
        with open(data / "published" / "ledger.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["source"] == source and row["gpu"] == gpu
                    and row["model"].lower() == model and int(row["gpus"]) == gpus and int(row["seq_len"]) == sequence]
    except (OSError, KeyError, ValueError):
        return None
    if not rows or not rows[0]["tokens_per_gpu_s"]:
        return None
    row = rows[0]
    return {"by": source, "id": row["id"], "tokens_per_gpu_s": float(row["tokens_per_gpu_s"]), "locator": row["locator"]}
