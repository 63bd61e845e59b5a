"""Sorted records -> manifests: blocks are cut from the records as they lie one after another, and packed."""

from collections.abc import Iterable

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.commit.manifest_writer import manifest_compression
from icekeep.planning.transcode import RecordTarget, fast_packer, record_blocks
from icekeep.runtime import SYSTEM
from icekeep.spec.avro import BLOCK_BYTES, Packer
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.manifests.write import ManifestBuilder, PartitionCodec
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.properties import metadata_directory
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage

_SAMPLES_COUNT = 16


class RunWriter(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to write manifests of one spec and content, here or in a task; sizes in bytes."""

    directory: str
    spec: PartitionSpec
    schema: Schema
    content: ManifestContent
    target: RecordTarget
    codec: str
    level: int | None
    target_bytes: int
    storage: Storage
    run_id: str = ""

    @classmethod
    def of(
        cls,
        metadata: TableMetadata,
        spec_id: int,
        content: ManifestContent,
        target: RecordTarget,
        target_bytes: int,
        storage: Storage,
        run_id: str = "",
    ) -> "RunWriter":
        """What a table's properties ask for; raises `PropertyError` where they are wrong."""
        codec, level = manifest_compression(metadata.properties)
        return cls(
            directory=metadata_directory(metadata),
            spec=metadata.specs_by_id[spec_id],
            schema=metadata.manifest_schema(spec_id),
            content=content,
            target=target,
            codec=codec,
            level=level,
            target_bytes=target_bytes,
            storage=storage,
            run_id=run_id,
        )

    def packer(self) -> Packer:
        """What packs blocks."""
        return fast_packer(self.codec, self.level)

    def write(self, records: Iterable[pa.Table]) -> ManifestFile:
        """Write sorted records as one manifest; its row of the manifest list has neither snapshot nor sequence number."""
        data, manifest = self._built(records, f"{self.directory}/{self._name()}")
        with self.storage.write(manifest.manifest_path) as stream:
            stream.write(data)
        return manifest

    def _name(self) -> str:
        """The name of a new file: that of the run is in it, by which orphan removal knows that the run is alive."""
        return f"optimized-m-{'-'.join(filter(None, (self.run_id, str(SYSTEM.new_uuid()))))}.avro"

    def foresee(self, records: Iterable[pa.Table]) -> ManifestFile:
        """The row of the manifest that `write` would write; it has no path."""
        return self._built(records, "")[1]

    def _built(self, records: Iterable[pa.Table], location: str) -> tuple[bytes, ManifestFile]:
        builder = self._builder(location)
        partitions: set[bytes] = set()
        for block in (block for table in records for batch in table.to_batches() for block in record_blocks(batch)):
            builder.add_block(block.payload, block.files_count, block.rows_count, block.min_sequence_number)
            partitions.update(block.partitions)
        codec = PartitionCodec(self.target.partition)
        builder.add_partitions(map(codec.decode, partitions))
        return builder.finish(None)

    @property
    def header_bytes(self) -> int:
        """What every manifest takes, without an entry."""
        return self._builder("").length_bytes

    def _builder(self, location: str) -> ManifestBuilder:
        return ManifestBuilder(
            location,
            self.target.encoder,
            self.spec,
            self.schema,
            format_version=self.target.format_version,
            content=self.content,
            codec=self.codec,
            level=self.level,
            pack=self.packer(),
        )

    def discard(self, manifests: Iterable[ManifestFile]) -> None:
        """Remove manifests that were written and that no snapshot lists."""
        self.storage.delete_many([manifest.manifest_path for manifest in manifests])

    def packed_ratio(self, samples: Iterable[bytes]) -> float:
        """How many bytes of a manifest a byte of records takes, as far as some samples tell."""
        pack = self.packer()
        pairs = [(len(pack(sample)), len(sample)) for sample in samples]
        return sum(packed for packed, _ in pairs) / max(1, sum(size for _, size in pairs))

    def parts_count(self, records_bytes: int, ratio: float) -> int:
        """Into how many manifests records are cut so that they come nearest to the target size."""
        return max(1, round(records_bytes * ratio / self.target_bytes))


def sample_places(lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Where some blocks would be that tell how well records pack: first and last row, evenly over all of them."""
    ends = np.cumsum(lengths)
    if not len(ends) or ends[-1] <= _SAMPLES_COUNT * BLOCK_BYTES:
        return [(0, len(ends))] if len(ends) else []
    starts = np.searchsorted(ends, np.arange(_SAMPLES_COUNT) * (ends[-1] // _SAMPLES_COUNT))
    stops = np.searchsorted(ends, ends[starts] + BLOCK_BYTES)
    return [(int(start), max(int(start) + 1, int(stop))) for start, stop in zip(starts, stops, strict=True)]
