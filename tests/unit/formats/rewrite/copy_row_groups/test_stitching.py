import io
import re

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepBug, InvalidTableError, MissingFileError, UnavailableError, UnsupportedError
from icekeep.formats.options import ParquetColumns, ParquetOptions, WriteOptions
from icekeep.formats.parquet.footer import read_footer
from icekeep.formats.parquet.thrift import Struct
from icekeep.formats.rewrite import copy_row_groups as stitching
from icekeep.formats.rewrite.copy_row_groups import stitch
from icekeep.runtime import SYSTEM
from icekeep.spec.properties import NONE
from icekeep.spec.types import LONG
from icekeep.storage.objects.storage import ObjectStorage
from kit.cases import cases
from kit.columns import EVERY_TYPE, column, parquet_bytes, rows, schema_of, table_of
from kit.object_store import ObjectStore
from kit.stitched import (
    FILTERS,
    INDEXED,
    PLAIN,
    SCHEMA,
    STITCHED,
    answer_for,
    check_offset_indexes,
    chunk_places,
    metadata_of,
    put_bytes,
    put_table,
    read_stored,
    rows_of,
    some_files,
    some_rows,
    stitched,
    with_metrics,
)
from kit.storage import HookedStorage, MemoryStorage, contents

pytestmark = pytest.mark.slow

ALL_FORMS = {
    "plain": {"use_dictionary": False},
    "dictionary": {"use_dictionary": True},
    "page index": INDEXED,
    "bloom filters": FILTERS,
    "both": INDEXED | FILTERS,
    "pages of version 2": {"data_page_version": "2.0", **INDEXED},
    "no statistics": {"write_statistics": False},
    "arrow schema": {"store_schema": True},
    "version 1": {"version": "1.0"},
}


@pytest.fixture
def storage():
    return MemoryStorage()


# The file that comes out.


@pytest.mark.parametrize("form", ALL_FORMS)
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_a_stitched_file_has_the_rows_and_statistics_of_its_parts(storage, codec, form):
    files = some_files(storage, compression=codec, **ALL_FORMS[form])
    file = stitched(storage, files, SCHEMA, compression=codec)
    assert read_stored(storage, file).equals(rows_of(storage, files))
    assert file.record_count == 750
    assert file.file_size_in_bytes == len(storage.read(STITCHED))
    old = [metadata_of(storage, f) for f in files]
    new = metadata_of(storage, file)
    groups = [metadata.row_group(n) for metadata in old for n in range(metadata.num_row_groups)]
    assert new.num_row_groups == len(groups) == 9
    assert new.created_by == old[0].created_by
    assert new.metadata == old[0].metadata
    assert new.schema.equals(old[0].schema)
    for number, group in enumerate(groups):
        for position in range(group.num_columns):
            ours, theirs = new.row_group(number).column(position), group.column(position)
            assert ours.statistics == theirs.statistics
            assert ours.encodings == theirs.encodings
            assert ours.total_compressed_size == theirs.total_compressed_size
    starts = [
        min(c.dictionary_page_offset or c.data_page_offset, c.data_page_offset)
        for c in (new.row_group(n).column(0) for n in range(new.num_row_groups))
    ]
    assert list(file.split_offsets) == starts == sorted(starts)


def test_every_place_in_the_footer_is_moved(storage):
    files = some_files(storage, **INDEXED | FILTERS)
    file = stitched(storage, files, SCHEMA)
    data = storage.read(STITCHED)
    sources = [(storage.read(f.file_path), group) for f in files for group in chunk_places(storage, f)]
    for number, ((place, columns), (source, (_, old))) in enumerate(
        zip(chunk_places(storage, file), sources, strict=True)
    ):
        assert place == read_footer(storage, STITCHED, len(data)).row_groups[number].start
        for ours, theirs in zip(columns, old, strict=True):
            new, before = ours.struct(3), theirs.struct(3)
            ranges = [
                (ours.value(6), theirs.value(6), ours.value(7)),
                (new.value(9), before.value(9), 50),
                (new.value(11), before.value(11), 50),
                (new.value(14), before.value(14), new.value(15)),
            ]
            for at, was, length in ranges:
                assert data[at : at + length] == source[was : was + length]
            assert (new.value(14) > 0) == (new.raw(3) in (b"\x19\x18\x01s", b"\x18\x01s"))


