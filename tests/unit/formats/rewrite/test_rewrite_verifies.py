"""What tasks of a rewrite hash: the live rows that went in and those that stand in the new files, whichever way they went."""

from itertools import pairwise
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, UnavailableError
from icekeep.formats.parquet.thrift import struct_bytes
from icekeep.formats.rewrite import copy_pages as spliced_file
from icekeep.formats.rewrite import proof as verifying
from icekeep.formats.rewrite.copy_pages import PagesFile
from icekeep.formats.rewrite.proof import PageProof, problem_of_rows
from icekeep.formats.rewrite.run import rewrite, rewrite_together
from icekeep.formats.rewrite.task import TaskWriter
from icekeep.formats.row_hash import RowHash, RowSequence, RowSum
from icekeep.formats.sort.encode import Curve, KeyRange, Ordering
from icekeep.formats.sort.keys import sort_keys
from icekeep.spec.sorting import SortField
from icekeep.spec.transforms import Identity
from icekeep.spec.types import LONG, STRING
from kit.columns import column, parquet_bytes, schema_of, table_of
from kit.spliced import piece_of, task_for, without_floors
from kit.storage import MemoryStorage

ROWS = schema_of(column(1, "n", LONG), column(2, "s", STRING))
BY_N = Ordering(fields=(SortField(source_id=1, transform=Identity()),))
BY_CURVE = Ordering(curve=Curve(kind="hilbert", column_ids=(1, 2)))


@pytest.fixture
def storage():
    return MemoryStorage()


@pytest.fixture
def tables():
    return [table_of(ROWS, [{"n": 7 * n % 50, "s": f"{part}{n}"} for n in range(50)]) for part in "abc"]


def told(storage, tables, **facts):
    options = {"compression": "zstd", "use_dictionary": False}
    pieces = [piece_of(storage, f"memory:/old/{n}", parquet_bytes(t, **options)) for n, t in enumerate(tables)]
    return task_for(pieces, ROWS, verifies=True, **facts)


def in_order(task, storage):
    return [rewrite(task, storage)]


def moved(task, storage):
    with without_floors():
        return [rewrite(task, storage)]


def ranges(task, points):
    ends = [None, *points, None]
    return [
        replace(task, key_range=KeyRange(lower=low, upper=high), partition_id=number)
        for number, (low, high) in enumerate(pairwise(ends))
    ]


def together(task, storage):
    (point,) = sort_keys(table_of(ROWS, [{"n": 25, "s": ""}]), task.ordering, ROWS).to_pylist()
    return [rewrite_together(ranges(task, [point]), storage)]


