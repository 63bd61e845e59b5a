"""What tasks of a rewrite hash: the live rows that went in and those that stand in the new files, whichever way they went."""

from itertools import pairwise
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, InvalidTableError, UnavailableError
from icekeep.formats.deletes.read import write_position_deletes
from icekeep.formats.parquet.pages import moved_offset_index
from icekeep.formats.parquet.thrift import I32, struct_bytes
from icekeep.formats.rewrite import copy_pages as spliced_file
from icekeep.formats.rewrite import proof as verifying
from icekeep.formats.rewrite.copy_pages import PagesFile
from icekeep.formats.rewrite.proof import PageProof, hash_of_files, problem_of_rows, rows_of_copy
from icekeep.formats.rewrite.run import rewrite, rewrite_together
from icekeep.formats.rewrite.task import FilePiece, TaskRows, TaskWriter, columns_to_write
from icekeep.formats.row_hash import RowHash, RowSequence, RowSum
from icekeep.formats.sort.encode import Curve, KeyRange, Ordering
from icekeep.formats.sort.keys import sort_keys
from icekeep.spec.avro import encode_long
from icekeep.spec.collections import PositionSet
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.sorting import SortField
from icekeep.spec.transforms import Identity
from icekeep.spec.types import DOUBLE, INT, LONG, STRING
from kit.cases import Choices
from kit.columns import EVERY_TYPE, column, empty_table, parquet_bytes, schema_of, table_of
from kit.data_files import TYPES, faults_of, faulty, options_for, rows_with, schema_with, write_files
from kit.spliced import (
    FILTERS,
    INDEXED,
    PLAIN,
    SCHEMA,
    piece_of,
    put_bytes,
    put_table,
    some_files,
    some_rows,
    spliced,
    stitched,
    task_for,
    with_edits,
    without_floors,
)
from kit.spliced import SCHEMA as STITCHED_SCHEMA
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
def test_new_files_are_removed_if_store_fails_in_proof(storage, tables, monkeypatch, way):
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
def test_wrong_page_metadata_is_refused_and_kept(storage, monkeypatch, fault):
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


def test_visible_changed_byte_of_spliced_file_is_refused(storage, tables):
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


FORMATS = ("PARQUET", "ORC", "AVRO")
WORDS = schema_of(column(1, "n", LONG), column(2, "s", STRING))
ROUNDS = 3


def hash_of(table, schema):
    rows = RowHash(schema)
    rows.add(table)
    return rows.total


def written(table, schema, file_format):
    """A store with one file that holds the rows."""
    storage = MemoryStorage()
    (file,) = write_files(storage, schema, [table], options_for(file_format))
    return storage, file


def live_hash(task, storage):
    """The live rows of all pieces of a task."""
    live = TaskRows(replace(task, verifies=True), storage)
    for _ in live.read():
        continue
    return live.hash


def verify(read, storage, files, schema):
    problem = problem_of_rows([read], [hash_of_files(files, schema, storage)], files)
    if problem is not None:
        raise problem


def cases():
    """Rows, and the same with a fault, each of the kinds that values of a type may have a few times."""
    numbers = Choices(8)
    for type_ in TYPES:
        schema = schema_with(type_)
        for name, fault in faults_of(type_):
            for _ in range(ROUNDS):
                rows = rows_with(type_, 9, numbers)
                changed = faulty(rows, fault, schema, numbers)
                if changed is not None:
                    yield f"{type_}: {name}", schema, rows, changed


def is_refused(read, storage, file, schema):
    try:
        verify(read, storage, [file], schema)
    except IcekeepBug:
        return True
    return False


