"""Delete files that reach no data file of a branch's head (214)."""

import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError
from icekeep.maintenance.check.entries import check_entries
from icekeep.maintenance.check.faults import Fault
from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import plan_repair, repair
from icekeep.spec.manifests.structs import DataFile
from kit.checked_entries import add_blindly, all_faults, checked, listed, put_files, subject_of
from kit.no_spark import no_spark
from kit.row_deletes import deletion_vector, equality_deletes, path_of, position_deletes
from kit.storage import HookedStorage
from kit.tables import BY_KIND, data_file, manifests_of, memory_table, set_ref


def table_of(version: int = 2) -> Table:
    """Two partitions with a file each, the second of them in the second snapshot."""
    table = memory_table(spec=BY_KIND, format_version=version, commit__manifest_merge__enabled="false")
    return add_blindly(add_blindly(table, data_file("a", partition=("a",))), data_file("b", partition=("b",)))


def found(table: Table, *deletes: DataFile) -> list[str]:
    tally = checked(put_files(add_blindly(table, deletes=deletes)))
    assert not tally.gaps()
    faults = all_faults(tally)
    assert {fault.number for fault in faults} <= {214}
    return [fault.where.rpartition("/")[2] for fault in faults]


@pytest.mark.parametrize("make", [position_deletes, equality_deletes])
def test_a_partition_without_data(make) -> None:  # type: ignore[no-untyped-def]
    here, elsewhere = make("here", partition=("a",)), make("elsewhere", partition=("c",))
    assert found(table_of(), here, elsewhere) == ["elsewhere"]


def test_equality_deletes_spare_what_comes_with_them_and_after() -> None:
    """Position deletes reach what comes with them."""
    table = add_blindly(
        table_of(),
        data_file("c", partition=("c",)),
        deletes=[equality_deletes("e", partition=("c",)), position_deletes("p", partition=("c",))],
    )
    assert found(add_blindly(table, data_file("d", partition=("c",)))) == ["e"]


def test_equality_deletes_of_an_unpartitioned_spec_reach_all_partitions() -> None:
    table = memory_table(commit__manifest_merge__enabled="false")
    table = add_blindly(table, deletes=[equality_deletes("early")])
    assert found(add_blindly(table, data_file("a")), equality_deletes("late")) == ["early"]


def test_a_vector_of_a_data_file_that_is_gone() -> None:
    vectors = [deletion_vector("v", "a", partition=("a",)), deletion_vector("w", "x", partition=("a",))]
    table = add_blindly(table_of(3), deletes=vectors)
    [fault] = all_faults(checked(put_files(table)))
    head = table.metadata.current_snapshot
    assert head is not None
    assert (fault.number, fault.where, fault.snapshot_id) == (214, path_of("w"), head.snapshot_id)
    assert (fault.facts["referenced_data_file"], fault.facts["content_offset"]) == (path_of("x"), 4)
    assert fault.facts["refs"] == ["main"]


def test_a_vector_that_is_older_than_its_data_file_is_a_fault() -> None:
    """Iceberg Java plans no scan of such a table."""
    table = add_blindly(table_of(3), deletes=[deletion_vector("v", "c", partition=("a",))])
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
    table = set_ref(table_of(), "side", table_of().metadata.snapshots[-1].snapshot_id, "branch")
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
def test_a_manifest_that_nobody_can_read_may_have_the_data_file(*, is_listed: bool) -> None:
    table = put_files(add_blindly(table_of(), deletes=[position_deletes("p", partition=("a",))]))
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
    table = put_files(add_blindly(table_of(), deletes=[position_deletes("p", partition=("a",))]))
    subject = subject_of(table)
    known = listed(table, subject.snapshots)
    wrong = {"min_sequence_number": 9} if number == 207 else {"partitions": known.manifests[1].partitions}
    rows = (replace(known.manifests[0], **wrong), *known.manifests[1:])
    subject.tally.add(Fault(number=number, where=rows[0].manifest_path, detail="it is wrong"))
    check_entries(subject, replace(known, manifests=rows))
    assert [fault.number for fault in all_faults(subject.tally)] == [number]
