"""Staged snapshots are published once, beside whatever others commit, or refused in one line."""

import msgspec
import pytest

from icekeep.commit.changes.files import AppendFiles, CherryPick, OverwriteFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.changes.snapshots import SetCurrentSnapshot
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import InvalidTableError, NotFoundError, SafetyError, UsageError
from icekeep.spec.manifests.structs import FileContent, ManifestContent, ManifestEntry, Status
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.updates import AddSnapshot, AssertRefSnapshotId, RemoveSnapshots, apply_updates
from kit.changes import Applying, run
from kit.memory_catalog import (
    CONFLICTS,
    LANDS_BUT_IS_UNKNOWN,
    LANDS_BUT_SAYS_CONFLICT,
    after,
)
from kit.tables import (
    BY_KIND,
    EVENTS,
    add,
    data_file,
    entries_of,
    files,
    live,
    memory_table,
    orphans,
    raw,
    raw_list,
    set_ref,
    swap,
)


class Staged(msgspec.Struct, frozen=True):
    """Another change, whose snapshot is added but published nowhere, perhaps under another operation's name."""

    change: object
    operation: str | None = None

    def apply(self, base, attempt):
        (added,) = (update for update in self.change.apply(base, attempt) if isinstance(update, AddSnapshot))
        operation = self.operation or added.snapshot.operation
        summary = {**added.snapshot.summary, "operation": operation}
        return (AddSnapshot(msgspec.structs.replace(added.snapshot, summary=summary)),)


class AddDeletes(msgspec.Struct, frozen=True):
    """Adds a position delete file for one data file."""

    name: str
    partition: tuple[object, ...] = ()

    def apply(self, base, attempt):
        path = data_file(self.name).file_path
        file = data_file(f"deletes-of-{self.name}", 1, self.partition)
        deletes = msgspec.structs.replace(file, content=FileContent.POSITION_DELETES, referenced_data_file=path)
        entry = ManifestEntry(status=Status.ADDED, data_file=deletes)
        manifests = attempt.write_manifests("deletes", [entry], 0, ManifestContent.DELETES)
        summary = SummaryBuilder()
        summary.add(deletes)
        kept = attempt.reader.manifests(base.head())
        return attempt.snapshot_updates("delete", [*manifests, *kept], summary)


def staged(table, *added, wap_id=None, summary=None):
    """The table with a staged append, and its snapshot."""
    extra = {**({"wap.id": wap_id} if wap_id else {}), **(summary or {})}
    change = AppendFiles(files=tuple(data_file(f) if isinstance(f, str) else f for f in added), summary=extra)
    return stage(table, change)


class AppendMerged(msgspec.Struct, frozen=True):
    """An append in one manifest with what was there before, each entry under the snapshot that added it."""

    name: str

    def apply(self, base, attempt):
        known = [
            msgspec.structs.replace(entry, status=Status.ADDED)
            for manifest in attempt.reader.manifests(base.head())
            for entry in attempt.reader.entries(manifest, base)
        ]
        new = ManifestEntry(status=Status.ADDED, data_file=data_file(self.name))
        manifests = attempt.write_manifests("merged", [new, *known], 0)
        return attempt.snapshot_updates("append", manifests, SummaryBuilder())


def stage(table, change, operation=None):
    result = run(table, Staged(change, operation))
    return result.table, result.table.metadata.snapshot(result.snapshot_id)


def replaced(table, removed, added, **summary):
    """A staged overwrite of whole partitions, as a dynamic overwrite makes it."""
    change = OverwriteFiles(
        removed=entries_of(table, *removed) if removed else (),
        added=added,
        starting_snapshot_id=table.metadata.current_snapshot_id,
        summary={"replace-partitions": "true", **summary},
    )
    return stage(table, change, "overwrite")


@pytest.fixture(params=[1, 2, 3])
def table(catalog, request):
    return add(memory_table(catalog, format_version=request.param), "a")


@pytest.fixture
def by_kind(catalog):
    """Files of two partitions."""
    return add(
        memory_table(catalog, spec=BY_KIND), data_file("x1", partition=("x",)), data_file("y1", partition=("y",))
    )


