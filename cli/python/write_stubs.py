#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the types of the verbs, from the --help of the library that was just built: shardwright/_verbs.pyi.

    write_stubs.py --binary libshardwright.so --data profiles/data --out _verbs.pyi
"""
import argparse
import ctypes
import pathlib
import re
import sys
import types

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = {"predict": "Prediction", "tune": "Tuning", "size": "Sizing", "validate": "Validation", "inspect": "Result", "export": "Export",
           "report": "Text"}
HEAD = '''# SPDX-License-Identifier: Apache-2.0
# Written by write_stubs.py from the program's --help.
import os
from typing import Any, Literal, Mapping, Sequence, Union, overload

from ._results import Comparison, Export, Prediction, Result, Sizing, Text, Tuning, Validation

Path = Union[str, "os.PathLike[str]"]
Count = Union[int, str]
Real = Union[float, str]

class Verb:
    def __call__(self, *words: object, **flags: object) -> Any: ...

def verb(name: str) -> Verb: ...
'''


def type_of(flag):
    """The type of a keyword, from what its flag takes."""
    takes = flag.takes
    if not takes:
        return "bool"
    if flag.name == "model":
        return "Union[Path, Mapping[str, Any], Any]"
    if flag.name == "plan":
        return "Union[Path, Tuning, Mapping[str, Any]]"
    if takes == "on|off":
        return 'Union[bool, Literal["on", "off"]]'
    words = takes.split("|")
    if len(words) > 1 and all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*", word) for word in words):
        return f"Literal[{', '.join(chr(34) + word + chr(34) for word in words)}]"
    if takes == "N":
        return "Count"
    if takes in ("X", "S", "SHARE"):
        return "Real"
    if "=" in takes:
        return "Union[str, Sequence[str], Mapping[str, object]]"
    if "[,NAME]" in takes:
        return "Union[str, Sequence[str]]"
    if takes == "FILE" or "PATH" in words:
        return "Path"
    return "Count" if any(len(word) == 1 for word in words) else "str"


def function(verb, summary, flags, takes_words):
    """`def verb(...)` with what each keyword means; `takes_words`: it has arguments without a flag, too."""
    usable = [flag for flag in flags if flag.keyword.isidentifier() and flag.name != "json"]
    positional = ["*words: str"] if takes_words else ["*"]
    lines = [f"def {verb.replace('-', '_')}("]
    lines += [f"    {one}," for one in positional if usable or one != "*"]
    lines += [f"    {flag.keyword}: {type_of(flag)} | None = ...," for flag in usable]
    lines += [f") -> {RESULTS.get(verb, 'Any')}:", f'    """{summary[:1].upper()}{summary[1:]}.', ""]
    lines += [f"    {flag.keyword}: {flag.text}" for flag in usable]
    text = "\n".join(lines).replace("\\", "\\\\")
    return f'{text}\n    """\n    ...\n'


def predict_overloads(text):
    """Several strategies give a Comparison: the same function twice, told apart by `strategy`."""
    several = text.replace("    strategy: Union[str, Sequence[str]] | None = ...,", "    strategy: Sequence[str],").replace(
        ") -> Prediction:", ") -> Comparison:")
    one = text.replace("    strategy: Union[str, Sequence[str]] | None = ...,", "    strategy: str | None = ...,")
    return f"@overload\n{one}\n@overload\n{several}" if several != text else text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("binary", "data", "out"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    options = parser.parse_args()

    library = ctypes.CDLL(str(options.binary.resolve()))
    library.shardwright_new_call.restype = ctypes.c_void_p
    library.shardwright_run.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    library.shardwright_results.restype, library.shardwright_results.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    library.shardwright_set_data(str(options.data).encode())

    def said(*words):
        call = library.shardwright_new_call()
        library.shardwright_run(call, len(words), (ctypes.c_char_p * len(words))(*(word.encode() for word in words)))
        return library.shardwright_results(call).decode()

    # The reader of --help is the package's; here it reads what this library says.
    source = (HERE / "shardwright/_help.py").read_text().replace("from ._library import run", "run = None")
    reader = types.ModuleType("help_reader")
    sys.modules["help_reader"] = reader
    exec(compile(source, "_help.py", "exec"), reader.__dict__)
    verbs = reader.verbs_in(said("--help"))
    if "predict" not in verbs:
        sys.exit(f"write_stubs: --help of {options.binary} names no verb predict.")
    helps = {verb: said(verb, "--help") for verb in verbs}
    functions = [function(verb, verbs[verb], reader.flags_in(text), "\nPositionals:" in text) for verb, text in helps.items()]
    functions = [predict_overloads(text) if text.startswith("def predict(") else text for text in functions]
    options.out.write_text(HEAD + "\n" + "\n".join(functions))


if __name__ == "__main__":
    main()
