# SPDX-License-Identifier: Apache-2.0
"""What each flow of page_test.py has at hand: the page, the program, a folder for files and known pictures."""
import subprocess
import time

import looks

WINDOWS = (("desk", 1280, 900), ("phone", 390, 844))


class Flows:
    def __init__(self, page, program, folder, pictures, remember=False):
        self.page, self.program, self.folder, self.pictures, self.remember = page, program, folder, pictures, remember

    def picture_set(self, name):
        """At the width of a desk and of a phone, light and dark: looks as it did, and nothing sticks out sideways."""
        for device, width, height in WINDOWS:
            for dark in (False, True):
                self.page.resize(width, height, dark, device == "phone")
                title = f"{name}_{device}_{'dark' if dark else 'light'}"
                path = self.pictures / f"{title}.png"
                self.page.picture(path)
                wide = self.page.js("return document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is {wide} pixels wide on a window of {width}"
                seen = looks.look(self.page, path)
                if self.remember:
                    looks.remember(title, seen)
                found = looks.differences(looks.all_known()[title], seen)
                assert not found, f"{title}: {'; '.join(found)} (if that is meant: --remember)"
        self.page.resize(1280, 900)

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
