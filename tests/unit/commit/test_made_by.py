import pytest

from icekeep.commit.made_by import made_by

COMMIT = "Apache Iceberg 1.9.0 (commit 7dbafb438ee1e68d0047bebcb587265d7d87d8a1)"


@pytest.mark.parametrize(
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
        ({"engine-name": "", "spark.app.id": ""}, "Spark"),
    ],
)
def test_who_made_a_snapshot_is_told_by_the_keys_of_its_summary(summary, expected):
    assert made_by(summary) == expected
