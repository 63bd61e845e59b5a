import io
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError
from icekeep.formats.arrow.schema import stored_schema
from icekeep.formats.parquet.footer import read_footer, read_schema
from icekeep.formats.parquet.thrift import (
    BINARY,
    I32,
    STRUCT,
    Damaged,
    binary_bytes,
    list_bytes,
    struct_bytes,
)
from icekeep.spec.avro import encode_long
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.types import (
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    UUID,
    ListType,
    MapType,
    StructType,
    decimal,
    fixed,
)
from kit.cases import cases, for_each
from kit.columns import EVERY_TYPE, column, empty_table, parquet_bytes, rows, schema_of, table_of
from kit.spliced import put_bytes, put_table
from kit.storage import HookedStorage, MemoryStorage
from kit.strategies import schemas

SCHEMA = schema_of(column(1, "n", LONG), column(2, "s", STRING), column(3, "i", INT, required=True))
LOCATION = "memory:/t/f.parquet"
CODECS = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4": 7}


def some_rows(count):
    return table_of(SCHEMA, [{"n": n if n % 3 else None, "s": f"text {n}", "i": n} for n in range(count)])


def footer_of(data, size_bytes=None):
    storage = MemoryStorage()
    put_bytes(storage, LOCATION, data, 0)
    return read_footer(storage, LOCATION, len(data) if size_bytes is None else size_bytes)


class Ranges:
    """A storage that remembers what was read."""

    def __init__(self, storage):
        self.storage = storage
        self.read = []

    def open(self, location):
        ranges = self

        class Stream(io.BytesIO):
            def read(self, length=-1):
                ranges.read.append((self.tell(), length))
                return super().read(length)

        return Stream(self.storage.read(location))


@pytest.mark.slow
@given(rows(EVERY_TYPE), st.integers(1, 3), st.sampled_from(sorted(CODECS)), st.booleans())
@cases(30)
def test_a_footer_says_what_pyarrow_reads_in_it(data, row_group_rows, codec, indexed):
    file = parquet_bytes(
        table_of(EVERY_TYPE, data), row_group_rows, compression=codec, write_page_index=indexed, store_schema=indexed
    )
    known = pq.ParquetFile(io.BytesIO(file)).metadata
    footer = footer_of(file)
    assert footer.row_count == known.num_rows
    assert [g.row_count for g in footer.row_groups] == [
        known.row_group(n).num_rows for n in range(known.num_row_groups)
    ]
    assert footer.codecs == {CODECS[codec]}
    assert footer.common_fields[3].endswith(known.created_by.encode())
    assert (footer.common_fields[2] is not None) == indexed
    for number, group in enumerate(footer.row_groups):
        for position, chunk in enumerate(group.chunks):
            theirs = known.row_group(number).column(position)
            assert chunk.compressed_bytes == theirs.total_compressed_size
            assert chunk.start == (theirs.dictionary_page_offset or theirs.data_page_offset)
            assert (chunk.offset_index is not None) == indexed == theirs.has_offset_index
            assert chunk.null_count == (theirs.statistics.null_count if theirs.is_stats_set else None)
        assert group.start == group.chunks[0].start


def test_statistics_of_a_column_are_found_by_its_field_id():
    footer = footer_of(parquet_bytes(some_rows(9), 3, bloom_filter_options={"s": {"ndv": 9}}))
    assert [chunk.null_count for chunk in footer.chunks_of(1)] == [1, 1, 1]
    assert [chunk.has_bloom_filter for chunk in footer.chunks_of(2)] == [True] * 3
    assert [chunk.has_bloom_filter for chunk in footer.chunks_of(1)] == [False] * 3
    assert footer.chunks_of(4) is None


@pytest.mark.slow
def test_a_short_footer_takes_one_read_and_a_long_one_two():
    for row_group_rows, reads in ((None, 1), (1, 2)):
        storage = MemoryStorage()
        file = put_table(storage, LOCATION, some_rows(600), row_group_rows)
        ranges = Ranges(storage)
        footer = read_footer(ranges, LOCATION, file.file_size_in_bytes)
        assert footer.row_count == 600
        assert len(ranges.read) == reads
        assert (len(footer.data) > 64 * 1024) == (reads == 2)
        assert sum(length for _, length in ranges.read) <= 64 * 1024 + len(footer.data)


