"""Two snapshots that name one file of statistics: the entry that is wrong goes, and the other stays."""

import pytest

from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import repair
from kit.cases import Choices
from kit.checked_entries import put_files
from kit.damager import Damager
from kit.runtime import no_spark
from kit.tables import EVENTS, add, memory_table

ABSENT = 424_242
KINDS = pytest.mark.parametrize("kind", ["statistics", "partition-statistics"])


@pytest.fixture
def table():
    return put_files(add(add(memory_table(), "a"), "b"))


def entry(table, kind, snapshot_id, size=100):
    """An entry for the one file, which is there with a hundred bytes."""
    found = {
        "snapshot-id": snapshot_id,
        "statistics-path": f"{table.metadata.location}/metadata/shared.stats",
        "file-size-in-bytes": size,
    }
    return found | ({"file-footer-size-in-bytes": 10, "blob-metadata": []} if kind == "statistics" else {})


def named(table, kind, *entries):
    """The table with some entries of statistics."""
    damager = Damager(table.catalog, EVENTS, Choices(1))
    damager.write(entries[0]["statistics-path"], b"x" * 100)
    damager.edit_metadata(lambda document: document.update({kind: [*entries]}))
    return table.refresh()


def held(table, kind):
    """The snapshots that have statistics."""
    metadata = table.refresh().metadata
    files = metadata.statistics if kind == "statistics" else metadata.partition_statistics
    return [one.snapshot_id for one in files]


@KINDS
def test_statistics_of_a_snapshot_that_is_not_there_go_and_those_of_another_stay(table, kind):
    head = table.metadata.current_snapshot_id
    table = named(table, kind, entry(table, kind, head), entry(table, kind, ABSENT))
    assert [one.fault_id for one in check(table, no_spark).notices] == [124]
    result = repair(table, no_spark, fault=[124])
    assert [one.fault_id for one in result.mended] == [124]
    assert held(table, kind) == [head]


@KINDS
def test_statistics_whose_size_is_wrong_go_and_those_of_another_snapshot_stay(table, kind):
    first, second = (one.snapshot_id for one in table.metadata.snapshots)
    table = named(table, kind, entry(table, kind, first), entry(table, kind, second, size=99))
    result = repair(table, no_spark, fault=[304])
    assert [one.fault_id for one in result.mended] == [304]
    assert held(table, kind) == [first]
