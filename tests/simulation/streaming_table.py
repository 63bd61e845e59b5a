"""A table whose delete files are real, with a reader and a serial replay of its own, and the writers that never stop."""

import io
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

import pyarrow.parquet as pq
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit import retry
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.conflicts import Isolation
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import ConflictError
from icekeep.formats.deletes.read import write_position_deletes
from icekeep.formats.puffin import VectorTarget, write_deletion_vectors
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.snapshots import MAIN, Snapshot
from simulation.client import Client
from simulation.file_operations import live_entries
from simulation.model import Truth
from simulation.world import EVENTS, KINDS, LOCATION, Violation, World

_FRAME_BYTES = 8
_CHECKSUM_BYTES = 4


class Row(NamedTuple):
    """One version of what a key stands for; its kind, by which some tables are partitioned, stays the same."""

    key: int
    version: int

    @property
    def kind(self) -> str:
        return KINDS[self.key % len(KINDS)]


Positions = Mapping[str, frozenset[int]]


class Doing(Protocol):
    """Who commits: what his commit does to the rows, if it lands after all that has landed before."""

    name: str
    is_rewrite: bool

    def replay(self, rows: Counter[Row]) -> Counter[Row]:
        """The rows after it."""


class Landing(NamedTuple):
    """A commit: whose, and the sequence number that the table has since."""

    doing: Doing
    sequence_number: int


class Found(NamedTuple):
    """What a reader finds in one data file: its rows that are not deleted, each with its position; and who deletes others."""

    entry: ManifestEntry
    rows: tuple[tuple[int, Row], ...]
    by_position: frozenset[int]
    by_key: frozenset[int]


