"""Others commit while manifests are rewritten: what they do elsewhere stays, what they do to replaced ones is a conflict.

The names of Iceberg's `TestRewriteManifests` are in the docstrings of the rules that its cases ask for.
"""

import pytest
from msgspec.structs import replace

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import DeleteFiles, OverwriteFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.changes.snapshots import SetCurrentSnapshot
from icekeep.errors import ConflictError, IcekeepBug
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.updates import SetProperties, UpgradeFormatVersion
from kit.changes import run
from kit.deletes import add_deletes, deletion_vector, equality_deletes, path_of
from kit.memory_catalog import CONFLICTS, MemoryCatalog, after
from kit.rewritten_manifests import deleting, kept_as_staged, latest, live_in, names, run_beside, six, staged, stated
from kit.rewritten_manifests import rewrite_staged as rewrite
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import BY_KIND, add, data_file, entries_of, files, live, memory_table, orphans, raw_list, set_ref, swap


@pytest.fixture
def catalog():
    return MemoryCatalog(HookedStorage(MemoryStorage()))


@pytest.fixture(params=[1, 2, 3])
def version(request):
    return request.param


# What others do to a replaced manifest


def merging(table):
    swap(latest(table), SetProperties({"commit.manifest.min-count-to-merge": "1"}))
    add(latest(table), "new")
    assert len(raw_list(latest(table))) == 1


def compacting(table):
    entries = entries_of(table, "a", "c")
    number = min(e.sequence_number for e in entries)
    run(latest(table), RewriteFiles(removed=entries, added=files("ac"), schema_id=0, data_sequence_number=number))


