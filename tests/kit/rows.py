"""Rows apart from any table: as texts that can be compared, as JSON for Iceberg Java and back, and which of them should be left.

With the type known, a value is: a bool, whole number or text as itself; a date in days, a time in microseconds, a
timestamp in micro- or nanoseconds; a float or double as the bits of a double (NaN is NaN, and -0.0 is not 0.0: so equality
deletes compare); a decimal as its plain digits; bytes in hexadecimal; a struct as the list of its fields' values; a list; a map
as pairs in the order of their keys' JSON. `java_judge/Wire.java` is the other side. What Spark gives has no such type: there,
what JSON has not is `{kind: text}`. `lake.multiset` counts rows of Arrow tables whose Iceberg schema nobody has at hand.

A row of the model has its values by the ids of columns, so that names and types may change. It lies in a place, a partition of a
spec, which follows from its values when it is appended; an equality delete is for the rows of one place, or for all.
"""

import datetime
import json
import math
import struct
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from icekeep.catalog.base import Table
from icekeep.spec.filters.expressions import AlwaysFalse, AlwaysTrue, And, Expression, Not, Operation, Or, Predicate
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN
from icekeep.spec.transforms import Void
from icekeep.spec.types import ListType, MapType, NestedField, StructType, Type
from icekeep.tables.read import read_table

OPERATION_NAMES = {
    Operation.IS_NULL: "IS_NULL",
    Operation.NOT_NULL: "NOT_NULL",
    Operation.IS_NAN: "IS_NAN",
    Operation.NOT_NAN: "NOT_NAN",
    Operation.LT: "LT",
    Operation.LT_EQ: "LT_EQ",
    Operation.GT: "GT",
    Operation.GT_EQ: "GT_EQ",
    Operation.EQ: "EQ",
    Operation.NOT_EQ: "NOT_EQ",
    Operation.IN: "IN",
    Operation.NOT_IN: "NOT_IN",
    Operation.STARTS_WITH: "STARTS_WITH",
    Operation.NOT_STARTS_WITH: "NOT_STARTS_WITH",
}

_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)


def to_wire(type_: Type, value: Any) -> Any:
    """A value in the form of `spec/values.py`, or as Arrow gives it to Python, as JSON.

    So a struct is by field id or by name, a date days or a `datetime.date`; times are of microseconds.
    """
    if value is None:
        return None
    match type_:
        case StructType():
            return [to_wire(f.type, value.get(f.field_id, value.get(f.name))) for f in type_.fields]
        case ListType():
            return [to_wire(type_.element, element) for element in value]
        case MapType():
            pairs = [[to_wire(type_.key, key), to_wire(type_.value, item)] for key, item in value]
            return sorted(pairs, key=lambda pair: _text(pair[0]))
    return _primitive_to_wire(type_, value)


