"""Iceberg Java compacts a table, or merges its position deletes; writes TPC-H's lineitem; and reads what all rivals left."""

from collections.abc import Callable
from typing import Any

from bench.rival.engines import Java, Target, quoted
from bench.rival.watching import Watch

_COLUMNS = """
    l_orderkey BIGINT NOT NULL, l_partkey BIGINT NOT NULL, l_suppkey BIGINT NOT NULL, l_linenumber INT NOT NULL,
    l_quantity DECIMAL(15, 2), l_extendedprice DECIMAL(15, 2), l_discount DECIMAL(15, 2), l_tax DECIMAL(15, 2),
    l_returnflag STRING, l_linestatus STRING, l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE,
    l_shipinstruct STRING, l_shipmode STRING, l_comment STRING
"""


def rewrite_data_files(engine: Java, target: Target) -> Callable[[], Any]:
    return _called(engine, target, "rewrite_data_files")


def rewrite_position_delete_files(engine: Java, target: Target) -> Callable[[], Any]:
    return _called(engine, target, "rewrite_position_delete_files")


def _called(engine: Java, target: Target, procedure: str) -> Callable[[], Any]:
    given = {**engine.request["arguments"], "options": engine.request["options"]}
    arguments = {name: quoted(value) for name, value in given.items() if value}

    def work() -> Callable[[], Any]:
        [row] = engine.call(procedure, target, **arguments)
        return row.asDict

    return work


def scan(engine: Java, _: Target) -> Callable[[], Any]:
    """How long Spark takes to read tables whole, and how many rows they hold with which sum of hashes of whole rows."""
    return lambda: lambda: _scanned(engine)


def _scanned(engine: Java) -> dict[str, Any]:
    spark, names = engine.spark, engine.request["tables"]
    sums, seconds, cpu_seconds = {}, {name: [] for name in names}, {name: [] for name in names}
    for name in names:
        columns = ", ".join(spark.table(name).columns)
        query = f"SELECT count(*), coalesce(sum(CAST(xxhash64({columns}) AS DECIMAL(20, 0))), 0) FROM {name}"
        sums[name] = [int(value) for value in spark.sql(query).first()]
    # By turns, and in another order each time, so that what the machine does meanwhile falls upon all alike.
    for number in range(engine.request["repeat"]):
        for name in names[::-1] if number % 2 else names:
            with Watch() as watch:
                spark.table(name).write.format("noop").mode("overwrite").save()
            seconds[name].append(watch.seconds)
            cpu_seconds[name].append(watch.cpu_seconds)
    return {
        name: {"sums": sums[name], "seconds": min(seconds[name]), "cpu_seconds": min(cpu_seconds[name])}
        for name in names
    }


def write_lineitem(engine: Java, target: Target) -> Callable[[], Any]:
    """A table with a data file of one row group for each file of rows."""
    table, size_bytes = engine.full_name(target), engine.request["row_group_bytes"]

    def work() -> Callable[[], Any]:
        engine.spark.sql(f"""
            CREATE TABLE {table} ({_COLUMNS}) USING iceberg TBLPROPERTIES (
                'format-version' = '2',
                'write.parquet.compression-codec' = 'zstd',
                'write.distribution-mode' = 'none',
                'write.parquet.row-group-size-bytes' = '{size_bytes}'
            )
        """)
        engine.spark.read.parquet(engine.request["rows"]).writeTo(table).append()
        engine.spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('write.parquet.row-group-size-bytes')")
        return dict

    return work
