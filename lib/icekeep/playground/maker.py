"""One table while it is made: appended to, deleted from and changed as engines do it, with time passing in between.

Its time and ids are made up: the past, and the same each time. So are its rows, orders that follow from their numbers
alone.
"""

import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

import pyarrow as pa
from pyroaring import BitMap64

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.commit.attempt import Change
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import OverwriteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.formats.arrow.projection import cast_to_schema
from icekeep.formats.deletes.read import write_equality_deletes, write_position_deletes
from icekeep.formats.options import write_options
from icekeep.formats.puffin import VectorTarget, read_deletion_vector, write_deletion_vectors
from icekeep.runtime import SystemRuntime
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.properties import data_directory
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN
from icekeep.tables.verbs import append, create_table, new_files


class PastRuntime(SystemRuntime):
    """A clock that stands still unless it is moved on, and ids that follow from a name and how many were asked for.

    Args:
        name: of what is made; ids of two names are different.
        now_ms: where the clock begins, epoch milliseconds.
    """

    def __init__(self, name: str, now_ms: int) -> None:
        self._name, self._now_ms, self._ids_count = name, now_ms, 0

    def now_ms(self) -> int:
        return self._now_ms

    def move_on(self, duration_ms: int) -> None:
        """Let time pass."""
        self._now_ms += duration_ms

    def uniform(self, low: float, high: float) -> float:
        return low

    def new_uuid(self) -> uuid.UUID:
        self._ids_count += 1
        digest = hashlib.sha256(f"{self._name}/{self._ids_count}".encode()).digest()
        return uuid.UUID(bytes=digest[:16], version=4)


SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("placed_at", pa.timestamp("us", "UTC")),
        pa.field("region", pa.string()),
        pa.field("customer_id", pa.int64()),
        pa.field("amount", pa.float64()),
    ]
)

REGIONS = ("africa", "americas", "asia", "europe", "oceania")


def orders(first_id: int, count: int, at_ms: int, *, spread_ms: int = 0, regions: Sequence[str] = REGIONS) -> pa.Table:
    """Rows with ids from `first_id` on.

    Args:
        at_ms: when the first was placed, epoch milliseconds.
        spread_ms: how much later the last was placed.
        regions: theirs in turn.
    """
    ids = range(first_id, first_id + count)
    step = spread_ms / max(1, count - 1)
    return pa.table(
        {
            "order_id": list(ids),
            "placed_at": [round((at_ms + step * number) * 1000) for number in range(count)],
            "region": [regions[one % len(regions)] for one in ids],
            "customer_id": [one * 7919 % 1000 for one in ids],
            "amount": [one * 104729 % 50_000 / 100 for one in ids],
        },
        schema=SCHEMA,
    )


