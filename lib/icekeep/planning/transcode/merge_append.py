"""The `ManifestReader` for appends: it merges manifests by copying the records of entries, not by decoding them."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from icekeep.commit.filtering import MergeManifests
from icekeep.commit.manifests import StorageManifestReader
from icekeep.planning.entries.read import in_threads
from icekeep.planning.manifests.reader import ManifestDecoder, chosen_decoder
from icekeep.planning.transcode.blocks import fast_packer, record_blocks
from icekeep.planning.transcode.records import RecordsTask, RecordTarget, live_records
from icekeep.spec.manifests.encode import ManifestBuilder, PartitionCodec
from icekeep.spec.manifests.structs import ManifestFile

_FEW_ENTRIES_COUNT = 1000
"""So many are merged entry by entry before DataFusion is loaded."""

_MAX_SHARE_OF_TARGET = 1.5


class MergingManifestReader(StorageManifestReader):
    """Reads through a storage, in this process; merges many entries as encoded records."""

    def merged(
        self, manifests: Sequence[ManifestFile], work: MergeManifests, locations: Iterator[str]
    ) -> list[ManifestFile]:
        if sum(m.live_files_count or 0 for m in manifests) <= _FEW_ENTRIES_COUNT:
            return super().merged(manifests, work, locations)
        decoder, _ = chosen_decoder()
        if decoder is ManifestDecoder.FASTAVRO:
            return super().merged(manifests, work, locations)
        return _Merging(self, work, locations, decoder).run(manifests)


class _Merging:
    """One merge: entries of the writer's own snapshot are added one by one, those of older manifests as blocks."""

    def __init__(
        self, reader: StorageManifestReader, work: MergeManifests, locations: Iterator[str], decoder: ManifestDecoder
    ) -> None:
        self._reader, self._work, self._locations, self._decoder = reader, work, locations, decoder
        writer = work.writer
        self._target = RecordTarget(partition=writer.partitions[work.spec_id], format_version=writer.format_version)
        self._encoder = self._target.encoder
        self._codec = PartitionCodec(self._target.partition)
        self._pack = fast_packer(writer.codec, writer.level)
        self._builder: ManifestBuilder | None = None
        self._written: list[ManifestFile] = []

    def run(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        own = self._work.writer.snapshot_id
        for is_own, some in groupby(manifests, lambda manifest: manifest.added_snapshot_id == own):
            if is_own:
                self._add_entries([*some])
            else:
                self._add_records(tuple(some))
        if self._builder is not None:
            self._written.append(self._work.writer.finished(self._builder))
        return self._written

    def _add_entries(self, manifests: Sequence[ManifestFile]) -> None:
        for manifest in manifests:
            for entry in self._work.kept(self._reader.entries(manifest, self._work.base)):
                self._begun().add(self._work.writer.owned(entry))
                self._cut()

    def _add_records(self, manifests: tuple[ManifestFile, ...]) -> None:
        task = RecordsTask.of(manifests, self._target, self._reader.storage, self._decoder)
        for batches in in_threads(task, _read):
            for block in (block for batch in batches for block in record_blocks(batch)):
                builder = self._begun()
                builder.add_block(block.payload, block.files_count, block.rows_count, block.min_sequence_number)
                builder.add_partitions(map(self._codec.decode, block.partitions))
                self._cut()

    def _begun(self) -> ManifestBuilder:
        if self._builder is None:
            work = self._work
            self._builder = work.writer.begun(
                self._encoder, work.spec_id, work.content, next(self._locations), self._pack
            )
        return self._builder

    def _cut(self) -> None:
        """Write a manifest that is well above the target size: a bin of that size may pack a little worse than it was."""
        if (
            self._builder is not None
            and self._builder.length_bytes >= _MAX_SHARE_OF_TARGET * self._work.writer.target_bytes
        ):
            self._written.append(self._work.writer.finished(self._builder))
            self._builder = None


def _read(task: RecordsTask) -> list[pa.RecordBatch]:
    return [*live_records(task)]
