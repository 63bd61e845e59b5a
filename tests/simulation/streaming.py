"""Histories of one table that is compacted as a whole while writers update its rows every second.

    python tests/simulation/run.py --streaming 1000 --seed 0

Nothing goes wrong in them but that others are faster, at any call. The rows must equal a serial replay after every commit;
no group is planned anew, each commit of the compaction lands within the four retries that `commit.retry.num-retries` is by
default, and a writer is refused only if it planned before a swap of the compaction and commits after it, and succeeds on its
next plan. A call to storage or the catalog takes 1 to 5 ms, and one is made at a time, whoever makes it: an attempt to commit
takes a tenth of a second to a half.
"""

import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.catalog.metadata_files import encode
from icekeep.commit.conflicts import Isolation
from icekeep.commit.manifests import ManifestReader
from icekeep.events import CommitRetried, Event, Warned
from icekeep.formats.rewrite.task import RewriteOutcome
from icekeep.formats.row_moves import MovedPiece, OriginsWriter, RowMoves
from icekeep.maintenance.compact import carrying
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
from icekeep.maintenance.rewrite.run import RewriteRun
from icekeep.spec.collections import PositionSet
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestEntry
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.metadata import TableMetadata, new_table_metadata
from icekeep.spec.properties import own_directory
from icekeep.spec.snapshots import MAIN
from kit.runtime import with_runtime
from kit.tables import BY_KIND, COLUMNS, UNPARTITIONED
from simulation.client import Client
from simulation.codec import values_in_place_of_bytes
from simulation.file_operations import live_entries
from simulation.scheduler import Actor, Scheduler, serially
from simulation.streaming_table import Found, Row, StreamingTable, Write, write_rows
from simulation.world import EVENTS, LOCATION, POINTER, START_MS, UPDATES, NoFaults, World

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
            run=RewriteRun(with_runtime(read, client), "compact", run_id, self),
            plan=plan,
            options=options,
            reader=ManifestReader(client.storage),
            store=_stores_nothing,
        )
        self._directory = own_directory(read.metadata, f"runs/{run_id}")
        finished = self._rewritten(client, read, groups, self.table.found(read.metadata))
        done = commit_groups(finished, commits)
        self.carried_count = done.result.carried_delete_files_count
        self.table.require(
            done.conflict is None, "C11", f"{len(done.deferred)} groups are planned again: {done.conflict}"
        )
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


_SECOND_MS = 1_000
_CALL_MS = 19
_PLANS_MAX = 8
_COMMITS_AFTERWARDS = 2


