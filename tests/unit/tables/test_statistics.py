import pytest

from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.tables.verbs import drop_statistics
from kit.tables import add, memory_table


@pytest.fixture
def table():
    """Two snapshots, each with statistics of both kinds."""
    table = add(add(memory_table(), "a"), "b")
    for snapshot in table.metadata.snapshots:
        number = snapshot.snapshot_id
        of_table = StatisticsFile(
            snapshot_id=number,
            statistics_path=f"memory://lake/{number}.puffin",
            file_size_in_bytes=100,
            file_footer_size_in_bytes=10,
            blob_metadata=(),
        )
        of_partitions = PartitionStatisticsFile(
            snapshot_id=number, statistics_path=f"memory://lake/{number}.parquet", file_size_in_bytes=50
        )
        table = commit(table, ChangeStatistics(updates=(of_table,))).table
        table = commit(table, ChangeStatistics(updates=(of_partitions,))).table
    return table


def left(table):
    return [{one.snapshot_id for one in of} for of in (table.metadata.statistics, table.metadata.partition_statistics)]


def test_statistics_of_both_kinds_leave_the_current_snapshot_in_one_commit(table):
    first, second = (one.snapshot_id for one in table.metadata.snapshots)
    swaps = len(table.catalog.swaps)
    after = drop_statistics(table)
    assert left(after) == [{first}, {first}]
    assert len(table.catalog.swaps) == swaps + 1
    assert left(drop_statistics(after, first)) == [set(), set()]
    assert second == after.metadata.current_snapshot_id


def test_where_there_are_none_nothing_is_committed(table):
    after = drop_statistics(table)
    assert drop_statistics(after).metadata_location == after.metadata_location


def test_a_snapshot_that_is_not_there_is_not_found(table):
    with pytest.raises(NotFoundError, match="99"):
        drop_statistics(table, 99)
    with pytest.raises(NotFoundError, match="has no snapshot that could have statistics"):
        drop_statistics(memory_table())
