"""A Java program of one source file as a process beside the tests: it says when it is ready, and ends with its standard input."""

import atexit
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kit.shell import ROOT

HADOOP = ROOT / ".java-env" / "hdfs"
TIMEOUT_S = 300


class JavaProcess:
    """Started, and waited for until it has said its first line, `ready`; `home` is its working directory, gone with it.

    Args:
        name: what it is called where it does not start.
        source: run as it is, with Hadoop's jars.
        arguments: `{home}` stands for the directory.
        jars: more of them, as a class path.
        environment: all variables that it has; by default those of this process but for Hadoop's.
    """

    def __init__(
        self,
        name: str,
        source: Path,
        *arguments: str,
        jars: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not HADOOP.exists():
            raise FileNotFoundError("there is no .java-env/hdfs; run `make java-env` first")
        self._name = name
        self.home = Path(tempfile.mkdtemp(prefix="icekeep-java-"))
        options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        told = [argument.format(home=self.home) for argument in arguments]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HADOOP_")}
        with (self.home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["java", *options, "-cp", f"{HADOOP}/*:{jars}", str(source), *told],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.home,
                env=kept if environment is None else dict(environment),
            )
        atexit.register(self.close)
        self.ready = self._answer()

    def tell(self, request: str) -> None:
        """Let it obey a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{request}\n".encode())
        self._process.stdin.flush()
        assert self._answer() == "done"

    def pause(self) -> None:
        """Let it do nothing, while its connections stand, until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)
        # On a busy machine its threads run on for a while, and may answer still.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """End a pause."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process and remove what it left."""
        atexit.unregister(self.close)
        assert self._process.stdin is not None
        self.go_on()
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            # An answer is one line written at once: when it begins, the rest is on its way.
            line = self._process.stdout.readline() if selector.select(TIMEOUT_S) else b""
        if not line:
            self._process.kill()
            log = (self.home / "log").read_text(errors="replace")
            raise AssertionError(f"{self._name} ended or does not answer; its log ends:\n{log[-4000:]}")
        return line.decode().strip()
