# SPDX-License-Identifier: Apache-2.0
"""The program as a function: words of a command line in, exit code and texts out (cli/embed/shardwright.h).

It runs in this process, on a thread of its own where the caller is the main one: Ctrl-C is heard at once.
ctypes lets go of Python's lock meanwhile: calls from several threads run at the same time.
"""
from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import NamedTuple, Optional, Sequence

_FOLDER = os.path.dirname(os.path.realpath(__file__))
# How long an interrupted call may take to end before it is left to end by itself, unheard.
_GRACE_S = 1.0


class Answer(NamedTuple):
    """What a command line said: its exit code, stdout and stderr."""

    code: int
    results: str
    messages: str


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(os.path.join(_FOLDER, "libshardwright.so"))
    call, words = ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p)
    for name, result, *arguments in (
            ("set_data", None, ctypes.c_char_p), ("new_call", call), ("run", ctypes.c_int, call, ctypes.c_int, words),
            ("stop", None, call), ("results", ctypes.c_char_p, call), ("messages", ctypes.c_char_p, call),
            ("end_call", None, call), ("set_own_start", None, ctypes.c_int, words), ("program", ctypes.c_int, ctypes.c_int, words)):
        function = getattr(library, f"shardwright_{name}")
        function.restype, function.argtypes = result, arguments
    library.shardwright_set_data(os.fsencode(os.path.join(_FOLDER, "data")))
    return library


_library = _load()


def _array(words: Sequence[str]) -> "ctypes.Array[ctypes.c_char_p]":
    for word in words:
        if "\0" in word:
            raise ValueError(f"{word[:40]!r} has a zero byte in it, which no command line can hold")
    # Bytes of a file's name that are no UTF-8 go through as they came.
    return (ctypes.c_char_p * (len(words) + 1))(*(word.encode("utf-8", "surrogateescape") for word in words), None)


def _run(call: int, words: Sequence[str]) -> Answer:
    code = _library.shardwright_run(call, len(words), _array(words))
    texts = (_library.shardwright_results(call), _library.shardwright_messages(call))
    return Answer(code, *(text.decode("utf-8", "replace") for text in texts))


class _Worker:
    """A thread that runs one call after the other: the caller's own stays free to hear Ctrl-C, and the memory that a
    call used is there for the next."""

    def __init__(self) -> None:
        import queue  # here: only who asks something needs it
        self._calls: "queue.SimpleQueue[tuple[int, Sequence[str], list[Answer], threading.Event]]" = queue.SimpleQueue()
        threading.Thread(target=self._work, name="shardwright", daemon=True).start()

    def _work(self) -> None:
        while True:
            call, words, answers, done = self._calls.get()
            try:
                answers.append(_run(call, words))
            finally:
                done.set()

    def begin(self, call: int, words: Sequence[str]) -> "tuple[list[Answer], threading.Event]":
        answers: list[Answer] = []
        done = threading.Event()
        self._calls.put((call, words, answers, done))
        return answers, done


_worker: Optional[_Worker] = None


def _forget_worker() -> None:
    """Threads do not survive a fork."""
    global _worker
    _worker = None


os.register_at_fork(after_in_child=_forget_worker)


def run(words: Sequence[str]) -> Answer:
    """Runs `shardwright WORDS...`. KeyboardInterrupt stops a search and is raised again."""
    global _worker
    words = list(words)
    _array(words)
    call = _library.shardwright_new_call()
    if not call:
        raise MemoryError("there is no memory for a call of shardwright")
    if threading.current_thread() is not threading.main_thread():
        try:
            return _run(call, words)
        finally:
            _library.shardwright_end_call(call)

    _worker = _worker or _Worker()
    answers, done = _worker.begin(call, words)
    try:
        done.wait()
    except BaseException:
        _library.shardwright_stop(call)
        if done.wait(_GRACE_S):
            _library.shardwright_end_call(call)
        else:
            _worker = None  # ends by itself, unheard
        raise
    _library.shardwright_end_call(call)
    return answers[0]


def program(words: Sequence[str]) -> int:
    """The program itself, on this process's stdout, stderr and signals. `words` begins with its name."""
    # For a verb that starts the program again (mcp): Python with this package and nothing of the folder it is called in.
    start = (f"import sys; sys.path = [one for one in sys.path if one] + [{os.path.dirname(_FOLDER)!r}]; "
             "from shardwright._program import main; sys.exit(main())")
    _library.shardwright_set_own_start(3, _array([sys.executable, "-c", start]))
    return int(_library.shardwright_program(len(words), _array(words)))
