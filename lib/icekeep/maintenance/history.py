"""The command `history`: what each commit did to files, bytes, deletes and metadata, and how the table grew.

Where a number comes from:

manifest list       counts of files and rows, where it has them
summary             bytes, and how delete files and deletes are shared among their kinds, where these add up to the list's
entries             all of that, of the manifests that the commit wrote, where list and summary together leave something open

Nothing is written, and no Spark is started. A list may have a hundred thousand rows: several are read at a time, since stores
are slow to answer, one at a time is decoded, and only sums are kept. No more lists are read than are shown, and those of their
parents. A file that cannot be read leaves its commit without numbers, and ends nothing.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import merge
from itertools import islice
from threading import Lock
from typing import TypeAlias, TypeVar

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

T = TypeVar("T")

Commit: TypeAlias = Snapshot | SnapshotLogEntry
"""A snapshot, or what the snapshot log has of one that is gone."""

_DECODING = Lock()

_MAX_DIGITS = 19
"""No table can have numbers with more digits."""


def chosen_commits(metadata: TableMetadata, ref: str | None) -> Iterator[Commit]:
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
    """A sum; not known where one of its terms is not."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


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


def _sums(rows: Sequence[ManifestFile], snapshot_id: int, list_bytes: int | None) -> ListSums:
    created = tuple(row for row in rows if row.added_snapshot_id == snapshot_id)
    manifests_bytes = sum(row.manifest_length for row in rows)
    data = [row for row in rows if row.content is ManifestContent.DATA]
    return ListSums(
        manifests=ManifestsAfter(
            manifests_count=len(rows),
            manifests_bytes=manifests_bytes,
            manifest_list_bytes=list_bytes,
            metadata_bytes=manifests_bytes + (list_bytes or 0),
            created_count=len(created),
            created_bytes=sum(row.manifest_length for row in created),
            kept_count=len(rows) - len(created),
        ),
        live=TableTotals(
            data_files_count=total([row.live_files_count for row in data]),
            record_count=total([count for row in data for count in (row.added_rows_count, row.existing_rows_count)]),
            delete_files_count=total([row.live_files_count for row in rows if row.content is ManifestContent.DELETES]),
        ),
        created=created,
    )


