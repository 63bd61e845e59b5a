"""Where Avro values end, told from the values alone: what fastavro writes is that long."""

import io
from typing import Any

import fastavro
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.planning.decoder import Layout, NotReadError, read_batches
from icekeep.planning.transcode.layout import encoded_lengths, varint_lengths
from icekeep.spec.avro import read_header
from kit.cases import cases, for_each
from kit.manifests import write_varint

_LIMITS = {"int": 31, "long": 63}
_LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=70),
    "string": st.text(max_size=40),
}


def numbers(bits: int) -> st.SearchStrategy[int]:
    """Whole numbers, most of them where Avro needs one byte more."""
    edges = [sign * (1 << power) + step for power in range(bits) for sign in (1, -1) for step in (-1, 0, 1)]
    ends = [-(1 << bits), (1 << bits) - 1]
    return st.sampled_from([n for n in edges if ends[0] <= n <= ends[1]] + ends) | st.integers(*ends)


def values_of(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.none() | values_of(next(branch for branch in schema if branch != "null"))
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind:
        case "record":
            return st.fixed_dictionaries({field["name"]: values_of(field["type"]) for field in schema["fields"]})
        case "array":
            # From 64 on a count takes two bytes.
            some = st.lists(values_of(schema["items"]), max_size=4)
            return some | (some.filter(bool).map(lambda few: (few * 80)[:80]))
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
    return numbers(_LIMITS[kind]) if kind in _LIMITS else _LEAVES[kind]


@st.composite
def avro_schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Records of what manifests are made of."""
    names = iter(range(1000))

    def type_of(depth: int) -> Any:
        kinds = [*_LEAVES, *_LIMITS, "fixed", *(["record", "array"] if depth else [])]
        kind = draw(st.sampled_from(kinds))
        if kind == "fixed":
            made: Any = {"type": "fixed", "name": f"fixed{next(names)}", "size": draw(st.integers(1, 20))}
        elif kind == "record":
            made = record(depth - 1)
        elif kind == "array":
            made = {"type": "array", "items": type_of(depth - 1)}
        else:
            made = draw(st.sampled_from([kind, {"type": kind}]))
        return ["null", made] if draw(st.booleans()) else made

    def record(depth: int) -> dict[str, Any]:
        fields = [{"name": f"f{next(names)}", "type": type_of(depth)} for _ in range(draw(st.integers(1, 3)))]
        return {"type": "record", "name": f"record{next(names)}", "fields": fields}

    return record(2)


def written(schema: Any, record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


def decoded(schema: Any, records: list[Any]) -> pa.RecordBatch:
    """Records as DataFusion decodes what fastavro has written."""
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema), records)
    layout = Layout(msgspec.json.encode(schema), tuple(field["name"] for field in schema["fields"]))
    [(batch, _)] = read_batches(out.getvalue(), read_header(out.getvalue(), ""), layout)
    return batch


@given(st.data())
@cases(150)
def test_values_are_as_long_as_fastavro_writes_them(data: st.DataObject):
    schema = data.draw(avro_schemas())
    records = data.draw(st.lists(values_of(schema), min_size=1, max_size=5))
    batch = decoded(schema, records)
    for field in schema["fields"]:
        alone = {"type": "record", "name": "alone", "fields": [field]}
        expected = [len(written(alone, {field["name"]: record[field["name"]]})) for record in records]
        column = batch[field["name"]]
        assert encoded_lengths(field["type"], column).tolist() == expected
        # A slice of a column does not begin where its buffers do.
        assert encoded_lengths(field["type"], column.slice(1)).tolist() == expected[1:]


@for_each("power", range(64))
def test_a_varint_takes_a_byte_for_each_seven_bits(power: int):
    around = [sign * (1 << power) + step for sign in (1, -1) for step in (-2, -1, 0, 1)]
    found = [n for n in around if -(1 << 63) <= n < 1 << 63]
    assert varint_lengths(np.array(found)).tolist() == [len(write_varint(n)) for n in found]


def test_the_least_and_the_greatest_number_take_ten_bytes():
    assert varint_lengths(np.array([-(1 << 63), (1 << 63) - 1, 0, -1, 63, 64, -64, -65])).tolist() == [
        10, 10, 1, 1, 1, 2, 1, 2,
    ]  # fmt: skip
    assert varint_lengths(np.array([], np.int64)).tolist() == []


@given(numbers(63), numbers(63))
def test_the_length_of_a_number_does_not_depend_on_its_neighbours(one: int, other: int):
    assert varint_lengths(np.array([one, other])).tolist() == [len(write_varint(one)), len(write_varint(other))]


def test_a_record_without_fields_takes_nothing():
    empty = {"type": "record", "name": "r102", "fields": []}
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": empty}, {"name": "b", "type": "long"}]}
    column = pa.StructArray.from_arrays([pa.array([1, 64])], names=["b"])
    assert encoded_lengths(schema, column).tolist() == [1, 2]


def test_no_values_have_no_lengths():
    for schema, type_ in (
        ("long", pa.int64()),
        ("string", pa.string()),
        ({"type": "array", "items": "long"}, pa.list_(pa.int64())),
        (["null", {"type": "fixed", "name": "f", "size": 3}], pa.binary(3)),
    ):
        assert encoded_lengths(schema, pa.array([], type_)).tolist() == []


def test_what_a_null_hides_does_not_count():
    hidden = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\1"), pa.py_buffer(np.array([1 << 40, 1 << 40]).tobytes())]
    )
    assert encoded_lengths(["null", "long"], hidden).tolist() == [1 + 6, 1]
    offsets, items = pa.array([0, 1, 3], pa.int32()), pa.array([1, 1 << 40, 2])
    arrays = pa.ListArray.from_arrays(offsets, items, mask=pa.array([False, True]))
    assert encoded_lengths(["null", {"type": "array", "items": "long"}], arrays).tolist() == [4, 1]


@for_each(
    ("schema", "column"),
    [
        (["null", "long", "string"], pa.array([1])),
        (["long"], pa.array([1])),
        ("long", pa.array(["1"])),
        ("int", pa.array([1.0])),
        ("bytes", pa.array([1])),
        ("string", pa.array(["a"], pa.string_view())),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}, pa.array([1])),
        ({"type": "record", "name": "r", "fields": []}, pa.array([{"a": 1}])),
        ({"type": "array", "items": "long"}, pa.array([1])),
        ({"type": "map", "values": "long"}, pa.array([1])),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, pa.array(["A"])),
        ("named", pa.array([1])),
    ],
)
def test_what_cannot_be_measured_is_not_read(schema: Any, column: pa.Array):
    with pytest.raises(NotReadError):
        encoded_lengths(schema, column)
