"""A headless Chromium, driven through its DevTools protocol over a pipe: no package is needed for that."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIMIT_S = 300.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")


def find() -> str | None:
    """The browser's program, if there is one here."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """A tab. ``problems``: exceptions and errors on its console; ``downloads``: names and paths of saved files."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._number = 0
        self._pending = b""
        self._session: str | None = None
        self.problems: list[str] = []
        self.downloads: list[tuple[str, Path]] = []
        self._downloads = Path()
        self._names: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + LIMIT_S
        while True:
            answer = self._next(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"] + " " + parameters["entry"].get("url", ""))
        elif event.get("method") == "Browser.downloadWillBegin":
            self._names[parameters["guid"]] = parameters["suggestedFilename"]
        elif event.get("method") == "Browser.downloadProgress" and parameters["state"] == "completed":
            self.downloads.append((self._names[parameters["guid"]], self._downloads / parameters["guid"]))

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            assert select.select([self._receive], [], [], max(0.0, until - time.monotonic()))[0], "no answer"
            piece = os.read(self._receive, 1 << 20)
            assert piece, "the browser has ended"
            self._pending += piece
        message, _, self._pending = self._pending.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Become a window of this size, or a phone."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, limit_s: float = LIMIT_S) -> Any:
        """The value of an expression as soon as it is true. What it looks at may not be there yet."""
        until = time.monotonic() + limit_s
        while True:
            try:
                value, fault = self.run(expression), None
            except AssertionError as error:
                value, fault = None, error
            if value:
                return value
            if time.monotonic() > until:
                raise AssertionError(expression, self.problems, self.run("document.body?.innerText")) from fault
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, expression: str) -> None:
        """Click an element as a person does: once it is there, where it is seen."""
        self.wait_for(f"!!({expression})")
        x, y = self.run(
            f"(() => {{ const element = {expression}; element.scrollIntoView({{ block: 'center' }}); "
            "const box = element.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, 1)
        self.mouse("mouseReleased", x, y)

    def mouse(self, kind: str, x: float, y: float, buttons: int = 0) -> None:
        button = "left" if buttons or kind == "mouseReleased" else "none"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=1)

    def save_downloads(self, folder: Path) -> None:
        """Save what the page downloads in this folder, without asking, and note it in ``downloads``."""
        self.call("Browser.setDownloadBehavior", behavior="allowAndName", downloadPath=str(folder), eventsEnabled=True)
        self._downloads = folder

    def downloaded(self) -> tuple[str, bytes]:
        """Name and content of the next file that was downloaded."""
        until = time.monotonic() + LIMIT_S
        while not self.downloads:
            assert time.monotonic() < until, ("no download", self.problems)
            self.run("0")  # events come with answers
            time.sleep(0.01)
        name, path = self.downloads.pop(0)
        return name, path.read_bytes()

    def picture(self, path: Path, *, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser with an empty tab, while this lasts."""
    program = find()
    assert program is not None
    theirs_in, send = os.pipe()
    receive, theirs_out = os.pipe()
    # The browser finds its ends at 3 and 4; above that nothing of ours is in the way.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, open(os.devnull, "rb+") as nothing:
        arguments = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-extensions",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        pid = os.posix_spawn(
            program,
            arguments,
            {**os.environ, "HOME": profile},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, ends[0], 3),
                (os.POSIX_SPAWN_DUP2, ends[1], 4),
                *((os.POSIX_SPAWN_DUP2, nothing.fileno(), number) for number in (0, 1, 2)),
            ],
            setpgroup=0,
        )
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        try:
            yield Browser(send, receive)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(send)
            os.close(receive)