def test_staged_child_of_current_is_fast_forwarded(catalog, table):
    """A staged snapshot whose parent is current becomes current itself, without a new snapshot."""
    parent = table.metadata.current_snapshot_id
    table, picked = staged(table, "b", wap_id="w1")
    assert live(table) == {"a": 1}
    result = run(table, CherryPick(picked.snapshot_id))
    assert result.table.metadata.current_snapshot_id == picked.snapshot_id
    assert result.snapshot_id is None
    assert len(result.table.metadata.snapshots) == 2
    assert live(result.table) == {"a": 1, "b": 1}
    assert AssertRefSnapshotId("main", parent) in catalog.swaps[-1][0]
    assert orphans(catalog) == set()


def test_the_first_snapshot_of_a_table_can_be_a_staged_one(catalog):
    table, picked = staged(memory_table(catalog), "a")
    assert table.metadata.current_snapshot_id is None
    assert live(run(table, CherryPick(picked.snapshot_id)).table) == {"a": 1}


def test_any_kind_of_snapshot_next_to_main_is_published(table):
    rewrite = RewriteFiles(removed=entries_of(table), added=files("a2"), schema_id=0)
    table, picked = stage(table, rewrite)
    assert live(run(table, CherryPick(picked.snapshot_id)).table) == {"a2": 1}


def test_pick_after_main_moved_makes_new_snapshot(catalog, table):
    """An append whose parent is no longer current is applied again, with its source and WAP ids in the summary."""
    table, picked = staged(table, "b", "c", wap_id="w1")
    table = add(table, "d")
    before = table.metadata
    result = run(table, CherryPick(picked.snapshot_id))
    new = result.table.metadata.current_snapshot
    assert live(result.table) == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert (new.snapshot_id, new.parent_snapshot_id) == (result.snapshot_id, before.current_snapshot_id)
    assert new.sequence_number == before.next_sequence_number
    summary = {k: new.summary.get(k) for k in ("operation", "source-snapshot-id", "published-wap-id", "wap.id")}
    assert summary == {
        "operation": "append",
        "source-snapshot-id": str(picked.snapshot_id),
        "published-wap-id": "w1",
        "wap.id": None,
    }
    counts = {k: new.summary[k] for k in ("added-data-files", "added-records", "total-data-files", "total-records")}
    assert counts == {"added-data-files": "2", "added-records": "20", "total-data-files": "4", "total-records": "40"}
    assert orphans(catalog) == set()


def test_the_files_of_a_picked_append_are_as_new_as_the_pick(table):
    table, picked = staged(table, "b")
    table = add(table, "d")
    result = run(table, CherryPick(picked.snapshot_id))
    (entry,) = entries_of(result.table, "b")
    number = result.table.metadata.current_snapshot.sequence_number
    assert (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)[1:] == (number, number)
    assert entry.snapshot_id == result.snapshot_id


def test_rows_of_a_picked_append_are_numbered_anew(catalog):
    table = add(memory_table(catalog, format_version=3), "a")
    table, picked = staged(table, "b")
    assert picked.first_row_id == 10
    table = add(table, "d")
    result = run(table, CherryPick(picked.snapshot_id))
    first_ids = {e.data_file.file_path[-1]: e.data_file.first_row_id for e in entries_of(result.table)}
    assert first_ids == {"a": 0, "d": 20, "b": 30}
    assert result.table.metadata.next_row_id == 40


def test_pick_adds_only_files_of_that_snapshot(table):
    table = set_ref(table, "audit", table.metadata.current_snapshot_id, "branch")
    table = add(add(add(table, "first", branch="audit"), "second", branch="audit"), "main")
    picked = table.metadata.refs["audit"].snapshot_id
    assert live(run(table, CherryPick(picked)).table) == {"a": 1, "main": 1, "second": 1}


def test_pick_skips_files_merged_into_its_manifest(table):
    """Existing entries that an append merged into its manifest are not added again."""
    table, picked = stage(table, AppendMerged("b"))
    table = add(table, "c")
    assert live(run(table, CherryPick(picked.snapshot_id)).table) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("summary", [{}, {"wap.id": ""}])