class TableMaker:
    """A table that is being made; `table` is it as it is by now."""

    table: Table

    def __init__(self, catalog: Catalog, identifier: Identifier, clock: PastRuntime) -> None:
        self.clock = clock
        self._catalog, self._identifier = catalog, identifier
        self._numbers = count()

    @classmethod
    def of(cls, table: Table) -> "TableMaker":
        """One that goes on with a table that is there, as the clock of its catalog stands."""
        maker = cls(table.catalog, table.identifier, PastRuntime(table.metadata_location, table.runtime.now_ms()))
        maker.table = table
        return maker

    def create(
        self,
        partition_by: Iterable[tuple[str, str]] = (),
        *,
        format_version: int = 2,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Make the table, with the columns of made-up orders."""
        self.table = create_table(
            self._catalog,
            self._identifier,
            SCHEMA,
            partition_by=partition_by,
            properties=properties,
            format_version=format_version,
        )

    def append(
        self, *parts: pa.Table, after_ms: int = 0, branch: str = MAIN, summary: Mapping[str, str] | None = None
    ) -> None:
        """Commit rows after some time, each part in files of its own."""
        self.clock.move_on(after_ms)
        self.table = append(self.table, parts, branch=branch, summary=summary)

    def commit(self, change: Change, *, after_ms: int = 0) -> None:
        """Commit any change after some time."""
        self.clock.move_on(after_ms)
        self.table = commit(self.table, change).table

    def overwrite(self, rows: pa.Table, *, after_ms: int = 0) -> None:
        """Replace all rows by others."""
        self.clock.move_on(after_ms)
        files = self._new_files(rows)
        self.commit(OverwriteFiles(rows=ALWAYS_TRUE, added=files, added_match_rows=True))

    def delete_positions(self, positions: Sequence[tuple[DataFile, Sequence[int]]], *, after_ms: int = 0) -> None:
        """Delete rows of some data files by a position delete file each, as merge-on-read does."""
        self.clock.move_on(after_ms)
        deletes = tuple(
            write_position_deletes(
                self.table.storage,
                self._location("deletes", "parquet"),
                "PARQUET",
                [(file.file_path, one) for one in rows],
                spec_id=file.spec_id,
                partition=file.partition,
            )
            for file, rows in positions
        )
        named = frozenset(file.file_path for file, _ in positions)
        self.commit(RowDelta(added_deletes=deletes, named=named))

    def delete_by_vectors(self, positions: Sequence[tuple[DataFile, Sequence[int]]], *, after_ms: int = 0) -> None:
        """The same by deletion vectors, each of which takes the place of the one that its data file had."""
        self.clock.move_on(after_ms)
        paths = {file.file_path for file, _ in positions}
        replaced = tuple(e for e in self._entries() if e.data_file.referenced_data_file in paths)
        deleted = {file.file_path: BitMap64(rows) for file, rows in positions}
        for entry in replaced:
            deleted[str(entry.data_file.referenced_data_file)] |= read_deletion_vector(
                self.table.storage, entry.data_file
            )
        targets = [
            (
                VectorTarget(location=file.file_path, spec_id=file.spec_id, partition=file.partition),
                deleted[file.file_path],
            )
            for file, _ in positions
        ]
        vectors = tuple(write_deletion_vectors(self.table.storage, self._location("vectors", "puffin"), targets))
        self.commit(RowDelta(added_deletes=vectors, removed_deletes=replaced))

    def upsert(self, rows: pa.Table, key: str, *, after_ms: int = 0, summary: Mapping[str, str] | None = None) -> None:
        """Commit rows, and equality deletes of older rows that have the same keys, as streaming upserts do."""
        self.clock.move_on(after_ms)
        schema = self.table.metadata.schema
        keys = Schema(fields=(schema.field(key),))
        added = self._new_files(rows)
        deletes = write_equality_deletes(
            self.table.storage,
            self._location("deletes", "parquet"),
            "PARQUET",
            cast_to_schema(rows.select([key]), keys),
            [schema.field(key).field_id],
            keys,
            spec_id=self.table.metadata.default_spec_id,
        )
        self.commit(RowDelta(added=added, added_deletes=(deletes,), summary=summary or {}))

    def files(self) -> list[DataFile]:
        """The live data files, by location."""
        found = (entry.data_file for entry in self._entries() if entry.data_file.content is FileContent.DATA)
        return sorted(found, key=lambda file: file.file_path)

    def _entries(self) -> list[ManifestEntry]:
        metadata, reader = self.table.metadata, ManifestReader(self.table.storage)
        head = metadata.current_snapshot
        manifests = [] if head is None else reader.manifests(head)
        return [entry for one in manifests for entry in reader.entries(one, metadata) if entry.is_live]

    def _new_files(self, rows: pa.Table) -> tuple[DataFile, ...]:
        """Rows in data files that no snapshot has yet."""
        metadata = self.table.metadata
        options = write_options(metadata.properties, metadata.schema)
        return tuple(new_files(self.table, rows, options, lambda _: self._location("data", "parquet")))

    def _location(self, kind: str, suffix: str) -> str:
        return f"{data_directory(self.table.metadata)}/{kind}-{next(self._numbers):05d}.{suffix}"
