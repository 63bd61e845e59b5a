"""A table in memory of which every file is really there, for `reclaim_histories`: its files, their names and their partitions.

A name is a place, and a place has many spellings. All choices are those of `lot`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.properties import data_directory
from icekeep.spec.transforms import Void
from kit.choices import Choices
from kit.memory_catalog import MemoryCatalog
from kit.reclaim_store import LocalInMemory
from kit.runtime import FakeRuntime
from kit.storage import MemoryStorage
from kit.tables import BY_KIND, memory_table

VERSIONS = (1, 2, 2, 3, 3)
HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
DATA_ELSEWHERE, METADATA_ELSEWHERE = "data-of-events", "metadata-of-events"


class ReclaimTable:
    """A table, empty at first; `events` counts what came about, by name.

    `removed` are data files that were live once, as they were, by their places.
    """

    def __init__(self, setting: int, format_version: int | None = None) -> None:
        self.lot = Choices(setting)
        self.events: Counter[str] = Counter()
        self.removed: dict[str, DataFile] = {}
        self.runtime = FakeRuntime(setting)
        version = format_version or self.lot.choice(VERSIONS)
        self.storage: Any = self.lot.choice((MemoryStorage, LocalInMemory))(self.runtime)
        self.warehouse = "memory://lake/wh" if isinstance(self.storage, MemoryStorage) else "file:///wh"
        self.catalog = MemoryCatalog(self.storage, self.runtime, self.warehouse)
        self.table = memory_table(
            self.catalog,
            spec=self.lot.choice((UNPARTITIONED, BY_KIND)),
            format_version=version,
            **self._properties(),
        )
        self._numbers = 0

    @property
    def metadata(self) -> TableMetadata:
        return self.table.metadata

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Where some tables have their data or their metadata outside of their location."""
        return (f"{self.warehouse}/{DATA_ELSEWHERE}", f"{self.warehouse}/{METADATA_ELSEWHERE}")

    @property
    def files(self) -> dict[str, bytes]:
        """Every file of the store, by its location there."""
        inner = getattr(self.storage, "inner", self.storage)
        return {location.replace("memory://disk/", "file:///"): data for location, (data, _) in inner.files.items()}

    def removed_file(self, location: str) -> DataFile:
        """A data file that is not live any more, as it was."""
        return self.removed[place(location)]

    # What its steps are made of.

    def _do(self, change: Any, removing: Iterable[ManifestEntry] = ()) -> None:
        result = commit(self.table, change, runtime=self.runtime)
        self.table = result.table
        for entry in removing:
            self.removed.setdefault(place(entry.data_file.file_path), entry.data_file)

    def _entries(self, branch: str, content: ManifestContent = ManifestContent.DATA) -> list[ManifestEntry]:
        head = self.metadata.head(branch)
        if head is None:
            return []
        reader = ManifestReader(self.storage)
        manifests = [m for m in reader.manifests(head) if m.content is content]
        return [e for m in manifests for e in reader.entries(m, self.metadata) if e.is_live]

    def _sample(self, entries: Sequence[ManifestEntry], most: int) -> list[ManifestEntry]:
        """Some entries; none where a file is live twice, which many changes refuse."""
        places = [place(e.data_file.file_path) for e in entries]
        once = [e for e, place in zip(entries, places, strict=True) if places.count(place) == 1]
        return self.lot.sample(once, min(len(once), self.lot.randint(1, most)))

    def _new_file(self, location: str = "") -> DataFile:
        location = location or f"{data_directory(self.metadata)}/{self._number():04d}.parquet"
        spec_id = self.metadata.default_spec_id
        return DataFile(
            file_path=self._seldom(location),
            file_format="PARQUET",
            spec_id=spec_id,
            partition=self._partition(spec_id),
            record_count=1,
            file_size_in_bytes=self._put(location),
        )

    def _partition(self, spec_id: int) -> tuple[Any, ...]:
        types = self.metadata.partition_type(spec_id).fields
        values = {"string": ("a", "b", None), "int": (0, 1, 2)}
        return tuple(
            None if isinstance(field.transform, Void) else self.lot.choice(values[type_.type.name])
            for field, type_ in zip(self.metadata.specs_by_id[spec_id].fields, types, strict=True)
        )

    def _put(self, location: str) -> int:
        """Write a small file that is like no other; returns its length."""
        data = f"what lies at {location}".encode()
        self.storage.create(location, data)
        return len(data)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _seldom(self, location: str) -> str:
        return self._spelled(location) if self.lot.random() < 0.15 else location

    def _spelled(self, location: str) -> str:
        """The location, or another name of the same file."""
        head, _, path = location.rpartition("/wh/")
        names = [location, f"{head}/wh/./{path}", f"{head}/wh/x/../{path}", f"{head}/wh//{path}"]
        if location.startswith("file:"):
            names += [f"/wh/{path}", f"file:/wh/{path}", f"file:///wh//{path}", f"file://localhost/wh/{path}"]
        chosen = self.lot.choice(names)
        if chosen != location:
            self.events["spelled otherwise"] += 1
        return chosen

    def _properties(self) -> dict[str, str]:
        """Retention of the table's own, and data or metadata that lie outside its location, now and then."""
        found: dict[str, str] = {}
        if self.lot.random() < 0.2:
            found["history__expire__max_snapshot_age_ms"] = str(DAY_MS)
        if self.lot.random() < 0.2:
            found["history__expire__min_snapshots_to_keep"] = "2"
        if self.lot.random() < 0.15:
            self.events["data elsewhere"] += 1
            found["write__data__path"] = f"{self.warehouse}/{DATA_ELSEWHERE}"
        if self.lot.random() < 0.15:
            self.events["metadata elsewhere"] += 1
            found["write__metadata__path"] = f"{self.warehouse}/{METADATA_ELSEWHERE}"
        return found


def place(location: str) -> str:
    """The same for each name that a history gives a file."""
    return location.rpartition("/wh")[2].replace("/./", "/").replace("/x/../", "/").replace("//", "/")
