"""Entries -> manifests of the table's target size."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from icekeep.errors import UnsupportedError
from icekeep.spec.avro import AVRO_CODECS, LEVELS, Packer
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder, carried_manifest
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.properties import choice, whole_number
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB, StructType
from icekeep.storage.base import Storage

TARGET_SIZE_BYTES = "commit.manifest.target-size-bytes"
_CODEC = "write.manifest.compression-codec"
_LEVEL = "write.manifest.compression-level"


def manifest_target_bytes(metadata: TableMetadata) -> int:
    """The target size of manifests in bytes; property `commit.manifest.target-size-bytes` (8 MB)."""
    return whole_number(metadata.properties, TARGET_SIZE_BYTES, 8 * MIB, least=1)


def manifest_compression(properties: Mapping[str, str]) -> tuple[str, int | None]:
    """Codec and level of manifests; properties `write.manifest.compression-codec` (gzip) and `-level`, `None` if not set."""
    codec = choice(properties, _CODEC, "gzip", {name: name for name in AVRO_CODECS})
    levels = LEVELS.get(AVRO_CODECS[codec])
    if levels is None or _LEVEL not in properties:
        return codec, None
    return codec, whole_number(properties, _LEVEL, 0, levels[0], levels[-1])


def refuse_unknown_transforms(spec_ids: Iterable[int], specs: Mapping[int, PartitionSpec]) -> None:
    """Raise `UnsupportedError` if files would be added to a spec with an unknown transform, whose values cannot be written.

    Jobs call it before any work. Existing files of such a spec can be removed, and can stay when others of their manifest are
    removed (`ManifestWriter.carried`).
    """
    for spec_id in spec_ids:
        spec = specs[spec_id]
        if spec.has_unknown_transform:
            raise UnsupportedError(
                f"partition spec {spec_id} has a transform that is not known "
                f"({', '.join(str(field.transform) for field in spec.fields)}), so that no files can be added to it",
                spec_id=spec_id,
            )


class ManifestWriter(msgspec.Struct, frozen=True, kw_only=True):
    """Writes manifests for one snapshot of a table; can be pickled, since tasks write manifests, too."""

    specs: Mapping[int, PartitionSpec]
    partitions: Mapping[int, StructType]
    schemas: Mapping[int, Schema]
    format_version: int
    codec: str
    level: int | None
    target_bytes: int
    snapshot_id: int
    storage: Storage

    @classmethod
    def of(cls, base: TableMetadata, snapshot_id: int, storage: Storage) -> "ManifestWriter":
        """The writer for a new snapshot on a base; raises `PropertyError` if a property of the table is invalid."""
        codec, level = manifest_compression(base.properties)
        return cls(
            specs=base.specs_by_id,
            partitions=base.partition_types,
            schemas={spec_id: base.manifest_schema(spec_id) for spec_id in base.specs_by_id},
            format_version=base.format_version,
            codec=codec,
            level=level,
            target_bytes=manifest_target_bytes(base),
            snapshot_id=snapshot_id,
            storage=storage,
        )

    def write(
        self,
        entries: Iterable[ManifestEntry],
        spec_id: int,
        content: ManifestContent,
        locations: Iterator[str],
    ) -> Iterator[ManifestFile]:
        """Write entries of one partition spec as manifests at the next of some locations; none for no entries.

        Raises as `refuse_unknown_transforms`; existing entries of such a spec are written by `carried`.
        """
        refuse_unknown_transforms([spec_id], self.specs)
        rolling = RollingManifests(self, spec_id, content, locations)
        for entry in entries:
            rolling.current().add(self.owned(entry))
            yield from rolling.written_at(self.target_bytes)
        yield from rolling.written_at(0)

    def carried(
        self,
        data: bytes,
        manifest: ManifestFile,
        change: Callable[[ManifestEntry], ManifestEntry | None],
        location: str,
    ) -> ManifestFile:
        """Rewrite a manifest with unknown fields or transforms, with its entries changed; see `carried_manifest`."""
        new, row = carried_manifest(
            data,
            manifest,
            self.partitions[manifest.partition_spec_id],
            change,
            location=location,
            snapshot_id=self.snapshot_id,
            format_version=self.format_version,
            codec=self.codec,
            level=self.level,
        )
        with self.storage.write(location) as stream:
            stream.write(new)
        return row

    def owned(self, entry: ManifestEntry) -> ManifestEntry:
        """An entry as it is added: version 1 has no inheritance, so the entry itself has the id of its snapshot."""
        if self.format_version > 1 or entry.snapshot_id is not None:
            return entry
        return msgspec.structs.replace(entry, snapshot_id=self.snapshot_id)


class RollingManifests:
    """Manifests of one spec and content, written one after another at the next of some locations."""

    def __init__(
        self,
        writer: ManifestWriter,
        spec_id: int,
        content: ManifestContent,
        locations: Iterator[str],
        pack: Packer | None = None,
    ) -> None:
        self._writer, self._spec_id, self._content = writer, spec_id, content
        self._locations, self._pack = locations, pack
        self._encoder = EntryEncoder(writer.partitions[spec_id], writer.format_version)
        self._builder: ManifestBuilder | None = None

    def current(self) -> ManifestBuilder:
        """The manifest that takes entries; a new one begins if there is none."""
        if self._builder is None:
            writer = self._writer
            self._builder = ManifestBuilder(
                next(self._locations),
                self._encoder,
                writer.specs[self._spec_id],
                writer.schemas[self._spec_id],
                format_version=writer.format_version,
                content=self._content,
                codec=writer.codec,
                level=writer.level,
                pack=self._pack,
            )
        return self._builder

    def written_at(self, least_bytes: float) -> Iterator[ManifestFile]:
        """Write the current manifest if it has reached a size; yields its row, without a sequence number."""
        if self._builder is not None and self._builder.length_bytes >= least_bytes:
            builder, self._builder = self._builder, None
            data, manifest = builder.finish(self._writer.snapshot_id)
            with self._writer.storage.write(builder.location) as stream:
                stream.write(data)
            yield manifest
