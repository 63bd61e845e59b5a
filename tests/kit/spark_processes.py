"""The processes of executors on this machine, and what a cluster that starts them may find there."""

import os
import signal
import sys
import venv
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pyspark

from icekeep.planning.spark.session import java_program
from icekeep.runtime import SYSTEM
from kit.killing import processes

SPARK_HOME = Path(pyspark.__file__).parent
TIMEOUT_MS = 300_000
_EXECUTORS = ("CoarseGrainedExecutorBackend", "YarnCoarseGrainedExecutorBackend")
_DAEMON = "pyspark.daemon"


class SparkProcesses:
    """Executors that work below a directory, and their Python workers."""

    def __init__(self, home: Path) -> None:
        self._home = str(home)

    def executors(self) -> list[int]:
        """The process ids of the executors' JVMs that run now."""
        return sorted(pid for pid, _, words in self._ours() if "java" in words and any(n in words for n in _EXECUTORS))

    def python_workers(self) -> list[int]:
        """Those of the Python processes that do tasks; each was forked by its executor's daemon."""
        ours = [(pid, parent) for pid, parent, words in self._ours() if _DAEMON in words]
        daemons = {pid for pid, _ in ours}
        return sorted(pid for pid, parent in ours if parent in daemons)

    def kill_executor(self) -> int:
        """Kill one that is at work, with its Python, as a machine that is lost does; the number of its process."""
        workers = self.wait_for(self.python_workers)
        parents = {pid: parent for pid, parent, _ in processes()}
        executor = parents[parents[workers[0]]]
        ended = [pid for pid, parent in parents.items() if executor in (pid, parent, parents.get(parent))]
        for pid in ended:
            _kill(pid)
        return executor

    def kill_worker(self) -> int:
        """Kill a Python worker, as a machine that has no memory left does; the number of its process."""
        pid = self.wait_for(self.python_workers)[0]
        _kill(pid)
        return pid

    def wait_for(self, found: Callable[[], list[int]]) -> list[int]:
        """Some of these, as soon as there are any."""
        until_ms = SYSTEM.monotonic_ms() + TIMEOUT_MS
        while SYSTEM.monotonic_ms() < until_ms:
            if some := found():
                return some
            SYSTEM.sleep_ms(2)
        raise AssertionError(f"no process came to be in {self._home}")

    def _ours(self) -> Iterator[tuple[int, int, str]]:
        for pid, parent, words in processes():
            try:
                if os.readlink(f"/proc/{pid}/cwd").startswith(self._home):
                    yield pid, parent, words
            except OSError:
                continue


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def node_environment(python: Path) -> Mapping[str, str]:
    """The variables of a machine that has nothing of this checkout; its `python3` is a given one."""
    path = os.pathsep.join((str(python.parent), f"{java_home()}/bin", "/usr/local/bin", "/usr/bin", "/bin"))
    return {
        "PATH": path,
        "LANG": "C.UTF-8",
        "HOME": "/nowhere",
        "JAVA_HOME": java_home(),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@cache
def java_home() -> str:
    """Where the Java of this process lies."""
    return str(Path(java_program(os.environ)).resolve().parents[1])


def bare_python(directory: Path) -> Path:
    """A Python that has its own library and nothing else, as a node's system has it."""
    venv.create(directory, with_pip=False, symlinks=True)
    return directory / "bin" / "python3"


def python_with_wheels(directory: Path) -> Path:
    """A Python with all that icekeep needs, without icekeep: as a node has it on which an operator has installed the wheels."""
    python = bare_python(directory)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (site,) = (path for path in sys.path if path.endswith("site-packages"))
    # What this leads to has files of its own that lead to the checkout; these are not followed.
    (directory / "lib" / version / "site-packages" / "wheels.pth").write_text(f"{site}\n")
    return python
