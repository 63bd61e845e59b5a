"""Files that are live twice in one snapshot (212), two vectors of one data file (213), files that are data and deletes (306)."""

import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.maintenance.check.faults import Fault
from icekeep.maintenance.manifests.job import rewrite_manifests
from kit.checked_entries import add_blindly, all_faults, checked, put_files
from kit.limits import limited
from kit.no_spark import no_spark
from kit.row_deletes import add_deletes, deletion_vector, path_of, position_deletes
from kit.tables import add, data_file, entries_of, files, manifests_of, memory_table, set_ref

A, B = files("a", "b")


def table_of(version: int = 2) -> Table:
    """A table of two snapshots whose manifests stay as they are."""
    table = memory_table(format_version=version, commit__manifest_merge__enabled="false")
    return add_blindly(add_blindly(table, A), B)


def found(table: Table) -> list[Fault]:
    """Where a listing has all files, no more is looked at than what is wrong by itself."""
    return all_faults(checked(put_files(table), limited(no_spark, looked_up_files_count=0)))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_in_two_manifests_of_one_snapshot_is_doubled(version: int) -> None:
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


def test_a_file_twice_in_one_manifest_is_doubled() -> None:
    table = add_blindly(table_of(), data_file("c"), data_file("c"))
    [fault] = found(table)
    assert (fault.number, fault.where) == (212, path_of("c"))
    assert fault.facts["entries_count"] == 2
    assert len({entry["manifest"] for entry in fault.facts["entries"]}) == 1


@pytest.mark.parametrize(("old", "new"), [("/data/", "/./data/"), ("/data/", "//data/"), ("memory:", "MEMORY:")])
def test_a_file_is_doubled_however_it_is_spelled(old: str, new: str) -> None:
    table = add_blindly(table_of(), replace(A, file_path=A.file_path.replace(old, new)))
    [fault] = found(table)
    assert (fault.number, fault.where, fault.facts["entries_count"]) == (212, A.file_path, 2)
    assert "spelled" in fault.detail


def test_a_file_that_snapshots_have_in_other_manifests_each_is_not_doubled() -> None:
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


def test_vectors_of_one_puffin_file_differ_by_their_offset() -> None:
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


def test_a_vector_in_the_place_of_another_is_sound() -> None:
    table = add_deletes(table_of(3), deletion_vector("v", "a"), named=("a",))
    old = tuple(entry for entry in entries_of(table) if entry.data_file.content)
    table = add_deletes(table, deletion_vector("w", "a"), named=("a",), removed_deletes=old)
    assert not found(table)


def test_a_location_that_is_data_and_deletes() -> None:
    deletes = replace(position_deletes("p", "b"), file_path=A.file_path, file_size_in_bytes=A.file_size_in_bytes)
    table = add_blindly(table_of(), deletes=[deletes])
    [fault] = found(table)
    assert (fault.number, fault.where) == (306, A.file_path)
    assert fault.snapshot_id == table.metadata.snapshots[-1].snapshot_id
    assert fault.facts["snapshots_count"] == 1
    assert {entry["content"] for entry in fault.facts["entries"]} == {0, 1}


def test_a_location_that_is_data_in_one_branch_and_deletes_in_another() -> None:
    table = table_of()
    table = set_ref(table, "side", table.metadata.snapshots[0].snapshot_id, "branch")
    deletes = replace(position_deletes("p", "a"), file_path=B.file_path, file_size_in_bytes=B.file_size_in_bytes)
    [fault] = found(add_blindly(table, deletes=[deletes], branch="side"))
    assert (fault.number, fault.where, fault.facts["snapshots_count"]) == (306, B.file_path, 2)


def test_a_table_without_data_has_no_faults() -> None:
    assert not found(memory_table())
    assert not found(add(memory_table(), "a"))
