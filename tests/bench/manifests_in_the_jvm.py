"""The other way to rewrite manifests: all of it in the JVM, by Spark's own Avro source and writer.

    .venv/bin/python tests/bench/manifests_in_the_jvm.py --rounds 3

The manifests of a table of `manifests.py` are read, clustered and written as DataFrames, and the headers of what Spark wrote
are replaced by those of manifests. That is done beside `rewrite_manifests`, in turn, in one session that is warm. No snapshot
is made of what Spark wrote, and neither partition summaries nor the sequence numbers of several snapshots are worked out, which
would cost more; icekeep's time is that of its whole job. The entries of both results are counted.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table as Columns

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import expiration_running, manifests
from bench.big_rows import Shape
from bench.big_tables import AVRO_WRITER, CACHE, CATALOG, BigTable, parts, spliced, write_entries
from bench.engines import spark_settings
from bench.watching import Watch
from icekeep import rewrite_manifests
from icekeep.commit.manifest_writer import manifest_target_bytes
from icekeep.commit.manifests import StorageManifestReader
from icekeep.planning.spark.session import build_session, stop_session
from icekeep.spec.avro import read_blocks, read_header
from icekeep.spec.manifests.structs import ManifestFile, Status
from icekeep.storage.locations import local_path

JVM, OURS = "Spark's Avro source and writer", "icekeep"
console = Console(width=150, soft_wrap=True)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run; of `seconds` replacing headers takes `splice_s`, which is 0 for icekeep."""

    seconds: float
    cpu_seconds: float
    splice_s: float
    manifests: int
    entries: int


def main() -> int:
    """Run it; 0 if no entry was lost."""
    shape, rounds, driver_memory, cache = parse_arguments()
    table = manifests.made(shape, cache)
    warming = manifests.made(manifests.small(manifests.Case(shape=shape)), cache)
    # Errors only: the Avro writer warns of each field of each file.
    spark = build_session("manifests-in-the-jvm", {**spark_settings(driver_memory), "spark.log.level": "ERROR"})
    ways = {JVM: in_the_jvm, OURS: with_icekeep}
    for way in ways.values():
        way(warming, spark)
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            expiration_running.restore(manifests.place(table, CATALOG))
            runs[name].append(way(table, spark))
    stop_session(spark)
    expiration_running.restore(manifests.place(table, CATALOG))
    print_runs(shape, runs)
    return 0 if all(run.entries == shape.entries for found in runs.values() for run in found) else 1


def in_the_jvm(table: BigTable, spark: SparkSession) -> Run:
    """Read, cluster, write and splice."""
    loaded = table.load()
    metadata, out = loaded.metadata, table.directory / "in-the-jvm"
    shutil.rmtree(out, ignore_errors=True)
    (out / "manifests").mkdir(parents=True)
    listed = _listed(table)
    size_bytes = sum(m.manifest_length for m in listed)
    with Watch() as watch:
        rows = clustered(spark, listed, -(-size_bytes // manifest_target_bytes(metadata)))
        write_entries(rows, metadata, out / "staging")
        wrote = time.perf_counter()
        written = [
            spliced(part, metadata, (out / "manifests" / f"m{number:05}.avro").as_uri())
            for number, part in enumerate(parts(out / "staging"))
        ]
        splice_s = time.perf_counter() - wrote
    entries = _entries_count(written)
    shutil.rmtree(out)
    return _run(watch, splice_s, len(written), entries)


def clustered(spark: SparkSession, listed: Iterable[ManifestFile], count: int) -> DataFrame:
    """The live entries with all their fields explicit, sorted by partition and path in `count` Spark partitions."""
    [number] = {m.sequence_number for m in listed}
    [snapshot_id] = {m.added_snapshot_id for m in listed}
    entries = spark.read.format(AVRO_WRITER).load([m.manifest_path for m in listed])
    live = entries.where(F.col("status") < Status.DELETED).select(
        F.lit(int(Status.EXISTING)).alias("status"),
        F.coalesce("snapshot_id", F.lit(snapshot_id)).alias("snapshot_id"),
        F.coalesce("sequence_number", F.lit(number).cast("bigint")).alias("sequence_number"),
        F.coalesce("file_sequence_number", F.lit(number).cast("bigint")).alias("file_sequence_number"),
        "data_file",
    )
    by = ("data_file.partition.at_day", "data_file.file_path")
    return live.repartitionByRange(count, *by).sortWithinPartitions(*by)


def with_icekeep(table: BigTable, spark: SparkSession) -> Run:
    """The whole job."""
    with Watch() as watch:
        result = rewrite_manifests(table.load(), spark)
    written = _listed(table)
    return _run(watch, 0.0, result.added_manifests_count, _entries_count(m.manifest_path for m in written))


def _listed(table: BigTable) -> list[ManifestFile]:
    loaded = table.load()
    snapshot = loaded.metadata.current_snapshot
    assert snapshot is not None
    return StorageManifestReader(loaded.storage).manifests(snapshot)


def _run(watch: Watch, splice_s: float, written: int, entries: int) -> Run:
    return Run(
        seconds=watch.seconds,
        cpu_seconds=watch.cpu_seconds,
        splice_s=splice_s,
        manifests=written,
        entries=entries,
    )


def _entries_count(locations: Iterable[str]) -> int:
    """How many entries the blocks of manifests count."""
    total = 0
    for location in locations:
        data = Path(local_path(location)).read_bytes()
        total += sum(count for count, _ in read_blocks(data, read_header(data, location)))
    return total


def print_runs(shape: Shape, runs: dict[str, list[Run]]) -> None:
    """One line a way, of its best run; the ratio is to icekeep's time."""
    columns = Columns(title=f"{shape.entries:,} entries in {shape.manifests:,} manifests")
    columns.add_column("way")
    for title in ("runs s", "best s", "of that headers s", "CPU s", "manifests", "entries", "icekeep is faster by"):
        columns.add_column(title, justify="right")
    best = {name: min(found, key=lambda run: run.seconds) for name, found in runs.items()}
    for name, run in best.items():
        columns.add_row(
            name,
            " ".join(f"{one.seconds:.1f}" for one in runs[name]),
            f"{run.seconds:.2f}",
            f"{run.splice_s:.2f}" if name == JVM else "",
            f"{run.cpu_seconds:.2f}",
            f"{run.manifests:,}",
            f"{run.entries:,}",
            "" if name == OURS else f"{run.seconds / best[OURS].seconds:.2f} x",
        )
    console.print(columns)


def parse_arguments() -> tuple[Shape, int, str, Path]:
    """The table, rounds, the memory of Spark's driver, and where tables are kept."""
    parser = argparse.ArgumentParser(description="Compare icekeep's manifest rewriting with one inside the JVM.")
    parser.add_argument("--case", choices=manifests.REWRITES, default="rewrite-200-large")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way, in turn (default: %(default)s)")
    parser.add_argument("--driver-memory", default="4g", help="of Spark (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a small table")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where tables are kept (default: %(default)s)")
    given = parser.parse_args()
    case = manifests.CASES[given.case]
    shape = manifests.small(case) if given.quick else case.shape
    return shape, 1 if given.quick else given.rounds, given.driver_memory, given.cache.absolute()


if __name__ == "__main__":
    sys.exit(main())
