"""Jobs as an operator runs them: processes, with a configuration file, on a real table."""

import io
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec

from icekeep import cli
from kit.lake import Lake

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


class Finished(msgspec.Struct, frozen=True):
    """A process that has ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The lines on standard error that icekeep wrote."""
        return "\n".join(line for line in self.err.splitlines() if line.startswith("icekeep: "))


def run_script(script: str, directory: Path, *arguments: str, timeout_s: int = 600) -> Finished:
    """Run a Python script that knows the package and the tests' own, in a process of its own.

    Args:
        directory: where it is put.
    """
    path = directory / "script.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}/tests:{ROOT}/lib", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


class Operator:
    """Somebody with a lake, a configuration file and a shell."""

    def __init__(self, directory: Path) -> None:
        self.lake = Lake(directory)
        self.conf = directory / "icekeep.yaml"
        lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in self.lake.properties.items())
        self.conf.write_text(f"catalogs:\n  local:\n{lines}")

    def environment(self, *, submit: bool = False) -> dict[str, str]:
        """Of a process; what is run by spark-submit has Spark as it is, whatever the tests set to be faster."""
        left_out = ("SPARK_HOME", "PYTHONPATH", *(("SPARK_CONF_DIR",) if submit else ()))
        kept = {k: v for k, v in os.environ.items() if k not in left_out}
        return {**kept, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}

    def program(self, command: str, *, submit: bool = False) -> list[str]:
        return (
            [str(BIN / "spark-submit"), "--master", "local[1]", f"{ROOT}/jobs/{command}.py"]
            if submit
            else [str(BIN / "icekeep"), command]
        )

    def command(self, job: str, *arguments: str, table: str = "db.events", submit: bool = False) -> list[str]:
        on = ("--conf", str(self.conf), "--catalog", "local", "--table", table)
        return [*self.program(job, submit=submit), *on, *arguments]

    def run(self, job: str, *arguments: str, table: str = "db.events", submit: bool = False) -> Finished:
        """Run a job on a table to its end."""
        return self._finished(self.command(job, *arguments, table=table, submit=submit), submit=submit)

    def icekeep(self, command: str, *words: str, submit: bool = False, **environment: str) -> Finished:
        """Run a command with the configuration, and nothing else, to its end."""
        whole = [*self.program(command, submit=submit), *words, "--conf", str(self.conf)]
        return self._finished(whole, submit=submit, **environment)

    def _finished(self, command: list[str], *, submit: bool, **environment: str) -> Finished:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**self.environment(submit=submit), **environment},
            cwd=self.conf.parent,
            timeout=300,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def run_here(self, job: str, *arguments: str, table: str = "db.events", catalog: str = "local") -> Finished:
        """Run a command, whose name may be two words, in this process: for what a process of its own would show no better."""
        return run_here(self.conf, job, *arguments, table=table, catalog=catalog)


def run_here(conf: Path, job: str, *arguments: str, table: str, catalog: str) -> Finished:
    """Run a command on a table of a configuration file in this process; its name may be two words."""
    words = [*job.split(), "--conf", str(conf), "--catalog", catalog, "--table", table, *arguments]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = cli.main(words)
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Finished(status, out.getvalue(), err.getvalue())


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


_NAMES = ("icekeep", "icekeep.events", "py.warnings", "opentelemetry", "openlineage", "thrift", "urllib3", "apprise")


@contextmanager
def restored_logging() -> Iterator[None]:
    """Put handlers, levels and hooks back at the end of the block."""
    before = {name: (logging.getLogger(name).level, logging.getLogger(name).propagate) for name in _NAMES}
    root, hook = [*logging.getLogger().handlers], threading.excepthook
    try:
        yield
    finally:
        logging.captureWarnings(False)
        threading.excepthook = hook
        logging.getLogger().handlers[:] = root
        for name, (level, propagate) in before.items():
            logging.getLogger(name).handlers.clear()
            logging.getLogger(name).setLevel(level)
            logging.getLogger(name).propagate = propagate