def metadata_files_between(metadata: TableMetadata, made_ms: Iterable[int]) -> tuple[Mapping[int, int], int | None]:
    """How many metadata files belong to no snapshot: commits that made none, and such whose snapshots are gone.

    The metadata log says when each of the last metadata files was written. That of a commit is the first that is no older than
    its snapshot, since an engine makes the snapshot before the file; two snapshots of one commit have the same file.

    Args:
        made_ms: when each commit that is known of was made, on whatever branch.

    Returns:
        For moments of commits, those that the log reaches: those between the one before and it. And those since the newest;
        `None` where the log does not reach back, or there is none.
    """
    written_ms = sorted([*(entry.timestamp_ms for entry in metadata.metadata_log), metadata.last_updated_ms])
    moments = sorted({*made_ms})
    places = [bisect_left(written_ms, moment) for moment in moments]
    between = {
        moment: max(0, place - earlier - 1)
        for earlier_ms, earlier, moment, place in zip(moments, places, moments[1:], places[1:], strict=False)
        if earlier_ms >= written_ms[0]
    }
    is_logged = bool(moments) and moments[-1] >= written_ms[0]
    return between, max(0, len(written_ms) - places[-1] - 1) if is_logged else None


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
    delete_files = _number(summary, "total-delete-files", live.delete_files_count)
    data_files = _number(summary, "total-data-files", live.data_files_count)
    of_deletes = 0 if delete_files == 0 else None
    return TableTotals(
        data_files_count=data_files,
        record_count=_number(summary, "total-records", live.record_count),
        delete_files_count=delete_files,
        position_deletes_count=_number(summary, "total-position-deletes", of_deletes),
        equality_deletes_count=_number(summary, "total-equality-deletes", of_deletes),
        bytes=_number(summary, "total-files-size", 0 if data_files == delete_files == 0 else None),
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


def _number(summary: Mapping[str, str], key: str, known: int | None = None) -> int | None:
    """A number of a summary, unless it is known otherwise."""
    text = summary.get(key, "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if known is None and is_number else known


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
    reads = _each(lambda snapshot: _read(snapshot, table, counts_files=snapshot.snapshot_id in ids), snapshots, table)
    return {snapshot.snapshot_id: read for snapshot, read in zip(snapshots, reads, strict=True)}


def _each(act: Callable[[Snapshot], T], snapshots: Sequence[Snapshot], table: Table) -> list[T]:
    return answer_each(act, snapshots, id, requests_at_once([table.metadata_location]))


def _read(snapshot: Snapshot, table: Table, *, counts_files: bool) -> CommitRead:
    summary = snapshot.summary or {}
    sums, note, not_read = None, None, None
    try:
        sums = read_list_sums(snapshot, table.storage)
    except IcekeepError as error:
        note, not_read = f"its manifest list is not read: {error.message}", _file_of(error, snapshot)
    changed = {status: files_changed(status, sums, summary) for status in (Status.ADDED, Status.DELETED)}
    if sums is not None and counts_files and any(None in msgspec.structs.astuple(one) for one in changed.values()):
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
    # The points of one line: other branches would make a plot jump to and fro.
    line = [entry for entry in reversed(entries) if (shown_ref or MAIN) in entry.refs]
    return CommitHistoryResult(
        metadata_location=table.metadata_location,
        ref=shown_ref,
        commits=entries,
        growth=tuple(_point(one, one.after, one.manifests) for one in line),
        metadata_files_after_count=history.files_after_count,
        left_out_count=sum(1 for _ in commits),
        not_read=history.not_read,
    )


class _History:
    """What the metadata of a table says of its commits, and what was read of those that are chosen, and of their parents."""

    def __init__(self, table: Table, chosen: Iterable[Commit]) -> None:
        self._metadata = table.metadata
        known = self._metadata.snapshots_by_id
        self._made_ms = {entry.snapshot_id: entry.timestamp_ms for entry in expired_commits(self._metadata)}
        self._made_ms |= {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in known.values()}
        found = metadata_files_between(self._metadata, self._made_ms.values())
        self._files_between, self.files_after_count = found
        self._refs = refs_by_snapshot(self._metadata)
        self._read = read_commits(table, [commit for commit in chosen if isinstance(commit, Snapshot)])

    @property
    def not_read(self) -> tuple[str, ...]:
        """The files that could not be read, once each, the newest commit's first."""
        files = (read.not_read for read in self._read.values())
        return tuple(dict.fromkeys(file for file in files if file is not None))

    def entry(self, commit: Commit) -> CommitEntry:
        if not isinstance(commit, Snapshot):
            return CommitEntry(snapshot_id=commit.snapshot_id, timestamp_ms=commit.timestamp_ms, is_expired=True)
        summary, read = commit.summary or {}, self._read[commit.snapshot_id]
        parent_ms = self._made_ms.get(commit.parent_snapshot_id) if commit.parent_snapshot_id is not None else None
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
        # A commit that lists manifests of others than its parent replaced more than is known.
        replaced = before - (sums.manifests.kept_count or 0)
        return msgspec.structs.replace(sums.manifests, replaced_count=replaced if replaced >= 0 else None)


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
    spread = {*range(len(line))}
    if len(line) > most:
        spread = {round(number * (len(line) - 1) / (most - 1)) for number in range(most)}
    chosen = [one for place, one in enumerate(line) if place in spread or one.snapshot_id in also]
    return tuple(_each(lambda snapshot: _read_point(snapshot, table), chosen, table))


def _read_point(snapshot: Snapshot, table: Table) -> GrowthPoint:
    sums: ListSums | None = None
    # Nothing is known where it cannot be read: the plot has no point there, and `icekeep history` tells why.
    with suppress(IcekeepError):
        sums = read_list_sums(snapshot, table.storage)
    after = totals_after(sums, snapshot.summary or {})
    return _point(snapshot, after, ManifestsAfter() if sums is None else sums.manifests)


def _point(commit: Snapshot | CommitEntry, after: TableTotals, manifests: ManifestsAfter) -> GrowthPoint:
    return GrowthPoint(
        timestamp_ms=commit.timestamp_ms,
        snapshot_id=commit.snapshot_id,
        data_files_count=after.data_files_count,
        bytes=after.bytes,
        delete_files_count=after.delete_files_count,
        metadata_bytes=manifests.metadata_bytes,
    )
