"""Our DAGs in a real Airflow, which lives in an environment of its own."""

import json
import os
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kit.shell import BIN, ROOT
from kit.submitting import SPARK_HOME

PYTHON = ROOT / ".venv-airflow" / "bin" / "python"
DAGS = ROOT / "airflow_dags"
SAID = "airflow.log"
"""The file, in the home of an Airflow, of all that its last process has printed, logs of tasks with it."""

_TIMEOUT_S = 900


def look(home: Path, **environ: str) -> Any:
    """What Airflow sees of the DAGs in `airflow_dags`, of the example of a configuration; see `airflow_probe.py`."""
    told = {"PYTHONPATH": f"{_installed(home)}:{ROOT}/lib", "ICEKEEP_CONFIG": f"{ROOT}/conf/icekeep.example.yaml"}
    return _probe(home, {**told, **environ}, "look", str(DAGS))


def takes_schedules(home: Path, texts: list[str]) -> list[bool]:
    """Of each schedule whether a DAG of Airflow may have it."""
    taken: list[bool] = _probe(home, {}, "schedules", json.dumps(texts))
    return taken


def run(home: Path, conf: Path, runs: list[Any], own: str = "", **environ: str) -> Any:
    """What becomes of runs of the DAGs of a configuration, `[DAG, CONF]` each, one after the other.

    Their jobs run by the Python and the Spark of these tests. `own` is the text of a file of DAGs in place of ours.
    """
    dags = home / "dags"
    dags.mkdir()
    (dags / "maintenance.py").write_text(own or (DAGS / "maintenance.py").read_text())
    told = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}/lib",
        "SPARK_HOME": str(SPARK_HOME),
        "PYSPARK_PYTHON": str(BIN / "python"),
        "ICEKEEP_CONFIG": str(conf),
        "ICEKEEP_HOME": str(ROOT),
        "ICEKEEP_PYTHON": str(BIN / "python"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
    }
    return _probe(home, {**told, **environ}, "runs", str(dags), json.dumps(runs))


def connection(master: str, **extra: str) -> str:
    """A connection of Airflow's Spark provider."""
    return json.dumps({"conn_type": "spark", "host": master, "extra": extra})


def _probe(home: Path, environ: dict[str, str], *words: str) -> Any:
    if not PYTHON.exists():
        raise FileNotFoundError("there is no .venv-airflow; run `make airflow-env` first")
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("airflow_probe.py")), *words],
        env={
            "PATH": f"{home}:{os.environ['PATH']}",
            "HOME": str(home),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_SPARK_DEFAULT": connection("local[1]", **{"deploy-mode": "client"}),
            **environ,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    (home / SAID).write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def _installed(home: Path) -> Path:
    """What the installation of our wheel leaves for Airflow to find, without the packages that jobs need."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    found = home / "site" / f"icekeep-{version('icekeep')}.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: icekeep\nVersion: {version('icekeep')}\n")
    lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in of.items()) for group, of in points.items()]
    (found / "entry_points.txt").write_text("\n".join(lines))
    return found.parent