class StreamingHistory:
    """A table with some past, one compaction of it, and one or two writers; all from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(f"streaming {seed}")
        self.scheduler = Scheduler(random, START_MS, random.choice([0.1, 0.4, 0.8, 1.0]), _CALL_MS)
        self.world = World(random, self.scheduler, NoFaults(), catalog=random.choice([POINTER, UPDATES]))
        self.table = StreamingTable(self.world)
        self.format_version = random.choice([2, 3])
        self.writers_count = random.choice([1, 1, 2])
        self._has_keys = random.random() < 0.4
        # Rows that move to a newer number are out of reach of equality deletes that come meanwhile: those are a conflict.
        self._starts_at_number = self._has_keys or random.random() < 0.8
        self.rewrite = Rewrite(self.table, random, starts_at_number=self._starts_at_number)
        self._keys_count = 0
        self._writes_count = 0
        self._is_over = False
        self._make_table()

    def run(self) -> Counter[str]:
        """Let all work to their end and check what is left; what came about, as counts."""
        # A second thread of a process would take its turns at the world.
        with serially(), patch.object(carrying, "REQUESTS_AT_ONCE", 1):
            self.scheduler.run({"past": self._past})
            writers = {f"writer {n}": self._writer(n) for n in range(self.writers_count)}
            self.scheduler.run({"compaction": self._compact, **writers})
        self.table.check_nothing_is_left()
        return self._seen()

    def story(self) -> list[str]:
        """Every call, and each commit in order."""
        calls = [f"{who:10} {call:8} {location}" for who, call, location, _ in self.world.trace]
        return [*calls, *(f"{one.sequence_number}: {one.doing.name}" for one in self.table.landings)]

    def _make_table(self) -> None:
        metadata = new_table_metadata(
            schema=COLUMNS,
            spec=self.random.choice([UNPARTITIONED, BY_KIND]),
            location=LOCATION,
            table_uuid=str(self.world.new_uuid()),
            now_ms=START_MS,
            properties={},
            format_version=self.format_version,
        )
        location = f"{LOCATION}/metadata/00000-{self.world.new_uuid()}.metadata.json"
        self.world.disk.create(location, encode(metadata), START_MS, None)
        self.world.publish(None, location, metadata)

    def _past(self, actor: Actor) -> None:
        client = Client(self.world, actor)
        for _ in range(self.random.randint(2, 4)):
            self._write().append(client, self._new_rows(self.random.randint(6, 24)))
        for _ in range(self.random.randint(0, 2)):
            self._write().update(client, self._some_keys(range(self.writers_count)), 0, None)

    def _compact(self, actor: Actor) -> None:
        client = Client(self.world, actor)
        client.sleep_ms(self.random.randrange(2 * _SECOND_MS))
        self.rewrite.run(client)
        self._is_over = True

    def _writer(self, number: int) -> Callable[[Actor], None]:
        def work(actor: Actor) -> None:
            client = Client(self.world, actor)
            afterwards = 0
            # The table is updated every second, by whom ever.
            pace_ms = _SECOND_MS * self.writers_count
            client.sleep_ms(self.random.randrange(pace_ms))
            while afterwards < _COMMITS_AFTERWARDS:
                began_ms = client.monotonic_ms()
                afterwards += self._is_over
                self._commit(client, number)
                client.sleep_ms(max(1, began_ms + pace_ms - client.monotonic_ms()))

        return work

    def _commit(self, client: Client, number: int) -> None:
        """What a writer commits in one second; an update that is refused is planned once more."""
        drawn = self.random.random()
        keys = self._some_keys([number])
        if drawn < 0.1:
            self._write().append(client, self._new_rows(self.random.randint(1, 3)))
        elif drawn < 0.35 and self._has_keys:
            rows = [Row(row.key, row.version + 1) for row in sorted(self.table.rows) if row.key in keys]
            self._write().upsert(client, rows or self._new_rows(1))
        else:
            self._update(client, keys)

    def _update(self, client: Client, keys: frozenset[int]) -> None:
        isolation = self.random.choice([None, *Isolation]) if self.writers_count == 1 else None
        for _ in range(_PLANS_MAX):
            if self._write().update(client, keys, self.random.choice([1, 50, 300]), isolation):
                return
        self.table.require(False, "C11", f"an update of {sorted(keys)} is refused again and again")

    def _write(self) -> Write:
        self._writes_count += 1
        return Write(self.table, f"write-{self._writes_count:03d}", self.random)

    def _new_rows(self, count: int) -> list[Row]:
        first, self._keys_count = self._keys_count, self._keys_count + count
        return [Row(key, 0) for key in range(first, first + count)]

    def _some_keys(self, writers: Iterable[int]) -> frozenset[int]:
        """Keys of rows that are there; each writer has his own."""
        mine = {*writers}
        known = sorted({row.key for row in self.table.rows if row.key % self.writers_count in mine})
        return frozenset(self.random.sample(known, min(len(known), self.random.randint(1, 5))))

    def _seen(self) -> Counter[str]:
        attempts = self.rewrite.attempts
        return self.world.seen + Counter(
            {
                "histories": 1,
                f"histories of format version {self.format_version}": 1,
                f"histories with {self.writers_count} writers": 1,
                "commits": len(self.table.landings),
                "commits of writers while the compaction ran or after it": len(self.table.landings) - len(attempts),
                "commits of compactions": len(attempts),
                "delete files that compactions carried over": self.rewrite.carried_count,
                **{f"commits of compactions at attempt {n}": count for n, count in Counter(attempts).items()},
            }
        )


def simulate_streaming(seed: int, tell: Callable[[str], None] | None = None) -> Counter[str]:
    """Run the history of a seed to its end; a violation says how to replay it."""
    with nullcontext() if seed % 100 == 99 else values_in_place_of_bytes():
        history = StreamingHistory(seed)
        try:
            return history.run()
        except BaseException as error:
            error.add_note(f"replay: python tests/simulation/run.py --streaming 1 --seed {seed} --trace")
            raise
        finally:
            if tell is not None:
                for line in history.story():
                    tell(line)


def run_streaming(seeds: Iterable[int]) -> tuple[Counter[str], list[str]]:
    """Run histories; what came about in them, and each failure as text."""
    seen, failures = Counter[str](), list[str]()
    for seed in seeds:
        try:
            seen += simulate_streaming(seed)
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            failures.append(traceback.format_exc())
    return seen, failures
