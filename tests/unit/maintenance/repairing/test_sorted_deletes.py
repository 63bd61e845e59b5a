"""Position delete files whose rows are not in order: new ones take their places, and the same rows are deleted."""

import io

import pyarrow.parquet as pq
import pytest
from pyarrow import Table as Rows

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.formats.deletes import read as files
from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.delete_files import read_deletes
from icekeep.spec.manifests.structs import FileContent
from icekeep.tables.verbs import append, upgrade_format_version
from kit.cases import scaled, seeds
from kit.choices import Choices
from kit.damager import POSITION_DELETES, Damager
from kit.lost_lists import mended_by, some_rows
from kit.naive_scan import live_entries, naive_rows
from kit.no_spark import no_spark
from kit.our_histories import ByIcekeep, in_memory
from kit.row_histories import SPECS, START, History, steps_of
from kit.row_texts import scanned_rows
from kit.written_deletes import data_files, position_delete_files

pytestmark = pytest.mark.slow

UNSORTED = 412
KINDS = ("append", "positions", "positions", "spec", "column")


@pytest.fixture
def backwards(monkeypatch):
    """Delete files are written from the last row to the first, until it is called."""
    real = files.sorted_once

    def reverse(rows: Rows) -> Rows:
        rows = real(rows)
        return rows.take([*range(rows.num_rows)][::-1])

    monkeypatch.setattr(files, "sorted_once", reverse)
    return monkeypatch.undo


def deletes(by: ByIcekeep):
    found = [e for e in live_entries(by.table) if e.data_file.content is FileContent.POSITION_DELETES]
    return sorted(
        found, key=lambda entry: (entry.sequence_number, entry.data_file.record_count, repr(entry.data_file.partition))
    )


def said_of(entries):
    """What readers go by."""
    return [
        (
            e.sequence_number,
            e.data_file.spec_id,
            e.data_file.partition,
            e.data_file.referenced_data_file,
            e.data_file.record_count,
        )
        for e in entries
    ]


def unsorted(entries, table):
    rows = [read_deletes(table.storage, e.data_file).to_pylist() for e in entries]
    return [some for some in rows if some != sorted(some, key=lambda row: (row["file_path"], row["pos"]))]


TELLING = 4
"""Seeds whose histories have several such files each, whatever others a night has."""


def test_files_of_generated_histories_are_put_in_order(backwards):
    made = []
    for seed in (*range(TELLING), *seeds(scaled(8))):
        chosen = Choices(seed)
        made.append(History(in_memory(), 2, chosen.choice(SPECS)).went_on(steps_of(seed, KINDS)))
    backwards()
    files_counts = [put_in_order(history) for history in made]
    assert sum(files_counts[:TELLING]) > TELLING


def put_in_order(history: History) -> int:
    """How many files of a history are mended."""
    by = history.by
    before, naive = deletes(by), naive_rows(by.table)
    wrong = unsorted(before, by.table)
    result = mended_by(by.table, UNSORTED)
    assert len(result.mended) == len(wrong), result
    assert not result.not_mended
    now = by.table
    assert not unsorted(deletes(by), now)
    assert said_of(deletes(by)) == said_of(before)
    assert scanned_rows(now) == history.expected()
    assert naive_rows(now) == naive
    assert check(now, no_spark, deep=True, ref="main").status == "sound"
    if wrong:
        assert now.metadata.head("main").operation == "replace"
    return len(wrong)


def delete(by: ByIcekeep, pairs) -> None:
    """Commit one delete file."""
    named = frozenset(file.file_path for file, _ in pairs)
    commit(by.table, RowDelta(added_deletes=position_delete_files(by.table, pairs), named=named))


@pytest.fixture
def made(backwards) -> ByIcekeep:
    """Two data files, and a delete file for both with its rows backwards."""
    by = in_memory()
    by.create(START, (), 2)
    for _ in range(2):
        append(by.table, [some_rows(by, 5)])
    pairs = [(file, position) for file in data_files(by.table) for position in (0, 3)]
    delete(by, pairs)
    backwards()
    assert unsorted(deletes(by), by.table)
    return by


def stays(by: ByIcekeep, why: str) -> None:
    location = by.table.metadata_location
    result = mended_by(by.table, UNSORTED)
    assert not result.mended
    assert [why in one.reason for one in result.not_mended] == [True], result
    assert by.table.metadata_location == location


def test_in_version_3_it_stays(made):
    upgrade_format_version(made.table, 3)
    stays(made, "no position delete file is written")


def test_an_entry_of_another_count_stays(made):
    damager = Damager(made.catalog, made.identifier, Choices(0))
    damager.edit_file(damager.entry(POSITION_DELETES), record_count=3)
    stays(made, "it has 4 deletes where its entry says 3")


def test_an_entry_that_leaves_data_files_out_stays(made):
    damager = Damager(made.catalog, made.identifier, Choices(0))
    path = data_files(made.table)[0].file_path
    damager.edit_file(damager.entry(POSITION_DELETES), referenced_data_file=path)
    stays(made, "is for other data files")


def test_a_file_with_the_deleted_rows_stays(made):
    damager = Damager(made.catalog, made.identifier, Choices(0))
    place = damager.entry(POSITION_DELETES)
    old = pq.read_table(io.BytesIO(damager.read(place.file["file_path"])))
    out = io.BytesIO()
    pq.write_table(old.append_column("row", [[{"id": 1}] * old.num_rows]), out)
    damager.write(place.file["file_path"], out.getvalue())
    damager.edit_file(place, file_size_in_bytes=len(out.getvalue()))
    stays(made, "more than paths and positions")


def test_a_file_in_order_is_left_as_it_is():
    by = in_memory()
    by.create(START, (), 2)
    append(by.table, [some_rows(by, 5)])
    [file] = data_files(by.table)
    delete(by, [(file, 1), (file, 3)])
    location = by.table.metadata_location
    result = mended_by(by.table, UNSORTED)
    assert not result.mended
    assert not result.not_mended
    assert by.table.metadata_location == location
