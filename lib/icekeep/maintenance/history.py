"""Which commits are told of, and in whose history each is: from the table's metadata alone.

What is told of commits: values with the names of their JSON. `None` is always "not known", never "none".

The manifest list of a snapshot, in sums: only the manifests that the snapshot itself wrote are kept.

A list may have a hundred thousand rows. Several are read at a time, since stores are slow to answer; one at a time is decoded.

Metadata files that belong to no snapshot: changes of schemas, properties and references, expirations, and expired commits.

The metadata log says when each of the last metadata files was written. That of a commit is the first that is no older than
its snapshot, since an engine makes the snapshot before the file; two snapshots of one commit have the same file.

What a commit added and removed, and how large the table is after it: the one place that says which source counts.

manifest list       counts of files and rows, where it has them
summary             bytes, and how delete files and deletes are shared among their kinds, where these add up to the list's
entries             all of that, of the manifests that the commit wrote, where list and summary together leave something open

Reading what commits did, several at a time. A file that cannot be read leaves its commit without numbers, and ends nothing.

The command `history`: commits chosen -> their manifest lists read in threads -> a row each, and the points of a plot.

Nothing is written, and no Spark is started: of each list only sums are kept, and no more lists are read than are shown, and
those of their parents.

How a table grew, as the points of a plot: of a long history some commits, evenly chosen; the manifest list of each is read.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import merge
from itertools import islice
from threading import Lock
from typing import TypeAlias

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.manifests import EntryMemory, ManifestReader
from icekeep.commit.summary import JOB_KEY, made_by
from icekeep.errors import IcekeepError, UsageError
from icekeep.rendered import Rendered
from icekeep.spec.manifests.read import read_manifest_list
from icekeep.spec.manifests.structs import COUNTS, DataFile, FileContent, ManifestContent, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotLogEntry
from icekeep.spec.times import Moment, moment_ms
from icekeep.storage.base import Storage, answer_each
from icekeep.storage.locations import requests_at_once

Chosen: TypeAlias = Snapshot | SnapshotLogEntry
"""A snapshot, or what the snapshot log has of one that is gone."""


def chosen_commits(metadata: TableMetadata, ref: str | None) -> Iterator[Chosen]:
    """The commits of a branch or tag, or of all of the table, the newest first; one after its parent where clocks were wrong.

    The snapshot log is that of `main`: expired commits are of it, or of no known branch.

    Raises:
        NotFoundError: there is no such branch or tag.
    """
    if ref is None:
        # Of snapshots of one moment a child has the higher number, or comes later in the metadata (v1).
        newest_first = sorted(metadata.snapshots, key=lambda s: (s.timestamp_ms, s.sequence_number))[::-1]
        there: Iterator[Snapshot] = iter(newest_first)
    else:
        head = metadata.head(ref)
        there = metadata.ancestors(None if head is None else head.snapshot_id)
    expired = reversed(expired_commits(metadata)) if ref in (None, MAIN) else ()
    return merge(there, expired, key=lambda commit: -commit.timestamp_ms)


def expired_commits(metadata: TableMetadata) -> list[SnapshotLogEntry]:
    """What the snapshot log has of snapshots that are gone, once each, the oldest first."""
    first: dict[int, SnapshotLogEntry] = {}
    for entry in metadata.snapshot_log:
        if entry.snapshot_id not in metadata.snapshots_by_id:
            first.setdefault(entry.snapshot_id, entry)
    return sorted(first.values(), key=lambda entry: entry.timestamp_ms)


def refs_by_snapshot(metadata: TableMetadata) -> Mapping[int, frozenset[str]]:
    """The branches and tags in whose history each snapshot is; one that no reference leads to is left out.

    Names go from children to parents, so that a hundred branches of ten thousand snapshots are walked once.
    """
    known = metadata.snapshots_by_id
    names: dict[int, frozenset[str]] = {}
    for name, ref in metadata.refs.items():
        names[ref.snapshot_id] = names.get(ref.snapshot_id, frozenset()) | {name}
    children = Counter(s.parent_snapshot_id for s in metadata.snapshots if s.parent_snapshot_id in known)
    ready = [snapshot_id for snapshot_id in known if not children[snapshot_id]]
    while ready:
        snapshot_id = ready.pop()
        parent_id = known[snapshot_id].parent_snapshot_id
        if parent_id not in known or parent_id is None:
            continue
        if snapshot_id in names:
            passed = names[snapshot_id]
            # Along a line without branches all share one set.
            names[parent_id] = names[parent_id] | passed if parent_id in names else passed
        children[parent_id] -= 1
        if not children[parent_id]:
            ready.append(parent_id)
    return names


class FilesChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit added, or what it removed.

    Attributes:
        record_count: rows of the data files.
        position_deletes_count: rows of position delete files and of deletion vectors.
        equality_deletes_count: rows of equality delete files.
        bytes: of data files and delete files together, as summaries have them.
    """

    data_files_count: int | None = None
    record_count: int | None = None
    position_delete_files_count: int | None = None
    equality_delete_files_count: int | None = None
    deletion_vectors_count: int | None = None
    position_deletes_count: int | None = None
    equality_deletes_count: int | None = None
    bytes: int | None = None

    @property
    def delete_files_count(self) -> int | None:
        """Delete files of every kind, including deletion vectors."""
        return total((self.position_delete_files_count, self.equality_delete_files_count, self.deletion_vectors_count))


