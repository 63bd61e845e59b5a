"""Tables that we wrote and expired, read through every reference by Iceberg Java 1.12.0 and PyIceberg; before and after the
expiration, and what was expired once it is restored. Judged by both throughout.

The histories are of snapshots and references, whose files are real, so that judges can read them: which rows those hold,
the judges say before that. They follow from numbers: the same in every run, but for ids of snapshots and names of files.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyiceberg.table import StaticTable

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles, CherryPick, DeleteFiles, OverwriteFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.changes.snapshots import CreateRef, RollbackToSnapshot
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.commit.summary import STAGED_WAP_ID
from icekeep.errors import ConflictError, SafetyError, UnsupportedError, UsageError
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.restore.job import restore
from icekeep.runtime import SYSTEM
from icekeep.spec.evolution import AddColumn, AddPartitionField
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestEntry
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_directory
from icekeep.spec.reach import applied_delete
from icekeep.spec.snapshots import MAIN, SnapshotRef
from icekeep.spec.types import STRING
from icekeep.tables.verbs import append, create_table, update_schema, update_spec
from kit.beside import SCHEMA, as_table
from kit.cases import Choices
from kit.changes import Staged
from kit.deletes import delete_equal, delete_positions, vector_files
from kit.java import IcebergJava, JavaError
from kit.lake import Lake
from kit.reclaim_oracle import Oracle
from kit.rows import multiset
from kit.runtime import no_spark

pytestmark = pytest.mark.deep

HISTORIES = 50
KINDS = {
    "append": 6,
    "positions": 5,
    "equality": 3,
    "overwrite": 3,
    "rewrite": 3,
    "delete": 2,
    "put_back": 3,
    "tag": 3,
    "branch": 2,
    "stage": 2,
    "publish": 2,
    "roll_back": 1,
    "spec": 1,
    "schema": 1,
}
SPECS = ((), (("kind", "identity"),), (("id", "bucket[2]"),))
Rows = Counter[Any]


class Story:
    """A table that we write and what happened to it; files are as small as they can be."""

    def __init__(self, lake: Lake, number: int) -> None:
        self.lot = Choices(number)
        self.events: Counter[str] = Counter()
        self.version = self.lot.choice((1, 2, 2, 3, 3))
        self.file_format = self.lot.choice(("parquet", "parquet", "parquet", "orc", "avro"))
        self.table = create_table(
            lake.catalog,
            ("db", f"t{number}"),
            SCHEMA,
            partition_by=self.lot.choice(SPECS),
            format_version=self.version,
            properties={"write.format.default": self.file_format},
        )
        self.removed: dict[str, DataFile] = {}
        self._numbers = 0
        kinds = self.lot.choices(list(KINDS), list(KINDS.values()), k=self.lot.randint(4, 8))
        for kind in ("append", "append", *kinds):
            try:
                getattr(self, kind)()
            except (ConflictError, SafetyError, UnsupportedError, UsageError):
                self.events[f"{kind} refused"] += 1

    @property
    def metadata(self) -> TableMetadata:
        return self.table.metadata

    def append(self) -> None:
        rows = self._rows()
        self.table = append(self.table, rows, branch=self._line())

    def positions(self) -> None:
        """One row of one file; in version 3 of up to three, whose vectors share one Puffin file."""
        data = [e.data_file for e in self._entries(MAIN)]
        if self.version == 1 or not data:
            return
        if self.version == 2:
            self.table = delete_positions(self.table, [(self.lot.choice(data).file_path, 0)], self.file_format.upper())
            self.events["position deletes"] += 1
            return
        chosen = self.lot.sample(data, min(len(data), self.lot.randint(1, 3)))
        old = [
            e
            for e in self._entries(MAIN, ManifestContent.DELETES)
            if e.data_file.referenced_data_file in {file.file_path for file in chosen}
        ]
        rows = [(file, self.lot.randint(0, min(1, file.record_count - 1))) for file in chosen]
        files = vector_files(self.table, rows, old)
        self._do(RowDelta(added_deletes=files, removed_deletes=tuple(old)))
        self.events["vectors that share a Puffin file"] += len(files) > 1

    def equality(self) -> None:
        data = [e.data_file for e in self._entries(MAIN)]
        if self.version > 1 and data:
            like = self.lot.choice(data)
            rows = pa.table({"id": pa.array([self.lot.randint(0, self._numbers)], pa.int64())})
            format_ = self.file_format.upper()
            self.table = delete_equal(self.table, rows, ["id"], like=like, file_format=format_)
            self.events["equality deletes"] += 1

    def overwrite(self) -> None:
        chosen = self._sample()
        start = self.metadata.current_snapshot_id
        added = self._copies(chosen)[:1]
        self._do(OverwriteFiles(removed=chosen, added=added, starting_snapshot_id=start), chosen)
        self.events["overwrite"] += 1

    def rewrite(self) -> None:
        """Files by others of the same bytes, which a compaction could have written where nothing was deleted."""
        data, deletes = self._entries(MAIN), self._entries(MAIN, ManifestContent.DELETES)
        reaching = reaching_deletes(data, deletes, self.metadata.specs_by_id)
        chosen = tuple(e for e in self._sample() if not reaching.get(e.data_file.file_path))
        if chosen:
            change = RewriteFiles(
                removed=chosen,
                added=self._copies(chosen),
                schema_id=self.metadata.current_schema_id,
                applied_deletes={e.data_file.file_path: frozenset(map(applied_delete, ())) for e in chosen},
                starting_sequence_number=self.metadata.last_sequence_number,
            )
            self._do(change, chosen)
            self.events["rewrite"] += 1

    def delete(self) -> None:
        chosen = self._sample()
        self._do(DeleteFiles(paths=frozenset(e.data_file.file_path for e in chosen)), chosen)

    def put_back(self) -> None:
        live = {e.data_file.file_path for e in self._entries(MAIN)}
        gone = [file for path, file in sorted(self.removed.items()) if path not in live]
        if gone:
            self._do(AppendFiles(files=(replace(self.lot.choice(gone), first_row_id=None),)))
            self.events["put back"] += 1

    def tag(self) -> None:
        self._ref("tag")

    def branch(self) -> None:
        self._ref("branch")

    def stage(self) -> None:
        summary = {STAGED_WAP_ID: f"wap-{self._numbers}"}
        self._do(Staged(AppendFiles(files=self._copies(self._sample()), summary=summary)))
        self.events["staged"] += 1

    def publish(self) -> None:
        staged = [s for s in self.metadata.snapshots if STAGED_WAP_ID in (s.summary or {})]
        if staged:
            self._do(CherryPick(self.lot.choice(staged).snapshot_id))
            self.events["published"] += 1

    def roll_back(self) -> None:
        current = self.metadata.current_snapshot_id
        older = [s.snapshot_id for s in self.metadata.ancestors(current) if s.snapshot_id != current]
        if older:
            self._do(RollbackToSnapshot(snapshot_id=older[0], expected_id=current))
            self.events["rollback"] += 1

    def spec(self) -> None:
        self.table = update_spec(self.table, [AddPartitionField("number", "bucket[2]")])
        self.events["spec evolved"] += 1

    def schema(self) -> None:
        self.table = update_schema(self.table, [AddColumn(f"new{self._numbers}", STRING)])
        self.events["schema evolved"] += 1

    def _do(self, change: Any, removing: Iterable[ManifestEntry] = ()) -> None:
        self.table = commit(self.table, change).table
        self.removed |= {e.data_file.file_path: e.data_file for e in removing}

    def _line(self) -> str:
        branches = sorted(name for name, ref in self.metadata.refs.items() if ref.is_branch)
        return self.lot.choice((MAIN, *branches))

    def _ref(self, kind: Any) -> None:
        snapshot = self.lot.choice(self.metadata.snapshots)
        self._numbers += 1
        self._do(CreateRef(f"{kind}-{self._numbers}", SnapshotRef(snapshot_id=snapshot.snapshot_id, type=kind)))
        self.events[kind] += 1

    def _rows(self) -> list[pa.Table]:
        tables = []
        for _ in range(self.lot.randint(1, 2)):
            numbers = range(self._numbers, self._numbers + 3)
            self._numbers += 3
            tables.append(as_table((n, self.lot.choice("ab"), n % 3, None if n % 4 else f"n{n}") for n in numbers))
        return tables

    def _entries(self, branch: str, content: ManifestContent = ManifestContent.DATA) -> list[ManifestEntry]:
        head = self.metadata.head(branch)
        assert head is not None
        reader = ManifestReader(self.table.storage)
        manifests = [m for m in reader.manifests(head) if m.content is content]
        found = [e for m in manifests for e in reader.entries(m, self.metadata) if e.is_live]
        return sorted(found, key=lambda e: e.data_file.file_path)

    def _sample(self) -> tuple[ManifestEntry, ...]:
        entries = self._entries(MAIN)
        if not entries:
            raise UsageError("there is nothing to choose from")
        return tuple(self.lot.sample(entries, min(len(entries), self.lot.randint(1, 2))))

    def _copies(self, entries: Iterable[ManifestEntry]) -> tuple[DataFile, ...]:
        """Files of other names that hold the same bytes."""
        copies = []
        for entry in entries:
            location = self._location(self.file_format)
            self.table.storage.create(location, self.table.storage.read(entry.data_file.file_path))
            copies.append(replace(entry.data_file, file_path=location, first_row_id=None))
        return tuple(copies)

    def _location(self, extension: str) -> str:
        self._numbers += 1
        return f"{data_directory(self.metadata)}/made-{self._numbers}.{extension}"


class Readers:
    """Iceberg Java and PyIceberg, and what each reads in snapshots of one table."""

    def __init__(self, java: IcebergJava, name: str) -> None:
        self.java, self.name = java, name

    def by_java(self, snapshot_ids: Iterable[int]) -> dict[int, Rows]:
        """The rows of snapshots, every file of which is opened."""
        ids = list(snapshot_ids)
        table = ["local", "db", self.name]
        requests = [{"table": table, "filter": True, "snapshot_id": i, "after_snapshot_id": None} for i in ids]
        found = {}
        for snapshot_id, answer in zip(ids, self.java.ask_each("Tables.rows", requests), strict=True):
            if isinstance(answer, JavaError):
                raise answer
            found[snapshot_id] = multiset(answer["rows"])
        return found

    def by_pyiceberg(self, table: Table, snapshot_ids: Iterable[int]) -> dict[int, Rows | None]:
        """The same; null where it cannot read a snapshot, for equality deletes or the format of its files."""
        theirs = StaticTable.from_metadata(table.metadata_location)
        found: dict[int, Rows | None] = {}
        for snapshot_id in snapshot_ids:
            try:
                rows = theirs.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
                found[snapshot_id] = Counter(repr(sorted(row.items())) for row in rows)
            except (NotImplementedError, ValueError) as error:
                if not is_beyond_it(error):
                    raise
                found[snapshot_id] = None
        return found

    def refs_of_java(self) -> dict[str, int]:
        """The snapshots of all references."""
        refs = self.java.metadata(f"local.db.{self.name}")["refs"]
        return {name: ref["snapshot-id"] for name, ref in refs.items()}

    def refs_of_pyiceberg(self, table: Table) -> dict[str, int]:
        refs = StaticTable.from_metadata(table.metadata_location).refs()
        return {name: ref.snapshot_id for name, ref in refs.items()}


def is_beyond_it(error: Exception) -> bool:
    """Whether PyIceberg says of itself that it cannot read this."""
    return any(
        text in str(error).lower() for text in ("equality delete", "unsupported file format", "avro", "not yet support")
    )


def on_disk(directory: Path) -> dict[str, bytes]:
    """Every file but for the one that says which metadata is the newest."""
    found = {f"file://{path}": path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.endswith("/version-hint.text")}


@pytest.fixture(scope="module", params=["sql", "filesystem"])
def lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("expired"), request.param)
    java.open_catalog("local", lake.properties)
    return lake


def test_references_and_restored_snapshots_read_as_before(
    java: IcebergJava, lake: Lake, tried: Callable[..., None]
) -> None:
    counted: Counter[str] = Counter()
    start = 0 if lake.properties["type"] == "sql" else HISTORIES // 2
    for number in range(start, start + HISTORIES // 2):
        story = Story(lake, number)
        counted += story.events
        counted += check(story, Readers(java, f"t{number}"), lake)
    for name, count in sorted(counted.items()):
        tried(f"expired tables: {name}", count)
    wanted = (
        "position deletes",
        "vectors that share a Puffin file",
        "equality deletes",
        "rewrite",
        "put back",
        "tag",
        "branch",
    )
    wanted += (
        "staged",
        "spec evolved",
        "schema evolved",
        "overwrite",
        "files gone",
        "snapshots restored",
        "read by PyIceberg",
    )
    assert [name for name in wanted if not counted[name]] == []


def check(story: Story, readers: Readers, lake: Lake) -> Counter[str]:
    """Expire, read, restore, and read again."""
    table = story.table
    ids = [s.snapshot_id for s in table.metadata.snapshots]
    java, pyiceberg = readers.by_java(ids), readers.by_pyiceberg(table, ids)
    files = on_disk(lake.directory / "warehouse" / "db" / table.identifier[-1])

    done = expire_snapshots(
        table,
        no_spark,
        older_than=SYSTEM.now_ms() + 1,
        retain_last=story.lot.randint(1, 2),
        trash=3,
        options={"keep-writer-progress": "0"},
    )
    after = table.catalog.load(table.identifier)
    kept = after.metadata.snapshots_by_id.keys()
    left = on_disk(lake.directory / "warehouse" / "db" / table.identifier[-1])
    assert Oracle(left).missing(after.metadata_location) == set()
    assert after.metadata.refs == table.metadata.refs
    assert readers.refs_of_java() == readers.refs_of_pyiceberg(after) == refs_of(after)
    assert readers.by_java(kept) == {i: java[i] for i in kept}
    assert readers.by_pyiceberg(after, kept) == {i: pyiceberg[i] for i in kept}

    counted = Counter({"snapshots expired": len(ids) - len(kept), "files gone": len(files.keys() - left.keys())})
    assert done.expired_snapshots_count == len(ids) - len(kept)
    if len(kept) < len(ids):
        restored = restore(after)
        now = table.catalog.load(table.identifier)
        tags = {f"restored-{i}": i for i in ids if i not in kept}
        assert (restored.status, sorted(restored.restored_tags)) == ("done", sorted(tags))
        assert readers.refs_of_java() == readers.refs_of_pyiceberg(now) == {**refs_of(after), **tags}
        assert readers.by_java(ids) == java
        assert readers.by_pyiceberg(now, ids) == pyiceberg
        again = on_disk(lake.directory / "warehouse" / "db" / table.identifier[-1])
        assert {name: again[name] for name in files} == files, "byte for byte"
        counted["snapshots restored"] = len(tags)
    counted["snapshots read by Java"] = len(ids)
    counted["read by PyIceberg"] = sum(rows is not None for rows in pyiceberg.values())
    return counted


def refs_of(table: Table) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}
