import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icekeep.spec.avro
import icekeep.spec.types
from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.avro import (
    avro_names,
    avro_schema,
    encode_long,
    from_avro,
    min_decimal_bytes,
    packer,
    read_blocks,
    read_header,
    read_records,
    to_avro,
    without_logical_types,
    write_header,
)
from icekeep.spec.types import (
    INT,
    STRING,
    UNKNOWN,
    UUID,
    VARIANT,
    ListType,
    MapType,
    NestedField,
    StructType,
    Type,
    decimal,
    fixed,
    parse_type,
)
from kit.cases import cases, for_each
from kit.examples import check_examples
from kit.manifests import blocks, encode_block, recounted, write_varint
from kit.strategies import typed_values

NUMBERS = {"type": "record", "name": "row", "fields": [{"name": "n", "type": "long", "field-id": 1}]}
LOCATION = "s3://b/m.avro"


def avro_file(schema: Any, *groups: list[Any], codec: str = "null") -> bytes:
    """An Avro file by fastavro, one block for each group of records."""
    out = io.BytesIO()
    writer = fastavro.write.Writer(out, fastavro.parse_schema(schema), codec=codec)
    for group in groups:
        for record in group:
            writer.write(record)
        writer.dump()
    return out.getvalue()


def numbers(*groups: list[int], codec: str = "null") -> bytes:
    return avro_file(NUMBERS, *([{"n": n} for n in group] for group in groups), codec=codec)


def records(data: bytes) -> list[Any]:
    return list(read_records(data, read_header(data, LOCATION), LOCATION))


def struct(*fields: tuple[int, str, Type]) -> StructType:
    return StructType(tuple(NestedField(field_id=i, name=name, type=type_) for i, name, type_ in fields))


def only_field(type_: Type, *, required: bool = False) -> Any:
    field = NestedField(field_id=8, name="l", type=type_, required=required)
    return avro_schema(StructType((field,)), "row")["fields"][0]


# Headers.


def test_the_header_of_a_foreign_file_is_read():
    data = numbers([1, 2], codec="deflate")
    header = read_header(data, LOCATION)
    assert header.metadata["avro.codec"] == b"deflate"
    assert header.schema["fields"] == NUMBERS["fields"]
    assert data[header.length_bytes - 16 : header.length_bytes] == header.sync
    assert data.endswith(header.sync)


@given(st.dictionaries(st.text(max_size=5), st.binary(max_size=200), max_size=5), st.binary(min_size=16, max_size=16))
def test_a_header_is_written_and_read_back(metadata: dict[str, bytes], sync: bytes):
    metadata = {**metadata, "avro.schema": b'"int"'}
    data = write_header(metadata, sync)
    header = read_header(data + b"more", LOCATION)
    assert (header.metadata, header.sync, header.length_bytes) == (metadata, sync, len(data))


def test_a_header_of_ours_is_read_by_fastavro():
    metadata = {"avro.schema": json.dumps(NUMBERS).encode(), "avro.codec": b"null", "content": b"data"}
    reader = fastavro.reader(io.BytesIO(write_header(metadata, bytes(16))))
    assert reader.metadata == {key: value.decode() for key, value in metadata.items()}
    assert list(reader) == []


def test_metadata_may_come_in_several_map_blocks():
    schema = json.dumps(NUMBERS).encode()
    pairs = [
        write_varint(len(key)) + key + write_varint(len(value)) + value
        for key, value in ((b"avro.schema", schema), (b"content", b"data"))
    ]
    first = write_varint(-1) + write_varint(len(pairs[0])) + pairs[0]
    header = read_header(b"Obj\x01" + first + write_varint(1) + pairs[1] + b"\0" + bytes(16), LOCATION)
    assert header.metadata == {"avro.schema": schema, "content": b"data"}


def test_truncated_header_is_refused_anywhere():
    data = numbers([1])
    for length in range(read_header(data, LOCATION).length_bytes):
        with pytest.raises(InvalidTableError, match=f"^cannot read Avro file {LOCATION!r}: "):
            read_header(data[:length], LOCATION)


