# SPDX-License-Identifier: Apache-2.0
"""A browser with the planner page in it, and what the flows do there: set, press, wait, read."""
import base64
import json
import pathlib
import time

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

START_S = 180


class Page:
    def __init__(self, url, downloads, chromium="/usr/bin/chromium", driver="/usr/bin/chromedriver"):
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900", "--force-color-profile=srgb"):
            options.add_argument(argument)
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_script_timeout(START_S)
        self.url = url
        self.requests = []
        self.messages = []

    def open(self, fragment=""):
        """A fresh start, as from a link that somebody sent."""
        self.gather_logs()
        self.driver.get("about:blank")
        self.driver.get(self.url + fragment)
        self.wait("document.body && document.body.dataset.ready !== undefined", START_S)

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition, timeout_s=120):
        """Until the JavaScript expression is true; its value. Ends with what the page says where it never is."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            value = self.js(f"return {condition};")
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"{timeout_s} s passed, and not yet: {condition}\n{self.text()[:1500]}")

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector="body"):
        for _ in range(5):
            try:
                return self.one(selector).text
            except StaleElementReferenceException:
                time.sleep(0.1)
        return ""

    def press(self, selector):
        element = self.one(selector)
        self.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def view(self, name):
        self.press(f'#views [data-view="{name}"]')

    def set(self, flag, value):
        """Into the visible input of a flag, as typed and left."""
        self.js("""
          const input = [...document.querySelectorAll(`[data-flag="${arguments[0]}"]`)].find((one) => one.offsetParent || one.closest('details'));
          input.value = arguments[1];
          input.dispatchEvent(new Event('input', {bubbles: true}));
          input.dispatchEvent(new Event('change', {bubbles: true}));
        """, flag, str(value))

    def set_by_id(self, name, value):
        self.js("""
          const input = document.getElementById(arguments[0]);
          input.value = arguments[1];
          input.dispatchEvent(new Event('change', {bubbles: true}));
        """, name, str(value))

    def slide(self, flag, place):
        """Moves a slider to a stop; the milliseconds until the answer stood there."""
        return self.driver.execute_async_script("""
          const [flag, place, done] = arguments;
          const slider = document.querySelector(`[data-slider="${flag}"]`);
          const begin = performance.now();
          const seen = new MutationObserver(() => {
            seen.disconnect();
            requestAnimationFrame(() => done(performance.now() - begin));
          });
          seen.observe(document.getElementById('headline'), {childList: true});
          slider.value = place;
          slider.dispatchEvent(new Event('input', {bubbles: true}));
        """, flag, place)

    def computed_ms(self):
        """Processor time so far of the page's own thread and of its first worker, which answers sliders, as the kernel counts
        it: what other programs do beside them is not in it."""
        parents = {}
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended
        nanoseconds = 0
        for process in parents:
            above = process
            while above in parents and above != self.driver.service.process.pid:
                above = parents[above]
            try:
                if above not in parents or b"--type=renderer" not in pathlib.Path(f"/proc/{process}/cmdline").read_bytes():
                    continue
                threads = sorted(pathlib.Path(f"/proc/{process}/task").iterdir(), key=lambda thread: int(thread.name))
                workers = [thread for thread in threads if (thread / "comm").read_text().startswith("DedicatedWorker")]
                for thread in threads[:1] + workers[:1]:
                    nanoseconds += int((thread / "schedstat").read_text().split()[0])
            except OSError:
                continue
        return nanoseconds / 1e6

    def settled(self):
        """The present plan's timeline stands there, and no question is open."""
        self.wait("document.querySelector('#timeline svg') && document.body.dataset.details === 'done'")

    def give(self, *paths):
        self.one("#file").send_keys("\n".join(str(path) for path in paths))

    def said(self):
        return self.text("#says")

    def console(self, line, timeout_s=300):
        """Runs a command line in the page's own console; (exit code, stdout to the byte)."""
        self.view("console")
        self.js("document.getElementById('console-status').textContent = ''; document.getElementById('console-line').value = arguments[0];", line)
        self.press("#console-run")
        status = self.wait("document.getElementById('console-status').textContent", timeout_s)
        assert status.startswith("Exit code "), status
        return int(status.split()[2].rstrip(",")), self.js("return window.shardwrightConsole.text;")

    def resize(self, width, height, dark=False, mobile=False):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                    {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        time.sleep(0.5)

    def picture(self, path):
        """The whole page, not only what the window shows and the browser therefore draws."""
        self.js("document.head.append(Object.assign(document.createElement('style'), {textContent: '#answers section {content-visibility: visible !important}'}))")
        self.driver.execute_async_script("const [done] = arguments; requestAnimationFrame(() => requestAnimationFrame(done));")
        shots = []
        end = time.monotonic() + 20
        # What was not in the window is drawn late, tile by tile: the last three have to be the same.
        while (len(shots) < 3 or len(set(shots[-3:])) > 1) and time.monotonic() < end:
            time.sleep(0.25)
            shots.append(self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "format": "png"})["data"])
        path.write_bytes(base64.b64decode(shots[-1]))

    def printed(self, width_in=8.5, height_in=11):
        """What stands in the window on paper: the PDF and how many sheets it has."""
        pdf = base64.b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", {
            "printBackground": True, "paperWidth": width_in, "paperHeight": height_in})["data"])
        assert pdf.startswith(b"%PDF")
        return pdf, pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ")

    def gather_logs(self):
        self.messages += [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])

    def close(self):
        self.driver.quit()
