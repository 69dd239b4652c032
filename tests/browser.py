"""A headless Chromium to look at pages with, driven by its DevTools protocol over two pipes; nothing else is needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import CHROMIUM_NAMES

OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # which cannot be had by root, nor in most containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--no-first-run",
    "--remote-debugging-pipe",
)
PATIENCE = 60  # seconds without a word from Chromium


class Page:
    """One page: `run` evaluates JavaScript, `press` presses a key, `problems` are what its console complained of."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = requests, answers
        self._rest, self._count, self._session, self._loaded = b"", 0, "", False
        self._down = False
        self.problems: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, file: Path) -> None:
        """Open a file and wait until it is loaded."""
        self._loaded = False
        self._ask("Page.navigate", url=file.resolve().as_uri())
        self.wait_until_loaded()

    def wait_until_loaded(self) -> None:
        """Wait for the end of a load, also of one that the page itself asks for."""
        while not self._loaded:
            self._hear()
        self._loaded = False

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it gives."""
        found = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in found:
            raise AssertionError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def settle(self) -> None:
        """Wait until the page has drawn what was asked of it: two frames, after its timers of zero length."""
        self.run("new Promise((r) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(r)), 0))")

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press a key as a person would."""
        for kind in ("keyDown", "keyUp"):
            values = {"type": kind, "key": key, "windowsVirtualKeyCode": code}
            self._ask("Input.dispatchKeyEvent", **values, **({"text": text} if text and kind == "keyDown" else {}))
        self.settle()

    def write(self, text: str) -> None:
        """Write text where the focus is."""
        self._ask("Input.insertText", text=text)
        self.settle()

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Move, press or release the left button of a mouse: "mouseMoved", "mousePressed" or "mouseReleased"."""
        self._down = kind == "mousePressed" or (kind == "mouseMoved" and self._down)
        held = {"button": "left", "clickCount": 1} if self._down or kind == "mouseReleased" else {}
        self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, buttons=int(self._down), **held)

    def wheel(self, x: float, y: float, turned: float) -> None:
        """Turn the wheel by so many pixels, down where they are positive."""
        self._ask("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=turned)

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Make the window so large, in CSS pixels."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def prefer(self, scheme: str) -> None:
        """Be a reader who prefers "dark" or "light" pages."""
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self) -> bytes:
        """A screenshot, as a PNG file."""
        return base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"])

    def _ask(self, method: str, **values: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": values}
        os.write(
            self._requests,
            json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0",
        )
        while True:
            heard = self._hear()
            if heard.get("id") == self._count:
                if "error" in heard:
                    raise AssertionError(f"{method}: {heard['error']}")
                result: dict[str, Any] = heard["result"]
                return result

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE)
            part = os.read(self._answers, 2**20) if ready else b""
            if not part:
                raise AssertionError("Chromium went away")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        heard: dict[str, Any] = json.loads(text)
        values = heard.get("params", {})
        match heard.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                self.problems.append(str(values["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if values["type"] in ("error", "warning", "assert"):
                self.problems.append(str(values["args"]))
            case "Log.entryAdded":
                self.problems.append(values["entry"]["text"])
            case "Network.requestWillBeSent" if not values["request"]["url"].startswith(("file:", "data:", "about:")):
                self.problems.append(f"asks for {values['request']['url']}")
        return heard


@contextmanager
def chromium() -> Iterator[Page]:
    """A page of a browser of our own, which ends with the block."""
    program = next(filter(None, map(shutil.which, CHROMIUM_NAMES)))
    requests_in, requests = os.pipe()
    answers, answers_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Chromium reads requests from descriptor 3 and writes answers to 4.
        process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{requests_in} 4>&{answers_out}',
                "-",
                program,
                *OPTIONS,
                f"--user-data-dir={profile}",
            ],
            pass_fds=(requests_in, answers_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(requests_in)
        os.close(answers_out)
        try:
            yield Page(requests, answers)
        finally:
            os.close(requests)  # it ends when nobody can ask it any more
            os.close(answers)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
