# SPDX-License-Identifier: Apache-2.0
"""Failures as exceptions: one class for each exit code of the program, with its one sentence."""
from __future__ import annotations

import re
from typing import Any, Optional

from ._help import keyword_of
from ._library import Answer


class ShardwrightError(Exception):
    """What the program said when it could not do what was asked: one sentence."""

    code: int = 1
    #: What it answered nevertheless, such as the nearest plan that fits; None where there is nothing.
    result: Optional[Any] = None


class UsageError(ShardwrightError, TypeError):
    """A keyword that the verb does not have, or one that is missing."""

    code = 2


class InputError(ShardwrightError, ValueError):
    """A file or value that cannot be used; the sentence names it and says what would be accepted."""

    code = 3


class Infeasible(ShardwrightError):
    """Nothing fits, or no plan meets the goal. `result` says what would."""

    code = 4


class Missing(ShardwrightError):
    """What was asked needs a device, a library, or a part that the planner does not have."""

    code = 5


class OutOfTolerance(ShardwrightError):
    """A comparison outside its tolerance."""

    code = 6


_CLASSES = {kind.code: kind for kind in (UsageError, InputError, Infeasible, Missing, OutOfTolerance)}


def _in_keywords(sentence: str) -> str:
    """Flags as the keywords that they are here: `--seq-len` is `seq_len`."""
    keywords = re.sub(r"--([a-z][a-z0-9-]*)", lambda flag: keyword_of(flag[1]), sentence)
    return re.sub(r"\bflag(s?) '", r"keyword\1 '", keywords)


def sentence_of(answer: Answer) -> str:
    """The error of an answer, without its mark and in the words of Python."""
    begin = answer.messages.find("error: ")
    said = answer.messages[begin + len("error: "):] if begin >= 0 else answer.messages
    return _in_keywords(said.strip()) or f"shardwright ended with code {answer.code}."


def notes_of(answer: Answer) -> list[str]:
    """What the program remarked beside its result."""
    return [line[len("note: "):] for line in answer.messages.splitlines() if line.startswith("note: ")]


def error_of(answer: Answer, result: Optional[Any] = None) -> ShardwrightError:
    """The exception for an answer whose code is not 0."""
    error = _CLASSES.get(answer.code, ShardwrightError)(sentence_of(answer))
    error.code = answer.code
    error.result = result
    return error
