"""Delete files that reach no live data file leave with a rewrite of manifests, if that is asked for."""

import pytest
from msgspec.structs import replace

from icekeep import __version__
from icekeep.commit.changes.files import OverwriteFiles
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.dangling import dangling_deletes_count
from icekeep.commit.live_files import add as added_files
from icekeep.commit.live_files import live_manifests, remove
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.summary import SummaryBuilder
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.reach import own_path
from kit.changes import run
from kit.deletes import (
    AddDeleteFile,
    SaidToHold,
    add_deletes,
    deletion_vector,
    equality_deletes,
    path_of,
    position_deletes,
)
from kit.memory_catalog import MemoryCatalog, after
from kit.rewritten_manifests import kept_as_staged, latest, names, stated
from kit.rewritten_manifests import rewrite_staged as rewrite
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import BY_KIND, add, data_file, entries_of, live, manifests_of, memory_table, orphans, raw_list, set_ref

X, Y, Z = {"partition": ("x",)}, {"partition": ("y",)}, {"partition": ("z",)}


@pytest.fixture
def catalog():
    return MemoryCatalog(HookedStorage(MemoryStorage()))


def parted(catalog, version=2):
    """A file in `x` and `y` each, equality deletes in both, and two in `z`, where they reach nothing."""
    table = memory_table(catalog, spec=BY_KIND, format_version=version)
    for kind in "xy":
        table = add(table, data_file(f"{kind}1", partition=(kind,)))
    table = add_deletes(table, equality_deletes("ex", **X), equality_deletes("ez", **Z))
    return add_deletes(table, equality_deletes("ey", **Y), equality_deletes("ez2", **Z))


def count(table, branch="main"):
    return dangling_deletes_count(table.metadata, branch, ManifestReader(table.storage))


DROP = RewriteManifests(replaced=(), added=(), drop_dangling_deletes=True)


@pytest.mark.parametrize("version", [2, 3])
def test_they_leave_new_manifests_and_those_that_are_kept(catalog, version):
    table = parted(catalog, version)
    change = rewrite(table, chosen=lambda m: m.sequence_number != 3, each=3, drop_dangling_deletes=True)
    before = stated(table)
    assert count(table) == 2
    done = run(table, change)
    assert live(done.table) == {"x1": 1, "y1": 1, "ex": 1, "ey": 1}
    assert [said for said in before if "data/ez" not in said] == stated(done.table)
    # The data's as it was staged; both of the deletes were written again, and hold what this snapshot has deleted.
    assert kept_as_staged(done.table) == [0]
    assert [row["deleted_files_count"] for row in raw_list(done.table)] == [0, 1, 1]
    assert orphans(catalog) == set()
    assert count(done.table) == 0


def test_the_summary_counts_them(catalog):
    table = parted(catalog)
    summary = run(table, rewrite(table, drop_dangling_deletes=True)).summary
    assert {key: summary[key] for key in summary if not key.startswith("total-")} == {
        "operation": "replace",
        "icekeep.commit-id": summary["icekeep.commit-id"],
        "engine-name": "icekeep",
        "engine-version": __version__,
        "manifests-created": "3",
        "manifests-kept": "0",
        "manifests-replaced": "4",
        "entries-processed": "4",
        "removed-delete-files": "2",
        "removed-equality-delete-files": "2",
        "removed-equality-deletes": "2",
        "removed-files-size": "20",
        "changed-partition-count": "1",
    }
    assert (summary["total-delete-files"], summary["total-data-files"]) == ("2", "2")


def test_what_is_not_asked_for_stays(catalog):
    table = parted(catalog)
    assert live(run(table, rewrite(table)).table) == live(table)


