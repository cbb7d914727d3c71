# SPDX-License-Identifier: Apache-2.0
"""How notebooks show results: the pages that `report` and `size --out` write, framed; as text where there is no page."""
from __future__ import annotations

import html
import json
from typing import Optional

from ._help import flags, keyword_of
from ._library import run
from ._results import Result, Sizing, Tuning
from ._words import Words


def _shown(result: Result, page: Optional[str]) -> str:
    if page is None:
        return f"<pre>{html.escape(repr(result))}</pre>"
    # A page has its own style; in a frame it and the notebook leave each other alone.
    return (f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" '
            'style="width:100%;height:720px;border:0" title="shardwright"></iframe>')


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


def prediction_html(prediction: Result) -> str:
    """Of one plan or of several side by side."""
    words = prediction._words
    return _shown(prediction, _report(_plan_words(words.list), words) if words is not None else None)


def tuning_html(tuning: Tuning) -> str:
    words, page = tuning._words, None
    if words is not None and tuning.plan_file is not None:
        plan = words.written("shown-plan.json", tuning.plan_file)
        page = _report(["--plan", plan, "--tuning", words.written("shown-tuning.json", json.dumps(tuning.to_dict()))], words)
    return _shown(tuning, page)


def sizing_html(sizing: Sizing) -> str:
    return _shown(sizing, sizing.page)
