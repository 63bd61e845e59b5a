"""A private HDFS for tests: a NameNode and a DataNode in one Java process, on loopback, gone with the tests.

`make java-env` makes what it needs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from kit.java_process import JavaProcess

CLUSTER = Path(__file__).with_name("java_hdfs") / "Cluster.java"


class Hdfs:
    """The cluster; `port` is the NameNode's. Whoever starts it is its superuser."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._process = JavaProcess("the HDFS cluster", CLUSTER, "{home}/data")
        self.port = int(self._process.ready)

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
        self._process.tell("enter-safe-mode")
        try:
            yield
        finally:
            self._process.tell("leave-safe-mode")

    def allow_names(self, path: str, number: int) -> None:
        """Let a directory hold so many names, itself among them."""
        self._process.tell(f"allow-names {path} {number}")

    def pause(self) -> None:
        """Let the NameNode and the DataNode do nothing, while their connections stand, until `go_on`."""
        self._process.pause()

    def go_on(self) -> None:
        """End a pause."""
        self._process.go_on()

    def close(self) -> None:
        """End the process and remove what it left."""
        self._process.close()
