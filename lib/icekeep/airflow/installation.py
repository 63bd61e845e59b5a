"""Where icekeep is in the machines that run Airflow's tasks, and the command lines that follow from it. Pure."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from icekeep.airflow.units import Call
from icekeep.policies.scheduling import DRY_RUN
from icekeep.runtime import SUBMITTER

SUBMITTED = Path(__file__).parent / "submitted" / "icekeep_job.py"
"""What spark-submit is given where icekeep is installed and not checked out."""


_VARIABLES = ("CONF", "PYTHON", "HOME", "RESULTS")


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything is, by paths that hold on every worker.

    Attributes:
        conf: the configuration file; `None` for the one that icekeep finds by itself.
        home: a checkout with `jobs/` and `lib/`; `None` where `python` has icekeep installed.
        python: the Python that runs jobs in the worker and asks which are due; its packages are those of icekeep.
        results: a directory that workers and the drivers of cluster mode both see, for results; `None` where there is none.
    """

    conf: str | None
    python: str
    home: str | None = None
    results: str | None = None

    @classmethod
    def of_variables(cls, environ: Mapping[str, str]) -> "Installation":
        """As ICEKEEP_CONF, ICEKEEP_PYTHON, ICEKEEP_HOME and ICEKEEP_RESULTS say; the Python is that of Airflow by default."""
        conf, python, home, results = (environ.get(f"ICEKEEP_{one}") or None for one in _VARIABLES)
        return cls(conf=conf, python=python or sys.executable, home=home, results=results)

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
    call: Call, policy: str | None, conf: str | None, result_file: Path | None, output: str = "table"
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
