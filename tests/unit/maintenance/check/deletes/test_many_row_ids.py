"""Row ids of files of which only ranges are looked at, and ids that very many rows have (417)."""

import numpy as np
import pytest

from icekeep.maintenance.check import row_ids
from icekeep.spec.schema import ROW_ID, Schema
from icekeep.tables.verbs import append
from kit.cases import for_each
from kit.checked_deletes import SCHEMA, checked, damager, made, rows, with_files, written
from kit.written_deletes import data_files

WITH_IDS = Schema(fields=(*SCHEMA.fields, ROW_ID))


def stored(table, ids):
    return written(table, WITH_IDS, [{"id": 100 + n, "kind": "a", "_row_id": n} for n in ids])


def moved(table, *firsts):
    """Let the data manifests' row ids begin elsewhere, by the order in which they were added."""
    for row, first in zip(sorted(damager(table).rows(), key=lambda one: one["first_row_id"]), firsts, strict=True):
        damager(table).edit_row(row["manifest_path"], first_row_id=first)
    return table


@pytest.fixture
def by_ranges(monkeypatch):
    monkeypatch.setattr(row_ids._Head, "_check_rows", lambda *_: "they cannot be read")


def test_a_range_that_is_not_used_hides_no_other(by_ranges):
    table = made(3, range(5))
    table = with_files(table, stored(table, range(5, 45)))
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
    table = with_files(table, stored(table, [7] * 30_000), stored(table, [7] * 3))
    faults, _ = checked(table)
    assert held == [4]
    assert {fault.number for fault in faults} == {417}
    own = {(fault.where, fault.facts["other"]) for fault in faults}
    assert {where for where, other in own if where == other}
    assert len({path for pair in own for path in pair}) == 2


def test_two_rows_with_each_of_many_ids():
    table = made(3, range(2))
    table = with_files(table, stored(table, [2, 3, 4]), stored(table, [4, 3, 2]))
    [fault], _ = checked(table)
    assert fault.number == 417
    assert fault.where != fault.facts["other"]


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
