"""The rows of a snapshot, read by nothing of icekeep: fastavro reads manifests, PyArrow files; the rules of deletes stand here.

Slow and plain, for unpartitioned tables on the local disk whose columns keep their names. `foreign_rows` is PyIceberg's own
scan, which applies no equality deletes.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable
from pyroaring import BitMap64

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
