"""What position deletes a branch has, and which of them reach nothing: tables in memory, without Spark."""

from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.live_files import add as add_files
from icekeep.commit.live_files import live_manifests, remove
from icekeep.commit.retry import commit
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import InvalidTableError
from icekeep.formats.deletes.rewrite import LiveFile
from icekeep.maintenance.deletes.job import check_arguments, plan_rewrite_position_deletes
from icekeep.maintenance.deletes.live_rows import PositionDeletes, load_live_files, position_deletes
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions
from icekeep.maintenance.deletes.plan import plan
from icekeep.maintenance.options import parse_options
from icekeep.planning.scan.plan import open_scan
from icekeep.spec.manifests.structs import DataFile
from kit.deletes import AddDeleteFile, add_deletes, deletion_vector, equality_deletes, path_of
from kit.deletes import position_deletes as deletes_for
from kit.tables import BY_KIND, add, data_file, entries_of, memory_table, set_ref

NO_SPARK: Any = None
NO_STORAGE: Any = None


class RemoveData:
    """A change that removes data files and leaves all deletes where they are."""

    def __init__(self, *entries: Any) -> None:
        self.entries = entries

    def apply(self, base: Any, attempt: Attempt) -> Any:
        manifests = live_manifests(attempt, "main")
        kept = remove(manifests.data, attempt, as_read=self.entries)
        return attempt.snapshot_updates("delete", [*kept.manifests, *manifests.deletes], kept.summary)


class AddAgain:
    """A change that lists a data file once more, as no writer should."""

    def __init__(self, file: DataFile) -> None:
        self.file = file

    def apply(self, base: Any, attempt: Attempt) -> Any:
        summary = SummaryBuilder()
        manifests = live_manifests(attempt, "main")
        added = add_files([self.file], attempt, summary)
        return attempt.snapshot_updates("append", [*added, *manifests.data, *manifests.deletes], summary)


def without(table: Table, *names: str) -> Table:
    return commit(table, RemoveData(*entries_of(table, *names)), runtime=table.catalog.runtime).table


def found(table: Table, where: str = "true", branch: str = "main") -> PositionDeletes:
    return position_deletes(open_scan(table, where=where, ref=branch), NO_SPARK, "memory://plans")


def names(files: Any) -> list[str]:
    return [one.entry.data_file.file_path.rsplit("/", 1)[-1] for one in files]


def candidates(deletes: PositionDeletes) -> list[str]:
    return [name for some in deletes.by_partition.values() for name in names(one.read for one in some)]


def idle(deletes: PositionDeletes) -> list[str]:
    return [name for some in deletes.by_partition.values() for name in names(one.read for one in some if one.is_idle)]


def live_files(deletes: PositionDeletes) -> dict[str, LiveFile]:
    """The data files of the only partition in which a delete file may be for several, by name."""
    (parts,) = deletes.live.values()
    files = load_live_files(parts, NO_STORAGE)
    assert sum(part.files_count for part in parts) == len(files)
    return {name: file for name in "abcd" if (file := files.get(path_of(name))) is not None}


@pytest.fixture
def table() -> Table:
    """`a`, `b`, `c` (1), `p` of a and b (2), `q` of b alone (3), equality deletes (4)."""
    table = add(memory_table(), "a", "b", "c")
    table = add_deletes(table, deletes_for("p", "a", "b"), named=("a", "b"))
    table = add_deletes(table, deletes_for("q", "b", referenced_data_file=path_of("b")))
    return add_deletes(table, equality_deletes("e"))


def test_position_deletes_come_with_their_partitions_files(table):
    deletes = found(table)
    assert candidates(deletes) == ["p", "q"]
    assert live_files(deletes) == {name: LiveFile(1) for name in "abc"}
    assert deletes.dangling == ()
    (some,) = deletes.by_partition.values()
    assert [(one.lower, one.upper, one.is_idle) for one in some] == [
        (path_of("a"), path_of("b"), False),
        (path_of("b"), path_of("b"), False),
    ]
    assert [one.read.entry.sequence_number for one in some] == [2, 3]


def test_equal_path_bounds_make_deletes_file_scoped():
    table = add(memory_table(), "a", "b", "cut-1", "cut-2")
    for file in (*(deletes_for(f"p-{name}", name) for name in ("a", "cut", "gone")), deletes_for("w", "a", "b")):
        table = commit(table, AddDeleteFile(file), runtime=table.catalog.runtime).table
    deletes = found(table)
    (some,) = deletes.by_partition.values()
    assert [one.has_sole_path for one in some] == [True, False, False, False]
    assert [one.is_idle for one in some] == [False, False, True, False]
    # Any row may name any of them, if bounds are wrong.
    ((part,),) = deletes.live.values()
    assert part.files_count == 4


def test_deletes_of_a_removed_file_are_dangling(table):
    """Deletes that may be of other files are only idle, since their rows must say."""
    table = without(table, "a", "b")
    deletes = found(table)
    assert names(deletes.dangling) == ["q"]
    # That `p` is for none but `a` and `b` its rows must say; that `c` is not between them is known.
    assert candidates(deletes) == idle(deletes) == ["p"]
    everything = found(without(table, "c"))
    assert sorted(names(everything.dangling)) == ["p", "q"]


def test_deletes_older_than_all_partition_data_are_dangling(table):
    table = add(without(table, "a", "b", "c"), "a")
    assert sorted(names(found(table).dangling)) == ["p", "q"]