@for_each(
    "data",
    [
        b"",
        b"PAR1" + bytes(100),
        b"Obj\x01" + b"\xff" * 30,
        b"Obj\x01" + write_varint(2**60) + bytes(40),
        b"Obj\x01" + write_varint(1) + write_varint(-5) + bytes(40),
        write_header({"content": b"data"}, bytes(16)),
        write_header({"avro.schema": b"{"}, bytes(16)),
        write_header({"avro.schema": b"\xff"}, bytes(16)),
        write_header({"avro.schema": b"[" * 100_000}, bytes(16)),
        b"Obj\x01" + write_varint(1) + write_varint(1) + b"\xff" + write_varint(0) + b"\0" + bytes(16),
    ],
)
def test_what_is_no_header_is_refused(data: bytes):
    with pytest.raises(InvalidTableError) as raised:
        read_header(data, LOCATION)
    assert raised.value.facts == {"location": LOCATION}


@for_each(
    ("data", "problem"),
    [
        (b"PAR1" + numbers([1])[4:], "it does not begin with Avro's magic bytes"),
        (b"Obj\x01" + b"\xff" * 30, "a number in its header is too long"),
        (b"Obj\x01" + write_varint(1) + write_varint(90) + bytes(40), "its header is cut short"),
        (b"Obj\x01" + write_varint(1) + write_varint(-1) + bytes(40), "its header is cut short"),
        (b"Obj\x01" + write_varint(1) + write_varint(2**30) + bytes(40), "its header is cut short"),
    ],
)
def test_an_error_says_what_is_wrong_with_a_header(data: bytes, problem: str):
    with pytest.raises(InvalidTableError) as raised:
        read_header(data, LOCATION)
    assert raised.value.message == f"cannot read Avro file {LOCATION!r}: {problem}"


# Records.


@for_each("codec", ["null", "deflate", "snappy", "zstandard", "bzip2"])
def test_records_of_a_foreign_file_are_read(codec: str):
    assert records(numbers([1, -2, 2**62], [4], codec=codec)) == [{"n": n} for n in (1, -2, 2**62, 4)]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_truncated_file_is_refused_within_blocks(codec: str):
    data = numbers([1, 2, 3], [4, 5, 6], codec=codec)
    start = read_header(data, LOCATION).length_bytes
    ends = {start, start + len(blocks(data)[0]), len(data)}
    for length in range(start, len(data)):
        if length not in ends:
            with pytest.raises(InvalidTableError, match="does not end on its sync marker: it was cut short"):
                records(data[:length])


@for_each("codec", ["null", "deflate"])
@for_each("change", [-3, -2, -1, 1, 5, 2**40, -(2**40)])
def test_block_with_wrong_record_count_is_refused(codec: str, change: int):
    data = numbers([1, 2], [3, 4], codec=codec)
    head = data[: read_header(data, LOCATION).length_bytes]
    first, second = blocks(data)
    for changed in (recounted(first, change) + second, first + recounted(second, change)):
        with pytest.raises(InvalidTableError):
            records(head + changed)


def test_a_block_with_a_wrong_sync_marker_is_refused():
    data = numbers([1, 2], [3, 4])
    head = data[: read_header(data, LOCATION).length_bytes]
    first, second = blocks(data)
    with pytest.raises(InvalidTableError, match="sync marker"):
        records(head + first[:-1] + bytes([first[-1] ^ 1]) + second)


@for_each(
    "schema",
    [
        '{"type": "nonsense"}',
        '{"type": "record", "name": "row", "fields": [{"name": "n"}]}',
        '{"type": "record", "name": "row", "fields": 5}',
        '{"type": "record"}',
        '{"type": "fixed", "name": "x", "size": "1"}',
        "[]",
        "5",
        '"row"',
        '{"a":' * 400 + "1" + "}" * 400,
    ],
)
def test_a_schema_that_is_none_is_refused(schema: str):
    data = numbers([1])
    header = read_header(data, LOCATION)
    broken = write_header({**header.metadata, "avro.schema": schema.encode()}, header.sync) + blocks(data)[0]
    with pytest.raises(InvalidTableError, match=f"^cannot read Avro file {LOCATION!r}: "):
        records(broken)


