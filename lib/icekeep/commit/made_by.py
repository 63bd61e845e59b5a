"""Who made a snapshot, as far as its summary tells: engines name themselves each in keys of its own."""

from collections.abc import Mapping

_NAMED = (
    ("icekeep.job", "icekeep"),
    ("trino_query_id", "trino"),
    ("presto_query_id", "presto"),
    ("flink.job-id", "flink"),
    ("kafka.connect.commit-id", "kafka connect"),
    ("spark.app.id", "spark"),
    ("spark.sql.streaming.queryId", "spark streaming"),
    ("icekeep.run-id", "icekeep run"),
)
"""Keys that only one engine writes, and its name; the first that is there counts. What the key has follows the name."""


def made_by(summary: Mapping[str, str]) -> str | None:
    """The engine that made a snapshot, with its version or what it calls the work; `None` where the summary has nothing of it.

    >>> made_by({"engine-name": "spark", "engine-version": "3.5.1"}), made_by({"trino_query_id": "20240101_1_2_x"})
    ('spark 3.5.1', 'trino 20240101_1_2_x')
    """
    engine = summary.get("engine-name")
    if engine:
        return f"{engine} {summary.get('engine-version', '')}".rstrip()
    named = (f"{name} {summary[key]}" for key, name in _NAMED if summary.get(key))
    # Each commit of ours has its id, also where no job made it; PyIceberg and Iceberg Java tell their library at most.
    library = "icekeep" if "icekeep.commit-id" in summary else summary.get("iceberg-version") or None
    return next(named, library)
