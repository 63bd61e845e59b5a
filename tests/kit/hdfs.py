"""A private HDFS for tests: a NameNode and a DataNode in one Java process, on loopback, gone with the tests.

`make java-env` makes what it needs.
"""

import atexit
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".java-env" / "hdfs"
CLUSTER = Path(__file__).with_name("java_hdfs") / "Cluster.java"
TIMEOUT_S = 120


class Hdfs:
    """The cluster; `port` is the NameNode's. Whoever starts it is its superuser."""

    def __init__(self) -> None:
        if not JARS.exists():
            raise FileNotFoundError("there is no .java-env/hdfs; run `make java-env` first")
        self._home = Path(tempfile.mkdtemp(prefix="icekeep-hdfs-"))
        self._numbers = count(1)
        options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command = ["java", *options, "-cp", f"{JARS}/*", str(CLUSTER), f"{self._home}/data"]
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._home,
                env={name: value for name, value in os.environ.items() if not name.startswith("HADOOP_")},
            )
        atexit.register(self.close)
        self.port = int(self._answer())

    @property
    def uri(self) -> str:
        """Of the root directory, without a slash at the end."""
        return f"hdfs://127.0.0.1:{self.port}"

    def new_root(self) -> str:
        """A location below which nothing is yet."""
        return f"{self.uri}/test_{next(self._numbers)}"

    @contextmanager
    def safe_mode(self) -> Iterator[None]:
        """Let the NameNode refuse all changes, as it does while it starts."""
        self._tell("enter-safe-mode")
        try:
            yield
        finally:
            self._tell("leave-safe-mode")

    def allow_names(self, path: str, number: int) -> None:
        """Let a directory hold so many names, itself among them."""
        self._tell(f"allow-names {path} {number}")

    def pause(self) -> None:
        """Let the NameNode and the DataNode do nothing, while their connections stand, until `go_on`."""
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
        shutil.rmtree(self._home, ignore_errors=True)

    def _tell(self, request: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{request}\n".encode())
        self._process.stdin.flush()
        assert self._answer() == "done"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            # An answer is one line written at once: when it begins, the rest is on its way.
            line = self._process.stdout.readline() if selector.select(TIMEOUT_S) else b""
        if not line:
            self._process.kill()
            log = (self._home / "log").read_text(errors="replace")
            raise AssertionError(f"the HDFS cluster ended or does not answer; its log ends:\n{log[-4000:]}")
        return line.decode().strip()
