# SPDX-License-Identifier: Apache-2.0
"""The verbs as functions. Keywords are the flags with underscores; which there are, the program's own --help says."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import _help
from ._errors import error_of, notes_of
from ._library import run
from ._results import Result, Sizing, Text, Tuning, result_of
from ._words import Words

if TYPE_CHECKING:
    import inspect as _inspect


class Verb:
    """A verb of the program as a function; see its help()."""

    def __init__(self, name: str) -> None:
        self._verb = name
        self.__name__ = self.__qualname__ = name.replace("-", "_")
        self.__module__ = "shardwright"

    def __call__(self, *words: object, **flags: object) -> Any:
        line = Words(self._verb, words, flags)
        extra = {"tune": ("plan_file", "plan.json"), "size": ("page", "size.html")}.get(self._verb)
        out = None
        if extra and flags.get("out") is None:
            out = line.path("best-" + extra[1])
            asked = [*line.list, "--out", out]
        else:
            asked = line.list
        if "json" in _help.flags(self._verb) and not flags.get("json"):
            asked = [*asked, "--json"]
        answer = run(asked)
        result = self._result(answer, line)
        if isinstance(result, (Tuning, Sizing)) and extra:
            path = out if out is not None else str(flags["out"])
            if os.path.exists(path) and (out is not None or answer.code == 0):
                with open(path, encoding="utf-8") as file:
                    setattr(result, extra[0], file.read())
        if answer.code != 0:
            raise error_of(answer, result)
        return result

    @staticmethod
    def _result(answer: Any, line: Words) -> Any:
        if answer.results[:1] in ("{", "["):
            import json
            data = json.loads(answer.results)
            if isinstance(data, dict):
                return result_of(data, answer, line, notes_of(answer))
            return data
        if answer.code != 0 and not answer.results:
            return None
        text = Text(answer.results)
        text.notes = answer.messages.splitlines()
        return text

    @property
    def __signature__(self) -> _inspect.Signature:
        import inspect as _inspect
        kind = _inspect.Parameter.KEYWORD_ONLY
        keywords = [_inspect.Parameter(flag.keyword, kind, default=None) for flag in _help.flags(self._verb).values()
                    if flag.keyword.isidentifier() and flag.name != "json"]
        return _inspect.Signature([_inspect.Parameter("words", _inspect.Parameter.VAR_POSITIONAL), *keywords])

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        import textwrap
        lines = [_help.verbs().get(self._verb, "").capitalize() + ".", ""]
        for flag in _help.flags(self._verb).values():
            if flag.name == "json":
                continue
            head = f"{flag.keyword}{f' ({flag.takes})' if flag.takes else ''}: {flag.text}"
            lines += textwrap.wrap(head, 100, subsequent_indent="    ")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<shardwright.{self.__name__}>"


def verb(name: str) -> Verb:
    """The function for a verb that the program has; AttributeError for others."""
    spelled = name.replace("_", "-")
    if spelled not in _help.verbs():
        raise AttributeError(f"shardwright has no {name!r}; its verbs are {', '.join(_help.verbs())}")
    return Verb(spelled)


predict = Verb("predict")
tune = Verb("tune")
size = Verb("size")
validate = Verb("validate")
inspect = Verb("inspect")
export = Verb("export")
report = Verb("report")
