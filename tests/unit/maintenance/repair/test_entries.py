"""Faults of entries, lists and row ids, several in one run: what is in doubt stays."""

import math
from copy import deepcopy
from io import BytesIO
from struct import pack

import pyarrow.parquet as pq
import pytest

from icekeep.errors import InvalidTableError, SafetyError
from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import plan_repair, repair
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.types import DOUBLE, LONG
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import upgrade_format_version
from kit.cases import Choices
from kit.columns import column, schema_of
from kit.damage import spoil
from kit.damager import Damager, Place
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions
from kit.job_world import EVENTS, World
from kit.lake import events
from kit.naive_scan import live_entries
from kit.row_histories import in_memory
from kit.runtime import no_spark

pytestmark = pytest.mark.slow


def world_of(*numbers: int, version: int = 2) -> World:
    world = World(version)
    for number in numbers:
        world.append(number)
    return world


def damager(world: World) -> Damager:
    return Damager(world.catalog, EVENTS, Choices(1))


def faults_of(world: World) -> set[int]:
    found = check(world.table, no_spark, deep=True, ref="main")
    return {one.fault_id for one in (*found.faults, *found.notices)}


def with_two_vectors() -> tuple[World, str, Place]:
    """A table in which a data file has two vectors of one position, its location, and the entry of one of them."""
    world = world_of(1, 2, version=3)
    path = data_files(world.table)[0].file_path
    delete_by_vector(world.table, path, [0])
    spoilt = damager(world)
    place = spoilt.vector()
    other = place.file["file_path"] + "-2"
    world.memory.files[other] = world.memory.files[place.file["file_path"]]
    copied = deepcopy(place.entry)
    copied["data_file"]["file_path"] = other
    spoilt.edit_manifest(place.manifest, lambda entries: entries.append(copied))
    return world, path, place


@pytest.mark.parametrize("number", [231, 301, 302])
def test_changed_vector_waits_for_the_next_run(number):
    """A vector that a repair replaces is not described again in the same run."""
    world, path, place = with_two_vectors()
    spoilt = damager(world)
    if number == 301:
        del world.memory.files[path]
    elif number == 302:
        spoilt.edit_file(place, file_size_in_bytes=place.file["file_size_in_bytes"] + 1)
    else:
        spoilt.edit_file(place, sort_order_id=77)
    numbers = (213, number)
    first = repair(world.table, no_spark, fault=numbers, accept_loss=[path])
    assert {one.fault_id for one in first.mended} < {*numbers}
    assert any("in the same run" in one.reason for one in first.not_mended)
    repair(world.table, no_spark, fault=numbers, accept_loss=[path])
    assert not {*numbers} & faults_of(world)


def test_equality_deletes_with_different_columns_are_left():
    world = world_of(1, 2)
    delete_equal(world.table, events(1, 5).slice(0, 1), ["id"])
    spoilt = damager(world)
    [place] = spoilt.entries(2)
    other = deepcopy(place.entry)
    [known] = place.file["equality_ids"]
    other["data_file"]["equality_ids"] = [known + 1]
    spoilt.edit_manifest(place.manifest, lambda entries: entries.append(other))
    result = repair(world.table, no_spark, fault=[212], accept_loss=[place.file["file_path"]])
    assert result.mended == ()
    assert "differ in the columns that they compare" in result.not_mended[0].reason


def test_position_deletes_with_different_paths_are_left():
    world = world_of(1, 2)
    delete_positions(world.table, [(data_files(world.table)[0].file_path, 0)])
    spoilt = damager(world)
    [place] = spoilt.entries(1)
    other = deepcopy(place.entry)
    for one in other["data_file"]["upper_bounds"]:
        one["value"] += b"z"
    spoilt.edit_manifest(place.manifest, lambda entries: entries.append(other))
    result = repair(world.table, no_spark, fault=[212], accept_loss=[place.file["file_path"]])
    assert result.mended == ()
    assert "differ in the paths that they may name" in result.not_mended[0].reason


def another_file(world: World) -> None:
    """Another file of as many rows, of another size and with other values, has taken the place of the first one."""
    first, second = (file.file_path for file in data_files(world.table))
    data = BytesIO()
    pq.write_table(pq.read_table(BytesIO(world.memory.files[second][0])), data, compression="none")
    world.memory.files[first] = (data.getvalue(), 0)


def test_size_of_a_file_with_other_values_is_not_taken_alone():
    """Its rows would be read, and pruned by the bounds of the file that was there."""
    world = world_of(1, 2)
    another_file(world)
    assert {302, 405} <= faults_of(world)
    state = world.state()
    result = repair(world.table, no_spark, fault=[302])
    assert "repair fault 405 too" in result.not_mended[0].reason
    assert world.state() == state