@pytest.mark.slow
def test_every_file_fault_is_caught_without_false_alarm():
    missed, accused, checked = [], [], 0
    for number, (name, schema, rows, changed) in enumerate(cases()):
        read = hash_of(table_of(schema, rows), schema)
        for file_format in FORMATS:
            table = table_of(schema, rows[number % 9 :] + rows[: number % 9])
            right, file = written(table, schema, file_format)
            if is_refused(read, right, file, schema):
                accused.append((name, file_format, rows))
            # The faulty file lies where the right one lay, and its entry says what the right one's says.
            wrong, _ = written(table_of(schema, changed), schema, file_format)
            if not is_refused(read, wrong, file, schema):
                missed.append((name, file_format, rows, changed))
            checked += 1
    assert (missed, accused) == ([], [])
    assert checked >= 1000


@pytest.mark.slow
@pytest.mark.parametrize("file_format", FORMATS)
def test_rows_dealt_out_to_other_files_are_the_same(file_format, storage):
    numbers = Choices(1)
    for type_ in TYPES:
        schema = schema_with(type_)
        table = table_of(schema, rows_with(type_, 40, numbers))
        files = write_files(
            storage, schema, [table.slice(25)], options_for(file_format), f"memory:/{type_}/a"
        ) + write_files(storage, schema, [table.slice(0, 25)], options_for(file_format), f"memory:/{type_}/b")
        verify(hash_of(table, schema), storage, files, schema)


@pytest.mark.slow
def test_many_row_groups_read_in_batches_are_the_same(storage, monkeypatch):
    table = table_of(WORDS, [{"n": n, "s": f"text {n % 7}"} for n in range(5000)])
    files = write_files(storage, WORDS, [table], options_for(row_group_size_bytes=2**14))
    monkeypatch.setattr("icekeep.formats.rewrite.proof.TaskMemory.batch_rows", lambda memory, reader: 333)
    verify(hash_of(table, WORDS), storage, files, WORDS)


@pytest.mark.slow
@pytest.mark.parametrize("file_format", FORMATS)
def test_wrong_row_count_of_new_file_is_refused(file_format):
    storage, file = written(table_of(WORDS, [{"n": 1, "s": "a"}] * 3), WORDS, file_format)
    with pytest.raises(IcekeepBug, match=f"3 rows where 4 were written.*{file.file_path}"):
        hash_of_files([replace(file, record_count=4)], WORDS, storage)


@pytest.mark.slow
def test_damaged_missing_or_mismatched_file_is_refused(storage):
    table = table_of(WORDS, [{"n": n, "s": "a"} for n in range(100)])
    (file,) = write_files(storage, WORDS, [table])
    needed = schema_of(*WORDS.fields, column(3, "needed", INT, required=True))
    with pytest.raises(IcekeepBug, match=f"{file.file_path}.*'needed' is required and missing"):
        hash_of_files([file], needed, storage)
    with pytest.raises(IcekeepBug, match="'n' holds 'int64', not 'double'"):
        hash_of_files([file], schema_of(column(1, "n", DOUBLE)), storage)
    key = next(iter(storage.files))
    data, at = storage.files[key]
    storage.files[key] = data[:40] + bytes([data[40] ^ 1]) + data[41:], at
    with pytest.raises(IcekeepBug, match=r"damaged.*kept as evidence"):
        hash_of_files([file], WORDS, storage)
    storage.files.clear()
    with pytest.raises(IcekeepBug, match=file.file_path):
        hash_of_files([file], WORDS, storage)


@pytest.mark.slow
def test_the_error_says_what_was_found_and_where_the_evidence_is():
    one = RowSum(2, bytes(16))
    files = [file for n in range(4) for file in written(table_of(WORDS, [{"n": n}]), WORDS, "PARQUET")[1:]]
    files = [replace(file, file_path=f"s3://b/{n}") for n, file in enumerate(files)]
    other = problem_of_rows([one], [RowSum(2, bytes(15) + b"\1")], files)
    assert other is not None
    assert "2 rows, as many as went in, with other values; nothing was committed" in other.message
    assert other.message.endswith("kept as evidence: 's3://b/0', 's3://b/1', 's3://b/2' and 1 more")
    assert other.facts["kept_files"] == ["s3://b/0", "s3://b/1", "s3://b/2", "s3://b/3"]
    fewer = problem_of_rows([one], [RowSum(1, bytes(16))], [])
    assert fewer is not None
    assert "hold 1 rows where 2 live ones went in" in fewer.message
    assert "there are none" in fewer.message
    assert problem_of_rows([RowSum(1, bytes(16)), RowSum(1, bytes(16))], [RowSum(2, bytes(16))], files) is None


