"""Tables with long histories, for expiration: thousands of snapshots whose files are all on disk.

icekeep's own commits make the history, so that manifests are merged, filtered and listed as a real writer's are; what they
leave out is one metadata file for each snapshot, for a catalog never sees more than the last one. Data files are sparse:
as long as metadata says, without a block of their own.
"""

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import ClassVar, Literal

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from bench.tables.kept import IDENTIFIER, NAMESPACE, Kept, hadoop_catalog
from icekeep.commit.attempt import Attempt, Change, CommitFiles
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.manifests import EntryMemory, ManifestReader
from icekeep.commit.outcome import remove_unused
from icekeep.playground.maker import PastRuntime
from icekeep.runtime import SYSTEM
from icekeep.spec.manifests.structs import DataFile, ManifestEntry, Status
from icekeep.spec.metadata import TableMetadata, validate_metadata
from icekeep.spec.properties import data_directory
from icekeep.spec.snapshots import Snapshot, SnapshotLogEntry
from icekeep.spec.types import LONG, STRING, TIMESTAMPTZ
from icekeep.spec.updates import apply_updates
from icekeep.spec.values import value_to_bytes
from icekeep.storage.local.storage import LocalStorage, UnflushedStorage
from icekeep.storage.locations import local_path
from icekeep.tables.verbs import create_table

Writer = Literal["append", "fast-append", "rewrites"]

CYCLE = 10
"""Where a table is rewritten, each tenth snapshot replaces files that the nine before it have added."""
_REWRITTEN_SHARE = 10
"""So many files become one."""

_FILES_A_DAY = 1000
_FIRST_DAY = 19_000
ROWS_A_FILE = 5000
DAY_S = 24 * 60 * 60
FILE_BYTES, _FILE_BYTES_SPREAD = 1 << 20, 1 << 16


