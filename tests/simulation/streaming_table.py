"""A table whose delete files are real: what a reader finds in it, worked out apart from the library, and a serial replay.

The rows of data files and of equality delete files are known to the model alone; position delete files and deletion vectors
are read from the simulated disk, as the bytes that they are. So this is between the simulation's files and `kit.row_histories`.
"""

import io
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import pyarrow.parquet as pq
from pyroaring import BitMap64

from icekeep.commit.manifests import ManifestReader
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from simulation.doing import KINDS, Violation
from simulation.model import Truth
from simulation.world import World

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
