"""Files of copied row groups are proved by their bytes: whatever reading all rows would show, that shows."""

import pytest
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.parquet.pages import moved_offset_index
from icekeep.formats.parquet.thrift import I32
from icekeep.formats.rewrite.proof import hash_of_files, rows_of_copy
from icekeep.formats.rewrite.task import FilePiece
from icekeep.formats.row_hash import RowSum
from icekeep.spec.avro import encode_long
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from kit.choices import Choices
from kit.columns import schema_of, table_of
from kit.spliced import with_edits
from kit.stitched import FILTERS, INDEXED, PLAIN, SCHEMA, put_bytes, put_table, some_files, some_rows, stitched
from kit.storage import MemoryStorage

FLIPPED_BYTES = 200


@pytest.fixture
def storage():
    return MemoryStorage()


def pieces_of(files, **facts):
    return [
        FilePiece(location=f.file_path, record_count=f.record_count, size_bytes=f.file_size_in_bytes, **facts)
        for f in files
    ]


def is_refused(pieces, new, storage):
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


def test_sources_without_rows_and_empty_row_groups_count_for_nothing(storage):
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
        refused = is_refused(pieces_of(old), new, changed)
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
    assert is_refused(pieces_of(old), new, storage)


def test_other_rows_lost_rows_and_rows_that_are_there_twice_are_refused(storage):
    old = some_files(storage)
    new = stitched(storage, old, SCHEMA)
    for wrong in (old[:2], old[1:], [old[1], old[0], old[2]], [*old, old[2]], [old[0], old[0], old[2]]):
        assert is_refused(pieces_of(wrong), new, storage)
    assert is_refused(pieces_of(old), replace(new, record_count=749), storage)
    counts = pieces_of(old)
    assert is_refused([replace(counts[0], record_count=251), *counts[1:]], new, storage)


def test_another_schema_and_other_words_about_the_file_are_refused(storage):
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
    assert [is_refused(pieces_of([old]), new, storage) for new in others] == [True] * 3
    assert not is_refused(pieces_of([old]), put_table(storage, "memory:/t/same.parquet", rows), storage)


def test_a_new_file_that_is_not_there_or_cut_is_refused(storage):
    old = some_files(storage)
    new = stitched(storage, old, SCHEMA)
    assert is_refused(pieces_of(old), replace(new, file_path="memory:/t/nowhere"), storage)
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
        assert is_refused(pieces_of([old], first_row_id=first_row_id), new, storage) is wrong, name
    plain = put_table(storage, "memory:/t/a.parquet", some_rows(0, 9, PLAIN))
    assert is_refused(pieces_of([plain], first_row_id=7), plain, storage)


def test_files_are_compared_piece_by_piece(storage, monkeypatch):
    monkeypatch.setattr("icekeep.formats.rewrite.proof._FAR_BYTES", 100)
    old = some_files(storage, 2)
    new = stitched(storage, old, SCHEMA)
    assert not is_refused(pieces_of(old), new, storage)
    for position in (5, 103, 104, 105, 203, 204):
        assert is_refused(pieces_of(old), new, with_byte(storage, new, position, 1))


def test_nothing_is_decoded(storage, monkeypatch):
    old = some_files(storage)
    new = stitched(storage, old, SCHEMA)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.read_row_group", None)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.iter_batches", None)
    assert rows_of_copy(pieces_of(old), new, storage) == RowSum(750)
