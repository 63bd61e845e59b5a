"""Who made a snapshot, by what the summary says: each engine leaves its name there in keys of its own.

Iceberg Java writes `engine-name`, `engine-version`, `app-id` and `iceberg-version` for whatever engine it works in (spec,
Appendix F "Optional Snapshot Summary Fields"), and so does icekeep; Spark, Flink, Trino, Presto and Kafka Connect have keys of
their own, and so has icekeep for its runs.
"""

from collections.abc import Mapping

from icekeep.commit.summary import COMMIT_ID
from icekeep.runs import Run, application_id, icekeep_version

JOB_KEY = "icekeep.job"
RUN_KEY = "icekeep.run-id"
POLICY_KEY = "icekeep.policy"
PLAN_KEY = "icekeep.plan"
_OLD_RUN_KEY = "icekeep.run"
"""In which `repair` named its runs before all jobs did so."""

_ENGINE_KEY, _ENGINE_VERSION_KEY, _APPLICATION_KEY = "engine-name", "engine-version", "app-id"
_OWN_NAME = "icekeep"
_OWN_PREFIX = "icekeep."
_KAFKA_PREFIX = "kafka.connect."
_ICEBERG = "Apache Iceberg "

_NAMES = {
    "spark": "Spark",
    "flink": "Flink",
    "trino": "Trino",
    "presto": "Presto",
    "hive": "Hive",
    "icekeep": "icekeep",
}

_RUNS = (
    ("spark.app.id", "Spark", "application"),
    ("trino_query_id", "Trino", "query"),
    ("presto_query_id", "Presto", "query"),
    ("flink.job-id", "Flink", "job"),
)
"""Keys that only one engine writes: whose they are, and what their value names."""


def maker_keys(run: Run | None) -> dict[str, str]:
    """What a snapshot of ours says of who made it; without a run it says of the job, the run and the policy nothing."""
    app_id = (run and run.app_id) or application_id()
    told = {
        _ENGINE_KEY: _OWN_NAME,
        _ENGINE_VERSION_KEY: icekeep_version(),
        _APPLICATION_KEY: app_id,
        JOB_KEY: run and run.job,
        RUN_KEY: run and run.run_id,
        POLICY_KEY: run and run.policy,
        PLAN_KEY: run and run.plan,
    }
    return {key: value for key, value in told.items() if value}


def run_of(summary: Mapping[str, str] | None) -> str:
    """The run of icekeep that made a snapshot; empty where it names none."""
    return (summary or {}).get(RUN_KEY) or (summary or {}).get(_OLD_RUN_KEY, "")


def made_by(summary: Mapping[str, str] | None) -> str | None:
    """The engine that made a snapshot, with its version and its run as far as it says so; `None` where nothing tells.

    >>> made_by({"engine-name": "spark", "engine-version": "3.5.5", "app-id": "a-1", "iceberg-version": "Apache Iceberg 1.9.0"})
    'Spark 3.5.5, application a-1, Iceberg 1.9.0'
    >>> made_by({"trino_query_id": "20260131_120000_00042_abcde"})
    'Trino, query 20260131_120000_00042_abcde'
    >>> made_by({"engine-name": "icekeep", "engine-version": "0.1.0", "icekeep.run-id": "compact-1", "icekeep.policy": "nightly"})
    'icekeep 0.1.0, run compact-1, policy nightly'
    """
    if not summary:
        return None
    engine = _engine(summary)
    # Others may keep what they found in a summary of ours.
    runs = _own_run(summary) if engine.startswith(_OWN_NAME) else [_run(summary)]
    found = (engine, *runs, _library(summary))
    return ", ".join(part for part in found if part) or None


def _engine(summary: Mapping[str, str]) -> str:
    name = summary.get(_ENGINE_KEY, "")
    if name:
        version = summary.get(_ENGINE_VERSION_KEY, "")
        return f"{_NAMES.get(name.lower(), name)} {version}".rstrip()
    for key, engine, _ in _RUNS:
        if key in summary:
            return engine
    if COMMIT_ID in summary or any(key.startswith(_OWN_PREFIX) for key in summary):
        return "icekeep"
    return "Kafka Connect" if any(key.startswith(_KAFKA_PREFIX) for key in summary) else ""


def _run(summary: Mapping[str, str]) -> str:
    for key, _, what in _RUNS:
        if summary.get(key):
            return f"{what} {summary[key]}"
    return f"application {summary[_APPLICATION_KEY]}" if summary.get(_APPLICATION_KEY) else ""


def _own_run(summary: Mapping[str, str]) -> list[str]:
    run, policy = run_of(summary), summary.get(POLICY_KEY)
    return [f"run {run}" if run else _run(summary), f"policy {policy}" if policy else ""]


def _library(summary: Mapping[str, str]) -> str:
    """The version of Iceberg Java, which adds the commit that it was built from."""
    text = summary.get("iceberg-version", "")
    return f"Iceberg {text.removeprefix(_ICEBERG).partition(' (commit')[0]}" if text else ""