def test_vectors_are_no_candidates_but_known_of_their_data_files():
    table = add(memory_table(format_version=3), "a", "b")
    table = add_deletes(table, deletion_vector("v", "a"))
    assert candidates(found(table)) == []
    old = AddDeleteFile(deletes_for("p", "a", "b"))
    table = commit(table, old, runtime=table.catalog.runtime).table
    assert live_files(found(table)) == {"a": LiveFile(1, has_vector=True), "b": LiveFile(1)}
    assert names(found(without(table, "a")).dangling) == ["v"]


def test_file_scoped_deletes_ask_only_for_their_files():
    table = add(memory_table(), *(f"d{n}" for n in range(50)))
    only = [deletes_for(f"p{n}", f"d{n}", referenced_data_file=path_of(f"d{n}")) for n in range(3)]
    deletes = found(add_deletes(table, *only))
    assert (deletes.live, deletes.named) == ({}, {path_of(f"d{n}"): LiveFile(1) for n in range(3)})


def test_data_file_live_twice_is_refused(table):
    table = commit(table, AddAgain(data_file("c")), runtime=table.catalog.runtime).table
    with pytest.raises(InvalidTableError, match="live more than once"):
        found(table)


def test_a_filter_and_a_branch_choose():
    table = add(memory_table(spec=BY_KIND), *(data_file(k, partition=(k,)) for k in "xy"))
    for k, name in (("x", "p"), ("y", "q")):
        table = add_deletes(table, deletes_for(name, k, partition=(k,)), named=(k,))
    assert candidates(found(table, "kind = 'x'")) == ["p"]
    assert candidates(found(table, "kind = 'z'")) == []
    # A row of any partition may match.
    assert candidates(found(table, "id = 7")) == ["p", "q"]
    first = table.metadata.snapshots[1].snapshot_id
    table = set_ref(table, "early", first, "branch")
    assert candidates(found(table, branch="early")) == ["p"]


def test_delete_file_for_another_partition_is_refused():
    """apache/iceberg #16957: no reader can tell whether it applies."""
    table = add(memory_table(spec=BY_KIND), *(data_file(k, partition=(k,)) for k in "xy"))
    wrong = deletes_for("p", "x", partition=("y",), referenced_data_file=path_of("x"))
    table = commit(table, AddDeleteFile(wrong), runtime=table.catalog.runtime).table
    with pytest.raises(InvalidTableError, match="another partition spec or partition"):
        found(table)


def test_a_vector_that_names_no_data_file_is_refused():
    table = add(memory_table(format_version=3), "a")
    wrong = replace(deletion_vector("v", "a"), referenced_data_file=None)
    table = commit(table, AddDeleteFile(wrong), runtime=table.catalog.runtime).table
    with pytest.raises(InvalidTableError, match="does not say which data file"):
        found(table)


def test_the_preview_says_what_would_be_done(table):
    seen = plan_rewrite_position_deletes(table, NO_SPARK, options={"rewrite-all": "true"})
    assert (seen.becomes, seen.candidate_files_count, seen.rewritten_delete_files_count) == (
        "position delete files",
        2,
        2,
    )
    assert seen.rewritten_bytes_count == sum(
        entry.data_file.file_size_in_bytes for entry in entries_of(table, "p", "q")
    )
    assert [(group.partition, group.files_count, group.record_count) for group in seen.groups] == [("", 2, 3)]
    less = plan_rewrite_position_deletes(without(table, "b"), NO_SPARK)
    assert (less.removed_dangling_delete_files_count, less.rewritten_delete_files_count) == (1, 0)
    empty = plan_rewrite_position_deletes(memory_table(), NO_SPARK)
    assert (empty.snapshot_id, empty.groups) == (None, ())


def test_groups_are_numbered_and_name_their_partition():
    table = add(memory_table(spec=BY_KIND), *(data_file(k, partition=(k,)) for k in "xy"))
    for k, name in (("x", "p"), ("y", "q")):
        table = add_deletes(table, deletes_for(name, k, partition=(k,)), named=(k,))
    options = parse_options(RewritePositionDeletesOptions, {"rewrite-all": "true"})
    planned = plan(open_scan(table), NO_SPARK, options, branch="main", directory="memory://plans")
    assert [(group.number, group.partition) for group in planned.groups] == [(0, "kind=x"), (1, "kind=y")]


def test_arguments_are_checked_without_spark(table):
    check_arguments(table.metadata, options={"min-input-files": "2"}, where="true")


def test_bounds_of_other_columns_show_deleted_row_values():
    table = add(memory_table(), "a")
    plain = deletes_for("p", "a")
    valued = replace(deletes_for("q", "a"), lower_bounds={**(plain.lower_bounds or {}), 2147483545: bytes(8), 1: b"x"})
    unknown = replace(deletes_for("r", "a"), lower_bounds=None)
    for file in (plain, valued, unknown):
        table = commit(table, AddDeleteFile(file), runtime=table.catalog.runtime).table
    (some,) = found(table).by_partition.values()
    assert [(*names([one.read]), one.has_values) for one in some] == [("p", False), ("q", True), ("r", False)]


@pytest.mark.parametrize("only", [None, path_of("a")])
def test_deletes_of_the_adding_commit_reach_its_data_file(only):
    """Spec, "Scan Planning": the data sequence number of position deletes may be equal."""
    deletes = deletes_for("p", "a", referenced_data_file=only)
    change = RowDelta(added=(data_file("a"),), added_deletes=(deletes,), named=frozenset({path_of("a")}))
    table = memory_table()
    table = commit(table, change, runtime=table.catalog.runtime).table
    assert (candidates(found(table)), found(table).dangling) == (["p"], ())
