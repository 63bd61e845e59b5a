"""Avro and ORC: types and ids (spec, Appendix A), codecs, blocks, stripes, files of other writers, broken ones.

What we write is looked at with fastavro and pyarrow, which also write what another writer would; that is read by us. What all
formats have in common is in `test_reader` and `test_writer`.
"""

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import product
from uuid import UUID as UUIDValue

import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.machine import TaskMemory
from icekeep.formats.options import write_options
from icekeep.formats.orc import OrcReader, column_numbers, orc_schema, stripes_of
from icekeep.spec.schema import name_mapping_for
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIME,
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
from kit.columns import EVERY_TYPE, column, schema_of, table_of
from kit.data_files import options_for, read_table, read_tables, write_files
from kit.storage import MemoryStorage

WORDS = schema_of(column(1, "n", LONG), column(2, "s", STRING))


@pytest.fixture
def storage():
    return MemoryStorage()


def put(storage, schema, records, name="memory:/t/foreign.avro", **options):
    out = io.BytesIO()
    fastavro.writer(out, schema, records, **options)
    storage.create(name, out.getvalue())
    return name


def record(*fields):
    return {"type": "record", "name": "table", "fields": list(fields)}


def test_fastavro_reads_our_files_by_their_logical_types(storage):
    schema = schema_of(
        column(1, "d", DATE, required=True),
        column(2, "t", TIME),
        column(3, "ts", TIMESTAMP),
        column(4, "tz", TIMESTAMPTZ),
        column(5, "u", UUID),
        column(6, "f", fixed(3)),
        column(7, "n", decimal(9, 2)),
        column(8, "b", BINARY),
        column(9, "l", ListType(element_id=10, element=STRING)),
        column(11, "m", MapType(key_id=12, key=INT, value_id=13, value=LONG)),
        column(14, "s", StructType((column(15, "x y", INT, required=True),))),
    )
    row = {
        "d": 1, "t": 2_000_001, "ts": 3, "tz": 4, "u": UUIDValue(int=5), "f": b"abc", "n": Decimal("-1.25"), "b": b"\xff",
        "l": ["a", None], "m": [(1, 2), (3, None)], "s": {"x y": 6},
    }  # fmt: skip
    empty = {"d": 0}
    (file,) = write_files(storage, schema, [table_of(schema, [row, empty])], options_for("AVRO"))
    first, second = fastavro.reader(storage.open(file.file_path))
    assert first == {
        "d": date(1970, 1, 2),
        "t": time(0, 0, 2, 1),
        "ts": datetime(1970, 1, 1, 0, 0, 0, 3, UTC),
        "tz": datetime(1970, 1, 1, 0, 0, 0, 4, UTC),
        "u": UUIDValue(int=5).bytes,
        "f": b"abc",
        "n": Decimal("-1.25"),
        "b": b"\xff",
        "l": ["a", None],
        "m": [{"key": 1, "value": 2}, {"key": 3, "value": None}],
        "s": {"x_x20y": 6},
    }
    assert second == dict.fromkeys(first) | {"d": date(1970, 1, 1)}


def test_avro_schema_carries_ids_and_types_of_appendix_a(storage):
    schema = schema_of(
        column(1, "tz", TIMESTAMPTZ, required=True),
        column(2, "ns", TIMESTAMP_NS),
        column(3, "l", ListType(element_id=4, element=UUID, element_required=True)),
        column(5, "m", MapType(key_id=6, key=INT, value_id=7, value=decimal(9, 2))),
        column(8, "a-b", STRING),
    )
    (file,) = write_files(storage, schema, [table_of(schema, [{"tz": 1}])], options_for("AVRO"))
    header = fastavro.reader(storage.open(file.file_path)).metadata["avro.schema"]
    tz, ns, lists, maps, named = json.loads(header)["fields"]
    assert tz == {
        "name": "tz", "field-id": 1, "type": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    }  # fmt: skip
    assert ns["type"] == ["null", {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False}]
    assert ns["default"] is None
    element = {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}
    assert lists["type"] == ["null", {"type": "array", "element-id": 4, "items": element}]
    assert (maps["type"][1]["logicalType"], maps["type"][1]["items"]["name"]) == ("map", "k6_v7")
    assert [f["field-id"] for f in maps["type"][1]["items"]["fields"]] == [6, 7]
    assert (named["name"], named["iceberg-field-name"]) == ("a_x2Db", "a-b")


