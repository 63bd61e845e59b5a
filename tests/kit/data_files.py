"""Data files in a store, written and read back, and what may go wrong with rows when they are rewritten, one fault at a time."""

import copy
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import count
from typing import Any
from uuid import UUID as UUIDValue

import pyarrow as pa
from hypothesis import strategies as st

from icekeep.formats.arrow.projection import constant_array
from icekeep.formats.options import AvroOptions, OrcOptions, ParquetOptions, WriteOptions
from icekeep.formats.reader import SourceFile, read_file
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.schema import Schema
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
    DecimalType,
    FixedType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
    Type,
)
from icekeep.spec.values import decimal_from_unscaled, to_single
from icekeep.storage.base import Storage
from kit.cases import Random
from kit.columns import EVERY_TYPE, PRIMITIVES, column, empty_table, schema_of
from kit.rows import row_texts
from kit.strategies import schemas, values_in_python_years

ENCODINGS = {"PARQUET": ParquetOptions(), "ORC": OrcOptions(), "AVRO": AvroOptions()}


def options_for(file_format: str = "PARQUET", target_file_size_bytes: int = 512 * 2**20, **facts: Any) -> WriteOptions:
    """Options of a format; `facts` are fields of that format's options, but for `metrics_modes`."""
    modes = facts.pop("metrics_modes", None)
    encoding = type(ENCODINGS[file_format])(**facts)
    return WriteOptions(target_file_size_bytes=target_file_size_bytes, encoding=encoding, metrics_modes=modes)


def write_files(
    storage: Storage,
    schema: Schema,
    tables: list[pa.Table],
    options: WriteOptions = WriteOptions(),  # noqa: B008
    directory: str = "memory:/t",
    **facts: Any,
) -> tuple[DataFile, ...]:
    """Files named 001, 002 ... in a directory that hold the tables."""
    numbers = count(1)
    location = lambda: f"{directory}/{next(numbers):03d}{options.file_suffix}"  # noqa: E731
    with DataFileWriter(storage, schema, options, location, **facts) as writer:
        for table in tables:
            writer.write(table)
        return writer.close()


def read_table(storage: Storage, location: str, schema: Schema, *parts: int, **facts: Any) -> pa.Table:
    """A file, or some parts of it, as one table; `facts` are fields of `SourceFile`."""
    return pa.concat_tables(read_tables(storage, location, schema, *parts, **facts) or [empty_table(schema)])


def read_tables(storage: Storage, location: str, schema: Schema, *parts: int, **facts: Any) -> list[pa.Table]:
    """The tables that reading a file yields."""
    facts.setdefault("file_format", location.rpartition(".")[2])
    return list(read_file(storage, SourceFile(location=location, **facts), schema, parts or None))


def read_files(storage: Storage, files: tuple[DataFile, ...], schema: Schema) -> pa.Table:
    """The rows of several files as one table."""
    tables = [t for f in files for t in read_tables(storage, f.file_path, schema, file_format=f.file_format)]
    return pa.concat_tables(tables) if tables else empty_table(schema)


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 5) -> tuple[Schema, pa.Table]:
    """A schema with columns of any type, nested ones among them, and rows in it: nulls, NaN, extremes, empty lists."""
    schema = draw(schemas().filter(lambda schema: schema.fields))
    struct = schema.as_struct()
    parts = [constant_array(struct, row, 1) for row in draw(st.lists(nullable(struct), min_size=1, max_size=max_rows))]
    return schema, pa.Table.from_struct_array(pa.chunked_array(parts).combine_chunks())


def nullable(type_: Type) -> st.SearchStrategy[Any]:
    """Values of a type, null within them wherever the type lets it; timestamps that ORC can hold."""
    match type_:
        case StructType():
            return st.fixed_dictionaries({f.field_id: _or_null(f.type, f.required) for f in type_.fields})
        case ListType():
            return st.lists(_or_null(type_.element, type_.element_required), max_size=3).map(tuple)
        case MapType():
            entry = st.tuples(nullable(type_.key), _or_null(type_.value, type_.value_required))
            return st.lists(entry, max_size=3).map(tuple)
    assert isinstance(type_, PrimitiveType)
    if type_ in (TIMESTAMP, TIMESTAMPTZ):
        limit = 2**63 // 1000
        return st.integers(-limit + 1, limit - 1).map(lambda ticks: _whole_before_1970(ticks, 10**6))
    if type_ in (TIMESTAMP_NS, TIMESTAMPTZ_NS):
        return values_in_python_years(type_).map(lambda ticks: _whole_before_1970(ticks, 10**9))
    return values_in_python_years(type_)


