"""icekeep under Apache Airflow: DAGs from the policies of a configuration, and the operator that they are made of.

    from icekeep.airflow import dags

    globals().update(dags("/etc/icekeep/icekeep.yaml"))

An operator for each job, for DAGs of one's own, is here too:

    from icekeep.airflow import CompactOperator, ExpireSnapshotsOperator

Airflow imports this and reads the file often: neither needs Spark, Arrow, a catalog or the network. The jobs themselves run in
processes of their own, by spark-submit or by the Python that has icekeep (`installation.py`).
Each name is imported when it is first used, as Airflow asks for `get_provider_info` whatever it is about to do.
"""

from importlib import import_module
from typing import Any

_OPERATORS = "icekeep.airflow.job_operators"
_HOMES = {
    "JobOperator": _OPERATORS,
    "dags": "icekeep.airflow.factory",
    "MaintenanceOperator": "icekeep.airflow.operators",
    "TableDueSensor": "icekeep.airflow.due",
    "IcekeepHook": "icekeep.airflow.connections",
    "Installation": "icekeep.airflow.installation",
    "table_uri": "icekeep.airflow.provider",
}
"""Beside the operators of jobs, which are those that policies may ask for."""


def _operators() -> tuple[str, ...]:
    from icekeep.airflow.signatures import OFFERED, operator_name

    return tuple(map(operator_name, OFFERED))


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name) or (_OPERATORS if name.endswith("Operator") and name in _operators() else None)
    if home is None:
        raise AttributeError(f"module 'icekeep.airflow' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted((*_HOMES, *_operators()))
