"""The rows of every snapshot of a table of one schema on the local disk, and where they lie: read by PyArrow alone.

For tests beside other writers: they read hundreds of snapshots, so each file, which never changes, is read once for all of them.
Rows are tuples of plain values, which writers choose among; `naive_scan` reads any table's head by the library's readers.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.formats.puffin import read_deletion_vector
from icekeep.planning.spark.rows import arrow_table
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import INT, LONG, STRING
from icekeep.tables.read import scan
from kit.columns import column, schema_of
from kit.naive_scan import newest_deletes

SCHEMA = schema_of(
    column(1, "id", LONG, required=True), column(2, "kind", STRING), column(3, "number", INT), column(4, "note", STRING)
)
NAMES = [field.name for field in SCHEMA.fields]
KINDS = ("a", "b", "c", "d", "e", "f")

Row = tuple[int, str, int, str | None]
Rows = Counter[Row]


class Place(NamedTuple):
    """Where a row lies."""

    file: DataFile
    position: int
    row: Row


class Seen(NamedTuple):
    """What a snapshot holds: its rows, and the live vector of each data file that has one."""

    snapshot: Snapshot
    places: list[Place]
    vectors: dict[str, ManifestEntry]

    @property
    def rows(self) -> Rows:
        return Counter(place.row for place in self.places)


class HistoryReader:
    """Reads any snapshot of one table of `SCHEMA`, in Parquet, with deletes of positions."""

    def __init__(self, table: Table) -> None:
        self._manifests = ManifestReader(table.storage)
        self._storage = table.storage
        self._entries: dict[str, tuple[ManifestEntry, ...]] = {}
        self._rows: dict[str, list[Row]] = {}
        self._deleted: dict[tuple[str, int | None], list[tuple[str, int]]] = {}

    def seen(self, metadata: TableMetadata, snapshot: Snapshot) -> Seen:
        """The rows of a snapshot and where they lie."""
        entries = list(self._live(metadata, snapshot))
        data = [entry for entry in entries if entry.data_file.content is FileContent.DATA]
        deletes = [entry for entry in entries if entry.data_file.content is FileContent.POSITION_DELETES]
        assert len(data) + len(deletes) == len(entries)
        of_vectors = [entry for entry in deletes if is_deletion_vector(entry.data_file)]
        vectors = {str(entry.data_file.referenced_data_file): entry for entry in of_vectors}
        assert len(vectors) == len(of_vectors), "two vectors for a file"
        deleted = newest_deletes(deletes, self._positions)
        places = [
            Place(entry.data_file, position, row)
            for entry in data
            for position, row in enumerate(self._rows_of(entry.data_file.file_path))
            if deleted.get(entry.data_file.file_path, {}).get(position, -1) < (entry.sequence_number or 0)
        ]
        return Seen(snapshot, places, vectors)

    def _live(self, metadata: TableMetadata, snapshot: Snapshot) -> Iterable[ManifestEntry]:
        for manifest in self._manifests.manifests(snapshot):
            if manifest.manifest_path not in self._entries:
                read = self._manifests.entries(manifest, metadata)
                self._entries[manifest.manifest_path] = tuple(entry for entry in read if entry.is_live)
            yield from self._entries[manifest.manifest_path]

    def _rows_of(self, path: str) -> list[Row]:
        if path not in self._rows:
            # Not as a data set, which would make columns of directories.
            self._rows[path] = as_rows(pq.ParquetFile(urlparse(path).path).read(columns=NAMES))
        return self._rows[path]

    def _positions(self, file: DataFile) -> list[tuple[str, int]]:
        key = file.file_path, file.content_offset
        if key not in self._deleted:
            if is_deletion_vector(file):
                positions = read_deletion_vector(self._storage, file)
                self._deleted[key] = [(str(file.referenced_data_file), position) for position in positions]
            else:
                held = pq.ParquetFile(urlparse(file.file_path).path).read()
                pairs = zip(held.column(0).to_pylist(), held.column(1).to_pylist(), strict=True)
                self._deleted[key] = list(pairs)
        return self._deleted[key]


def as_rows(table: pa.Table) -> list[Row]:
    """An Arrow table's rows as tuples, in order."""
    return list(zip(*(table.column(name).to_pylist() for name in NAMES), strict=True))


def as_table(rows: Iterable[Row]) -> pa.Table:
    """Rows as an Arrow table."""
    rows = list(rows)
    types = (pa.int64(), pa.string(), pa.int32(), pa.string())
    columns = [pa.array([row[n] for row in rows], type_) for n, type_ in enumerate(types)]
    fields = [pa.field(name, type_, nullable=name != "id") for name, type_ in zip(NAMES, types, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))


def main_history(metadata: TableMetadata) -> list[Snapshot]:
    """The snapshots of `main`, oldest first."""
    chain: list[Snapshot] = []
    next_id = metadata.current_snapshot_id
    while next_id is not None:
        chain.append(metadata.snapshots_by_id[next_id])
        next_id = chain[-1].parent_snapshot_id
    return chain[::-1]


def rows_by_our_scan(table: Table, spark: SparkSession, snapshot: Snapshot) -> Rows:
    """A snapshot's rows by the library's own scan."""
    return Counter(as_rows(arrow_table(scan(table, spark, snapshot_id=snapshot.snapshot_id))))


def rows_by_pyiceberg(table: Any, snapshot: Snapshot) -> Rows:
    """A snapshot's rows by PyIceberg, from its own table."""
    return Counter(as_rows(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()))


def rows_by_java(java: Any, name: str, snapshot: Snapshot) -> Rows:
    """A snapshot's rows by Iceberg Java's own reader."""
    answer = java.read(name, True, snapshot.snapshot_id)
    assert [field["name"] for field in answer["schema"]["fields"]] == NAMES
    return Counter(map(tuple, answer["rows"]))
