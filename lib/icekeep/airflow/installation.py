"""Where icekeep is in the machines that run Airflow's tasks, and the command lines that follow from it. Pure."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from icekeep.airflow.units import JobOnTable
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