@for_each("codec", ["null", "snappy", "zstandard"])
def test_blocks_after_non_utf8_metadata_are_refused(codec: str):
    sync = bytes(16)
    metadata = {"avro.schema": b'"int"', "avro.codec": codec.encode(), "schema": b"\xe4"}
    data = write_header(metadata, sync) + encode_block(b"\x02", 1, codec, sync)
    with pytest.raises(UnicodeDecodeError):
        list(read_blocks(data, read_header(data, "x")))


@given(st.data())
@cases(300)
def test_changed_bytes_are_read_or_refused_by_an_error_of_ours(data: st.DataObject):
    original = numbers([1, 2, 3], [400, 500], codec=data.draw(st.sampled_from(["null", "deflate", "snappy"])))
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = records(bytes(changed))
    except InvalidTableError as error:
        read = error.message.splitlines()
    assert len(read) in (1, 5)


def test_redefined_fixed_type_is_a_type_of_its_own():
    ids = [{"type": "fixed", "name": "id", "size": size} for size in (2, 2, 3)]
    schema = {
        "type": "record",
        "name": "row",
        "fields": [{"name": f"f{i}", "type": ["null", id_]} for i, id_ in enumerate(ids)],
    }
    plain = without_logical_types(schema)
    names = [field["type"][1]["name"] for field in plain["fields"]]
    assert names[0] == "id"
    assert len(set(names)) == 3
    body = b"".join(b"\x02" + part for part in (b"ab", b"cd", b"efg"))
    header = {"avro.schema": json.dumps(schema).encode(), "avro.codec": b"null"}
    data = write_header(header, bytes(16)) + encode_block(body, 1, "null", bytes(16))
    assert records(data) == [{"f0": b"ab", "f1": b"cd", "f2": b"efg"}]


# Schemas.


def test_a_map_is_an_array_of_pairs_as_in_appendix_a():
    map_type = MapType(key_id=12, key=INT, value_id=13, value=STRING, value_required=True)
    assert only_field(map_type, required=True)["type"] == {
        "type": "array",
        "logicalType": "map",
        "items": {
            "type": "record",
            "name": "k12_v13",
            "fields": [
                {"name": "key", "type": "int", "field-id": 12},
                {"name": "value", "type": "string", "field-id": 13},
            ],
        },
    }


def test_a_struct_in_a_struct_is_a_record_named_for_its_field():
    inner = only_field(struct((9, "x", INT)), required=True)["type"]
    assert (inner["type"], inner["name"], inner["fields"][0]["field-id"]) == ("record", "r8", 9)
    inner = only_field(ListType(element_id=508, element=struct((9, "x", INT)), element_required=True))["type"][1]
    assert inner["items"]["name"] == "r508"


@pytest.mark.parametrize("type_", [UNKNOWN, VARIANT])
def test_a_type_without_an_avro_form_is_refused(type_: Type):
    with pytest.raises(UnsupportedError, match=f"type {type_} cannot be stored in Avro here"):
        only_field(type_)


def test_type_used_twice_gets_two_names():
    schema = avro_schema(
        struct((1, "a", UUID), (2, "b", UUID), (3, "c", fixed(4)), (4, "d", fixed(4)), (5, "e", decimal(9, 2)),
               (6, "f", decimal(9, 2)), (7, "g", decimal(9, 3))),
        "row",
    )  # fmt: skip
    types = [field["type"][1] for field in schema["fields"]]
    assert all(isinstance(type_, dict) for type_ in types)
    assert len({type_["name"] for type_ in types}) == len(types)
    assert types[1] == {**types[0], "name": "uuid_fixed_2"}
    fastavro.parse_schema(schema)


@for_each(
    ("precision", "size"),
    [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3), (7, 4), (9, 4), (10, 5), (18, 8), (19, 9), (28, 12), (38, 16)],
)
def test_decimal_uses_fewest_bytes(precision: int, size: int):
    assert min_decimal_bytes(precision) == size
    (10**precision - 1).to_bytes(size, "big", signed=True)
    if size > 1:
        with pytest.raises(OverflowError):
            (10**precision - 1).to_bytes(size - 1, "big", signed=True)


# Names.


@given(st.text(min_size=1, max_size=10))
def test_every_name_becomes_one_that_avro_allows(name: str):
    (legal,) = avro_names(struct((1, name, INT)).fields)
    assert legal.isascii()
    assert legal.isidentifier()
    assert avro_names(struct((1, legal, INT)).fields) == [legal]