@pytest.mark.slow
def test_moved_rows_are_verified_against_old_files(storage):
    tables = [table_of(WORDS, [{"n": n, "s": f"{part}{n}"} for n in range(50)]) for part in "abc"]
    options = {"compression": "zstd", "use_dictionary": False}
    pieces = [piece_of(storage, f"memory:/old/{n}", parquet_bytes(t, **options)) for n, t in enumerate(tables)]
    files, moved = spliced(storage, pieces, WORDS)
    assert moved
    task = task_for(pieces, WORDS)
    read = live_hash(task, storage)
    assert read == hash_of(pa.concat_tables(tables), WORDS)
    verify(read, storage, files, WORDS)
    with pytest.raises(IcekeepBug):
        verify(live_hash(replace(task, pieces=task.pieces[1:]), storage), storage, files, WORDS)


@pytest.mark.slow
def test_stitched_row_groups_are_verified(storage):
    old = some_files(storage)
    pieces = [
        FilePiece(location=f.file_path, record_count=f.record_count, size_bytes=f.file_size_in_bytes) for f in old
    ]
    read = live_hash(task_for(pieces, STITCHED_SCHEMA), storage)
    verify(read, storage, [stitched(storage, old, STITCHED_SCHEMA)], STITCHED_SCHEMA)
    with pytest.raises(IcekeepBug, match="750 rows, as many as went in"):
        verify(read, storage, [old[0], old[0], old[2]], STITCHED_SCHEMA)


@pytest.mark.slow
def test_deleted_rows_do_not_count(storage):
    table = table_of(WORDS, [{"n": n, "s": f"{n}"} for n in range(50)])
    piece = piece_of(storage, "memory:/old/0", parquet_bytes(table))
    positions = pa.table({"file_path": pa.repeat(piece.location, 2), "pos": pa.array([3, 49], pa.int64())})
    delete = write_position_deletes(storage, "memory:/old/d.parquet", "PARQUET", positions, spec_id=0)
    task = task_for([replace(piece, deletes=PositionSet([0]))], WORDS, delete_files=(delete,))
    read = live_hash(task, storage)
    assert read == hash_of(table.filter(pa.array([n not in (3, 49) for n in range(50)])), WORDS)
    verify(read, storage, rewrite(task, storage).files, WORDS)
    with pytest.raises(IcekeepBug, match="48 rows where 50 live ones went in"):
        verify(hash_of(table, WORDS), storage, rewrite(replace(task, task_attempt_id=1), storage).files, WORDS)


@pytest.mark.slow
def test_the_lineage_of_rows_is_hashed_where_it_is_written(storage):
    table = table_of(WORDS, [{"n": n, "s": f"{n}"} for n in range(5)])
    piece = piece_of(storage, "memory:/old/0", parquet_bytes(table))
    task = task_for([replace(piece, first_row_id=7, data_sequence_number=2)], WORDS)
    columns = columns_to_write(task)
    read = live_hash(task, storage)
    assert read != live_hash(task_for([replace(piece, first_row_id=8, data_sequence_number=2)], WORDS), storage)
    verify(read, storage, rewrite(task, storage).files, columns)


