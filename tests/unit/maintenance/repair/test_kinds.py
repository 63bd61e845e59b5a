"""What the check says of a fault, what the repair does about it and its statistics, and that the jobs which it names do it."""

import pytest

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.formats.deletes import read
from icekeep.maintenance.check.faults import CLASSES, FaultId
from icekeep.maintenance.check.job import check
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.repair.job import repair
from icekeep.maintenance.repair.planner import REPAIRED, no_repair
from icekeep.tables.verbs import append, upgrade_format_version
from kit.cases import Choices, for_each
from kit.checked_entries import put_files
from kit.columns import table_of
from kit.damager import Damager
from kit.deletes import data_files, position_delete_files, vector_files
from kit.row_histories import START, ByIcekeep, in_memory
from kit.rows import scanned_rows
from kit.runtime import no_spark
from kit.tables import EVENTS, add, memory_table

FOOTER_WORD = -4
"""Where the magic at the end of a Puffin file begins."""


@for_each("number", sorted(CLASSES))
def test_the_check_names_the_repair_of_the_kinds_that_it_fixes(number):
    assert ("`icekeep repair`" in CLASSES[number].mend) == (number in REPAIRED)


@for_each("number", sorted(CLASSES.keys() - REPAIRED))
def test_of_all_others_it_says_what_to_do(number):
    assert no_repair(number).partition("; ")[2]


def test_nothing_is_repaired_that_is_no_fault():
    assert CLASSES.keys() > REPAIRED
    assert len(REPAIRED) > 30


def two_files(version: int) -> ByIcekeep:
    by = in_memory()
    by.create(START, (), version)
    names = [field.name for field in START.fields]
    for number in range(2):
        append(by.table, [table_of(START, [dict.fromkeys(names) | {"id": 10 * number + n} for n in range(5)])])
    return by


def is_left_to(by: ByIcekeep, fault: FaultId, job: str) -> None:
    """The repair leaves a fault, and names a job instead."""
    assert [one.fault_id for one in check(by.table, no_spark, deep=True, ref="main").faults] == [fault]
    before = by.table.metadata_location
    [stays] = repair(by.table, no_spark, fault=[fault]).not_mended
    assert f"`icekeep {job}` with" in stays.reason
    assert by.table.metadata_location == before


@pytest.mark.parametrize("version", [2, 3])
def test_position_deletes_are_put_in_order_by_their_rewrite(version, monkeypatch):
    by, real = two_files(2), read.sorted_once
    with monkeypatch.context() as patched:
        patched.setattr(read, "sorted_once", lambda rows: real(rows).take([*range(rows.num_rows)][::-1]))
        pairs = [(file, position) for file in data_files(by.table) for position in (0, 3)]
        deletes = position_delete_files(by.table, pairs)
        commit(by.table, RowDelta(added_deletes=deletes, named=frozenset(file.file_path for file, _ in pairs)))
    if version == 3:
        upgrade_format_version(by.table, 3)
    rows = scanned_rows(by.table)
    is_left_to(by, FaultId.POSITION_DELETES_UNSORTED, "rewrite_position_deletes")
    rewrite_position_deletes(by.table, no_spark, options={"rewrite-all": "true"})
    assert check(by.table, no_spark, deep=True, ref="main").status == "sound"
    assert scanned_rows(by.table) == rows


def test_compaction_applies_vectors_of_a_bad_puffin_file():
    by = two_files(3)
    positions = [(file, place) for file in data_files(by.table) for place in (1, 3)]
    commit(by.table, RowDelta(added_deletes=vector_files(by.table, positions, ())))
    rows, damager = scanned_rows(by.table), Damager(by.catalog, by.identifier, Choices(7))
    path = damager.vector().file["file_path"]
    damager.change_bytes(path, lambda data: data.__setitem__(FOOTER_WORD, data[FOOTER_WORD] ^ 0xFF))
    is_left_to(by, FaultId.PUFFIN_FOOTER_WRONG, "compact")
    compact(by.table, no_spark, options={"delete-file-threshold": "1"})
    assert check(by.table, no_spark, deep=True, ref="main").status == "sound"
    assert scanned_rows(by.table) == rows


ABSENT = 424_242
KINDS = pytest.mark.parametrize("kind", ["statistics", "partition-statistics"])


@pytest.fixture
def table():
    return put_files(add(add(memory_table(), "a"), "b"))


def entry(table, kind, snapshot_id, size=100):
    """An entry for the one file, which is there with a hundred bytes."""
    found = {
        "snapshot-id": snapshot_id,
        "statistics-path": f"{table.metadata.location}/metadata/shared.stats",
        "file-size-in-bytes": size,
    }
    return found | ({"file-footer-size-in-bytes": 10, "blob-metadata": []} if kind == "statistics" else {})


def named(table, kind, *entries):
    """The table with some entries of statistics."""
    damager = Damager(table.catalog, EVENTS, Choices(1))
    damager.write(entries[0]["statistics-path"], b"x" * 100)
    damager.edit_metadata(lambda document: document.update({kind: [*entries]}))
    return table.refresh()


def held(table, kind):
    """The snapshots that have statistics."""
    metadata = table.refresh().metadata
    files = metadata.statistics if kind == "statistics" else metadata.partition_statistics
    return [one.snapshot_id for one in files]


@KINDS
def test_statistics_of_a_missing_snapshot_go(table, kind):
    head = table.metadata.current_snapshot_id
    table = named(table, kind, entry(table, kind, head), entry(table, kind, ABSENT))
    assert [one.fault_id for one in check(table, no_spark).notices] == [124]
    result = repair(table, no_spark, fault=[124])
    assert [one.fault_id for one in result.mended] == [124]
    assert held(table, kind) == [head]


@KINDS
def test_statistics_of_a_wrong_size_go(table, kind):
    first, second = (one.snapshot_id for one in table.metadata.snapshots)
    table = named(table, kind, entry(table, kind, first), entry(table, kind, second, size=99))
    result = repair(table, no_spark, fault=[304])
    assert [one.fault_id for one in result.mended] == [304]
    assert held(table, kind) == [first]
