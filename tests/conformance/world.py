"""A table in a REST catalog, the rows that it must hold, and what another writer does to it.

Files and deletes are written by icekeep's own writers, as a streaming engine would write them; the rows that must be there
are kept beside, by the id of each.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import In
from pyiceberg.table import StaticTable
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.catalog.open import open_catalog
from icekeep.spec.snapshots import MAIN
from icekeep.tables.refs import create_tag
from icekeep.tables.verbs import append, create_table, set_current_snapshot
from kit.beside import Row as SnapshotRow
from kit.beside import as_table
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions, new_data_files
from kit.rest_server import RestServer

Row = tuple[Any, ...]
Rows = Counter[Row]

_DELETED = 2
DATA, POSITIONS, EQUALITY = range(3)
_VECTOR_HEADER, _VECTOR_CHECKSUM = 8, 4


class Entry(NamedTuple):
    """A live file and how new it is."""

    file: Mapping[str, Any]
    sequence_number: int

    @property
    def path(self) -> str:
        return str(self.file["file_path"])

    @property
    def content(self) -> int:
        return int(self.file.get("content") or DATA)


class Held(NamedTuple):
    """What a snapshot holds.

    Attributes:
        missing: live files, or manifests, that are not there.
    """

    rows: Rows
    data_files_count: int
    missing: tuple[str, ...]
    has_equality_deletes: bool


class Reader:
    """Reads snapshots of a table as a metadata file has it."""

    def __init__(self, metadata_location: str) -> None:
        self.location = metadata_location
        self.metadata = json.loads(_path(metadata_location).read_bytes())
        schemas = {schema["schema-id"]: schema for schema in self.metadata["schemas"]}
        fields = schemas[self.metadata["current-schema-id"]]["fields"]
        self._names = {field["id"]: field["name"] for field in fields}
        self._missing: list[str] = []

    @property
    def snapshot_ids(self) -> list[int]:
        return [snapshot["snapshot-id"] for snapshot in self.metadata.get("snapshots", ())]

    def head(self, ref: str = "main") -> int | None:
        """The snapshot of a branch or tag."""
        refs = self.metadata.get("refs", {})
        return int(refs[ref]["snapshot-id"]) if ref in refs else None

    def manifests(self, snapshot_id: int) -> list[Mapping[str, Any]]:
        """The manifests of a snapshot, as its list has them."""
        [found] = [one for one in self.metadata["snapshots"] if one["snapshot-id"] == snapshot_id]
        return self._avro(found["manifest-list"])

    def entries(self, snapshot_id: int) -> list[Entry]:
        """The live files of a snapshot; a file that its own commit added has that one's number."""
        return [
            Entry(entry["data_file"], _or(entry.get("sequence_number"), manifest["sequence_number"]))
            for manifest in self.manifests(snapshot_id)
            for entry in self._avro(manifest["manifest_path"])
            if entry["status"] != _DELETED
        ]

    def named(self) -> frozenset[str]:
        """All data files, delete files and manifests that any snapshot names."""
        manifests = [manifest for one in self.snapshot_ids for manifest in self.manifests(one)]
        files = [entry.path for one in self.snapshot_ids for entry in self.entries(one)]
        return frozenset([*(manifest["manifest_path"] for manifest in manifests), *files])

    def held(self, snapshot_id: int | None) -> Held:
        """What a snapshot holds; nothing where there is none."""
        self._missing = []
        entries = [] if snapshot_id is None else self.entries(snapshot_id)
        positions = self._positions(entry for entry in entries if entry.content == POSITIONS)
        by_value = [(entry.sequence_number, *self._keys(entry)) for entry in entries if entry.content == EQUALITY]
        data = [entry for entry in entries if entry.content == DATA]
        rows: Rows = Counter()
        for entry in data:
            rows.update(self._live_rows(entry, positions.get(entry.path, []), by_value))
        return Held(rows, len(data), tuple(self._missing), bool(by_value))

    def rows_of(self, paths: Iterable[str]) -> Rows:
        """All rows of data files, as a reader gets them who planned before."""
        rows: Rows = Counter()
        for path in paths:
            rows.update(self.rows_in(path))
        return rows

    def rows_in(self, path: str) -> list[Row]:
        """The rows of a data file in order, whatever deletes there are; none where it is missing."""
        table = self._parquet(path, list(self._names.values()))
        return [] if table is None else _tuples(table, self._names.values())

    def _live_rows(self, entry: Entry, positions: list[tuple[int, int]], by_value: list[Any]) -> Iterator[Row]:
        """The rows that no delete reaches: one of positions that is not older than the file, or one by value that is newer."""
        names, age = list(self._names.values()), entry.sequence_number
        gone = {position for position, number in positions if number >= age}
        newer = [([names.index(n) for n in columns], values) for number, columns, values in by_value if number > age]
        for position, row in enumerate(self.rows_in(entry.path)):
            if position not in gone and not any(tuple(row[n] for n in at) in values for at, values in newer):
                yield row

    def _positions(self, deletes: Iterable[Entry]) -> dict[str, list[tuple[int, int]]]:
        """By data file, which positions are deleted, and how new each delete is."""
        found: dict[str, list[tuple[int, int]]] = {}
        for entry in deletes:
            if entry.file["file_format"].upper() == "PUFFIN":
                pairs = self._vector(entry)
            else:
                table = self._parquet(entry.path)
                pairs = [] if table is None else _tuples(table, ("file_path", "pos"))
            for path, position in pairs:
                found.setdefault(path, []).append((position, entry.sequence_number))
        return found

    def _vector(self, entry: Entry) -> list[Row]:
        """The one vector of a Puffin file that an entry names."""
        try:
            data = _path(entry.path).read_bytes()
        except FileNotFoundError:
            self._missing.append(entry.path)
            return []
        start = entry.file["content_offset"]
        blob = data[start : start + entry.file["content_size_in_bytes"]]
        bitmap = BitMap64.deserialize(blob[_VECTOR_HEADER:-_VECTOR_CHECKSUM])
        return [(entry.file["referenced_data_file"], position) for position in bitmap]

    def _keys(self, entry: Entry) -> tuple[list[str], set[Row]]:
        """The columns of an equality delete file, and the values that it deletes."""
        columns = [self._names[field_id] for field_id in entry.file["equality_ids"]]
        table = self._parquet(entry.path)
        return columns, set() if table is None else set(_tuples(table, columns))

    def _avro(self, location: str) -> list[Mapping[str, Any]]:
        try:
            with _path(location).open("rb") as stream:
                return list(fastavro.reader(stream))
        except FileNotFoundError:
            self._missing.append(location)
            return []

    def _parquet(self, location: str, columns: list[str] | None = None) -> pa.Table | None:
        try:
            # Not as a data set, which would make columns of directories.
            return pq.ParquetFile(_path(location)).read(columns=columns)
        except FileNotFoundError:
            self._missing.append(location)
            return None