def test_a_file_that_is_not_there_is_missing():
    with pytest.raises(MissingFileError):
        read_footer(MemoryStorage(), LOCATION, 100)


@for_each("size_bytes", [0, 3, 8, 11, 12, -1, 1, 100_000])
def test_a_file_of_another_length_than_metadata_says_is_invalid(size_bytes):
    data = parquet_bytes(some_rows(9))
    size_bytes = len(data) + size_bytes if abs(size_bytes) == 1 else size_bytes
    with pytest.raises(InvalidTableError, match=re.escape(LOCATION)):
        footer_of(data, size_bytes)


@for_each("data", [b"", b"PAR1", b"PAR1" + bytes(4) + b"PAR1", b"PAR1\xff\xff\xff\xffPAR1", b"x" * 50])
def test_what_is_no_parquet_file_is_invalid(data):
    with pytest.raises(InvalidTableError, match=re.escape(LOCATION)):
        footer_of(data)


def test_columns_in_another_file_cannot_be_moved():
    data = parquet_bytes(some_rows(9))
    collected = pq.ParquetFile(io.BytesIO(data)).metadata
    collected.set_file_path("other.parquet")
    out = io.BytesIO()
    collected.write_metadata_file(out)
    with pytest.raises(UnsupportedError) as error:
        footer_of(out.getvalue())
    assert error.value.facts["reason"] == "columns are in another file"


class Keys(pe.KmsClient):
    """Keys that are kept as they are."""

    def wrap_key(self, key_bytes, master_key_identifier):
        return key_bytes.hex()

    def unwrap_key(self, wrapped_key, master_key_identifier):
        return bytes.fromhex(wrapped_key)


@pytest.mark.parametrize(
    ("plaintext_footer", "reason"),
    [(False, "the footer is encrypted"), (True, "columns are encrypted, or the footer is signed")],
)
def test_encrypted_files_cannot_be_moved(plaintext_footer, reason):
    settings = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["n"]}, plaintext_footer=plaintext_footer, double_wrapping=False
    )
    factory = pe.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), settings)
    with pytest.raises(UnsupportedError) as error:
        footer_of(parquet_bytes(some_rows(9), encryption_properties=properties))
    assert error.value.facts["reason"] == reason
    assert LOCATION in error.value.message


def test_fields_that_are_not_known_cannot_be_moved_since_they_may_name_places():
    data = parquet_bytes(some_rows(9))
    footer = footer_of(data).data
    # A field 19 of one bit at the end of the footer, as a later version of the format may have.
    grown = footer[:-1] + bytes([12 << 4 | 1]) + b"\0"
    file = data[: -8 - len(footer)] + grown + len(grown).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(UnsupportedError) as error:
        footer_of(file)
    assert error.value.facts["reason"] == "the footer has fields that icekeep does not know"


WHOLE = parquet_bytes(
    some_rows(9), 3, compression="zstd", write_page_index=True, bloom_filter_options={"n": {"ndv": 9}}
)
FOOTER_START = len(WHOLE) - 8 - int.from_bytes(WHOLE[-8:-4], "little")