def test_dropping_dangling_deletes_alone_is_a_commit(catalog):
    table = add_deletes(parted(catalog), equality_deletes("ey2", **Y))
    done = run(table, DROP)
    assert live(done.table) == {"x1": 1, "y1": 1, "ex": 1, "ey": 1, "ey2": 1}
    assert [done.summary[f"manifests-{what}"] for what in ("created", "kept", "replaced")] == ["2", "3", "2"]
    rows, now = raw_list(done.table), done.table.metadata.current_snapshot_id
    assert [row["added_snapshot_id"] == now for row in rows] == [True, True, False, False, False]
    again = run(done.table, DROP)
    assert not again.changed


def test_nothing_that_dangles_is_no_commit(catalog):
    table = memory_table(catalog)
    assert count(table) == 0
    assert not run(table, DROP).changed
    table = add(table, "a")
    swaps = len(catalog.swaps)
    assert (count(table), run(table, DROP).changed) == (0, False)
    table = add_deletes(table, equality_deletes("e"))
    assert (count(table), run(table, DROP).changed, len(catalog.swaps)) == (0, False, swaps + 1)


def test_vectors_of_a_file_that_is_gone(catalog):
    table = add(memory_table(catalog, format_version=3), "a", "b", "c")
    table = add_deletes(table, deletion_vector("v", "a", 4), deletion_vector("v", "b", 44))
    table = run(table, DropsDataFile("b")).table
    assert (live(table)["v"], count(table)) == (2, 1)
    done = run(table, rewrite(table, drop_dangling_deletes=True)).table
    assert [e.data_file.referenced_data_file for e in entries_of(done, "v")] == [path_of("a")]
    summary = done.metadata.current_snapshot.summary
    assert (summary["removed-dvs"], summary["removed-position-deletes"]) == ("1", "1")


def test_positions_whose_bounds_are_a_file_that_is_gone_leave_once_their_rows_were_read(catalog):
    """As Iceberg Java writes them in version 2: an older file beside keeps the sequence numbers of the partition low."""
    table = add(memory_table(catalog), "old", "a", "b", "cut-1")
    for name, path in (("true", "a"), ("lies", "a"), ("live", "b"), ("cut", "cut")):
        change = AddDeleteFile(position_deletes(name, path))
        table = run(table, change).table
    table = run(table, DropsDataFile("a")).table
    proof = SaidToHold("true", "live")
    reader = ManifestReader(table.storage)
    assert count(table) == 0
    assert dangling_deletes_count(table.metadata, "main", reader, proof) == 1
    assert not run(table, DROP).changed
    proof.asked.clear()
    done = run(table, replace(DROP, proof=proof)).table
    assert live(done) == {"old": 1, "b": 1, "cut-1": 1, "lies": 1, "live": 1, "cut": 1}
    assert sorted(proof.asked) == ["cut", "lies", "true"]


def test_positions_whose_bounds_are_a_file_reach_no_newer_one_at_its_path(catalog):
    table = run(add(memory_table(catalog), "old", "a"), AddDeleteFile(position_deletes("p", "a"))).table
    change = replace(DROP, proof=SaidToHold("p"))
    assert not run(table, change).changed
    table = add(run(table, DropsDataFile("a")).table, "a")
    assert live(run(table, change).table) == {"old": 1, "a": 1}


def test_what_its_rows_have_shown_of_one_entry_of_a_delete_file_says_nothing_of_another(catalog):
    table = add(memory_table(catalog), "old", "a")
    for path in ("a", "gone"):
        table = run(table, AddDeleteFile(position_deletes("p", path))).table
    table = run(table, DropsDataFile("a")).table
    assert live(run(table, replace(DROP, proof=hold_paths_of_a)).table) == {"old": 1, "p": 1}


def hold_paths_of_a(storage, files):
    return [file for file in files if own_path(file) == path_of("a").encode()]


class DropsDataFile:
    """Another engine's commit that removes a data file and leaves what is for it."""

    def __init__(self, name):
        self.name = name

    def apply(self, base, attempt):
        manifests = live_manifests(attempt, "main")
        entries = (e for m in manifests.data for e in attempt.reader.entries(m, base) if e.is_live)
        gone = [entry for entry in entries if entry.data_file.file_path == path_of(self.name)]
        kept = remove(manifests.data, attempt, as_read=tuple(gone))
        return attempt.snapshot_updates("delete", [*kept.manifests, *manifests.deletes], kept.summary)