class StreamingTable:
    """Follows what lands and holds it against a serial replay.

    `contents` says which rows each data file has, in order, `keys` which keys an equality delete file deletes.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.contents: dict[str, tuple[Row, ...]] = {}
        self.keys: dict[str, frozenset[int]] = {}
        self.landings: list[Landing] = []
        self.rows: Counter[Row] = Counter()
        self.current: TableMetadata | None = None
        self.seen_files: set[str] = set()
        self.reader = ManifestReader(Truth(world.disk))
        self._entries: dict[Any, list[ManifestEntry]] = {}
        self._positions: dict[tuple[str, int | None], Positions] = {}
        world.landed = self._landed
        world.disk.deleted = self._deleted

    def found(self, metadata: TableMetadata) -> dict[str, Found]:
        """What a reader finds in each live data file (spec, "Scan Planning")."""
        live = self.live(metadata)
        data = [e for e in live if e.data_file.content is FileContent.DATA]
        positions = [e for e in live if e.data_file.content is FileContent.POSITION_DELETES]
        keys = [e for e in live if e.data_file.content is FileContent.EQUALITY_DELETES]
        return {e.data_file.file_path: self._found(e, positions, keys, metadata) for e in data}

    def live(self, metadata: TableMetadata) -> list[ManifestEntry]:
        """The live entries of main."""
        head = metadata.current_snapshot
        manifests = [] if head is None else self.reader.manifests(head)
        return [entry for manifest in manifests for entry in self._live_entries(manifest, metadata)]

    def manifest_paths(self, metadata: TableMetadata) -> dict[str, str]:
        """Where each live file of main is listed."""
        head = metadata.current_snapshot
        manifests = [] if head is None else self.reader.manifests(head)
        return {e.data_file.file_path: m.manifest_path for m in manifests for e in self._live_entries(m, metadata)}

    def positions(self, file: DataFile) -> Positions:
        """What a position delete file or a deletion vector deletes."""
        key = file.file_path, file.content_offset
        if key not in self._positions:
            self._positions[key] = _read_positions(self.world.disk.read(file.file_path), file)
        return self._positions[key]

    def require(self, holds: bool, invariant: str, message: str) -> None:
        """End the run where an invariant does not hold."""
        if not holds:
            self.world.scheduler.fail(Violation(invariant, message))

    def check_nothing_is_left(self) -> None:
        """All that lies in storage was named by a snapshot or is the table's metadata; for the end, when nobody works."""
        left = sorted(self.world.disk.files.keys() - self.seen_files)
        if left:
            raise Violation("X3", f"{left} are left behind")

    def _found(
        self,
        entry: ManifestEntry,
        positions: Iterable[ManifestEntry],
        keys: Iterable[ManifestEntry],
        metadata: TableMetadata,
    ) -> Found:
        file, number = entry.data_file, entry.sequence_number or 0
        place, path = (file.spec_id, file.partition), file.file_path
        vectors = [e for e in positions if e.data_file.content_offset is not None]
        own = [e for e in vectors if e.data_file.referenced_data_file == path]
        self.require(len(own) < 2, "D4", f"{path!r} has two vectors")
        reaching = own or [
            e
            for e in positions
            if e not in vectors
            and (e.sequence_number or 0) >= number
            and (e.data_file.spec_id, e.data_file.partition) == place
        ]
        by_position = frozenset[int]().union(*(self.positions(e.data_file).get(path, ()) for e in reaching))
        gone = frozenset[int]().union(
            *(
                self.keys[e.data_file.file_path]
                for e in keys
                if (e.sequence_number or 0) > number
                and (
                    metadata.specs_by_id[e.data_file.spec_id].is_unpartitioned
                    or (e.data_file.spec_id, e.data_file.partition) == place
                )
            )
        )
        rows = tuple(enumerate(self.contents[path]))
        by_key = frozenset(at for at, row in rows if row.key in gone)
        left = tuple((at, row) for at, row in rows if at not in by_position and at not in by_key)
        return Found(entry, left, by_position, by_key)

    def _landed(self, doing: Doing | None, location: str, new: TableMetadata) -> None:
        self.current = new
        self.seen_files |= {location}
        head = new.current_snapshot
        if doing is None or head is None:
            return
        self.landings.append(Landing(doing, new.last_sequence_number))
        self._note(head, new)
        self.rows = +doing.replay(self.rows)
        found = Counter(row for one in self.found(new).values() for _, row in one.rows)
        lost, back = sorted((self.rows - found).elements()), sorted((found - self.rows).elements())
        self.require(not lost, "D1", f"{lost} are gone after {doing.name}")
        self.require(not back, "D4", f"{back} are there after {doing.name}, and should not be")
        self._check_dangling(doing, new)
        if doing.is_rewrite:
            self._check_carried(head, new)

    def _check_carried(self, head: Snapshot, new: TableMetadata) -> None:
        """Deletes that came with new files are for these alone, one each, where they lie, and as new as the snapshot."""
        born = [entry for entry in self.live(new) if entry.snapshot_id == head.snapshot_id]
        data = {e.data_file.file_path: e.data_file for e in born if e.data_file.content is FileContent.DATA}
        deletes = [entry for entry in born if entry.data_file.content is not FileContent.DATA]
        named = [entry.data_file.referenced_data_file for entry in deletes]
        self.require(len(set(named)) == len(named), "D4", f"{sorted(map(str, named))} have several delete files")
        for entry in deletes:
            file, number = entry.data_file, entry.sequence_number
            target = data.get(file.referenced_data_file or "")
            if target is None:
                self.require(False, "D3", f"{file.file_path!r} was carried over for another file than a new one")
                continue
            there = (file.spec_id, file.partition) == (target.spec_id, target.partition)
            right = there and (file.content_offset is not None) is (new.format_version > 2)
            self.require(right, "D3", f"{file.file_path!r} is not of the kind, or not where {target.file_path!r} lies")
            self.require(number == head.sequence_number, "C9", f"{file.file_path!r} has number {number}")

    def _check_dangling(self, doing: Doing, new: TableMetadata) -> None:
        """Deletes of single data files go with these."""
        live = self.live(new)
        data = {e.data_file.file_path for e in live if e.data_file.content is FileContent.DATA}
        named = {e.data_file.referenced_data_file for e in live if e.data_file.content is not FileContent.DATA}
        left = sorted(path for path in named if path is not None and path not in data)
        self.require(not left, "D7", f"{doing.name} left deletes for {left}, which are not live")

    def _note(self, head: Snapshot, new: TableMetadata) -> None:
        manifests = self.reader.manifests(head)
        self.seen_files |= {head.manifest_list or "", *(m.manifest_path for m in manifests)}
        self.seen_files |= {e.data_file.file_path for e in self.live(new)}
        gone = sorted(self.seen_files - self.world.disk.files.keys())
        # No snapshot expires, so all that was ever committed is there, but for the file that is about to be current.
        self.require(not gone, "G1", f"{gone} are named and not in storage")

    def _deleted(self, location: str, owner: Any) -> None:
        self.require(location not in self.seen_files, "G1", f"{location!r} is deleted, which snapshots lead to")

    def _live_entries(self, manifest: ManifestFile, metadata: TableMetadata) -> list[ManifestEntry]:
        key = manifest.manifest_path, manifest.first_row_id
        if key not in self._entries:
            self._entries[key] = [e for e in self.reader.entries(manifest, metadata) if e.is_live]
        return self._entries[key]


def _read_positions(data: bytes, file: DataFile) -> Positions:
    if file.content_offset is not None:
        assert file.content_size_in_bytes is not None
        blob = data[file.content_offset :][: file.content_size_in_bytes]
        bitmap = BitMap64.deserialize(blob[_FRAME_BYTES:-_CHECKSUM_BYTES])
        return {str(file.referenced_data_file): frozenset(bitmap)}
    found: dict[str, set[int]] = {}
    table = pq.read_table(io.BytesIO(data))
    for path, position in zip(table["file_path"].to_pylist(), table["pos"].to_pylist(), strict=True):
        found.setdefault(path, set()).add(position)
    return {path: frozenset(positions) for path, positions in found.items()}


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