class History(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What becomes of a table.

    Attributes:
        writer: `append` merges manifests at a hundred, as the property `commit.manifest.min-count-to-merge` has it;
            `fast-append` leaves them as they are; `rewrites` compacts in between what was appended.
        files: data files that the table ever had.
        garbage_percent: how many of them only old snapshots have.
        orphans: files in the data directories that no snapshot ever had, beside the others.
    """

    writer: Writer
    snapshots: int
    files: int
    garbage_percent: int = 0
    orphans: int = 0

    read: ClassVar[tuple[str, ...]] = ()
    is_restored: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.files < self.snapshots:
            raise ValueError(f"{self.files} files are not enough for {self.snapshots} snapshots")
        if (self.garbage_percent > 0) is not (self.writer == "rewrites"):
            raise ValueError("files become garbage where a table is rewritten, and only there")
        if self.writer == "rewrites" and self.snapshots % CYCLE:
            raise ValueError(f"each {CYCLE}th snapshot rewrites: give as many snapshots")

    @property
    def name(self) -> str:
        numbers = f"{self.snapshots}-snapshots-{self.files}-files"
        garbage = f"-{self.garbage_percent}-percent-garbage" if self.garbage_percent else ""
        return f"expiration-{self.writer}-{numbers}{garbage}{f'-{self.orphans}-orphans' if self.orphans else ''}"

    @property
    def small(self) -> "History":
        return replace(self, snapshots=100, files=1000, orphans=min(10, self.orphans))

    @property
    def garbage_files(self) -> int:
        return sum(step.removed for step in self.steps())

    @property
    def days(self) -> int:
        """Partitions of a table."""
        return max(1, self.files // _FILES_A_DAY)

    def steps(self) -> "Iterator[Step]":
        """What each snapshot does, oldest first."""
        if self.writer != "rewrites":
            bounds = [number * self.files // self.snapshots for number in range(self.snapshots + 1)]
            yield from (Step(added=end - begin) for begin, end in pairwise(bounds))
            return
        cycles, appends = self.snapshots // CYCLE, CYCLE - 1
        garbage = self.files * self.garbage_percent // 100
        removed = [(c + 1) * garbage // cycles - c * garbage // cycles for c in range(cycles)]
        rewritten = [max(1, count // _REWRITTEN_SHARE) for count in removed]
        appended = self.files - sum(rewritten)
        bounds = [number * appended // (cycles * appends) for number in range(cycles * appends + 1)]
        for cycle in range(cycles):
            own = bounds[cycle * appends : (cycle + 1) * appends + 1]
            yield from (Step(added=end - begin) for begin, end in pairwise(own))
            yield Step(added=rewritten[cycle], removed=min(removed[cycle], own[-1] - own[0]))


class Step(msgspec.Struct, frozen=True):
    """One snapshot: how many files it adds, and how many of those that its cycle appended it replaces by them."""

    added: int
    removed: int = 0


class HistoryFiles:
    """The data files of a history by their numbers, oldest first, each day's in a directory of its own."""

    def __init__(self, history: History, directory: str) -> None:
        self.directory = directory
        self._history = history
        self._bounds = {
            "nulls": dict.fromkeys(range(1, 5), 0),
            "counts": dict.fromkeys(range(1, 5), ROWS_A_FILE),
        }

    def path(self, number: int) -> str:
        return f"{self.directory}/at_day={_day_text(self._day(number))}/{self._name(number)}"

    def orphan_path(self, number: int) -> str:
        """Of a file that no snapshot has; they are spread over all days."""
        day = _FIRST_DAY + number % self._history.days
        return f"{self.directory}/at_day={_day_text(day)}/{self._name(self._history.files + number)}"

    def size_bytes(self, number: int) -> int:
        return FILE_BYTES + number * 7919 % _FILE_BYTES_SPREAD

    def data_file(self, number: int) -> DataFile:
        """What a manifest says of a file."""
        day = self._day(number)
        first_us = day * DAY_S * 1_000_000
        bounds = [
            {
                1: value_to_bytes(LONG, first),
                2: value_to_bytes(TIMESTAMPTZ, first_us + at),
                3: value_to_bytes(STRING, account),
            }
            for first, at, account in (
                (number * ROWS_A_FILE, 0, f"account-{number * 31 % 1000:06}"),
                ((number + 1) * ROWS_A_FILE - 1, DAY_S * 1_000_000 - 1, f"account-{900_000 + number * 17 % 1000}"),
            )
        ]
        return DataFile(
            file_path=self.path(number),
            file_format="PARQUET",
            spec_id=0,
            partition=(day,),
            record_count=ROWS_A_FILE,
            file_size_in_bytes=self.size_bytes(number),
            value_counts=self._bounds["counts"],
            null_value_counts=self._bounds["nulls"],
            lower_bounds=bounds[0],
            upper_bounds=bounds[1],
            split_offsets=(4,),
            sort_order_id=0,
        )

    def _day(self, number: int) -> int:
        return _FIRST_DAY + number * self._history.days // self._history.files

    def _name(self, number: int) -> str:
        unique = uuid.UUID(bytes=hashlib.md5(str(number).encode(), usedforsecurity=False).digest())
        return f"{number % 200:05}-{number}-{unique}-00001.parquet"


def _day_text(days: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(days * DAY_S))


_SNAPSHOT_EVERY_MS = 1000
_LAST_AGE_MS = 60_000
_FIRST_SNAPSHOT_ID = 1 << 60
"""As long as those that are drawn by chance."""
_FILES_AGE_DAYS = 10
"""Older than what a writer may have in flight: otherwise their age alone would tell the files of a table from orphans."""
_THREADS = 4
_CHUNK = 2000
_REMEMBERED_ENTRIES = 100_000

_ROWS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
        ("account", pa.string()),
        ("amount", pa.decimal128(12, 2)),
    ]
)


def make(table: Kept) -> dict[str, int]:
    """Make a table with a history; how many live files and rows it has."""
    catalog, history = table.catalog, table.shape
    catalog.create_namespace((NAMESPACE,), exists_ok=True)
    files = HistoryFiles(history, f"{catalog.default_location(IDENTIFIER)}/data")
    # Only the last metadata file is written: by the catalog, as if the table were new.
    metadata = with_history(empty_table(table), history, files)
    assert data_directory(metadata) == files.directory
    catalog.create(IDENTIFIER, metadata)
    everything = [*map(files.path, range(history.files)), *map(files.orphan_path, range(history.orphans))]
    write_files(everything, (*map(files.size_bytes, range(history.files)), *[FILE_BYTES] * history.orphans))
    live = history.files - history.garbage_files
    return {"live_files": live, "rows": live * ROWS_A_FILE}


