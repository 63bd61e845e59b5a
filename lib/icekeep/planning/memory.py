"""Manifests that were read once are not read again, and their columns not decoded again: the look at a table and each of its
jobs want the same ones, and so do plans of scans that one process makes one after another.

Manifests and manifest lists never change, and their names have an identifier in them that does not come again. So what was read
of them is as good as what lies there, and nothing else is kept: no metadata file, no mark of another run, no data. Two catalogs
may call two files by one location, in stores of their own, so each has its own.

Bytes are for those who need them: lists, commits, and entries that are copied. Columns are for plans. Both share one room; bytes
make place for columns, which took longer to make.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Catalog, Table
from icekeep.catalog.wrapped import WrappedCatalog
from icekeep.planning.manifests.column_memory import ColumnMemory, Columns, KnowsColumns, Stretch
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.types import StructType
from icekeep.spec.units import MIB
from icekeep.storage.base import Storage
from icekeep.storage.counted import itself

REMEMBERED_BYTES = 256 * MIB
"""So much is kept of all tables together; what was not used for longest goes first."""

_COLUMNS_SHARE = 7 / 8
"""What of the room columns may take: lists and commits shall find some of their bytes."""

_FILE_MAX_BYTES = 16 * MIB
_IMMUTABLE = re.compile(r".*/metadata/[^/]*[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}[^/]*\.avro")


class Memory:
    """Bytes of manifests and manifest lists by catalog and location, and columns of manifests, for several threads.

    Attributes:
        hits_count, misses_count: reads that it could answer, and those of such files that it could not.
        columns: what was decoded.
    """

    def __init__(self, max_bytes: int = REMEMBERED_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._lock = threading.Lock()
        self.hits_count = self.misses_count = 0
        self.columns = ColumnMemory(int(max_bytes * _COLUMNS_SHARE))

    def over(self, table: Table) -> Table:
        """The same table, whose manifests are read through here, also after it was loaded anew or committed to."""
        catalog, storage = table.catalog, table.storage
        if isinstance(catalog, RememberingCatalog):
            return table
        through: Any = RememberedStorage(storage, self, catalog.identity)
        remembering: Any = RememberingCatalog(catalog, self)
        return msgspec.structs.replace(table, storage=through, catalog=remembering)

    def get(self, catalog: str, location: str) -> bytes | None:
        """What is kept of a file."""
        key = (catalog, location)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                self.hits_count += 1
            elif _IMMUTABLE.fullmatch(location):
                self.misses_count += 1
        return found

    def put(self, catalog: str, location: str, data: bytes) -> None:
        """Keep a file, if it is one that never changes and is not too large."""
        if len(data) > min(_FILE_MAX_BYTES, self._max_bytes) or not _IMMUTABLE.fullmatch(location):
            return
        key = (catalog, location)
        with self._lock:
            self._bytes += len(data) - len(self._kept.pop(key, b""))
            self._kept[key] = data
        self.make_room()

    def make_room(self) -> None:
        """Let bytes go that there is no room for beside the columns."""
        with self._lock:
            while self._kept and self._bytes > self._max_bytes - self.columns.bytes:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= len(gone)


class _ColumnsOfCatalog:
    """The manifests of one catalog, as `KnownColumns`; one whose name may come again is not remembered."""

    def __init__(self, memory: Memory, catalog: str) -> None:
        self._memory, self._catalog = memory, catalog

    def stretches(
        self, manifests: Sequence[ManifestFile], partition: StructType, columns: Columns
    ) -> Iterator[Stretch]:
        return self._memory.columns.stretches(self._catalog, manifests, partition, columns)

    def keep(
        self,
        manifests: Sequence[ManifestFile],
        lengths: Sequence[int],
        partition: StructType,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
    ) -> None:
        if all(_IMMUTABLE.fullmatch(manifest.manifest_path) for manifest in manifests):
            self._memory.columns.keep(self._catalog, manifests, lengths, partition, columns, batches)
            self._memory.make_room()


class RememberedStorage(KnowsColumns):
    """All of a storage, but that manifests which were read whole are answered from memory; in Spark tasks the storage itself."""

    def __init__(self, storage: Storage, memory: Memory, catalog: str) -> None:
        self._storage, self._memory, self._catalog = storage, memory, catalog
        self.known_columns = _ColumnsOfCatalog(memory, catalog)

    def __reduce__(self) -> tuple[Any, ...]:
        return itself, (self._storage,)

    @property
    def plain(self) -> Storage:
        """The storage itself."""
        return self._storage

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        kept = self._memory.get(self._catalog, location)
        if kept is not None and length_bytes in (None, len(kept)):
            return kept
        data = self._storage.read(location, length_bytes)
        self._memory.put(self._catalog, location, data)
        return data

    def open(self, location: str) -> BinaryIO:
        kept = self._memory.get(self._catalog, location)
        return self._storage.open(location) if kept is None else BytesIO(kept)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


class RememberingCatalog(WrappedCatalog):
    """All of a catalog, but that its tables are read through a memory."""

    def __init__(self, catalog: Catalog, memory: Memory) -> None:
        super().__init__(catalog)
        self._memory = memory

    def over(self, table: Table) -> Table:
        return self._memory.over(table)

    def plain(self, table: Table) -> Table:
        storage = table.storage.plain if isinstance(table.storage, RememberedStorage) else table.storage
        return msgspec.structs.replace(super().plain(table), storage=storage)
