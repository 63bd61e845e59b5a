"""Files that storage does not have, or has with another size (301 to 304), and what others do meanwhile."""

from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import InvalidTableError, UnavailableError, UsageError
from icekeep.maintenance.check.lists import MOVED_ON
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import RemoveSnapshots
from kit.checked_entries import add_blindly, all_faults, checked, cut_file, put_files, remove_file
from kit.limits import limited
from kit.no_spark import no_spark
from kit.row_deletes import deletion_vector, equality_deletes, path_of
from kit.storage import HookedStorage
from kit.tables import data_file, manifests_of, memory_table, swap

BY_LISTING = limited(no_spark, looked_up_files_count=0)
WAYS = pytest.mark.parametrize("spark", [no_spark, BY_LISTING], ids=["one-by-one", "by-listing"])


@pytest.fixture
def table() -> Table:
    """Three data files of two snapshots, equality deletes and two vectors; all of them are there."""
    table = memory_table(format_version=3, commit__manifest_merge__enabled="false")
    table = add_blindly(add_blindly(table, data_file("a"), data_file("b")), data_file("c"))
    vectors = [deletion_vector("v", "a", 4), deletion_vector("v", "b", 44)]
    return put_files(add_blindly(add_blindly(table, deletes=[equality_deletes("e")]), deletes=vectors))


def hooked(table: Table, **hooks: Any) -> Table:
    return replace(table, storage=HookedStorage(table.storage, **hooks))  # type: ignore[arg-type]


@WAYS
def test_all_is_there(table: Table, spark: SparkSource) -> None:
    tally = checked(table, spark)
    assert (all_faults(tally), tally.gaps()) == ([], ())


@WAYS
@pytest.mark.parametrize(
    ("name", "number", "snapshot", "holding", "entries"),
    [("c", 301, 1, 3, 1), ("e", 303, 2, 2, 1), ("v", 303, 3, 1, 2)],
)
def test_a_file_that_is_gone(
    table: Table, spark: SparkSource, name: str, number: int, snapshot: int, holding: int, entries: int
) -> None:
    remove_file(table, path_of(name))
    [fault] = all_faults(checked(table, spark))
    assert (fault.number, fault.where) == (number, path_of(name))
    assert fault.snapshot_id == table.metadata.snapshots[snapshot].snapshot_id
    assert (fault.facts["snapshots_count"], fault.facts["entries_count"]) == (holding, entries)
    assert fault.facts["manifest"] in {manifest.manifest_path for manifest in manifests_of(table)}


@WAYS
def test_a_file_of_another_size(table: Table, spark: SparkSource) -> None:
    cut_file(table, path_of("b"))
    [fault] = all_faults(checked(table, spark))
    assert (fault.number, fault.where) == (302, path_of("b"))
    assert (fault.facts["recorded"], fault.facts["found"]) == (100, 101)


@WAYS
def test_an_old_snapshot_keeps_its_files(table: Table, spark: SparkSource) -> None:
    """A file that no head has is needed as long as its snapshot is there."""
    change = DeleteFiles(paths=frozenset({path_of("a")}))
    table = commit(table, change, runtime=table.runtime).table
    remove_file(table, path_of("a"))
    [fault] = all_faults(checked(table, spark))
    assert (fault.where, fault.facts["snapshots_count"]) == (path_of("a"), 4)
    assert not all_faults(checked(table, spark, ref="main"))


def test_a_listing_asks_for_no_file_that_it_has(table: Table) -> None:
    table = hooked(table)
    storage: Any = table.storage
    checked(table, BY_LISTING)
    assert storage.fired["head"] == 0 < storage.fired["list_share"]
    checked(table, no_spark)
    assert storage.fired["head"] == 5


def test_files_beside_the_listing_are_looked_up(table: Table) -> None:
    far = replace(data_file("far"), file_path="memory://other/place/far")
    near = replace(data_file("near"), file_path=path_of("near").replace("/data/", "//data/"))
    table = hooked(put_files(add_blindly(table, far, near)))
    assert not all_faults(checked(table, BY_LISTING))
    storage: Any = table.storage
    assert storage.fired["head"] == 1
    remove_file(table, far.file_path)
    assert [fault.where for fault in all_faults(checked(table, BY_LISTING))] == [far.file_path]


def test_a_directory_of_metadata_alone_is_not_listed() -> None:
    table = memory_table(write__metadata__path="memory://lake/elsewhere")
    table = put_files(add_blindly(table, data_file("a")))
    asked: list[str] = []
    checked(hooked(table, before=lambda operation, location: asked.append(f"{operation} {location}")), BY_LISTING)
    assert {one for one in asked if one.startswith("list_share")} == {f"list_share {table.metadata.location}"}


@pytest.mark.parametrize("limit", ["reachable_entries_count", "listed_files_count"])
def test_many_files_are_for_tasks(table: Table, limit: str) -> None:
    with pytest.raises(AssertionError, match="Spark was started"):
        checked(table, limited(no_spark, **{limit: 3}))


def test_a_listing_that_is_behind_is_no_fault(table: Table) -> None:
    table = hooked(table, before=_denies("list_share"))
    tally = checked(table, BY_LISTING)
    assert (all_faults(tally), tally.gaps()) == ([], ())


def test_a_file_that_nobody_may_look_at_is_a_gap(table: Table) -> None:
    table = hooked(table, before=_denies("head"))
    tally = checked(table)
    assert not all_faults(tally)
    assert tally.gaps_count == 5
    assert "denied" in tally.gaps()[0].why


