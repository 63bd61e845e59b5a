"""Row ids that two rows have, or that were never given (417)."""

import numpy as np
import pytest

from icekeep.commit.changes.snapshots import CreateRef
from icekeep.commit.retry import commit
from icekeep.maintenance.check import row_ids
from icekeep.spec.schema import ROW_ID, Schema
from icekeep.spec.snapshots import SnapshotRef
from icekeep.tables.verbs import append, upgrade_format_version
from kit.cases import for_each
from kit.checked_entries import SCHEMA, damager, made, one_fault, rows, with_files, written
from kit.checked_entries import checked_deletes as checked
from kit.deletes import data_files, delete_by_vector
from kit.runtime import no_spark

WITH_IDS = Schema(fields=(*SCHEMA.fields, ROW_ID))


def stored(table, *ids, file_format="PARQUET"):
    """A data file that stores row ids."""
    return written(table, WITH_IDS, [{"id": 100 + n, "kind": "a", "_row_id": n} for n in ids], file_format)


def first_file(table):
    return next(file for file in data_files(table) if file.record_count == 5)


@pytest.fixture
def by_ranges(monkeypatch):
    """Rows cannot be read."""
    monkeypatch.setattr(row_ids._Head, "_check_rows", lambda *_: "they cannot be read")


def numbers(table, spark=no_spark):
    return [fault.number for fault in checked(table, spark)[0]]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_sound_tables(version):
    faults, tally = checked(made(version))
    assert (faults, tally.gaps()) == ([], ())


@pytest.mark.parametrize("file_format", ["PARQUET", "ORC", "AVRO"])
def test_a_row_that_moves_keeps_its_id(file_format):
    table = made(3, range(5))
    moved = stored(table, 1, 3, file_format=file_format)
    table = delete_by_vector(table, first_file(table).file_path, [1, 3])
    faults, tally = checked(with_files(table, moved))
    assert (faults, tally.gaps()) == ([], ())


def test_a_row_that_is_there_twice():
    table = made(3, range(5))
    old = first_file(table)
    table = with_files(table, stored(table, 1, 3))
    fault = one_fault(table)
    assert fault.number == 417
    assert fault.snapshot_id == table.metadata.current_snapshot_id
    assert {fault.where, fault.facts["other"]} == {file.file_path for file in data_files(table)}
    assert old.file_path in fault.detail or old.file_path == fault.where
    assert (fault.facts["found"], fault.facts["spec_id"]) == (1, 0)


def test_a_stored_id_that_was_never_given():
    table = made(3, range(5))
    fault = one_fault(with_files(table, stored(table, 77)))
    assert (fault.number, fault.facts["found"], fault.facts["recorded"]) == (417, 77, 6)


def _overlapping(table):
    """The second manifest's ids begin within the first's."""
    row = max(damager(table).rows(), key=lambda one: one["first_row_id"])
    damager(table).edit_row(row["manifest_path"], first_row_id=row["first_row_id"] - 2)


def test_ranges_that_overlap_where_rows_are_many(by_ranges):
    table = made(3, range(5), range(5, 10), range(10, 12))
    assert numbers(table) == []
    _overlapping(table)
    [fault], tally = checked(table)
    assert fault.number == 417
    assert "those of" in fault.detail
    assert {fault.where, fault.facts["other"]} < {file.file_path for file in data_files(table)}
    assert [gap.what for gap in tally.gaps()] == ["row ids of branch 'main'"]


def test_a_file_that_stores_its_ids_may_overlap(by_ranges):
    table = made(3, range(5))
    table = with_files(table, stored(table, 3, 4))
    _overlapping(table)
    assert numbers(table) == []


def test_a_wide_range_overlaps_with_all_in_it(by_ranges):
    table = made(3, range(5), range(5, 6), range(6, 7))
    for row in sorted(damager(table).rows(), key=lambda one: one["first_row_id"])[1:]:
        damager(table).edit_row(row["manifest_path"], first_row_id=row["first_row_id"] - 4)
    faults, _ = checked(table)
    wide = first_file(table).file_path
    assert [fault.facts["other"] for fault in faults] == [wide, wide]


def test_a_range_that_ends_beyond_next_row_id():
    table = made(3, range(5))
    damager(table).edit_metadata(lambda document: document.update({"next-row-id": 4}))
    faults, _ = checked(table)
    assert {fault.number for fault in faults} == {417}
    assert {(fault.facts["recorded"], fault.facts["found"]) for fault in faults} == {(4, 5), (4, 4)}


def test_an_upgraded_table(by_ranges):
    """Its first list says nothing of row ids, the next one does."""
    table = upgrade_format_version(made(2, range(5)), 3)
    table = append(table, rows(range(5, 7)))
    assert [row["first_row_id"] for row in damager(table).rows()].count(None) == 0
    assert numbers(table) == []
    path = table.metadata.current_snapshot.manifest_list
    damager(table).edit_avro(path, lambda some: [row.update(first_row_id=0) for row in some])
    assert numbers(table) == [417]


