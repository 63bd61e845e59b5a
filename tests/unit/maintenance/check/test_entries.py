"""Entries against each other and the store: files that are live twice, missing, of two kinds, and deletes that reach nothing."""

from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyroaring import BitMap

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import InvalidTableError, UnavailableError, UsageError
from icekeep.maintenance.check import by_file
from icekeep.maintenance.check import entries as comparing
from icekeep.maintenance.check.by_file import Membership
from icekeep.maintenance.check.entries import check_entries, doubled_keys, twice
from icekeep.maintenance.check.faults import Fault
from icekeep.maintenance.check.job import check
from icekeep.maintenance.check.lists import MOVED_ON
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.repair.job import plan_repair, repair
from icekeep.planning.spark.session import Engine, SparkSource
from icekeep.spec.evolution import AddPartitionField
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import RemoveSnapshots
from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import append, update_spec
from kit.cases import Choices, for_each
from kit.checked_entries import (
    Damaged,
    add_blindly,
    all_faults,
    checked,
    cut_file,
    exchange_here,
    expected,
    listed,
    put_files,
    remove_file,
    subject_of,
    told,
)
from kit.deletes import (
    data_files,
    delete_by_vector,
    delete_equal,
    delete_positions,
    deletion_vector,
    equality_deletes,
    path_of,
    position_deletes,
)
from kit.lake import Lake, events
from kit.runtime import limited, no_spark
from kit.storage import HookedStorage
from kit.tables import BY_KIND, add, data_file, files, manifests_of, memory_table, set_ref, swap

A, B = files("a", "b")


def table_of(version: int = 2) -> Table:
    """A table of two snapshots whose manifests stay as they are."""
    table = memory_table(format_version=version, commit__manifest_merge__enabled="false")
    return add_blindly(add_blindly(table, A), B)


def found(table: Table) -> list[Fault]:
    """Where a listing has all files, no more is looked at than what is wrong by itself."""
    return all_faults(checked(put_files(table), limited(no_spark, looked_up_files_count=0)))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_in_two_manifests(version: int) -> None:
    table = add_blindly(add_blindly(table_of(version), A), data_file("c"))
    [fault] = found(table)
    doubling = table.metadata.snapshots[2].snapshot_id
    assert (fault.number, fault.where, fault.snapshot_id) == (212, A.file_path, doubling)
    assert fault.facts["snapshots_count"] == 2
    manifests = {entry["manifest"] for entry in fault.facts["entries"]}
    assert len(manifests) == 2
    assert manifests < {manifest.manifest_path for manifest in manifests_of(table)}
    assert {(e["file_path"], e["spec_id"], e["content_offset"]) for e in fault.facts["entries"]} == {
        (A.file_path, 0, None)
    }
    assert {e["sequence_number"] for e in fault.facts["entries"]} == ({0} if version == 1 else {1, 3})


@pytest.mark.parametrize(("old", "new"), [("/data/", "/./data/"), ("/data/", "//data/"), ("memory:", "MEMORY:")])
def test_a_file_is_doubled_however_it_is_spelled(old: str, new: str) -> None:
    table = add_blindly(table_of(), replace(A, file_path=A.file_path.replace(old, new)))
    [fault] = found(table)
    assert (fault.number, fault.where, fault.facts["entries_count"]) == (212, A.file_path, 2)
    assert "spelled" in fault.detail


def test_rewritten_manifests_double_no_file() -> None:
    """Rewritten manifests have all files once more; so has one that comes back after it was deleted."""
    table = table_of()
    rewrite_manifests(table, no_spark)
    table = commit(table.refresh(), DeleteFiles(paths=frozenset({A.file_path})), runtime=table.runtime).table
    table = add_blindly(table, A)
    rewrite_manifests(table, no_spark)
    assert not found(table.refresh())


def test_a_branch_of_its_own_may_add_the_same_file() -> None:
    table = table_of()
    table = set_ref(table, "side", table.metadata.snapshots[1].snapshot_id, "branch")
    table = add_blindly(add_blindly(table, data_file("c"), branch="side"), data_file("c"))
    assert not found(table)
    # In a history that has both it is there twice.
    [fault] = found(add_blindly(table, data_file("c"), branch="side"))
    assert fault.where == path_of("c")


def test_only_what_is_looked_at_is_told() -> None:
    table = put_files(add_blindly(table_of(), A))
    table = set_ref(table, "early", table.metadata.snapshots[1].snapshot_id)
    assert not all_faults(checked(table, ref="early"))
    assert [fault.number for fault in all_faults(checked(table, ref="main"))] == [212]


