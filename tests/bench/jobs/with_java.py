"""Iceberg Java plans scans and does what icekeep does by its procedures; writes lineitem, and reads what all left."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from bench.rival.engines import Java, Target, quoted
from bench.rival.watching import Watch, timed_plans


def plan(engine: Java, target: Target) -> Callable[[], Any]:
    """Of a table that was just loaded, which is not counted."""
    return planning(engine, engine.load(target), target, engine.request["sql"])


def planning(engine: Java, table: Any, target: Target, sql: str) -> Callable[[], Any]:
    session, name, ours = engine.spark._jsparkSession, engine.full_name(target), engine.ours

    def work() -> Callable[[], dict[str, int]]:
        files, size_bytes = ours.Planning.plan(session, table, name, sql)
        return lambda: _said(files, size_bytes)

    return work


def plan_compaction(engine: Java, target: Target) -> Callable[[], Any]:
    table = engine.load(target)
    return lambda: partial(_said, *engine.ours.Planning.planCompaction(table))


def plan_position_deletes(engine: Java, target: Target) -> Callable[[], Any]:
    table = engine.load(target)
    return lambda: partial(_said, *engine.ours.Planning.planPositionDeletes(table))


def query_files(engine: Java, target: Target) -> Callable[[], Any]:
    columns = "count(*), coalesce(sum(file_size_in_bytes), 0)"
    text = f"SELECT {columns} FROM {engine.full_name(target)}.files WHERE {engine.request['files_sql']}"

    def work() -> Callable[[], dict[str, int]]:
        [row] = engine.spark.sql(text).collect()
        return lambda: _said(*row)

    return work


def _said(files: int, size_bytes: int) -> dict[str, int]:
    return {"data_files_count": files, "data_files_bytes": size_bytes}


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


SOME = 100


def expire_snapshots(engine: Java, target: Target) -> Callable[[], Any]:
    def work() -> Callable[[], Any]:
        [row] = engine.call("expire_snapshots", target, older_than=_moment(engine), retain_last="1")
        return row.asDict

    return work


def remove_orphan_files(engine: Java, target: Target) -> Callable[[], Any]:
    dry_run = str(engine.request["is_dry_run"]).lower()

    def work() -> Callable[[], Any]:
        rows = engine.call("remove_orphan_files", target, older_than=_moment(engine), dry_run=dry_run)
        some = [row["orphan_file_location"].rpartition("/")[2] for row in rows[:SOME]]
        return lambda: {"orphans_count": len(rows), "some": some}

    return work


def rows(engine: Java, target: Target) -> dict[str, int]:
    [row] = engine.spark.sql(f"SELECT count(*) FROM {engine.full_name(target)}").collect()
    return {"rows": row[0]}


def _moment(engine: Java) -> str:
    return f"TIMESTAMP '{datetime.fromtimestamp(engine.request['older_than_ms'] / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}'"


def rewrite_manifests(engine: Java, target: Target) -> Callable[[], Any]:
    def work() -> Callable[[], Any]:
        [row] = engine.call("rewrite_manifests", target)
        return row.asDict

    return work


def append(engine: Java, target: Target) -> Callable[[], Any]:
    table, file, ours = engine.load(target), engine.request["file"], engine.ours

    def work() -> Callable[[], Any]:
        ours.Appending.append(table, file["path"], file["partition"], file["bytes"], file["records"])
        return dict

    return work


def plans(engine: Java, target: Target) -> dict[str, Any]:
    return timed_plans(
        engine.request["filters"], lambda asked: planning(engine, engine.load(target), target, asked["sql"])
    )


def only_plans(engine: Java, _: Target) -> Callable[[], Any]:
    """Of the table as another left it."""
    return lambda: lambda: plans(engine, engine.request["table"])
