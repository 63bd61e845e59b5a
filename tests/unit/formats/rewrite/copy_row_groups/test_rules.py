"""What is stitched, and what is not."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeep.errors import UnsupportedError
from icekeep.formats.options import OrcOptions, ParquetColumns, ParquetOptions, WriteOptions
from icekeep.formats.parquet.footer import read_footer
from icekeep.formats.rewrite import copy_row_groups as stitching
from icekeep.formats.rewrite.copy_row_groups import NotStitchable, Stitchable, stitch
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.types import LONG
from kit.columns import column, parquet_bytes, schema_of, table_of
from kit.stitched import (
    FILTERS,
    PLAIN,
    SCHEMA,
    STITCHED,
    answer_for,
    metadata_of,
    put_bytes,
    put_table,
    reason_for,
    rules_for,
    some_files,
    some_rows,
)
from kit.storage import HookedStorage, MemoryStorage

LINEAGE = (ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)


@pytest.fixture
def storage():
    return MemoryStorage()


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


def test_a_location_that_no_storage_serves_is_not_taken_for_a_file_that_cannot_be_stitched(storage):
    (file,) = some_files(storage, 1)
    with pytest.raises(UnsupportedError, match="is not in memory"):
        answer_for(storage, file, rules_for(SCHEMA), location="ftp://elsewhere/f.parquet")


def test_nothing_is_stitched_in_a_table_that_writes_another_format(storage):
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


def test_stored_lineage_does_not_come_back_where_the_entry_has_no_row_id(storage):
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


def test_only_files_that_say_the_same_once_for_all_row_groups_have_one_key(storage):
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