def test_a_delete_file_twice_is_doubled() -> None:
    deletes = position_deletes("p", "a")
    table = add_blindly(add_blindly(table_of(), deletes=[deletes]), deletes=[deletes])
    assert [(fault.number, fault.where) for fault in found(table)] == [(212, path_of("p"))]


def test_vectors_of_one_puffin_file() -> None:
    vectors = [deletion_vector("v", "a", 4), deletion_vector("v", "b", 44)]
    table = add_blindly(table_of(3), deletes=vectors)
    assert not found(table)
    [fault] = found(add_blindly(table, deletes=vectors[1:]))
    assert (fault.number, fault.where, fault.facts["content_offset"]) == (212, path_of("v"), 44)
    assert fault.facts["entries_count"] == 2


def test_two_vectors_of_one_data_file() -> None:
    first, second = deletion_vector("v", "a"), deletion_vector("w", "a", 8)
    table = add_blindly(add_blindly(table_of(3), deletes=[first]), deletes=[second])
    [fault] = found(table)
    assert (fault.number, fault.where) == (213, A.file_path)
    assert fault.snapshot_id == table.metadata.snapshots[-1].snapshot_id
    told_of = {(e["file_path"], e["content_offset"]) for e in fault.facts["entries"]}
    assert told_of == {(path_of("v"), 4), (path_of("w"), 8)}
    assert fault.facts["referenced_data_file"] == A.file_path


def test_vectors_that_name_no_data_file_are_not_of_one() -> None:
    vectors = [deletion_vector(name, "a", referenced_data_file=None) for name in "vw"]
    assert not found(add_blindly(table_of(3), deletes=vectors))


def test_data_and_deletes() -> None:
    deletes = replace(position_deletes("p", "b"), file_path=A.file_path, file_size_in_bytes=A.file_size_in_bytes)
    table = add_blindly(table_of(), deletes=[deletes])
    [fault] = found(table)
    assert (fault.number, fault.where) == (306, A.file_path)
    assert fault.snapshot_id == table.metadata.snapshots[-1].snapshot_id
    assert fault.facts["snapshots_count"] == 1
    assert {entry["content"] for entry in fault.facts["entries"]} == {0, 1}


def test_data_and_deletes_in_two_branches() -> None:
    table = table_of()
    table = set_ref(table, "side", table.metadata.snapshots[0].snapshot_id, "branch")
    deletes = replace(position_deletes("p", "a"), file_path=B.file_path, file_size_in_bytes=B.file_size_in_bytes)
    [fault] = found(add_blindly(table, deletes=[deletes], branch="side"))
    assert (fault.number, fault.where, fault.facts["snapshots_count"]) == (306, B.file_path, 2)


def test_a_table_without_data_has_no_faults() -> None:
    assert not found(memory_table())
    assert not found(add(memory_table(), "a"))


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
def test_a_file_that_was_expired_meanwhile(table: Table, spark: SparkSource) -> None:
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


def test_a_table_that_was_dropped_meanwhile(table: Table) -> None:
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


def test_the_size_of_an_encrypted_file(table: Table) -> None:
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


@for_each("seed", range(20))
def test_doubled_keys(seed: int) -> None:
    chosen = Choices(seed)
    membership = Membership(
        (), tuple(range(8)), tuple(BitMap(chosen.sample(range(8), chosen.randint(0, 2))) for _ in range(6))
    )
    rows = [(chosen.randrange(-10, 10), chosen.randrange(6)) for _ in range(chosen.randrange(60))]
    sets = membership.snapshots_of
    slow = {
        key
        for (key, one), (other, two) in combinations(rows, 2)
        if key == other and (one == two or sets[one] & sets[two])
    }
    keys, manifests = (np.array([row[i] for row in rows], kind) for i, kind in ((0, np.int64), (1, np.int32)))
    assert doubled_keys(keys, manifests, membership).tolist() == sorted(slow)


@for_each("seed", range(5))
def test_each_manifest_has_the_snapshots_that_have_it(seed: int) -> None:
    chosen = Choices(seed)
    table = Damaged(seed).table
    subject = subject_of(table)
    known = listed(table, subject.snapshots)
    read = {one: some for one, some in known.members.items() if chosen.random() < 0.8}
    membership = Membership.of(subject.snapshots, replace(known, members=read))
    assert membership.snapshot_ids == tuple(one.snapshot_id for one in subject.snapshots)
    for number, positions in enumerate(membership.snapshots_of):
        assert {membership.snapshot_ids[position] for position in positions} == {
            one for one, some in read.items() if number in some
        }


