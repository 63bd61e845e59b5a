"""The other way to rewrite manifests: all of it in the JVM, by Spark's own Avro source and writer.

Manifests are read, clustered and written as DataFrames, and the headers of what Spark wrote are replaced by those of manifests.
No snapshot is made of that, and neither partition summaries nor the sequence numbers of several snapshots are worked out, which
would cost more; icekeep's time is that of its whole job.
"""

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.rival.engines import Icekeep, Target
from bench.tables.big_tables import AVRO_WRITER, parts, spliced, write_entries
from icekeep.commit.manifest_writer import manifest_target_bytes
from icekeep.commit.manifests import ManifestReader
from icekeep.spec.avro import read_blocks, read_header
from icekeep.spec.manifests.structs import ManifestFile, Status
from icekeep.storage.locations import local_path


def rewrite_manifests(engine: Icekeep, target: Target) -> Callable[[], Any]:
    """Read, cluster, write and splice; of the time replacing headers takes `splice_s`."""

    def work() -> Callable[[], Any]:
        table = engine.load(target)
        metadata, out = table.metadata, Path(engine.request["scratch"])
        (out / "manifests").mkdir(parents=True)
        listed = ManifestReader(table.storage).manifests(metadata.current_snapshot)
        size_bytes = sum(m.manifest_length for m in listed)
        rows = clustered(engine.spark, listed, -(-size_bytes // manifest_target_bytes(metadata)))
        write_entries(rows, metadata, out / "staging")
        wrote = time.perf_counter()
        written = [
            spliced(part, metadata, (out / "manifests" / f"m{number:05}.avro").as_uri())
            for number, part in enumerate(parts(out / "staging"))
        ]
        splice_s = time.perf_counter() - wrote
        return lambda: _said(out, len(listed), written, splice_s)

    return work


def plans(engine: Icekeep, target: Target) -> dict[str, Any]:
    """Nothing to plan: the table stays as it is."""
    return {}


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


def _said(out: Path, listed: int, written: list[str], splice_s: float) -> dict[str, Any]:
    said = {
        "rewritten_manifests_count": listed,
        "added_manifests_count": len(written),
        "entries_count": _entries_count(written),
        "splice_s": splice_s,
    }
    shutil.rmtree(out)
    return said


def _entries_count(locations: Iterable[str]) -> int:
    """How many entries the blocks of manifests count."""
    total = 0
    for location in locations:
        data = Path(local_path(location)).read_bytes()
        total += sum(count for count, _ in read_blocks(data, read_header(data, location)))
    return total