class TableTotals(msgspec.Struct, frozen=True, kw_only=True):
    """How large a table is after a commit; `bytes` are those of data files and delete files together."""

    data_files_count: int | None = None
    record_count: int | None = None
    delete_files_count: int | None = None
    position_deletes_count: int | None = None
    equality_deletes_count: int | None = None
    bytes: int | None = None


class ManifestsAfter(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a snapshot below its table's metadata file.

    Attributes:
        manifest_list_bytes: of the manifest list; `None` also where there is none (v1).
        metadata_bytes: of the manifest list and all manifests.
        created_count: manifests that the commit wrote, of `created_bytes`.
        kept_count: manifests of earlier commits.
        replaced_count: manifests of its parent that it does not list any more.
    """

    manifests_count: int | None = None
    manifests_bytes: int | None = None
    manifest_list_bytes: int | None = None
    metadata_bytes: int | None = None
    created_count: int | None = None
    created_bytes: int | None = None
    kept_count: int | None = None
    replaced_count: int | None = None


class CommitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One commit.

    Attributes:
        timestamp_ms: when it was made, epoch milliseconds; of an expired one, when it became current.
        since_previous_ms: since its parent was made.
        operation: as its summary says.
        made_by: the engine, as far as the summary says.
        job: the job of icekeep that made it, where it was one.
        is_expired: its snapshot is gone, and only the snapshot log has it: nothing else is known of it.
        refs: the branches and tags whose history has it; none for a staged snapshot.
        metadata_files_between_count: metadata files between the commit before it, on whatever branch, and this one: commits that
            made no snapshot, and such whose snapshots are gone. `None` where the metadata log does not reach back.
        note: why numbers are not known that should be.
    """

    snapshot_id: int
    parent_snapshot_id: int | None = None
    timestamp_ms: int
    since_previous_ms: int | None = None
    operation: str | None = None
    made_by: str | None = None
    job: str | None = None
    is_expired: bool = False
    refs: tuple[str, ...] = ()
    added: FilesChanged = FilesChanged()
    removed: FilesChanged = FilesChanged()
    after: TableTotals = TableTotals()
    manifests: ManifestsAfter = ManifestsAfter()
    metadata_files_between_count: int | None = None
    note: str | None = None


class GrowthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """How large a table was from `timestamp_ms` (epoch milliseconds) on."""

    timestamp_ms: int
    snapshot_id: int
    data_files_count: int | None
    bytes: int | None
    delete_files_count: int | None
    metadata_bytes: int | None


class CommitHistoryResult(Rendered, frozen=True, kw_only=True):
    """The commits of a branch or tag, or of a whole table.

    Attributes:
        ref: whose commits; `None`: all of the table.
        commits: the newest first.
        growth: the commits of `ref`, or of `main`, the oldest first, as the points of a plot.
        metadata_files_after_count: metadata files since the newest snapshot of the table: commits that made none.
        left_out_count: older commits that the limit left out.
        not_read: manifest lists and manifests that could not be read; what they would show is `None`.
    """

    metadata_location: str
    ref: str | None
    commits: tuple[CommitEntry, ...]
    growth: tuple[GrowthPoint, ...]
    metadata_files_after_count: int | None
    left_out_count: int
    not_read: tuple[str, ...]


def total(counts: Sequence[int | None]) -> int | None:
    """A sum; one that is not known makes it so."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


_DECODING = Lock()


class ListSums(msgspec.Struct, frozen=True, kw_only=True):
    """What the manifest list of a snapshot says in all; `created` are the manifests that the snapshot wrote.

    `live` has counts of files and records alone, which lists of version 1 may leave out.
    """

    manifests: ManifestsAfter
    live: TableTotals
    created: tuple[ManifestFile, ...]


def read_list_sums(snapshot: Snapshot, storage: Storage) -> ListSums:
    """Read the manifest list of a snapshot; of one that names its manifests itself (v1), these.

    Raises:
        IcekeepError: it cannot be read.
    """
    if snapshot.manifest_list is None:
        return _sums(ManifestReader(storage, EntryMemory(0)).manifests(snapshot), snapshot.snapshot_id, None)
    data = storage.read(snapshot.manifest_list)
    with _DECODING:
        return _sums(read_manifest_list(data, snapshot.manifest_list), snapshot.snapshot_id, len(data))


def _sums(rows: list[ManifestFile], snapshot_id: int, list_bytes: int | None) -> ListSums:
    created = tuple(row for row in rows if row.added_snapshot_id == snapshot_id)
    manifests_bytes = _bytes(rows)
    data = [row for row in rows if row.content is ManifestContent.DATA]
    deletes = [row for row in rows if row.content is ManifestContent.DELETES]
    return ListSums(
        manifests=ManifestsAfter(
            manifests_count=len(rows),
            manifests_bytes=manifests_bytes,
            manifest_list_bytes=list_bytes,
            metadata_bytes=manifests_bytes + (list_bytes or 0),
            created_count=len(created),
            created_bytes=_bytes(created),
            kept_count=len(rows) - len(created),
        ),
        live=TableTotals(
            data_files_count=total([row.live_files_count for row in data]),
            record_count=total([count for row in data for count in (row.added_rows_count, row.existing_rows_count)]),
            delete_files_count=total([row.live_files_count for row in deletes]),
        ),
        created=created,
    )


def _bytes(rows: Iterable[ManifestFile]) -> int:
    return sum(row.manifest_length for row in rows)


def metadata_files_between(metadata: TableMetadata, known_ms: Iterable[int]) -> Mapping[int, int]:
    """For moments of commits, those that the log reaches: how many metadata files lie between the one before and it.

    Args:
        known_ms: when each commit that is known of was made, on whatever branch.
    """
    written_ms, moments = _written_ms(metadata), sorted({*known_ms})
    places = [bisect_left(written_ms, moment) for moment in moments]
    return {
        moment: max(0, place - earlier - 1)
        for earlier_ms, earlier, moment, place in zip(moments, places, moments[1:], places[1:], strict=False)
        if earlier_ms >= written_ms[0]
    }


def metadata_files_after(metadata: TableMetadata, known_ms: Iterable[int]) -> int | None:
    """How many metadata files there are since the newest commit; `None` where the log does not reach back, or there is none."""
    written_ms, newest_ms = _written_ms(metadata), max(known_ms, default=-1)
    if newest_ms < written_ms[0]:
        return None
    return max(0, len(written_ms) - bisect_left(written_ms, newest_ms) - 1)


def _written_ms(metadata: TableMetadata) -> list[int]:
    return sorted([*(entry.timestamp_ms for entry in metadata.metadata_log), metadata.last_updated_ms])


_SUMMARY_KEYS = {
    Status.ADDED: {
        "record_count": "added-records",
        "position_delete_files_count": "added-position-delete-files",
        "equality_delete_files_count": "added-equality-delete-files",
        "deletion_vectors_count": "added-dvs",
        "position_deletes_count": "added-position-deletes",
        "equality_deletes_count": "added-equality-deletes",
        "bytes": "added-files-size",
    },
    Status.DELETED: {
        "record_count": "deleted-records",
        "position_delete_files_count": "removed-position-delete-files",
        "equality_delete_files_count": "removed-equality-delete-files",
        "deletion_vectors_count": "removed-dvs",
        "position_deletes_count": "removed-position-deletes",
        "equality_deletes_count": "removed-equality-deletes",
        "bytes": "removed-files-size",
    },
}
_FILE_KINDS = ("position_delete_files_count", "equality_delete_files_count", "deletion_vectors_count")
_DELETE_KINDS = ("position_deletes_count", "equality_deletes_count")
_IN_SUMMARY_ALONE = ("record_count", *_DELETE_KINDS, "bytes")

_MAX_DIGITS = 19
"""Longer numbers are none that a table could have."""


def files_changed(status: Status, sums: ListSums | None, summary: Mapping[str, str]) -> FilesChanged:
    """What a commit added or deleted by its list, which may be unreadable, and its summary.

    Counters are written where they are not zero: one that is missing is zero only where the list says that there is no file
    for it, or the others account for all that the list has.
    """
    said = {name: _number(summary, key) for name, key in _SUMMARY_KEYS[status].items()}
    if sums is None:
        return FilesChanged(**{name: said[name] for name in _IN_SUMMARY_ALONE})
    files, rows = COUNTS[status]
    data_files, records = (_listed(sums.created, ManifestContent.DATA, name) for name in (files, rows))
    delete_files, deletes = (_listed(sums.created, ManifestContent.DELETES, name) for name in (files, rows))
    return FilesChanged(
        data_files_count=data_files,
        record_count=said["record_count"] if records is None else records,
        bytes=0 if data_files == delete_files == 0 else said["bytes"],
        **_shared(said, _FILE_KINDS, delete_files),
        **_shared(said, _DELETE_KINDS, deletes),
    )


def is_whole(changed: FilesChanged) -> bool:
    """Whether all is known of it."""
    return all(getattr(changed, name) is not None for name in changed.__struct_fields__)


def files_counted(
    created: Iterable[ManifestFile], snapshot_id: int, metadata: TableMetadata, storage: Storage
) -> dict[Status, FilesChanged]:
    """What a commit added and deleted by the entries of the manifests that it wrote; no entry is kept.

    Raises:
        IcekeepError: a manifest cannot be read.
    """
    reader = ManifestReader(storage, EntryMemory(0))
    counters = {Status.ADDED: Counter[str](), Status.DELETED: Counter[str]()}
    for manifest in created:
        if manifest.added_files_count == manifest.deleted_files_count == 0:
            continue
        for entry in reader.entries(manifest, metadata):
            if entry.status in counters and entry.snapshot_id == snapshot_id:
                _count(counters[entry.status], entry.data_file)
    return {
        status: FilesChanged(**{name: counter[name] for name in FilesChanged.__struct_fields__})
        for status, counter in counters.items()
    }


def totals_after(sums: ListSums | None, summary: Mapping[str, str]) -> TableTotals:
    """How large the table is: by the list, where that has counts, else by the summary; nothing where the list is unreadable."""
    if sums is None:
        return TableTotals()
    live = sums.live
    delete_files = _or_number(live.delete_files_count, summary, "total-delete-files")
    data_files = _or_number(live.data_files_count, summary, "total-data-files")
    of_deletes = 0 if delete_files == 0 else None
    return TableTotals(
        data_files_count=data_files,
        record_count=_or_number(live.record_count, summary, "total-records"),
        delete_files_count=delete_files,
        position_deletes_count=_or_number(of_deletes, summary, "total-position-deletes"),
        equality_deletes_count=_or_number(of_deletes, summary, "total-equality-deletes"),
        bytes=_or_number(0 if data_files == delete_files == 0 else None, summary, "total-files-size"),
    )


def _listed(created: Iterable[ManifestFile], content: ManifestContent, name: str) -> int | None:
    return total([getattr(manifest, name) for manifest in created if manifest.content is content])


def _shared(said: Mapping[str, int | None], names: Sequence[str], listed: int | None) -> dict[str, int | None]:
    """The parts of what the list counts together; not known unless they add up to it."""
    parts = {name: said[name] or 0 for name in names}
    if listed == 0:
        return dict.fromkeys(names, 0)
    return {**parts} if sum(parts.values()) == listed else dict.fromkeys(names, None)


def _count(counter: Counter[str], file: DataFile) -> None:
    counter["bytes"] += file.own_bytes
    if file.content is FileContent.DATA:
        counter["data_files_count"] += 1
        counter["record_count"] += file.record_count
    elif file.content is FileContent.EQUALITY_DELETES:
        counter["equality_delete_files_count"] += 1
        counter["equality_deletes_count"] += file.record_count
    else:
        is_vector = is_deletion_vector(file)
        counter["deletion_vectors_count" if is_vector else "position_delete_files_count"] += 1
        counter["position_deletes_count"] += file.record_count


def _or_number(known: int | None, summary: Mapping[str, str], key: str) -> int | None:
    return _number(summary, key) if known is None else known


def _number(summary: Mapping[str, str], key: str) -> int | None:
    text = summary.get(key, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


class CommitRead(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a snapshot; `not_read` is the file that could not be, `note` says why."""

    sums: ListSums | None
    added: FilesChanged
    removed: FilesChanged
    after: TableTotals
    note: str | None = None
    not_read: str | None = None


def read_commits(table: Table, shown: Sequence[Snapshot]) -> dict[int, CommitRead]:
    """What is read of some snapshots, in their order, and then of their parents, of these only what their manifest lists say."""
    known = table.metadata.snapshots_by_id
    ids = {snapshot.snapshot_id for snapshot in shown}
    parents = {s.parent_snapshot_id: known[s.parent_snapshot_id] for s in shown if s.parent_snapshot_id in known}
    snapshots = [*shown, *(snapshot for snapshot_id, snapshot in parents.items() if snapshot_id not in ids)]
    reads = answer_each(
        lambda snapshot: _read(snapshot, table, counts_files=snapshot.snapshot_id in ids),
        snapshots,
        id,
        requests_at_once([table.metadata_location]),
    )
    return {snapshot.snapshot_id: read for snapshot, read in zip(snapshots, reads, strict=True)}


def _read(snapshot: Snapshot, table: Table, *, counts_files: bool) -> CommitRead:
    summary = snapshot.summary or {}
    sums, note, not_read = None, None, None
    try:
        sums = read_list_sums(snapshot, table.storage)
    except IcekeepError as error:
        note, not_read = f"its manifest list is not read: {error.message}", _file_of(error, snapshot)
    changed = {status: files_changed(status, sums, summary) for status in (Status.ADDED, Status.DELETED)}
    if sums is not None and counts_files and not all(map(is_whole, changed.values())):
        try:
            changed = files_counted(sums.created, snapshot.snapshot_id, table.metadata, table.storage)
        except IcekeepError as error:
            note, not_read = f"a manifest of it is not read: {error.message}", _file_of(error, snapshot)
    return CommitRead(
        # Manifests are many, and from here on only their sums are needed.
        sums=None if sums is None else msgspec.structs.replace(sums, created=()),
        added=changed[Status.ADDED],
        removed=changed[Status.DELETED],
        after=totals_after(sums, summary),
        note=note,
        not_read=not_read,
    )


def _file_of(error: IcekeepError, snapshot: Snapshot) -> str:
    return str(error.facts.get("location", snapshot.manifest_list or f"a manifest of snapshot {snapshot.snapshot_id}"))


def commit_history(
    table: Table,
    *,
    ref: str | None = None,
    all_snapshots: bool = False,
    limit: int = 100,
    since: Moment | None = None,
) -> CommitHistoryResult:
    """What each commit did to files, bytes, deletes and metadata, the newest first.

    Counts of files and rows are those of manifest lists, and of manifests where a list has none; summaries give bytes and the
    kinds of deletes. What is not recorded anywhere, or is in a file that cannot be read, is `None`.

    Args:
        ref: the branch or tag whose commits are listed; `None`: `main`.
        all_snapshots: of all snapshots of the table, also those that no reference leads to.
        limit: at most this many commits.
        since: only commits that were made then or later.

    Raises:
        UsageError: `ref` and `all_snapshots` are both given, or the limit is less than 1.
        NotFoundError: there is no such branch or tag.

    Spec: "Snapshots", "Optional Snapshot Summary Fields", "Manifest Lists".
    """
    if all_snapshots and ref is not None:
        raise UsageError(f"the ref {ref!r} and all snapshots are asked for; give one of them")
    if limit < 1:
        raise UsageError(f"the limit is {limit}; give 1 or more")
    metadata = table.metadata
    shown_ref = None if all_snapshots else ref or MAIN
    since_ms = None if since is None else moment_ms(since, table.runtime.now_ms())
    commits = (c for c in chosen_commits(metadata, shown_ref) if since_ms is None or c.timestamp_ms >= since_ms)
    chosen = [*islice(commits, limit)]
    history = _History(table, chosen)
    entries = tuple(map(history.entry, chosen))
    return CommitHistoryResult(
        metadata_location=table.metadata_location,
        ref=shown_ref,
        commits=entries,
        growth=_growth(entries, shown_ref or MAIN),
        metadata_files_after_count=metadata_files_after(metadata, history.made_ms.values()),
        left_out_count=sum(1 for _ in commits),
        not_read=history.not_read,
    )


class _History:
    """What the metadata of a table says of its commits, and what was read of those that are chosen, and of their parents."""

    def __init__(self, table: Table, chosen: Iterable[Chosen]) -> None:
        self._metadata = table.metadata
        known = self._metadata.snapshots_by_id
        self.made_ms = {entry.snapshot_id: entry.timestamp_ms for entry in expired_commits(self._metadata)}
        self.made_ms |= {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in known.values()}
        self._files_between = metadata_files_between(self._metadata, self.made_ms.values())
        self._refs = refs_by_snapshot(self._metadata)
        self._read = read_commits(table, [commit for commit in chosen if isinstance(commit, Snapshot)])

    @property
    def not_read(self) -> tuple[str, ...]:
        """The files that could not be read, once each, the newest commit's first."""
        files = (read.not_read for read in self._read.values())
        return tuple(dict.fromkeys(file for file in files if file is not None))

    def entry(self, commit: Chosen) -> CommitEntry:
        """What is told of one commit."""
        if not isinstance(commit, Snapshot):
            return CommitEntry(snapshot_id=commit.snapshot_id, timestamp_ms=commit.timestamp_ms, is_expired=True)
        summary, read = commit.summary or {}, self._read[commit.snapshot_id]
        parent_ms = self.made_ms.get(commit.parent_snapshot_id) if commit.parent_snapshot_id is not None else None
        return CommitEntry(
            snapshot_id=commit.snapshot_id,
            parent_snapshot_id=commit.parent_snapshot_id,
            timestamp_ms=commit.timestamp_ms,
            since_previous_ms=None if parent_ms is None else commit.timestamp_ms - parent_ms,
            operation=commit.operation,
            made_by=made_by(summary),
            job=summary.get(JOB_KEY),
            refs=tuple(sorted(self._refs.get(commit.snapshot_id, ()))),
            added=read.added,
            removed=read.removed,
            after=read.after,
            manifests=self._manifests(commit, read.sums),
            metadata_files_between_count=self._files_between.get(commit.timestamp_ms),
            note=read.note,
        )

    def _manifests(self, commit: Snapshot, sums: ListSums | None) -> ManifestsAfter:
        if sums is None:
            return ManifestsAfter()
        before = 0
        if commit.parent_snapshot_id is not None:
            parent = self._read.get(commit.parent_snapshot_id)
            if parent is None or parent.sums is None:
                return sums.manifests
            before = parent.sums.manifests.manifests_count or 0
        # A commit that lists manifests of others than its parent replaced more than can be told.
        replaced = before - (sums.manifests.kept_count or 0)
        return msgspec.structs.replace(sums.manifests, replaced_count=replaced if replaced >= 0 else None)


def _growth(entries: Iterable[CommitEntry], ref: str) -> tuple[GrowthPoint, ...]:
    """The points of one line: other branches would make a plot jump to and fro."""
    line = [entry for entry in entries if ref in entry.refs]
    return tuple(
        GrowthPoint(
            timestamp_ms=entry.timestamp_ms,
            snapshot_id=entry.snapshot_id,
            data_files_count=entry.after.data_files_count,
            bytes=entry.after.bytes,
            delete_files_count=entry.after.delete_files_count,
            metadata_bytes=entry.manifests.metadata_bytes,
        )
        for entry in reversed(line)
    )


def growth_points(
    table: Table, *, ref: str = MAIN, most: int = 200, also: Collection[int] = ()
) -> tuple[GrowthPoint, ...]:
    """How large a table was after each commit of a branch or tag that it still has, the oldest first.

    Args:
        most: at most this many points, 2 or more; the first and the last commit are always among them.
        also: ids of snapshots whose points are wanted beside these, if the branch or tag has them.

    Raises:
        NotFoundError: there is no such branch or tag.
    """
    head = table.metadata.head(ref)
    line = [*table.metadata.ancestors(None if head is None else head.snapshot_id)][::-1]
    spread = {id(snapshot) for snapshot in evenly(line, most)}
    chosen = [snapshot for snapshot in line if id(snapshot) in spread or snapshot.snapshot_id in also]
    at_once = requests_at_once([table.metadata_location])
    return tuple(answer_each(lambda snapshot: _point(snapshot, table), chosen, id, at_once))


def evenly(line: Sequence[Snapshot], most: int) -> Sequence[Snapshot]:
    """Some of a line, as far from each other as can be, with both ends."""
    if len(line) <= most:
        return line
    last = len(line) - 1
    return [line[round(number * last / (most - 1))] for number in range(most)]


def _point(snapshot: Snapshot, table: Table) -> GrowthPoint:
    sums: ListSums | None = None
    # Nothing is known where it cannot be read: the plot has no point there, and `icekeep history` tells why.
    with suppress(IcekeepError):
        sums = read_list_sums(snapshot, table.storage)
    after = totals_after(sums, snapshot.summary or {})
    return GrowthPoint(
        timestamp_ms=snapshot.timestamp_ms,
        snapshot_id=snapshot.snapshot_id,
        data_files_count=after.data_files_count,
        bytes=after.bytes,
        delete_files_count=after.delete_files_count,
        metadata_bytes=None if sums is None else sums.manifests.metadata_bytes,
    )
