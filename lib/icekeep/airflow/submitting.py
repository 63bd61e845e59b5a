"""What a configuration says of spark-submit, as arguments of Airflow's operator. Pure."""

from collections.abc import Mapping
from typing import Any

from icekeep.policies.values import Layer, Policy

_KEYS = ("connection", "deploy_mode", "py_files", "archives", "files")
_CONF = "spark_conf."


def submit_arguments(policy: Policy) -> dict[str, Any]:
    """How the jobs of a policy are submitted."""
    given = {key: getattr(policy, key) for key in _KEYS}
    return _arguments(given, dict(policy.spark_conf))


def arguments_of_defaults(defaults: Layer) -> dict[str, Any]:
    """How a job is submitted that no policy asks for."""
    given = {key: defaults.keys[key].value for key in _KEYS if key in defaults.keys}
    conf = {key.removeprefix(_CONF): one.value for key, one in defaults.keys.items() if key.startswith(_CONF)}
    return _arguments(given, conf)


def _arguments(given: Mapping[str, Any], conf: Mapping[str, str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {"conf": {**conf}}
    if given.get("connection"):
        arguments["conn_id"] = given["connection"]
    if given.get("deploy_mode"):
        arguments["deploy_mode"] = given["deploy_mode"]
    return arguments | {key: ",".join(given[key]) for key in ("py_files", "archives", "files") if given.get(key)}