@cases(400)
@given(st.lists(st.tuples(st.integers(FOOTER_START, len(WHOLE) - 9), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_footer_is_an_error_of_one_line_or_describes_what_lies_in_the_file(changes):
    data = bytearray(WHOLE)
    for position, byte in changes:
        data[position] = byte
    assume(bytes(data) != WHOLE)
    footer, message = None, ""
    try:
        footer = footer_of(bytes(data))
    except (InvalidTableError, UnsupportedError) as error:
        message = error.message
    if footer is None:
        assert "\n" not in message
        assert LOCATION in message
        return
    assert sum(group.row_count for group in footer.row_groups) == footer.row_count
    for group in footer.row_groups:
        assert len(group.chunks) == len(footer.stored.leaves)
        for chunk in group.chunks:
            assert not group.row_count or 4 <= chunk.start <= chunk.start + chunk.compressed_bytes <= footer.start


@cases(100)
@given(st.binary(max_size=200))
def test_any_bytes_as_a_footer_are_an_error_of_one_line(footer):
    with pytest.raises((InvalidTableError, UnsupportedError)) as error:
        footer_of(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert "\n" not in error.value.message
    assert LOCATION in error.value.message


def test_reading_a_footer_reads_nothing_else():
    storage = MemoryStorage()
    file = put_table(storage, LOCATION, some_rows(9))
    hooked = HookedStorage(storage)
    read_footer(hooked, LOCATION, file.file_size_in_bytes)
    assert dict(hooked.fired) == {"open": 1}


ID = b"PARQUET:field_id"
A = column(1, "a", INT)


def stored(table, **options):
    storage = MemoryStorage()
    file = put_bytes(storage, "memory:/t/f", parquet_bytes(table, **options))
    return read_footer(storage, file.file_path, file.file_size_in_bytes).stored


def stored_as(schema):
    return stored(empty_table(schema))


def foreign(*fields):
    return stored(pa.schema([f.with_metadata({ID: b"1"}) if not f.metadata else f for f in fields]).empty_table())


def holds(file_columns, table_columns):
    return stored_as(schema_of(*file_columns)).holds(schema_of(*table_columns))


@pytest.mark.parametrize("as_integer", [True, False])
def test_a_file_holds_the_columns_that_it_was_written_with(as_integer):
    assert stored(empty_table(EVERY_TYPE), store_decimal_as_integer=as_integer).holds(EVERY_TYPE)


@pytest.mark.slow
@given(schemas())
def test_a_file_of_any_schema_holds_its_columns(schema):
    try:
        written = stored_schema(schema)
        table = empty_table(written)
    except UnsupportedError:
        # Of types that files cannot hold, or that nobody can interpret.
        return
    assert stored(table).holds(schema)


def test_leaves_are_the_columns_of_row_groups_in_their_order():
    data = parquet_bytes(empty_table(EVERY_TYPE))
    names = pq.ParquetFile(io.BytesIO(data)).schema.names
    leaves = stored_as(EVERY_TYPE).leaves
    assert len(leaves) == len(names)
    assert [leaf.field_id for leaf in leaves[:3]] == [1, 2, 3]
    # Only the column `key` is required; what is required within something optional may be missing with it.
    assert [leaf.field_id for leaf in leaves if leaf.is_required] == [20]


@pytest.mark.parametrize(
    "now",
    [
        [column(1, "renamed", INT), column(2, "b", STRING)],
        [column(2, "b", STRING), column(1, "a", INT)],
        [column(1, "a", INT, required=True), column(2, "b", STRING)],
        [column(1, "a", INT), column(2, "b", STRING), column(3, "c", UNKNOWN)],
    ],
    ids=["name", "order", "required", "unknown"],
)
def test_columns_are_the_same_whatever_their_names_order_and_nulls(now):
    assert holds([A, column(2, "b", STRING)], now)


@pytest.mark.parametrize(
    "now",
    [
        [column(1, "a", LONG), column(2, "b", STRING)],
        [column(1, "a", INT)],
        [column(1, "a", INT), column(2, "b", STRING), column(3, "c", INT)],
        [column(3, "a", INT), column(2, "b", STRING)],
        [column(1, "a", INT), column(2, "b", StructType((column(3, "c", STRING),)))],
    ],
    ids=["promoted", "dropped", "added", "another id", "nested"],
)
def test_columns_that_the_schema_has_otherwise_are_not_held(now):
    assert not holds([A, column(2, "b", STRING)], now)


@for_each(
    ("file", "table"),
    [
        (decimal(9, 2), decimal(10, 2)),
        (decimal(9, 2), decimal(9, 3)),
        (fixed(16), UUID),
        (fixed(5), fixed(6)),
        (TIMESTAMP, TIMESTAMPTZ),
        (TIMESTAMP, TIMESTAMP_NS),
        (TIMESTAMPTZ, TIMESTAMPTZ_NS),
        (FLOAT, DOUBLE),
        (DATE, TIMESTAMP),
        (DATE, INT),
        (ListType(element_id=2, element=INT), ListType(element_id=2, element=LONG)),
        (ListType(element_id=2, element=INT), ListType(element_id=3, element=INT)),
        (
            MapType(key_id=2, key=INT, value_id=3, value=INT),
            MapType(key_id=3, key=INT, value_id=2, value=INT),
        ),
        (StructType((column(2, "x", INT),)), StructType((column(2, "x", INT), column(3, "y", INT)))),
        (StructType((column(2, "x", INT), column(3, "y", INT))), StructType((column(2, "x", INT),))),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_not_held(file, table):
    assert holds([column(1, "a", file)], [column(1, "a", file)])
    assert not holds([column(1, "a", file)], [column(1, "a", table)])


@for_each(
    ("type_", "table"),
    [
        (pa.int16(), INT),
        (pa.uint32(), LONG),
        (pa.uint64(), LONG),
        (pa.timestamp("ms"), TIMESTAMP),
        (pa.time32("ms"), INT),
        (pa.float16(), FLOAT),
    ],
    ids=str,
)
def test_a_column_stored_as_iceberg_stores_none_is_not_held(type_, table):
    assert not foreign(pa.field("a", type_)).holds(schema_of(column(1, "a", table)))


def test_a_file_without_field_ids_holds_no_columns():
    assert not stored(pa.schema([pa.field("a", pa.int32())]).empty_table()).holds(schema_of(A))
    nested = pa.field("a", pa.list_(pa.field("element", pa.int32())))
    assert not foreign(nested).holds(schema_of(column(1, "a", ListType(element_id=2, element=INT))))


def test_columns_of_row_lineage_may_be_there_or_not():
    with_lineage = schema_of(A, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)
    assert stored_as(with_lineage).holds(schema_of(A))
    assert not stored_as(schema_of(A, column(2147483546, "file_path", STRING))).holds(schema_of(A))


def element(name, *fields):
    return struct_bytes([*((f, I32, encode_long(v)) for f, v in fields if f < 4), (4, BINARY, binary_bytes(name)),
                         *((f, I32, encode_long(v)) for f, v in fields if f > 4)])  # fmt: skip


def elements(*nodes):
    return read_schema(list_bytes(STRUCT, [element(b"root", (5, 1)), *nodes]))


def test_the_older_annotations_are_understood():
    def is_type(type_, *fields):
        return elements(element(b"a", *fields, (9, 1))).holds(schema_of(column(1, "a", type_)))

    assert is_type(STRING, (1, 6), (3, 1), (6, 0))
    assert is_type(DATE, (1, 1), (3, 1), (6, 6))
    assert is_type(TIMESTAMPTZ, (1, 2), (3, 1), (6, 10))
    assert is_type(decimal(9, 2), (1, 1), (3, 1), (6, 5), (7, 2), (8, 9))
    # UINT_32, TIMESTAMP_MILLIS and INT96.
    assert not is_type(INT, (1, 1), (3, 1), (6, 13))
    assert not is_type(TIMESTAMPTZ, (1, 2), (3, 1), (6, 9))
    assert not is_type(TIMESTAMP, (1, 3), (3, 1))


def test_only_lists_in_three_levels_are_held():
    table = schema_of(column(1, "a", ListType(element_id=2, element=INT)))
    three = [
        element(b"a", (3, 1), (5, 1), (6, 3), (9, 1)),
        element(b"list", (3, 2), (5, 1)),
        element(b"element", (1, 1), (3, 1), (9, 2)),
    ]
    assert elements(*three).holds(table)
    two = [element(b"a", (3, 1), (5, 1), (6, 3), (9, 1)), element(b"array", (1, 1), (3, 2), (9, 2))]
    assert not elements(*two).holds(table)
    assert len(elements(*two).leaves) == 1
    alone = [element(b"a", (1, 1), (3, 2), (9, 1))]
    assert not elements(*alone).holds(table)


@pytest.mark.parametrize(
    "data",
    [
        list_bytes(STRUCT, []),
        list_bytes(STRUCT, [element(b"root", (5, 2)), element(b"a", (1, 1), (3, 1))]),
        list_bytes(STRUCT, [element(b"root", (5, 0)), element(b"a", (1, 1), (3, 1))]),
        list_bytes(STRUCT, [element(b"root", (5, 1))] + [element(b"s", (3, 1), (5, 1))] * 2000),
        list_bytes(STRUCT, [element(b"root", (5, 1)), element(b"l", (3, 1), (5, 2**31 - 1), (6, 3))]),
        list_bytes(STRUCT, [element(b"root", (5, 2**62)), element(b"a", (1, 1), (3, 1))]),
    ],
    ids=["empty", "too few", "too many", "too deep", "no middle", "huge"],
)
def test_a_schema_that_does_not_fit_itself_is_damaged(data):
    with pytest.raises(Damaged):
        read_schema(data)