def test_offset_indexes_lead_to_the_pages(storage):
    files = some_files(storage, **INDEXED)
    file = stitched(storage, files, SCHEMA)
    data = storage.read(STITCHED)
    pages_count = 0
    for _, columns in chunk_places(storage, file):
        for chunk in columns:
            at, length = chunk.value(4), chunk.value(5)
            index = Struct(data[at : at + length])
            assert index.end == length
            for page in index.structs(1):
                head = Struct(data, page.value(1))
                assert page.value(2) == head.end - page.value(1) + head.value(3)
                pages_count += 1
    assert pages_count > 5 * 9 * 2


@pytest.mark.parametrize("count", [1, 14, 15, 16, 40])
def test_any_number_of_row_groups_is_put_together(storage, count):
    files = [put_table(storage, f"memory:/t/{n}", some_rows(n, 3, PLAIN), 1) for n in range(0, 3 * count, 3)]
    file = stitched(storage, files, PLAIN)
    assert read_stored(storage, file).equals(rows_of(storage, files))
    assert metadata_of(storage, file).num_row_groups == 3 * count


def test_a_stitched_file_can_be_stitched_again(storage):
    files = some_files(storage, 4, **INDEXED | FILTERS)
    first = stitched(storage, files[:2], SCHEMA, "memory:/t/first")
    second = stitched(storage, files[2:], SCHEMA, "memory:/t/second")
    both = stitched(storage, [first, second], SCHEMA)
    assert read_stored(storage, both).equals(rows_of(storage, files))
    check_offset_indexes(storage, both)


def test_one_file_can_be_stitched_alone_and_a_column_alone(storage):
    schema = schema_of(column(1, "n", LONG))
    file = put_table(storage, "memory:/t/f", some_rows(0, 9, schema), 2)
    assert read_stored(storage, stitched(storage, [file], schema)).equals(read_stored(storage, file))


def with_empty_group(table):
    out = io.BytesIO()
    with pq.ParquetWriter(out, table.schema, compression="zstd", store_schema=False, write_page_index=True) as writer:
        writer.write_table(table.slice(0, 5))
        writer.write_table(table.slice(0, 0), row_group_size=1)
        writer.write_batch(table.slice(0, 0).to_batches()[0] if table.slice(0, 0).to_batches() else _no_rows(table))
        writer.write_table(table.slice(5))
    return out.getvalue()


def _no_rows(table):
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in table.schema], schema=table.schema)


def test_files_and_row_groups_without_rows_leave_none(storage):
    full = put_table(storage, "memory:/t/a", some_rows(0, 9, PLAIN), 5, write_page_index=True)
    none = put_table(storage, "memory:/t/b", some_rows(0, 0, PLAIN), write_page_index=True)
    holed = put_bytes(storage, "memory:/t/c", with_empty_group(some_rows(20, 9, PLAIN)))
    assert metadata_of(storage, holed).num_row_groups > 2
    file = stitched(storage, [none, full, none, holed], PLAIN)
    metadata = metadata_of(storage, file)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [5, 4, 5, 4]
    assert read_stored(storage, file).equals(rows_of(storage, [full, holed]))