def test_each_branch_is_looked_at():
    table = made(3, range(5))
    side = SnapshotRef(snapshot_id=table.metadata.current_snapshot_id, type="branch")
    table = commit(table, CreateRef("side", side), runtime=table.runtime).table
    table = append(table, rows(range(5, 7)), branch="side")
    _overlapping_head(table, "side")
    assert numbers(table) == [417]


def _overlapping_head(table, branch):
    path = table.metadata.head(branch).manifest_list
    damager(table).edit_avro(path, lambda some: [row.update(first_row_id=0) for row in some])


def test_rows_that_cannot_be_read_leave_a_gap():
    table = made(3, range(5), range(5, 10))
    path = first_file(table).file_path
    damager(table).write(path, b"\0" * 100)
    faults, tally = checked(table)
    assert faults == []
    assert [gap.what for gap in tally.gaps()] == ["row ids of branch 'main'"]
    assert "is damaged" in tally.gaps()[0].why


def test_too_many_files_leave_a_gap(monkeypatch):
    monkeypatch.setattr(row_ids, "BRANCH_FILES", 1)
    faults, tally = checked(made(3))
    assert faults == []
    assert [gap.why for gap in tally.gaps()] == ["there are more than 1 files"]


def moved(table, *firsts):
    """Let the data manifests' row ids begin elsewhere, by the order in which they were added."""
    for row, first in zip(sorted(damager(table).rows(), key=lambda one: one["first_row_id"]), firsts, strict=True):
        damager(table).edit_row(row["manifest_path"], first_row_id=first)
    return table


def test_a_range_that_is_not_used_hides_no_other(by_ranges):
    table = made(3, range(5))
    table = with_files(table, stored(table, *range(5, 45)))
    table = append(append(table, rows(range(5))), rows(range(5)))
    sound, tally = checked(table)
    assert (sound, len(tally.gaps())) == ([], 1)
    [fault], _ = checked(moved(table, 0, 5, 10, 13))
    assert (fault.number, fault.facts["found"]) == (417, 13)
    by_first = {file.first_row_id: file.file_path for file in data_files(table)}
    assert (fault.where, fault.facts["other"]) == (by_first[13], by_first[10])


def test_more_overlaps_than_are_looked_at_leave_a_gap(by_ranges, monkeypatch):
    monkeypatch.setattr(row_ids, "OVERLAPPING_FILES", 2)
    table = moved(made(3, range(5), range(5), range(5)), 0, 1, 2)
    faults, tally = checked(table)
    assert [fault.facts["found"] for fault in faults] == [1]
    assert any("3 files overlap" in gap.why for gap in tally.gaps())


def test_an_id_that_all_rows_have(monkeypatch):
    """What is held of them does not grow with the rows."""
    held = []
    tell = row_ids._Head._report_rows
    monkeypatch.setattr(
        row_ids._Head, "_report_rows", lambda self, places: (held.append(len(places)), tell(self, places))
    )
    table = made(3, range(5))
    table = with_files(table, stored(table, *[7] * 30_000), stored(table, *[7] * 3))
    faults, _ = checked(table)
    assert held == [4]
    assert {fault.number for fault in faults} == {417}
    own = {(fault.where, fault.facts["other"]) for fault in faults}
    assert {where for where, other in own if where == other}
    assert len({path for pair in own for path in pair}) == 2


@for_each("seed", range(20))
def test_runs_tell_what_ids_tell(seed):
    """Some id of each overlap, and none that only one row has."""
    random = np.random.default_rng(seed)
    starts = random.integers(0, 60, random.integers(1, 8)) + row_ids.PART_IDS - 30
    batches = [np.arange(start, start + random.integers(0, 12)) for start in starts]
    pairs = sorted(pair for ids in batches for pair in zip(*map(np.ndarray.tolist, row_ids.runs_of(ids)), strict=True))
    assert all(first // row_ids.PART_IDS == (end - 1) // row_ids.PART_IDS for first, end in pairs)
    ids, counts = np.unique(np.concatenate(batches), return_counts=True)
    some = [tuple(np.array(pairs[n : n + 3], np.int64).reshape(-1, 2).T) for n in range(0, len(pairs), 3)]
    again = {one for found in row_ids.wrong_ids(some, 1 << 40) for one in found.tolist()}
    assert again <= {*ids[counts > 1].tolist()}
    assert bool(again) is bool((counts > 1).any())
    high = int(ids.max(initial=0))
    assert {one for found in row_ids.wrong_ids(some, high) for one in found.tolist()} == again | (
        {high} if len(ids) else set()
    )
