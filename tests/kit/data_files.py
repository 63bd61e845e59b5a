"""Data files in a store: written as icekeep writes them, or put there as bytes of another writer; and read back."""

from itertools import count
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from icekeep.formats.arrow.projection import constant_array
from icekeep.formats.options import AvroOptions, OrcOptions, ParquetOptions, WriteOptions
from icekeep.formats.reader import SourceFile, read_file
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.schema import Schema
from icekeep.spec.types import (
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
    Type,
)
from icekeep.storage.base import Storage
from kit.columns import empty_table
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
