import msgspec
import pytest

from icekeep.commit.changes.rewrites import RewriteFiles, RewriteManifests
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import ConflictError, IcekeepBug
from icekeep.spec.manifests.structs import ManifestEntry, Status
from kit.changes import Applying, run
from kit.memory_catalog import CONFLICTS, MemoryCatalog, after
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import (
    EVENTS,
    RawEntry,
    add,
    data_file,
    entries_of,
    files,
    live,
    manifests_of,
    memory_table,
    orphans,
    raw_entries,
    raw_list,
    staged_manifest,
    stored,
)


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    """Three commits of one manifest each."""
    return add(add(add(memory_table(catalog), "a"), "b"), "c")


def rewrite(table, name="optimized-m-1", **options):
    """A change that puts all live entries into one manifest, which is written already."""
    return RewriteManifests(
        replaced=tuple(manifests_of(table)), added=(staged_manifest(table, entries_of(table), name),), **options
    )


def test_the_same_files_are_in_other_manifests(table):
    done = run(table, rewrite(table)).table
    assert live(done) == live(table) == {"a": 1, "b": 1, "c": 1}
    (manifest,) = raw_list(done)
    assert manifest["manifest_path"].endswith("/optimized-m-1.avro")
    assert manifest["added_snapshot_id"] == done.metadata.current_snapshot_id
    assert (manifest["sequence_number"], manifest["min_sequence_number"]) == (4, 1)
    assert (manifest["added_files_count"], manifest["existing_files_count"], manifest["existing_rows_count"]) == (
        0,
        3,
        30,
    )


def test_every_file_keeps_its_snapshot_and_both_sequence_numbers(table):
    done = run(table, rewrite(table)).table
    snapshots = {s.sequence_number: s.snapshot_id for s in table.metadata.snapshots}
    assert sorted(raw_entries(done)) == [
        RawEntry(name, 0, snapshots[number], number, number) for number, name in enumerate("abc", start=1)
    ]
    assert {e.data_file for e in entries_of(done)} == {e.data_file for e in entries_of(table)}


def test_the_summary_counts_manifests_and_blanks_no_total(table):
    # seaweedfs PR #10420: a maintenance commit without totals makes every later one lose total-records.
    before = table.metadata.current_snapshot.summary
    summary = run(table, rewrite(table, summary={"job": "nightly"})).table.metadata.current_snapshot.summary
    assert summary["operation"] == "replace"
    assert {key: summary[key] for key in summary if key.startswith("total-")} == {
        key: before[key] for key in before if key.startswith("total-")
    }
    assert summary["total-records"] == "30"
    assert {key: summary[key] for key in summary if key.startswith(("manifests-", "entries-"))} == {
        "manifests-created": "1",
        "manifests-kept": "0",
        "manifests-replaced": "3",
        "entries-processed": "3",
    }
    assert summary["job"] == "nightly"
    assert not [key for key in summary if key.startswith(("added-", "deleted-", "changed-"))]


def test_appends_meanwhile_cost_nothing_and_stay_listed():
    storage = HookedStorage(MemoryStorage())
    catalog = MemoryCatalog(storage)
    table = add(add(memory_table(catalog), "a"), "b")
    opened, written = [], []
    change = Applying(rewrite(table))

    def note(what, at):
        if "-m" in at and "/snap-" not in at and what in ("read", "write"):
            (opened if what == "read" else written).append(at)

    def append_others():
        storage.before = lambda *_: None
        add(table, "theirs")
        storage.before = note

    storage.before = note
    catalog.follow(after(append_others), CONFLICTS)
    result = run(table, change)
    assert len(change.bases) == 3
    assert (opened, written) == ([], [])
    assert live(result.table) == {"a": 1, "b": 1, "theirs": 1}
    assert result.table.metadata.current_snapshot.summary["manifests-kept"] == "1"
    assert result.table.metadata.current_snapshot.summary["total-records"] == "30"
    assert orphans(catalog) == set()


def test_new_manifests_come_before_those_that_are_kept(table):
    first, second, third = manifests_of(table)
    merged = staged_manifest(table, [e for e in entries_of(table) if e.sequence_number < 3])
    change = RewriteManifests(replaced=(second, third), added=(merged,))
    done = run(add(table, "d"), change).table
    paths = [m["manifest_path"] for m in raw_list(done)]
    assert (len(paths), paths[0], paths[2]) == (3, merged.manifest_path, first.manifest_path)
    assert live(done) == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_a_manifest_that_others_replaced_is_a_conflict(table):
    change = rewrite(table)

    def remove_b():
        run(table, RewriteFiles(removed=entries_of(table, "b"), added=files("b2"), schema_id=0))

    table.catalog.follow(after(remove_b))
    with pytest.raises(ConflictError, match=r"manifest 'memory.*' \(1 in all\) is no longer in the table") as raised:
        run(table, change)
    assert raised.value.exit_status == 75
    assert live(table.catalog.load(EVENTS)) == {"a": 1, "b2": 1, "c": 1}
    assert orphans(table.catalog) == {change.added[0].manifest_path}


def test_of_two_rewrites_at_the_same_time_one_wins(table):
    mine, theirs = rewrite(table), rewrite(table, "optimized-m-2")
    table.catalog.follow(after(lambda: run(table, theirs)))
    with pytest.raises(ConflictError, match=r"\(3 in all\)"):
        run(table, mine)
    assert live(table.catalog.load(EVENTS)) == {"a": 1, "b": 1, "c": 1}
    assert raw_list(table.catalog.load(EVENTS))[0]["manifest_path"].endswith("optimized-m-2.avro")


