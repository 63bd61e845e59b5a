"""Avro data files: types and field ids (spec, Appendix A), codecs, blocks, files of other writers, broken ones.

What we write is looked at with fastavro, which also writes what another writer would; that is read by us. What all formats have
in common is in `test_reader` and `test_writer`.
"""

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID as UUIDValue

import fastavro
import pyarrow as pa
import pytest

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.options import write_options
from icekeep.spec.schema import name_mapping_for
from icekeep.spec.types import (
    BINARY,
    DATE,
    INT,
    LONG,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
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


def test_the_schema_of_a_file_carries_ids_and_types_as_appendix_a_says(storage):
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
def test_large_files_have_many_blocks_and_are_read_a_few_blocks_at_a_time(storage):
    rows = table_of(WORDS, [{"n": i, "s": f"{i}" * 5} for i in range(50_000)])
    (file,) = write_files(storage, WORDS, [rows], options_for("AVRO"))
    assert len(list(fastavro.block_reader(storage.open(file.file_path)))) > 10
    found = read_tables(storage, file.file_path, WORDS)
    assert len(found) >= 3
    assert max(t.num_rows for t in found) < 25_000
    assert pa.concat_tables(found).equals(rows)


def test_the_same_rows_make_the_same_file_at_one_location_and_another_sync_marker_at_another():
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
def test_a_timestamp_that_does_not_say_whether_it_has_a_zone_is_what_the_table_says(storage, type_):
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


def test_a_file_of_values_that_are_no_records_is_an_invalid_table(storage):
    location = put(storage, "int", [1, 2])
    with pytest.raises(InvalidTableError, match="not a record"):
        read_tables(storage, location, WORDS)


def test_a_block_that_counts_fewer_records_than_it_holds_is_an_invalid_table(storage):
    (file,) = write_files(storage, WORDS, [table_of(WORDS, [{"n": 1}] * 3)], options_for("AVRO", codec="null"))
    data = storage.read(file.file_path)
    body = data.index(data[-16:]) + 16
    storage.create("memory:/t/less.avro", data[:body] + bytes([data[body] - 2]) + data[body + 1 :])
    with pytest.raises(InvalidTableError, match="more than the 2 records"):
        read_tables(storage, "memory:/t/less.avro", WORDS)


def test_null_records_with_required_fields_are_read_in_lists_and_maps(storage):
    inner = StructType((column(5, "u", UUID, required=True),))
    element = StructType((column(3, "x", INT, required=True), column(4, "t", inner, required=True)))
    schema = schema_of(column(1, "l", ListType(element_id=2, element=element)))
    table = table_of(schema, [{"l": [None, {"x": 1, "t": {"u": UUIDValue(int=5)}}]}, {"l": None}, {"l": [None]}])
    (file,) = write_files(storage, schema, [table], options_for("AVRO"))
    assert read_table(storage, file.file_path, schema).equals(table)


@pytest.mark.slow
def test_a_file_that_was_cut_in_the_count_of_a_block_is_an_invalid_table(storage):
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
