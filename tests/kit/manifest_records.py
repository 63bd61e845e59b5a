"""Manifests in memory whose entries travel as records, and what those records should be."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from icekeep.maintenance.manifests.records import RunWriter
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.transcode import RecordsTask, RecordTarget, SortPart, live_records, sort_parts
from icekeep.spec.manifests.read import read_manifest
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage
from kit.manifests import DAY, resized, spec_and_schema, write_manifest
from kit.storage import MemoryStorage

DIRECTORY = "memory://bucket/metadata"


class ManifestStore(MemoryStorage):
    """Manifests of one spec under names of their own, and their rows of a manifest list in order."""

    def __init__(self, partition: StructType = DAY) -> None:
        super().__init__()
        self.partition = partition
        self.rows: list[ManifestFile] = []

    def put(self, data: bytes, row: ManifestFile, **changes: Any) -> None:
        """Store a manifest; the row is as its writer left it but for `changes`."""
        location = f"memory://bucket/m{len(self.rows)}.avro"
        self.create(location, data)
        self.rows.append(replace(resized(row, data), manifest_path=location, **changes))

    def put_entries(self, entries: Iterable[ManifestEntry], **how: Any) -> None:
        self.put(*write_manifest(entries, self.partition, **how))

    def live(self) -> list[ManifestEntry]:
        """The live entries of all manifests in order, as existing ones."""
        entries = [e for row in self.rows for e in read_manifest(self.read(row.manifest_path), row, self.partition)[1]]
        return [replace(entry, status=Status.EXISTING) for entry in entries if entry.is_live]

    def task(self, target: RecordTarget, decoder: ManifestDecoder = ManifestDecoder.DATAFUSION) -> RecordsTask:
        return RecordsTask(
            manifests=tuple(self.rows),
            numbers={row.manifest_path: number for number, row in enumerate(self.rows)},
            target=target,
            storage=self,
            decoder=decoder,
        )

    def records(
        self, target: RecordTarget, decoder: ManifestDecoder = ManifestDecoder.DATAFUSION
    ) -> list[pa.RecordBatch]:
        return [*live_records(self.task(target, decoder))]


def target_of(
    partition: StructType = DAY,
    format_version: int = 2,
    sort: Sequence[SortPart] | None = None,
) -> RecordTarget:
    """Clustered by all partition fields, unless `sort` says otherwise."""
    _, schema = spec_and_schema(partition)
    parts = sort_parts(None, partition, schema) if sort is None else sort
    return RecordTarget(partition=partition, format_version=format_version, sort=tuple(parts))


def writer_of(target: RecordTarget, storage: Storage, target_bytes: int = 8 << 20, **changes: Any) -> RunWriter:
    spec, schema = spec_and_schema(target.partition)
    settings = {"content": ManifestContent.DATA, "codec": "gzip", "level": None, **changes}
    return RunWriter(
        directory=DIRECTORY,
        spec=spec,
        schema=schema,
        target=target,
        target_bytes=target_bytes,
        storage=storage,
        **settings,
    )


def entries_in(storage: Storage, manifests: Iterable[ManifestFile], partition: StructType) -> list[ManifestEntry]:
    """The entries of manifests that were just written, in order."""
    # What an existing entry says does not depend on the numbers of its manifest.
    rows = [replace(row, sequence_number=1 << 40, added_snapshot_id=0) for row in manifests]
    return [e for row in rows for e in read_manifest(storage.read(row.manifest_path), row, partition)[1]]