def test_a_store_out_of_reach_ends_the_check(table: Table) -> None:
    def fail(operation: str, location: str) -> None:
        if operation == "head":
            raise UnavailableError("the store is down")

    with pytest.raises(UnavailableError, match="down"):
        checked(hooked(table, before=fail))


@WAYS
def test_a_file_whose_snapshots_were_expired_meanwhile_is_a_gap(table: Table, spark: SparkSource) -> None:
    """The commit comes before its files go: the table is loaded again after they were missed."""
    change = DeleteFiles(paths=frozenset({path_of("a"), path_of("c")}))
    table = commit(table, change, runtime=table.runtime).table
    old = [snapshot.snapshot_id for snapshot in table.metadata.snapshots[:-1]]
    swap(table, RemoveSnapshots((old[0], *old[2:])))
    remove_file(table, path_of("a"))
    remove_file(table, path_of("b"))
    # One snapshot with `a` is left; `c` is there no more than in it.
    tally = checked(table, spark)
    assert [fault.where for fault in all_faults(tally)] == [path_of("a"), path_of("b")]
    swap(table, RemoveSnapshots((old[1],)))
    tally = checked(table, spark)
    assert [fault.where for fault in all_faults(tally)] == [path_of("b")]
    assert [(gap.what, gap.why) for gap in tally.gaps()] == [(f"file {path_of('a')!r}", MOVED_ON)]


def test_a_table_that_was_dropped_meanwhile_has_no_faults(table: Table) -> None:
    remove_file(table, path_of("a"))
    table.catalog.drop(table.identifier)
    tally = checked(table)
    assert (all_faults(tally), tally.gaps_count) == ([], 1)


def test_a_manifest_that_cannot_be_read_is_a_gap(table: Table) -> None:
    """Its neighbours are read all the same."""
    broken = next(m.manifest_path for m in manifests_of(table) if m.added_files_count == 1 and not m.content)
    for name in "abc":
        remove_file(table, path_of(name))

    def before(operation: str, location: str) -> None:
        if operation == "read" and location == broken:
            raise InvalidTableError("it is cut off")

    tally = checked(hooked(table, before=before))
    assert [fault.where for fault in all_faults(tally)] == [path_of("a"), path_of("b")]
    assert (f"the files of manifest {broken!r}", "it is cut off") in [(gap.what, gap.why) for gap in tally.gaps()]


@pytest.mark.parametrize("path", ["data/relative", ""])
def test_a_path_that_is_no_location_is_a_gap(table: Table, path: str) -> None:
    table = add_blindly(table, replace(data_file("x"), file_path=path))
    tally = checked(table)
    assert not all_faults(tally)
    assert [gap.what for gap in tally.gaps()] == [f"file {path!r}"]


def test_the_size_of_an_encrypted_file_is_not_held_against_it(table: Table) -> None:
    table = put_files(add_blindly(table, replace(data_file("x"), key_metadata=b"k")))
    cut_file(table, path_of("x"))
    tally = checked(table)
    assert not all_faults(tally)
    assert ["encrypted" in gap.why for gap in tally.gaps()] == [True]


@pytest.mark.parametrize("kind", ["statistics", "partition-statistics"])
def test_statistics_files(table: Table, kind: str) -> None:
    """Those of a snapshot that is not looked at are left alone."""
    head, path = table.metadata.current_snapshot, path_of("stats").replace("/data/", "/metadata/")
    assert head is not None
    change: Any
    if kind == "statistics":
        file = StatisticsFile(
            snapshot_id=head.snapshot_id, statistics_path=path, file_size_in_bytes=7, file_footer_size_in_bytes=3
        )
        change = ChangeStatistics(updates=(file,))
    else:
        one = PartitionStatisticsFile(snapshot_id=head.snapshot_id, statistics_path=path, file_size_in_bytes=7)
        change = ChangeStatistics(updates=(one,))
    before, table = table, commit(table, change, runtime=table.runtime).table
    [fault] = all_faults(checked(table))
    assert (fault.number, fault.where, fault.snapshot_id) == (304, path, head.snapshot_id)
    assert fault.facts == {"kind": kind, "file_path": path, "recorded": 7, "found": None, "snapshots_count": 1}
    table.storage.create(path, bytes(8))
    [fault] = all_faults(checked(table))
    assert (fault.number, fault.facts["found"]) == (304, 8)
    table.storage.delete_many([path])
    table.storage.create(path, bytes(7))
    assert not all_faults(checked(table))
    assert not all_faults(checked(before))


def test_statistics_that_went_meanwhile_are_a_gap(table: Table) -> None:
    head = table.metadata.snapshots[0]
    file = StatisticsFile(
        snapshot_id=head.snapshot_id, statistics_path=path_of("s"), file_size_in_bytes=7, file_footer_size_in_bytes=3
    )
    table = commit(table, ChangeStatistics(updates=(file,)), runtime=table.runtime).table
    commit(table, ChangeStatistics(removals=(head.snapshot_id,)), runtime=table.runtime)
    tally = checked(table)
    assert (all_faults(tally), [gap.why for gap in tally.gaps()]) == ([], [MOVED_ON])
    other = checked(table, ref="main")
    assert (all_faults(other), other.gaps()) == ([], ())


def _denies(denied: str) -> Any:
    def before(operation: str, location: str) -> None:
        if operation == denied:
            raise UsageError(f"access to {location!r} is denied")

    return before
