"""Where icekeep is in the machines that run Airflow's tasks, and its commands there, in processes beside a task. Pure."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from icekeep.airflow.calls import JobOnTable
from icekeep.airflow.outcomes import document_in
from icekeep.operations.runbooks import without_ending
from icekeep.policies.resolution import DRY_RUN
from icekeep.runtime import SUBMITTER
from icekeep.settings import CONFIG_VARIABLE

SUBMITTED = Path(__file__).parent / "submitted" / "icekeep_job.py"
"""What spark-submit is given where icekeep is installed and not checked out."""

_VARIABLES = {
    "conf": CONFIG_VARIABLE,
    "python": "ICEKEEP_PYTHON",
    "home": "ICEKEEP_HOME",
    "results": "ICEKEEP_RESULTS",
    "docs_url": "ICEKEEP_DOCS_URL",
    "report_url": "ICEKEEP_REPORT_URL",
}
"""By attribute of an `Installation`."""


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything is, by paths that hold on every worker.

    Attributes:
        conf: the configuration file; `None` for the one that icekeep finds by itself.
        home: a checkout with `jobs/` and `lib/`; `None` where `python` has icekeep installed.
        python: the Python that runs jobs in the worker and asks which are due; its packages are those of icekeep.
        results: a directory that workers and the drivers of cluster mode both see, for results; `None` where there is none.
        docs_url: where this documentation is published, for links to runbooks; `None` where it is not.
        report_url: where the page of `icekeep report` is published, for a link; `None` where it is not.
    """

    conf: str | None
    python: str
    home: str | None = None
    results: str | None = None
    docs_url: str | None = None
    report_url: str | None = None

    @classmethod
    def of_variables(cls, environ: Mapping[str, str]) -> "Installation":
        """As the variables ICEKEEP_CONFIG, ICEKEEP_PYTHON and so on say; the Python is that of Airflow by default."""
        given = {name: environ.get(variable) or None for name, variable in _VARIABLES.items()}
        python = given.pop("python") or sys.executable
        return cls(python=python, **given)

    @classmethod
    def of_worker(cls) -> "Installation":
        """As the variables of this process say."""
        return cls.of_variables(os.environ)

    def command(self, words: Sequence[str]) -> list[str]:
        """What runs a command of icekeep in the worker, without spark-submit; `environment` belongs to it."""
        return [self.python, "-P", "-m", "icekeep", *words]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of that process, from those of Airflow's: a checkout may not be installed.

        Where the task is killed hard Airflow begins it again, and so the process that it had started must commit nothing more.
        """
        known = {SUBMITTER: "parent", **environ}
        if self.home is None:
            return known
        paths = [str(Path(self.home) / "lib"), *filter(None, [environ.get("PYTHONPATH")])]
        return {**known, "PYTHONPATH": os.pathsep.join(paths)}

    def application(self, job: str) -> tuple[str, list[str]]:
        """The application that spark-submit is given for a job, and its first arguments."""
        return (str(SUBMITTED), [job]) if self.home is None else (str(Path(self.home) / "jobs" / f"{job}.py"), [])


def job_words(
    call: JobOnTable, policy: str | None, conf: str | None, result_file: Path | None, output: str = "table"
) -> list[str]:
    """The command line of a job after its name.

    Args:
        policy: whose job it is, and whose settings the job finds by itself when it begins: settings beside it would be somebody's
            own word, which has to be the policy's; `None` where somebody asks for it.
        conf: the configuration, as the job finds it; `None` for the one that it finds by itself.
        result_file: where the job writes what it has to say; `None` where nobody could read it.
    """
    asked = [*call.arguments]
    if policy is not None:
        asked = [*(word for word in call.arguments if word == DRY_RUN), f"--policy={policy}"]
    told = [] if result_file is None else [f"--result-file={result_file}"]
    config = [] if conf is None else [f"--config={conf}"]
    return [f"--table={call.table}", *config, *asked, f"--output={output}", *told]


PATIENCE_S = 45
"""How long a process that was asked to end may take: a job ends at once, but for a commit that is under way. Airflow kills the
task after a minute (`core.killed_task_cleanup_time`).
"""


class Worker:
    """One command; what it prints goes on line by line."""

    def __init__(self, installation: Installation, words: Sequence[str], say: Callable[[str], None]) -> None:
        self._installation, self._words, self._say = installation, words, say
        self._process: subprocess.Popen[str] | None = None

    def run(self, answer: Path | None = None) -> int:
        """Run it to its end and return its exit status, below 0 for a signal; whatever interrupts this ends the process.

        Args:
            answer: the file that gets what it prints on stdout; by default that goes on line by line as well.

        Raises:
            OSError: it cannot be started.
        """
        with nullcontext() if answer is None else answer.open("wb") as file:
            self._process = process = subprocess.Popen(
                self._installation.command(self._words),
                env=self._installation.environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if file is None else file,
                stderr=subprocess.STDOUT if file is None else subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        said = process.stdout or process.stderr
        assert said is not None
        try:
            with said as lines:
                for line in lines:
                    self._say(line.rstrip())
            return process.wait()
        finally:
            self.stop()

    def stop(self) -> None:
        """Ask the process to end, then kill what is left of it and of those that it has started."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_ERROR, _LOGGER = "icekeep: ", "icekeep"
