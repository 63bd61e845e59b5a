"""What one commit writes over its attempts: manifests, which later attempts reuse, and a manifest list for each attempt.

A change is given an `Attempt`; it may read its base and write manifests through it, nothing else.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import msgspec

from icekeep.commit.manifests import ManifestReader
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import OptionError, UnsupportedError
from icekeep.runtime import Runtime
from icekeep.spec.layout import manifest_list_location, manifest_location
from icekeep.spec.manifests.encode import EntryEncoder, ManifestBuilder, write_manifest_list
from icekeep.spec.manifests.inspection import lacks_counts
from icekeep.spec.manifests.row_lineage import assign_row_ids
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.refs import moved
from icekeep.spec.snapshots import MAIN, Snapshot
from icekeep.spec.updates import AddSnapshot, SetSnapshotRef, Update
from icekeep.storage.base import Storage

TARGET_SIZE_BYTES = "commit.manifest.target-size-bytes"
_TARGET_SIZE_BYTES_DEFAULT = 8 << 20
_CODEC = "write.manifest.compression-codec"


def manifest_target_bytes(metadata: TableMetadata) -> int:
    """The size that manifests are written at, in bytes; property `commit.manifest.target-size-bytes` (8 MB).

    Raises:
        OptionError: the property is not a whole number above 0.
    """
    text = metadata.properties.get(TARGET_SIZE_BYTES, str(_TARGET_SIZE_BYTES_DEFAULT))
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"table property {TARGET_SIZE_BYTES}", given=text, expected="a whole number, 1 or more")
    return int(text)


class CommitFiles:
    """The files that one commit has written so far, and manifests to be used again by later attempts.

    `named` says which of the commit's own manifests each of its lists names.
    """

    def __init__(self, storage: Storage, commit_uuid: str) -> None:
        self.storage = storage
        self.commit_uuid = commit_uuid
        self.manifests_written: list[str] = []
        self.lists_written: list[str] = []
        self.named: dict[str, frozenset[str]] = {}
        self._kept: dict[Hashable, tuple[ManifestFile, ...]] = {}

    def once(self, key: Hashable, write: Callable[[], tuple[ManifestFile, ...]]) -> tuple[ManifestFile, ...]:
        """The manifests of an earlier attempt with the same key, or what `write` makes now."""
        if key not in self._kept:
            self._kept[key] = write()
        return self._kept[key]

    def write(self, location: str, data: bytes) -> None:
        """Write one metadata file of this commit."""
        with self.storage.write(location) as stream:
            stream.write(data)


class Attempt:
    """One attempt to apply a change to a base."""

    def __init__(
        self,
        base: TableMetadata,
        number: int,
        snapshot_id: int,
        files: CommitFiles,
        reader: ManifestReader,
        runtime: Runtime,
    ) -> None:
        self.base = base
        self.snapshot_id = snapshot_id
        self.reader = reader
        self.now_ms = runtime.now_ms()
        self._number = number
        self._files = files

    def write_manifests(
        self,
        key: Hashable,
        entries: Iterable[ManifestEntry],
        spec_id: int,
        content: ManifestContent = ManifestContent.DATA,
    ) -> tuple[ManifestFile, ...]:
        """Write entries of one partition spec as manifests of about `commit.manifest.target-size-bytes`.

        An earlier attempt's manifests with the same `key` are reused, and then `entries` is not iterated.
        """
        # Manifests of another format version are no use to a base that was upgraded meanwhile.
        key = (key, spec_id, content, self.base.format_version)
        return self._files.once(key, lambda: tuple(self._write(entries, spec_id, content)))

    def snapshot_updates(
        self,
        operation: str,
        manifests: Iterable[ManifestFile],
        summary: SummaryBuilder,
        *,
        branch: str = MAIN,
    ) -> tuple[Update, ...]:
        """Write the manifest list of a new snapshot on top of a branch, and say what adds and publishes it."""
        base = self.base
        ref = base.refs.get(branch)
        if ref is not None and not ref.is_branch:
            raise UnsupportedError(f"{branch!r} is a tag; only a branch can be committed to")
        if base.is_encrypted:
            raise UnsupportedError(
                f"the table at {base.location!r} is encrypted, and icekeep writes no encrypted files; nothing was changed"
            )
        parent = base.head(branch)
        rows = [self._complete(manifest) for manifest in manifests]
        rows, next_row_id = (rows, None) if base.next_row_id is None else assign_row_ids(rows, base.next_row_id)
        snapshot = Snapshot(
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            sequence_number=base.next_sequence_number,
            # Time never runs backwards in a table's history, whatever the clocks of its writers do.
            timestamp_ms=max(self.now_ms, base.last_updated_ms, 0 if parent is None else parent.timestamp_ms),
            manifest_list=manifest_list_location(base, self.snapshot_id, self._number, self._files.commit_uuid),
            # A parent without a summary (v1) has totals that are not known; only no parent at all makes them zero.
            summary=summary.build(operation, None if parent is None else parent.summary or {}, self._files.commit_uuid),
            schema_id=base.current_schema_id,
            first_row_id=base.next_row_id,
            added_rows=None if next_row_id is None else next_row_id - (base.next_row_id or 0),
        )
        self._write_list(rows, snapshot)
        return AddSnapshot(snapshot), SetSnapshotRef(branch, moved(ref, self.snapshot_id))

    def _complete(self, manifest: ManifestFile) -> ManifestFile:
        """A list of version 1 may leave counts out that later versions require and row ids are assigned by."""
        if self.base.format_version > 1 and lacks_counts(manifest):
            return self.reader.completed(manifest, self.base)
        return manifest

    def _write_list(self, manifests: Sequence[ManifestFile], snapshot: Snapshot) -> None:
        assert snapshot.manifest_list is not None
        codec = self.base.properties.get(_CODEC, "gzip")
        data = write_manifest_list(manifests, snapshot, format_version=self.base.format_version, codec=codec)
        files = self._files
        files.lists_written.append(snapshot.manifest_list)
        files.named[snapshot.manifest_list] = frozenset(m.manifest_path for m in manifests) & {*files.manifests_written}
        files.write(snapshot.manifest_list, data)

    def _write(
        self, entries: Iterable[ManifestEntry], spec_id: int, content: ManifestContent
    ) -> Iterator[ManifestFile]:
        base = self.base
        target_bytes = manifest_target_bytes(base)
        encoder = EntryEncoder(base.partition_type(spec_id), base.format_version)
        builder: ManifestBuilder | None = None
        for entry in entries:
            if builder is None:
                builder = self._builder(encoder, spec_id, content)
            builder.add(self._owned(entry))
            if builder.length_bytes >= target_bytes:
                yield self._finish(builder)
                builder = None
        if builder is not None:
            yield self._finish(builder)

    def _builder(self, encoder: EntryEncoder, spec_id: int, content: ManifestContent) -> ManifestBuilder:
        location = manifest_location(self.base, self._files.commit_uuid, len(self._files.manifests_written))
        self._files.manifests_written.append(location)
        return ManifestBuilder(
            location,
            encoder,
            self.base.specs_by_id[spec_id],
            self.base.schema,
            format_version=self.base.format_version,
            content=content,
            codec=self.base.properties.get(_CODEC, "gzip"),
        )

    def _owned(self, entry: ManifestEntry) -> ManifestEntry:
        """Version 1 knows no inheritance: its entries say which snapshot added them."""
        if self.base.format_version > 1 or entry.snapshot_id is not None:
            return entry
        return msgspec.structs.replace(entry, snapshot_id=self.snapshot_id)

    def _finish(self, builder: ManifestBuilder) -> ManifestFile:
        data, manifest = builder.finish(self.snapshot_id)
        self._files.write(builder.location, data)
        return manifest
