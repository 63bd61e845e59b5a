import pytest

from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.errors import NotFoundError
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import RemoveSnapshots
from kit.changes import run
from kit.memory_catalog import LANDS_BUT_SAYS_CONFLICT, MemoryCatalog, after
from kit.tables import EVENTS, add, live, memory_table, swap


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    return add(add(memory_table(catalog), "a"), "b")


def table_file(snapshot_id, name="s"):
    return StatisticsFile(
        snapshot_id=snapshot_id,
        statistics_path=f"memory://lake/{name}.puffin",
        file_size_in_bytes=100,
        file_footer_size_in_bytes=10,
        blob_metadata=[{"type": "apache-datasketches-theta-v1", "fields": [1], "properties": {"ndv": "3"}}],
    )


def partition_file(snapshot_id, name="p"):
    return PartitionStatisticsFile(
        snapshot_id=snapshot_id, statistics_path=f"memory://lake/{name}.parquet", file_size_in_bytes=50
    )


KINDS = [
    pytest.param("removals", table_file, "statistics", id="table"),
    pytest.param("partition_removals", partition_file, "partition_statistics", id="partition"),
]


def ids(table):
    return [s.snapshot_id for s in table.metadata.snapshots]


def held(table, attribute):
    return {file.statistics_path.rsplit("/", 1)[-1].split(".")[0] for file in getattr(table.metadata, attribute)}


@pytest.mark.parametrize(("removals", "file", "attribute"), KINDS)
def test_each_snapshot_has_one_file_of_a_kind_and_a_new_one_takes_its_place(table, removals, file, attribute):
    first, second = ids(table)
    table = run(table, ChangeStatistics(updates=(file(first, "one"), file(second, "two")))).table
    assert held(table, attribute) == {"one", "two"}
    table = run(table, ChangeStatistics(updates=(file(second, "three"),))).table
    assert held(table, attribute) == {"one", "three"}
    assert {f.snapshot_id for f in getattr(table.metadata, attribute)} == {first, second}


@pytest.mark.parametrize(("removals", "file", "attribute"), KINDS)
def test_files_are_removed_by_snapshot_and_the_other_kind_is_left_alone(table, removals, file, attribute):
    first, second = ids(table)
    table = run(table, ChangeStatistics(updates=(table_file(first), table_file(second)))).table
    table = run(table, ChangeStatistics(updates=(partition_file(first), partition_file(second)))).table
    other = {"statistics": "partition_statistics", "partition_statistics": "statistics"}[attribute]
    after_ = run(table, ChangeStatistics(**{removals: (first,)})).table
    assert [f.snapshot_id for f in getattr(after_.metadata, attribute)] == [second]
    assert getattr(after_.metadata, other) == getattr(table.metadata, other)


@pytest.mark.parametrize(("removals", "file", "attribute"), KINDS)
def test_a_file_is_set_and_another_one_removed_in_one_commit(catalog, table, removals, file, attribute):
    first, second = ids(table)
    table = run(table, ChangeStatistics(updates=(file(first, "one"),))).table
    swaps = len(catalog.swaps)
    table = run(table, ChangeStatistics(updates=(file(second, "two"),), **{removals: (first,)})).table
    assert held(table, attribute) == {"two"}
    assert len(catalog.swaps) == swaps + 1


@pytest.mark.parametrize(("removals", "file", "attribute"), KINDS)
def test_what_is_as_it_should_be_is_nothing_to_do(table, removals, file, attribute):
    table = run(table, ChangeStatistics(updates=(file(ids(table)[0]),))).table
    assert not run(table, ChangeStatistics(updates=(file(ids(table)[0]),), **{removals: (ids(table)[1], 99)})).changed


@pytest.mark.parametrize(("removals", "file", "attribute"), KINDS)
def test_statistics_of_a_snapshot_that_expires_meanwhile_are_not_set(catalog, table, removals, file, attribute):
    catalog.follow(after(lambda: swap(table, RemoveSnapshots((ids(table)[0],)))))
    with pytest.raises(NotFoundError, match=f"no snapshot {ids(table)[0]}"):
        run(table, ChangeStatistics(updates=(file(ids(table)[0]),)))
    assert held(catalog.load(EVENTS), attribute) == set()


@pytest.mark.parametrize(("removals", "file", "attribute"), KINDS)
def test_statistics_are_set_beside_what_others_commit_and_once(catalog, table, removals, file, attribute):
    catalog.follow(after(lambda: add(table, "theirs")))
    result = run(table, ChangeStatistics(updates=(file(ids(table)[0]),)))
    assert live(result.table) == {"a": 1, "b": 1, "theirs": 1}
    catalog.follow(LANDS_BUT_SAYS_CONFLICT)
    result = run(table, ChangeStatistics(updates=(file(ids(table)[1], "two"),)))
    assert (held(result.table, attribute), len(getattr(result.table.metadata, attribute))) == (
        {"two", "s" if attribute == "statistics" else "p"},
        2,
    )
