"""What icekeep takes of Airflow, from where the installed version has it: 3 first, then 2.10 and 2.11."""

from datetime import timedelta
from typing import Any

try:
    from airflow.sdk import DAG, Asset, AssetAlias, BaseOperator, Param, task_group
except ImportError:  # Airflow 2
    from airflow import DAG
    from airflow.datasets import Dataset as Asset
    from airflow.datasets import DatasetAlias as AssetAlias
    from airflow.decorators import task_group
    from airflow.models.baseoperator import BaseOperator
    from airflow.models.param import Param

try:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowSensorTimeout,
        AirflowSkipException,
    )
except ImportError:  # the first releases of Airflow 3, and Airflow 2, have them in the old place
    from airflow.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout, AirflowSkipException

try:
    from airflow.sdk.bases.hook import BaseHook
except ImportError:
    from airflow.hooks.base import BaseHook

try:
    from airflow.sdk.bases.sensor import BaseSensorOperator, PokeReturnValue
except ImportError:
    from airflow.sensors.base import BaseSensorOperator, PokeReturnValue

try:
    from airflow.sdk.bases.operatorlink import BaseOperatorLink
except ImportError:
    from airflow.models.baseoperatorlink import BaseOperatorLink

from airflow.triggers.base import BaseTrigger, TriggerEvent

try:
    from airflow.sdk.log import mask_secret
except ImportError:
    from airflow.utils.log.secrets_masker import mask_secret

__all__ = [
    "DAG",
    "AirflowException",
    "AirflowFailException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "Asset",
    "AssetAlias",
    "BaseHook",
    "BaseOperator",
    "BaseOperatorLink",
    "BaseSensorOperator",
    "BaseTrigger",
    "Param",
    "PokeReturnValue",
    "TriggerEvent",
    "defers_by_default",
    "mask_secret",
    "states_of_run",
    "task_group",
    "trigger_after",
]


def defers_by_default() -> bool:
    """Whether operators that can be deferred are, where nobody says it of one: `[operators] default_deferrable`."""
    try:
        from airflow.sdk.configuration import conf
    except ImportError:
        from airflow.configuration import conf
    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))


def trigger_after(wait_s: float) -> Any:
    """What has a triggerer wait for some seconds."""
    # It takes a while to import, and only tasks that wait need it.
    try:
        from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
    except ImportError:
        from airflow.triggers.temporal import TimeDeltaTrigger
    return TimeDeltaTrigger(timedelta(seconds=wait_s))


def states_of_run(context: Any) -> dict[str, str]:
    """The state of each task instance of this run so far, by its name; an instance of a mapped task is `TASK_INDEX`."""
    instance, run = context["ti"], context["dag_run"]
    if hasattr(instance, "get_task_states"):
        states = instance.get_task_states(dag_id=run.dag_id, run_ids=[run.run_id]).get(run.run_id, {})
        return {name: str(getattr(state, "value", state)) for name, state in states.items()}
    return {
        one.task_id if one.map_index < 0 else f"{one.task_id}_{one.map_index}": str(one.state)
        for one in run.get_task_instances()
    }