def test_a_snapshot_without_a_wap_id_is_published_without_one(table, summary):
    table = add(table, "c")
    for name in ("b1", "b2"):
        table, picked = staged(table, name, summary=summary)
        result = run(add(table, f"after-{name}"), CherryPick(picked.snapshot_id))
        new = result.table.metadata.current_snapshot.summary
        assert ("published-wap-id" in new, new["source-snapshot-id"]) == (False, str(picked.snapshot_id))
        table = result.table


def test_picking_ancestor_of_main_is_a_noop(table):
    first = table.metadata.current_snapshot_id
    table = add(table, "b")
    for snapshot_id in (first, table.metadata.current_snapshot_id):
        assert not run(table, CherryPick(snapshot_id)).changed


def test_a_snapshot_is_never_picked_twice_peers_10(table):
    table, picked = staged(table, "b")
    once = run(add(table, "c"), CherryPick(picked.snapshot_id))
    later = add(once.table, "d")
    with pytest.raises(UsageError, match=f"was cherry-picked already, as snapshot {once.snapshot_id}"):
        run(later, CherryPick(picked.snapshot_id))
    assert live(later.catalog.load(EVENTS))["b"] == 1


def test_a_wap_id_is_published_once_whichever_snapshot_has_it(table):
    table, first = staged(table, "b", wap_id="w1")
    table, second = staged(table, "b2", wap_id="w1")
    table, third = staged(table, "b3", wap_id="w2")
    # By being current itself, and by being made again.
    table = run(table, CherryPick(first.snapshot_id)).table
    table = run(table, CherryPick(third.snapshot_id)).table
    for again, wap_id in ((second, "w1"), (staged(add(table, "c"), "b4", wap_id="w2")[1], "w2")):
        with pytest.raises(UsageError, match=f"its wap.id '{wap_id}' was published already, by snapshot"):
            run(table, CherryPick(again.snapshot_id))


def test_fast_forward_refuses_published_wap_id(table):
    """A WAP id is published once, also where the staged snapshot is a child of the current one."""
    table, first = staged(table, "b", wap_id="w1")
    table = run(table, CherryPick(first.snapshot_id)).table
    table, second = staged(table, "b2", wap_id="w1")
    assert second.parent_snapshot_id == table.metadata.current_snapshot_id
    with pytest.raises(UsageError, match="published already"):
        run(table, CherryPick(second.snapshot_id))


def test_what_was_rolled_back_may_be_picked_again(table):
    before = table.metadata.current_snapshot_id
    table, picked = staged(table, "b", wap_id="w1")
    table = run(add(table, "c"), CherryPick(picked.snapshot_id)).table
    back = SetCurrentSnapshot(snapshot_id=before, expected_id=table.metadata.current_snapshot_id)
    table = add(run(table, back).table, "d")
    assert live(run(table, CherryPick(picked.snapshot_id)).table) == {"a": 1, "d": 1, "b": 1}


def test_a_snapshot_that_is_not_there_is_not_found(table):
    with pytest.raises(NotFoundError, match="no snapshot 99"):
        run(table, CherryPick(99))


def test_pick_of_rewrite_is_refused_once_main_moved(table):
    rewrite = RewriteFiles(removed=entries_of(table), added=files("a2"), schema_id=0)
    table, picked = stage(table, rewrite)
    table = add(table, "b")
    with pytest.raises(UsageError, match="it is neither an append nor a dynamic overwrite, and its parent"):
        run(table, CherryPick(picked.snapshot_id))


def test_pick_of_plain_overwrite_is_refused_once_main_moved(table):
    """Only an overwrite with replace-partitions set may be applied again on another parent."""
    for value in (None, "false"):
        summary = {} if value is None else {"replace-partitions": value}
        change = OverwriteFiles(
            removed=entries_of(table, "a"),
            added=files("a2"),
            starting_snapshot_id=table.metadata.current_snapshot_id,
            summary=summary,
        )
        _, picked = stage(table, change)
        table = add(table, f"b{value}")
        with pytest.raises(UsageError, match="neither an append nor a dynamic overwrite"):
            run(table, CherryPick(picked.snapshot_id))