CODECS = [("gzip", "deflate"), ("zstd", "zstandard"), ("snappy", "snappy"), ("uncompressed", "null")]


@pytest.mark.parametrize(("codec", "stored"), CODECS)
def test_a_codec_is_the_files(storage, codec, stored):
    options = write_options({"write.format.default": "avro", "write.avro.compression-codec": codec})
    rows = table_of(WORDS, [{"n": i, "s": "x"} for i in range(1000)])
    (file,) = write_files(storage, WORDS, [rows], options)
    assert fastavro.reader(storage.open(file.file_path)).codec == stored
    assert read_table(storage, file.file_path, WORDS).equals(rows)


@pytest.mark.slow
def test_large_avro_file_is_read_in_small_batches(storage):
    rows = table_of(WORDS, [{"n": i, "s": f"{i}" * 5} for i in range(50_000)])
    (file,) = write_files(storage, WORDS, [rows], options_for("AVRO"))
    assert len(list(fastavro.block_reader(storage.open(file.file_path)))) > 10
    found = read_tables(storage, file.file_path, WORDS)
    assert len(found) >= 3
    assert max(t.num_rows for t in found) < 25_000
    assert pa.concat_tables(found).equals(rows)


def test_avro_file_is_deterministic_per_location():
    """The same rows give the same bytes at one location, and another sync marker elsewhere."""

    def data(directory):
        memory = MemoryStorage()
        (file,) = write_files(memory, WORDS, [table_of(WORDS, [{"n": 1}])], options_for("AVRO"), directory=directory)
        return memory.read(file.file_path)

    assert data("memory:/a") == data("memory:/a")
    assert data("memory:/a")[-16:] != data("memory:/b")[-16:]


def test_maps_of_avro_with_string_keys_are_read(storage):
    value = {"type": "map", "values": ["null", "int"], "key-id": 2, "value-id": 3}
    location = put(
        storage, record({"name": "m", "type": value, "field-id": 1}), [{"m": {"a": 1, "b": None}}, {"m": {}}]
    )
    schema = schema_of(column(1, "m", MapType(key_id=2, key=STRING, value_id=3, value=LONG)))
    assert read_table(storage, location, schema)["m"].to_pylist() == [[("a", 1), ("b", None)], []]


def test_types_that_are_named_once_and_used_twice_are_read(storage):
    point = {
        "type": "record",
        "name": "point",
        "namespace": "a.b",
        "fields": [{"name": "x", "type": "int", "field-id": 3}],
    }
    colour = {"type": "enum", "name": "colour", "symbols": ["RED", "BLUE"]}
    location = put(
        storage,
        record(
            {"name": "p", "type": point, "field-id": 1},
            {"name": "c", "type": ["null", colour], "field-id": 2},
            {"name": "q", "type": ["a.b.point", "null"], "field-id": 4},
            {"name": "d", "type": "colour", "field-id": 5},
            {"name": "e", "type": {"type": "string"}, "field-id": 6},
        ),
        [
            {"p": {"x": 1}, "c": "RED", "q": None, "d": "BLUE", "e": "e"},
            {"p": {"x": 2}, "c": None, "q": {"x": 3}, "d": "RED", "e": ""},
        ],
    )
    struct = StructType((column(3, "x", INT),))
    texts = [column(i, name, STRING) for i, name in ((2, "c"), (5, "d"), (6, "e"))]
    schema = schema_of(column(4, "q", struct), column(1, "p", struct), *texts)
    assert read_table(storage, location, schema).to_pylist() == [
        {"q": None, "p": {"x": 1}, "c": "RED", "d": "BLUE", "e": "e"},
        {"q": {"x": 3}, "p": {"x": 2}, "c": None, "d": "RED", "e": ""},
    ]


