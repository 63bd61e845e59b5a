"""A cache of manifests and manifest lists, for plans and jobs that one process runs one after another.

Manifests and manifest lists never change, and a UUID in their names keeps these from being used again, so they can be cached;
nothing else is: no metadata file, no marker of another run, no data. Two catalogs may use one location for files of different
stores, so each has its own entries.

Bytes serve lists, commits, and entries that are copied. Columns serve plans; what is decoded together is kept and evicted
together, and of maps from field ids only the fields that a filter uses are kept, as whole ones are most of an entry. Both share
one limit; bytes are evicted for columns, which took longer to make.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.catalog.base import Catalog, Table
from icekeep.catalog.wrappers import CatalogWrapper
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.types import MIB, StructType
from icekeep.storage.base import Storage
from icekeep.storage.wrappers import StorageWrapper

REMEMBERED_BYTES = 256 * MIB
"""The limit of all tables together; the least recently used bytes are evicted first."""

_COLUMNS_SHARE = 7 / 8
"""The share of the limit that columns may take, so that lists and commits find some of their bytes."""

_FILE_MAX_BYTES = 16 * MIB
_IMMUTABLE = re.compile(r".*/metadata/[^/]*[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}[^/]*\.avro")

Columns: TypeAlias = Mapping[str, frozenset[int] | None]
"""Columns of `manifests.batch_schema`, with the requested field ids of a map; `None`: all of them, or no map."""

_KEY_FIELDS = (
    "manifest_path",
    "manifest_length",
    "partition_spec_id",
    "content",
    "added_snapshot_id",
    "sequence_number",
    "first_row_id",
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
)
"""The fields of a row of a manifest list that entries inherit from, or are checked against."""

_Key: TypeAlias = tuple[Any, ...]


class Stretch(NamedTuple):
    """Neighbouring manifests, and their entries; `batches` is `None` if these are not in memory."""

    manifests: Sequence[ManifestFile]
    batches: Sequence[pa.RecordBatch] | None


def copied(column: pa.Array, field_ids: frozenset[int] | None) -> pa.Array:
    """A copy of a column, and of maps only the requested fields."""
    if field_ids is None or not len(column):
        return pa.concat_arrays([column])
    if column.offset:
        # The validity bitmap of a slice does not begin with its first row.
        column = pa.concat_arrays([column])
    offsets = column.offsets.to_numpy()
    first, after = int(offsets[0]), int(offsets[-1])
    is_kept = np.isin(column.keys.to_numpy()[first:after], [*field_ids])
    kept = pa.array(np.flatnonzero(is_kept) + first)
    new_offsets = np.concatenate([[0], np.cumsum(is_kept)])[offsets - first].astype(np.int32)
    type_ = column.type
    pairs = pa.StructArray.from_arrays(
        [column.keys.take(kept), column.items.take(kept)], fields=[type_.key_field, type_.item_field]
    )
    validity = column.is_valid().buffers()[1] if column.null_count else None
    buffers = [validity, pa.py_buffer(new_offsets)]
    return pa.Array.from_buffers(type_, len(column), buffers, null_count=column.null_count, children=[pairs])


class _Segment:
    """Manifests that were decoded together: one batch of several manifests, or several batches of one.

    Attributes:
        rows_of: the rows of each manifest.
        used_at: the number of lookups in the memory when this was last used.
    """

    def __init__(self, columns: Columns, batches: Sequence[pa.RecordBatch]) -> None:
        self.columns, self.batches = columns, batches
        self.bytes = sum(batch.get_total_buffer_size() for batch in batches)
        self.rows_of: dict[_Key, slice] = {}
        self.used_at = 0

    def has(self, columns: Columns) -> bool:
        for name, field_ids in columns.items():
            if name not in self.columns:
                return False
            kept_ids = self.columns[name]
            if kept_ids is not None and (field_ids is None or not field_ids <= kept_ids):
                return False
        return True


class _Place(NamedTuple):
    segment: _Segment
    rows: slice


class Memory:
    """Bytes of manifests and manifest lists by catalog and location, and columns of manifests, for several threads.

    Attributes:
        misses_count: reads of files that it would keep.
        columns_bytes: of the kept columns.
    """

    def __init__(self, max_bytes: int = REMEMBERED_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._lock = threading.Lock()
        self.hits_count = self.misses_count = 0
        self._segments: OrderedDict[int, _Segment] = OrderedDict()
        self._of_manifest: dict[_Key, list[_Segment]] = {}
        self._partitions: dict[StructType, int] = {}
        self.columns_bytes = self._lookups_count = 0

    def over(self, table: Table) -> Table:
        """The same table, whose manifests are read through this memory, also after a reload or a commit."""
        catalog, storage = table.catalog, table.storage
        if isinstance(catalog, RememberingCatalog):
            return table
        return msgspec.structs.replace(
            table,
            storage=RememberedStorage(storage, self, catalog.identity),
            catalog=RememberingCatalog(catalog, self),
        )

    def get(self, catalog: str, location: str) -> bytes | None:
        key = (catalog, location)
        with self._lock:
            data = self._kept.get(key)
            if data is not None:
                self._kept.move_to_end(key)
                self.hits_count += 1
            elif _IMMUTABLE.fullmatch(location):
                self.misses_count += 1
        return data

    def put(self, catalog: str, location: str, data: bytes) -> None:
        """Keep a file, if its name marks it as immutable and it is not too large."""
        if len(data) > min(_FILE_MAX_BYTES, self._max_bytes) or not _IMMUTABLE.fullmatch(location):
            return
        key = (catalog, location)
        with self._lock:
            self._bytes += len(data) - len(self._kept.pop(key, b""))
            self._kept[key] = data
            self._make_room()

    def stretches(
        self, catalog: str, manifests: Sequence[ManifestFile], partition: StructType, columns: Columns
    ) -> Iterator[Stretch]:
        """The manifests in order, cut into stretches whose columns are in memory, and others."""
        with self._lock:
            places = [self._find(key, columns) for key in self._keys(catalog, manifests, partition)]
        start = 0
        while start < len(manifests):
            stop, first = start + 1, places[start]
            last = first
            while stop < len(manifests):
                following = places[stop]
                if last is None or following is None:
                    is_next = last is following
                else:
                    is_next = last.segment is following.segment and last.rows.stop == following.rows.start
                if not is_next:
                    break
                stop, last = stop + 1, following
            batches = None
            if first is not None and last is not None:
                batches = [batch.select([*columns]) for batch in first.segment.batches]
                if len(batches) == 1:
                    batches = [batches[0].slice(first.rows.start, last.rows.stop - first.rows.start)]
            yield Stretch(manifests[start:stop], batches)
            start = stop

    def keep(
        self,
        catalog: str,
        manifests: Sequence[ManifestFile],
        lengths: Sequence[int],
        partition: StructType,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
    ) -> None:
        """Keep the columns of whole manifests, `lengths` entries of each.

        Unless they are too large, or the name of a manifest does not mark it as immutable.
        """
        segment = _Segment(columns, batches)
        are_immutable = all(_IMMUTABLE.fullmatch(manifest.manifest_path) for manifest in manifests)
        if segment.bytes > self._max_bytes * _COLUMNS_SHARE or not are_immutable:
            return
        with self._lock:
            start = 0
            for key, length in zip(self._keys(catalog, manifests, partition), lengths, strict=True):
                segment.rows_of[key] = slice(start, start + length)
                start += length
            if len(segment.rows_of) < len(manifests):
                # A list that names one twice is not sound.
                return
            for key in segment.rows_of:
                # Segments with no more than the new one has are never used again.
                for older in [one for one in self._of_manifest.get(key, ()) if segment.has(one.columns)]:
                    self._forget(older, key)
                self._of_manifest.setdefault(key, []).append(segment)
            segment.used_at = self._lookups_count
            self._segments[id(segment)] = segment
            self.columns_bytes += segment.bytes
            self._evict_columns(segment)
            self._make_room()

    def _make_room(self) -> None:
        """Evict bytes that exceed the limit together with the columns."""
        while self._kept and self._bytes > self._max_bytes - self.columns_bytes:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= len(gone)

    def _evict_columns(self, newest: _Segment) -> None:
        """Evict the oldest segment if, since its last use, twice as many manifests were looked up as are kept, else the newest.

        So most of a table that is larger than the limit is found when it is read again; by the last use alone, the next manifest
        would always be one that was just evicted.
        """
        while self.columns_bytes > self._max_bytes * _COLUMNS_SHARE:
            oldest = next(iter(self._segments.values()))
            is_unused = self._lookups_count - oldest.used_at > 2 * len(self._of_manifest)
            dropped = oldest if is_unused else newest
            for key in [*dropped.rows_of]:
                self._forget(dropped, key)

    def _keys(self, catalog: str, manifests: Sequence[ManifestFile], partition: StructType) -> list[_Key]:
        number = self._partitions.setdefault(partition, len(self._partitions))
        return [(catalog, number, *(getattr(manifest, name) for name in _KEY_FIELDS)) for manifest in manifests]

    def _find(self, key: _Key, columns: Columns) -> _Place | None:
        self._lookups_count += 1
        for segment in self._of_manifest.get(key, ()):
            if segment.has(columns):
                self._segments.move_to_end(id(segment))
                segment.used_at = self._lookups_count
                return _Place(segment, segment.rows_of[key])
        return None

    def _forget(self, segment: _Segment, key: _Key) -> None:
        """Remove a manifest from a segment, and the segment with its last manifest."""
        del segment.rows_of[key]
        self._of_manifest[key].remove(segment)
        if not self._of_manifest[key]:
            del self._of_manifest[key]
        if not segment.rows_of:
            del self._segments[id(segment)]
            self.columns_bytes -= segment.bytes


class RememberedStorage(StorageWrapper):
    """A storage that reads manifests through a memory."""

    def __init__(self, inner: Storage, memory: Memory, catalog: str) -> None:
        super().__init__(inner)
        self.memory, self.catalog = memory, catalog

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        kept = self.memory.get(self.catalog, location)
        if kept is not None and length_bytes in (None, len(kept)):
            return kept
        data = self.inner.read(location, length_bytes)
        self.memory.put(self.catalog, location, data)
        return data

    def open(self, location: str) -> BinaryIO:
        kept = self.memory.get(self.catalog, location)
        return self.inner.open(location) if kept is None else BytesIO(kept)


class RememberingCatalog(CatalogWrapper):
    """A catalog whose tables are read through a memory."""

    def __init__(self, inner: Catalog, memory: Memory) -> None:
        super().__init__(inner)
        self._memory = memory

    def over(self, table: Table) -> Table:
        return self._memory.over(table)

    def plain(self, table: Table) -> Table:
        storage = table.storage.inner if isinstance(table.storage, RememberedStorage) else table.storage
        return msgspec.structs.replace(super().plain(table), storage=storage)
