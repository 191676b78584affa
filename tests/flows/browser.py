"""A headless Chromium, driven through its debugging protocol: open pages, wait for text, take pictures."""

import base64
import json
import shutil
import subprocess
import time
import urllib.request

from websockets.sync.client import connect

WAIT_S = 120.0


def find_chromium():
    """Return the browser's command, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page. Use as a context manager; ``folder`` holds its profile."""

    def __init__(self, folder, *, environment, width=1280, height=900):
        self._folder = folder
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--disable-background-networking", "--hide-scrollbars", f"--window-size={width},{height}"]
        self._process = subprocess.Popen(
            [find_chromium(), *options, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self._number = 0
        try:
            port = self._until(self._port, "start of the browser")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=60) as answer:
                (page,) = [p for p in json.load(answer) if p["type"] == "page"]
            self._socket = connect(page["webSocketDebuggerUrl"], max_size=None, open_timeout=60)
        except BaseException:
            self._end()
            raise
        self.call("Page.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()
        self._end()

    def _end(self):
        self._process.terminate()
        self._process.wait(30)

    def _port(self):
        path = self._folder / "DevToolsActivePort"
        return path.exists() and path.read_text().split("\n")[0]

    def call(self, method, **parameters):
        """Send a command of the protocol and return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=WAIT_S))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def evaluate(self, expression):
        """Return the value of a JavaScript expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def before_pages(self, script):
        """Run ``script`` before the scripts of every page."""
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def open(self, url, *texts):
        """Open a page and wait until it shows all of ``texts``."""
        self.call("Page.navigate", url=url)
        for text in texts:
            self.wait_for(f"document.body !== null && document.body.innerText.includes({json.dumps(text)})", text)

    def wait_for(self, expression, what):
        """Wait until a JavaScript expression is true."""
        self._until(lambda: self.evaluate(expression), what)

    def _until(self, ready, what):
        end_s = time.monotonic() + WAIT_S
        while not (answer := ready()):
            if time.monotonic() > end_s:
                raise AssertionError(f"the browser does not show {what!r}; it shows {self.shown()!r}")
            time.sleep(0.1)
        return answer

    def shown(self):
        """Return the text of the page."""
        return self.evaluate("document.body ? document.body.innerText.slice(0, 3000) : ''") if self._number else ""

    def picture(self, path):
        """Write what is visible as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
