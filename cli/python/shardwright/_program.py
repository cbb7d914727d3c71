# SPDX-License-Identifier: Apache-2.0
"""`shardwright` on PATH: the program, in the process that Python began."""
import signal
import sys

from ._library import program


def main() -> int:
    # The program has manners of its own for Ctrl-C and closed pipes.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    return program(["shardwright", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
