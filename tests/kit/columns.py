"""Columns of every type that format v2 has, rows for them, and their way into Parquet and back."""

import io
import json
import math
from typing import Any
from uuid import UUID as UUIDValue

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from pyiceberg.schema import Schema as PyIcebergSchema

from icekeep.formats.arrow.schema import arrow_schema
from icekeep.spec.schema import Schema, schema_to_json
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
    TIMESTAMPTZ,
    UUID,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    decimal,
    fixed,
)
from icekeep.spec.values import decimal_from_unscaled, to_single


def column(field_id: int, name: str, type_: Type, required: bool = False) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_, required=required)


def schema_of(*fields: NestedField) -> Schema:
    return Schema(fields=fields)


PRIMITIVES: tuple[PrimitiveType, ...] = (
    BOOLEAN, INT, LONG, FLOAT, DOUBLE, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, STRING, UUID, BINARY, fixed(5),
    decimal(9, 2), decimal(18, 3), decimal(38, 10),
)  # fmt: skip

POINT = StructType((column(31, "x", DOUBLE, required=True), column(32, "label", STRING)))

EVERY_TYPE = schema_of(
    *(column(i, f"c{i}_{t.name}", t) for i, t in enumerate(PRIMITIVES, start=1)),
    column(20, "key", LONG, required=True),
    column(30, "point", POINT),
    column(40, "numbers", ListType(element_id=41, element=INT, element_required=True)),
    column(50, "points", ListType(element_id=51, element=StructType((column(52, "y", FLOAT), column(53, "at", DATE))))),
    column(60, "counts", MapType(key_id=61, key=STRING, value_id=62, value=LONG)),
    column(
        70,
        "deep",
        MapType(
            key_id=71, key=INT, value_id=72, value_required=True,
            value=ListType(element_id=73, element=StructType((column(74, "id", UUID), column(75, "n", decimal(4, 1))))),
        ),
    ),
)  # fmt: skip


def values(type_: Type) -> st.SearchStrategy[Any]:
    """Values as `spec` represents them; a struct is a dict by name, a list a list, a map a list of pairs."""
    match type_:
        case StructType():
            return st.fixed_dictionaries({f.name: field_values(f) for f in type_.fields})
        case ListType():
            element = values(type_.element)
            return st.lists(element if type_.element_required else st.none() | element, max_size=3)
        case MapType():
            value = values(type_.value) if type_.value_required else st.none() | values(type_.value)
            return st.lists(st.tuples(values(type_.key), value), max_size=3, unique_by=lambda pair: pair[0])
        case DecimalType():
            limit = 10**type_.precision - 1
            return st.integers(-limit, limit).map(lambda n: decimal_from_unscaled(n, type_.scale))
        case FixedType():
            return st.binary(min_size=type_.length, max_size=type_.length)
    return _SIMPLE[type_]


_SIMPLE: dict[Type, st.SearchStrategy[Any]] = {
    BOOLEAN: st.booleans(),
    INT: st.integers(-(2**31), 2**31 - 1),
    LONG: st.integers(-(2**63), 2**63 - 1),
    FLOAT: st.floats(width=32).map(lambda x: x if math.isnan(x) or math.isinf(x) else to_single(x)),
    DOUBLE: st.floats(),
    DATE: st.integers(-700_000, 2_900_000),
    TIME: st.integers(0, 86_399_999_999),
    TIMESTAMP: st.integers(-(2**55), 2**55),
    TIMESTAMPTZ: st.integers(-(2**55), 2**55),
    STRING: st.text(max_size=40),
    UUID: st.uuids(),
    BINARY: st.binary(max_size=40),
}


def field_values(field: NestedField) -> st.SearchStrategy[Any]:
    return values(field.type) if field.required else st.none() | values(field.type)


def rows(schema: Schema, max_size: int = 6) -> st.SearchStrategy[list[dict[str, Any]]]:
    row = st.fixed_dictionaries({f.name: field_values(f) for f in schema.fields})
    return st.lists(row, min_size=1, max_size=max_size)


def table_of(schema: Schema, data: list[dict[str, Any]]) -> pa.Table:
    """Rows, with values as `values` makes them, as Arrow data in a table's columns."""
    target = arrow_schema(schema)
    columns = [
        pa.array([_plain(row.get(f.name)) for row in data], type=_plain_type(target.field(f.name).type))
        for f in schema.fields
    ]
    return pa.Table.from_arrays([c.cast(t.type) for c, t in zip(columns, target, strict=True)], schema=target)


def empty_table(schema: Schema) -> pa.Table:
    return table_of(schema, [])


def _plain(value: Any) -> Any:
    """Arrow makes arrays of the spec's representations but for UUIDs."""
    match value:
        case UUIDValue():
            return value.bytes
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case list() | tuple():
            return type(value)(_plain(item) for item in value)
    return value


def _plain_type(type_: pa.DataType) -> pa.DataType:
    """The type with 16 bytes for a UUID at every level."""
    if type_ == pa.uuid():
        return pa.binary(16)
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(_plain_type(f.type)) for f in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_plain_type(type_.value_type)))
    if pa.types.is_map(type_):
        item = type_.item_field.with_type(_plain_type(type_.item_type))
        return pa.map_(type_.key_field.with_type(_plain_type(type_.key_type)), item)
    return type_


def parquet_bytes(table: pa.Table, row_group_rows: int | None = None, **options: Any) -> bytes:
    """A Parquet file as icekeep writes them."""
    out = io.BytesIO()
    settings = {"version": "2.6", "store_schema": False, "store_decimal_as_integer": True, **options}
    with pq.ParquetWriter(out, table.schema, **settings) as writer:
        writer.write_table(table, row_group_size=row_group_rows)
    return out.getvalue()


def parquet_file(table: pa.Table, row_group_rows: int | None = None, **options: Any) -> pq.ParquetFile:
    return pq.ParquetFile(io.BytesIO(parquet_bytes(table, row_group_rows, **options)))


def pyiceberg_schema(schema: Schema) -> PyIcebergSchema:
    """The same schema as PyIceberg reads it from its JSON."""
    return PyIcebergSchema.model_validate_json(json.dumps(schema_to_json(schema)))
