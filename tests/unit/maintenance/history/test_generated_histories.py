"""Over generated histories of a table's files: changes add up to totals, and totals are what entries and lists hold."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.maintenance.history import CommitHistoryResult, TableTotals, commit_history, total
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.snapshots import Snapshot
from kit.cases import cases
from kit.reclaim_histories import History, Steps, steps


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
def test_what_was_added_and_removed_along_a_line_is_what_the_entries_of_its_end_add_up_to(
    setting: int, drawn: Steps
) -> None:
    table = History(setting, drawn).table
    result = whole_history(table)
    told = {commit.snapshot_id: commit for commit in result.commits if not commit.is_expired}
    assert told.keys() == table.metadata.snapshots_by_id.keys()
    for commit in told.values():
        snapshot = table.metadata.snapshots_by_id[commit.snapshot_id]
        assert replace(commit.after, bytes=None) == counted(table, snapshot)
        line = [*table.metadata.ancestors(commit.snapshot_id)]
        if line[-1].parent_snapshot_id is not None:
            # The line is broken: what is older has expired.
            continue
        for name in ("data_files_count", "record_count", "delete_files_count", "position_deletes_count", "bytes"):
            sides = [
                (getattr(told[s.snapshot_id].added, name), getattr(told[s.snapshot_id].removed, name)) for s in line
            ]
            assert sum(added - removed for added, removed in sides) == getattr(commit.after, name), name


@cases(60, least=8)
@given(st.integers(0, 2**31), steps())
def test_manifests_are_created_kept_and_replaced_as_the_lists_name_them(setting: int, drawn: Steps) -> None:
    table = History(setting, drawn).table
    reader = ManifestReader(table.storage)
    paths = {s.snapshot_id: {m.manifest_path for m in reader.manifests(s)} for s in table.metadata.snapshots}
    for commit in whole_history(table).commits:
        if commit.is_expired or (commit.parent_snapshot_id is not None and commit.parent_snapshot_id not in paths):
            continue
        mine, before = paths[commit.snapshot_id], paths.get(commit.parent_snapshot_id or 0, set())
        told = commit.manifests
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
