"""A process beside the tests that answers each line with one line: how foreign software is asked."""

import atexit
import os
import selectors
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

TIMEOUT_S = 300
_LOG_LENGTH = 4000


class NoAnswerError(AssertionError):
    """A process has ended, or says nothing; how its log ends is told."""


class LineProcess:
    """A process, started at once; `close` ends it, and so does the end of this one.

    Attributes:
        home: the directory that it works in, which goes with it. Its standard error is the file `log` there.
    """

    def __init__(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Args:
        name: what errors call it.
        command: in it `{home}` stands for the directory.
        environment: all variables that it has.
        """
        self._name = name
        self.home = Path(tempfile.mkdtemp(prefix="icekeep-process-"))
        with (self.home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(part).replace("{home}", str(self.home)) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.home,
                env=dict(environment),
            )
        atexit.register(self.close)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ask(self, line: str) -> str:
        """Its answer to a line; raises what `answer` raises."""
        assert self._process.stdin is not None
        # Where it has ended, the answer that does not come tells it.
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        """The next line that it says.

        Raises:
            NoAnswerError: it has ended, or has said nothing for `TIMEOUT_S`; then it is killed.
        """
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            # An answer is one line written at once: when it begins, the rest is on its way.
            speaks = bool(selector.select(TIMEOUT_S))
        line = self._process.stdout.readline() if speaks else b""
        if not line:
            self._process.kill()
            self._process.wait()
            why = "ended" if speaks else f"has not answered in {TIMEOUT_S} s"
            raise NoAnswerError(f"{self._name} {why}; its log ends:\n{self._log_tail()}")
        return line.decode().strip()

    def close(self) -> None:
        """End the process by closing its standard input, and remove what it left."""
        atexit.unregister(self.close)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _log_tail(self) -> str:
        """Without the lines of Java's stack traces."""
        log = self.home / "log"
        # A process may remove its directory when it ends.
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-_LOG_LENGTH:]


def environment_without(*prefixes: str, **more: str) -> dict[str, str]:
    """The variables of this process but for those that begin so, and some more."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(prefixes)}, **more}
