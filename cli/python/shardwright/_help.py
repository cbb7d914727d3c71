# SPDX-License-Identifier: Apache-2.0
"""The program's own --help as data, so that keywords and stubs are never typed twice."""
from __future__ import annotations

import functools
import keyword
from typing import TYPE_CHECKING, NamedTuple, Optional

from ._library import run

if TYPE_CHECKING:
    import re

_ENTRY = r"^ {2}(-\S(?:.*?\S)?)(?: {2,}(\S.*))?$"
_CHOICES = r"^ {6}(\S.*?)(?: {2,}(\S.*))?$"
_MORE = r"^ {20,}(\S.*)$"
_VERB = r"^ {2}([a-z][a-z-]*) {2,}(\S.*)$"


def _match(pattern: str, line: str) -> "Optional[re.Match[str]]":
    import re  # not before it is needed
    return re.match(pattern, line)


def keyword_of(flag: str) -> str:
    """`--seq-len` is `seq_len`, and `--for`, a word of Python, is `for_`."""
    name = flag.lstrip("-").replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


class Flag(NamedTuple):
    """A flag of a verb: its name without dashes, what it takes ("" for a switch), what it means."""

    name: str
    takes: str
    text: str

    @property
    def keyword(self) -> str:
        return keyword_of(self.name)


def flags_in(text: str) -> list[Flag]:
    """The flags in what `shardwright VERB --help` printed."""
    heads: list[list[str]] = []
    for line in text.split("\n"):
        if line.startswith(("Results go to", "Exit codes")):
            break
        entry, choices, more = _match(_ENTRY, line), _match(_CHOICES, line), _match(_MORE, line)
        if entry:
            heads.append([entry[1], entry[2] or ""])
        elif choices and heads:
            heads[-1][0] += choices[1]
            heads[-1][1] = f"{heads[-1][1]} {choices[2] or ''}".strip()
        elif more and heads:
            heads[-1][1] = f"{heads[-1][1]} {more[1]}".strip()
    flags = []
    for head, said in heads:
        words = [word for word in head.split(" ") if not word.startswith("-") or word.startswith("--")]
        takes = " ".join(word for word in words[1:] if word not in ("REQUIRED", "..."))
        flags.append(Flag(words[0].lstrip("-").rstrip(","), takes, said))
    return [flag for flag in flags if flag.name != "help"]


def verbs_in(text: str) -> dict[str, str]:
    """Verbs and their summaries in what `shardwright --help` printed."""
    verbs: dict[str, str] = {}
    inside = False
    last = ""
    for line in text.split("\n"):
        if line and not line.startswith(" "):
            inside = line.strip().lower() == "verbs:"
        entry, more = _match(_VERB, line), _match(_MORE, line)
        if inside and entry:
            last = entry[1]
            verbs[last] = entry[2]
        elif inside and more and last:
            verbs[last] += f" {more[1]}"
    return verbs


@functools.lru_cache(maxsize=None)
def verbs() -> dict[str, str]:
    return verbs_in(run(["--help"]).results)


@functools.lru_cache(maxsize=None)
def flags(verb: str) -> dict[str, Flag]:
    """The flags of `verb`, by keyword."""
    return {flag.keyword: flag for flag in flags_in(run([verb, "--help"]).results)}