def test_a_staged_manifest_stays_good_over_attempts(table):
    table.catalog.follow(CONFLICTS, CONFLICTS)
    done = run(table, rewrite(table)).table
    (manifest,) = raw_list(done)
    assert (manifest["sequence_number"], manifest["added_snapshot_id"]) == (4, done.metadata.current_snapshot_id)
    assert live(done) == {"a": 1, "b": 1, "c": 1}


def staged(table, *entries):
    return staged_manifest(table, entries)


@pytest.mark.parametrize("fewer", [1, 2])
def test_manifests_that_hold_other_numbers_of_files_are_a_bug(table, fewer):
    change = RewriteManifests(replaced=tuple(manifests_of(table)), added=(staged(table, *entries_of(table)[fewer:]),))
    with pytest.raises(IcekeepBug, match=f"hold {3 - fewer} live files, the replaced ones 3"):
        run(table, change)
    assert live(table.catalog.load(EVENTS)) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("kind", ["added_files_count", "deleted_files_count"])
def test_manifests_with_other_than_existing_entries_are_a_bug(table, kind):
    added = msgspec.structs.replace(staged(table, *entries_of(table)), **{kind: 1})
    with pytest.raises(IcekeepBug):
        run(table, RewriteManifests(replaced=tuple(manifests_of(table)), added=(added,)))


def test_manifests_that_list_nothing_live_can_be_left_out(catalog):
    table = add(memory_table(catalog), "a")
    table = run(table, RewriteFiles(removed=entries_of(table), added=files("b"), schema_id=0)).table
    dead = tuple(m for m in manifests_of(table) if not m.may_have_live_files)
    assert len(dead) == 1
    done = run(table, RewriteManifests(replaced=dead, added=())).table
    assert live(done) == {"b": 1}
    assert len(raw_list(done)) == 1


def test_manifests_that_list_nothing_live_may_be_gone(catalog):
    table = add(memory_table(catalog), "a")
    table = run(table, RewriteFiles(removed=entries_of(table), added=files("b"), schema_id=0)).table
    change = rewrite(table)
    assert [m.live_files_count for m in change.replaced] == [1, 0]
    catalog.follow(after(lambda: add(table, "c")))
    done = run(table, change).table
    assert (live(done), len(raw_list(done))) == ({"b": 1, "c": 1}, 2)
    assert done.metadata.current_snapshot.summary["manifests-replaced"] == "1"


def test_row_ids_are_set_aside_as_iceberg_does_it(catalog):
    """All new data manifests are given a first row id and room for all their rows, though their files have ids of their own.

    The spec leaves it to writers who know that they have (row lineage, "Example"); Iceberg sets it aside whatever they have.
    """
    table = add(add(memory_table(catalog, format_version=3), "a"), "b")
    ids = {e.data_file.file_path: e.data_file.first_row_id for e in entries_of(table)}
    assert (sorted(ids.values()), table.metadata.next_row_id) == ([0, 10], 20)
    done = run(table, rewrite(table)).table
    assert {e.data_file.file_path: e.data_file.first_row_id for e in entries_of(done)} == ids
    assert [row["first_row_id"] for row in raw_list(done)] == [20]
    assert (done.metadata.current_snapshot.first_row_id, done.metadata.current_snapshot.added_rows) == (20, 20)
    assert done.metadata.next_row_id == 40


def test_nothing_to_replace_is_no_commit(table):
    swaps, before = len(table.catalog.swaps), stored(table.catalog)
    assert run(table, RewriteManifests(replaced=(), added=())).changed is False
    assert (len(table.catalog.swaps), stored(table.catalog)) == (swaps, before)


def test_on_an_empty_table_no_manifest_is_there_any_more(catalog):
    table = memory_table(catalog)
    gone = ManifestEntry(
        status=Status.EXISTING, data_file=data_file("a"), snapshot_id=1, sequence_number=1, file_sequence_number=1
    )
    manifest = staged(table, gone)
    with pytest.raises(ConflictError):
        run(table, RewriteManifests(replaced=(manifest,), added=(manifest,)))


def test_a_manifest_without_entries_of_a_version_1_snapshot_without_a_list_is_dropped(catalog):
    """Nothing tells which snapshot added it, so that no manifest list can name it."""
    table = add(add(memory_table(catalog, format_version=1), "a"), "b")
    one, other = manifests_of(table)
    empty = staged_manifest(table, (), "empty")
    snapshot = msgspec.structs.replace(
        table.metadata.current_snapshot,
        manifest_list=None,
        manifests=(one.manifest_path, other.manifest_path, empty.manifest_path),
    )
    metadata = msgspec.structs.replace(table.metadata, snapshots=(*table.metadata.snapshots[:-1], snapshot))
    catalog._locations[table.identifier] = catalog._write(metadata, 99)
    table = catalog.load(table.identifier)
    assert None in [m.added_snapshot_id for m in manifests_of(table)]
    change = RewriteManifests(replaced=(one,), added=(staged_manifest(table, entries_of_one(table, one), "new"),))
    done = run(table, change).table
    assert live(done).keys() == {"a", "b"}
    assert len(raw_list(done)) == 2


def entries_of_one(table, manifest):
    return [e for e in ManifestReader(table.storage).entries(manifest, table.metadata) if e.is_live]
