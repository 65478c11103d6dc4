"""Drives a headless Chromium over its DevTools pipe, with Python's standard library alone."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

# Everything here ends within this many seconds, or fails.
TIMEOUT = 60


class Browser:
    """A Chromium with one page. Commands go through a pair of pipes, so no port is opened."""

    def __init__(self, width, height):
        self.profile = tempfile.mkdtemp(prefix="roce-page-")
        ours, theirs = os.pipe(), os.pipe()  # commands to it, answers from it

        def give_descriptors():
            # Chromium reads commands from descriptor 3 and writes answers to 4.
            command, answer = os.dup(ours[0]), os.dup(theirs[1])
            os.dup2(command, 3)
            os.dup2(answer, 4)

        self.process = subprocess.Popen(
            [find_browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-background-networking", "--disable-component-update", "--mute-audio",
             f"--user-data-dir={self.profile}", f"--window-size={width},{height}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=give_descriptors, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(ours[0])
        os.close(theirs[1])
        self.to, self.back = ours[1], theirs[0]
        self.buffer, self.number, self.events = b"", 0, []
        target = self.send("Target.createTarget", {"url": "about:blank"}, None)["targetId"]
        self.session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True}, None)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(domain + ".enable")
        self.resize(width, height)

    def send(self, method, params=None, session="page"):
        """Sends a command and returns its result; events that come in between are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + TIMEOUT
        while True:
            answer = self.receive(end)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def receive(self, end):
        while b"\0" not in self.buffer:
            if not select.select([self.back], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError("the browser does not answer")
            data = os.read(self.back, 1 << 20)
            if not data:
                raise AssertionError("the browser has ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def resize(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def open(self, url):
        self.send("Page.navigate", {"url": url})
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression):
        result = self.send("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression):
        """Waits until an expression is true."""
        end = time.monotonic() + TIMEOUT
        while not self.evaluate(expression):
            if time.monotonic() > end:
                raise AssertionError(f"never true: {expression}")
            time.sleep(0.02)

    def click(self, selector):
        """Clicks with the mouse in the middle of an element, as a reader would."""
        box = self.evaluate(f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }})(document.querySelector({json.dumps(selector)}))")
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, *box, button="left", clickCount=1)

    def mouse(self, kind, x, y, **more):
        self.send("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def screenshot(self, path):
        data = self.send("Page.captureScreenshot", {"format": "png"})["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def complaints(self):
        """Console errors and warnings, exceptions, log entries, and requests of anything but the page itself."""
        self.evaluate("1")
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(f"console: {params['args']}")
            elif method == "Runtime.exceptionThrown":
                found.append(f"exception: {params['exceptionDetails']}")
            elif method == "Log.entryAdded":
                found.append(f"log: {params['entry']}")
            elif method == "Network.requestWillBeSent" and params.get("type") != "Document":
                # What the page holds already (blob:, data:) is no network access.
                if not params["request"]["url"].startswith(("blob:", "data:")):
                    found.append(f"request: {params['request']['url']}")
        return found

    def close(self):
        try:
            self.send("Browser.close", session=None)
        except (AssertionError, OSError):
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


def find_browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return name
    raise SystemExit("tools/page/check: no Chromium (apt-get install chromium)")