def _primitive_to_wire(type_: Type, value: Any) -> Any:
    match value:
        case bool() | int() | str():
            return value
        case float():
            return _bits(value if type_.name == "double" else struct.unpack("<f", struct.pack("<f", value))[0])
        case Decimal():
            return format(value, "f")
        case uuid.UUID():
            return str(value)
        case bytes():
            return value.hex()
        case datetime.datetime():
            return (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
        case datetime.date():
            return (value - _EPOCH.date()).days
        case datetime.time():
            return (datetime.datetime.combine(_EPOCH, value) - _EPOCH) // _MICROSECOND
    raise TypeError(f"{value!r} is no value of {type_}")


def from_wire(type_: Type, value: Any) -> Any:
    """The value of its JSON; structs are dicts by field name, maps tuples of pairs."""
    if value is None:
        return None
    match type_:
        case StructType():
            return {f.name: from_wire(f.type, item) for f, item in zip(type_.fields, value, strict=True)}
        case ListType():
            return tuple(from_wire(type_.element, element) for element in value)
        case MapType():
            return tuple((from_wire(type_.key, key), from_wire(type_.value, item)) for key, item in value)
    match type_.name:
        case "float" | "double":
            return struct.unpack(">d", bytes.fromhex(value))[0]
        case "decimal":
            return Decimal(value)
        case "uuid":
            return uuid.UUID(value)
        case "fixed" | "binary":
            return bytes.fromhex(value)
    return value


def multiset(rows: Iterable[Any]) -> Counter[str]:
    """Rows as JSON with how often they occur, to compare what two sides read, in whatever order."""
    return Counter(_text(row) for row in rows)


def untagged(value: Any) -> Any:
    """A Python value from what `java_worker.tagged` made of it; structs and maps are dicts."""
    match value:
        case list():
            return [untagged(item) for item in value]
        case {"float": text}:
            return float(text)
        case {"bytes": text}:
            return bytes.fromhex(text)
        case {"decimal": text}:
            return Decimal(text)
        case {"timestamp": text}:
            return datetime.datetime.fromisoformat(text)
        case {"date": text}:
            return datetime.date.fromisoformat(text)
        case {"struct": pairs} | {"map": pairs}:
            return {_key(untagged(key)): untagged(item) for key, item in pairs}
    return value


def filter_tree(expression: Expression | None, schema: Schema) -> Any:
    """An unbound filter as `java_judge/Filters.java` reads it, with the literals as a user of Java would give them."""
    match expression:
        case None | AlwaysTrue():
            return True
        case AlwaysFalse():
            return False
        case And(left=left, right=right):
            return ["and", filter_tree(left, schema), filter_tree(right, schema)]
        case Or(left=left, right=right):
            return ["or", filter_tree(left, schema), filter_tree(right, schema)]
        case Not(child=child):
            return ["not", filter_tree(child, schema)]
        case Predicate(operation=operation, column=column, literals=literals):
            type_ = schema.field(column).type
            return [OPERATION_NAMES[operation], column, *(_literal(type_, literal) for literal in literals)]
    raise TypeError(f"{expression!r} is no unbound filter")


def metrics_tree(metrics: Any) -> dict[str, Any]:
    """A data file's metrics as `java_judge/Evaluations.java` reads them."""
    counts = {name: getattr(metrics, name) for name in ("value_counts", "null_value_counts", "nan_value_counts")}
    bounds = {name: getattr(metrics, name) for name in ("lower_bounds", "upper_bounds")}
    return {
        "record_count": metrics.record_count,
        **{name: None if ids is None else {str(i): n for i, n in ids.items()} for name, ids in counts.items()},
        **{name: None if ids is None else {str(i): b.hex() for i, b in ids.items()} for name, ids in bounds.items()},
    }


def summary_tree(summary: Any) -> dict[str, Any]:
    """The summary of a partition field as `java_judge/Evaluations.java` reads it."""
    return {
        "contains_null": summary.contains_null,
        "contains_nan": summary.contains_nan,
        "lower_bound": None if summary.lower_bound is None else summary.lower_bound.hex(),
        "upper_bound": None if summary.upper_bound is None else summary.upper_bound.hex(),
    }


def sql_literal(value: Any) -> str:
    """A value as Spark's SQL writes it, for the arguments of a procedure."""
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case datetime.datetime():
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        case list() | tuple():
            return f"array({', '.join(sql_literal(item) for item in value)})"
        case Mapping():
            return f"map({', '.join(sql_literal(item) for pair in value.items() for item in pair)})"
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def _literal(type_: Type, literal: Any) -> dict[str, str]:
    match literal:
        case bool():
            return {"boolean": str(literal).lower()}
        case int() if -(2**63) <= literal < 2**63:
            return {"long": str(literal)}
        case int() | Decimal():
            return {"decimal": str(literal)}
        case float():
            return {"double": repr(literal).replace("inf", "Infinity")}
        case bytes():
            return {"bytes": literal.hex()}
        case str():
            return {"bytes": literal} if type_.name in ("binary", "fixed") else {"string": literal}
    raise TypeError(f"Java's users have no literal like {literal!r}")


def _bits(value: float) -> str:
    """The eight bytes of a double; all NaNs are one."""
    return struct.pack(">d", math.nan if math.isnan(value) else value).hex()


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _key(key: Any) -> Any:
    return tuple(key.items()) if isinstance(key, dict) else key


RowValues = Mapping[Any, Any]
"""Values by the ids or by the names of columns, as `spec/values.py` has them or as Arrow gives them to Python."""


def row_texts(schema: Schema, rows: Iterable[RowValues]) -> Counter[str]:
    """Each row's text, with how often it occurs; a column that a row does not name is null."""
    struct = schema.as_struct()
    return multiset(to_wire(struct, row) for row in rows)


def key_text(fields: Sequence[NestedField], row: RowValues) -> str:
    """The text of a row in some columns: the same for rows that are equal there."""
    [text] = multiset([to_wire(StructType(tuple(fields)), row)])
    return text


def scanned_rows(table: Table, ref: str = MAIN) -> Counter[str]:
    """The rows of a branch by the library's own scan, in this process."""
    return row_texts(table.metadata.schema, read_table(table, ref=ref).to_pylist())


ID = 1
"""The column by which rows are told apart: a row's number in the order of writing."""


class Place(NamedTuple):
    """The partition of a spec that a file and its rows are of."""

    spec_id: int
    partition: tuple[Any, ...]

    def is_same(self, other: "Place") -> bool:
        """NaN equals NaN here, and -0.0 is not 0.0."""
        return repr(self) == repr(other)


class Row(msgspec.Struct):
    """A row that was written, and whether it is there still."""

    values: dict[int, Any]
    place: Place
    is_live: bool = True

    @property
    def id(self) -> int:
        return self.values[ID]


class RowModel:
    """All rows ever written, in the order of their ids."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    @property
    def live(self) -> list[Row]:
        return [row for row in self.rows if row.is_live]

    @property
    def ids(self) -> set[int]:
        """Of the live rows."""
        return {row.id for row in self.live}

    def append(self, rows: Iterable[dict[int, Any]], metadata: TableMetadata) -> None:
        """Rows that are written by the current spec of the table."""
        self.rows += [Row(values, place_of(metadata, values)) for values in rows]

    def delete(self, ids: Collection[int]) -> None:
        """A delete of positions, by files or by vectors: exactly these rows go."""
        for row in self.rows:
            row.is_live = row.is_live and row.id not in ids

    def delete_equal(self, fields: Sequence[NestedField], keys: Iterable[Sequence[Any]], place: Place | None) -> None:
        """An equality delete: rows go that are there by now, and that equal a key in some columns; null equals null.

        Args:
            keys: a value for each of the columns.
            place: only rows that lie there go; null for an unpartitioned delete, which is for rows of all places.
        """
        ids = [field.field_id for field in fields]
        texts = {key_text(fields, dict(zip(ids, key, strict=True))) for key in keys}
        for row in self.live:
            if place is None or row.place.is_same(place):
                row.is_live = key_text(fields, row.values) not in texts

    def add_column(self, field_id: int, default: Any) -> None:
        """Rows that there are have the default of a new column, or null."""
        for row in self.rows:
            row.values[field_id] = default

    def move(self, places: Mapping[int, Place]) -> None:
        """Some rows, by id, lie elsewhere since their files were rewritten."""
        for row in self.rows:
            row.place = places.get(row.id, row.place)

    def texts(self, schema: Schema) -> Counter[str]:
        """The live rows in the columns of a schema."""
        return row_texts(schema, (row.values for row in self.live))


def place_of(metadata: TableMetadata, values: Mapping[int, Any]) -> Place:
    """Where the current spec puts a row."""
    fields, types = metadata.spec.fields, metadata.schema.fields_by_id
    partition = tuple(
        None if isinstance(f.transform, Void) else f.transform.apply(types[f.source_id].type, values.get(f.source_id))
        for f in fields
    )
    return Place(metadata.spec.spec_id, partition)