ACTS = {
    # Iceberg's `testManifestReplacementConcurrentConflictingDelete`.
    "delete": lambda table: run(latest(table), DeleteFiles(paths=frozenset({path_of("c")}))),
    "delete all": lambda table: run(latest(table), DeleteFiles(paths=frozenset(map(path_of, "abcdef")))),
    "overwrite": lambda table: run(
        latest(table), OverwriteFiles(removed=entries_of(table, "a", "c"), added=files("ac"))
    ),
    # Iceberg's `testManifestReplacementCombinedWithRewriteConcurrentDelete`.
    "compact": compacting,
    # Iceberg's `testRewriteManifestDuringAppend`, where the append merges manifests.
    "merge": merging,
    # Iceberg's `testConcurrentRewriteManifest`.
    "rewrite": lambda table: run(latest(table), rewrite(table, each=6, prefix="theirs")),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_replaced_manifest_that_is_gone_is_a_conflict(catalog, version, act):
    table = six(catalog, version)
    change, left = rewrite(table), []
    catalog.follow(after(lambda: (ACTS[act](table), left.append(stated(latest(table))))))
    with pytest.raises(ConflictError, match=r"\(\d in all\) is no longer in the table as it was read") as raised:
        run(table, change)
    assert (raised.value.is_outpaced, raised.value.exit_status) == (False, 75)
    assert stated(latest(table)) == left[0]
    assert orphans(catalog) == {m.manifest_path for m in change.added}


def test_what_a_rollback_takes_out_is_a_conflict(catalog):
    table = six(catalog)
    before = table.metadata.current_snapshot_id
    table = run(table, DeleteFiles(paths=frozenset({path_of("c")}))).table
    change, now = rewrite(table), table.metadata.current_snapshot_id
    catalog.follow(after(lambda: run(latest(table), SetCurrentSnapshot(snapshot_id=before, expected_id=now))))
    with pytest.raises(ConflictError, match="is no longer in the table as it was read"):
        run(table, change)
    assert live(latest(table)) == dict.fromkeys("abcdef", 1)


def test_another_format_version_is_a_conflict(catalog):
    table = six(catalog)
    change = rewrite(table, format_version=2)
    catalog.follow(CONFLICTS, after(lambda: swap(latest(table), UpgradeFormatVersion(3))))
    with pytest.raises(ConflictError, match="the table has format version 3 now"):
        run(table, change)
    assert orphans(catalog) == {m.manifest_path for m in change.added}


def test_a_refusal_leaves_nothing_that_an_earlier_attempt_wrote(catalog):
    """It wrote a manifest without the delete file that reaches nothing, and lost its swap."""
    table = add(memory_table(catalog, spec=BY_KIND), data_file("a", partition=("x",)))
    table = add_deletes(table, *(equality_deletes(f"e{kind}", partition=(kind,)) for kind in "xy"))
    change, written = rewrite(table, each=9, drop_dangling_deletes=True), []
    catalog.storage.before = lambda what, at: written.append(at) if what == "write" and "/snap-" not in at else None
    catalog.follow(CONFLICTS, after(deleting(table, "a")))
    with pytest.raises(ConflictError, match="is no longer in the table as it was read"):
        run(table, change)
    assert [at for at in written if at.endswith(".avro")]
    assert orphans(catalog) <= {m.manifest_path for m in change.added}


@pytest.mark.parametrize("version", [2, 3])
def test_manifests_of_deletes_are_as_those_of_data(catalog, version):
    """Iceberg's `testDeleteManifestReplacementConflictingDeleteFileRemoval`."""
    deletes = equality_deletes("q") if version == 2 else deletion_vector("v", "a", 4)
    table = add_deletes(six(catalog, version), deletes)
    gone = tuple(e for e in entries_of(table) if e.data_file.file_path == deletes.file_path)
    change = rewrite(table, chosen=lambda m: m.content is ManifestContent.DELETES)
    catalog.follow(after(lambda: run(latest(table), RowDelta(removed_deletes=gone))))
    with pytest.raises(ConflictError, match="is no longer in the table as it was read"):
        run(table, change)


# What others do elsewhere


def test_a_deletion_in_manifests_that_are_not_replaced_costs_nothing(catalog, version):
    """Iceberg's `testManifestReplacementConcurrentDelete`."""
    table = add(six(catalog, version), "z1", "z2")
    change = rewrite(table, chosen=lambda m: live_in(table, m)[0].data_file.file_path < path_of("z"))
    done = run_beside(table, deleting(table, "z1"), change=change).table
    assert kept_as_staged(done) == [0, 1, 2]
    assert live(done) == dict.fromkeys([*"abcdef", "z2"], 1)


def test_appends_are_not_even_read(catalog):
    """Iceberg's `testManifestReplacementConcurrentAppend` and `testAppendDuringRewriteManifest`."""
    table, opened, new = six(catalog), [], []

    def others():
        add(latest(table), "z")
        new.append(raw_list(latest(table))[0]["manifest_path"])
        catalog.storage.before = lambda what, at: opened.append(at) if what == "read" else None

    result = run_beside(table, others, lambda: None)
    catalog.storage.before = lambda *_: None
    assert opened
    assert new[0] not in opened
    assert names(result.table)[new[0].rsplit("/", 1)[-1]] == {"z"}
    assert kept_as_staged(result.table) == [0, 1, 2]


@pytest.mark.parametrize("version", [2, 3])
def test_only_manifests_of_deletes_are_replaced(catalog, version):
    """Iceberg's `testReplaceDeleteManifestsOnly`, and `testDeleteManifestReplacementConcurrentAppend`."""
    table = add_deletes(six(catalog, version), equality_deletes("q1"))
    table = add_deletes(table, equality_deletes("q2"))
    change = rewrite(table, chosen=lambda m: m.content is ManifestContent.DELETES)

    def others():
        add(latest(table), "z")
        deleting(table, "c")()

    done = run_beside(table, others, change=change).table
    assert (live(done)["z"], live(done)["q1"], kept_as_staged(done)) == (1, 1, [0])


def test_the_summary_counts_what_is_listed_in_the_end(catalog):
    table = six(catalog)
    summary = run_beside(table, lambda: add(latest(table), "z")).table.metadata.current_snapshot.summary
    assert {key: int(summary[key]) for key in summary if key.startswith(("manifests-", "entries-"))} == {
        "manifests-created": 3,
        "manifests-kept": 1,
        "manifests-replaced": 3,
        "entries-processed": 6,
    }
    assert (summary["total-data-files"], summary["total-records"]) == ("7", "70")
    assert not [key for key in summary if key.startswith(("added-", "deleted-", "changed-"))]


def test_what_happens_on_other_branches_costs_nothing(catalog, version):
    table = six(catalog, version)
    table = set_ref(table, "other", table.metadata.current_snapshot_id, "branch")
    main = stated(table)
    done = run_beside(table, deleting(table, "c"), branch="other").table
    assert live(done, "other") == dict.fromkeys("abcdef", 1)
    assert kept_as_staged(done) == []
    assert stated(done) != main
    change = rewrite(done, prefix="again")
    done.catalog.follow(after(deleting(done, "f", branch="other")))
    last = run(done, change).table
    assert {row["manifest_path"] for row in raw_list(last)} == {m.manifest_path for m in change.added}
    assert live(last, "other") == dict.fromkeys("abcde", 1)


def test_each_attempt_begins_with_what_was_planned(catalog, version):
    table = add(six(catalog, version), "y")
    change = rewrite(table, chosen=lambda m: len(live_in(table, m)) == 2)
    acts = deleting(table, "y"), lambda: add(latest(table), "z"), deleting(table, "z")
    done = run_beside(table, *acts, change=change).table
    assert live(done) == dict.fromkeys("abcdef", 1)
    assert kept_as_staged(done) == [0, 1, 2]


# What a job did wrong


def test_new_manifests_that_lack_a_file_are_a_bug(catalog):
    table = six(catalog)
    change = replace(rewrite(table), added=(staged(table, "wrong", entries_of(table, *"abdef")),))
    with pytest.raises(IcekeepBug, match="hold 5 live files, the replaced ones 6"):
        run(table, change)
    assert live(latest(table)) == dict.fromkeys("abcdef", 1)
