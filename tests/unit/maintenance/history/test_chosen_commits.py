"""Which commits are told of, what is read for them, and what is told where something cannot be read."""

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError, UsageError
from icekeep.maintenance.history import commit_history
from icekeep.spec.snapshots import SnapshotLogEntry
from icekeep.spec.updates import SetProperties
from kit.changes import Staged
from kit.tables import (
    HOUR_MS,
    add,
    appends,
    files,
    history_ids,
    memory_table,
    raw_list,
    set_ref,
    swap,
    wait,
    with_summaries,
)


def test_who_made_a_commit_and_the_job_of_ours_are_told() -> None:
    table = appends(count=4)
    summaries = (
        {},
        {"engine-name": "spark", "engine-version": "3.5.1"},
        {"icekeep.job": "compact"},
        {"trino_query_id": "q1"},
    )
    snapshots = zip(table.metadata.snapshots, summaries, strict=True)
    made = tuple(replace(snapshot, summary={"operation": "append", **summary}) for snapshot, summary in snapshots)
    table = replace(table, metadata=replace(table.metadata, snapshots=made))
    told = [((c.made_by or "").lower(), c.job) for c in commit_history(table).commits]
    assert told == [("trino, query q1", None), ("icekeep", "compact"), ("spark 3.5.1", None), ("", None)]


def test_branches_are_told_by_themselves_or_all_together() -> None:
    table = appends(count=2)
    first, second = (s.snapshot_id for s in table.metadata.snapshots)
    table = set_ref(set_ref(wait(table), "audit", first, "branch"), "v1", second)
    table = add(wait(table), "on-audit", branch="audit")
    audit = table.metadata.refs["audit"].snapshot_id
    commit(wait(table), Staged(AppendFiles(files=files("staged"))), runtime=table.runtime)
    staged = table.refresh()
    assert history_ids(staged) == history_ids(staged, ref="v1") == [second, first]
    assert history_ids(staged, ref="audit") == [audit, first]
    result = commit_history(staged, all_snapshots=True)
    assert result.ref is None
    [staged_id] = {s.snapshot_id for s in staged.metadata.snapshots} - {first, second, audit}
    assert [(c.snapshot_id, c.refs) for c in result.commits] == [
        (staged_id, ()),
        (audit, ("audit",)),
        (second, ("main", "v1")),
        (first, ("audit", "main", "v1")),
    ]
    assert [point.snapshot_id for point in result.growth] == [first, second]
    assert [point.snapshot_id for point in commit_history(staged, ref="audit").growth] == [first, audit]


def test_an_expired_snapshot_that_the_log_still_has_is_a_line_with_its_time() -> None:
    table = appends(count=3)
    table = set_ref(table, "v1", table.metadata.snapshots[0].snapshot_id)
    log, [first, second, third] = table.metadata.snapshot_log, table.metadata.snapshots
    # It was current twice: what counts is when it was made.
    log = (*log, SnapshotLogEntry(timestamp_ms=log[-1].timestamp_ms + 1, snapshot_id=second.snapshot_id))
    table = replace(table, metadata=replace(table.metadata, snapshots=(first, third), snapshot_log=log))
    result = commit_history(table, all_snapshots=True)
    assert [(c.snapshot_id, c.is_expired) for c in result.commits] == [
        (third.snapshot_id, False),
        (second.snapshot_id, True),
        (first.snapshot_id, False),
    ]
    newest, expired, _ = result.commits
    assert expired.timestamp_ms == second.timestamp_ms
    assert set(asdict(expired.added).values()) == {None}
    assert (newest.since_previous_ms, newest.manifests.replaced_count) == (HOUR_MS, None)
    assert history_ids(table) == [third.snapshot_id, second.snapshot_id]
    assert [point.snapshot_id for point in result.growth] == [third.snapshot_id]
    assert history_ids(table, ref="v1") == [first.snapshot_id]


