# SPDX-License-Identifier: Apache-2.0
"""The planner as research asks it, through the package `shardwright`, and the data files that it reads.

No formula of the product is written down a second time here: predictions of rows are those of `validate`, times of
single kernels come from the library (cli/embed/shardwright.h).
"""
from __future__ import annotations

import contextlib
import csv
import ctypes
import json
import math
import os
import pathlib
import shutil
import tempfile

import numpy as np
import shardwright._library as library

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "profiles/data"
PUBLISHED = DATA / "published"
FITTED = DATA / "fitted"
COMMAND = "shardwright_fit"  # as data files call it


class Refused(Exception):
    """One sentence: what was given and what would be accepted."""


def read_table(path):
    """The rows of a table: of a published one by its name."""
    path = pathlib.Path(path)
    path = path if path.suffix else PUBLISHED / f"{path}.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error.strerror}), expected a table of published rows") from error


def read_fitted(name):
    return json.loads((FITTED / f"{name}.json").read_text(encoding="utf-8"))


def text_of(document):
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


ERRORS = ("mape", "median", "p90", "log_error", "simulated", "more", "less", "inside", "mean_error", "half_width", "interval")


def settled(old, new, key=""):
    """`new` with what `old` says wherever that is as good: numbers to the last digits of another machine, of another end of
    a flat valley, and with them the day."""
    if isinstance(old, dict) and isinstance(new, dict):
        result = {name: settled(old.get(name), value, name) for name, value in new.items()}
        rest = lambda of: {name: value for name, value in of.items() if name not in ("date", "command")}
        return old if rest(result) == rest(old) and old.get("command") == new.get("command") else result
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [settled(a, b, key) for a, b in zip(old, new)]
    if isinstance(old, float) and isinstance(new, float):
        near = 2e-4 if key.startswith(ERRORS) else 0.0
        return old if math.isclose(old, new, rel_tol=1e-3, abs_tol=near) else new
    return new


def write_fitted(to, name, document):
    """Into the data folder `to`, settled by what ships."""
    ships = FITTED / f"{name}.json"
    if ships.exists():
        document = settled(read_fitted(name), document)
    write_text(to / "fitted" / f"{name}.json", text_of(document))


def write_text(path, text):
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def ask(words, data=DATA):
    """The answer of one command line, read from JSON; data files are those of the folder `data`."""
    os.environ["SHARDWRIGHT_DATA"] = str(data)
    answer = library.run([*map(str, words), "--json"])
    if answer.code != 0:
        raise Refused(f"shardwright {' '.join(map(str, words))}: {answer.messages.strip().removeprefix('error: ')}")
    return json.loads(answer.results)


@contextlib.contextmanager
def ledger_of(rows):
    """A table of these rows (dictionaries) as a file."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        file.flush()
        yield file.name


def validate(rows, settings=None, data=DATA):
    """`validate` of a table's rows with values of the profile set."""
    with ledger_of(rows) as ledger:
        words = ["validate", "--ledger", ledger]
        for key, value in (settings or {}).items():
            words += ["--set", f"{key}={value!r}"]
        return ask(words, data)


def log_errors(answer, which="time_error"):
    """log(predicted / measured) by run, of runs that nothing contradicts; which: time_error or memory_error."""
    return {row["id"]: math.log1p(row[which]) for row in answer["rows"] if row[which] is not None and not row["suspect"]}


NUMBERS, WORDS = ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_char_p)
SIGNATURES = {
    "new_kernels": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, NUMBERS, ctypes.c_int, WORDS),
    "kernel_times": (None, ctypes.c_void_p, NUMBERS, NUMBERS), "end_kernels": (None, ctypes.c_void_p),
    "covered": (ctypes.c_char_p, ctypes.c_char_p), "trainings": (ctypes.c_char_p, ctypes.c_double),
    "fit_message": (ctypes.c_char_p,)}


def _door(name, *arguments):
    """What the library has for fits alone (cli/embed/fits.cc), of the data here, not of those it was installed with."""
    os.environ["SHARDWRIGHT_DATA"] = str(DATA)
    function = getattr(library._library, f"shardwright_{name}")
    function.restype, *function.argtypes = SIGNATURES[name]
    return function(*arguments)


def covered(rows):
    """{"ranges": .., "seen": ..} of a ledger's rows: the inputs that they cover, as fitted/residuals.json has them."""
    with ledger_of(rows) as ledger:
        return _told(_door("covered", os.fsencode(ledger)))


def trainings(analytic_mfu=0.0):
    """Published trainings (whole_runs.csv), with the hours of their ideal steps where the share of the peak is given that
    steps reach which cannot be planned, and what share of each law's critical batch theirs was."""
    return _told(_door("trainings", analytic_mfu))


def _told(said):
    if said is None:
        raise Refused(_door("fit_message").decode())
    return json.loads(said)


class Kernels:
    """Times of single kernels by the product's cost formulas, as a function of values of a GPU's costs (`paths`).

    kind, and what `shapes` (rows x columns) gives of each: gemm (m, n, k), attention.KERNEL (length, 1 for backward),
    dispatch (tokens, bytes of a token, experts of a token, experts, ranks, SMs), exchange (ranks, bytes), all_gather,
    reduce_scatter and all_reduce (ranks, bytes)."""

    def __init__(self, kind, gpu, shapes, paths):
        shapes = np.ascontiguousarray(shapes, float)
        self._seconds = np.empty(len(shapes))
        self._kernels = _door(
            "new_kernels", kind.encode(), gpu.encode(), len(shapes), _pointer(shapes), len(paths),
            (ctypes.c_char_p * len(paths))(*(path.encode() for path in paths)))
        if not self._kernels:
            raise Refused(_door("fit_message").decode())

    def __call__(self, values):
        values = np.ascontiguousarray(values, float)
        _door("kernel_times", self._kernels, _pointer(values), _pointer(self._seconds))
        return self._seconds.copy()

    def __del__(self):
        if getattr(self, "_kernels", None):
            _door("end_kernels", self._kernels)


def _pointer(numbers):
    return numbers.ctypes.data_as(ctypes.POINTER(ctypes.c_double))


class ScratchData:
    """A copy of the data folder whose values may be changed."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="research-")
        self.path = pathlib.Path(self._folder.name) / "data"
        shutil.copytree(DATA, self.path)
        return self

    def __exit__(self, *error):
        self._folder.cleanup()


def rounded(value, digits):
    """To so many significant digits."""
    return float(f"{value:.{digits}g}")


def error_summary(errors, decimals=5):
    """Of |predicted / measured - 1|: mean, median and 90th percentile, which are errors that occur."""
    if not len(errors):
        return {"n": 0, "mape": 0.0, "median": 0.0, "p90": 0.0}
    ordered = sorted(map(float, errors))
    rank = lambda share: ordered[max(math.ceil(share * len(ordered)), 1) - 1]
    of = {"mape": sum(ordered) / len(ordered), "median": rank(0.5), "p90": rank(0.9)}
    return {"n": len(ordered)} | {name: round(value, decimals) for name, value in of.items()}


def words_of(summary):
    return f"n {summary['n']}, mean {summary['mape']:.2%}, median {summary['median']:.2%}, p90 {summary['p90']:.2%}"
