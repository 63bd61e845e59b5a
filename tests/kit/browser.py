"""A browser without a window that opens a page as a person has it, and a page as a reader of HTML takes it.

The browser is spoken to in Chrome's DevTools protocol through a pair of pipes, a JSON text and a zero byte at a time.
"""

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
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
_WAIT_S = 60


class PageLeftError(Exception):
    """The browser went to another page before it could answer."""


class Browser:
    """A page that can be opened and asked. What it logs or throws is kept, and what it requests that its policy allows."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._buffer, self._number, self._session = b"", 0, ""
        self.complaints: list[str] = []
        self._requests: dict[str, str] = {}
        self._is_loaded = False
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    @property
    def requests(self) -> list[str]:
        return [*self._requests.values()]

    def open(self, page: Path | str, *, width: int, height: int = 900, is_dark: bool = False) -> None:
        """Show a page anew, a file or what is at an address; complaints and requests of earlier ones are forgotten."""
        self._call("Page.navigate", url="about:blank")
        scheme = "dark" if is_dark else "light"
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.complaints, self._requests, self._is_loaded = [], {}, False
        self._call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self._await_load()

    def follow(self, expression: str = "") -> None:
        """Evaluate what leads to another page, or to the same one once more, and wait until that is loaded."""
        self._is_loaded = False
        if expression:
            self._call("Runtime.evaluate", expression=expression)
        self._await_load()

    def ask(self, expression: str) -> Any:
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def await_true(self, expression: str) -> None:
        """Wait until an expression holds, across pages that lead to others by themselves meanwhile."""
        while True:
            try:
                if self.ask(expression):
                    return
            except PageLeftError:
                continue

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            told = {"text": text} if text and kind == "keyDown" else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **told)

    def screenshot(self, path: Path, *, is_whole: bool = False) -> None:
        """What is seen, or the whole page, as a PNG file."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _await_load(self) -> None:
        while not self._is_loaded:
            self._take()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while (answer := self._take()).get("id") != number:
            pass
        error = answer.get("error")
        if error is not None and "navigated" in error["message"]:
            raise PageLeftError(error["message"])
        assert error is None, error
        found: dict[str, Any] = answer["result"]
        return found

    def _take(self) -> dict[str, Any]:
        """The next message."""
        deadline = time.monotonic() + _WAIT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_fd], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._read_fd, 1 << 20) if ready else b""
            assert data, "the browser has ended, or does not answer"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._is_loaded = True
        elif method == "Network.requestWillBeSent":
            self._requests[told["requestId"]] = told["request"]["url"]
        elif method == "Network.loadingFailed" and told.get("blockedReason") == "csp":
            self._requests.pop(told["requestId"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(told["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(told["args"]))


@contextmanager
def chromium(directory: Path) -> Iterator[Browser]:
    """A browser that is ended afterwards.

    Args:
        directory: for what it keeps.
    """
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program is not None, f"there is none of {', '.join(PROGRAMS)}: .ci/setup installs one"
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # The browser reads from 3 and writes to 4, which these may be already.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]

    def place() -> None:
        os.dup2(moved[0], 3)
        os.dup2(moved[1], 4)

    flags = ("--no-sandbox", "--disable-gpu", "--headless", "--hide-scrollbars", "--remote-debugging-pipe")
    process = subprocess.Popen(
        [program, *flags, f"--user-data-dir={directory}"],
        preexec_fn=place,
        pass_fds=(3, 4),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for fd in (theirs_in, theirs_out, *moved):
        os.close(fd)
    try:
        yield Browser(ours_in, ours_out)
    finally:
        # Its other processes end with a pipe that is closed, and would write to the directory a while after a kill.
        os.write(ours_out, b'{"id": 0, "method": "Browser.close"}\0')
        try:
            process.wait(_WAIT_S)
        finally:
            process.kill()
        os.close(ours_in)
        os.close(ours_out)


_WITHOUT_END = {"meta", "link", "br", "wbr", "input", "img", "hr"}


class Page(HTMLParser):
    """A parsed page; tags that do not match are an `AssertionError`.

    Attributes:
        tags: each tag that opens, with its attributes, in order.
        texts: by tag the texts that stand in it; those of `script` and `style` are none of the page's own.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    @property
    def text(self) -> str:
        """All that can be read; a place where a line may break is nothing."""
        return "".join(text for tag, text in self.texts if tag not in ("script", "style"))

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """The tags and the names of their attributes, but for places where a line may break."""
        return [(tag, (*attributes,)) for tag, attributes in self.tags if tag != "wbr"]

    def of(self, tag: str) -> list[dict[str, str]]:
        """The attributes of all tags of a name."""
        return [attributes for name, attributes in self.tags if name == tag]

    def values(self, attribute: str) -> list[str]:
        """The values of an attribute, of whatever tag."""
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len({*names}), f"{tag} has an attribute twice: {names}"
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _WITHOUT_END:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes {self._open}"

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))