WAYS = {
    "in order": (in_order, {"moves_pages": False}),
    "pages moved": (moved, {}),
    "sorted": (in_order, {"ordering": BY_N}),
    "sorted, spilling": (in_order, {"ordering": BY_N, "budget_bytes": 1}),
    "by a curve": (in_order, {"ordering": BY_CURVE}),
    "ranges together": (together, {"ordering": BY_N}),
    "sorted, with origins": (in_order, {"ordering": BY_N, "moves_directory": "memory:/moves"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_went_in_stands_in_the_new_files(storage, tables, way):
    do, facts = WAYS[way]
    outcomes = do(told(storage, tables, **facts), storage)
    expected = {"in order": RowSequence, "pages moved": None}.get(way, RowHash)
    total = RowSum(150)
    if expected is not None:
        rows = expected(ROWS)
        rows.add(pa.concat_tables(tables))
        total = rows.total
        assert total.digest != bytes(16)
    assert {outcome.hash_in for outcome in outcomes} == {total}
    assert {outcome.hash_out for outcome in outcomes} == {total}


@pytest.mark.parametrize("way", [way for way in WAYS if way != "pages moved"])
def test_a_value_that_a_writer_changes_shows(storage, tables, way):
    """As faulty memory or a faulty encoder might: nothing is wrong with the numbers of rows."""
    do, facts = WAYS[way]
    write = TaskWriter.write

    def faulty(self, table):
        values = pc.if_else(pc.equal(table.column(1), "b7"), "b8", table.column(1))
        write(self, table.set_column(1, table.schema.field(1), values.cast(table.schema.field(1).type)))

    with mock.patch.object(TaskWriter, "write", faulty):
        (outcome,) = do(told(storage, tables, **facts), storage)
    problem = problem_of_rows([outcome.hash_in], [outcome.hash_out], outcome.files)
    assert problem is not None
    assert "150 rows, as many as went in, with other values" in problem.message
    assert [storage.head(file.file_path).size_bytes for file in outcome.files]


def test_nothing_is_hashed_where_nobody_asks(storage, tables):
    outcome = rewrite(replace(told(storage, tables), verifies=False), storage)
    assert (outcome.hash_in, outcome.hash_out) == (None, None)


PLACES = {"in order": "proof", "pages moved": "copy_pages", "ranges together": "proof"}
READING = {"in order": "hash_of_files", "pages moved": "PageProof.check", "ranges together": "hash_of_files"}
"""What reads new files again."""


@pytest.mark.parametrize("way", READING)
def test_new_files_are_not_left_behind_where_the_store_fails_while_they_are_proved(storage, tables, monkeypatch, way):
    """What is left is evidence of a difference; of a store that is away it is an orphan."""
    do, facts = WAYS[way]
    task, before = told(storage, tables, **facts), set(storage.files)

    def fail(*_, **__):
        raise UnavailableError("the store is away")

    monkeypatch.setattr(f"icekeep.formats.rewrite.{PLACES[way]}.{READING[way]}", fail)
    with pytest.raises(UnavailableError):
        do(task, storage)
    assert set(storage.files) == before


@pytest.mark.parametrize("way", ["in order", "ranges together"])
def test_new_files_that_differ_are_left_as_evidence(storage, tables, monkeypatch, way):
    do, facts = WAYS[way]
    task, before = told(storage, tables, **facts), set(storage.files)

    def differ(files, *_, **__):
        raise verifying.not_as_written("other rows", files)

    monkeypatch.setattr(verifying, "hash_of_files", differ)
    with pytest.raises(IcekeepBug) as error:
        do(task, storage)
    assert len(set(storage.files) - before) == len(error.value.facts["kept_files"]) > 0


@pytest.mark.parametrize("what", ["a byte of a page", "pages in another order"])
def test_moved_pages_that_differ_are_left_as_evidence(storage, monkeypatch, what):
    """What is written is wrong, and all that is said of it right."""
    tables = [table_of(ROWS, [{"n": n + start, "s": f"{n + start}"} for n in range(50)]) for start in (0, 50, 100)]
    task, before = told(storage, tables), set(storage.files)
    write, add = PagesFile._write, PagesFile.add

    def write_wrongly(self, data):
        write(self, bytes([*data[:-1], data[-1] ^ 1]) if isinstance(data, memoryview) else data)

    def add_wrongly(self, encoded, footer, moved, nan_counts):
        add(self, encoded, footer, {id_: chunks[::-1] for id_, chunks in moved.items()}, nan_counts)

    if what == "a byte of a page":
        monkeypatch.setattr(PagesFile, "_write", write_wrongly)
    else:
        monkeypatch.setattr(PagesFile, "add", add_wrongly)
    with pytest.raises(IcekeepBug) as error:
        moved(task, storage)
    assert len(set(storage.files) - before) == len(error.value.facts["kept_files"]) == 1


FAULTS = {
    "bounds of one source": ("statistics_bytes", lambda real: lambda chunks, order: real(chunks[:1], order)),
    "no bounds": ("statistics_bytes", lambda real: lambda chunks, order: struct_bytes([])),
    "places that were not moved": ("_page_place", lambda real: lambda page, shift, first: real(page, 0, first)),
    "rows of another page": ("_page_place", lambda real: lambda page, shift, first: real(page, shift, first + 1)),
    "page bounds of one source": (
        "column_index_bytes",
        lambda real: lambda chunks, order: real([chunks[0]] * len(chunks), order),
    ),
    "encoded pages that were not moved": ("moved_offset_index", lambda real: lambda data, shift: data),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_moved_pages_of_which_something_else_is_said_are_left_as_evidence(storage, monkeypatch, fault):
    """All rows can be read; who looks for some by bounds or indexes finds others, or none."""
    name, wrongly = FAULTS[fault]
    options = {"compression": "zstd", "use_dictionary": False, "write_page_index": True, "max_rows_per_page": 20}
    data = [
        parquet_bytes(table_of(ROWS, [{"n": n + start, "s": f"{n + start}"} for n in range(50)]), **options)
        for start in (0, 50, 100)
    ]
    pieces = [piece_of(storage, f"memory:/old/{number}", one) for number, one in enumerate(data)]
    task = task_for(pieces, ROWS, verifies=True)
    moved(task, storage)
    before = set(storage.files)
    monkeypatch.setattr(spliced_file, name, wrongly(getattr(spliced_file, name)))
    with pytest.raises(IcekeepBug) as error:
        moved(replace(task, operation_id="other"), storage)
    assert len(set(storage.files) - before) == len(error.value.facts["kept_files"]) == 1


def test_every_changed_byte_of_a_spliced_file_that_reading_shows_is_refused(storage, tables):
    """Proved as it was written, then one byte after the other is changed and it is proved again."""
    proofs, check = [], PageProof.check

    def remembered(self, files, where):
        proofs.append((self, files))
        return check(self, files, where)

    with mock.patch.object(PageProof, "check", remembered):
        moved(told(storage, tables), storage)
    ((proof, files),) = proofs
    right = verifying.hash_of_files(files, ROWS, storage)
    (key,) = [key for key in storage.files if files[0].file_path.endswith(str(key).rsplit("/", 1)[-1])]
    data, at = storage.files[key]
    missed, shown = [], 0
    for byte in range(0, len(data), 5):
        storage.files[key] = data[:byte] + bytes([data[byte] ^ (1 << byte % 8)]) + data[byte + 1 :], at
        shows = _is_refused(lambda: verifying.hash_of_files(files, ROWS, storage) == right)
        shown += shows
        if shows and not _is_refused(lambda: check(proof, files, storage)):
            missed.append(byte)
    assert missed == []
    assert shown > len(data) // 20


def _is_refused(proof):
    """Whether a proof says no, or finds an error."""
    try:
        return not proof()
    except IcekeepBug:
        return True