def empty_table(table: Kept) -> TableMetadata:
    """Metadata of the table before its first snapshot: made by a catalog elsewhere, which is removed."""
    elsewhere = table.directory / "elsewhere"
    catalog = hadoop_catalog(elsewhere)
    catalog.create_namespace((NAMESPACE,))
    created = create_table(catalog, IDENTIFIER, _ROWS, partition_by=[("at", "day")])
    shutil.rmtree(elsewhere)
    return replace(created.metadata, location=table.catalog.default_location(IDENTIFIER))


def with_history(metadata: TableMetadata, history: History, files: HistoryFiles) -> TableMetadata:
    """Do all steps of a history to a table without snapshots.

    A commit needs no more of the past than the head, so that it is given no more: with all of it the time that they take
    would grow with the square of their number.
    """
    storage = UnflushedStorage()
    memory = EntryMemory(_REMEMBERED_ENTRIES)
    # The last snapshot will be a minute old.
    age_ms = _LAST_AGE_MS + history.snapshots * _SNAPSHOT_EVERY_MS
    runtime = PastRuntime(metadata.location, SYSTEM.now_ms() - age_ms)
    snapshots: list[Snapshot] = []
    metadata = replace(metadata, last_updated_ms=runtime.now_ms())
    for number, change in enumerate(changes(history, files, snapshots), 1):
        runtime.move_on(_SNAPSHOT_EVERY_MS)
        metadata = replace(metadata, snapshots=tuple(snapshots[-1:]), snapshot_log=())
        if number % 1000 == 0:
            memory = EntryMemory(_REMEMBERED_ENTRIES)
        written = CommitFiles(storage, str(runtime.new_uuid()))
        reader = ManifestReader(storage, memory)
        attempt = Attempt(metadata, 1, _FIRST_SNAPSHOT_ID + number, written, reader, runtime)
        metadata = apply_updates(metadata, change.apply(metadata, attempt), now_ms=runtime.now_ms())
        snapshots.append(metadata.snapshots[-1])
        remove_unused(written, snapshots[-1])
    log = tuple(SnapshotLogEntry(timestamp_ms=s.timestamp_ms, snapshot_id=s.snapshot_id) for s in snapshots)
    return validate_metadata(replace(metadata, snapshots=tuple(snapshots), snapshot_log=log))


def changes(history: History, files: HistoryFiles, snapshots: Sequence[Snapshot]) -> Iterator[Change]:
    """The change of each step; `snapshots` are those that there are by then."""
    numbers = iter(range(history.files))
    appended: list[ManifestEntry] = []
    for step in history.steps():
        added = tuple(files.data_file(number) for _, number in zip(range(step.added), numbers, strict=False))
        if history.writer != "rewrites":
            yield AppendFiles(files=added, merges_manifests=history.writer == "append")
        elif step.removed:
            since = {s.snapshot_id for s in snapshots[-(CYCLE - 1) :]}
            yield RewriteFiles(
                removed=tuple(appended[: step.removed]),
                added=added,
                schema_id=0,
                manifest_paths=_manifests_since(snapshots[-1], since),
            )
            appended = []
        else:
            yield AppendFiles(files=added)
            head = snapshots[-1]
            appended += (
                ManifestEntry(
                    status=Status.ADDED,
                    data_file=file,
                    snapshot_id=head.snapshot_id,
                    sequence_number=head.sequence_number,
                    file_sequence_number=head.sequence_number,
                )
                for file in added
            )


def _manifests_since(head: Snapshot, since: set[int]) -> frozenset[str]:
    manifests = ManifestReader(LocalStorage()).manifests(head)
    return frozenset(m.manifest_path for m in manifests if m.added_snapshot_id in since)


def write_files(locations: Iterable[str], sizes: Iterable[int]) -> None:
    """Make sparse files of some days ago, and the directories that they are in."""
    paths = [local_path(location) for location in locations]
    for directory in {os.path.dirname(path) for path in paths}:
        os.makedirs(directory, exist_ok=True)
    before = time.time() - _FILES_AGE_DAYS * DAY_S
    rows = list(zip(paths, sizes, strict=True))
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(lambda at: _write_some(rows[at : at + _CHUNK], before), range(0, len(rows), _CHUNK)))


def _write_some(rows: Sequence[tuple[str, int]], modified_s: float) -> None:
    for path, size_bytes in rows:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.ftruncate(descriptor, size_bytes)
        os.utime(descriptor, (modified_s, modified_s))
        os.close(descriptor)
