"""A headless Chromium for tests, driven over a pipe: no driver to install, no port to open."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NO_BROWSER = "Chromium is not installed"
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Page:
    """One tab: everything it logs and asks for is kept.

    Attributes:
        problems: Errors and warnings of the console, and exceptions.
        requests: The addresses of everything that was asked for, the page itself left out.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._buffer, self._number, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command of Chrome's DevTools protocol and returns its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._reading, 2**16)
            assert chunk, "Chromium ended"
            self._buffer += chunk
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self._note(message["method"], message["params"])
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        self._events.append({"method": method})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(str(params["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, file: Path, *, width: int = 1300, height: int = 900, dark: bool = False) -> None:
        """Opens a file at a width, and waits until it is loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.send("Page.navigate", url=file.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._read()
        self.requests = [request for request in self.requests if request != file.resolve().as_uri()]

    def run(self, script: str) -> Any:
        """Returns the value of an expression in the page."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def hover(self, selector: str, *, at: float = 0.5) -> str:
        """Moves the pointer over the first such element and returns what the page shows beside it."""
        found = json.dumps(selector)
        box = self.run(
            f"(() => {{const e = document.querySelector({found}); e.scrollIntoView({{block: 'center'}});"
            "const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]})()"
        )
        x, y = box[0] + at * box[2], box[1] + box[3] / 2
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        shown = "(() => {const t = document.querySelector('.mf-tooltip');"
        return str(self.run(shown + "return getComputedStyle(t).display == 'none' ? '' : t.textContent})()"))

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Writes the page as a PNG."""
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))["data"]
        file.write_bytes(base64.b64decode(data))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}


@contextlib.contextmanager
def browse() -> Iterator[Page]:
    """Starts a Chromium with a fresh profile and gives one tab of it; everything ends with the block."""
    assert CHROMIUM is not None
    to_child, ours_out = os.pipe()
    ours_in, from_child = os.pipe()

    def move_pipes() -> None:  # Chromium reads commands from 3 and writes to 4
        first, second = os.dup(to_child), os.dup(from_child)
        os.dup2(first, 3)
        os.dup2(second, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}"],
            preexec_fn=move_pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        try:
            yield Page(ours_in, ours_out)
        finally:
            os.close(ours_out)
            process.kill()
            process.wait()
            os.close(ours_in)
