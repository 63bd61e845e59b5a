"""Tables with long histories, for expiration: thousands of snapshots whose files are all on disk.

icekeep's own commits make the history, so that manifests are merged, filtered and listed as a real writer's are; what they
leave out is one metadata file for each snapshot, for a catalog never sees more than the last one. Data files are sparse:
as long as metadata says, without a block of their own.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from msgspec.structs import replace

from bench.tables.histories import CYCLE, DAY_S, FILE_BYTES, ROWS_A_FILE, History, HistoryFiles
from bench.tables.kept import IDENTIFIER, NAMESPACE, Kept, hadoop_catalog
from icekeep.commit.attempt import Attempt, Change, CommitFiles
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.manifests import EntryMemory, ManifestReader
from icekeep.commit.outcome import remove_unused
from icekeep.playground.maker import PastRuntime
from icekeep.runtime import SYSTEM
from icekeep.spec.manifests.structs import ManifestEntry, Status
from icekeep.spec.metadata import TableMetadata, validate_metadata
from icekeep.spec.properties import data_directory
from icekeep.spec.snapshots import Snapshot, SnapshotLogEntry
from icekeep.spec.updates import apply_updates
from icekeep.storage.local.storage import LocalStorage, UnflushedStorage
from icekeep.storage.locations import local_path
from icekeep.tables.verbs import create_table

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
