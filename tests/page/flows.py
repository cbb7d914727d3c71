# SPDX-License-Identifier: Apache-2.0
"""What each flow of page_test.py has at hand: the page, the program and a folder for files."""
import subprocess
import time


class Flows:
    def __init__(self, page, program, folder, pictures):
        self.page, self.program, self.folder, self.pictures = page, program, folder, pictures

    def native(self, *words):
        done = subprocess.run([self.program, *words], capture_output=True, text=True, check=False,
                              cwd=self.folder, env={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"})
        return done.returncode, done.stdout

    def file(self, name, text):
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def downloaded(self, name, timeout_s=60):
        path = self.folder / name
        end = time.monotonic() + timeout_s
        while not path.exists():
            assert time.monotonic() < end, f"{name} was not downloaded"
            time.sleep(0.1)
        return path
