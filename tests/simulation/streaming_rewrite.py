"""The compaction of a whole table beside writers that never stop: what the job does, with tasks that know the rows.

The commits, the carrier of deletes and all that these read and write are the job's own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.events import SILENT, CommitRetried, Event, Warned
from icekeep.formats.rewrite.task import RewriteOutcome
from icekeep.formats.row_moves import MovedPiece, OriginsWriter, RowMoves
from icekeep.maintenance.compact.commit import CompactionCommits, commit_groups
from icekeep.maintenance.compact.execute import RewrittenGroup
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.plan import (
    FileGroup,
    GroupDelete,
    GroupFile,
    GroupFiles,
    RewritePlan,
    pack_group_files,
)
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.rewrite.run import Heartbeat, WrittenFiles
from icekeep.spec.collections import PositionSet
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestEntry
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import own_directory
from icekeep.spec.snapshots import MAIN
from simulation.client import Client
from simulation.file_operations import live_entries
from simulation.streaming_table import Found, Row, StreamingTable
from simulation.streaming_writers import write_rows
from simulation.world import EVENTS

_TASK_MS = (500, 1_500, 4_000)
_Place = tuple[DataFile, int, int]
"""A data file, a position in it, and the ordinal of that row among those of its group."""


class Rewrite:
    """One run of compaction; `attempts` counts how many each of its commits took."""

    is_rewrite = True
    name = "the compaction"

    def __init__(self, table: StreamingTable, random: Random, *, starts_at_number: bool) -> None:
        self.table, self.random = table, random
        self.attempts: list[int] = []
        self.carried_count = 0
        self._retries_count = 0
        self._starts_at_number = starts_at_number

    def replay(self, rows: Counter[Row]) -> Counter[Row]:
        self.attempts.append(self._retries_count + 1)
        self._retries_count = 0
        return rows

    def on(self, event: Event) -> None:
        """No group may be planned anew, and no commit be given up."""
        self._retries_count += isinstance(event, CommitRetried)
        self.table.require(not isinstance(event, Warned), "C11", f"{self.name} warns: {event}")

    def run(self, client: Client) -> None:
        """Plan, rewrite and commit; every file that was planned is replaced in the end."""
        client.owner = self
        read = client.catalog.load(EVENTS)
        head = read.metadata.current_snapshot
        assert head is not None
        groups = self._plan(client, read)
        options = self._options()
        plan = RewritePlan(
            snapshot_id=head.snapshot_id,
            sequence_number=head.sequence_number,
            schema_id=read.metadata.current_schema_id,
            target_file_size_bytes=100,
            candidate_files_count=0,
            rewritten_data_files_count=0,
            rewritten_bytes_count=0,
            expected_files_count=0,
            groups=tuple(groups),
        )
        run_id = str(client.new_uuid())
        commits = CompactionCommits(
            table=read,
            run_id=run_id,
            plan=plan,
            options=options,
            reader=ManifestReader(client.storage),
            store=_stores_nothing,
            listener=self,
            runtime=client,
            written=WrittenFiles(read, run_id, self),
        )
        self._directory = own_directory(read.metadata, f"runs/{run_id}")
        finished = self._rewritten(client, read, groups, self.table.found(read.metadata))
        done = commit_groups(
            finished, commits, Heartbeat(commits.table, commits.run_id, "compact", commits.runtime, SILENT)
        )
        self.carried_count = done.result.carried_delete_files_count
        self.table.require(done.refusal is None, "C11", f"{len(done.refused)} groups are planned again: {done.refusal}")
        self.table.require(done.result.commits_count == len(self.attempts), "C2", "commits are not counted right")
        assert self.table.current is not None
        old = {file.file_path for group in groups for file in self._files[group.number]}
        left = old & self.table.found(self.table.current).keys()
        self.table.require(not left, "D3", f"{sorted(left)} are still live")

    def _options(self) -> RewriteDataFilesOptions:
        options = {"use-starting-sequence-number": str(self._starts_at_number).lower()}
        if self.random.random() < 0.4:
            options |= {"partial-progress.enabled": "true", "partial-progress.max-commits": "3"}
        if self.random.random() < 0.3:
            options |= {"remove-dangling-deletes": "true"}
        return parse_options(RewriteDataFilesOptions, options)

    def _plan(self, client: Client, read: Table) -> list[FileGroup]:
        """Groups by partition; of a table without any by chance."""
        metadata = read.metadata
        entries, deletes = live_entries(client, read, MAIN), live_entries(client, read, MAIN, ManifestContent.DELETES)
        reaching = reaching_deletes(entries, deletes, metadata.specs_by_id)
        listed = self.table.manifest_paths(metadata)
        bins: defaultdict[Any, list[ManifestEntry]] = defaultdict(list)
        for entry in sorted(entries, key=lambda e: e.data_file.file_path):
            file = entry.data_file
            bins[file.partition or self.random.randrange(3)].append(entry)
        self._files = {n: [e.data_file for e in some] for n, some in enumerate(bins.values())}
        return [_group(n, some, reaching, listed, metadata) for n, some in enumerate(bins.values())]

    def _rewritten(
        self, client: Client, read: Table, groups: Sequence[FileGroup], found: dict[str, Found]
    ) -> Iterator[RewrittenGroup]:
        for group in groups:
            client.sleep_ms(self.random.choice(_TASK_MS))
            files = self._files[group.number]
            places, ordinal = list[_Place](), 0
            for file in files:
                places += [(file, at, ordinal + at) for at in range(file.record_count)]
                ordinal += file.record_count
            if self.random.random() < 0.4:
                outcomes = [self._in_another_order(client, read, group.number, places, found)]
            else:
                outcomes = list(self._in_order(client, read, group.number, places, found))
            yield RewrittenGroup(group=group, outcomes=tuple(outcomes))

    def _in_order(
        self, client: Client, read: Table, number: int, places: list[_Place], found: dict[str, Found]
    ) -> Iterator[RewriteOutcome]:
        """Tasks that each take some of the rows, cut anywhere, and put them into a file or two."""
        at = 0
        for task, end in enumerate(sorted({*self._cuts(len(places)), len(places)})):
            mine = places[at:end]
            at = end
            live = _live(mine, found)
            cut = self.random.randint(0, len(live))
            added = [
                file
                for part, rows in enumerate((live[:cut], live[cut:]))
                for file in write_rows(self.table, client, read.metadata.spec, f"new-{number}-{task}-{part}", rows)
            ]
            moves = RowMoves(pieces=_pieces(mine, found, ordinals=False))
            if self.random.random() < 0.3:
                location = f"{self._directory}/pieces-{number}-{task}"
                with client.storage.write(location) as stream:
                    stream.write(msgspec.msgpack.encode(moves.pieces))
                moves = RowMoves(stored=(location,))
            yield _outcome(added, mine, live, moves)

    def _in_another_order(
        self, client: Client, read: Table, number: int, places: list[_Place], found: dict[str, Found]
    ) -> RewriteOutcome:
        """One task that sorts all rows and says of each where it was."""
        live = [place for place in places if _is_live(place, found)]
        self.random.shuffle(live)
        cut = self.random.randint(0, len(live))
        added = [
            file
            for part, some in enumerate((live[:cut], live[cut:]))
            for file in write_rows(
                self.table, client, read.metadata.spec, f"new-{number}-{part}", [self._row(p) for p in some]
            )
        ]
        with OriginsWriter(client.storage, f"{self._directory}/origins-{number}") as writer:
            for start in range(0, len(live), 7):
                writer.write(pa.chunked_array([pa.array([p[2] for p in live[start : start + 7]], pa.uint32())]))
            origins = writer.close()
        moves = RowMoves(pieces=_pieces(places, found, ordinals=True), origins=origins)
        return _outcome(added, places, live, moves)

    def _cuts(self, count: int) -> list[int]:
        return [self.random.randint(1, max(count, 1)) for _ in range(self.random.randint(0, 2))]

    def _row(self, place: _Place) -> Row:
        file, at, _ = place
        return self.table.contents[file.file_path][at]


def _is_live(place: _Place, found: dict[str, Found]) -> bool:
    file, at, _ = place
    one = found[file.file_path]
    return at not in one.by_position and at not in one.by_key


def _live(places: Sequence[_Place], found: dict[str, Found]) -> list[Row]:
    rows = {path: dict(one.rows) for path, one in found.items()}
    return [rows[file.file_path][at] for file, at, _ in places if at in rows[file.file_path]]


def _pieces(places: Sequence[_Place], found: dict[str, Found], *, ordinals: bool) -> tuple[MovedPiece, ...]:
    """What was read, a piece for each file that has some of the rows."""
    by_file: defaultdict[str, list[_Place]] = defaultdict(list)
    for place in places:
        by_file[place[0].file_path].append(place)
    pieces = []
    for path, some in by_file.items():
        positions, one = {at for _, at, _ in some}, found[path]
        first = min(positions)
        dropped, applied = positions & (one.by_position | one.by_key), positions & one.by_position
        pieces.append(
            MovedPiece(
                location=path,
                first_position=first,
                row_count=len(some),
                dropped=_bytes(dropped),
                applied=None if applied == dropped else _bytes(applied),
                first_ordinal=some[0][2] - first if ordinals else None,
            )
        )
    return tuple(pieces)


def _bytes(positions: set[int]) -> bytes:
    return bytes(BitMap64(positions).serialize()) if positions else b""


def _outcome(
    added: Sequence[DataFile], places: Sequence[_Place], live: Sequence[Any], moves: RowMoves
) -> RewriteOutcome:
    return RewriteOutcome(files=tuple(added), read_count=len(places), live_count=len(live), moves=moves)


def _group(
    number: int,
    entries: Sequence[ManifestEntry],
    reaching: dict[str, tuple[ManifestEntry, ...]],
    listed: dict[str, str],
    base: TableMetadata,
) -> FileGroup:
    deletes: list[ManifestEntry] = []
    for entry in entries:
        deletes += [d for d in reaching[entry.data_file.file_path] if d not in deletes]
    spec_id = entries[0].data_file.spec_id
    codec = PartitionCodec(base.partition_type(spec_id))
    files = tuple(
        _group_file(e, listed[path], [deletes.index(d) for d in reaching[path]], codec)
        for e in entries
        for path in [e.data_file.file_path]
    )
    return FileGroup(
        number=number,
        partition="",
        spec_id=spec_id,
        output_spec_id=spec_id,
        files_count=len(entries),
        bytes=sum(e.data_file.file_size_in_bytes for e in entries),
        record_count=sum(e.data_file.record_count for e in entries),
        expected_files_count=1,
        packed=pack_group_files(GroupFiles(files=files, deletes=tuple(_group_delete(d, codec) for d in deletes))),
    )


def _group_file(entry: ManifestEntry, manifest_path: str, deletes: Sequence[int], codec: PartitionCodec) -> GroupFile:
    file = entry.data_file
    return GroupFile(
        file_path=file.file_path,
        file_format=file.file_format,
        spec_id=file.spec_id,
        partition=codec.encode(file.partition),
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number or 0,
        file_sequence_number=entry.file_sequence_number,
        manifest_path=manifest_path,
        first_row_id=file.first_row_id,
        deletes=PositionSet(deletes),
    )


def _group_delete(entry: ManifestEntry, codec: PartitionCodec) -> GroupDelete:
    file = entry.data_file
    return GroupDelete(
        content=file.content.value,
        file_path=file.file_path,
        file_format=file.file_format,
        spec_id=file.spec_id,
        partition=codec.encode(file.partition),
        sequence_number=entry.sequence_number or 0,
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        equality_ids=file.equality_ids,
        referenced_data_file=file.referenced_data_file,
        content_offset=file.content_offset,
        content_size_in_bytes=file.content_size_in_bytes,
    )


def _stores_nothing(groups: Sequence[FileGroup], directory: str) -> Any:
    raise AssertionError("so few files are held")
