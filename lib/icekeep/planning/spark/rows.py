"""Rows between the driver, Arrow and Spark's DataFrames; Spark lacks some of Iceberg's types."""

import struct
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

import mmh3
import pyarrow as pa

from icekeep.errors import UnsupportedError
from icekeep.formats.arrow.schema import arrow_type, join_names
from icekeep.planning.spark.failures import translated
from icekeep.planning.spark.jobs import described, in_spark
from icekeep.planning.spark.session import F, from_arrow_schema, spark_is_3, to_arrow_schema
from icekeep.spec.schema import Schema
from icekeep.spec.types import ListType, MapType, PrimitiveType, StructType, Type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

_SPARK_SEED = 42
_REFUSED = ("time", "timestamp_ns", "timestamptz_ns", "variant", "geometry", "geography")
_REFUSED_FOR = {"time": "times of a day", "timestamp_ns": "nanoseconds", "timestamptz_ns": "nanoseconds"}


def arrow_dataframe(spark: "SparkSession", rows: pa.Table) -> "DataFrame":
    """A DataFrame of rows that the driver holds, with the nullability of their schema."""
    # Spark stops reading at a batch without rows, and fails at a column without chunks.
    whole = rows.combine_chunks() if rows.num_rows else pa.Table.from_pylist([], schema=rows.schema)
    schema = from_arrow_schema(rows.schema)
    if not spark_is_3(spark):
        return spark.createDataFrame(whole, schema)
    # What `createDataFrame` of Spark 4 does with an Arrow table, by the same parts, which Spark 3.5 has for pandas.
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    jvm = spark._jvm
    size = int(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") or 0)
    batches = whole.cast(to_arrow_schema(schema)).to_batches(max_chunksize=size if size > 0 else None)
    streams = spark.sparkContext._serialize_to_jvm(
        batches,
        ArrowStreamSerializer(),
        lambda path: jvm.PythonSQLUtils.readArrowStreamFromFile(path),
        lambda: jvm.ArrowIteratorServer(),
    )
    return DataFrame(jvm.PythonSQLUtils.toDataFrame(streams, schema.json(), spark._jsparkSession), spark)


def record_batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema, size: int = 10_000) -> Iterator[pa.RecordBatch]:
    """Rows, whose values are in the order of the schema, in batches of at most `size`."""
    rows = iter(rows)
    while pending := list(islice(rows, size)):
        columns = zip(zip(*pending, strict=True), schema, strict=True)
        yield pa.record_batch([pa.array(values, field.type) for values, field in columns], schema=schema)


def collected(rows: "DataFrame", step: str | None = None) -> list["Row"]:
    """Collect a DataFrame's rows, as a step of the run; an error of ours in a task is raised as itself."""
    with described(step), translated():
        return in_spark(rows.sparkSession, rows.collect)


def arrow_table(rows: "DataFrame", step: str | None = None) -> pa.Table:
    """As `collected`, as an Arrow table."""
    spark = rows.sparkSession
    with described(step), translated():
        if not spark_is_3(spark):
            return in_spark(spark, rows.toArrow)
        # By means of `toPandas` of Spark 3.5.
        return pa.Table.from_batches(in_spark(spark, rows._collect_as_arrow), to_arrow_schema(rows.schema))


def streamed(rows: "DataFrame", step: str | None = None) -> Iterator["Row"]:
    """As `collected`, a partition at a time."""
    with translated():
        # A block around the rows would describe what the caller does between them.
        with described(step):
            partitions = in_spark(rows.sparkSession, rows.toLocalIterator)
        yield from partitions


def shuffle_key(number: "Column", parts: int) -> "Column":
    """The key that Spark's shuffle into `parts` partitions by one column sends to the partition of a number below `parts`."""
    # As text, which Spark parses once: a plan with thousands of nodes would be slow.
    keys = F.split(F.lit(",".join(map(str, hash_keys(parts)))), ",").cast("array<int>")
    return F.get(keys, number)


def hash_keys(parts: int) -> tuple[int, ...]:
    """For each of `parts` partitions an int that Spark's hash partitioning by one column sends there."""
    places: dict[int, int] = {}
    for number in count():
        # Spark's hash of an int: Murmur3 of its four bytes.
        places.setdefault(mmh3.hash(struct.pack("<i", number), _SPARK_SEED, signed=True) % parts, number)
        if len(places) == parts:
            break
    return tuple(places[part] for part in range(parts))


def spark_columns(schema: Schema) -> pa.Schema:
    """The columns of a DataFrame for a schema: UUIDs are strings and `fixed` is binary, as Iceberg maps them in Spark.

    Raises `UnsupportedError` where Spark has no type for a column, with its full name.
    """
    return pa.schema(list(_spark_type(schema.as_struct(), "")))


def spark_rows(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Convert rows to the columns of `spark_columns`."""
    arrays = [
        pa.chunked_array([_spark_array(chunk, field.type) for chunk in column.chunks], field.type)
        for column, field in zip(rows.columns, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=columns)


def _spark_type(type_: Type, name: str) -> pa.DataType:
    match type_:
        case StructType(fields=fields):
            types = [_spark_type(f.type, join_names(name, f.name)) for f in fields]
            return pa.struct([pa.field(f.name, t, not f.required) for f, t in zip(fields, types, strict=True)])
        case ListType():
            element = _spark_type(type_.element, f"{name}.element")
            return pa.list_(pa.field("element", element, nullable=not type_.element_required))
        case MapType():
            value = pa.field("value", _spark_type(type_.value, f"{name}.value"), nullable=not type_.value_required)
            return pa.map_(_spark_type(type_.key, f"{name}.key"), value)
    kind = type_.name if isinstance(type_, PrimitiveType) else str(type_)
    if kind in _REFUSED:
        why = f" ({_REFUSED_FOR[kind]})" if kind in _REFUSED_FOR else ""
        raise UnsupportedError(
            f"column {name!r}: Spark has no type for {kind}{why}; name the other columns with select", column=name
        )
    if kind == "uuid":
        return pa.string()
    return pa.binary() if kind == "fixed" else arrow_type(type_)


def _spark_array(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    if array.type == type_:
        return array
    if isinstance(array.type, pa.UuidType):
        return pa.array([None if b is None else str(UUID(bytes=b)) for b in array.storage.to_pylist()], pa.string())
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(type_):
        children = [_spark_array(array.field(n), field.type) for n, field in enumerate(type_)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask)
    if pa.types.is_list(type_):
        dense = pa.concat_arrays([array])
        return pa.ListArray.from_arrays(dense.offsets, _spark_array(dense.values, type_.value_type), type_, mask=mask)
    if pa.types.is_map(type_):
        dense = pa.concat_arrays([array])
        keys, items = _spark_array(dense.keys, type_.key_type), _spark_array(dense.items, type_.item_type)
        return pa.MapArray.from_arrays(dense.offsets, keys, items, type_, mask=mask)
    return array.cast(type_)