def test_pick_with_delete_files_is_refused_once_main_moved(catalog):
    """An append cannot be applied again without the delete files that came with it."""
    table = add(memory_table(catalog), "a")
    table, picked = stage(table, AddDeletes("a"), "append")
    table = add(table, "b")
    with pytest.raises(UsageError, match="it adds delete files, and its parent"):
        run(table, CherryPick(picked.snapshot_id))


def test_pick_of_dynamic_overwrite_is_reapplied(catalog, by_kind):
    """An overwrite of whole partitions is applied again while nobody has touched those partitions."""
    table, picked = replaced(by_kind, ["x1"], (data_file("x2", 7, partition=("x",)),), **{"wap.id": "w1"})
    table = add(table, data_file("y2", partition=("y",)))
    result = run(table, CherryPick(picked.snapshot_id))
    new = result.table.metadata.current_snapshot
    assert live(result.table) == {"x2": 1, "y1": 1, "y2": 1}
    assert {k: new.summary.get(k) for k in ("operation", "source-snapshot-id", "published-wap-id")} == {
        "operation": "overwrite",
        "source-snapshot-id": str(picked.snapshot_id),
        "published-wap-id": "w1",
    }
    counts = {
        k: new.summary[k] for k in ("added-data-files", "deleted-data-files", "total-data-files", "total-records")
    }
    assert counts == {
        "added-data-files": "1",
        "deleted-data-files": "1",
        "total-data-files": "3",
        "total-records": "27",
    }
    with pytest.raises(UsageError, match="cherry-picked already"):
        run(result.table, CherryPick(picked.snapshot_id))
    assert orphans(catalog) == set()


def test_picked_overwrite_removes_only_its_delete_files(by_kind):
    """Delete files of the replaced data files go with them; those of other partitions stay."""
    table = run(by_kind, AddDeletes("x1", ("x",))).table
    table = run(table, AddDeletes("y1", ("y",))).table
    table, picked = replaced(table, ["x1"], (data_file("x2", partition=("x",)),))
    table = add(table, data_file("y2", partition=("y",)))
    result = run(table, CherryPick(picked.snapshot_id)).table
    assert live(result) == {"x2": 1, "y1": 1, "y2": 1, "deletes-of-y1": 1}
    assert result.metadata.current_snapshot.summary["total-delete-files"] == "1"


def test_picked_overwrite_of_empty_partition(by_kind):
    """An overwrite of an empty partition is applied again only while that partition is empty."""
    table, picked = replaced(by_kind, [], (data_file("z1", partition=("z",)),))
    table, later = replaced(table, [], (data_file("z2", partition=("z",)),))
    table = add(table, data_file("y2", partition=("y",)))
    table = run(table, CherryPick(picked.snapshot_id)).table
    assert live(table) == {"x1": 1, "y1": 1, "y2": 1, "z1": 1}
    with pytest.raises(UsageError, match=r"now holds data file '.*z1'"):
        run(table, CherryPick(later.snapshot_id))


def test_picked_overwrite_is_refused_if_partition_got_file(by_kind):
    table, picked = replaced(by_kind, ["x1"], (data_file("x2", partition=("x",)),))
    table = add(table, data_file("x3", partition=("x",)))
    with pytest.raises(UsageError, match=r"a partition that it replaced now holds data file '.*x3'"):
        run(table, CherryPick(picked.snapshot_id))


def test_an_overwrite_of_files_that_are_gone_is_refused(by_kind):
    table, picked = replaced(by_kind, ["x1"], (data_file("x2", partition=("x",)),))
    compacted = RewriteFiles(removed=entries_of(table, "x1"), added=(), schema_id=0)
    table = run(table, compacted).table
    with pytest.raises(UsageError, match=r"data file '.*x1' \(1 in all\), which it replaced, is gone"):
        run(table, CherryPick(picked.snapshot_id))


