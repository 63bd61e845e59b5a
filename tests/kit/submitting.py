"""Clusters on this machine, Spark's own, YARN and HDFS, and jobs as an operator submits them to one.

Executors and containers are started with an environment that has nothing of this checkout: what a job needs there it must bring.
YARN and HDFS run in one Java process each, on loopback, gone with the tests; `make java-env` makes what they need.
"""

import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyspark

from icekeep.planning.spark.session import java_program
from icekeep.runtime import SYSTEM
from kit.java import JavaProcess
from kit.killing import processes
from kit.shell import ROOT, Finished

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


TIMEOUT_S = 1200
IN_TASKS = """
import sys
from icekeep.cli import main
from icekeep.planning.spark import session as source

source.LIMITS = source.Limits(**dict.fromkeys(source.Limits.__struct_fields__, -1))

if __name__ == "__main__":
    sys.exit(main(job=sys.argv.pop(1)))
"""
"""A job of a given name, of which nothing is so little that the driver would do it by itself."""
SMALL = {
    "spark.driver.memory": "600m",
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


DRIVER_IS_HERE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class Events(msgspec.Struct, frozen=True):
    """What Spark has written down of an application, a dictionary an event, in their order."""

    events: tuple[dict[str, Any], ...]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["Event"] == f"SparkListener{kind}"]

    @property
    def task_counts(self) -> dict[str, int]:
        """How many tasks have ended well on each executor."""
        counts: dict[str, int] = {}
        for event in self.of("TaskEnd"):
            if event["Task End Reason"]["Reason"] == "Success":
                executor = event["Task Info"]["Executor ID"]
                counts[executor] = counts.get(executor, 0) + 1
        return counts


def zipped_package(directory: Path) -> Path:
    """The package for `--py-files`, as `make dist` zips it."""
    path = directory / "icekeep.zip"
    subprocess.run([sys.executable, f"{ROOT}/.ci/zip_package.py", str(path)], check=True)
    return path


