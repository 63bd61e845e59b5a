"""A Spark cluster on this machine: a master and workers as processes of their own, as Spark's scripts start them.

Executors are started by the workers, with an environment that has nothing of this checkout: what a job needs there it must bring.
"""

import atexit
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from icekeep.runtime import SYSTEM
from kit.spark_processes import SPARK_HOME, TIMEOUT_MS, SparkProcesses, node_environment

_CLASSES = "org.apache.spark.deploy"


class Standalone(SparkProcesses):
    """The cluster; `master` is what `--master` takes.

    Args:
        python: what the nodes have as `python3`.
        workers: how many, each with `cores` and `memory`.
    """

    def __init__(self, python: Path, workers: int = 3, cores: int = 1, memory: str = "1500m") -> None:
        self.home = Path(tempfile.mkdtemp(prefix="icekeep-spark-")).resolve()
        super().__init__(self.home)
        self._python = python
        self._processes: list[subprocess.Popen[bytes]] = []
        atexit.register(self.close)
        self._start("master", "master.Master", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.master = self._said("master", r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            name = f"worker{number}"
            size = ("--cores", str(cores), "--memory", memory, "--webui-port", "0")
            # Spark starts no second attempt of a task on the host of the first.
            host = f"127.0.0.{number + 2}"
            self._start(name, "worker.Worker", host, *size, "--work-dir", f"{self.home}/{name}", self.master)
        for number in range(workers):
            self._said(f"worker{number}", "(Successfully registered with master)")

    def errors(self) -> str:
        """What executors of the last application have said on stderr."""
        logs = sorted(self.home.glob("worker*/app-*/*/stderr"), key=lambda path: path.stat().st_mtime)
        return "\n".join(path.read_text(errors="replace")[-4000:] for path in logs[-3:])

    def forget_applications(self) -> None:
        """Remove what ended applications have left: each executor has unpacked what its application brought."""
        for directory in self.home.glob("worker*/app-*"):
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        """End everything, and remove what it left."""
        atexit.unregister(self.close)
        for process in self._processes:
            # Executors are in the groups of the workers that started them.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def log(self, name: str) -> str:
        """What the master or a worker has printed."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, main: str, host: str, *arguments: str) -> None:
        options = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        with (self.home / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [
                        *("java", *options, "-cp", f"{SPARK_HOME}/jars/*"),
                        *(f"{_CLASSES}.{main}", "--host", host, *arguments),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.home,
                    env={
                        **node_environment(self._python),
                        "SPARK_LOCAL_IP": host,
                        "SPARK_SCALA_VERSION": scala_version(),
                    },
                    start_new_session=True,
                )
            )

    def _said(self, name: str, pattern: str) -> str:
        until_ms = SYSTEM.monotonic_ms() + TIMEOUT_MS
        while SYSTEM.monotonic_ms() < until_ms:
            if match := re.search(pattern, self.log(name)):
                return match[1]
            SYSTEM.sleep_ms(50)
        raise AssertionError(f"{name} of the Spark cluster did not start; its log ends:\n{self.log(name)[-4000:]}")


def scala_version() -> str:
    """Of Spark's jars; a worker does not start executors without it, and Spark's scripts set it."""
    (jar,) = SPARK_HOME.glob("jars/spark-core_*.jar")
    return jar.name.removeprefix("spark-core_").partition("-")[0]
