import io
import math
import re

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepBug, InvalidTableError, MissingFileError, UnavailableError, UnsupportedError
from icekeep.formats.options import OrcOptions, ParquetColumns, ParquetOptions, WriteOptions
from icekeep.formats.parquet.footer import read_footer
from icekeep.formats.parquet.thrift import Struct
from icekeep.formats.rewrite import copy_row_groups as stitching
from icekeep.formats.rewrite.copy_row_groups import NotStitchable, Stitchable, stitch, stitched_metrics
from icekeep.runtime import SYSTEM
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import NONE, metrics_modes
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.types import BINARY, DOUBLE, INT, LONG, STRING, VARIANT, ListType
from icekeep.spec.values import value_from_bytes, value_to_bytes
from icekeep.storage.objects.storage import ObjectStorage
from kit.cases import cases
from kit.columns import EVERY_TYPE, column, parquet_bytes, rows, schema_of, table_of
from kit.object_store import ObjectStore
from kit.spliced import (
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
    reason_for,
    rows_of,
    rules_for,
    some_files,
    some_rows,
    stitched,
    with_metrics,
)
from kit.storage import HookedStorage, MemoryStorage, contents

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


@pytest.mark.slow
@pytest.mark.parametrize("form", ALL_FORMS)
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_stitched_file_keeps_rows_and_statistics(storage, codec, form):
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 14, 15, 16, 40])
def test_any_number_of_row_groups_is_put_together(storage, count):
    files = [put_table(storage, f"memory:/t/{n}", some_rows(n, 3, PLAIN), 1) for n in range(0, 3 * count, 3)]
    file = stitched(storage, files, PLAIN)
    assert read_stored(storage, file).equals(rows_of(storage, files))
    assert metadata_of(storage, file).num_row_groups == 3 * count


@pytest.mark.slow
def test_a_stitched_file_can_be_stitched_again(storage):
    files = some_files(storage, 4, **INDEXED | FILTERS)
    first = stitched(storage, files[:2], SCHEMA, "memory:/t/first")
    second = stitched(storage, files[2:], SCHEMA, "memory:/t/second")
    both = stitched(storage, [first, second], SCHEMA)
    assert read_stored(storage, both).equals(rows_of(storage, files))
    check_offset_indexes(storage, both)


@pytest.mark.slow
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


@pytest.mark.slow
def test_files_and_row_groups_without_rows_leave_none(storage):
    full = put_table(storage, "memory:/t/a", some_rows(0, 9, PLAIN), 5, write_page_index=True)
    none = put_table(storage, "memory:/t/b", some_rows(0, 0, PLAIN), write_page_index=True)
    holed = put_bytes(storage, "memory:/t/c", with_empty_group(some_rows(20, 9, PLAIN)))
    assert metadata_of(storage, holed).num_row_groups > 2
    file = stitched(storage, [none, full, none, holed], PLAIN)
    metadata = metadata_of(storage, file)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [5, 4, 5, 4]
    assert read_stored(storage, file).equals(rows_of(storage, [full, holed]))


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.server
def test_stitching_in_object_store_takes_few_reads():
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_encrypted_entries_are_not_stitched(storage):
    (file,) = some_files(storage, 1)
    with pytest.raises(UnsupportedError, match="it is encrypted"):
        stitch([msgspec.structs.replace(file, key_metadata=b"k")], storage, STITCHED, schema=SCHEMA)


@pytest.mark.slow
def test_files_whose_rows_would_lose_their_ids_are_not_stitched(storage):
    (file,) = some_files(storage, 1)
    with pytest.raises(UnsupportedError, match="inherit their row ids") as error:
        stitch([msgspec.structs.replace(file, first_row_id=7)], storage, STITCHED, schema=SCHEMA)
    assert error.value.facts["reason"] == "its rows inherit their row ids"


@pytest.mark.slow
def test_row_group_and_footer_limits_are_enforced(storage, monkeypatch):
    files = some_files(storage, 2)
    monkeypatch.setattr(stitching, "MAX_ROW_GROUPS", 5)
    with pytest.raises(UnsupportedError, match="6 row groups cannot be put into one file, only 5"):
        stitch(files, storage, STITCHED, schema=SCHEMA)
    monkeypatch.setattr(stitching, "MAX_ROW_GROUPS", 6)
    monkeypatch.setattr(stitching, "MAX_STITCHED_FOOTER_BYTES", 1000)
    with pytest.raises(UnsupportedError, match="footer of the files, put into one, would be too large"):
        stitch(files, storage, STITCHED, schema=SCHEMA)