_SAID_LENGTH_MAX = 2000
_APPLICATION = re.compile(r"\b(application_\d+_\d+)\b|spark-app-selector -> (spark-\w+)")
_ADDRESS = re.compile(r"(?:tracking URL: |SparkUI.* started at )(https?://[^\s,\"]+)")


class ProcessOutput:
    """What a process has said.

    Attributes:
        line: of its error, without the name of the program and where to read on, as documents have it.
        tail: its last lines.
        application: the id of its Spark application; empty where it has none, or says none.
        address: where that application is seen in a browser; empty where it does not say.
    """

    def __init__(self) -> None:
        self.line = self.tail = self.application = self.address = ""

    def look_at(self, line: str) -> None:
        """Keep a line, where it matters."""
        error = _error(line)
        if error is not None:
            self.line = error
        if match := _APPLICATION.search(line):
            self.application = match[1] or match[2]
        if match := _ADDRESS.search(line):
            self.address = match[1]
        self.tail = f"{self.tail}\n{line}"[-_SAID_LENGTH_MAX:]

    def looked_at(self, lines: Iterable[str]) -> Iterator[str]:
        """The same lines, each looked at."""
        for line in lines:
            self.look_at(line.strip())
            yield line


def _error(line: str) -> str | None:
    """What a line says that tells of the end of a command, in either form of its logs; `None` for any other line."""
    if line.startswith(_ERROR):
        return without_ending(line.removeprefix(_ERROR))
    if not line.startswith("{"):
        return None
    try:
        told = json.loads(line)
    except ValueError:
        return None
    is_end = (
        told.get("logger") == _LOGGER and told.get("level") == "error" and "exit_status" in (told.get("facts") or {})
    )
    return str(told.get("message", "")) if is_end else None


_LAST = 50
_KEPT = (
    *("run_id", "policy", "status", "snapshot_id_before", "snapshot_id_after"),
    *("metadata_location_before", "metadata_location_after"),
)


def recorded_document(
    installation: Installation, call: JobOnTable, application: str, directory: Path, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """What the record of runs has of a call that was a Spark application elsewhere, as the job's document with its exit status.

    Args:
        directory: for what `icekeep runs` writes.
        say: gets each line that it prints.
    """
    runs = partial(_runs, installation, directory / "runs.json", say)
    found = [
        one
        for one in runs(f"--table={call.table}", f"--job={call.job}", f"--last={_LAST}")
        if one.get("app_id") == application and one.get("exit_status") is not None
    ]
    if not found:
        return None
    whole = runs(f"--run={found[0]['run_id']}")
    return document_of(whole[0] if whole else found[0])


def _runs(installation: Installation, file: Path, say: Callable[[str], None], *words: str) -> list[Mapping[str, Any]]:
    file.unlink(missing_ok=True)
    config = [] if installation.conf is None else [f"--config={installation.conf}"]
    try:
        # The log of the task is no place for the runs of other days.
        Worker(installation, ["runs", *words, *config, f"--result-file={file}"], say).run(file.with_suffix(".txt"))
    except OSError:
        return []
    result = (document_in(file) or {}).get("result")
    return list(result.get("runs", ())) if isinstance(result, Mapping) else []


def document_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as the document that the job has printed, with its exit status.

    >>> document_of({"job": "compact", "table": "c.d.t", "status": "refused", "exit_status": 4, "error_kind": "safety"})
    {'job': 'compact', 'table': 'c.d.t', 'status': 'refused', 'error': {'kind': 'safety', 'message': None}, 'exit_status': 4}
    """
    document = {"job": record["job"], "table": record["table"]}
    document |= {key: record[key] for key in _KEPT if record.get(key) is not None}
    if record.get("error_kind") is not None:
        document["error"] = {"kind": record["error_kind"], "message": record.get("error_message")}
    if record.get("result") is not None:
        document["result"] = record["result"]
    return {**document, "exit_status": record.get("exit_status")}
