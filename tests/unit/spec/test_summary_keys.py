import pytest

from icekeep.errors import UsageError
from icekeep.spec.snapshots import carried, checked_properties, is_reserved
from kit.cases import for_each


@for_each(
    "key",
    [
        "operation",
        "total-records",
        "added-dvs",
        "changed-partition-count",
        "manifests-kept",
        "partitions.day=2026-01-31",
        "engine-name",
        "app-id",
        "iceberg-version",
        "icekeep.run-id",
        "flink.job-id",
        "spark.app.id",
        "kafka.connect.offsets.x",
        "wap.id",
        "published-wap-id",
        "source-snapshot-id",
        "trino_query_id",
    ],
)
def test_keys_that_others_write_cannot_be_one_s_own(key):
    assert is_reserved(key)
    with pytest.raises(UsageError, match="cannot be a key of your own in a snapshot's summary"):
        checked_properties({key: "x"})


def test_other_keys_can():
    given = {"ticket": "OPS-7", "custom.watermark-ms": "", "owner": "größe"}
    assert dict(checked_properties(given)) == given


@for_each("given", [{"": "x"}, {" ": "x"}, {"a\nb": "x"}, {"a*": "x"}, {"a": 5}, {5: "x"}])
def test_what_is_no_key_or_value_is_refused(given):
    with pytest.raises(UsageError):
        checked_properties(given)


def test_keys_are_carried_by_name_or_by_what_they_begin_with():
    summary = {"pipeline-id": "1", "custom.a": "2", "custom": "3", "total-records": "4", "operation": "append"}
    assert carried(summary, ("pipeline-id", "custom.*")) == {"pipeline-id": "1", "custom.a": "2"}
    assert carried(summary, ("total-*", "to*")) == {}
    assert carried(summary, ("*",)) == {"pipeline-id": "1", "custom.a": "2", "custom": "3"}
    assert carried(summary, ()) == {}