class Counting:
    """A storage that remembers what is read."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.locations: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        self.locations.append(location)
        data: bytes = self._storage.read(location, length_bytes)
        return data


def test_no_more_is_read_than_is_shown_and_the_list_of_a_parent() -> None:
    table = appends(count=6)
    storage = Counting(table.storage)
    result = commit_history(replace(table, storage=storage), limit=2)
    assert [c.snapshot_id for c in result.commits] == [s.snapshot_id for s in table.metadata.snapshots[:-3:-1]]
    lists = [s.manifest_list for s in table.metadata.snapshots[-3:]]
    assert sorted(storage.locations) == sorted(lists)
    assert result.left_out_count == 4
    assert [c.manifests.replaced_count for c in result.commits] == [0, 0]
    # Without numbers in summaries the manifests are read that the commits wrote, and none that their parent did.
    storage.locations.clear()
    commit_history(replace(with_summaries(table), storage=storage), limit=2)
    shown = {s.snapshot_id for s in table.metadata.snapshots[-2:]}
    written = [row["manifest_path"] for row in raw_list(table) if row["added_snapshot_id"] in shown]
    assert sorted(storage.locations) == sorted([*lists, *written])
    assert len(written) == 2


def test_commits_since_a_moment_are_those_of_it_and_later() -> None:
    table = appends(count=4)
    third = table.metadata.snapshots[2]
    table.catalog.runtime.pass_ms(HOUR_MS // 2)
    assert len(history_ids(table, since=third.timestamp_ms)) == len(history_ids(table, since="2h")) == 2
    assert len(history_ids(table, since=third.timestamp_ms + 1)) == 1
    assert len(history_ids(table, since="30d", limit=3)) == 3


def test_metadata_files_between_two_commits_are_counted_as_far_as_the_log_reaches() -> None:
    table = appends(count=2)
    for _ in range(2):
        table = swap(wait(table), SetProperties({"a": str(table.metadata.last_updated_ms)}))
    table = add(wait(table), "late")
    table = swap(wait(table), SetProperties({"b": "1"}))
    result = commit_history(table)
    assert [c.metadata_files_between_count for c in result.commits] == [2, 0, None]
    assert result.metadata_files_after_count == 1
    short = replace(table.metadata, metadata_log=table.metadata.metadata_log[-2:])
    short_history = commit_history(replace(table, metadata=short))
    assert [c.metadata_files_between_count for c in short_history.commits] == [None] * 3
    assert short_history.metadata_files_after_count == 1


@pytest.mark.parametrize("way", ["gone", "spoilt"])
def test_a_list_that_cannot_be_read_leaves_its_commit_without_numbers_and_ends_nothing(way: str) -> None:
    table = appends(count=3)
    middle = table.metadata.snapshots[1]
    stored = table.storage.files
    [key] = [key for key in stored if key.endswith(middle.manifest_list.rpartition("/")[2])]
    stored.pop(key)
    if way == "spoilt":
        stored[key] = (b"Obj", 0)
    result = commit_history(table)
    newest, unread, oldest = result.commits
    assert result.not_read == (middle.manifest_list,)
    assert middle.manifest_list in unread.note
    assert "\n" not in unread.note
    assert (unread.added.data_files_count, unread.after.data_files_count, unread.manifests.manifests_count) == (
        None,
    ) * 3
    # Of the summary, which is in the table's metadata.
    assert (unread.added.bytes, unread.added.record_count, unread.operation) == (200, 20, "append")
    assert (newest.note, oldest.note) == (None, None)
    assert (newest.after.data_files_count, newest.manifests.replaced_count, oldest.added.data_files_count) == (
        6,
        None,
        1,
    )


def test_a_manifest_that_cannot_be_read_leaves_unknown_what_only_it_would_tell() -> None:
    table = with_summaries(appends(count=2))
    [path] = [
        r["manifest_path"] for r in raw_list(table) if r["added_snapshot_id"] == table.metadata.current_snapshot_id
    ]
    table.storage.delete_many([path])
    result = commit_history(table)
    newest = result.commits[0]
    assert result.not_read == (path,)
    assert (newest.added.data_files_count, newest.added.record_count, newest.added.bytes) == (2, 20, None)
    assert newest.after.data_files_count == 3
    assert path in newest.note


def test_a_table_without_commits_has_no_history() -> None:
    result = commit_history(memory_table())
    assert (result.commits, result.growth, result.metadata_files_after_count) == ((), (), None)
    assert commit_history(memory_table(), all_snapshots=True).commits == ()


def test_what_cannot_be_asked_for_is_refused() -> None:
    table = appends(count=1)
    with pytest.raises(NotFoundError, match="no branch or tag 'dev'"):
        commit_history(table, ref="dev")
    with pytest.raises(UsageError, match="give one of them"):
        commit_history(table, ref="main", all_snapshots=True)
    with pytest.raises(UsageError, match="limit is 0"):
        commit_history(table, limit=0)


@pytest.mark.parametrize("version", [1, 2])
def test_of_two_commits_of_one_moment_the_child_is_told_first(version: int) -> None:
    table = add(add(memory_table(format_version=version), "a"), "b")
    assert (
        history_ids(table, all_snapshots=True)
        == history_ids(table)
        == [s.snapshot_id for s in reversed(table.metadata.snapshots)]
    )
