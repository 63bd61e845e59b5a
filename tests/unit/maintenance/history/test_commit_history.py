"""What `commit_history` tells of commits of every kind, of generated histories too, and what it reads for that."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError, UsageError
from icekeep.health.values import MeteredStorage
from icekeep.maintenance.history import (
    CommitHistoryResult,
    TableTotals,
    commit_history,
    files_counted,
    growth_points,
    total,
)
from icekeep.spec.manifests.structs import FileContent, Status
from icekeep.spec.snapshots import Snapshot, SnapshotLogEntry
from icekeep.spec.updates import SetProperties
from kit.cases import cases
from kit.changes import Staged
from kit.deletes import add_deletes, deletion_vector, equality_deletes, position_deletes
from kit.manifests import SNAPSHOT_ID, UNPARTITIONED, added, write_manifest
from kit.reclaim_histories import History, Steps, steps
from kit.rewritten_manifests import without_counts
from kit.tables import (
    HOUR_MS,
    NOTHING,
    add,
    appends,
    changed,
    data_file,
    entries_of,
    files,
    history_ids,
    memory_table,
    raw_list,
    set_ref,
    swap,
    wait,
    with_summaries,
)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_appends_are_counted_with_the_table_size_after_them(version: int) -> None:
    table = appends(version)
    result = commit_history(table)
    assert [c.snapshot_id for c in result.commits] == [s.snapshot_id for s in reversed(table.metadata.snapshots)]
    newest, middle, oldest = result.commits
    assert changed(newest.added) == {"data_files_count": 3, "record_count": 30, "bytes": 300}
    assert asdict(newest.removed) == NOTHING
    assert (newest.after.data_files_count, newest.after.record_count, newest.after.bytes) == (6, 60, 600)
    assert (newest.after.delete_files_count, newest.after.position_deletes_count) == (0, 0)
    assert (newest.operation, newest.parent_snapshot_id, newest.since_previous_ms) == (
        "append",
        middle.snapshot_id,
        HOUR_MS,
    )
    assert (oldest.parent_snapshot_id, oldest.since_previous_ms) == (None, None)
    rows = raw_list(table)
    listed = sum(row["manifest_length"] for row in rows)
    list_bytes = len(table.storage.read(table.metadata.current_snapshot.manifest_list))
    manifests = newest.manifests
    assert (manifests.manifests_count, manifests.created_count, manifests.kept_count) == (3, 1, 2)
    assert manifests.replaced_count == 0
    assert (manifests.manifests_bytes, manifests.manifest_list_bytes) == (listed, list_bytes)
    assert manifests.metadata_bytes == listed + list_bytes
    mine = [row for row in rows if row["added_snapshot_id"] == newest.snapshot_id]
    assert manifests.created_bytes == sum(row["manifest_length"] for row in mine)
    assert [(p.data_files_count, p.bytes) for p in result.growth] == [(1, 100), (3, 300), (6, 600)]
    assert result.growth[-1].metadata_bytes == manifests.metadata_bytes
    assert (result.ref, result.left_out_count, result.not_read) == ("main", 0, ())


def test_a_merging_append_replaces_the_manifests_that_it_merges() -> None:
    table = appends(count=3)
    table = swap(
        table, SetProperties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    )
    commit(wait(table), AppendFiles(files=(entries_of(table)[0].data_file,)), runtime=table.runtime)
    manifests = commit_history(table.refresh()).commits[0].manifests
    assert (manifests.manifests_count, manifests.created_count) == (1, 1)
    assert (manifests.kept_count, manifests.replaced_count) == (0, 3)


def test_deletes_are_told_by_their_kinds() -> None:
    table = add_deletes(
        wait(appends(count=1)), position_deletes("p1", "1-0"), position_deletes("p2", "1-0"), named=("1-0",)
    )
    table = add_deletes(wait(table), equality_deletes("e1"), position_deletes("p3", "1-0"), named=("1-0",))
    both, positions, _ = commit_history(table).commits
    assert changed(positions.added) == {"position_delete_files_count": 2, "position_deletes_count": 2, "bytes": 20}
    kinds = (
        "position_delete_files_count",
        "equality_delete_files_count",
        "position_deletes_count",
        "equality_deletes_count",
    )
    assert changed(both.added) == {**dict.fromkeys(kinds, 1), "bytes": 20}
    assert both.added.delete_files_count == 2
    after = both.after
    assert (after.delete_files_count, after.position_deletes_count, after.equality_deletes_count) == (4, 3, 1)


@pytest.mark.parametrize("has_summary", [True, False])
def test_a_vector_in_place_of_another_is_added_and_removed(has_summary: bool) -> None:
    table = add_deletes(wait(appends(3, count=1)), deletion_vector("v1", "1-0"), named=("1-0",))
    old = tuple(e for e in entries_of(table) if e.data_file.content)
    delta = RowDelta(added_deletes=(deletion_vector("v2", "1-0"),), removed_deletes=old)
    table = commit(wait(table), delta, runtime=table.runtime).table
    newest = commit_history(table if has_summary else with_summaries(table)).commits[0]
    for side in (newest.added, newest.removed):
        # A summary of ours has the size of the Puffin file, the entries that of the vector in it.
        assert changed(side) == {
            "deletion_vectors_count": 1,
            "position_deletes_count": 1,
            "bytes": 10 if has_summary else 40,
        }
    assert newest.after.delete_files_count == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_summary_without_numbers(version: int) -> None:
    table = with_summaries(appends(version), "operation")
    newest = commit_history(table).commits[0]
    assert changed(newest.added) == {"data_files_count": 3, "record_count": 30, "bytes": 300}
    assert asdict(newest.removed) == NOTHING
    assert (newest.after.data_files_count, newest.after.record_count, newest.after.bytes) == (6, 60, None)
    assert (newest.after.delete_files_count, newest.after.position_deletes_count) == (0, 0)
    assert commit_history(table).growth[-1].bytes is None


def test_a_list_of_version_1_without_counts() -> None:
    table = without_counts(appends(1))
    newest = commit_history(table).commits[0]
    assert changed(newest.added) == {"data_files_count": 3, "record_count": 30, "bytes": 300}
    assert (newest.after.data_files_count, newest.after.record_count) == (6, 60)
    bare = commit_history(with_summaries(table)).commits[0]
    assert changed(bare.added) == {"data_files_count": 3, "record_count": 30, "bytes": 300}
    assert (bare.after.data_files_count, bare.after.record_count, bare.after.bytes) == (None, None, None)
    assert (bare.operation, bare.made_by) == (None, None)


def test_version_1_snapshot_with_inline_manifests_is_read() -> None:
    table = appends(1, count=2)
    paths = tuple(row["manifest_path"] for row in raw_list(table))
    old, new = table.metadata.snapshots
    new = replace(new, manifest_list=None, manifests=paths, summary=None)
    newest = commit_history(replace(table, metadata=replace(table.metadata, snapshots=(old, new)))).commits[0]
    assert changed(newest.added) == {"data_files_count": 2, "record_count": 20, "bytes": 200}
    assert (newest.after.data_files_count, newest.manifests.manifest_list_bytes) == (3, None)
    assert (newest.manifests.created_count, newest.manifests.kept_count) == (1, 1)


def test_inconsistent_summary_counts_are_not_trusted() -> None:
    table = add_deletes(wait(appends(count=1)), equality_deletes("e1"), equality_deletes("e2"))
    table = with_summaries(table, "operation", "added-files-size", "added-equality-deletes")
    assert changed(commit_history(table).commits[0].added) == {
        "equality_delete_files_count": 2,
        "equality_deletes_count": 2,
        "bytes": 20,
    }


def test_a_commit_that_lists_manifests_of_others() -> None:
    table = appends(count=3)
    first, second, third = table.metadata.snapshots
    third = replace(third, parent_snapshot_id=first.snapshot_id)
    table = replace(table, metadata=replace(table.metadata, snapshots=(first, second, third)))
    manifests = commit_history(table).commits[0].manifests
    assert (manifests.kept_count, manifests.replaced_count) == (2, None)


def test_entries_that_others_added_are_not_counted() -> None:
    """Engines copy manifests of others, and leave their entries as they are."""
    table, mine, theirs = memory_table(), data_file("mine"), data_file("theirs")
    location = f"{table.metadata.location}/metadata/m0.avro"
    data, row = write_manifest([added(theirs, snapshot_id=3), added(mine)], UNPARTITIONED, location=location)
    table.storage.create(location, data)
    counted = files_counted([row], SNAPSHOT_ID, table.metadata, table.storage)
    assert changed(counted[Status.ADDED]) == {"data_files_count": 1, "record_count": 10, "bytes": 100}
    assert asdict(counted[Status.DELETED]) == NOTHING


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


def test_expired_snapshot_in_the_log_is_listed_with_its_time() -> None:
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


def test_metadata_files_between_two_commits() -> None:
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
def test_a_list_that_cannot_be_read(way: str) -> None:
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


def test_a_manifest_that_cannot_be_read() -> None:
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


def test_growth_points_include_the_first_and_last_commit() -> None:
    table = appends(count=9)
    metered = MeteredStorage(table.storage)
    points = growth_points(replace(table, storage=metered), most=3)
    assert [point.data_files_count for point in points] == [1, 15, 45]
    assert metered.requests_count == 3


def test_commits_that_are_asked_for_are_among_them() -> None:
    table = appends(count=9)
    asked = [table.metadata.snapshots[1].snapshot_id, 77]
    assert [p.data_files_count for p in growth_points(table, most=3, also=asked)] == [1, 3, 15, 45]


def test_unreadable_list_gives_a_point_without_figures() -> None:
    table = appends(count=3)
    storage: Any = table.storage
    del storage.files[table.metadata.snapshots[1].manifest_list]
    first, second, third = growth_points(table)
    assert (second.data_files_count, second.bytes, second.metadata_bytes) == (None, None, None)
    assert (first.data_files_count, third.data_files_count) == (1, 6)


def counted(table: Table, snapshot: Snapshot) -> TableTotals:
    """What the live entries of a snapshot add up to."""
    reader = ManifestReader(table.storage)
    counts: Counter[str] = Counter()
    for manifest in reader.manifests(snapshot):
        for entry in reader.entries(manifest, table.metadata):
            if entry.is_live:
                file = entry.data_file
                counts[f"{file.content.name} files"] += 1
                counts[f"{file.content.name} rows"] += file.record_count
    positions, equalities = FileContent.POSITION_DELETES.name, FileContent.EQUALITY_DELETES.name
    return TableTotals(
        data_files_count=counts["DATA files"],
        record_count=counts["DATA rows"],
        delete_files_count=counts[f"{positions} files"] + counts[f"{equalities} files"],
        position_deletes_count=counts[f"{positions} rows"],
        equality_deletes_count=counts[f"{equalities} rows"],
    )


def whole_history(table: Table) -> CommitHistoryResult:
    return commit_history(table, all_snapshots=True, limit=1_000)


def without_numbers(table: Table) -> Table:
    snapshots = tuple(replace(s, summary={"operation": s.operation or ""}) for s in table.metadata.snapshots)
    return replace(table, metadata=replace(table.metadata, snapshots=snapshots))


@cases(60, least=8)
@given(st.integers(0, 2**31), steps())
def test_commits_of_a_line_add_up(setting: int, drawn: Steps) -> None:
    table = History(setting, drawn).table
    result = whole_history(table)
    told = {commit.snapshot_id: commit for commit in result.commits if not commit.is_expired}
    assert told.keys() == table.metadata.snapshots_by_id.keys()
    for one in told.values():
        snapshot = table.metadata.snapshots_by_id[one.snapshot_id]
        assert replace(one.after, bytes=None) == counted(table, snapshot)
        line = [*table.metadata.ancestors(one.snapshot_id)]
        if line[-1].parent_snapshot_id is not None:
            # The line is broken: what is older has expired.
            continue
        for name in ("data_files_count", "record_count", "delete_files_count", "position_deletes_count", "bytes"):
            sides = [
                (getattr(told[s.snapshot_id].added, name), getattr(told[s.snapshot_id].removed, name)) for s in line
            ]
            assert sum(added - removed for added, removed in sides) == getattr(one.after, name), name


@cases(60, least=8)
@given(st.integers(0, 2**31), steps())
def test_manifests_are_counted_as_created_kept_or_replaced(setting: int, drawn: Steps) -> None:
    table = History(setting, drawn).table
    reader = ManifestReader(table.storage)
    paths = {s.snapshot_id: {m.manifest_path for m in reader.manifests(s)} for s in table.metadata.snapshots}
    for one in whole_history(table).commits:
        if one.is_expired or (one.parent_snapshot_id is not None and one.parent_snapshot_id not in paths):
            continue
        mine, before = paths[one.snapshot_id], paths.get(one.parent_snapshot_id or 0, set())
        told = one.manifests
        assert (told.created_count, told.kept_count) == (len(mine - before), len(mine & before))
        assert told.replaced_count == len(before - mine)


@cases(60, least=8)
@given(st.integers(0, 2**31), steps())
def test_entries_tell_what_summaries_tell(setting: int, drawn: Steps) -> None:
    table = History(setting, drawn).table
    for by_summary, by_entries in zip(
        whole_history(table).commits, whole_history(without_numbers(table)).commits, strict=True
    ):
        for side in ("added", "removed"):
            told, read = (asdict(getattr(commit, side)) for commit in (by_summary, by_entries))
            # Of vectors a summary has the size of their file, which others may share.
            unlike = {"bytes"} if told["deletion_vectors_count"] else set()
            assert {k: v for k, v in told.items() if k not in unlike} == {
                k: v for k, v in read.items() if k not in unlike
            }
            assert total([*read.values()]) is not None or by_entries.is_expired