def test_it_is_decided_by_what_the_branch_holds(catalog):
    table = add(memory_table(catalog, spec=BY_KIND), data_file("x1", **X))
    table = set_ref(table, "other", table.metadata.current_snapshot_id, "branch")
    table = add_deletes(table, equality_deletes("ex", **X), branch="other")
    table = add_deletes(table, equality_deletes("ez", **Z), branch="other")
    table = add_deletes(table, equality_deletes("ez", **Z))
    assert (count(table), count(table, "other")) == (1, 1)
    done = run(table, rewrite(table, branch="other", drop_dangling_deletes=True)).table
    assert live(done, "other") == {"x1": 1, "ex": 1}
    assert live(done)["ez"] == 1


def test_what_others_make_dangling_meanwhile_goes_and_what_they_make_reach_stays(catalog):
    """nimtable/iceberg-compaction #163: the removal is decided on the base that it is committed to."""
    table = add(parted(catalog), data_file("x2", **X))
    change = rewrite(table, chosen=lambda m: m.content is ManifestContent.DELETES, drop_dangling_deletes=True)

    def second():
        now = latest(table)
        x1, start = entries_of(now, "x1"), now.metadata.current_snapshot_id
        run(now, OverwriteFiles(removed=x1, added=(data_file("x3", **X),), starting_snapshot_id=start))

    swaps = len(catalog.swaps)
    catalog.follow(after(lambda: run(latest(table), BringsOld("z1"))), after(second))
    done = run(table, change)
    assert len(catalog.swaps) == swaps + 5
    # `z1` is old enough for `ez` and `ez2`; all in `x` is newer than `ex` by now.
    assert live(done.table) == {"y1": 1, "z1": 1, "x2": 1, "x3": 1, "ey": 1, "ez": 1, "ez2": 1}
    assert orphans(catalog) == set()


class BringsOld:
    """Another engine's commit of a data file of partition `z` with an old sequence number."""

    def __init__(self, name):
        self.name = name

    def apply(self, base, attempt):
        manifests = live_manifests(attempt, "main")
        summary = SummaryBuilder()
        added = added_files((data_file(self.name, **Z),), attempt, summary, sequence_number=1)
        return attempt.snapshot_updates("append", [*added, *manifests.data, *manifests.deletes], summary)


def test_position_deletes_that_are_older_than_all_data_of_their_partition(catalog):
    table = add(memory_table(catalog), "a")
    table = add_deletes(table, position_deletes("p", "a"), named=("a",))
    table = run(table, DropsDataFile("a")).table
    table = add(table, "b")
    change = rewrite(table, drop_dangling_deletes=True)
    assert live(run(table, change).table) == {"b": 1}
    assert len(names(latest(table))) == 2


def test_a_second_attempt_asks_only_what_is_new(catalog):
    table = parted(catalog)
    change = rewrite(table, drop_dangling_deletes=True)
    opened, new = [], []

    def others():
        new.append(manifests_of(add(latest(table), data_file("x9", **X)))[0].manifest_path)
        catalog.storage.before = lambda what, at: opened.append(at) if what == "read" and "-m" in at else None

    catalog.follow(after(others))
    done = run(table, change).table
    # What the list says of the new one is no proof that it has no data file for the delete files that go.
    assert opened == new
    assert live(done) == {"x1": 1, "x9": 1, "y1": 1, "ex": 1, "ey": 1}


def test_manifests_of_deletes_alone_are_filtered(catalog):
    table = parted(catalog)
    change = rewrite(table, chosen=lambda m: m.content is ManifestContent.DELETES, drop_dangling_deletes=True)
    data = {r["manifest_path"] for r in raw_list(table) if not r["content"]}
    done = run(table, change).table
    assert data < {r["manifest_path"] for r in raw_list(done)}
