# SPDX-License-Identifier: Apache-2.0
"""How notebooks show results: the pages that `report` and `size --out` write, framed; tables where there is no page."""
from __future__ import annotations

import html
import json
from typing import Iterable, Optional, Sequence

from ._help import flags, keyword_of
from ._library import run
from ._results import Prediction, Sizing, Tuning
from ._words import Words

_GIB = 2 ** 30


def _framed(page: str, height: int) -> str:
    # A page has its own style; in a frame it and the notebook leave each other alone.
    return (f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts allow-popups" '
            f'style="width:100%;height:{height}px;border:0" title="shardwright"></iframe>')


def _table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    def line(cells: Sequence[str], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in cells) + "</tr>"
    return "<table>" + (line(head, "th") if head else "") + "".join(line(row, "td") for row in rows) + "</table>"


def _report(words: list[str], folder: Words) -> Optional[str]:
    """The page that `report` writes with these words; None where it cannot."""
    path = folder.path("report.html")
    if run(["report", *words, "--out", path]).code != 0:
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


def _plan_words(words: list[str]) -> list[str]:
    """Of the words of `predict`, those that `report` takes, too: what the plan is."""
    known, mine = flags("report"), flags("predict")
    kept: list[str] = []
    keeps = False
    for word in words[1:]:
        if word.startswith("--"):
            keyword = keyword_of(word)
            keeps = keyword in known and keyword in mine and keyword not in ("trace", "out", "json")
        if keeps:
            kept.append(word)
    return kept


def _numbers(prediction: Prediction) -> list[tuple[str, str]]:
    low, high = prediction.iteration_time_interval_s
    memory = prediction.memory
    return [("a step", f"{prediction.iteration_time_s:.4g} s ({low:.4g} to {high:.4g} s)"),
            ("tokens a second", f"{prediction.tokens_per_s:,.0f}"), ("MFU", f"{prediction.mfu:.1%}"),
            ("memory of a GPU", f"{memory.total_bytes / _GIB:.4g} of {memory.usable_bytes / _GIB:.4g} GiB, "
                                f"{memory.get('verdict') or ('fits' if memory.fits else 'does not fit')}")]


def prediction_html(prediction: Prediction) -> str:
    words = prediction._words
    page = _report(_plan_words(words.list), words) if words is not None else None
    if page is not None:
        return _framed(page, 640)
    plan = prediction.inputs.plan
    return _table([("plan", f"{prediction.inputs.model} on {plan.gpus} GPUs of {prediction.inputs.cluster}, {plan.strategy}"),
                   *_numbers(prediction)])


def comparison_html(predictions: Sequence[Prediction]) -> str:
    columns = [dict(_numbers(one)) for one in predictions]
    return _table([(name, *(column[name] for column in columns)) for name in columns[0]],
                  ["", *(one.inputs.plan.strategy for one in predictions)])


def tuning_html(tuning: Tuning) -> str:
    words, page = tuning._words, None
    if words is not None and tuning.plan_file is not None:
        plan = words.written("shown-plan.json", tuning.plan_file)
        page = _report(["--plan", plan, "--tuning", words.written("shown-tuning.json", json.dumps(tuning.to_dict()))], words)
    if page is not None:
        return _framed(page, 720)
    sentences = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in tuning.why)
    best = _table(_numbers(tuning.best.prediction)) if tuning.best else ""
    return f"{best}<ul>{sentences}</ul>"


def sizing_html(sizing: Sizing) -> str:
    if sizing.page is not None:
        return _framed(sizing.page, 720)
    return "<ul>" + "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sizing.words) + "</ul>"
