"""The command `history`: commits chosen -> their manifest lists read in threads -> a row each, and the points of a plot.

Nothing is written, and no Spark is started: of each list only sums are kept, and no more lists are read than are shown, and
those of their parents.
"""

from collections.abc import Iterable
from itertools import islice

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.summary import made_by
from icekeep.errors import UsageError
from icekeep.maintenance.commit_history.chosen import Chosen, chosen_commits, expired_commits, refs_by_snapshot
from icekeep.maintenance.commit_history.lists import ListSums
from icekeep.maintenance.commit_history.metadata_files import metadata_files_after, metadata_files_between
from icekeep.maintenance.commit_history.reading import read_commits
from icekeep.maintenance.commit_history.result import CommitEntry, CommitHistoryResult, GrowthPoint, ManifestsAfter
from icekeep.spec.snapshots import MAIN, Snapshot
from icekeep.spec.times import Moment, moment_ms

__all__ = ["commit_history"]

_JOB = "icekeep.job"


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
            job=summary.get(_JOB),
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
