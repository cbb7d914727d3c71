# SPDX-License-Identifier: Apache-2.0
"""Lists every constant that the steps of one source alone determine, and the score without it.

  python3 -m profiles.research.single_source

Three kinds: constants that steps.py fitted to runs of one source (without: the prior), constants chosen in sight of one
source's runs (published/README.md; without: what stands for others, named below), and presets of releases that one source ran
(without: what the preset builds on). Predicts the runs that see the constant as they are and without it, and prints both mean
errors. Rates of kernels that somebody timed apart are no part of it: no step decided them.
"""
from __future__ import annotations

import json
import math

from profiles.research import product
from profiles.research.software_age import month_in

DATA = product.DATA
TABLES = {name: product.read_table(name) for name in ("ledger", "parallel")}
SIMILAR = json.loads((DATA / "similar_stacks.json").read_text())["similar"]
RESIDUAL = {"stack.residual.forward_bytes": 6, "stack.residual.backward_bytes": 6}  # two read, one written

#: What was chosen by hand: words, columns of the runs that see it, values without it.
CHOSEN = (
    ("bytes between products, aleph-alpha", {"stack": "aleph-alpha"}, RESIDUAL),
    ("time of a step, aleph-alpha", {"stack": "aleph-alpha"}, {"stack.host.step_s": 0.02}),
    ("bytes between products, megatron-deepspeed of 2022", {"stack": "megatron-deepspeed"}, RESIDUAL),
    ("clocks under load, gb200", {"gpu": "gb200"}, {"cost.gemm.sustained_factor": 0.9}),
    ("clocks under load, gb300", {"gpu": "gb300"}, {"cost.gemm.sustained_factor": 0.693}),
    ("products under load, b200", {"gpu": "b200"}, {"gpu.training_load.gemm_share": 1}),
    ("products in nvfp4, gb200", {"gpu": "gb200", "precision": "nvfp4"}, {"cost.low_precision.nvfp4_share": 0.75}),
    ("products in MXFP8", {"fp8_recipe": "mxfp8"}, {"gpu.mxfp8_gemm_share": 1}),
    ("launches of experts, megatron-core", {"stack": "megatron-core", "ep": None}, {"stack.parallel.expert_launch_s": 0}),
    ("attention with sinks, NeMo 26.06.01", {"version": "NeMo 26.06.01", "arch": "gpt_oss"}, {"stack.parallel.sinks.attention_share": 1}),
    ("casts, torch-eager", {"stack": "torch-eager", "precision": "fp8"}, {"stack.parallel.cast_efficiency": 0.75}),
)


def errors(rows, settings=None):
    """|predicted / measured - 1| of times and of peaks, by row."""
    settings = {key: float(f"{value:.9g}") for key, value in (settings or {}).items()}
    answer = product.validate(rows, settings)
    return [{run: abs(math.expm1(error)) for run, error in product.log_errors(answer, which).items()}
            for which in ("time_error", "memory_error")]


def sees(row, columns):
    for column, value in columns.items():
        own = SIMILAR.get(row.get(column), row.get(column)) if column == "stack" else row.get(column)
        if value is None and own in (None, "", "0", "1"):
            return False
        if value is not None and own not in (value if isinstance(value, list) else [value]):
            return False
    return row["iter_time_s"] != ""


def fitted():
    """Constants of step_parameters.json that one source's runs determine, as validate lists them."""
    parameters = {p["name"]: p for p in product.read_fitted("step_parameters")["parameters"]}
    answer = product.ask(["validate"])
    for constant in answer["summary"]["constants_of_one_source"]:
        parameter = parameters[constant["name"]]
        columns = {"source": parameter.get("sources", [constant["source"]])}
        columns |= {column: own for column, own in parameter["applies_to"].items() if column in ("gpu", "stack")}
        yield constant["name"], columns, {key: factor * constant["prior"] for key, factor in parameter["targets"].items()}


def presets():
    """(name, what it builds on, words of its releases) of every preset."""
    for folder in ("stacks", "published/presets"):
        for file in sorted((DATA / folder).glob("*.json")):
            document = json.loads(file.read_text())
            if document.get("software"):
                yield document["id"], document["base"], document["software"].split("|")


def root_of(stack):
    while True:
        file = next(path for path in (DATA / "stacks" / f"{stack}.json", DATA / "published/presets" / f"{stack}.json") if path.exists())
        document = json.loads(file.read_text())
        if not document.get("software"):
            return stack
        stack = document["base"]


def longest_word(row, words):
    said = row.get("version") or row.get("software") or ""
    month = month_in(said)

    def told(word):
        begin, late, least = word.partition("from ")
        begin = begin.rstrip() if late else begin
        return len(begin) + len(least) if said.startswith(begin) and (not late or month >= least) else 0

    return max(map(told, words), default=0)


def runs_of_preset(name, every):
    """Rows that are predicted with the preset: of all presets of their stack its word is the longest."""
    words = {one: of for one, _, of in every if root_of(one) == root_of(name)}
    for table, rows in TABLES.items():
        own = []
        for row in rows:
            if SIMILAR.get(row["stack"], row["stack"]) != root_of(name):
                continue
            lengths = {one: longest_word(row, of) for one, of in words.items()}
            if lengths[name] and lengths[name] == max(lengths.values()):
                own.append(row)
        if own:
            yield table, own


def line(words, rows, with_it, without):
    of_rows = {row["id"]: row["source"] for row in rows}
    said = []
    for what, named, plain in zip(("runs", "peaks"), with_it, without, strict=True):
        shared = sorted(named.keys() & plain.keys())
        mean = lambda by_run: sum(by_run[run] for run in shared) / len(shared)
        if shared and (what == "runs" or mean(named) != mean(plain)):
            said.append(f"{len(shared)} {what}, {mean(named):.1%} with, {mean(plain):.1%} without")
    sources = sorted({of_rows[run] for by_run in with_it for run in by_run})
    if said:
        print(f"{words} ({sources[0] if len(sources) == 1 else f'{len(sources)} sources'}): {'; '.join(said)}")


def as_base(row, base):
    """The row as software of `base`: a stack, or a preset by a word of its releases."""
    column = "version" if "version" in row else "software"
    file = DATA / "published/presets" / f"{base}.json"
    word = json.loads(file.read_text())["software"].split("|")[0] if file.exists() else ""
    return dict(row, stack=root_of(base) if word else base, **{column: word})


def main():
    print("Fitted, against the prior")
    for words, columns, without in fitted():
        rows = [row for row in TABLES["ledger"] if sees(row, columns)]
        line(words, rows, errors(rows), errors(rows, without))
    print("Chosen in sight of runs, against what others have")
    for words, columns, without in CHOSEN:
        rows = [row for row in TABLES["parallel"] if sees(row, columns)]
        line(words, rows, errors(rows), errors(rows, without))
    rows = [row for row in TABLES["parallel"] if row["source"] == "SimuMax B200 real runs"]
    nameless = [dict(row, source="nobody") for row in rows]
    line("products of one node, SimuMax", rows, errors(rows), errors(nameless))
    print("Presets of releases, against what they build on")
    every = list(presets())
    for name, base, _ in every:
        for table, rows in runs_of_preset(name, every):
            if len({row["source"] for row in rows}) > 1:
                continue
            plain = [as_base(row, base) for row in rows]
            line(name, rows, errors(rows), errors(plain))


if __name__ == "__main__":
    main()
