from typing import Any

import pytest

from icekeep.errors import InvalidTableError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import (
    AddEncryptionKey,
    RemoveEncryptionKey,
    RemovePartitionStatistics,
    RemoveStatistics,
    SetPartitionStatistics,
    SetStatistics,
    Update,
    apply_updates,
)
from kit.metadata import START_MS, MetadataBuilder

BASE = MetadataBuilder().commits(2).build()


def apply(base: TableMetadata, *updates: Update) -> TableMetadata:
    return apply_updates(base, updates, now_ms=START_MS)


def statistics(snapshot_id: int, path: str) -> StatisticsFile:
    return StatisticsFile(
        snapshot_id=snapshot_id, statistics_path=path, file_size_in_bytes=1, file_footer_size_in_bytes=1
    )


def partition_statistics(snapshot_id: int, path: str) -> PartitionStatisticsFile:
    return PartitionStatisticsFile(snapshot_id=snapshot_id, statistics_path=path, file_size_in_bytes=1)


@pytest.mark.parametrize(
    ("make", "put", "take", "attribute"),
    [
        (statistics, SetStatistics, RemoveStatistics, "statistics"),
        (partition_statistics, SetPartitionStatistics, RemovePartitionStatistics, "partition_statistics"),
    ],
)
def test_a_snapshot_has_one_statistics_file_of_a_kind(make: Any, put: Any, take: Any, attribute: str):
    base = apply(BASE, put(make(1, "a")), put(make(2, "b")))
    assert getattr(base, attribute) == (make(1, "a"), make(2, "b"))
    assert getattr(apply(base, put(make(1, "c"))), attribute) == (make(2, "b"), make(1, "c"))
    assert getattr(apply(base, take(1)), attribute) == (make(2, "b"),)
    assert getattr(apply(base, take(9)), attribute) == getattr(base, attribute)


def test_keys_are_added_once_and_removed():
    key = {"key-id": "k1", "encrypted-key-metadata": "AAAA", "extra": {"x": 1}}
    base = apply(BASE, AddEncryptionKey(key))
    assert base.encryption_keys == (key,)
    assert apply(base, AddEncryptionKey({**key, "encrypted-key-metadata": "BBBB"})).encryption_keys == (key,)
    assert apply(base, RemoveEncryptionKey("k1")).encryption_keys == ()
    assert apply(base, RemoveEncryptionKey("k2")).encryption_keys == (key,)


def test_a_key_has_an_id():
    with pytest.raises(InvalidTableError, match="key-id None; it must be text"):
        apply(BASE, AddEncryptionKey({}))


def test_updates_have_the_names_of_the_rest_protocol():
    names = [
        (SetStatistics, "set-statistics"), (RemoveStatistics, "remove-statistics"),
        (SetPartitionStatistics, "set-partition-statistics"),
        (RemovePartitionStatistics, "remove-partition-statistics"),
        (AddEncryptionKey, "add-encryption-key"), (RemoveEncryptionKey, "remove-encryption-key"),
    ]  # fmt: skip
    assert [(cls, cls.__struct_config__.tag) for cls, _ in names] == names