def _whole_before_1970(ticks: int, second: int) -> int:
    return ticks if ticks >= 0 else -(-ticks // second) * second


def _or_null(type_: Type, required: bool) -> st.SearchStrategy[Any]:
    return nullable(type_) if required else st.none() | nullable(type_)


Row = dict[str, Any]
Fault = Callable[[list[Row], Random], bool]
"""Changes rows in place; false where these rows cannot have that fault."""

NESTED = tuple(field.type for field in EVERY_TYPE.fields if field.field_id >= 30)
TYPES: tuple[Type, ...] = (*PRIMITIVES, TIMESTAMP_NS, TIMESTAMPTZ_NS, *NESTED)
_TIMES = (DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMESTAMP_NS, TIMESTAMPTZ_NS)
_WORDS = ("", "a", "b", "ab", "ice", "iceberg", "icebergs", "an iceberg", "two icebergs in the sea", "é", "x" * 60)

_SIMPLE: dict[Type, Callable[[Random], Any]] = {
    BOOLEAN: lambda r: r.random() < 0.5,
    INT: lambda r: r.choice([0, 1, -1, r.randrange(-(2**31), 2**31)]),
    LONG: lambda r: r.choice([0, 1, -1, r.randrange(-(2**63), 2**63)]),
    FLOAT: lambda r: to_single(r.choice([0.0, -0.0, 1.5, math.nan, math.inf, r.uniform(-9, 9)])),
    DOUBLE: lambda r: r.choice([0.0, -0.0, 1.5, math.nan, -math.inf, r.uniform(-9, 9)]),
    DATE: lambda r: r.randrange(0, 30_000),
    TIME: lambda r: r.randrange(0, 80_000_000_000),
    **dict.fromkeys(_TIMES[2:], lambda r: r.randrange(0, 2**50)),
    STRING: lambda r: r.choice(_WORDS),
    UUID: lambda r: UUIDValue(int=r.getrandbits(128)),
    BINARY: lambda r: r.choice([b"", b"\0", b"\0\0", r.randbytes(r.randrange(30)), r.randbytes(700)]),
}


def schema_with(type_: Type) -> Schema:
    """A table with a column of a type."""
    return schema_of(column(101, "id", LONG, required=True), column(102, "value", type_), column(103, "note", STRING))


def rows_with(type_: Type, count: int, random: Random) -> list[Row]:
    """Rows of `schema_with`, some with nulls."""
    return [{"id": n, "value": maybe(type_, random), "note": maybe(STRING, random)} for n in range(count)]


def maybe(type_: Type, random: Random) -> Any:
    return None if random.random() < 0.2 else value_of(type_, random)


def value_of(type_: Type, random: Random) -> Any:
    """A value as `kit.columns.table_of` takes it."""
    match type_:
        case StructType():
            return {f.name: (value_of if f.required else maybe)(f.type, random) for f in type_.fields}
        case ListType():
            make = value_of if type_.element_required else maybe
            return [make(type_.element, random) for _ in range(random.randrange(4))]
        case MapType():
            make = value_of if type_.value_required else maybe
            keys = {repr(key): key for key in (value_of(type_.key, random) for _ in range(random.randrange(4)))}
            return [(key, make(type_.value, random)) for key in keys.values()]
        case DecimalType():
            limit = 10**type_.precision
            return decimal_from_unscaled(random.choice([0, 1, random.randrange(-limit + 1, limit)]), type_.scale)
        case FixedType():
            return random.randbytes(type_.length)
    return _SIMPLE[type_](random)


def faulty(rows: list[Row], fault: Fault, schema: Schema, random: Random) -> list[Row] | None:
    """The rows with a fault, by which they are no longer the same; null where they cannot have it."""
    for _ in range(40):
        changed = copy.deepcopy(rows)
        if fault(changed, random) and row_texts(schema, changed) != row_texts(schema, rows):
            return changed
    return None


def _swapped(rows: list[Row], random: Random) -> bool:
    one, other = random.sample(rows, 2)
    one["value"], other["value"] = other["value"], one["value"]
    return True


def _doubled_and_lost(rows: list[Row], random: Random) -> bool:
    kept, lost = random.sample(range(len(rows)), 2)
    rows[lost] = copy.deepcopy(rows[kept])
    return True


def _lost(rows: list[Row], random: Random) -> bool:
    rows.pop(random.randrange(len(rows)))
    return True


def _null_made(made: Callable[[Any], Any]) -> Fault:
    def fault(rows: list[Row], random: Random) -> bool:
        nulls = [row for row in rows if row["value"] is None]
        if nulls:
            random.choice(nulls)["value"] = made(random)
        return bool(nulls)

    return fault


def _changed(change: Callable[[Any, Random], Any]) -> Fault:
    """A value that is there becomes another one."""

    def fault(rows: list[Row], random: Random) -> bool:
        present = [row for row in rows if row["value"] is not None]
        if present:
            row = random.choice(present)
            row["value"] = change(row["value"], random)
        return bool(present)

    return fault


def faults_of(type_: Type) -> Iterator[tuple[str, Fault]]:
    """The faults that values of a type may have, by name."""
    yield "swapped between rows", _swapped
    yield "a row doubled and another lost", _doubled_and_lost
    yield "a row lost", _lost
    yield "made null", _changed(lambda value, random: None)
    if type_ in _TIMES:
        yield "shifted by a tick", _changed(lambda value, random: value + 1)
        yield "shifted by hours", _changed(lambda value, random: value + random.randrange(1, 24) * 3600)
    if type_ in (STRING, BINARY):
        yield "truncated", _changed(lambda value, random: value[:-1])
        yield "cut at a word", _changed(lambda value, random: value[:8])
        yield "lengthened", _changed(lambda value, random: value + value[:0].join([value[-1:]]))
        yield "null made empty", _null_made(lambda random: "" if type_ == STRING else b"")
    if isinstance(type_, DecimalType):
        yield (
            "truncated",
            _changed(lambda value, random: decimal_from_unscaled(_unscaled(value, type_) // 10, type_.scale)),
        )
    if type_ in (INT, LONG, FLOAT, DOUBLE, BOOLEAN) or isinstance(type_, DecimalType):
        yield "null made zero", _null_made(lambda random: _zero(type_))
        yield "negated", _changed(lambda value, random: _negated(value, type_))
    if type_ in (UUID,) or isinstance(type_, FixedType):
        yield "a bit flipped", _changed(_flipped)
    if isinstance(type_, StructType):
        yield (
            "null made a struct of nulls",
            _null_made(lambda random: {f.name: _least(f.type, f.required) for f in type_.fields}),
        )
        yield "fields changed", _changed(lambda value, random: value_of(type_, random))
    if isinstance(type_, ListType | MapType):
        yield "null made empty", _null_made(lambda random: [])
        yield "the last one lost", _changed(lambda value, random: value[:-1])
    if isinstance(type_, ListType):
        yield "reversed", _changed(lambda value, random: value[::-1])
        yield "an element doubled", _changed(lambda value, random: value[:1] + value)
    if isinstance(type_, MapType):
        yield "values of entries swapped", _changed(_with_moved_values)


def _unscaled(value: Decimal, type_: DecimalType) -> int:
    return int(value.scaleb(type_.scale))


def _zero(type_: Type) -> Any:
    if isinstance(type_, DecimalType):
        return decimal_from_unscaled(0, type_.scale)
    return {BOOLEAN: False, FLOAT: 0.0, DOUBLE: 0.0}.get(type_, 0)


def _negated(value: Any, type_: Type) -> Any:
    if type_ == BOOLEAN:
        return not value
    return value if type_ in (INT, LONG) and value < 0 else -value


def _least(type_: Type, required: bool) -> Any:
    return _zero(type_) if required else None


def _flipped(value: Any, random: Random) -> Any:
    data = bytearray(value.bytes if isinstance(value, UUIDValue) else value)
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return UUIDValue(bytes=bytes(data)) if isinstance(value, UUIDValue) else bytes(data)


def _with_moved_values(value: Any, random: Random) -> Any:
    keys, items = [key for key, _ in value], [item for _, item in value]
    return list(zip(keys, items[1:] + items[:1], strict=True))