@pytest.mark.slow
def test_files_without_rows_are_not_put_together(storage):
    file = put_table(storage, "memory:/t/f", some_rows(0, 0))
    with pytest.raises(IcekeepBug):
        stitch([file], storage, STITCHED, schema=SCHEMA)


@pytest.mark.slow
def test_a_name_that_is_taken_stays_as_it_is(storage):
    files = some_files(storage)
    storage.create(STITCHED, b"theirs")
    with pytest.raises(FileExistsError):
        stitch(files, storage, STITCHED, schema=SCHEMA)
    assert storage.read(STITCHED) == b"theirs"


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@cases(200)
@given(st.lists(st.tuples(st.integers(*index_range()), st.integers(0, 255)), min_size=1, max_size=3), st.booleans())
def test_damaged_pages_give_clean_error_or_readable_file(changes, first_bytes):
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


@pytest.mark.slow
@cases(300)
@given(st.lists(st.tuples(st.integers(*FOOTER_RANGE), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_footer_never_yields_unreadable_file(changes):
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


LINEAGE = (ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)


def test_a_file_as_the_table_would_write_it_can_be_stitched(storage):
    (file,) = some_files(storage, 1)
    answer = answer_for(storage, file, rules_for(SCHEMA))
    assert isinstance(answer, Stitchable)
    assert answer.row_groups_count == 3
    assert answer.footer_bytes == len(read_footer(storage, file.file_path, file.file_size_in_bytes).data)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"file_format": "ORC"}, "the format is not Parquet"),
        ({"deletes": (0,)}, "deletes reach it"),
        ({"split": (4, 100)}, "it is read in parts"),
        ({"record_count": 0}, "it has no rows"),
    ],
)
def test_what_is_known_without_the_footer_costs_no_read(storage, facts, reason):
    (file,) = some_files(storage, 1)
    hooked = HookedStorage(storage)
    assert reason_for(hooked, file, rules_for(SCHEMA), **facts) == reason
    assert not hooked.fired


def test_unserved_location_is_an_error_not_a_refusal(storage):
    """A location that no storage serves is not reported as a file that cannot be stitched."""
    (file,) = some_files(storage, 1)
    with pytest.raises(UnsupportedError, match="is not in memory"):
        answer_for(storage, file, rules_for(SCHEMA), location="ftp://elsewhere/f.parquet")


def test_nothing_is_stitched_in_a_non_parquet_table(storage):
    (file,) = some_files(storage, 1)
    rules = stitching.StitchRules(schema=SCHEMA, options=WriteOptions(encoding=OrcOptions()))
    assert reason_for(storage, file, rules) == "the format is not Parquet"


def test_small_row_groups_are_not_stitched(storage):
    file = put_table(storage, "memory:/t/f", some_rows(0, 5000), 1000)
    sizes = [metadata_of(storage, file).row_group(n) for n in range(5)]
    mean = sum(g.column(c).total_compressed_size for g in sizes for c in range(g.num_columns)) // 5
    assert isinstance(answer_for(storage, file, rules_for(SCHEMA, floor_bytes=mean)), Stitchable)
    reason = f"its row groups are smaller than {mean + 1:,} bytes"
    assert reason_for(storage, file, rules_for(SCHEMA, floor_bytes=mean + 1)) == reason
    # A file that is smaller than one row group should be is not even opened.
    hooked = HookedStorage(storage)
    assert "smaller than 1,000,000 bytes" in reason_for(hooked, file, rules_for(SCHEMA, floor_bytes=1_000_000))
    assert not hooked.fired


def test_the_floor_is_32_mib():
    rules = stitching.StitchRules(schema=SCHEMA, options=WriteOptions())
    assert rules.floor_bytes == stitching.STITCH_FLOOR_BYTES == 32 * 1024 * 1024


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_only_files_of_the_tables_codec_are_stitched(storage, codec):
    (file,) = some_files(storage, 1, compression=codec)
    for other in ("none", "snappy", "gzip", "brotli", "lz4", "zstd"):
        answer = answer_for(storage, file, rules_for(SCHEMA, other))
        assert answer == NotStitchable("its codec is not the table's") if other != codec else answer.key


def test_files_with_columns_of_another_codec_are_not_stitched(storage):
    (file,) = some_files(storage, 1, schema=PLAIN, compression={"n": "zstd", "s": "snappy"})
    assert reason_for(storage, file, rules_for(PLAIN)) == "its codec is not the table's"


def test_files_from_before_the_schema_changed_are_not_stitched(storage):
    (file,) = some_files(storage, 1, schema=PLAIN)
    assert reason_for(storage, file, rules_for(SCHEMA)) == "its columns are not those of the table's schema"