def test_picked_unpartitioned_overwrite_allows_no_new_file(table):
    """Without partitions the overwrite replaces everything, so any other file is a conflict."""
    table, picked = replaced(table, ["a"], files("a2"))
    table = add(table, "b")
    with pytest.raises(UsageError, match=r"now holds data file '.*b'"):
        run(table, CherryPick(picked.snapshot_id))


def test_an_overwrite_without_partitions_is_of_all_specs(catalog):
    table = memory_table(catalog, spec=BY_KIND)
    all_specs = (BY_KIND, msgspec.structs.replace(UNPARTITIONED, spec_id=1))
    catalog.drop(EVENTS)
    table = catalog.create(EVENTS, msgspec.structs.replace(table.metadata, partition_specs=all_specs))
    table = add(table, data_file("x1", partition=("x",)))
    table, picked = replaced(table, ["x1"], (data_file("all", spec_id=1),))
    table = add(table, data_file("y1", partition=("y",)))
    with pytest.raises(UsageError, match=r"now holds data file '.*y1'"):
        run(table, CherryPick(picked.snapshot_id))


def test_pick_v1_snapshot_with_inline_manifests(catalog):
    table = add(add(memory_table(catalog, format_version=1), "a"), "b")
    table, picked = staged(table, "c")
    manifests = tuple(manifest["manifest_path"] for manifest in raw(table, picked.manifest_list))
    assert len(manifests) == 3
    itself = msgspec.structs.replace(picked, manifest_list=None, manifests=manifests)
    table = swap(table, RemoveSnapshots((picked.snapshot_id,)), AddSnapshot(itself))
    table = add(table, "d")
    result = run(table, CherryPick(picked.snapshot_id))
    assert live(result.table) == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_picked_overwrite_needs_parent_in_main_history(by_kind):
    first = by_kind.metadata.current_snapshot_id
    table = add(by_kind, data_file("x2", partition=("x",)))
    table, picked = replaced(table, ["x1", "x2"], (data_file("x3", partition=("x",)),))
    back = SetCurrentSnapshot(snapshot_id=first, expected_id=table.metadata.current_snapshot_id)
    table = run(table, back).table
    with pytest.raises(UsageError, match=r"its parent .* is not in the history of main"):
        run(table, CherryPick(picked.snapshot_id))


@pytest.mark.parametrize("script", [(), (CONFLICTS,)])
def test_concurrent_append_turns_fast_forward_into_pick(catalog, table, script):
    """Where main moves during the commit, the pick makes a new snapshot instead of a fast-forward."""
    table, picked = staged(table, "b", wap_id="w1")
    catalog.follow(*script, after(lambda: add(table, "theirs")))
    change = Applying(CherryPick(picked.snapshot_id))
    result = run(table, change)
    assert live(result.table) == {"a": 1, "b": 1, "theirs": 1}
    assert result.table.metadata.current_snapshot.summary["published-wap-id"] == "w1"
    assert len(change.bases) == len(script) + 2
    assert orphans(catalog) == set()


@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_snapshot_that_main_may_have_held_is_not_picked_again(catalog, table, is_compacted):
    """Its rows may be in other files by now, and only the history could tell, which has expired."""
    table = add(table, "b")
    picked = table.metadata.current_snapshot
    table = set_ref(table, "kept", picked.snapshot_id)
    between = [add(table, "c").metadata.current_snapshot_id]
    if is_compacted:
        table = catalog.load(EVENTS)
        change = RewriteFiles(removed=entries_of(table, "b"), added=(data_file("new"),), schema_id=0)
        between.append(run(table, change).snapshot_id)
    add(table, "d")
    before = live(swap(table, RemoveSnapshots(tuple(between))))
    with pytest.raises(SafetyError, match=r"main may have held it before snapshot \d+, whose history has expired"):
        run(table, CherryPick(picked.snapshot_id))
    assert live(catalog.load(EVENTS)) == before