def foreign_rows(metadata_location: str) -> Rows:
    """The rows of the current snapshot by PyIceberg's own scan."""
    found = StaticTable.from_metadata(metadata_location).scan().to_arrow()
    return Counter(_tuples(found, found.column_names))


def _path(location: str) -> Path:
    return Path(urlparse(location).path)


def _or(number: int | None, other: int) -> int:
    return other if number is None else number


def _tuples(table: pa.Table, names: Iterable[str]) -> list[Row]:
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


NAME = ("db", "t")
ROWS_A_FILE = 500
OLD_S = 10 * 24 * 60 * 60
"""The age of old snapshots: those of a table with a history, except the newest."""


class Kept(msgspec.Struct, frozen=True):
    """Rows that somebody must be able to read in the end.

    Attributes:
        ref: the branch or tag that has them; empty for a reader who has planned, and reads just these files.
        paths: the data files that have them, where that is known.
    """

    who: str
    rows: Rows
    ref: str = ""
    paths: tuple[str, ...] = ()


class World:
    """Ends with `close`; `key_lifetime` says for how long its catalog keeps idempotency keys, if it does."""

    def __init__(self, directory: Path, format_version: int, files: int, key_lifetime: str | None = None) -> None:
        self.directory = directory
        self.server = RestServer(directory)
        self.server.key_lifetime = key_lifetime
        self._catalog = open_catalog("suite", self.server.properties)
        self._catalog.create_namespace((NAME[0],))
        self._made = 0
        self._rows: dict[int, SnapshotRow] = {}
        self._rows_then: dict[int, dict[int, SnapshotRow]] = {}
        self._paths: tuple[str, ...] = ()
        self.readers: list[Kept] = []
        self.by_writer: dict[str, int] = {}
        self.snapshots_count = 0
        create_table(self._catalog, NAME, as_table([]).schema, format_version=format_version)
        for _ in range(files):
            self.append()

    def close(self) -> None:
        self.server.close()

    @property
    def reader(self) -> Reader:
        """Of the table as it is."""
        return Reader(self.server.pointers[NAME])

    @property
    def kept(self) -> list[Kept]:
        """All that must be readable, the rows of `main` first."""
        return [Kept("main", Counter(self._rows.values()), ref=MAIN, paths=self._paths), *self.readers]

    def begin(self) -> dict[str, int]:
        """What is there before the tool begins."""
        self.by_writer.clear()
        self.snapshots_count = len(self.reader.snapshot_ids)
        return self.files()

    def files(self) -> dict[str, int]:
        """The sizes of all files below the table, by location."""
        return {path.as_uri(): path.stat().st_size for path in self.directory.rglob("*") if path.is_file()}

    def append(self) -> None:
        """A file of new rows."""
        with self._writing() as table:
            append(table, as_table(self._new(ROWS_A_FILE)))

    def delete_positions(self) -> None:
        """One row in ten of each of two files, by a position delete file."""
        with self._writing() as table:
            delete_positions(table, [(path, n) for path in self._two(table) for n in self._some(path)])

    def delete_by_vector(self) -> None:
        """The same of one file, by a deletion vector."""
        with self._writing() as table:
            path = self._two(table)[0]
            delete_by_vector(table, path, self._some(path))

    def delete_equal(self) -> None:
        """The same of one file, by an equality delete file."""
        with self._writing() as table:
            gone = self._taken(self._two(table)[0])
            delete_equal(table, as_table(gone).select(["id"]), ["id"])

    def upsert(self) -> None:
        """New values for some rows of a file, as a stream writes them: an equality delete and a data file in one commit."""
        with self._writing() as table:
            gone = self._taken(self._two(table)[0])
            new = [(id_, kind, number + 1_000_000, "again") for id_, kind, number, _ in gone]
            self._rows |= {row[0]: row for row in new}
            delete_equal(table, as_table(gone).select(["id"]), ["id"], added=new_data_files(table, as_table(new)))

    def delete_file(self) -> None:
        """All rows of the oldest file, by metadata alone."""
        with self._writing() as table:
            gone = [row[0] for row in self.reader.rows_in(self._two(table)[0])]
            self._forget(gone)
            load_catalog("suite", type="rest", uri=self.server.uri).load_table(NAME).delete(In("id", gone))

    def roll_back(self, steps: int = 1) -> None:
        """Make an earlier snapshot current."""
        with self._writing() as table:
            snapshot_id = self._past(table, steps)
            set_current_snapshot(table, snapshot_id)
            self._rows, self._paths = dict(self._rows_then[snapshot_id]), self._data_files(snapshot_id)

    def tag(self, steps: int) -> None:
        """Tag an earlier snapshot, whose rows are to be kept from then on."""
        with self._writing() as table:
            snapshot_id = self._past(table, steps)
            create_tag(table, "kept", snapshot_id)
            rows = Counter(self._rows_then[snapshot_id].values())
            self.readers.append(Kept("tag", rows, ref="kept", paths=self._data_files(snapshot_id)))

    def plan_to_read(self) -> None:
        """A reader plans a scan of the current snapshot, whose files it will read in the end."""
        self.readers.append(Kept("reader", Counter(self._rows.values()), paths=self._data_files(self._head())))

    def make_old(self) -> None:
        """Let all snapshots but the newest be of `OLD_S` ago, in their order."""
        location = self.server.pointers[NAME]
        document = msgspec.json.decode(Path(location.removeprefix("file://")).read_bytes())
        head = document["current-snapshot-id"]
        for record in (*document["snapshots"], *document["snapshot-log"]):
            if record["snapshot-id"] != head:
                record["timestamp-ms"] -= OLD_S * 1000
        Path(location.removeprefix("file://")).write_bytes(msgspec.json.encode(document))

    @contextmanager
    def _writing(self) -> Iterator[Table]:
        """The table as it is; what is written meanwhile is the writer's."""
        before = self.files()
        yield self._catalog.load(NAME)
        self.by_writer |= {path: size for path, size in self.files().items() if path not in before}
        self._rows_then[self._head()] = dict(self._rows)

    def _data_files(self, snapshot_id: int) -> tuple[str, ...]:
        return tuple(sorted(entry.path for entry in self.reader.entries(snapshot_id) if entry.content == DATA))

    def _head(self) -> int:
        head = self.reader.head()
        assert head is not None
        return head

    def _new(self, count: int) -> list[SnapshotRow]:
        first, self._made = self._made, self._made + count
        new: list[SnapshotRow] = [
            (n, f"kind-{n % 7}", n % 1000, None if n % 5 else f"note {n}") for n in range(first, self._made)
        ]
        self._rows |= {row[0]: row for row in new}
        return new

    def _two(self, table: Table) -> list[str]:
        """The files that hold the first rows of all by now, or what was made of them."""
        paths = [file.file_path for file in data_files(table) if file.record_count >= ROWS_A_FILE]
        return sorted(paths, key=self._first_id)[:2]

    def _first_id(self, path: str) -> int:
        return min(row[0] for row in self.reader.rows_in(path))

    def _some(self, path: str) -> list[int]:
        """Positions of a file whose rows go: one in ten, which are others each time."""
        rows = [row[0] for row in self.reader.rows_in(path)]
        positions = [n for n, id_ in enumerate(rows) if id_ in self._rows][::10]
        self._forget(rows[n] for n in positions)
        return positions

    def _taken(self, path: str) -> list[SnapshotRow]:
        """One in ten of the live rows of a file, which go."""
        live = [self._rows[row[0]] for row in self.reader.rows_in(path) if row[0] in self._rows][::10]
        self._forget(row[0] for row in live)
        return live

    def _forget(self, ids: Iterable[int]) -> None:
        for id_ in list(ids):
            del self._rows[id_]

    def _past(self, table: Table, steps: int) -> int:
        snapshot_id = table.metadata.current_snapshot_id
        for _ in range(steps):
            assert snapshot_id is not None
            snapshot_id = table.metadata.snapshots_by_id[snapshot_id].parent_snapshot_id
        assert snapshot_id is not None
        return snapshot_id
