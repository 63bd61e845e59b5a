"""Writers that never stop: what each of them commits every second, and when it may be refused."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit import retry
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.conflicts import Isolation
from icekeep.errors import ConflictError
from icekeep.formats.deletes.read import write_position_deletes
from icekeep.formats.puffin import VectorTarget, write_deletion_vectors
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.snapshots import MAIN
from simulation.client import Client
from simulation.file_operations import live_entries
from simulation.streaming_table import Found, Row, StreamingTable
from simulation.world import EVENTS, LOCATION


def write_rows(
    table: StreamingTable, client: Client, spec: PartitionSpec, name: str, rows: Sequence[Row]
) -> list[DataFile]:
    """Data files of some rows, one a partition; what they hold only the model knows."""
    parts: defaultdict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        parts[() if spec.is_unpartitioned else (row.kind,)].append(row)
    files = []
    for partition, held in sorted(parts.items()):
        path = f"{LOCATION}/data/{'-'.join((name, *partition))}.parquet"
        table.contents[path] = tuple(held)
        with client.storage.write(path) as stream:
            stream.write(b"PAR1")
        files.append(_described(path, spec, partition, len(held)))
    return files


class Write:
    """One commit of a writer: new rows, and deletes of what they take the place of, by position or by key.

    `unseen`: what it has written of its plan, which goes if it is refused.
    """

    is_rewrite = False

    def __init__(self, table: StreamingTable, name: str, random: Random) -> None:
        self.table, self.name, self.random = table, name, random
        self.added: list[Row] = []
        self.deleted: frozenset[Row] = frozenset()
        self.deleted_keys: frozenset[int] = frozenset()
        self.named: frozenset[str] = frozenset()
        self.read_number = 0
        self.unseen: list[str] = []

    def replay(self, rows: Counter[Row]) -> Counter[Row]:
        left = {row: n for row, n in rows.items() if row not in self.deleted and row.key not in self.deleted_keys}
        return Counter(left) + Counter(self.added)

    def append(self, client: Client, rows: Sequence[Row]) -> None:
        """Add rows."""
        read = self._read(client)
        self.added = [*rows]
        self._commit(client, read, RowDelta(added=self._write_rows(client, read), **self._start(read)))

    def upsert(self, client: Client, rows: Sequence[Row]) -> None:
        """Add rows in the place of all that have their keys, by equality deletes."""
        read = self._read(client)
        self.added, self.deleted_keys = [*rows], frozenset(row.key for row in rows)
        added = self._write_rows(client, read)
        deletes = tuple(self._write_keys(client, file) for file in added)
        self._commit(client, read, RowDelta(added=added, added_deletes=deletes, **self._start(read)))

    def update(self, client: Client, keys: Collection[int], pause_ms: int, isolation: Isolation | None) -> bool:
        """Delete the rows of some keys by their positions, and add others in their place; whether it was not refused.

        Raises:
            ConflictError: others kept changing the table.
        """
        read = self._read(client)
        # What a plan reads takes its calls; what it finds is taken from the model.
        live_entries(client, read, MAIN)
        deletes = live_entries(client, read, MAIN, ManifestContent.DELETES)
        found = self.table.found(read.metadata)
        gone = {path: [(at, row) for at, row in one.rows if row.key in keys] for path, one in found.items()}
        gone = {path: rows for path, rows in gone.items() if rows}
        self.deleted = frozenset(row for rows in gone.values() for _, row in rows)
        self.added = [Row(row.key, row.version + 1) for row in sorted(self.deleted)]
        self.named = frozenset(gone)
        positions = {path: frozenset(at for at, _ in rows) for path, rows in gone.items()}
        vectors = read.metadata.format_version > 2
        old = [d for d in deletes if vectors and d.data_file.referenced_data_file in gone]
        written = self._write_vectors if vectors else self._write_positions
        change = RowDelta(
            added=self._write_rows(client, read),
            added_deletes=tuple(written(client, {p: (found[p], some) for p, some in positions.items()})),
            removed_deletes=tuple(old),
            named=self.named,
            isolation=isolation,
            **self._start(read),
        )
        client.sleep_ms(pause_ms)
        try:
            self._commit(client, read, change)
        except ConflictError as error:
            client.storage.delete_many(sorted(set(self.unseen)))
            self._check_refused(error)
            return False
        return True

    def _read(self, client: Client) -> Table:
        read = client.catalog.load(EVENTS)
        self.read_number = read.metadata.last_sequence_number
        return read

    def _start(self, read: Table) -> dict[str, Any]:
        return {"starting_snapshot_id": read.metadata.current_snapshot_id}

    def _commit(self, client: Client, read: Table, change: RowDelta) -> None:
        client.owner = self
        retry.commit(read, change, runtime=client)
        self.unseen = []

    def _check_refused(self, error: ConflictError) -> None:
        """Only where it planned before a rewrite's swap and commits after it; or another writer gave a file a vector."""
        since = [one.doing for one in self.table.landings if one.sequence_number > self.read_number]
        rewritten = any(doing.is_rewrite for doing in since)
        vectors = self.table.current is not None and self.table.current.format_version > 2
        of_others = vectors and any(isinstance(doing, Write) and doing.named & self.named for doing in since)
        self.table.require(rewritten or of_others, "C11", f"{self.name} was refused for no reason: {error}")
        self.table.world.seen[
            "writers refused since a rewrite was faster" if rewritten else "vectors of two writers"
        ] += 1

    def _write_rows(self, client: Client, read: Table) -> tuple[DataFile, ...]:
        files = write_rows(self.table, client, read.metadata.spec, self.name, self.added)
        self.unseen += [file.file_path for file in files]
        return tuple(files)

    def _write_keys(self, client: Client, data: DataFile) -> DataFile:
        path = data.file_path.replace(".parquet", "-keys.parquet")
        keys = self.table.keys[path] = frozenset(row.key for row in self.table.contents[data.file_path])
        with client.storage.write(path) as stream:
            stream.write(b"PAR1")
        return DataFile(
            file_path=path,
            file_format="PARQUET",
            spec_id=data.spec_id,
            partition=data.partition,
            record_count=len(keys),
            file_size_in_bytes=4,
            content=FileContent.EQUALITY_DELETES,
            equality_ids=(1,),
        )

    def _write_positions(self, client: Client, named: Mapping[str, tuple[Found, frozenset[int]]]) -> Iterable[DataFile]:
        """One delete file a partition, or one a data file."""
        bins: defaultdict[Any, list[str]] = defaultdict(list)
        alone = self.random.random() < 0.5
        for path in sorted(named):
            bins[path if alone else named[path][0].entry.data_file.partition].append(path)
        for number, paths in enumerate(bins.values()):
            location = f"{LOCATION}/data/{self.name}-{number}-deletes.parquet"
            self.unseen.append(location)
            file = named[paths[0]][0].entry.data_file
            rows = [(path, at) for path in paths for at in named[path][1]]
            yield write_position_deletes(
                client.storage, location, "PARQUET", rows, spec_id=file.spec_id, partition=file.partition
            )

    def _write_vectors(self, client: Client, named: Mapping[str, tuple[Found, frozenset[int]]]) -> Iterable[DataFile]:
        """One Puffin file of vectors, each merged with the one that its data file has."""
        location = f"{LOCATION}/data/{self.name}-deletes.puffin"
        self.unseen.append(location)
        vectors = (
            (
                VectorTarget(location=path, spec_id=f.spec_id, partition=f.partition),
                BitMap64(named[path][0].by_position | named[path][1]),
            )
            for path in sorted(named)
            for f in [named[path][0].entry.data_file]
        )
        return write_deletion_vectors(client.storage, location, vectors) if named else ()


def _described(path: str, spec: PartitionSpec, partition: tuple[Any, ...], count: int) -> DataFile:
    return DataFile(
        file_path=path,
        file_format="PARQUET",
        spec_id=spec.spec_id,
        partition=partition,
        record_count=count,
        file_size_in_bytes=4,
    )
