"""Others change replaced manifests while a rewrite is under way: it keeps what it has done but for what they touched.

The names of Iceberg's `TestRewriteManifests` are in the docstrings of the rules that its cases ask for.
"""

import pytest
from msgspec.structs import replace

from icekeep.commit.changes.delete_files import DeleteFiles
from icekeep.commit.changes.overwrite_files import OverwriteFiles
from icekeep.commit.changes.rewrite_files import RewriteFiles
from icekeep.commit.changes.rewrite_manifests import RewriteManifests
from icekeep.commit.changes.set_current_snapshot import SetCurrentSnapshot
from icekeep.commit.live_files import live_entries, live_manifests
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError
from icekeep.spec.definition_updates import UpgradeFormatVersion
from icekeep.spec.manifests.structs import Status
from icekeep.spec.updates import SetProperties
from kit.changes import run
from kit.memory_catalog import CONFLICTS, MemoryCatalog, after
from kit.row_deletes import path_of
from kit.staged_manifests import (
    deleting,
    kept_as_staged,
    latest,
    listed,
    live_in,
    names,
    rewrite,
    run_beside,
    six,
    staged,
    stated,
)
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import (
    BY_KIND,
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


@pytest.fixture
def catalog():
    return MemoryCatalog(HookedStorage(MemoryStorage()))


@pytest.fixture(params=[1, 2, 3])
def version(request):
    return request.param


# One file of a replaced manifest


def test_a_file_that_others_delete_leaves_the_new_manifest_and_all_else_stays_as_it_was_staged(catalog, version):
    """Iceberg's `testManifestReplacementConcurrentConflictingDelete` fails here and has to start anew."""
    table = six(catalog, version)
    done = run_beside(table, deleting(table, "c")).table
    assert live(done) == dict.fromkeys("abdef", 1)
    assert kept_as_staged(done) == [0, 2]
    assert sorted(map(sorted, names(done).values())) == [["a", "b"], ["d"], ["e", "f"]]


def test_the_entries_that_are_written_again_say_all_of_themselves(catalog, version):
    table = six(catalog, version)
    done = run_beside(table, deleting(table, "c")).table
    (row,) = (r for r in raw_list(done) if "optimized" not in r["manifest_path"])
    (record,) = raw(done, row["manifest_path"])
    first = done.metadata.snapshots[0]
    assert (record["status"], record["snapshot_id"]) == (0, first.snapshot_id)
    if version > 1:
        assert (record["sequence_number"], record["file_sequence_number"]) == (1, 1)
        assert (row["sequence_number"], row["min_sequence_number"]) == (5, 1)
    if version > 2:
        assert record["data_file"]["first_row_id"] == 10
    assert (row["added_files_count"], row["existing_files_count"], row["deleted_files_count"]) == (0, 1, 0)
    assert row["added_snapshot_id"] == done.metadata.current_snapshot_id


def test_the_summary_counts_what_is_listed_in_the_end(catalog):
    table = add(six(catalog), "z")
    result = run_beside(table, deleting(table, "c"), chosen=lambda m: m.min_sequence_number < 4)
    summary = result.table.metadata.current_snapshot.summary
    # The manifest that came with the deletion goes, and the one of `z` stays.
    assert {key: int(summary[key]) for key in summary if key.startswith(("manifests-", "entries-"))} == {
        "manifests-created": 3,
        "manifests-kept": 1,
        "manifests-replaced": 3,
        "entries-processed": 5,
    }
    assert (summary["total-data-files"], summary["total-records"]) == ("6", "60")
    assert not [key for key in summary if key.startswith(("added-", "deleted-", "changed-"))]
    assert raw_list(result.table)[-1]["manifest_path"].rsplit("/", 1)[-1] in names(table)


def test_all_files_of_a_new_manifest_gone_leave_none(catalog, version):
    table = six(catalog, version)
    done = run_beside(table, deleting(table, "c", "d")).table
    assert kept_as_staged(done) == [0, 2]
    assert len(raw_list(done)) == 2


def test_all_files_of_an_old_manifest_gone_leave_none_of_what_came_in_its_place(catalog, version):
    table = six(catalog, version)
    done = run_beside(table, deleting(table, "a", "d")).table
    assert live(done) == dict.fromkeys("bcef", 1)
    assert all(names(done).values())
    assert kept_as_staged(done) == [2]


def test_where_all_files_are_gone_only_manifests_without_live_files_are_left_to_leave_out(catalog, version):
    table = six(catalog, version)
    done = run_beside(table, deleting(table, *"abcdef")).table
    assert raw_list(done) == []


def test_a_deletion_in_manifests_that_are_not_replaced_costs_nothing(catalog, version):
    """Iceberg's `testManifestReplacementConcurrentDelete`."""
    table = add(six(catalog, version), "z1", "z2")
    change = rewrite(table, chosen=lambda m: live_in(table, m)[0].data_file.file_path < path_of("z"))
    done = run_beside(table, deleting(table, "z1"), change=change).table
    assert kept_as_staged(done) == [0, 1, 2]
    assert live(done) == dict.fromkeys([*"abcdef", "z2"], 1)


def test_fields_that_no_version_writes_any_more_are_kept(catalog):
    """`distinct_counts`, which entries of old writers have."""
    table, also = six(catalog), (111,)
    old = [replace(e, data_file=replace(e.data_file, distinct_counts={1: 7})) for e in entries_of(table, *"abc")]
    both = staged(table, "old-1", old, also=also), staged(table, "old-2", entries_of(table, *"def"))
    table = run(table, RewriteManifests(replaced=tuple(listed(table)), added=both)).table
    again = (
        staged(table, "new-1", entries_of(table, "a"), also=also),
        staged(table, "new-2", entries_of(table, *"bcd"), also=also),
    )
    change = RewriteManifests(
        replaced=both,
        added=(*again, staged(table, "new-3", entries_of(table, *"ef"))),
        snapshot_id=table.metadata.current_snapshot_id,
    )
    done = run_beside(table, deleting(table, "d"), change=change).table
    assert [e.data_file.distinct_counts for e in entries_of(done, *"bc")] == [{1: 7}] * 2


# Other commits


def test_appends_beside_it_are_not_even_read(catalog):
    """Iceberg's `testManifestReplacementConcurrentAppend` and `testAppendDuringRewriteManifest`."""
    table, opened, new = six(catalog), [], []

    def others():
        deleting(table, "c")()
        add(latest(table), "z")
        new.append(raw_list(latest(table))[0]["manifest_path"])
        catalog.storage.before = lambda what, at: opened.append(at) if what == "read" else None

    result = run_beside(table, others)
    catalog.storage.before = lambda *_: None
    assert new[0] not in opened
    assert names(result.table)[new[0].rsplit("/", 1)[-1]] == {"z"}


def test_a_merging_append_puts_new_files_beside_old_ones(catalog, version):
    """Iceberg's `testRewriteManifestDuringAppend`, where the append merges manifests."""
    table = six(catalog, version)
    for name in "xyz":
        table = add(table, name)
    change = rewrite(table, chosen=lambda m: len(live_in(table, m)) == 2)

    def merging():
        swap(latest(table), SetProperties({"commit.manifest.min-count-to-merge": "1"}))
        add(latest(table), "new")
        assert len(raw_list(latest(table))) == 1

    done = run_beside(table, merging, lambda: add(latest(table), "newer"), change=change).table
    assert live(done) == dict.fromkeys([*"abcdefxyz", "new", "newer"], 1)
    assert kept_as_staged(done) == [0, 1, 2]
    assert [found for name, found in names(done).items() if "optimized" not in name] == [{*"xyz", "new", "newer"}]


class MergesAndDeletes:
    """Another engine's commit of all entries in one manifest, one of them deleted, and with fields of old."""

    def apply(self, base, attempt):
        entries = [*live_entries(live_manifests(base, "main", attempt).data, base, attempt)]
        gone = next(e for e in entries if e.data_file.file_path == path_of("y"))
        summary = SummaryBuilder()
        summary.remove(gone.data_file)
        rows = [replace(e, status=Status.EXISTING) for e in entries if e is not gone]
        old = [
            replace(e, data_file=replace(e.data_file, distinct_counts={1: 7})) for e in rows if e.sequence_number > 3
        ]
        new = [*rows[-6:], *old, replace(gone, status=Status.DELETED, snapshot_id=attempt.snapshot_id)]
        return attempt.snapshot_updates("delete", attempt.write_manifests("all", new, 0, also=(111,)), summary)


def test_of_what_is_beside_old_files_all_fields_are_kept_and_what_is_deleted_is_not(catalog):
    table = six(catalog)
    for name in "xyz":
        table = add(table, name)
    change = rewrite(table, chosen=lambda m: len(live_in(table, m)) == 2)
    done = run_beside(table, lambda: run(latest(table), MergesAndDeletes()), change=change).table
    assert live(done) == dict.fromkeys("abcdefxz", 1)
    assert [e.data_file.distinct_counts for e in entries_of(done, *"xz")] == [{1: 7}] * 2
    assert [row["deleted_files_count"] for row in raw_list(done)] == [0, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("as_rewrite", [True, False])
def test_files_that_are_compacted_or_overwritten_meanwhile(catalog, version, as_rewrite):
    """Iceberg's `testManifestReplacementCombinedWithRewriteConcurrentDelete`."""
    table = six(catalog, version)
    if as_rewrite:
        entries = entries_of(table, "a", "c")
        act = RewriteFiles(removed=entries, added=files("ac"), schema_id=0, data_sequence_number=min(version - 1, 1))
    else:
        act = OverwriteFiles(removed=entries_of(table, "a", "c"), added=files("ac"))
    done = run_beside(table, lambda: run(latest(table), act)).table
    assert live(done) == dict.fromkeys(["ac", *"bdef"], 1)
    assert kept_as_staged(done) == [2]


def test_manifests_that_another_rewrite_has_put_together_are_put_as_this_one_says(catalog, version):
    """Iceberg's `testConcurrentRewriteManifest`: the last one wins, and no file is listed twice."""
    table = six(catalog, version)
    mine = rewrite(table)
    theirs = rewrite(table, each=6, prefix="theirs")
    done = run_beside(table, lambda: run(latest(table), theirs), change=mine).table
    assert kept_as_staged(done) == [0, 1, 2]
    assert len(raw_list(done)) == 3


def test_what_a_rollback_brings_back_is_listed(catalog):
    table = six(catalog)
    before = table.metadata.current_snapshot_id
    table = run(table, DeleteFiles(paths=frozenset({path_of("c")}))).table
    now = table.metadata.current_snapshot_id
    done = run_beside(table, lambda: run(latest(table), SetCurrentSnapshot(snapshot_id=before, expected_id=now))).table
    assert live(done) == dict.fromkeys("abcdef", 1)
    # `a b`, `d e` and `f` as they were put; `c` is beside them.
    assert kept_as_staged(done) == [0, 1, 2]


def test_a_table_whose_files_are_all_others_now(catalog, version):
    table = six(catalog, version)
    done = run_beside(
        table, lambda: run(latest(table), OverwriteFiles(removed=entries_of(table), added=files("z")))
    ).table
    assert live(done) == {"z": 1}


def test_manifests_of_other_partitions_are_not_opened(catalog):
    table = memory_table(catalog, spec=BY_KIND)
    for n in range(3):
        table = add(table, *(data_file(f"{kind}{n}", partition=(kind,)) for kind in "xyz"))
    change = rewrite(table, each=3)
    opened = []

    def others():
        deleting(table, "y1")()
        catalog.storage.before = lambda what, at: opened.append(at) if what == "read" else None

    done = run_beside(table, others, change=change).table
    catalog.storage.before = lambda *_: None
    assert kept_as_staged(done) == [0, 2]
    paths = [m.manifest_path for m in change.added]
    assert [path in opened for path in paths] == [False, True, False]
    unchanged = {m.manifest_path for m in change.replaced} & {r["manifest_path"] for r in raw_list(table)}
    assert len(unchanged & set(opened)) == 1


# Branches


def test_it_is_done_on_the_branch_that_was_read_and_what_happens_on_others_costs_nothing(catalog, version):
    table = six(catalog, version)
    table = set_ref(table, "other", table.metadata.current_snapshot_id, "branch")
    main = stated(table)

    def others():
        deleting(table, "c", branch="other")()

    done = run_beside(table, others, branch="other").table
    assert live(done, "other") == dict.fromkeys("abdef", 1)
    assert stated(done) == main
    change = rewrite(done, prefix="again")
    done.catalog.follow(after(deleting(done, "f", branch="other")))
    last = run(done, change).table
    assert {row["manifest_path"] for row in raw_list(last)} == {m.manifest_path for m in change.added}
    assert live(last, "other") == dict.fromkeys("abde", 1)


# Several attempts


@pytest.mark.slow
def test_each_attempt_begins_with_what_was_planned(catalog, version):
    table = six(catalog, version)
    done = run_beside(
        table, deleting(table, "c"), lambda: add(latest(table), "g"), deleting(table, "f"), deleting(table, "d", "g")
    ).table
    assert live(done) == dict.fromkeys("abe", 1)
    assert kept_as_staged(done) == [0]


def test_a_later_attempt_reads_what_is_new_and_writes_nothing_twice(catalog):
    table, opened, written = six(catalog), [], []

    def note(what, at):
        if "/snap-" not in at and at.endswith(".avro"):
            {"read": opened, "write": written}.get(what, []).append(at)

    def second():
        # One that is gone, one that has come, and the new ones: without partitions each may hold the file.
        assert len(set(opened)) == 5
        opened.clear()
        catalog.storage.before = lambda *_: None
        add(latest(table), "z")
        catalog.storage.before = note

    def first():
        deleting(table, "c")()
        catalog.storage.before = note

    done = run_beside(table, first, second).table
    catalog.storage.before = lambda *_: None
    assert live(done) == dict.fromkeys("abdefz", 1)
    assert (opened, len(written)) == ([], 1)


def test_a_staged_manifest_that_one_attempt_had_no_use_for_stays_where_the_next_lists_it(catalog):
    table = six(catalog)
    before = table.metadata.current_snapshot_id

    def back():
        now = latest(table).metadata.current_snapshot_id
        run(latest(table), SetCurrentSnapshot(snapshot_id=before, expected_id=now))

    done = run_beside(table, deleting(table, "c"), back).table
    assert kept_as_staged(done) == [0, 1, 2]
    assert len(raw_list(done)) == 3


def test_an_attempt_that_is_refused_leaves_nothing_that_an_earlier_one_wrote(catalog):
    table = six(catalog)
    change = rewrite(table, format_version=2)
    catalog.follow(after(deleting(table, "c")), CONFLICTS, after(deleting(table, "f")))
    catalog.follow(after(lambda: swap(latest(table), UpgradeFormatVersion(3))))
    with pytest.raises(ConflictError, match="format version 3"):
        run(table, change)
    assert orphans(catalog) <= {m.manifest_path for m in change.added}
