# SPDX-License-Identifier: Apache-2.0
"""The wheel's tests are of the installed package; the program to compare with is SHARDWRIGHT_PROGRAM, or the wheel's own."""
import os
import shutil
import subprocess
import sys

import pytest


class Program:
    """`shardwright` as a process of its own, with the data of the package."""

    def __init__(self, path, data):
        self.path = path
        self.environment = {**os.environ, "SHARDWRIGHT_DATA": str(data), "NO_COLOR": "1"}

    def run(self, *words):
        done = subprocess.run([self.path, *words], capture_output=True, text=True, env=self.environment, timeout=300)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="session")
def program():
    import shardwright
    path = os.environ.get("SHARDWRIGHT_PROGRAM") or shutil.which("shardwright", path=os.path.dirname(sys.executable))
    assert path, "there is no shardwright beside this Python"
    return Program(path, os.path.join(os.path.dirname(shardwright.__file__), "data"))
