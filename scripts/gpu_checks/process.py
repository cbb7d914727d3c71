# SPDX-License-Identifier: Apache-2.0
"""Running other programs, and the ways in which a check ends."""
import contextlib
import pathlib
import subprocess
import time


class Missing(Exception):
    """What the machine or the package lacks for any check, as one sentence."""


class Failed(Exception):
    """Why a part could not do its work."""


class Slow(Failed):
    """A program was ended because its time was over. `said` is what it had said until then."""

    def __init__(self, sentence, said):
        super().__init__(sentence)
        self.said = said


class OutOfTime(Exception):
    """A part was not ended because its time is over; nothing is wrong with what it looked at, and no row's trouble."""


class Skipped(Exception):
    """What this machine lacks for a part or a row; nothing is wrong."""


@contextlib.contextmanager
def within(check, seconds):
    """The seconds that a program may take: so many, or what is left to its part; OutOfTime where it needs more than that."""
    limit = check.left(seconds)
    try:
        yield limit
    except Slow as slow:
        if limit < seconds:
            raise OutOfTime(f"the time given to this part is over: {slow}") from None
        raise


# What a row of a part may meet without costing the others.
TROUBLE = (Failed, OSError, ValueError, KeyError, IndexError)


def text_of(output):
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def run(command, seconds, check=True, environment=None):
    """The command's output; Failed with the end of what it said when it does not succeed, Slow not in time."""
    name = pathlib.Path(command[0]).name
    begin = time.monotonic()
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds,
                              env=environment, errors="replace")
    except subprocess.TimeoutExpired as slow:
        raise Slow(f"{name} took longer than {seconds:.0f} s", text_of(slow.stdout)) from None
    except OSError as error:
        raise Failed(f"{command[0]} cannot be started: {error.strerror}") from None
    done.seconds = time.monotonic() - begin
    if check and done.returncode != 0:
        raise Failed(f"{name} ended with {done.returncode}: {last_words(done.stderr or done.stdout)}")
    return done


def last_words(text):
    return " / ".join(text.strip().splitlines()[-3:])[-600:]
