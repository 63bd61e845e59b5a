"""Who made a snapshot, by what the summary says: each engine leaves its name there in keys of its own.

Iceberg Java writes `engine-name`, `engine-version`, `app-id` and `iceberg-version` for whatever engine it works in (spec,
Appendix F "Optional Snapshot Summary Fields"); Spark, Flink, Trino, Presto and Kafka Connect have keys of their own, and so has
icekeep.
"""

from collections.abc import Mapping

from icekeep.commit.summary import COMMIT_ID

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


def made_by(summary: Mapping[str, str] | None) -> str | None:
    """The engine that made a snapshot, with its version and its run as far as it says so; `None` where nothing tells.

    >>> made_by({"engine-name": "spark", "engine-version": "3.5.5", "app-id": "a-1", "iceberg-version": "Apache Iceberg 1.9.0"})
    'Spark 3.5.5, application a-1, Iceberg 1.9.0'
    >>> made_by({"trino_query_id": "20260131_120000_00042_abcde"})
    'Trino, query 20260131_120000_00042_abcde'
    """
    if not summary:
        return None
    found = (_engine(summary), _run(summary), _library(summary))
    return ", ".join(part for part in found if part) or None


def _engine(summary: Mapping[str, str]) -> str:
    name = summary.get("engine-name", "")
    if name:
        version = summary.get("engine-version", "")
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
    return f"application {summary['app-id']}" if summary.get("app-id") else ""


def _library(summary: Mapping[str, str]) -> str:
    """The version of Iceberg Java, which adds the commit that it was built from."""
    text = summary.get("iceberg-version", "")
    return f"Iceberg {text.removeprefix(_ICEBERG).partition(' (commit')[0]}" if text else ""
