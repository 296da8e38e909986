# SPDX-License-Identifier: GPL-3.0-or-later
"""A headless Chromium, driven over two pipes by its DevTools protocol: no port, no lasting profile, no network."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
ANSWER_LIMIT_S = 60
# The program expects its pipes at the numbers 3 and 4, whatever numbers they have here.
_START = """
import os, sys
for number, to in zip(sys.argv[1:3], (3, 4)):
    os.dup2(int(number), to)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One page. `events` holds the messages that the browser sends by itself."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._read = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            found = self._message()
            if found.get("id") == self._number:
                assert "error" not in found, found["error"]
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _message(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_LIMIT_S
        while b"\0" not in self._read:
            ready = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0]
            data = os.read(self._from, 1 << 20) if ready else b""
            assert data, "the browser says nothing any more"
            self._read += data
        line, self._read = self._read.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, place: Path | str) -> None:
        """Open a file or a URL."""
        self.events.clear()
        self.call("Page.navigate", url=place if isinstance(place, str) else place.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def show(self, width: int, scheme: str = "light") -> None:
        """Set the width of the page and the preferred colour scheme."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str) -> Any:
        """Return the value of an expression; it runs in the page, whatever the page's own policy is."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str, limit_s: float = ANSWER_LIMIT_S) -> Any:
        """Return the value of an expression, once it is true."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            found = self.run(script)
            if found:
                return found
            time.sleep(0.05)
        shown = self.run("document.body.innerText.slice(0, 2000)")
        raise AssertionError(f"not so within {limit_s} s: {script}; but the page shows: {shown}")

    def type(self, text: str) -> None:
        """Type into the focused element, and press Enter."""
        self.call("Input.insertText", text=text)
        enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **enter)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the whole page, or of the part that the window shows."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}
        beyond = {"clip": clip, "captureBeyondViewport": True} if whole else {}
        answer = self.call("Page.captureScreenshot", format="png", **beyond)
        path.write_bytes(base64.b64decode(answer["data"]))

    def said(self, *methods: str) -> list[dict[str, Any]]:
        """Return the events of some kinds since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in methods]


def installed_browser() -> str:
    """Return the browser's program; as root, install it if Debian's packages are available."""
    for attempt in range(2):
        found = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if found:
            return found
        if attempt or os.geteuid() != 0 or shutil.which("apt-get") is None:
            break
        wait = ("-o", "DPkg::Lock::Timeout=120")
        subprocess.run(["apt-get", "-qq", *wait, "update"], check=False, timeout=300)
        subprocess.run(
            ["apt-get", "-qqy", *wait, "install", "--no-install-recommends", "chromium"],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            check=False,
            timeout=600,
            stdout=subprocess.DEVNULL,
        )
    missing = "there is no Chromium here, and it could not be installed (as root, with apt-get)"
    # In CI, nobody would notice that the page is never tested.
    if os.environ.get("CI"):
        pytest.fail(missing)
    return pytest.skip(missing)


def _high(descriptor: int) -> int:
    """Return a copy of a descriptor with a number above 3 and 4; close the original."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
    os.close(descriptor)
    return copy


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    """Start Chromium with an empty profile, and end it and its children by their process group."""
    pipes = [_high(end) for pair in (os.pipe(), os.pipe()) for end in pair]
    to_child, to_browser, from_browser, from_child = pipes
    command = [
        sys.executable,
        "-c",
        _START,
        str(to_child),
        str(from_child),
        program,
        *OPTIONS,
        f"--user-data-dir={profile}",
    ]
    log = profile.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, pass_fds=(to_child, from_child), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, env={**os.environ, "HOME": str(profile)},
        )  # fmt: skip
    try:
        for end in (to_child, from_child):
            os.close(end)
        yield Page(to_browser, from_browser)
    finally:
        for end in (to_browser, from_browser):
            os.close(end)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