class Submitter:
    """Somebody at a machine beside a cluster.

    Args:
        directory: where the configuration file and the job scripts lie, and from where jobs are submitted.
        catalog: the properties of the catalog `lake`.
        python: of the driver in client mode.
        arguments: of spark-submit, that bring icekeep to the executors.
        settings: of Spark.
        environment: more variables.
    """

    def __init__(
        self,
        directory: Path,
        catalog: Mapping[str, str],
        python: Path,
        arguments: tuple[str, ...],
        settings: Mapping[str, str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory, self._python = directory, python
        self.arguments, self.settings = arguments, dict(settings)
        self._more_environment = dict(environment or {})
        directory.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in catalog.items())
        (directory / "icekeep.yaml").write_text(f"catalogs:\n  lake:\n{lines}")
        shutil.copytree(ROOT / "jobs", directory / "jobs", dirs_exist_ok=True)
        (directory / "jobs" / "in_tasks.py").write_text(IN_TASKS)
        self._logs = directory / "events"
        self._logs.mkdir(exist_ok=True)

    @classmethod
    def with_zip(
        cls, directory: Path, catalog: Mapping[str, str], master: str, zipped: Path, python: Path
    ) -> "Submitter":
        """To nodes that have, at the same path, a Python with all packages but icekeep."""
        pythons = {"spark.pyspark.python": str(python), "spark.pyspark.driver.python": str(python)}
        return cls(directory, catalog, python, ("--master", master, "--py-files", str(zipped)), pythons)

    def command(
        self, job: str, *arguments: str, table: str, in_tasks: bool = False, settings: Mapping[str, str] | None = None
    ) -> list[str]:
        """The words of spark-submit.

        Args:
            in_tasks: whether Spark does what the driver would do by itself, as little as it is.
        """
        where = {} if "cluster" in self.arguments else DRIVER_IS_HERE
        given = {**SMALL, **where, "spark.eventLog.dir": self._logs.as_uri(), **self.settings, **(settings or {})}
        script = ["jobs/in_tasks.py", job] if in_tasks else [f"jobs/{job}.py"]
        return [
            *(f"{SPARK_HOME}/bin/spark-submit", *self.arguments),
            *(word for key, value in given.items() for word in ("--conf", f"{key}={value}")),
            *(*script, "--config", "icekeep.yaml", "--table", f"lake.{table}", "--output", "json", *arguments),
        ]

    def start(self, job: str, *arguments: str, table: str, **more: Any) -> "Submitted":
        """Submit a job, and do not wait for its end."""
        environment = {**node_environment(self._python), **self._more_environment}
        return Submitted(self.command(job, *arguments, table=table, **more), self.directory, environment)

    def run(self, job: str, *arguments: str, table: str, **more: Any) -> Finished:
        return self.start(job, *arguments, table=table, **more).finished()

    def events(self) -> Events:
        """Of the application that was submitted last, as far as it has come."""
        logs = [
            path for path in self._logs.rglob("*") if path.is_file() and not path.name.startswith(("appstatus", "."))
        ]
        if not logs:
            return Events(())
        lines = (
            max(logs, key=lambda path: path.stat().st_mtime_ns).read_text(errors="replace").splitlines(keepends=True)
        )
        return Events(tuple(json.loads(line) for line in lines if line.endswith("\n")))


class Submitted:
    """A spark-submit that runs."""

    def __init__(self, command: list[str], directory: Path, environment: Mapping[str, str]) -> None:
        self._out, self._err = directory / "stdout", directory / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=directory,
                env=dict(environment),
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill spark-submit's JVM and the Python below it, as a machine that is lost does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finished(self) -> Finished:
        try:
            status = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the job did not end; it said last:\n{self.said()[-4000:]}") from None
        return Finished(status, self._out.read_text(errors="replace"), self.said())

    def said(self) -> str:
        """What it has said on stderr so far."""
        return self._err.read_text(errors="replace")


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


CLUSTER = Path(__file__).with_name("java_yarn") / "Cluster.java"


class Yarn(SparkProcesses):
    """The cluster.

    Args:
        python: what the node has as `python3`.
        file_system: the default one, where applications lie before they start.
    """

    def __init__(self, python: Path, file_system: str, memory_mb: int = 4096) -> None:
        self._process = JavaProcess(
            "the YARN cluster",
            CLUSTER,
            *("{home}", file_system, str(memory_mb)),
            # Hadoop's jars lack what the ResourceManager logs by, and Spark's have it.
            jars=":".join(map(str, SPARK_HOME.glob("jars/log4j-[1ac]*.jar"))),
            environment=node_environment(python),
        )
        super().__init__(self._process.home)
        self.configuration = self._process.home / "conf"

    def settings(self) -> dict[str, str]:
        """What an application is told that need not bring Spark's jars."""
        return {"spark.yarn.jars": f"local:{SPARK_HOME}/jars/*", "spark.yarn.am.memory": "512m"}

    @property
    def rest(self) -> str:
        """Where its ResourceManager answers by REST what a scheduler asks."""
        return (self._process.home / "rest").read_text()

    def log(self, name: str) -> str:
        """What the containers of the last application have said, on `stdout` or `stderr`."""
        logs = sorted(self._process.home.glob(f"logs/application_*/container_*/{name}"))
        newest = [path for path in logs if path.parents[1] == logs[-1].parents[1]]
        return "\n".join(path.read_text(errors="replace") for path in newest)

    def close(self) -> None:
        self._process.close()


HDFS_CLUSTER = Path(__file__).with_name("java_hdfs") / "Cluster.java"


class Hdfs:
    """The cluster; `port` is the NameNode's. Whoever starts it is its superuser."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._process = JavaProcess("the HDFS cluster", HDFS_CLUSTER, "{home}/data")
        self.port = int(self._process.ready)

    @property
    def uri(self) -> str:
        """Of the root directory, without a slash at the end."""
        return f"hdfs://127.0.0.1:{self.port}"

    def new_root(self) -> str:
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
        self._process.close()
