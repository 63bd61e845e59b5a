import io
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import icekeep.formats.parquet.thrift
import icekeep.spec.schema
import icekeep.spec.types
from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.arrow.schema import stored_schema
from icekeep.formats.parquet import thrift
from icekeep.formats.parquet.footer import read_footer, read_schema
from icekeep.formats.parquet.thrift import (
    BINARY,
    BYTE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
    Damaged,
    Struct,
    binary_bytes,
    integer_at,
    list_bytes,
    struct_bytes,
    structs_at,
    with_integers,
)
from icekeep.formats.parquet.thrift import UUID as UUID_BYTES
from icekeep.spec.avro import encode_long
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
    UUID,
    ListType,
    MapType,
    StructType,
    decimal,
    fixed,
)
from kit.cases import cases, for_each
from kit.columns import EVERY_TYPE, column, empty_table, parquet_bytes, rows, schema_of, table_of
from kit.examples import check_examples
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


def test_footer_with_unknown_fields_is_not_movable():
    """An unknown field may hold an offset, which would be wrong in another file."""
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
def test_damaged_footer_is_a_clean_error_or_consistent(changes):
    """Changed bytes give a one-line error, or a footer that describes ranges within the file."""
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
        (MapType(key_id=2, key=INT, value_id=3, value=INT), MapType(key_id=3, key=INT, value_id=2, value=INT)),
        (StructType((column(2, "x", INT),)), StructType((column(2, "x", INT), column(3, "y", INT)))),
        (StructType((column(2, "x", INT), column(3, "y", INT))), StructType((column(2, "x", INT),))),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_not_held(file, table):
    assert holds([column(1, "a", file)], [column(1, "a", file)])
    assert not holds([column(1, "a", file)], [column(1, "a", table)])


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


def test_examples():
    check_examples(
        "formats/parquet/footer.txt", icekeep.formats.parquet.thrift, icekeep.spec.schema, icekeep.spec.types, globals()
    )


LONGS = st.integers(-(2**63), 2**63 - 1)


def small(number):
    return struct_bytes([(1, I64, encode_long(number))])


@given(LONGS)
def test_a_number_is_read_as_it_was_written(number):
    data = encode_long(number)
    assert integer_at(data + b"rest", 0) == (number, len(data))


def test_numbers_are_zigzag_varints_as_the_protocol_says():
    assert [encode_long(n) for n in (0, -1, 1, -2, 63, 64)] == [b"\0", b"\1", b"\2", b"\3", b"\x7e", b"\x80\x01"]


@given(st.dictionaries(st.integers(1, 32767), LONGS, min_size=1))
def test_fields_with_distant_ids_are_found(numbers):
    data = struct_bytes([(id_, I64, encode_long(numbers[id_])) for id_ in sorted(numbers)])
    struct = Struct(data)
    assert struct.spans.keys() == set(numbers)
    assert {id_: struct.value(id_) for id_ in numbers} == numbers
    assert struct.end == len(data)


@for_each("count", [0, 1, 14, 15, 16, 200])
def test_a_list_of_more_than_14_structs_has_a_longer_head(count):
    data = struct_bytes([(3, LIST, list_bytes(STRUCT, [small(n) for n in range(count)]))])
    assert [struct.value(1) for struct in Struct(data).structs(3)] == list(range(count))


