import pytest
from msgspec import structs

from icekeep import __version__, runs
from icekeep.commit.summary import made_by, producer_keys, run_of
from icekeep.runs import Run
from kit.cases import for_each

COMMIT = "Apache Iceberg 1.9.0 (commit 7dbafb438ee1e68d0047bebcb587265d7d87d8a1)"


@for_each(
    ("summary", "expected"),
    [
        (None, None),
        ({}, None),
        ({"operation": "append", "added-records": "3"}, None),
        ({"icekeep.commit-id": "5c0a"}, "icekeep"),
        ({"icekeep.job": "compact"}, "icekeep"),
        ({"spark.app.id": "local-1"}, "Spark, application local-1"),
        (
            {"engine-name": "spark", "engine-version": "3.5.5", "app-id": "a-1", "iceberg-version": COMMIT},
            "Spark 3.5.5, application a-1, Iceberg 1.9.0",
        ),
        # Iceberg's own library writes both; the application is told once.
        ({"engine-name": "spark", "app-id": "a-1", "spark.app.id": "a-1"}, "Spark, application a-1"),
        ({"trino_query_id": "2026_1", "trino_user": "ana"}, "Trino, query 2026_1"),
        ({"presto_query_id": "2026_2"}, "Presto, query 2026_2"),
        ({"flink.job-id": "77f", "flink.operator-id": "o1"}, "Flink, job 77f"),
        ({"kafka.connect.offsets.control-t.cg": "{}"}, "Kafka Connect"),
        ({"engine-name": "Dremio", "engine-version": "26.0"}, "Dremio 26.0"),
        ({"iceberg-version": COMMIT}, "Iceberg 1.9.0"),
        # Another engine that kept what it found in a summary of ours.
        ({"engine-name": "hive", "icekeep.commit-id": "5c0a"}, "Hive"),
        (
            {"engine-name": "hive", "icekeep.run-id": "compact-1", "icekeep.policy": "p", "app-id": "a"},
            "Hive, application a",
        ),
        ({"engine-name": "", "spark.app.id": ""}, "Spark"),
        ({"engine-name": "icekeep", "engine-version": "0.2.0", "app-id": "a-1"}, "icekeep 0.2.0, application a-1"),
        ({"engine-name": "icekeep", "icekeep.run-id": "compact-1", "app-id": "a-1"}, "icekeep, run compact-1"),
        ({"icekeep.job": "repair", "icekeep.run": "repair-1"}, "icekeep, run repair-1"),
        ({"icekeep.run-id": "compact-1", "icekeep.policy": "nightly"}, "icekeep, run compact-1, policy nightly"),
    ],
)
def test_who_made_a_snapshot_is_told_by_the_keys_of_its_summary(summary, expected):
    assert made_by(summary) == expected


def test_a_commit_of_a_run_says_who_made_it(monkeypatch):
    monkeypatch.setattr(runs._Application, "id", None)
    run = Run(run_id="compact-1", job="compact", policy="nightly", parent_id="maintain-1")
    own = {"engine-name": "icekeep", "engine-version": __version__}
    assert producer_keys(None) == own
    told = {**own, "icekeep.job": "compact", "icekeep.run-id": "compact-1", "icekeep.policy": "nightly"}
    assert producer_keys(run) == told
    runs.note_application("app-1")
    assert producer_keys(run) == {**told, "app-id": "app-1"}
    assert producer_keys(structs.replace(run, app_id="app-2"))["app-id"] == "app-2"


@pytest.mark.parametrize("key", ["icekeep.run-id", "icekeep.run"])
def test_the_run_is_told_under_its_name_and_the_one_that_repair_had(key):
    assert run_of({key: "repair-1"}) == "repair-1"
    assert run_of({}) == run_of(None) == ""