def test_what_a_manifest_says_is_the_sum_of_what_it_said(storage):
    files = [with_metrics(storage, file, SCHEMA) for file in some_files(storage)]
    file = stitch(files, storage, STITCHED, schema=SCHEMA, sort_order_id=None)
    again = with_metrics(storage, file, SCHEMA)
    for name in ("record_count", "column_sizes", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds"):
        assert getattr(file, name) == getattr(again, name), name
    assert file.sort_order_id is None
    assert file.first_row_id is None
    assert file.spec_id == 0
    nothing = stitch(files, storage, "memory:/t/n", schema=SCHEMA, modes=dict.fromkeys(SCHEMA.fields_by_id, NONE))
    assert nothing.sort_order_id == 0
    assert not nothing.column_sizes
    assert not nothing.value_counts
    assert not nothing.lower_bounds


@cases(30)
@given(
    st.lists(rows(EVERY_TYPE), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from(["zstd", "none"]),
    st.sampled_from(sorted(ALL_FORMS)),
)
def test_any_rows_cut_anywhere_are_the_same_put_together(parts, row_group_rows, codec, form):
    storage = MemoryStorage()
    options = {key: value for key, value in ALL_FORMS[form].items() if key != "bloom_filter_options"}
    files = [
        put_table(storage, f"memory:/t/{n}", table_of(EVERY_TYPE, part), row_group_rows, compression=codec, **options)
        for n, part in enumerate(parts)
    ]
    file = stitched(storage, files, EVERY_TYPE, compression=codec)
    whole = parquet_bytes(table_of(EVERY_TYPE, [row for part in parts for row in part]))
    # NaN are not equal to each other, so texts are compared.
    assert str(read_stored(storage, file).to_pylist()) == str(pq.ParquetFile(io.BytesIO(whole)).read().to_pylist())


@pytest.mark.server
def test_files_in_an_object_store_are_stitched_with_a_few_large_reads():
    server = ObjectStore()
    try:
        storage = ObjectStorage(server.properties(), SYSTEM)
        root = f"s3://{server.new_bucket()}/t"
        files = some_files(storage, 2, directory=root, **INDEXED | FILTERS)
        before = len(server.requests)
        file = stitched(storage, files, SCHEMA, f"{root}/stitched.parquet")
        requests_count = len(server.requests) - before
        assert read_stored(storage, file).equals(rows_of(storage, files))
        check_offset_indexes(storage, file)
    finally:
        server.close()
    # Row groups and columns do not count: 6 of the one, 6 of the other.
    assert requests_count <= 30


# What goes wrong.


def test_nothing_is_left_when_a_file_is_not_what_its_entry_says(storage):
    first, second = some_files(storage, 2)
    wrong = msgspec.structs.replace(second, record_count=251)
    with pytest.raises(InvalidTableError, match="has 250 rows where its manifest says 251"):
        stitch([first, wrong], storage, STITCHED, schema=SCHEMA)
    shorter = msgspec.structs.replace(second, file_size_in_bytes=second.file_size_in_bytes - 1)
    with pytest.raises(InvalidTableError, match="in-1"):
        stitch([first, shorter], storage, STITCHED, schema=SCHEMA)
    storage.delete_many([second.file_path])
    with pytest.raises(MissingFileError, match="in-1"):
        stitch([first, second], storage, STITCHED, schema=SCHEMA)
    assert set(contents(storage, "memory:/t")) == {"in-0.parquet"}


def test_encrypted_entries_are_not_stitched(storage):
    (file,) = some_files(storage, 1)
    with pytest.raises(UnsupportedError, match="it is encrypted"):
        stitch([msgspec.structs.replace(file, key_metadata=b"k")], storage, STITCHED, schema=SCHEMA)


def test_files_whose_rows_would_lose_their_ids_are_not_stitched(storage):
    (file,) = some_files(storage, 1)
    with pytest.raises(UnsupportedError, match="inherit their row ids") as error:
        stitch([msgspec.structs.replace(file, first_row_id=7)], storage, STITCHED, schema=SCHEMA)
    assert error.value.facts["reason"] == "its rows inherit their row ids"


def test_no_more_row_groups_than_can_be_numbered_are_put_together(storage, monkeypatch):
    files = some_files(storage, 2)
    monkeypatch.setattr(stitching, "MAX_ROW_GROUPS", 5)
    with pytest.raises(UnsupportedError, match="6 row groups cannot be put into one file, only 5"):
        stitch(files, storage, STITCHED, schema=SCHEMA)
    monkeypatch.setattr(stitching, "MAX_ROW_GROUPS", 6)
    monkeypatch.setattr(stitching, "MAX_STITCHED_FOOTER_BYTES", 1000)
    with pytest.raises(UnsupportedError, match="footer of the files, put into one, would be too large"):
        stitch(files, storage, STITCHED, schema=SCHEMA)


def test_files_without_rows_are_not_put_together(storage):
    file = put_table(storage, "memory:/t/f", some_rows(0, 0))
    with pytest.raises(IcekeepBug):
        stitch([file], storage, STITCHED, schema=SCHEMA)


def test_a_name_that_is_taken_stays_as_it_is(storage):
    files = some_files(storage)
    storage.create(STITCHED, b"theirs")
    with pytest.raises(FileExistsError):
        stitch(files, storage, STITCHED, schema=SCHEMA)
    assert storage.read(STITCHED) == b"theirs"


@pytest.mark.parametrize("number", range(4))
def test_nothing_is_left_when_reading_a_file_fails(storage, number):
    files = some_files(storage, 2)
    opened = iter(range(100))

    def fail(operation, location):
        if operation == "open" and next(opened) == number:
            raise UnavailableError("the store is out of reach")

    with pytest.raises(UnavailableError):
        stitch(files, HookedStorage(storage, fail), STITCHED, schema=SCHEMA)
    assert STITCHED not in storage.files


@pytest.mark.parametrize("number", [4, 5])
def test_a_file_that_cannot_be_read_back_is_deleted(storage, number):
    files = some_files(storage, 2)
    opened = iter(range(100))

    def fail(operation, location):
        if operation == "open" and next(opened) == number:
            assert location == STITCHED
            raise UnavailableError("the store is out of reach")

    with pytest.raises(UnavailableError):
        stitch(files, HookedStorage(storage, fail), STITCHED, schema=SCHEMA)
    assert set(contents(storage, "memory:/t")) == {"in-0.parquet", "in-1.parquet"}


@pytest.mark.parametrize("place", ["first page", "last row group", "footer", "tail"])
def test_a_file_that_is_not_as_it_was_meant_is_deleted(storage, place):
    """A store that spoils what it is given: found by reading it back."""
    files = some_files(storage, 2)

    def spoil(operation, location):
        if operation == "write":
            data = bytearray(storage.read(location))
            last = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(5).column(0)
            start = last.dictionary_page_offset or last.data_page_offset
            at = {"first page": 4, "last row group": start, "footer": len(data) - 200, "tail": len(data) - 2}[place]
            data[at : at + 2] = b"\xff\xff"
            storage.delete_many([location])
            storage.create(location, bytes(data))

    with pytest.raises(IcekeepBug, match=re.escape(STITCHED)):
        stitch(files, HookedStorage(storage, after=spoil), STITCHED, schema=SCHEMA)
    assert set(contents(storage, "memory:/t")) == {"in-0.parquet", "in-1.parquet"}


INDEXED_FILE = parquet_bytes(some_rows(0, 60), 20, compression="zstd", write_page_index=True)


def index_range():
    metadata = Struct(INDEXED_FILE, len(INDEXED_FILE) - 8 - int.from_bytes(INDEXED_FILE[-8:-4], "little"))
    chunks = [chunk for group in metadata.structs(4) for chunk in group.structs(1)]
    return min(c.value(4) for c in chunks), max(c.value(4) + c.value(5) for c in chunks)


@cases(200)
@given(st.lists(st.tuples(st.integers(*index_range()), st.integers(0, 255)), min_size=1, max_size=3), st.booleans())
def test_damaged_pages_or_indexes_are_an_error_of_one_line_or_a_file_that_can_be_read(changes, first_bytes):
    data = bytearray(INDEXED_FILE)
    for position, byte in changes:
        data[position - index_range()[0] if first_bytes else min(position, index_range()[1] - 1)] = byte
    storage = MemoryStorage()
    file = put_bytes(storage, "memory:/t/f", bytes(data), 60)
    message = ""
    try:
        stitch([file], storage, STITCHED, schema=SCHEMA)
    except (InvalidTableError, UnsupportedError) as error:
        message = error.message
    if message:
        assert "\n" not in message
        assert "memory:/t/f" in message
        assert STITCHED not in storage.files
    else:
        assert read_footer(storage, STITCHED, len(storage.read(STITCHED))).row_count == 60


FOOTER_RANGE = (len(INDEXED_FILE) - 8 - int.from_bytes(INDEXED_FILE[-8:-4], "little"), len(INDEXED_FILE) - 9)


@cases(300)
@given(st.lists(st.tuples(st.integers(*FOOTER_RANGE), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_damaged_footer_is_never_stitched_to_a_file_that_cannot_be_read(changes):
    data = bytearray(INDEXED_FILE)
    for position, byte in changes:
        data[position] = byte
    storage = MemoryStorage()
    file = put_bytes(storage, "memory:/t/f", bytes(data), 60)
    wanted = ParquetOptions(columns=ParquetColumns(bloom_filters={"s": True}))
    rules = stitching.StitchRules(schema=SCHEMA, options=WriteOptions(encoding=wanted), floor_bytes=1)
    message = ""
    try:
        answer_for(storage, file, rules)
        stitch([file], storage, STITCHED, schema=SCHEMA)
    except (InvalidTableError, UnsupportedError) as error:
        message = error.message
    if message:
        assert "\n" not in message
        assert "memory:/t/f" in message
        assert STITCHED not in storage.files
    else:
        assert read_footer(storage, STITCHED, len(storage.read(STITCHED))).row_count == 60