def test_two_names_that_become_one_stay_two():
    fields = struct((1, "a b", INT), (2, "a_x20b", INT), (3, "a_x20b_2", INT), (4, "c", INT)).fields
    assert avro_names(fields) == ["a_x20b", "a_x20b_2", "a_x20b_2_3", "c"]
    schema = avro_schema(StructType(fields), "row")
    assert [field["name"] for field in schema["fields"]] == avro_names(fields)


# Values.


@given(typed_values())
def test_values_go_through_avro_unchanged(drawn: Any):
    type_, value = drawn
    schema = fastavro.parse_schema(without_logical_types(avro_schema(struct((1, "v", type_)), "row")))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"v": to_avro(type_)(value)})
    read = from_avro(type_)(fastavro.schemaless_reader(io.BytesIO(out.getvalue()), schema, None)["v"])
    assert type(read) is type(value)
    assert read == value or (read != read and value != value)


@for_each(
    ("type_", "raw"),
    [
        ("int", "5"), ("int", True), ("date", 5.0), ("long", b"5"), ("boolean", 1), ("double", 1), ("binary", "x"),
        ("fixed[3]", b"ab"), ("fixed[3]", "abc"), ("uuid", b"short"), ("uuid", "0" * 32), ("decimal(9, 2)", "1.00"),
        ("decimal(9, 2)", b"\x7f" * 40),
    ],
)  # fmt: skip
def test_value_of_wrong_stored_type_is_refused(type_: str, raw: Any):
    with pytest.raises(ValueError, match=r"."):
        from_avro(parse_type(type_))(raw)


def test_a_block_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("icekeep.spec.avro._MAX_BLOCK_BYTES", 1 << 16)
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "bytes"}]}
    head = write_header({"avro.schema": json.dumps(schema).encode(), "avro.codec": b"deflate"}, b"s" * 16)
    record = fastavro_record(schema, {"x": bytes(1 << 17)})
    data = head + encode_block(record, 1, "deflate", b"s" * 16)
    with pytest.raises(InvalidTableError, match="a block unpacks to more than 65536 bytes"):
        list(read_records(data, read_header(data, "f"), "f"))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda block: block[:-20] + block[-16:], "does not end on the sync marker"),
        (lambda block: block[:3] + b"\xff" + block[4:], "Error -3 while decompressing"),
        (lambda block: block[:3] + b"\x00" + block[4:], "Error -3 while decompressing|cut short"),
    ],
)
def test_a_damaged_block_is_refused(damage: Any, problem: str):
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "bytes"}]}
    head = write_header({"avro.schema": json.dumps(schema).encode(), "avro.codec": b"deflate"}, b"s" * 16)
    block = encode_block(fastavro_record(schema, {"x": bytes(range(200))}), 1, "deflate", b"s" * 16)
    data = head + damage(block)
    with pytest.raises(InvalidTableError, match=problem):
        list(read_records(data, read_header(data, "f"), "f"))


def fastavro_record(schema: Any, record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


@for_each("codec", ["null", "deflate", "snappy", "zstandard"])
def test_a_block_of_ours_is_read_by_fastavro(codec: str):
    encoded = [encode_long(n) for n in (1, -70, 2**62)]
    header = write_header({"avro.schema": json.dumps(NUMBERS).encode(), "avro.codec": codec.encode()}, b"s" * 16)
    data = header + encode_block(b"".join(encoded), 3, codec, b"s" * 16)
    data += encode_block(encoded[0], 1, codec, b"s" * 16)
    assert [r["n"] for r in fastavro.reader(io.BytesIO(data))] == [1, -70, 2**62, 1]
    assert [r["n"] for r in read_records(data, read_header(data, "f"), "f")] == [1, -70, 2**62, 1]


@pytest.mark.parametrize(("codec", "level"), [("deflate", 9), ("zstandard", 19)])
def test_a_higher_level_packs_tighter(codec: str, level: int):
    payload = b"".join(encode_long(n * n) for n in range(20_000))
    assert len(packer(codec, level)(payload)) < len(packer(codec, 1)(payload))


def test_examples():
    check_examples("spec/avro.txt", icekeep.spec.avro, icekeep.spec.types, globals())
