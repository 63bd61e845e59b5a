"""A server of other people's as a process beside the tests: started, killed in the middle of work, started again where it was."""

import atexit
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from icekeep.runtime import SYSTEM
from kit.java import environment_without
from kit.shell import ROOT

SERVERS = ROOT / ".servers-env"
"""What `make servers-env` installs."""

_START_TIMEOUT_MS = 300_000
_END_TIMEOUT_S = 30
_POLL_MS = 50
_LOG_LENGTH = 4000
# All end with the server, and the server as soon as its standard input is closed, however the process of the tests ends.
_WATCHED = '( "$@" </dev/null; kill -9 0 ) & cat >/dev/null; kill -9 0'


class ServerProcess:
    """A server, which runs after `start`; `close` ends it and removes its directory, and so does the end of this process.

    Attributes:
        home: the directory that it works in. Its output is the file `log` there.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        answers: Callable[[], bool],
        *,
        home: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
        name: what errors call it.
        answers: whether it can be asked; an `OSError` says that it cannot.
        home: a directory that is there; by default a new one.
        environment: all variables that it has; by default those of this process but for Java's.
        """
        self._name, self._command, self._answers = name, [str(part) for part in command], answers
        self.home = home or Path(tempfile.mkdtemp(prefix=f"icekeep-{name.lower().replace(' ', '-')}-"))
        self._environment = dict(environment or environment_without("JAVA_", "JDK_", "_JAVA"))
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def start(self) -> None:
        """Start it, with all that it kept if it ran before, and wait until it answers."""
        self._ended, held_open = os.pipe()
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _WATCHED, "sh", *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=self._environment,
                start_new_session=True,
                pass_fds=[held_open],
            )
        os.close(held_open)
        ends_ms = SYSTEM.monotonic_ms() + _START_TIMEOUT_MS
        while not self._is_up():
            if self._process.poll() is not None or SYSTEM.monotonic_ms() > ends_ms:
                self.kill()
                raise AssertionError(f"{self._name} did not start; its log ends:\n{self._log_tail()}")
            SYSTEM.sleep_ms(_POLL_MS)

    def kill(self) -> None:
        """End it as a crash does; its directory stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it as who maintains the machine does: it may save what it holds before it goes; its directory stays."""
        self._end(signal.SIGTERM)

    def close(self) -> None:
        """End it, and remove what it left."""
        atexit.unregister(self.close)
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, how)
        # The server is no child of this process, and may hold its port for longer than the shell lives.
        ended, _, _ = select.select([self._ended], [], [], _END_TIMEOUT_S)
        if not ended:
            os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._process = None
        os.close(self._ended)
        assert ended, f"{self._name} did not end within {_END_TIMEOUT_S} seconds"

    def _is_up(self) -> bool:
        try:
            return self._answers()
        except OSError:
            return False

    def _log_tail(self) -> str:
        """Without the lines of Java's stack traces."""
        lines = (self.home / "log").read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-_LOG_LENGTH:]


def wheel_release(server: str, package: str) -> str:
    """Which version of a Python package is installed as a server: that of `.ci/servers/rest/requirements-SERVER.lock`."""
    lines = (ROOT / ".ci" / "servers" / "rest" / f"requirements-{server}.lock").read_text().splitlines()
    return next(line.removeprefix(f"{package}==").split()[0] for line in lines if line.startswith(f"{package}=="))


def go_release(server: str, module: str) -> str:
    """Which version of a Go module is installed as a server: that of `.ci/servers/SERVER/go.mod`."""
    lines = (ROOT / ".ci" / "servers" / server / "go.mod").read_text().splitlines()
    return next(words[1] for words in map(str.split, lines) if words[:1] == [module])
