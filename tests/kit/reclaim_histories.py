"""Generated histories of the files of a table in memory, for tests of what may be deleted: each that metadata names is there.

Their level is files and what leads to them; no file has rows, which `row_histories` are about. A history is a list of steps,
each a kind and a number by which to choose, so that a failing one can be cut down step by step. By turns files are added,
replaced, deleted by rows, put back under another name or spec; references and staged snapshots come and go; and schema,
partitioning and statistics change. All through the commit library, as jobs and engines do it. A name is a place, and a place has
many spellings. All choices are those of `lot`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.definitions import ChangeStatistics, UpdateSchema, UpdateSpec, UpgradeTable
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles, CherryPick, DeleteFiles, OverwriteFiles
from icekeep.commit.changes.rewrites import RewriteFiles, RewriteManifests
from icekeep.commit.changes.snapshots import (
    CreateRef,
    DropRef,
    ExpireSnapshots,
    FastForwardBranch,
    ReplaceRef,
    RollbackToSnapshot,
    SetCurrentSnapshot,
)
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.commit.summary import STAGED_WAP_ID
from icekeep.errors import ConflictError, SafetyError, UnsupportedError, UsageError
from icekeep.spec.evolution import AddColumn, AddPartitionField, DropColumn, RemovePartitionField, RenameColumn
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.metadata import TableMetadata, is_ancestor
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.properties import data_directory
from icekeep.spec.reach import applied_delete, is_deletion_vector
from icekeep.spec.retention import RetentionPolicy
from icekeep.spec.snapshots import MAIN, PartitionStatisticsFile, Snapshot, SnapshotRef, StatisticsFile
from icekeep.spec.transforms import Void
from icekeep.spec.types import STRING
from icekeep.storage.locations import parse_location
from kit.cases import Choices
from kit.changes import Staged
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime
from kit.storage import MemoryStorage
from kit.tables import BY_KIND, memory_table


class LocalInMemory:
    """Passes every call on to a `MemoryStorage`, and answers in the spelling that it was asked in."""

    def __init__(self, runtime: FakeRuntime, inner: MemoryStorage | None = None) -> None:
        self.inner = inner or MemoryStorage(runtime)

    def open(self, location: str) -> BinaryIO:
        return self.inner.open(self._inside(location))

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        return self.inner.read(self._inside(location), length_bytes)

    def write(self, location: str) -> AbstractContextManager[BinaryIO]:
        return self.inner.write(self._inside(location))

    def create(self, location: str, data: bytes) -> None:
        self.inner.create(self._inside(location), data)

    def move(self, source: str, target: str) -> None:
        self.inner.move(self._inside(source), self._inside(target))

    def delete_many(self, locations: Iterable[str]) -> list[Any]:
        given = [*locations]
        outcomes = self.inner.delete_many([self._inside(location) for location in given])
        return [replace(o, location=location) for o, location in zip(outcomes, given, strict=True)]

    def shares(self, prefix_location: str, count: int) -> list[Any]:
        return [replace(s, prefix=prefix_location) for s in self.inner.shares(self._inside(prefix_location), count)]

    def list_share(self, share: Any) -> Iterator[Any]:
        return self.list(share.prefix)

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[Any]:
        given = [*moves]
        outcomes = self.inner.move_many([(self._inside(s), self._inside(t)) for s, t in given])
        return [replace(o, source=source) for o, (source, _) in zip(outcomes, given, strict=True)]

    def list(self, prefix_location: str) -> Iterator[Any]:
        start = len(self._inside(prefix_location).rstrip("/"))
        for info in self.inner.list(self._inside(prefix_location)):
            yield replace(info, location=prefix_location.rstrip("/") + info.location[start:])

    def child_names(self, location: str) -> Sequence[str]:
        return self.inner.child_names(self._inside(location))

    def head(self, location: str) -> Any:
        found = self.inner.head(self._inside(location))
        return None if found is None else replace(found, location=location)

    def capabilities(self, location: str) -> Any:
        return self.inner.capabilities(self._inside(location))

    @staticmethod
    def _inside(location: str) -> str:
        for prefix in ("file://localhost/", "file:///", "file://", "file:/", "/"):
            if location.startswith(prefix):
                return f"memory://disk/{location.removeprefix(prefix)}"
        raise AssertionError(f"{location!r} is not on the local disk")


class OneForAll(LocalInMemory):
    """The one store behind every scheme and authority: a path alone tells which file is meant."""

    @staticmethod
    def _inside(location: str) -> str:
        return f"memory://lake{parse_location(location).path}"


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


class ReclaimReferences(ReclaimTable):
    """A table and those of its steps; one that finds nothing to do does nothing."""

    # References.

    def _line(self) -> str:
        """Main, or now and then another branch, to commit to."""
        others = sorted(name for name, ref in self.metadata.refs.items() if ref.is_branch and name != MAIN)
        if others and self.lot.random() < 0.3:
            self.events["commit to a branch"] += 1
            return self.lot.choice(others)
        return MAIN

    def _any_snapshot(self) -> Snapshot | None:
        """The current one more often than others, as people do it."""
        metadata = self.metadata
        if not metadata.snapshots:
            return None
        current = metadata.current_snapshot
        return current if current and self.lot.random() < 0.5 else self.lot.choice(metadata.snapshots)

    def _ref(self, kind: Any) -> None:
        snapshot = self._any_snapshot()
        if snapshot is None:
            return
        limits: dict[str, int] = {}
        if self.lot.random() < 0.4:
            limits["max_ref_age_ms"] = self.lot.choice((HOUR_MS, 2 * DAY_MS, 6 * DAY_MS))
        if kind == "branch" and self.lot.random() < 0.4:
            limits["min_snapshots_to_keep"] = self.lot.randint(1, 3)
        if kind == "branch" and self.lot.random() < 0.4:
            limits["max_snapshot_age_ms"] = self.lot.choice((1, DAY_MS, 4 * DAY_MS))
        ref = SnapshotRef(snapshot_id=snapshot.snapshot_id, type=kind, **limits)
        self._do(CreateRef(f"{kind}-{self._number()}", ref))
        self.events[f"{kind} with retention" if limits else kind] += 1

    def _branch(self) -> None:
        self._ref("branch")

    def _tag(self) -> None:
        self._ref("tag")

    def _drop_ref(self) -> None:
        names = sorted(self.metadata.refs.keys() - {MAIN})
        if names:
            name = self.lot.choice(names)
            ref = self.metadata.refs[name]
            self._do(DropRef(name=name, type=ref.type, expected_id=ref.snapshot_id))
            self.events["reference dropped"] += 1

    def _move_ref(self) -> None:
        names = sorted(self.metadata.refs.keys() - {MAIN})
        snapshot = self._any_snapshot()
        if not names or snapshot is None:
            return
        name = self.lot.choice(names)
        ref = self.metadata.refs[name]
        if ref.is_branch and is_ancestor(self.metadata, ref.snapshot_id, of=snapshot.snapshot_id):
            self._do(FastForwardBranch(name, snapshot.snapshot_id))
            self.events["branch fast-forwarded"] += 1
            return
        change = ReplaceRef(name=name, type=ref.type, snapshot_id=snapshot.snapshot_id, expected_id=ref.snapshot_id)
        self._do(change)
        self.events["reference replaced"] += 1

    # Definitions and statistics.

    def _statistics(self) -> None:
        """Of one snapshot or of two, which then share one file; or taken away."""
        metadata = self.metadata
        if not metadata.snapshots:
            return
        chosen = self.lot.sample(metadata.snapshots, min(len(metadata.snapshots), self.lot.randint(1, 2)))
        is_of_partitions = self.lot.random() < 0.5
        name = "partition-statistics" if is_of_partitions else "statistics"
        if self.lot.random() < 0.1:
            removals = tuple(s.snapshot_id for s in chosen)
            kind = "partition_removals" if is_of_partitions else "removals"
            self._do(ChangeStatistics(**{kind: removals}))
            self.events["statistics removed"] += 1
            return
        location = f"{metadata.location}/metadata/{name}-{self._number()}.bin"
        size_bytes = self._put(location)
        if len(chosen) > 1:
            self.events[f"shared {name}"] += 1
        self.events[name] += 1
        if is_of_partitions:
            partition_files = tuple(
                PartitionStatisticsFile(
                    snapshot_id=s.snapshot_id, statistics_path=self._seldom(location), file_size_in_bytes=size_bytes
                )
                for s in chosen
            )
            self._do(ChangeStatistics(updates=partition_files))
            return
        files = tuple(
            StatisticsFile(
                snapshot_id=s.snapshot_id,
                statistics_path=self._seldom(location),
                file_size_in_bytes=size_bytes,
                file_footer_size_in_bytes=4,
                blob_metadata=(),
            )
            for s in chosen
        )
        self._do(ChangeStatistics(updates=files))

    def _spec(self) -> None:
        fields = [f.name for f in self.metadata.spec.fields if not isinstance(f.transform, Void)]
        if fields and self.lot.random() < 0.5:
            change: Any = RemovePartitionField(self.lot.choice(fields))
        else:
            change = AddPartitionField(*self.lot.choice((("kind", "identity"), ("id", "bucket[4]"))))
        self._do(UpdateSpec((change,)))
        self.events["spec evolved"] += 1

    def _schema(self) -> None:
        names = [f.name for f in self.metadata.schema.fields if f.name not in ("id", "kind")]
        changes: list[Any] = [AddColumn(f"new{self._number()}", STRING)]
        if names:
            name = self.lot.choice(names)
            changes += [DropColumn(name), RenameColumn(name, f"renamed{self._number()}")]
        self._do(UpdateSchema((self.lot.choice(changes),)))
        self.events["schema evolved"] += 1

    def _upgrade(self) -> None:
        version = self.metadata.format_version
        if version < 3:
            self._do(UpgradeTable(version + 1, str(self.runtime.new_uuid())))
            self.events["format version raised"] += 1


ELSEWHERE = "elsewhere/imported"
"""Below the warehouse, where no table is."""

KINDS = {
    "append": 10,
    "put_back": 5,
    "delete_files": 5,
    "overwrite": 5,
    "rewrite": 5,
    "positions": 6,
    "equality": 3,
    "merge_manifests": 3,
    "stage": 4,
    "publish": 5,
    "branch": 4,
    "tag": 4,
    "drop_ref": 1,
    "move_ref": 2,
    "roll_back": 3,
    "statistics": 5,
    "spec": 3,
    "schema": 2,
    "expire": 1,
    "upgrade": 1,
    "import_files": 2,
    "wait": 2,
}
"""What may happen, and how often compared with the others."""

Steps = Sequence[tuple[str, int]]


def steps_of(number: int, longest: int = 25) -> list[tuple[str, int]]:
    """The steps that follow from a number: 3 to `longest`, most often few."""
    lot = Choices(number)
    count = min(longest, lot.choice((3, 5, 6, 7, 8, 10, 13, 25)))
    kinds = lot.choices(list(KINDS), list(KINDS.values()), k=count - 1)
    return [(kind, lot.getrandbits(31)) for kind in ("append", *kinds)]


def steps() -> st.SearchStrategy[list[tuple[str, int]]]:
    """The same, to be cut down where a test fails."""
    kind = st.sampled_from([kind for kind, weight in KINDS.items() for _ in range(weight)])
    return st.lists(st.tuples(kind, st.integers(0, 2**31)), min_size=3, max_size=25)


class History(ReclaimReferences):
    """A table and what happened to it; every choice follows from the numbers of the steps.

    Attributes:
        events: how often each thing came about, by its name.
        asked: arguments of `expire_snapshots` that suit the table as it is, and its options `keep_writer_progress`
            and `roots`.
    """

    def __init__(self, setting: int, steps: Steps, *, format_version: int | None = None) -> None:
        super().__init__(setting, format_version)
        for kind, number in steps:
            self.step(kind, number)
        self.asked = self._asked()

    @classmethod
    def of(cls, number: int, longest: int = 25) -> "History":
        """The history that follows from a number."""
        return cls(number, steps_of(number, longest))

    def step(self, kind: str, number: int) -> None:
        """One step; one that the rules forbid just now does nothing."""
        self.lot = Choices(number)
        self.runtime.pass_ms(self.lot.choice((1_000, HOUR_MS, HOUR_MS, DAY_MS, 2 * DAY_MS)))
        try:
            getattr(self, f"_{kind}")()
        except (ConflictError, SafetyError, UnsupportedError, UsageError):
            self.events[f"{kind} refused"] += 1

    # Data files.

    def _append(self) -> None:
        summary = {}
        if self.lot.random() < 0.3:
            self.events["writer progress"] += 1
            summary = self._progress(str(len(self.metadata.snapshots) + 1))
        files = tuple(self._new_file() for _ in range(self.lot.randint(1, 3)))
        merges = self.lot.random() < 0.5
        self.events["merging append" if merges else "fast append"] += 1
        self._do(AppendFiles(files=files, branch=self._line(), merges_manifests=merges, summary=summary))

    def _progress(self, number: str) -> dict[str, str]:
        """What a streaming writer notes in the summary of its snapshot."""
        flink = {"flink.job-id": self.lot.choice(("job-a", "job-b")), "flink.max-committed-checkpoint-id": number}
        return self.lot.choice(
            (
                flink,
                {**flink, "flink.operator-id": "sink"},
                {"spark.sql.streaming.queryId": "query", "spark.sql.streaming.epochId": number},
                {"kafka.connect.offsets.control.group": f'{{"0":{number}}}'},
            )
        )

    def _put_back(self) -> None:
        """Add a file again that was removed, perhaps under another name of the same place, or another spec."""
        branch = self._line()
        live = {place(e.data_file.file_path) for e in self._entries(branch)}
        gone = [file for place, file in self.removed.items() if place not in live and file.content is FileContent.DATA]
        if not gone:
            return
        file = self.lot.choice(gone)
        spec_id = self.lot.choice(sorted(self.metadata.specs_by_id))
        if spec_id != file.spec_id:
            self.events["put back under another spec"] += 1
            file = replace(file, spec_id=spec_id, partition=self._partition(spec_id))
        path = self._spelled(file.file_path)
        if path != file.file_path:
            self.events["put back under another spelling"] += 1
        self.events["put back"] += 1
        file = replace(file, file_path=path, first_row_id=None)
        self._do(AppendFiles(files=(file,), branch=branch, merges_manifests=self.lot.random() < 0.5))

    def _delete_files(self) -> None:
        branch = self._line()
        chosen = self._sample(self._entries(branch), 2)
        if chosen:
            paths = frozenset(e.data_file.file_path for e in chosen)
            self._do(DeleteFiles(paths=paths, branch=branch), removing=chosen)
            self.events["delete of files"] += 1

    def _overwrite(self) -> None:
        branch = self._line()
        chosen = self._sample(self._entries(branch), 2)
        if chosen:
            self._do(
                OverwriteFiles(
                    removed=tuple(chosen),
                    added=(self._new_file(),),
                    starting_snapshot_id=self.metadata.refs[branch].snapshot_id,
                    branch=branch,
                ),
                removing=chosen,
            )
            self.events["overwrite"] += 1

    def _rewrite(self) -> None:
        branch = self._line()
        data, deletes = self._entries(branch), self._entries(branch, ManifestContent.DELETES)
        chosen = self._sample(data, 3)
        if not chosen:
            return
        reaching = reaching_deletes(chosen, deletes, self.metadata.specs_by_id)
        gone = self.lot.random() < 0.7
        self._do(
            RewriteFiles(
                removed=tuple(chosen),
                added=(self._new_file(),),
                schema_id=self.metadata.current_schema_id,
                applied_deletes={path: frozenset(map(applied_delete, found)) for path, found in reaching.items()},
                starting_sequence_number=self.metadata.last_sequence_number,
                data_sequence_number=self.metadata.last_sequence_number if self.metadata.format_version > 1 else None,
                remove_dangling=gone,
                branch=branch,
            ),
            removing=chosen,
        )
        self.events["rewrite"] += 1
        if any(reaching.values()):
            self.events["rewrite of files with deletes"] += 1

    def _import_files(self) -> None:
        """Files that lie elsewhere and belong to someone else, as a migration adds them."""
        files = tuple(
            self._new_file(f"{self.warehouse}/{ELSEWHERE}/{self._number():04d}.parquet")
            for _ in range(self.lot.randint(1, 2))
        )
        self._do(AppendFiles(files=files, branch=self._line(), merges_manifests=False))
        self.events["import"] += 1

    # Row-level deletes.

    def _positions(self) -> None:
        """In version 3 as vectors, several of them in one Puffin file."""
        branch = self._line()
        data = [e.data_file for e in self._entries(branch)]
        if self.metadata.format_version == 1 or not data:
            return
        if self.metadata.format_version == 3:
            self._vectors(branch, self.lot.sample(data, min(len(data), self.lot.randint(1, 3))))
            return
        file = self.lot.choice(data)
        deletes = self._delete_file(FileContent.POSITION_DELETES, file)
        if self.lot.random() < 0.5:
            deletes = replace(deletes, referenced_data_file=file.file_path)
        self._delta(branch, (deletes,), named=frozenset({file.file_path}))
        self.events["position deletes"] += 1

    def _vectors(self, branch: str, data: Sequence[DataFile]) -> None:
        paths = {file.file_path for file in data}
        if len(paths) < len(data):
            return
        old = [e for e in self._entries(branch, ManifestContent.DELETES) if e.data_file.referenced_data_file in paths]
        location = f"{data_directory(self.metadata)}/{self._number():04d}-deletes.puffin"
        size_bytes = self._put(location)
        vectors = tuple(
            DataFile(
                file_path=self._spelled(location) if self.lot.random() < 0.1 else location,
                file_format="PUFFIN",
                content=FileContent.POSITION_DELETES,
                spec_id=file.spec_id,
                partition=file.partition,
                record_count=1,
                file_size_in_bytes=size_bytes,
                referenced_data_file=file.file_path,
                content_offset=4 + 40 * n,
                content_size_in_bytes=40,
            )
            for n, file in enumerate(data)
        )
        self._delta(branch, vectors, removed_deletes=tuple(old))
        self.events["deletion vectors"] += 1
        if len(vectors) > 1:
            self.events["vectors that share a Puffin file"] += 1
        if any(is_deletion_vector(e.data_file) for e in old):
            self.events["vector in place of another"] += 1

    def _equality(self) -> None:
        branch = self._line()
        data = [e.data_file for e in self._entries(branch)]
        if self.metadata.format_version > 1 and data:
            deletes = self._delete_file(FileContent.EQUALITY_DELETES, self.lot.choice(data))
            self._delta(branch, (replace(deletes, equality_ids=(1,)),))
            self.events["equality deletes"] += 1

    def _delta(self, branch: str, deletes: tuple[DataFile, ...], **facts: Any) -> None:
        start = self.metadata.refs[branch].snapshot_id
        self._do(RowDelta(added_deletes=deletes, starting_snapshot_id=start, branch=branch, **facts))

    def _delete_file(self, content: FileContent, like: DataFile) -> DataFile:
        location = f"{data_directory(self.metadata)}/{self._number():04d}-deletes.parquet"
        return DataFile(
            file_path=location,
            file_format="PARQUET",
            content=content,
            spec_id=like.spec_id,
            partition=like.partition,
            record_count=1,
            file_size_in_bytes=self._put(location),
        )

    # Snapshots.

    def _merge_manifests(self) -> None:
        """Put the manifests of one spec and content together, as `rewrite_manifests` does."""
        branch = self._line()
        head = self.metadata.head(branch)
        if head is None:
            return
        reader = ManifestReader(self.storage)
        by_kind: dict[tuple[int, ManifestContent], list[ManifestFile]] = {}
        for manifest in reader.manifests(head):
            by_kind.setdefault((manifest.partition_spec_id, manifest.content), []).append(manifest)
        if not by_kind:
            return
        (spec_id, content), manifests = self.lot.choice(sorted(by_kind.items(), key=lambda item: item[0]))
        entries = [e for m in manifests for e in reader.entries(m, self.metadata) if e.is_live]
        added = self._manifest(entries, spec_id, content)
        version = self.metadata.format_version
        change = RewriteManifests(replaced=tuple(manifests), added=added, format_version=version, branch=branch)
        self._do(change)
        self.events["manifests rewritten"] += 1

    def _manifest(
        self, entries: Iterable[ManifestEntry], spec_id: int, content: ManifestContent
    ) -> tuple[ManifestFile, ...]:
        metadata = self.metadata
        builder = ManifestBuilder(
            f"{metadata.location}/metadata/optimized-m-{self._number()}.avro",
            EntryEncoder(metadata.partition_type(spec_id), metadata.format_version),
            metadata.specs_by_id[spec_id],
            metadata.schema,
            format_version=metadata.format_version,
            content=content,
        )
        entries = list(entries)
        if not entries:
            return ()
        for entry in entries:
            builder.add(replace(entry, status=Status.EXISTING))
        data, manifest = builder.finish(None)
        self.storage.create(builder.location, data)
        return (manifest,)

    def _stage(self) -> None:
        summary = {STAGED_WAP_ID: f"wap-{self._number()}"} if self.lot.random() < 0.7 else {}
        files = (self._new_file(),)
        chosen = self._sample(self._entries(MAIN), 1)
        if chosen and self.lot.random() < 0.3:
            change: Any = OverwriteFiles(
                removed=tuple(chosen),
                added=files,
                starting_snapshot_id=self.metadata.current_snapshot_id,
                summary={**summary, "replace-partitions": "true"},
            )
        else:
            change = AppendFiles(files=files, summary=summary, merges_manifests=self.lot.random() < 0.3)
        self._do(Staged(change))
        self.events["staged"] += 1

    def _publish(self) -> None:
        metadata = self.metadata
        others = [s for s in metadata.snapshots if not self._is_in_main(s)]
        if others:
            picked = self.lot.choice(others)
            self._do(CherryPick(picked.snapshot_id))
            was_moved = self.metadata.current_snapshot_id == picked.snapshot_id
            self.events["published as it is" if was_moved else "cherry-picked"] += 1

    def _is_in_main(self, snapshot: Snapshot) -> bool:
        return is_ancestor(self.metadata, snapshot.snapshot_id, of=self.metadata.current_snapshot_id)

    def _roll_back(self) -> None:
        metadata, current = self.metadata, self.metadata.current_snapshot_id
        older = [s.snapshot_id for s in metadata.ancestors(current) if s.snapshot_id != current]
        others = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id != current]
        if older and self.lot.random() < 0.7:
            self._do(RollbackToSnapshot(snapshot_id=self.lot.choice(older[:3]), expected_id=current))
            self.events["rollback"] += 1
        elif others:
            self._do(SetCurrentSnapshot(snapshot_id=self.lot.choice(others), expected_id=current))
            self.events["set current"] += 1

    def _expire(self) -> None:
        """Snapshots leave, and their files stay: as other tools do it that delete nothing."""
        policy = RetentionPolicy(older_than_ms=self.runtime.now_ms() - DAY_MS, retain_last=self.lot.randint(1, 3))
        before = len(self.metadata.snapshots)
        self._do(ExpireSnapshots(policy=policy, now_ms=self.runtime.now_ms()))
        if len(self.metadata.snapshots) < before:
            self.events["expired before"] += 1

    def _wait(self) -> None:
        self.runtime.pass_ms(self.lot.choice((2 * DAY_MS, 6 * DAY_MS)))

    def _asked(self) -> dict[str, Any]:
        self.runtime.pass_ms(self.lot.choice((1_000, DAY_MS, 6 * DAY_MS)))
        now_ms = self.runtime.now_ms()
        moments = [now_ms, *(s.timestamp_ms + 1 for s in self.metadata.snapshots)]
        asked: dict[str, Any] = {"keep_writer_progress": self.lot.choice(("0", "1d", "7d"))}
        if self.lot.random() < 0.7:
            asked["older_than"] = now_ms if self.lot.random() < 0.5 else self.lot.choice(moments)
        if self.lot.random() < 0.5:
            asked["retain_last"] = self.lot.randint(1, 3)
        heads = {ref.snapshot_id for ref in self.metadata.refs.values()}
        others = [s.snapshot_id for s in self.metadata.snapshots if s.snapshot_id not in heads]
        if others and self.lot.random() < 0.2:
            self.events["snapshots named"] += 1
            asked["snapshot_ids"] = (self.lot.choice(others),)
        if self.lot.random() < 0.2:
            asked["clean_expired_metadata"] = True
        if self.lot.random() < 0.3:
            self.events["root allowed"] += 1
            named = (ELSEWHERE, *self.lot.sample((DATA_ELSEWHERE, METADATA_ELSEWHERE), self.lot.randint(0, 2)))
            asked["roots"] = ",".join(f"{self.warehouse}/{name}" for name in named)
        return asked
