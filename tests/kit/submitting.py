"""Jobs as an operator submits them to a cluster: from a machine with a Spark, an unpacked environment and the job scripts."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kit.shell import ROOT, Finished
from kit.spark_processes import SPARK_HOME, node_environment

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
        """The events of a kind, such as `TaskEnd`."""
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
        """Submit a job, and wait for its end."""
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
        """Wait for the end."""
        try:
            status = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the job did not end; it said last:\n{self.said()[-4000:]}") from None
        return Finished(status, self._out.read_text(errors="replace"), self.said())

    def said(self) -> str:
        """What it has said on stderr so far."""
        return self._err.read_text(errors="replace")
