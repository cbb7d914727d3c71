# SPDX-License-Identifier: Apache-2.0
"""What training a large language model costs, how best to do it, and on how many GPUs.

    import shardwright

    p = shardwright.predict(model="llama-3-8b", cluster="dgx-h100", gpus=64)
    p.iteration_time_s, p.memory.verdict
    shardwright.tune(model="llama-3-8b", cluster="dgx-h100", gpus=64).best.plan
    shardwright.size(model="llama-3-8b", tokens="15T", deadline="60d").recommended

Keywords are the flags of the command line with underscores, answers are views of its JSON documents to the last digit,
errors are exceptions with the program's one sentence. Everything runs in this process; other threads run meanwhile, and
Ctrl-C stops a search. Every other verb of this build is a function, too: shardwright.calibrate(...).
"""
from __future__ import annotations

from typing import Any

from ._errors import Infeasible, InputError, Missing, OutOfTolerance, ShardwrightError, UsageError
from ._results import (Candidate, Comparison, Export, Inputs, Memory, Option, Plan, Prediction, Result, Sizing, Stage,
                       Text, TimeParts, Tuning, Validation)
from ._verbs import export, inspect, predict, report, size, tune, validate, verb
from ._views import View, to_frame

__all__ = ["predict", "tune", "size", "validate", "inspect", "export", "report", "ShardwrightError", "UsageError", "InputError",
           "Infeasible", "Missing", "OutOfTolerance", "to_frame", "View", "Result", "Prediction", "Comparison", "Tuning", "Sizing",
           "Validation", "Export", "Plan", "Memory", "TimeParts", "Stage", "Inputs", "Candidate", "Option", "Text"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version
        return version("shardwright")
    if name.startswith("_") or name == "torch":
        raise AttributeError(f"module 'shardwright' has no attribute {name!r}")
    return verb(name)


def __dir__() -> list[str]:
    from ._help import verbs
    return sorted({*__all__, *(one.replace("-", "_") for one in verbs())})