def test_files_without_field_ids_are_not_stitched(storage):
    table = some_rows(0, 10, PLAIN).replace_schema_metadata(None)
    bare = table.cast(pa.schema([f.remove_metadata() for f in table.schema]))
    file = put_table(storage, "memory:/t/f", bare)
    assert reason_for(storage, file, rules_for(PLAIN)) == "its columns are not those of the table's schema"


def test_timestamps_of_96_bits_are_not_stitched(storage):
    schema = schema_of(column(1, "n", LONG))
    table = pa.table({"n": pa.array([1, 2], pa.timestamp("ns"))})
    file = put_table(storage, "memory:/t/f", table, use_deprecated_int96_timestamps=True, version="1.0")
    assert reason_for(storage, file, rules_for(schema)) == "it has timestamps of 96 bits"
    with pytest.raises(UnsupportedError, match="96 bits"):
        stitch([file], storage, STITCHED, schema=schema)


def test_a_table_that_wants_bloom_filters_gets_them(storage):
    columns = ParquetColumns(bloom_filters={"s": True, "n": False, "gone": True})
    options = WriteOptions(encoding=ParquetOptions(columns=columns))
    rules = stitching.StitchRules(schema=SCHEMA, options=options, floor_bytes=1)
    without = put_table(storage, "memory:/t/a", some_rows(0, 9), use_dictionary=False)
    assert reason_for(storage, without, rules) == "it lacks bloom filters that the table asks for"
    having = put_table(storage, "memory:/t/b", some_rows(0, 9), use_dictionary=False, **FILTERS)
    assert isinstance(answer_for(storage, having, rules), Stitchable)
    # A dictionary that holds all values says as much as a filter; one that was given up does not.
    told = put_table(storage, "memory:/t/c", some_rows(0, 9), use_dictionary=True)
    assert isinstance(answer_for(storage, told, rules), Stitchable)
    half = put_table(storage, "memory:/t/d", some_rows(0, 9000), dictionary_pagesize_limit=64, data_page_size=1024)
    assert reason_for(storage, half, rules) == "it lacks bloom filters that the table asks for"


def with_lineage(ids, numbers, required=False):
    fields = [column(f.field_id, f.name, f.type, required) for f in LINEAGE]
    schema = schema_of(*PLAIN.fields, *fields)
    data = zip(ids, numbers, strict=True)
    return table_of(schema, [{"n": 1, "s": "x", "_row_id": i, "_last_updated_sequence_number": n} for i, n in data])


@pytest.mark.parametrize(
    ("ids", "numbers", "facts", "stitchable"),
    [
        ([5, 6, 7], [1, 1, 2], {}, True),
        ([5, None, 7], [1, 1, 2], {}, False),
        ([5, 6, 7], [1, None, 2], {}, False),
        ([5, 6, 7], [1, 1, 2], {"write_statistics": False}, False),
        ([5, 6, 7], [1, 1, 2], {"write_statistics": ["_row_id"]}, False),
    ],
    ids=["stored", "id is null", "number is null", "no statistics", "statistics of one"],
)
def test_rows_keep_their_lineage(storage, ids, numbers, facts, stitchable):
    file = put_table(storage, "memory:/t/f", with_lineage(ids, numbers), 2, **facts)
    answer = answer_for(storage, file, rules_for(PLAIN), first_row_id=100)
    assert isinstance(answer, Stitchable) if stitchable else answer == NotStitchable("its rows inherit their row ids")


def test_stored_lineage_needs_a_row_id_in_the_entry(storage):
    """Such rows are read as rows without ids, and would have these again in a file with a first row id."""
    file = put_table(storage, "memory:/t/f", with_lineage([5, 6, 7], [1, 1, 2]))
    reason = "it stores row ids that its manifest does not know of"
    assert reason_for(storage, file, rules_for(PLAIN)) == reason
    with pytest.raises(UnsupportedError, match=reason):
        stitching.stitch([file], storage, "memory:/t/new", schema=PLAIN)
    assert "memory:/t/new" not in storage.files


def test_rows_that_inherit_ids_are_not_stitched(storage):
    (file,) = some_files(storage, 1)
    assert reason_for(storage, file, rules_for(SCHEMA), first_row_id=0) == "its rows inherit their row ids"
    required = put_table(storage, "memory:/t/g", with_lineage([1], [1], required=True), write_statistics=False)
    assert isinstance(answer_for(storage, required, rules_for(PLAIN), first_row_id=0), Stitchable)


def changed(data, old, new):
    assert len(old) == len(new)
    assert data.count(old)
    return data.replace(old, new)