def test_decimals_stored_as_bytes_and_milliseconds_are_read(storage):
    location = put(
        storage,
        record(
            {
                "name": "n",
                "field-id": 1,
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {
                "name": "t",
                "field-id": 2,
                "type": {"type": "long", "logicalType": "timestamp-millis", "adjust-to-utc": True},
            },
        ),
        [{"n": Decimal("-1.25"), "t": datetime(2020, 1, 1, tzinfo=UTC)}],
    )
    schema = schema_of(column(1, "n", decimal(9, 2)), column(2, "t", TIMESTAMPTZ))
    assert read_table(storage, location, schema).to_pylist() == [
        {"n": Decimal("-1.25"), "t": datetime(2020, 1, 1, tzinfo=UTC)}
    ]


@pytest.mark.parametrize("type_", [TIMESTAMP, TIMESTAMPTZ], ids=str)
def test_avro_timestamp_without_zone_flag_follows_table(storage, type_):
    stored = {"type": "long", "logicalType": "timestamp-micros"}
    location = put(storage, record({"name": "t", "type": stored, "field-id": 1}), [{"t": 7}])
    assert read_table(storage, location, schema_of(column(1, "t", type_)))["t"].cast(pa.int64()).to_pylist() == [7]


def test_a_union_of_several_types_is_refused(storage):
    location = put(storage, record({"name": "u", "type": ["int", "string"], "field-id": 1}), [{"u": 1}])
    with pytest.raises(UnsupportedError, match="field 'u' is a union of 2 types"):
        read_tables(storage, location, schema_of(column(1, "u", INT)))


def test_a_record_that_contains_itself_is_refused(storage):
    node = record({"name": "next", "type": ["null", "table"], "field-id": 1})
    location = put(storage, node, [{"next": None}])
    with pytest.raises(UnsupportedError, match="record 'table' contains itself"):
        read_tables(storage, location, WORDS)


def test_avro_file_of_non_records_is_invalid(storage):
    location = put(storage, "int", [1, 2])
    with pytest.raises(InvalidTableError, match="not a record"):
        read_tables(storage, location, WORDS)


def test_avro_block_with_low_record_count_is_invalid(storage):
    (file,) = write_files(storage, WORDS, [table_of(WORDS, [{"n": 1}] * 3)], options_for("AVRO", codec="null"))
    data = storage.read(file.file_path)
    body = data.index(data[-16:]) + 16
    storage.create("memory:/t/less.avro", data[:body] + bytes([data[body] - 2]) + data[body + 1 :])
    with pytest.raises(InvalidTableError, match="more than the 2 records"):
        read_tables(storage, "memory:/t/less.avro", WORDS)


def test_avro_null_records_with_required_fields_round_trip(storage):
    inner = StructType((column(5, "u", UUID, required=True),))
    element = StructType((column(3, "x", INT, required=True), column(4, "t", inner, required=True)))
    schema = schema_of(column(1, "l", ListType(element_id=2, element=element)))
    table = table_of(schema, [{"l": [None, {"x": 1, "t": {"u": UUIDValue(int=5)}}]}, {"l": None}, {"l": [None]}])
    (file,) = write_files(storage, schema, [table], options_for("AVRO"))
    assert read_table(storage, file.file_path, schema).equals(table)


@pytest.mark.slow
def test_avro_file_cut_in_block_count_is_invalid(storage):
    # fastavro takes a count that it cannot read to its end for the end of the file.
    (file,) = write_files(storage, WORDS, [table_of(WORDS, [{"n": 1}] * 50_000)], options_for("AVRO"))
    _, second, *_ = fastavro.block_reader(storage.open(file.file_path))
    storage.create("memory:/t/cut.avro", storage.read(file.file_path)[: second.offset + 1])
    with pytest.raises(InvalidTableError, match="cut short"):
        read_tables(storage, "memory:/t/cut.avro", WORDS)


def test_an_avro_file_of_another_writer_is_read_by_names(storage):
    table = table_of(EVERY_TYPE, [{"key": 1, "counts": [("a", 1)]}])
    (file,) = write_files(storage, EVERY_TYPE, [table], options_for("AVRO"))
    reader = fastavro.reader(storage.open(file.file_path))

    def without_ids(node):
        return {key: value for key, value in node.items() if not key.endswith("-id")}

    plain = json.loads(json.dumps(reader.writer_schema), object_hook=without_ids)
    location = put(storage, plain, list(reader))
    found = read_table(storage, location, EVERY_TYPE, name_mapping=name_mapping_for(EVERY_TYPE))
    assert found.equals(read_table(storage, file.file_path, EVERY_TYPE))


APPENDIX_A = [
    (BOOLEAN, "bool", {}),
    (INT, "int32", {}),
    (LONG, "int64", {"long-type": "LONG"}),
    (FLOAT, "float", {}),
    (DOUBLE, "double", {}),
    (decimal(9, 2), "decimal128(9, 2)", {}),
    (DATE, "date32[day]", {}),
    (TIME, "int64", {"long-type": "TIME"}),
    (TIMESTAMP, "timestamp[ns]", {"timestamp-unit": "MICROS"}),
    (TIMESTAMPTZ, "timestamp[ns, tz=UTC]", {"timestamp-unit": "MICROS"}),
    (TIMESTAMP_NS, "timestamp[ns]", {"timestamp-unit": "NANOS"}),
    (TIMESTAMPTZ_NS, "timestamp[ns, tz=UTC]", {"timestamp-unit": "NANOS"}),
    (STRING, "string", {}),
    (UUID, "binary", {"binary-type": "UUID"}),
    (fixed(7), "binary", {"binary-type": "FIXED", "length": "7"}),
    (BINARY, "binary", {"binary-type": "BINARY"}),
]


def attributes(field):
    return {key.decode().removeprefix("iceberg."): value.decode() for key, value in (field.metadata or {}).items()}


def written(storage, schema, rows):
    (file,) = write_files(storage, schema, [table_of(schema, rows)], options_for("ORC"))
    return file


@pytest.mark.parametrize(("type_", "stored", "expected"), APPENDIX_A, ids=lambda value: str(value))
def test_a_type_is_stored_with_the_attributes_of_appendix_a(storage, type_, stored, expected):
    schema = schema_of(column(17, "c", type_))
    field = orc.ORCFile(storage.open(written(storage, schema, [{"c": None}]).file_path)).schema.field(0)
    assert str(field.type) == stored
    assert attributes(field) == {"id": "17", "required": "false", **expected}


def test_ids_and_requiredness_are_attributes_at_every_level(storage):
    schema = schema_of(
        column(1, "k", INT, required=True),
        column(2, "s", StructType((column(3, "x", INT, required=True),))),
        column(4, "l", ListType(element_id=5, element=INT, element_required=True)),
        column(6, "m", MapType(key_id=7, key=STRING, value_id=8, value=TIME)),
    )
    file = written(storage, schema, [{"k": 1, "s": None, "l": [1], "m": []}])
    k, s, l, m = orc.ORCFile(storage.open(file.file_path)).schema  # noqa: E741
    assert attributes(k) == {"id": "1", "required": "true"}
    assert (attributes(s)["id"], attributes(s.type.field(0))) == ("2", {"id": "3", "required": "true"})
    assert (attributes(l)["id"], attributes(l.type.value_field)) == ("4", {"id": "5", "required": "true"})
    assert attributes(m.type.key_field) == {"id": "7", "required": "true"}
    assert attributes(m.type.item_field) == {"id": "8", "required": "false", "long-type": "TIME"}


@pytest.mark.parametrize(
    "type_", [INT, DOUBLE, STRING, BINARY, decimal(9, 2), TIMESTAMP, DATE, UUID, fixed(2)], ids=str
)
def test_orc_nested_struct_keeps_values_beside_null(storage, type_):
    # pyarrow's writer takes what lies below a null struct for the values of the next row.
    inner = StructType((column(3, "x", type_, required=True), column(4, "y", type_)))
    schema = schema_of(
        column(1, "g", StructType((column(2, "s", inner),))),
        column(5, "l", ListType(element_id=6, element=StructType((column(7, "s", inner_of(type_)),)))),
    )
    some = table_of(schema_of(column(1, "v", type_)), [{"v": _value(type_)}])["v"][0].as_py()
    for mask in product((True, False), repeat=3):
        rows = [None if null else {"x": _value(type_), "y": None} for null in mask]
        table = table_of(schema, [{"g": {"s": row}, "l": [{"s": row}, {"s": None}]} for row in rows])
        memory = MemoryStorage()
        (file,) = write_files(memory, schema, [table], options_for("ORC"))
        found = read_table(memory, file.file_path, schema).to_pylist()
        assert found == table.to_pylist()
        assert [row["g"]["s"] for row in found] == [None if null else {"x": some, "y": None} for null in mask]


def inner_of(type_):
    return StructType((column(8, "x", type_, required=True), column(9, "y", type_)))


def _value(type_):
    plain = {"string": "needle", "binary": b"needle", "fixed": b"ab", "double": 1.5}
    if type_ == UUID:
        return UUIDValue(int=5)
    return Decimal("1.25") if type_.name == "decimal" else plain.get(type_.name, 7)


def test_orc_nanoseconds_are_floored_to_microseconds(storage):
    metadata = {"iceberg.id": "1"}
    field = pa.field("t", pa.timestamp("ns"), metadata=metadata)
    values = [-1, -1000, -1001, 999, 1000, None, -(2**63), 2**63 - 1]
    out = io.BytesIO()
    orc.write_table(pa.table([pa.array(values, field.type)], schema=pa.schema([field])), out)
    storage.create("memory:/t/a.orc", out.getvalue())
    found = read_table(storage, "memory:/t/a.orc", schema_of(column(1, "t", TIMESTAMP)))["t"].cast(pa.int64())
    assert found.to_pylist() == [None if v is None else v // 1000 for v in values]
    exact = read_table(storage, "memory:/t/a.orc", schema_of(column(1, "t", TIMESTAMP_NS)))["t"].cast(pa.int64())
    assert exact.to_pylist() == values


def test_orc_values_of_wrong_length_are_invalid(storage):
    for name, type_, length in (("fixed", fixed(5), 4), ("uuid", UUID, 15)):
        field = pa.field("c", pa.binary(), metadata={"iceberg.id": "1"})
        out = io.BytesIO()
        orc.write_table(pa.table([pa.array([b"x" * length], field.type)], schema=pa.schema([field])), out)
        storage.create(f"memory:/t/{name}.orc", out.getvalue())
        with pytest.raises(InvalidTableError, match="'c' has a value that is not exact"):
            read_tables(storage, f"memory:/t/{name}.orc", schema_of(column(1, "c", type_)))


def test_small_whole_numbers_of_other_writers_are_ints(storage):
    fields = [
        pa.field(n, t, metadata={"iceberg.id": str(i)})
        for i, (n, t) in enumerate([("a", pa.int8()), ("b", pa.int16())])
    ]
    out = io.BytesIO()
    orc.write_table(pa.table([pa.array([1], pa.int8()), pa.array([2], pa.int16())], schema=pa.schema(fields)), out)
    storage.create("memory:/t/a.orc", out.getvalue())
    schema = schema_of(column(0, "a", INT), column(1, "b", INT))
    assert read_table(storage, "memory:/t/a.orc", schema).to_pylist() == [{"a": 1, "b": 2}]


@pytest.mark.parametrize("codec", ["zlib", "zstd", "snappy", "lz4", "uncompressed"])
def test_orc_has_the_codec_of_the_file(storage, codec):
    schema = schema_of(column(1, "n", INT))
    options = options_for("ORC", compression=codec)
    (file,) = write_files(storage, schema, [table_of(schema, [{"n": 1}])], options)
    assert orc.ORCFile(storage.open(file.file_path)).compression == codec.upper()


def test_stripes_are_told_with_their_rows(storage):
    schema = schema_of(column(1, "n", LONG))
    rows = [{"n": (i * 0x9E3779B97F4A7C15) % 2**63} for i in range(20_000)]
    (file,) = write_files(storage, schema, [table_of(schema, rows)] * 3, options_for("ORC", stripe_size_bytes=100_000))
    opened = orc.ORCFile(storage.open(file.file_path))
    stripes = stripes_of(opened)
    assert [s.row_count for s in stripes] == [opened.read_stripe(i).num_rows for i in range(opened.nstripes)]
    assert sum(s.row_count for s in stripes) == 60_000


def test_orc_timestamp_out_of_range_is_refused(storage):
    field = pa.field("t", pa.timestamp("us"), metadata={"iceberg.id": "1"})
    out = io.BytesIO()
    orc.write_table(pa.table([pa.array([253_402_300_799_999_999], field.type)], schema=pa.schema([field])), out)
    storage.create("memory:/t/a.orc", out.getvalue())
    with pytest.raises(UnsupportedError, match="years 1677 to 2262"):
        read_tables(storage, "memory:/t/a.orc", schema_of(column(1, "t", TIMESTAMP)))


@pytest.mark.parametrize("where", ["column", "struct", "list", "map"])
def test_orc_fractions_before_1970_are_refused_everywhere(storage, where):
    types = {
        "column": TIMESTAMP,
        "struct": StructType((column(2, "x", TIMESTAMP),)),
        "list": ListType(element_id=2, element=TIMESTAMPTZ),
        "map": MapType(key_id=2, key=STRING, value_id=3, value=TIMESTAMP),
    }
    wrap = {
        "column": lambda ticks: ticks,
        "struct": lambda ticks: {"x": ticks},
        "list": lambda ticks: [None, ticks],
        "map": lambda ticks: [("k", ticks)],
    }[where]
    schema = schema_of(column(1, "c", types[where]))
    for ticks in (-1, -500_000, -1_000_001):
        data = table_of(schema, [{"c": wrap(0)}, {"c": None}, {"c": wrap(ticks)}])
        with pytest.raises(UnsupportedError, match="a timestamp before 1970 has a fraction of a second"):
            write_files(storage, schema, [data], options_for("ORC"), directory=f"memory:/{where}{ticks}")
    data = table_of(schema, [{"c": wrap(-1_000_000)}, {"c": wrap(500_000)}])
    assert write_files(storage, schema, [data], options_for("ORC"), directory=f"memory:/{where}")


NESTED = schema_of(
    column(1, "a", LONG),
    column(2, "point", StructType((column(3, "x", STRING), column(4, "y", INT)))),
    column(5, "tags", ListType(element_id=6, element=STRING)),
    column(7, "b", STRING),
)


def test_columns_have_the_numbers_of_their_types_parents_first():
    names = ["a", "point", "point.x", "point.y", "tags", "tags.element", "b"]
    found = [column_numbers(orc_schema(arrow_schema(NESTED)), [name]) for name in names]
    assert found == [[1], [2], [3], [4], [5], [6], [7]]
    assert column_numbers(orc_schema(arrow_schema(NESTED)), ["gone", "b", "a"]) == [1, 7]


def bloom_filters(storage, file):
    """The numbers of the columns that have a bloom filter in the first stripe of an uncompressed file."""
    read = orc.ORCFile(storage.open(file.file_path))
    (info,) = [dict(fields(value)) for tag, value in fields(footer_of(read)) if tag == 3]
    start = info[1] + info.get(2, 0) + info[3]
    streams = [
        dict(fields(value)) for tag, value in fields(storage.read(file.file_path)[start : start + info[4]]) if tag == 1
    ]
    return {stream.get(2, 0) for stream in streams if stream.get(1, 0) in (7, 8)}


def footer_of(read):
    return dict(fields(read.reader.serialized_file_tail()))[2]


def fields(data):
    """The fields of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        number = shift = 0
        while True:
            at += 1
            number |= (data[at - 1] & 127) << shift
            shift += 7
            if data[at - 1] < 128:
                return number

    while at < len(data):
        key = varint()
        value = varint()
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        yield key >> 3, value


def test_orc_bloom_filters_are_written_for_named_columns(storage):
    rows = [{"a": i, "point": {"x": f"{i}", "y": 1}, "b": "b"} for i in range(1000)]
    for number, names in enumerate([(), ("point.x", "gone"), ("a", "b")]):
        options = options_for("ORC", compression="uncompressed", bloom_filter_columns=names)
        (file,) = write_files(storage, NESTED, [table_of(NESTED, rows)], options, directory=f"memory:/{number}")
        assert bloom_filters(storage, file) == set(column_numbers(orc_schema(arrow_schema(NESTED)), names))
        assert read_table(storage, file.file_path, NESTED)["b"].to_pylist() == ["b"] * 1000


def test_orc_stripe_size_is_estimated_and_read_in_batches(storage):
    """The memory of a stripe was not known at all, so a task that could not hold it died of it."""
    schema = schema_of(column(1, "n", LONG), column(2, "s", STRING))
    rows = table_of(schema, [{"n": n, "s": f"{n * 7919 % 10007:050}"} for n in range(4000)])
    (file,) = write_files(storage, schema, [rows], options_for("ORC", compression="uncompressed"))
    reader = OrcReader(storage.open(file.file_path))
    part = reader.largest_part()
    assert (part.number, part.row_count) == (0, 4000)
    assert 4000 * 12 < part.size_bytes < file.file_size_in_bytes
    assert part.held_bytes == part.size_bytes
    assert reader.largest_part(["n"]).size_bytes == 4000 * 8
    tables = [*reader.tables(["n"], None, (), 1500)]
    assert [(first, table.num_rows) for first, table in tables] == [(0, 1500), (1500, 1500), (3000, 1000)]
    assert pa.concat_tables([table for _, table in tables])["n"].to_pylist() == [*range(4000)]
    with pytest.raises(UnsupportedError, match="row group 0 takes"):
        TaskMemory(part.size_bytes).batch_rows(part)
    assert TaskMemory(100 * part.size_bytes).batch_rows(part) is None