def test_a_size_is_taken_over_with_its_bounds():
    world = world_of(1, 2)
    another_file(world)
    plan = plan_repair(world.table, no_spark, fault=[302, 405])
    result = repair(world.table, no_spark, fault=[302, 405], approve=plan.hash)
    assert {one.fault_id for one in result.mended} == {302, 405}
    assert result.not_mended == ()
    assert faults_of(world) == set()
    assert len(live_entries(world.table)) == 2
    assert all(entry.data_file.content is FileContent.DATA for entry in live_entries(world.table))


def test_no_commit_numbers_rows_by_wrong_counts():
    """After an upgrade the next commit gives row ids to what has none: by 205 two rows would have one id."""
    world = world_of(1, 2)
    upgrade_format_version(world.table, 3)
    spoilt = damager(world)
    place = next(spoilt.entries(0))
    spoilt.edit_manifest(place.manifest, lambda entries: entries[0]["data_file"].update(sort_order_id=77))
    for row in spoilt.rows():
        if row["manifest_path"] != place.manifest:
            spoilt.edit_row(row["manifest_path"], added_rows_count=1)
    assert {205, 231} <= faults_of(world)
    state = world.state()
    with pytest.raises(SafetyError, match="repair faults 204 and 205 first"):
        repair(world.table, no_spark, fault=[231])
    assert world.state() == state
    assert {one.fault_id for one in repair(world.table, no_spark, fault=[205, 231]).mended} == {205, 231}
    assert faults_of(world) == set()
    assert sorted(entry.data_file.first_row_id for entry in live_entries(world.table)) == [0, 5]


def test_fault_of_only_an_older_snapshot_is_left():
    world = world_of(1, 2)
    first = world.table.metadata.snapshots[0].manifest_list
    damager(world).edit_avro(first, lambda rows: rows[0].update(added_rows_count=77))
    result = repair(world.table, no_spark, fault=[205])
    assert (result.status, result.mended) == ("done", ())
    [left] = result.not_mended
    assert (left.is_only_older, left.snapshot_id) == (True, world.table.metadata.snapshots[0].snapshot_id)
    assert "it goes with its expiration" in left.reason


def test_totals_of_a_branch_that_cannot_be_read():
    world = world_of(1)
    create_branch(world.table, "audit")
    world.append(2)
    spoilt = damager(world)
    spoilt.edit_metadata(
        lambda document: [one["summary"].update({"total-records": "99"}) for one in document["snapshots"]]
    )
    del world.memory.files[world.table.metadata.head("audit").manifest_list]
    result = repair(world.table, no_spark, fault=[215])
    assert [one.branch for one in result.mended] == ["main"]
    assert result.status == "partial"
    assert "the head of branch 'audit' cannot be read" in result.not_mended[0].reason


@pytest.mark.parametrize("number", [205, 231])
def test_inherited_wrong_sequence_number_is_not_written(number):
    world = world_of(1, 2)
    spoilt = damager(world)
    place = next(spoilt.entries(0))
    if number == 231:
        spoilt.edit_manifest(place.manifest, lambda entries: entries[0]["data_file"].update(sort_order_id=77))
        spoilt.edit_row(place.manifest, sequence_number=99)
    else:
        spoilt.edit_row(place.manifest, sequence_number=99, added_rows_count=77)
    assert {208, number} <= faults_of(world)
    state = world.state()
    result = repair(world.table, no_spark, fault=[number])
    assert "see fault 208" in result.not_mended[0].reason
    assert world.state() == state


def test_what_is_written_of_a_column_is_told_with_what_was_there():
    world = world_of(1, 2)
    some = damager(world)
    place = some.entry(where=lambda file: file.get("null_value_counts"))
    counts = [{**item, "value": 77} if item["key"] == 1 else item for item in place.file["null_value_counts"]]
    some.edit_file(place, null_value_counts=counts)
    [mend] = plan_repair(world.table, no_spark, fault=[406]).mends
    assert mend.action == "null_value_counts of column 1: 0 in place of 77"


SCHEMA = schema_of(column(1, "id", LONG, required=True), column(2, "score", DOUBLE))


@pytest.mark.parametrize(("number", "version"), [(302, 1), (302, 2), (302, 3), (402, 2), (407, 2)])
def test_an_entry_of_a_partition_of_nan_is_repaired(number, version):
    """NaN is not equal to itself, and an entry that was read again has another one."""
    by = in_memory()
    by.create(SCHEMA, [("score", "identity")], version)
    by.append([{"id": n, "score": math.nan} for n in range(4)], "PARQUET")
    rows = by.rows()
    spoil(by.catalog, by.identifier, 1, number)
    result = repair(by.table, no_spark, fault=[number])
    assert [one.fault_id for one in result.mended] == [number]
    assert check(by.table, no_spark, deep=True, ref="main").faults == ()
    assert by.rows() == rows


