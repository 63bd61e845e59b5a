"""Rows between the driver and Spark's DataFrames."""

import struct
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import mmh3
import pyarrow as pa

from icekeep.planning.spark.failures import translated
from icekeep.planning.spark.lazily import F, from_arrow_schema, spark_is_3, to_arrow_schema
from icekeep.planning.spark.steps import described, in_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

_SPARK_SEED = 42


def arrow_dataframe(spark: "SparkSession", rows: pa.Table) -> "DataFrame":
    """Rows that the driver holds as a DataFrame, nullability and all."""
    # Spark stops reading at a batch without rows, and fails at a column without chunks.
    whole = rows.combine_chunks() if rows.num_rows else pa.Table.from_pylist([], schema=rows.schema)
    schema = from_arrow_schema(rows.schema)
    if spark_is_3(spark):
        return _spark_3_dataframe(spark, whole.cast(to_arrow_schema(schema)), schema)
    return spark.createDataFrame(whole, schema)


def _spark_3_dataframe(spark: "SparkSession", rows: pa.Table, schema: Any) -> "DataFrame":
    """What `createDataFrame` of Spark 4 does with an Arrow table, by the same parts, which Spark 3.5 has for one of pandas."""
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    jvm = spark._jvm
    size = int(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") or 0)
    batches = rows.to_batches(max_chunksize=size if size > 0 else None)
    streams = spark.sparkContext._serialize_to_jvm(
        batches,
        ArrowStreamSerializer(),
        lambda path: jvm.PythonSQLUtils.readArrowStreamFromFile(path),
        lambda: jvm.ArrowIteratorServer(),
    )
    return DataFrame(jvm.PythonSQLUtils.toDataFrame(streams, schema.json(), spark._jsparkSession), spark)


def record_batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema, size: int = 10_000) -> Iterator[pa.RecordBatch]:
    """Rows, values in the order of a schema's columns, as batches of at most `size` rows."""
    rows = iter(rows)
    while pending := list(islice(rows, size)):
        columns = zip(zip(*pending, strict=True), schema, strict=True)
        yield pa.record_batch([pa.array(values, field.type) for values, field in columns], schema=schema)


def collected(rows: "DataFrame", step: str | None = None) -> list["Row"]:
    """Run a DataFrame's tasks and bring its rows here; raises an error of ours that a task raised as what it is.

    Args:
        step: what Spark's pages say that the tasks do.
    """
    with described(step), translated():
        return in_spark(rows.sparkSession, rows.collect)


def arrow_table(rows: "DataFrame", step: str | None = None) -> pa.Table:
    """The same as an Arrow table."""
    spark = rows.sparkSession
    with described(step), translated():
        return in_spark(spark, partial(_spark_3_arrow_table, rows) if spark_is_3(spark) else rows.toArrow)


def _spark_3_arrow_table(rows: "DataFrame") -> pa.Table:
    """`DataFrame.toArrow` of Spark 4, by what Spark 3.5 collects for `toPandas`."""
    return pa.Table.from_batches(rows._collect_as_arrow(), to_arrow_schema(rows.schema))


def streamed(rows: "DataFrame", step: str | None = None) -> Iterator["Row"]:
    """The same as `collected`, a partition at a time."""
    with translated():
        # A block around the rows would describe what the caller does between them.
        with described(step):
            found = in_spark(rows.sparkSession, rows.toLocalIterator)
        yield from found


def partition_key(number: "Column", parts: int) -> "Column":
    """What a shuffle of so many partitions by one column sends to the partition of a number, an int below `parts`."""
    # As text, which Spark parses once: a plan with a node for each of thousands of keys would be slow.
    keys = F.split(F.lit(",".join(map(str, hash_keys(parts)))), ",").cast("array<int>")
    return F.get(keys, number)


def hash_keys(parts: int) -> tuple[int, ...]:
    """For each of so many partitions of a shuffle by one column a number (int) that Spark's hash partitioning sends there."""
    places: dict[int, int] = {}
    for number in count():
        # Spark's hash of an int: Murmur3 of its four bytes.
        places.setdefault(mmh3.hash(struct.pack("<i", number), _SPARK_SEED, signed=True) % parts, number)
        if len(places) == parts:
            return tuple(places[part] for part in range(parts))
    raise AssertionError
