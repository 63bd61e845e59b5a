import pyarrow as pa
import pytest
from msgspec.structs import replace

from icekeep.errors import IcekeepBug
from icekeep.formats.deletes.read import write_position_deletes
from icekeep.formats.rewrite.proof import hash_of_files, problem_of_rows
from icekeep.formats.rewrite.run import rewrite
from icekeep.formats.rewrite.task import FilePiece, TaskRows, columns_to_write
from icekeep.formats.row_hash import RowHash, RowSum
from icekeep.spec.collections import PositionSet
from icekeep.spec.types import DOUBLE, INT, LONG, STRING
from kit.choices import Choices
from kit.columns import EVERY_TYPE, column, empty_table, parquet_bytes, schema_of, table_of
from kit.data_files import options_for, write_files
from kit.row_faults import TYPES, faults_of, faulty, rows_with, schema_with
from kit.spliced import piece_of, spliced, task_for
from kit.stitched import SCHEMA as STITCHED_SCHEMA
from kit.stitched import some_files, stitched
from kit.storage import MemoryStorage

pytestmark = pytest.mark.slow

FORMATS = ("PARQUET", "ORC", "AVRO")
WORDS = schema_of(column(1, "n", LONG), column(2, "s", STRING))
ROUNDS = 3


@pytest.fixture
def storage():
    return MemoryStorage()


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


def test_every_fault_in_a_written_file_is_caught_and_no_file_that_is_right_accused():
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


def test_many_row_groups_read_in_batches_are_the_same(storage, monkeypatch):
    table = table_of(WORDS, [{"n": n, "s": f"text {n % 7}"} for n in range(5000)])
    files = write_files(storage, WORDS, [table], options_for(row_group_size_bytes=2**14))
    monkeypatch.setattr("icekeep.formats.rewrite.proof.TaskMemory.batch_rows", lambda memory, reader: 333)
    verify(hash_of(table, WORDS), storage, files, WORDS)


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_file_without_as_many_rows_as_its_entry_says_is_refused(file_format):
    storage, file = written(table_of(WORDS, [{"n": 1, "s": "a"}] * 3), WORDS, file_format)
    with pytest.raises(IcekeepBug, match=f"3 rows where 4 were written.*{file.file_path}"):
        hash_of_files([replace(file, record_count=4)], WORDS, storage)


def test_a_file_that_is_damaged_lost_or_lacks_a_required_column_is_refused(storage):
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


def test_rows_that_were_moved_as_they_are_are_read_from_the_old_files(storage):
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


def test_row_groups_that_were_stitched_hold_the_rows_of_the_old_files(storage):
    old = some_files(storage)
    pieces = [
        FilePiece(location=f.file_path, record_count=f.record_count, size_bytes=f.file_size_in_bytes) for f in old
    ]
    read = live_hash(task_for(pieces, STITCHED_SCHEMA), storage)
    verify(read, storage, [stitched(storage, old, STITCHED_SCHEMA)], STITCHED_SCHEMA)
    with pytest.raises(IcekeepBug, match="750 rows, as many as went in"):
        verify(read, storage, [old[0], old[0], old[2]], STITCHED_SCHEMA)


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


def test_the_lineage_of_rows_is_hashed_where_it_is_written(storage):
    table = table_of(WORDS, [{"n": n, "s": f"{n}"} for n in range(5)])
    piece = piece_of(storage, "memory:/old/0", parquet_bytes(table))
    task = task_for([replace(piece, first_row_id=7, data_sequence_number=2)], WORDS)
    columns = columns_to_write(task)
    read = live_hash(task, storage)
    assert read != live_hash(task_for([replace(piece, first_row_id=8, data_sequence_number=2)], WORDS), storage)
    verify(read, storage, rewrite(task, storage).files, columns)


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_column_that_a_file_lacks_has_its_default_or_nulls(file_format):
    storage, file = written(table_of(WORDS, [{"n": 1, "s": "a"}]), WORDS, file_format)
    added = (column(3, "later", INT), replace(column(4, "filled", INT), initial_default=5))
    wider = schema_of(*WORDS.fields, *added)
    expected = table_of(wider, [{"n": 1, "s": "a", "later": None, "filled": 5}])
    assert hash_of_files([file], wider, storage) == hash_of(expected, wider)
    only = schema_of(*added)
    assert hash_of_files([file], only, storage) == hash_of(expected.select(["later", "filled"]), only)


def test_no_files_have_the_sum_of_no_rows(storage):
    assert hash_of_files([], EVERY_TYPE, storage) == RowSum() == hash_of(empty_table(EVERY_TYPE), EVERY_TYPE)