def test_a_snapshot_is_told_that_has_two_of_several() -> None:
    sets = [BitMap([1, 2]), BitMap([2, 3]), BitMap([3, 5]), BitMap([4])]
    assert twice(sets) == BitMap([2, 3])
    assert twice([]) == BitMap()
    membership = Membership((), (10, 11, 12, 13, 14, 15), tuple(sets))
    assert membership.holding([{"manifest": 0}, {"manifest": 2}]) == BitMap([1, 2, 3, 5])
    assert (membership.oldest(BitMap([2, 3])), membership.oldest(BitMap())) == (12, None)


@pytest.fixture(params=["one by one", "by listing", "in parts", "in tasks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    if request.param == "in tasks":
        exchange_here(monkeypatch, by_file, comparing)
        return limited(no_spark, reachable_entries_count=-1, entries_count=-1)
    if request.param == "in parts":
        monkeypatch.setattr(comparing, "_PART_ROWS", 5)
    return limited(no_spark, looked_up_files_count=1_000 if request.param == "one by one" else 0)


@pytest.mark.parametrize("seed", [2, 5, 12, 13, 26, 29, 33])
def test_tables_that_are_damaged_by_lot(seed: int, way: Engine) -> None:
    """What is told agrees with a slow rule, and does not depend on the way."""
    table = Damaged(seed).table
    tally = checked(table, way)
    assert tally.gaps() == ()
    assert {key: count for key, count in told(tally).items() if key[0] != 214} == expected(table)
    assert all_faults(tally) == all_faults(checked(table))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_sound_table_has_no_faults(version: int, lake: Lake) -> None:
    table = lake.filled(commits=3, files=2, format_version=version)
    create_tag(table, "first", table.metadata.snapshots[0].snapshot_id)
    paths = [file.file_path for file in data_files(lake.load())]
    if version == 2:
        delete_positions(lake.load(), [(paths[0], 1), (paths[0], 3)])
    if version == 3:
        delete_by_vector(lake.load(), paths[0], [1])
        delete_by_vector(lake.load(), paths[1], [5])
        delete_by_vector(lake.load(), paths[0], [2])
    if version > 1:
        like = data_files(lake.load())[0]
        delete_equal(lake.load(), pa.table({"id": pa.array([1], pa.int64())}), ["id"], like=like)
    rewrite_manifests(lake.load(), no_spark)
    create_branch(lake.load(), "side")
    update_spec(lake.load(), [AddPartitionField("kind", "identity")])
    append(lake.load(), events(70), branch="side")
    append(lake.load(), events(80))
    for spark in (no_spark, limited(no_spark, looked_up_files_count=0)):
        tally = checked(lake.load(), spark)
        assert (all_faults(tally), tally.gaps()) == ([], ())


def test_a_file_that_goes_from_the_disk_is_missed(lake: Lake) -> None:
    table = lake.filled(commits=2, files=2)
    [path, *_] = sorted(path for path in lake.content_on_disk() if path.suffix == ".parquet")
    path.unlink()
    [fault] = all_faults(checked(table, limited(no_spark, looked_up_files_count=0)))
    assert (fault.number, fault.where.removeprefix("file://")) == (301, str(path))


def of_two_partitions(version: int = 2) -> Table:
    """Two partitions with a file each, the second of them in the second snapshot."""
    table = memory_table(spec=BY_KIND, format_version=version, commit__manifest_merge__enabled="false")
    return add_blindly(add_blindly(table, data_file("a", partition=("a",))), data_file("b", partition=("b",)))


def dangling(table: Table, *deletes: DataFile) -> list[str]:
    tally = checked(put_files(add_blindly(table, deletes=deletes)))
    assert not tally.gaps()
    faults = all_faults(tally)
    assert {fault.number for fault in faults} <= {214}
    return [fault.where.rpartition("/")[2] for fault in faults]


def test_equality_deletes_reach_older_files_only() -> None:
    """Position deletes reach what comes with them."""
    table = add_blindly(
        of_two_partitions(),
        data_file("c", partition=("c",)),
        deletes=[equality_deletes("e", partition=("c",)), position_deletes("p", partition=("c",))],
    )
    assert dangling(add_blindly(table, data_file("d", partition=("c",)))) == ["e"]


def test_global_equality_deletes() -> None:
    table = memory_table(commit__manifest_merge__enabled="false")
    table = add_blindly(table, deletes=[equality_deletes("early")])
    assert dangling(add_blindly(table, data_file("a")), equality_deletes("late")) == ["early"]


def test_a_vector_of_a_data_file_that_is_gone() -> None:
    vectors = [deletion_vector("v", "a", partition=("a",)), deletion_vector("w", "x", partition=("a",))]
    table = add_blindly(of_two_partitions(3), deletes=vectors)
    [fault] = all_faults(checked(put_files(table)))
    head = table.metadata.current_snapshot
    assert head is not None
    assert (fault.number, fault.where, fault.snapshot_id) == (214, path_of("w"), head.snapshot_id)
    assert (fault.facts["referenced_data_file"], fault.facts["content_offset"]) == (path_of("x"), 4)
    assert fault.facts["refs"] == ["main"]


def test_a_vector_older_than_its_data_file() -> None:
    """Iceberg Java plans no scan of such a table."""
    table = add_blindly(of_two_partitions(3), deletes=[deletion_vector("v", "c", partition=("a",))])
    table = put_files(add_blindly(table, data_file("c", partition=("a",))))
    [fault] = all_faults(checked(table))
    assert (fault.number, fault.where) == (235, path_of("v"))
    assert fault.detail == (
        f"its vector at 4 has sequence number 3, and its data file {path_of('c')!r}, which is live in branch 'main', "
        "the newer one 4"
    )
    assert check(table, no_spark).status == "faulty"
    result = repair(table, no_spark, fault=[235], approve=plan_repair(table, no_spark, fault=[235]).hash)
    assert [one.fault_id for one in result.mended] == [235]
    assert not all_faults(checked(table.refresh()))


def test_only_heads_of_branches_are_asked() -> None:
    """What dangles in one branch may reach a file in another; old snapshots and tags are nobody's concern."""
    table = set_ref(of_two_partitions(), "side", of_two_partitions().metadata.snapshots[-1].snapshot_id, "branch")
    table = add_blindly(table, data_file("c", partition=("c",)), branch="side")
    deletes = [position_deletes("p", partition=("c",))]
    table = add_blindly(add_blindly(table, deletes=deletes, branch="side"), deletes=deletes)
    table = set_ref(table, "late", table.metadata.snapshots[-1].snapshot_id, "branch")
    table = put_files(set_ref(table, "kept", table.metadata.snapshots[-1].snapshot_id))
    [fault] = all_faults(checked(table))
    assert (fault.where, fault.snapshot_id) == (path_of("p"), table.metadata.current_snapshot_id)
    assert fault.facts["refs"] == ["late", "main"]
    assert not all_faults(checked(table, ref="side"))
    # Data that comes later is not reached by it, but by deletes that come with it.
    here = data_file("d", partition=("c",))
    table = put_files(add_blindly(table, here, deletes=[position_deletes("q", partition=("c",))]))
    assert {(fault.where, *fault.facts["refs"]) for fault in all_faults(checked(table))} == {
        (path_of("p"), "late"),
        (path_of("p"), "main"),
    }


@pytest.mark.parametrize("is_listed", [True, False])
def test_an_unreadable_manifest_may_have_the_data_file(*, is_listed: bool) -> None:
    table = put_files(add_blindly(of_two_partitions(), deletes=[position_deletes("p", partition=("a",))]))
    broken = manifests_of(table)[0].manifest_path

    def before(operation: str, location: str) -> None:
        if operation == "read" and location == broken:
            raise InvalidTableError("it is cut off")

    table = replace(table, storage=HookedStorage(table.storage, before=before))  # type: ignore[arg-type]
    tally = checked(table, without=() if is_listed else {broken})
    assert not all_faults(tally)
    assert "which delete files of branch 'main' reach nothing" in [gap.what for gap in tally.gaps()]


@pytest.mark.parametrize("number", [206, 207])
def test_what_lists_say_wrongly_is_not_believed(number: int) -> None:
    """By a summary or number that is wrong no delete file is called dangling, which repair would take out."""
    table = put_files(add_blindly(of_two_partitions(), deletes=[position_deletes("p", partition=("a",))]))
    subject = subject_of(table)
    known = listed(table, subject.snapshots)
    wrong = {"min_sequence_number": 9} if number == 207 else {"partitions": known.manifests[1].partitions}
    rows = (replace(known.manifests[0], **wrong), *known.manifests[1:])
    subject.tally.add(Fault(number=number, where=rows[0].manifest_path, detail="it is wrong"))
    check_entries(subject, replace(known, manifests=rows))
    assert [fault.number for fault in all_faults(subject.tally)] == [number]