@pytest.mark.slow
@pytest.mark.parametrize("file_format", FORMATS)
def test_a_column_that_a_file_lacks_has_its_default_or_nulls(file_format):
    storage, file = written(table_of(WORDS, [{"n": 1, "s": "a"}]), WORDS, file_format)
    added = (column(3, "later", INT), replace(column(4, "filled", INT), initial_default=5))
    wider = schema_of(*WORDS.fields, *added)
    expected = table_of(wider, [{"n": 1, "s": "a", "later": None, "filled": 5}])
    assert hash_of_files([file], wider, storage) == hash_of(expected, wider)
    only = schema_of(*added)
    assert hash_of_files([file], only, storage) == hash_of(expected.select(["later", "filled"]), only)


@pytest.mark.slow
def test_no_files_have_the_sum_of_no_rows(storage):
    assert hash_of_files([], EVERY_TYPE, storage) == RowSum() == hash_of(empty_table(EVERY_TYPE), EVERY_TYPE)


FLIPPED_BYTES = 200


def pieces_of(files, **facts):
    return [
        FilePiece(location=f.file_path, record_count=f.record_count, size_bytes=f.file_size_in_bytes, **facts)
        for f in files
    ]


def is_copy_refused(pieces, new, storage):
    try:
        rows_of_copy(pieces, new, storage)
    except IcekeepBug as error:
        return error.facts["kept_files"] == [new.file_path]
    return False


def with_byte(storage, file, position, mask):
    """The store with one byte of a file changed."""
    other = MemoryStorage()
    other.files = dict(storage.files)
    (key,) = [key for key in other.files if file.file_path.endswith(str(key).rsplit("/", 1)[-1])]
    data, at = other.files[key]
    other.files[key] = data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :], at
    return other


@pytest.mark.parametrize("options", [{}, INDEXED, {**INDEXED, **FILTERS}, {"use_dictionary": False}])
def test_a_right_copy_has_the_rows_of_its_sources(storage, options):
    old = some_files(storage, **options)
    new = stitched(storage, old, SCHEMA)
    assert rows_of_copy(pieces_of(old), new, storage) == RowSum(750)


def test_empty_sources_and_row_groups_are_ignored(storage):
    old = some_files(storage, 2, schema=PLAIN)
    empty = put_table(storage, "memory:/t/empty.parquet", some_rows(0, 0, PLAIN))
    new = stitched(storage, old, PLAIN)
    assert rows_of_copy(pieces_of([old[0], empty, old[1]]), new, storage) == RowSum(500)


@pytest.mark.slow
def test_every_changed_byte_that_reading_shows_is_refused(storage):
    """What a proof by the rows finds, that by the bytes finds: in data, indexes and the footer."""
    old = some_files(storage, 2, **INDEXED)
    new = stitched(storage, old, SCHEMA)
    size_bytes = new.file_size_in_bytes
    right = hash_of_files([new], SCHEMA, storage)
    data_end = sum(file.file_size_in_bytes for file in old) // 2
    numbers = Choices(4)
    missed, shown = [], 0
    for _ in range(FLIPPED_BYTES):
        position, mask = numbers.randrange(size_bytes), 1 << numbers.randrange(8)
        changed = with_byte(storage, new, position, mask)
        refused = is_copy_refused(pieces_of(old), new, changed)
        try:
            shows = hash_of_files([new], SCHEMA, changed) != right
        except (IcekeepBug, MemoryError):
            shows = True
        shown += shows
        if shows and not refused:
            missed.append((position, mask))
        assert refused or position >= data_end
    assert missed == []
    assert shown > FLIPPED_BYTES // 3


@pytest.mark.parametrize(
    "index_bytes", [lambda data, shift: data, lambda data, shift: moved_offset_index(data, shift + 1)]
)
def test_offset_indexes_that_were_moved_wrongly_are_refused(storage, monkeypatch, index_bytes):
    """Who reads all rows does without them; who looks for few goes by them, and finds others or none."""
    old = some_files(storage, 2, **INDEXED)
    monkeypatch.setattr("icekeep.formats.rewrite.copy_row_groups.moved_offset_index", index_bytes)
    new = stitched(storage, old, SCHEMA)
    assert hash_of_files([new], SCHEMA, storage).row_count == 500
    assert is_copy_refused(pieces_of(old), new, storage)


