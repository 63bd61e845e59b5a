"""The DAGs of the policies in conf/icekeep.yaml, one each, and one to run a job by hand: docs/airflow.md.

Where the folder of the DAGs is not next to `conf/` and `jobs/`, the variables ICEKEEP_CONFIG and ICEKEEP_HOME say where they
are. Where there is no `jobs/`, the installed icekeep is taken. ICEKEEP_PYTHON is the Python that has icekeep's packages, where
that is not Airflow's own.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

HOME = Path(os.environ.get("ICEKEEP_HOME") or Path(__file__).resolve().parents[1])
if find_spec("icekeep") is None:
    sys.path.insert(0, str(HOME / "lib"))

from icekeep.airflow import dags  # noqa: E402

globals().update(
    dags(
        os.environ.get("ICEKEEP_CONFIG") or HOME / "conf" / "icekeep.yaml",
        home=HOME if (HOME / "jobs").is_dir() else None,
        python=os.environ.get("ICEKEEP_PYTHON"),
        results=os.environ.get("ICEKEEP_RESULTS"),
    )
)