def noted(table, note):
    out = io.BytesIO()
    with pq.ParquetWriter(out, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"note": note})
    return out.getvalue()


def test_key_covers_all_file_level_facts(storage):
    """Files with equal keys can be stitched together; any other difference gives another key."""
    table = some_rows(0, 50, PLAIN)
    plain = parquet_bytes(table, compression="zstd")
    required = table.cast(pa.schema([f.with_nullable(f.name != "s") for f in table.schema]))
    variants = [
        plain,
        changed(plain, b"parquet-cpp-arrow", b"parquet-cpp-other"),
        noted(table, "1"),
        noted(table, "2"),
        parquet_bytes(required, compression="zstd"),
        parquet_bytes(table, compression="zstd", version="1.0"),
        parquet_bytes(table.select(["s", "n"]), compression="zstd"),
        parquet_bytes(table.rename_columns(["m", "s"]), compression="zstd"),
    ]
    files = [put_bytes(storage, f"memory:/t/{n}", data) for n, data in enumerate(variants)]
    answers = [answer_for(storage, file, rules_for(PLAIN)) for file in files]
    assert len({answer.key for answer in answers}) == len(variants)
    again = put_bytes(storage, "memory:/t/again", parquet_bytes(some_rows(50, 9, PLAIN), 2, compression="zstd"))
    assert answer_for(storage, again, rules_for(PLAIN)).key == answers[0].key
    for other in files[1:]:
        with pytest.raises(UnsupportedError, match="differ in more than their row groups"):
            stitch([files[0], other], storage, STITCHED, schema=PLAIN)


def test_files_with_other_column_orders_have_other_keys(storage):
    data = parquet_bytes(some_rows(0, 50, PLAIN), compression="zstd")
    file = put_bytes(storage, "memory:/t/f", data)
    footer = read_footer(storage, file.file_path, len(data))
    orders = footer.common_fields[4]
    # The order of the type becomes a later kind of order.
    other = put_bytes(storage, "memory:/t/g", changed(data, orders, orders.replace(b"\x1c\0\0", b"\x2c\0\0")), 50)
    assert answer_for(storage, file, rules_for(PLAIN)).key != answer_for(storage, other, rules_for(PLAIN)).key


COLUMNS = schema_of(
    column(1, "n", LONG), column(2, "s", STRING), column(3, "d", DOUBLE), column(4, "b", BINARY),
    column(5, "l", ListType(element_id=6, element=INT)),
)  # fmt: skip


def entry(**facts):
    bounds = {
        name: {id_: value_to_bytes(COLUMNS.fields_by_id[id_].type, value) for id_, value in facts.pop(name).items()}
        for name in ("lower_bounds", "upper_bounds")
        if name in facts
    }
    return DataFile(
        file_path="f",
        file_format="PARQUET",
        spec_id=0,
        **{"record_count": 10, "file_size_in_bytes": 9, **facts, **bounds},
    )


def together(*files, properties=None, schema=COLUMNS):
    return stitched_metrics(files, schema, metrics_modes(properties or {}, schema), (4, 99))


def bounds(metrics, field_id):
    type_ = COLUMNS.fields_by_id[field_id].type
    return tuple(
        value_from_bytes(type_, found[field_id]) if field_id in found else None
        for found in (metrics.lower_bounds, metrics.upper_bounds)
    )


def test_counts_and_sizes_are_added_up():
    metrics = together(
        entry(column_sizes={1: 5, 6: 7}, value_counts={1: 10}, null_value_counts={1: 3}, nan_value_counts={3: 1}),
        entry(column_sizes={1: 6, 6: 8}, value_counts={1: 10}, null_value_counts={1: 4}, nan_value_counts={3: 0}),
    )
    assert metrics.record_count == 20
    assert metrics.column_sizes == {1: 11, 6: 15}
    assert metrics.value_counts == {1: 20}
    assert metrics.null_value_counts == {1: 7}
    assert metrics.nan_value_counts == {3: 1}
    assert metrics.split_offsets == (4, 99)


def test_a_count_that_one_file_does_not_tell_is_not_known():
    metrics = together(entry(value_counts={1: 10, 2: 10}, column_sizes={1: 5}), entry(value_counts={2: 10}))
    assert metrics.value_counts == {2: 20}
    assert metrics.column_sizes is None


def test_combined_bounds_use_type_order():
    metrics = together(
        entry(lower_bounds={1: -1, 2: "a\uffff", 4: b"\x7f"}, upper_bounds={1: 2, 2: "a\uffff", 4: b"\x7f"}),
        entry(lower_bounds={1: 256, 2: "a\U00010000", 4: b"\x80"}, upper_bounds={1: 256, 2: "a\U00010000", 4: b"\x80"}),
    )
    assert bounds(metrics, 1) == (-1, 256)
    # By code points, not by the halves that UTF-16 has for some.
    assert bounds(metrics, 2) == ("a\uffff", "a\U00010000")
    assert bounds(metrics, 4) == (b"\x7f", b"\x80")


