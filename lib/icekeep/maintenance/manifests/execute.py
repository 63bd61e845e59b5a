"""Entries -> clustered by partition -> new manifests, in Spark tasks.

An entry is decoded and encoded once; as an Avro record it then passes through the shuffle into its new manifest, sorted by
partition and path. So a large partition is spread over several manifests, and each covers a narrow range.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from icekeep.catalog.base import Table
from icekeep.commit.manifests import StorageManifestReader
from icekeep.maintenance.manifests.plan import RewriteManifestsPlan
from icekeep.planning.tasks import (
    REPORT,
    dataframe_from_tasks,
    dealt,
    max_task_failures,
    parallelism,
    read_reports,
    record_batches,
    reported,
)
from icekeep.runtime import SYSTEM
from icekeep.spec.layout import metadata_directory
from icekeep.spec.manifests.encode import EntryEncoder, ManifestBuilder, PartitionCodec
from icekeep.spec.manifests.structs import ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.ordering import sort_key
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage

_RECORDS = pa.schema(
    [
        ("sort_key", pa.binary()),
        ("file_path", pa.string()),
        ("partition", pa.binary()),
        ("record_count", pa.int64()),
        ("sequence_number", pa.int64()),
        ("record", pa.binary()),
    ]
)


class _ReadTask(msgspec.Struct, frozen=True):
    manifests: tuple[ManifestFile, ...]
    partition: StructType
    format_version: int
    storage: Storage


class _Writer(msgspec.Struct, frozen=True, kw_only=True):
    """All that a task needs to write manifests of one spec."""

    directory: str
    spec: PartitionSpec
    schema: Schema
    partition: StructType
    format_version: int
    codec: str
    target_bytes: int
    storage: Storage


def rewritten_manifests(plan: RewriteManifestsPlan, table: Table, spark: SparkSession) -> tuple[ManifestFile, ...]:
    """Write new manifests for the live entries of a plan's; the driver sees their rows of the manifest list only.

    Raises:
        IcekeepError: a task failed; what the others wrote is removed.
    """
    metadata = table.metadata
    partition = metadata.partition_type(plan.spec_id)
    piles = dealt(plan.manifests, lambda m: m.manifest_length, min(parallelism(spark), len(plan.manifests)))
    tasks = [_ReadTask(tuple(pile), partition, metadata.format_version, table.storage) for pile in piles]
    records = dataframe_from_tasks(spark, tasks, _read, _RECORDS)
    writer, tries = _writer(plan, metadata, partition, table.storage), max_task_failures(spark)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield reported(lambda: _write(batches, writer), tries)

    clustered = (
        records.repartitionByRange(plan.expected_manifests_count, "sort_key", "file_path")
        .sortWithinPartitions("sort_key", "file_path")
        .mapInArrow(write, from_arrow_schema(REPORT))
    )
    results, errors = read_reports(clustered)
    manifests = tuple(manifest for result in results for manifest in result)
    if errors:
        discard(table, manifests)
        raise errors[0]
    return manifests


def discard(table: Table, manifests: Iterable[ManifestFile]) -> None:
    """Remove manifests that this run wrote and that no snapshot lists."""
    table.storage.delete_many([m.manifest_path for m in manifests])


def _writer(plan: RewriteManifestsPlan, metadata: TableMetadata, partition: StructType, storage: Storage) -> _Writer:
    return _Writer(
        directory=metadata_directory(metadata),
        spec=metadata.specs_by_id[plan.spec_id],
        schema=metadata.schema,
        partition=partition,
        format_version=metadata.format_version,
        codec=metadata.properties.get("write.manifest.compression-codec", "gzip"),
        target_bytes=plan.target_size_bytes,
        storage=storage,
    )


def _read(task: _ReadTask) -> Iterator[pa.RecordBatch]:
    for manifest in task.manifests:
        yield from record_batches(_rows(manifest, task), _RECORDS)


def _rows(manifest: ManifestFile, task: _ReadTask) -> Iterator[tuple[Any, ...]]:
    types = [f.type for f in task.partition.fields]
    encoder, codec = EntryEncoder(task.partition, task.format_version), PartitionCodec(task.partition)
    for entry in StorageManifestReader(task.storage).typed_entries(manifest, task.partition):
        if entry.is_live:
            file = entry.data_file
            yield (
                sort_key(types, file.partition),
                file.file_path,
                codec.encode(file.partition),
                file.record_count,
                entry.sequence_number,
                encoder.encode(msgspec.structs.replace(entry, status=Status.EXISTING)),
            )


def _write(batches: Iterable[pa.RecordBatch], writer: _Writer) -> list[ManifestFile]:
    """Write one task's records as manifests; removes what it wrote if it fails."""
    written: list[ManifestFile] = []
    try:
        for builder in _builders(batches, writer):
            data, manifest = builder.finish(None)
            written.append(manifest)
            with writer.storage.write(builder.location) as stream:
                stream.write(data)
    except BaseException:
        writer.storage.delete_many([m.manifest_path for m in written])
        raise
    return written


def _builders(batches: Iterable[pa.RecordBatch], writer: _Writer) -> Iterator[ManifestBuilder]:
    encoder, codec = EntryEncoder(writer.partition, writer.format_version), PartitionCodec(writer.partition)
    builder: ManifestBuilder | None = None
    for batch in batches:
        for row in zip(*(batch.column(name).to_pylist() for name in _RECORDS.names[2:]), strict=True):
            partition, record_count, sequence_number, record = row
            if builder is None:
                builder = ManifestBuilder(
                    f"{writer.directory}/optimized-m-{SYSTEM.new_uuid()}.avro",
                    encoder,
                    writer.spec,
                    writer.schema,
                    format_version=writer.format_version,
                    codec=writer.codec,
                )
            builder.add_encoded(record, Status.EXISTING, record_count, sequence_number, codec.decode(partition))
            # A little above the target, so that the last entries of a range do not make a tiny manifest.
            if builder.length_bytes >= 1.2 * writer.target_bytes:
                yield builder
                builder = None
    if builder is not None:
        yield builder