def test_pick_of_pick_is_refused_if_files_are_live(catalog, table):
    table, picked = staged(table, "b")
    first = table.metadata.current_snapshot_id
    table = add(table, "c")
    again = run(table, CherryPick(picked.snapshot_id)).table
    table = run(again, SetCurrentSnapshot(snapshot_id=first, expected_id=again.metadata.current_snapshot_id)).table
    table = add(run(table, CherryPick(picked.snapshot_id)).table, "d")
    with pytest.raises(UsageError, match=r"its data file '.*/b' is in the table already"):
        run(table, CherryPick(again.metadata.current_snapshot_id))
    assert live(catalog.load(EVENTS)) == {"a": 1, "b": 1, "d": 1}


def test_pick_is_refused_if_source_expires_first(catalog, table):
    """A catalog that applies updates to whatever is current would adopt files that the expiration is about to delete."""
    table, picked = staged(table, "b")
    table = add(table, "c")
    run(table, CherryPick(picked.snapshot_id))
    _, updates = catalog.swaps[-1]
    with pytest.raises((NotFoundError, InvalidTableError), match=str(picked.snapshot_id)):
        apply_updates(swap(table, RemoveSnapshots((picked.snapshot_id,))).metadata, updates, now_ms=1)
    assert not [name for name in catalog.load(EVENTS).metadata.refs if name != "main"]


def test_a_rollback_meanwhile_makes_a_pick_a_fast_forward(catalog, table):
    table, picked = staged(table, "b")
    first = table.metadata.current_snapshot_id
    table = add(table, "c")
    back = SetCurrentSnapshot(snapshot_id=first, expected_id=table.metadata.current_snapshot_id)
    catalog.follow(after(lambda: run(table, back)))
    result = run(table, CherryPick(picked.snapshot_id))
    assert result.table.metadata.current_snapshot_id == picked.snapshot_id
    assert live(result.table) == {"a": 1, "b": 1}
    assert orphans(catalog) == set()


def test_pick_retry_reuses_manifests(catalog, table):
    table, picked = staged(table, "b")
    table = add(table, "c")
    catalog.follow(after(lambda: add(table, "theirs")), CONFLICTS)
    result = run(table, CherryPick(picked.snapshot_id))
    assert live(result.table) == {"a": 1, "b": 1, "c": 1, "theirs": 1}
    assert raw_list(result.table)[0]["added_files_count"] == 1
    assert orphans(catalog) == set()


def test_picked_overwrite_loses_race_and_leaves_no_files(catalog, by_kind):
    table, picked = replaced(by_kind, ["x1"], (data_file("x2", partition=("x",)),))
    table = add(table, data_file("y2", partition=("y",)))
    catalog.follow(after(lambda: add(table, data_file("x3", partition=("x",)))))
    with pytest.raises(UsageError, match=r"now holds data file '.*x3'"):
        run(table, CherryPick(picked.snapshot_id))
    assert live(catalog.load(EVENTS)) == {"x1": 1, "x3": 1, "y1": 1, "y2": 1}
    assert orphans(catalog) == set()


def test_two_who_pick_the_same_snapshot_at_once_publish_it_once(catalog, table):
    table, picked = staged(table, "b", wap_id="w1")
    table = add(table, "c")
    catalog.follow(after(lambda: run(table, CherryPick(picked.snapshot_id))))
    with pytest.raises(UsageError, match="cherry-picked already"):
        run(table, CherryPick(picked.snapshot_id))
    assert live(catalog.load(EVENTS)) == {"a": 1, "b": 1, "c": 1}
    assert orphans(catalog) == set()


@pytest.mark.parametrize("step", [LANDS_BUT_SAYS_CONFLICT, LANDS_BUT_IS_UNKNOWN])
@pytest.mark.parametrize("moved", [False, True])
def test_pick_with_lost_answer_is_applied_once_peers_10(catalog, table, step, moved):
    table, picked = staged(table, "b", wap_id="w1")
    table = add(table, "c") if moved else table
    catalog.follow(step)
    result = run(table, CherryPick(picked.snapshot_id))
    assert live(result.table) == live(catalog.load(EVENTS)) == {"a": 1, "b": 1, **({"c": 1} if moved else {})}
    assert orphans(catalog) == set()
