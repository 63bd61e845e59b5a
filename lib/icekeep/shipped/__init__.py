"""The files that are installed with the package beside its modules: scripts of jobs, the file of Airflow's DAGs, configurations.

In a checkout the three folders here are links to those of the same names at the top, so that each file is there once. A wheel
and an sdist hold copies. The zip for `--py-files` has none of them. `conf/icekeep.yaml`, which a user of the checkout makes and
in which passwords may stand, is never one of them.
"""

from pathlib import Path

PATTERNS = (
    "airflow_dags/*.py",
    "conf/icekeep.example.yaml",
    "conf/log4j2-json.properties",
    "conf/log4j2.properties",
    "jobs/*.py",
)
"""What is shipped; `package-data` in pyproject.toml has the same patterns."""

LOG4J = "conf/log4j2.properties"
"""What Spark's JVM logs, as log4j reads it."""

_HOME = Path(__file__).parent


def shipped_files() -> tuple[str, ...]:
    """The names of the files, such as "jobs/compact.py", sorted; none where the package is imported from a zip."""
    return tuple(sorted(path.relative_to(_HOME).as_posix() for pattern in PATTERNS for path in _HOME.glob(pattern)))


def shipped_file(name: str) -> Path | None:
    """The absolute path of a file that is shipped under this name; `None` where there is none."""
    return (_HOME / name).absolute() if name in shipped_files() else None