def test_a_bound_that_one_file_does_not_tell_is_not_known():
    metrics = together(
        entry(lower_bounds={1: 1}, upper_bounds={1: 2}), entry(lower_bounds={1: 0}, value_counts={1: 10})
    )
    assert bounds(metrics, 1) == (0, None)


def test_crossed_bounds_give_no_combined_bounds():
    right = entry(lower_bounds={1: 5, 2: "m"}, upper_bounds={1: 6, 2: "n"})
    crossed = entry(lower_bounds={1: 10, 2: "a"}, upper_bounds={1: 1, 2: "z"})
    for files in ((right, crossed), (crossed, right), (crossed, entry(lower_bounds={1: 2}))):
        assert bounds(together(*files), 1) == (None, None)
    assert bounds(together(right, crossed), 2) == ("a", "z")


def test_a_file_with_nothing_but_nulls_and_nan_needs_no_bounds():
    metrics = together(
        entry(lower_bounds={1: 1, 3: 2.0}, upper_bounds={1: 2, 3: 3.0}),
        entry(value_counts={1: 10, 3: 10}, null_value_counts={1: 10, 3: 4}, nan_value_counts={3: 6}),
    )
    assert bounds(metrics, 1) == (1, 2)
    assert bounds(metrics, 3) == (2.0, 3.0)


def test_a_bound_that_is_no_value_makes_the_column_unknown():
    torn = DataFile(
        file_path="f", file_format="PARQUET", spec_id=0, record_count=1, file_size_in_bytes=1,
        lower_bounds={1: b"123", 2: b"\xff"}, upper_bounds={1: b"123", 2: b"\xff"},
    )  # fmt: skip
    whole = entry(lower_bounds={1: 1, 2: "a", 3: math.nan}, upper_bounds={1: 2, 2: "b", 3: math.nan})
    metrics = together(torn, whole)
    assert bounds(metrics, 1) == bounds(metrics, 2) == (None, None)
    assert bounds(together(whole), 3) == (None, None)


def test_bounds_of_a_type_without_order_are_left_out():
    schema = schema_of(column(1, "v", VARIANT))
    metrics = together(entry(lower_bounds={1: 1}, upper_bounds={1: 2}), schema=schema)
    assert not metrics.lower_bounds
    assert not metrics.upper_bounds


def test_combined_bounds_include_both_zeros():
    metrics = together(entry(lower_bounds={3: 0.0}, upper_bounds={3: -0.0}))
    assert math.copysign(1, bounds(metrics, 3)[0]) == -1
    assert math.copysign(1, bounds(metrics, 3)[1]) == 1


def test_combined_metrics_follow_metrics_modes():
    full = entry(
        column_sizes={1: 5, 2: 5, 3: 5}, value_counts={1: 10, 2: 10, 3: 10}, null_value_counts={1: 0, 2: 0, 3: 0},
        lower_bounds={1: 1, 2: "abcdef", 3: 1.0}, upper_bounds={1: 2, 2: "abcdef", 3: 2.0},
    )  # fmt: skip
    prefix = "write.metadata.metrics.column."
    metrics = together(full, properties={f"{prefix}n": "none", f"{prefix}s": "truncate(3)", f"{prefix}d": "counts"})
    assert metrics.column_sizes == metrics.value_counts | {2: 5, 3: 5}
    assert metrics.value_counts.keys() == metrics.null_value_counts.keys() == {2, 3}
    assert metrics.lower_bounds == {2: b"abc"}
    assert metrics.upper_bounds == {2: b"abd"}


@pytest.mark.slow
@cases(25)
@given(st.lists(rows(EVERY_TYPE), min_size=1, max_size=3))
def test_the_metrics_of_parts_together_are_those_of_the_whole(parts):
    storage = MemoryStorage()
    files = [put_table(storage, f"memory:/t/{n}", table_of(EVERY_TYPE, part)) for n, part in enumerate(parts)]
    whole = put_table(storage, "memory:/t/whole", table_of(EVERY_TYPE, [row for part in parts for row in part]))
    found = together(*(with_metrics(storage, file, EVERY_TYPE) for file in files), schema=EVERY_TYPE)
    expected = with_metrics(storage, whole, EVERY_TYPE)
    assert found.record_count == expected.record_count
    for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        assert getattr(found, name) == getattr(expected, name)