def test_changed_lost_or_repeated_rows_are_refused(storage):
    old = some_files(storage)
    new = stitched(storage, old, SCHEMA)
    for wrong in (old[:2], old[1:], [old[1], old[0], old[2]], [*old, old[2]], [old[0], old[0], old[2]]):
        assert is_copy_refused(pieces_of(wrong), new, storage)
    assert is_copy_refused(pieces_of(old), replace(new, record_count=749), storage)
    counts = pieces_of(old)
    assert is_copy_refused([replace(counts[0], record_count=251), *counts[1:]], new, storage)


def test_changed_schema_or_file_metadata_is_refused(storage):
    rows = some_rows(0, 250, PLAIN)
    old = put_table(storage, "memory:/t/a.parquet", rows)
    renamed = schema_of(PLAIN.fields[0], replace(PLAIN.fields[1], field_id=9))
    without_writer = with_edits(storage.read(old.file_path), footer={6: None})
    other_codec = with_edits(storage.read(old.file_path), 1, meta={4: (I32, encode_long(1))})
    others = [
        put_table(storage, "memory:/t/ids.parquet", table_of(renamed, rows.to_pylist())),
        put_bytes(storage, "memory:/t/words.parquet", without_writer),
        put_bytes(storage, "memory:/t/codec.parquet", other_codec),
    ]
    assert [is_copy_refused(pieces_of([old]), new, storage) for new in others] == [True] * 3
    assert not is_copy_refused(pieces_of([old]), put_table(storage, "memory:/t/same.parquet", rows), storage)


def test_a_new_file_that_is_not_there_or_cut_is_refused(storage):
    old = some_files(storage)
    new = stitched(storage, old, SCHEMA)
    assert is_copy_refused(pieces_of(old), replace(new, file_path="memory:/t/nowhere"), storage)
    with pytest.raises(InvalidTableError):
        rows_of_copy([*pieces_of(old), replace(pieces_of(old)[0], location="memory:/t/nowhere")], new, storage)


def test_rows_keep_their_row_ids_only_where_all_are_stored(storage):
    schema = schema_of(*PLAIN.fields, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)
    data = [{"n": n, "s": "a", ROW_ID.name: n, LAST_UPDATED_SEQUENCE_NUMBER.name: 1} for n in range(9)]
    without = [{**data[0], ROW_ID.name: None}, *data[1:]]
    for name, rows, first_row_id, wrong in (
        ("stored", data, 7, False),
        ("one is not", without, 7, True),
        ("none counts", data, None, True),
    ):
        old = put_table(storage, f"memory:/{name}/a.parquet", table_of(schema, rows))
        new = put_table(storage, f"memory:/{name}/b.parquet", table_of(schema, rows))
        assert is_copy_refused(pieces_of([old], first_row_id=first_row_id), new, storage) is wrong, name
    plain = put_table(storage, "memory:/t/a.parquet", some_rows(0, 9, PLAIN))
    assert is_copy_refused(pieces_of([plain], first_row_id=7), plain, storage)


def test_files_are_compared_piece_by_piece(storage, monkeypatch):
    monkeypatch.setattr("icekeep.formats.rewrite.proof._FAR_BYTES", 100)
    old = some_files(storage, 2)
    new = stitched(storage, old, SCHEMA)
    assert not is_copy_refused(pieces_of(old), new, storage)
    for position in (5, 103, 104, 105, 203, 204):
        assert is_copy_refused(pieces_of(old), new, with_byte(storage, new, position, 1))


def test_nothing_is_decoded(storage, monkeypatch):
    old = some_files(storage)
    new = stitched(storage, old, SCHEMA)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.read_row_group", None)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.iter_batches", None)
    assert rows_of_copy(pieces_of(old), new, storage) == RowSum(750)
