"""A headless Chromium by the DevTools protocol over a pipe: file descriptors 3 and 4, JSON ended by a zero byte."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--hide-scrollbars",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-features=BackForwardCache",  # pages that were left would count as memory of the one that is open
)
TIMEOUT = 60.0
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "Tab": 9, "Enter": 13, " ": 32}
TEXTS = {"Enter": "\r", " ": " "}


def find() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """The browser, and its one page."""

    def __init__(self, program: str, profile: Path) -> None:
        read_here, write_there = os.pipe()
        read_there, self._write = os.pipe()
        self._read, self._buffer, self._number = read_here, b"", 0
        self.events: list[dict[str, Any]] = []

        def into_place() -> None:
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (read_there, write_there)]
            for fd, target in zip(high, (3, 4), strict=True):
                os.dup2(fd, target)
                os.close(fd)

        command = [program, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, close_fds=False, preexec_fn=into_place, stdin=quiet, stdout=quiet, stderr=quiet
        )
        os.close(read_there)
        os.close(write_there)
        self._session: str | None = None
        self._target = self._attach()

    def _attach(self) -> str:
        """Opens a tab, which takes the commands from now on."""
        self._session = None
        target: str = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self(f"{domain}.enable")
        return target

    @contextmanager
    def tab(self) -> Iterator[None]:
        """Inside, another tab takes the commands; in the end it is closed."""
        session = self._session
        target = self._attach()
        try:
            yield
        finally:
            self._session = None
            self("Target.closeTarget", targetId=target)
            self("Target.activateTarget", targetId=self._target)
            self._session = session

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, page: Path | str) -> None:
        """Opens a file, or an address."""
        self.events.clear()
        self("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        self.wait_for("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of an expression."""
        out = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in out:
            raise RuntimeError(out["exceptionDetails"])
        return out["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        text = {"text": TEXTS[key]} if key in TEXTS else {}
        how = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 * shift, **text}
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, **how)

    def names(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader finds."""
        nodes = self("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node["name"]["value"]) for node in nodes if "role" in node and "name" in node]

    def wait_for(self, method: str) -> dict[str, Any]:
        """The parameters of the next event of this kind, or of the last one since the page was opened."""
        while not (found := self.seen(method)):
            self.events.append(self._receive())
        return found[-1]

    def type(self, text: str) -> None:
        """Types into what has the focus."""
        self("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        box = self.run(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({_box(selector)})")
        for kind in ("mousePressed", "mouseReleased"):
            self("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def size(self, width: int, height: int) -> None:
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, **features: str) -> None:
        """Media features, such as ``color_scheme="dark"``."""
        named = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
        self("Emulation.setEmulatedMedia", features=named)

    def screenshot(self, path: Path) -> None:
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        data = self("Page.captureScreenshot", captureBeyondViewport=True, clip=size | {"scale": 1})["data"]
        path.write_bytes(base64.b64decode(data))

    def seen(self, method: str) -> list[dict[str, Any]]:
        """The parameters of the events of this kind since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def close(self) -> None:
        self._session = None
        try:
            self("Browser.close")
            self._process.wait(TIMEOUT)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._read, 1 << 16) if ready else b""
            if not data:
                raise RuntimeError("The browser does not answer" if not ready else "The browser has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        out: dict[str, Any] = json.loads(message)
        return out


def _box(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