TOTALS, NEXT_ROW_ID = 215, 128
TOO_LOW = "next-row-id is too low, and a new snapshot would give out row ids twice: repair fault 128 first"


@pytest.fixture
def world() -> World:
    world = World(3)
    for number in range(3):
        world.append(number)
    spoil(world.catalog, EVENTS, 1, TOTALS, NEXT_ROW_ID)
    return world


def test_nothing_is_committed_while_the_next_row_id_is_too_low(world):
    before = world.table.metadata_location
    result = repair(world.table, no_spark, fault=[TOTALS])
    assert [(one.fault_id, one.reason) for one in result.not_mended] == [(TOTALS, TOO_LOW)]
    assert world.table.metadata_location == before


def test_no_other_change_adds_a_snapshot_either(world):
    before = world.table.metadata_location
    with pytest.raises(
        InvalidTableError, match=r"next-row-id \d+, and row ids up to \d+ .*`icekeep repair --table NAME --fault 128`"
    ):
        world.append(9)
    assert world.table.metadata_location == before


def test_it_is_raised_before_anything_else_is_committed(world):
    rows_count = sum(int(s.added_rows or 0) for s in world.table.metadata.snapshots)
    result = repair(world.table, no_spark, fault=[TOTALS, NEXT_ROW_ID])
    assert {one.fault_id for one in result.mended} == {TOTALS, NEXT_ROW_ID}
    assert result.not_mended == ()
    head = world.table.metadata.current_snapshot
    assert head is not None
    assert head.first_row_id == rows_count


def test_where_a_catalog_cannot_raise_it_nothing_is_committed(world):
    world.catalog.compares_metadata = False
    before = world.table.metadata_location
    result = repair(world.table, no_spark, fault=[TOTALS, NEXT_ROW_ID])
    assert result.mended == ()
    assert {one.fault_id: one.reason for one in result.not_mended}[TOTALS] == TOO_LOW
    assert world.table.metadata_location == before


def all_faults_of(world: World) -> set[int]:
    found = check(world.table, no_spark, ref="main")
    return {one.fault_id for one in (*found.faults, *found.notices)}


def with_a_dangling_delete(number: int) -> World:
    """A table with deletes of positions and of values, and with one more that really reaches nothing."""
    world = World(2, partition_by=[("id", "bucket[2]")] if number == 206 else ())
    world.append(1)
    world.append(2)
    file = data_files(world.table)[0]
    delete_positions(world.table, [(file.file_path, 0)])
    delete_equal(world.table, events(1, 5).slice(1, 1), ["id"], like=file if number == 206 else None)
    spoilt = damager(world)
    place = next(spoilt.entries(1))
    other = deepcopy(place.entry)
    other["data_file"]["file_path"] += "-2"
    other["data_file"]["referenced_data_file"] += "-gone"
    world.memory.files[other["data_file"]["file_path"]] = world.memory.files[place.file["file_path"]]
    spoilt.edit_manifest(place.manifest, lambda entries: entries.append(other))
    return world


def spoil_rows(world: World, number: int) -> None:
    """Spoil what the list says of the data manifests."""
    spoilt = damager(world)
    for row in [row for row in spoilt.rows() if row["content"] == 0]:
        path = row["manifest_path"]
        if number == 204:
            spoilt.edit_row(path, added_files_count=0, existing_files_count=0)
        elif number == 207:
            spoilt.edit_row(path, min_sequence_number=99)
        else:
            summaries = deepcopy(row["partitions"])
            for one in summaries:
                one["lower_bound"] = one["upper_bound"] = pack("<i", 7)
            spoilt.edit_row(path, partitions=summaries)


@pytest.mark.parametrize("number", [204, 206, 207])
def test_dangling_deletes_stay_while_a_list_is_wrong(number):
    """By 204 whole data manifests would be left out of the new list, as such that hold nothing."""
    world = with_a_dangling_delete(number)
    rows, entries = world.rows(), len(live_entries(world.table))
    spoil_rows(world, number)
    assert {214, number} <= all_faults_of(world)
    state = world.state()
    result = repair(world.table, no_spark, fault=[214])
    assert result.mended == ()
    assert f"repair {number} first" in result.not_mended[0].reason
    assert world.state() == state
    repair(world.table, no_spark, fault=[number])
    repair(world.table, no_spark, fault=[214])
    assert not {214, number} & all_faults_of(world)
    assert world.rows() == rows
    assert len(live_entries(world.table)) == entries - 1