def test_what_is_not_asked_for_is_passed_over():
    data = struct_bytes(
        [
            (1, BYTE, b"\x05"),
            (2, TRUE, b""),
            (3, BINARY, binary_bytes(b"text")),
            (4, SET, bytes([2 << 4 | TRUE, 1, 2])),
            (5, MAP, bytes([2, BINARY << 4 | I32]) + binary_bytes(b"k") + b"\2" + binary_bytes(b"l") + b"\4"),
            (6, MAP, b"\0"),
            (7, UUID_BYTES, bytes(16)),
            (8, 7, bytes(8)),
            (9, STRUCT, small(1)),
            (40, I16, encode_long(-7)),
        ]
    )
    struct = Struct(data)
    kinds = {id_: span.kind for id_, span in struct.spans.items()}
    assert kinds == {1: BYTE, 2: TRUE, 3: BINARY, 4: SET, 5: MAP, 6: MAP, 7: UUID_BYTES, 8: 7, 9: STRUCT, 40: I16}
    assert struct.byte(1) == 5
    assert struct.boolean(2)
    assert not struct.boolean(99)
    assert struct.raw(3) == b"\4text"
    assert struct.struct(9).value(1) == 1
    assert struct.value(40) == -7
    assert struct.end == len(data)


def test_a_replaced_number_leaves_all_else_as_it_was():
    data = struct_bytes([(1, I64, encode_long(5)), (2, BINARY, binary_bytes(b"keep")), (3, I64, encode_long(600))])
    struct = Struct(data)
    # Given in no order, and of other lengths than before.
    changed = with_integers(data, 0, len(data), [(struct.integer(3), 2), (struct.integer(1), 2**40)])
    assert [Struct(changed).value(n) for n in (1, 3)] == [2**40, 2]
    assert Struct(changed).raw(2) == b"\4keep"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        small(1)[:-1],
        bytes([1 << 4 | BINARY]) + b"\xff\xff\xff\x7f",
        bytes([1 << 4 | LIST, 15 << 4 | I32]) + b"\xff\xff\xff\xff\x0f",
        bytes([1 << 4 | MAP]) + b"\xff\xff\xff\xff\x0f\x55",
        bytes([1 << 4 | I64]) + b"\xff" * 20 + b"\0",
        bytes([1 << 4 | 14, 0]),
        bytes([1 << 4 | STRUCT]) + bytes([1 << 4 | STRUCT]) * 5000,
        bytes([1 << 4 | LIST]) + bytes([1 << 4 | LIST]) * 5000,
        bytes([1 << 4 | I32, 0, I32, 2, 0, 0]),
    ],
    ids=["empty", "no end", "text", "list", "map", "number", "kind", "structs in structs", "lists in lists", "twice"],
)
def test_bytes_that_are_no_struct_are_damaged(data):
    with pytest.raises(Damaged):
        Struct(data)


def test_a_field_of_another_kind_than_asked_for_is_damaged():
    struct = Struct(struct_bytes([(1, BINARY, binary_bytes(b"x")), (2, LIST, b"\x15\0")]))
    for ask in (struct.integer, struct.struct, struct.structs, struct.byte, struct.boolean):
        with pytest.raises(Damaged):
            ask(1)
    with pytest.raises(Damaged):
        struct.structs(2)
    with pytest.raises(Damaged):
        struct.required_integer(3)


@cases(500)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_struct_or_damaged(data):
    try:
        struct = Struct(data)
        for field_id, span in struct.spans.items():
            if span.kind == STRUCT:
                struct.struct(field_id)
        structs_at(data, 0)
    except Damaged:
        pass


def test_lists_of_scalars_round_trip():
    data = struct_bytes(
        [
            (1, thrift.LIST, thrift.list_bytes(thrift.I64, [encode_long(n) for n in range(-9, 9)])),
            (2, thrift.LIST, thrift.list_bytes(thrift.BINARY, [thrift.binary_bytes(b"x" * n) for n in range(200)])),
            (3, thrift.LIST, thrift.list_bytes(thrift.TRUE, [b"\1", b"\2", b"\1"])),
            (4, thrift.BINARY, thrift.binary_bytes(b"text")),
        ]
    )
    struct = Struct(data)
    assert struct.integers(1) == list(range(-9, 9))
    assert struct.binaries(2) == [b"x" * n for n in range(200)]
    assert struct.booleans(3) == [True, False, True]
    assert (struct.binary(4), struct.binary(5), struct.integers(6)) == (b"text", None, [])
    with pytest.raises(Damaged):
        struct.integers(2)
