import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.manifests.structs import FileContent, ManifestContent, ManifestEntry, Status
from icekeep.spec.updates import RemovePartitionSpecs, RemoveSchemas
from kit.changes import Applying, refused, run
from kit.memory_catalog import CONFLICTS, MemoryCatalog, after
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import (
    BY_KIND,
    BY_SCORE,
    EVENTS,
    RawEntry,
    add,
    data_file,
    entries_of,
    files,
    live,
    memory_table,
    raw_entries,
    raw_list,
    swap,
)


@pytest.fixture
def table(catalog):
    """Two commits: `a` and `b` in one manifest, `c` in a later one."""
    return add(add(memory_table(catalog), "a", "b"), "c")


def rewrite(table, removed=("a", "b"), added=("ab",), **options):
    entries = entries_of(table, *removed)
    new = files(*added, records=sum(e.data_file.record_count for e in entries) // max(1, len(added)))
    return RewriteFiles(removed=entries, added=new, **{"schema_id": 0, **options})


def test_old_files_go_and_new_ones_come(table):
    result = run(table, rewrite(table))
    assert live(result.table) == {"ab": 1, "c": 1}
    assert result.table.metadata.current_snapshot.operation == "replace"
    assert result.table.metadata.current_snapshot.parent_snapshot_id == table.metadata.current_snapshot_id
    summary = result.table.metadata.current_snapshot.summary
    assert (summary["added-records"], summary["deleted-records"], summary["total-records"]) == ("20", "20", "30")
    assert (summary["deleted-data-files"], summary["total-data-files"]) == ("2", "2")


def test_every_entry_says_when_its_file_came_and_went(table):
    first, _ = table.metadata.snapshots
    done = run(table, rewrite(table, ("a", "c"), ("ac",), data_sequence_number=2)).table
    mine = done.metadata.current_snapshot_id
    assert raw_entries(done) == [
        # A new file takes the data sequence number that it is given, so that newer deletes still reach its rows, and
        # inherits the file sequence number of its commit.
        RawEntry("ac", 1, None, 2, None),
        # A deleted one is marked with this snapshot and keeps both of its numbers.
        RawEntry("c", 2, mine, 2, 2),
        # An existing one keeps its snapshot too.
        RawEntry("a", 2, mine, 1, 1),
        RawEntry("b", 0, first.snapshot_id, 1, 1),
    ]
    (new,) = entries_of(done, "ac")
    assert (new.snapshot_id, new.sequence_number, new.file_sequence_number) == (mine, 2, 3)


def test_a_new_file_inherits_both_numbers_where_none_is_given(table):
    done = run(table, rewrite(table)).table
    assert raw_entries(done)[0] == RawEntry("ab", 1, None, None, None)
    (entry,) = entries_of(done, "ab")
    assert (entry.sequence_number, entry.file_sequence_number) == (3, 3)


def test_min_sequence_number_is_that_of_live_files(table):
    done = run(table, rewrite(table, ("a",), ("a2",), data_sequence_number=1)).table
    # The new file, the untouched manifest of `c`, and the one where `a` is marked and `b` lives on.
    assert [(m["sequence_number"], m["min_sequence_number"]) for m in raw_list(done)] == [(3, 1), (2, 2), (3, 1)]


def test_new_manifests_come_first_and_others_are_unchanged(table):
    done = run(table, rewrite(table)).table
    listed = raw_list(done)
    assert [m["added_snapshot_id"] for m in listed].index(done.metadata.current_snapshot_id) == 0
    assert listed[0]["added_files_count"] == 1
    (c,) = [m for m in raw_list(table) if m["added_snapshot_id"] == table.metadata.current_snapshot_id]
    assert c in listed


def test_old_deleted_entries_are_dropped_on_rewrite(table):
    """Entries that were marked as deleted before do not go into a rewritten manifest."""
    once = run(table, rewrite(table, ("a",), ("a2",))).table
    assert ("a", 2) in [(e.name, e.status) for e in raw_entries(once)]
    twice = run(once, rewrite(once, ("b",), ("b2",))).table
    gone = [e for e in raw_entries(twice) if e.status == 2]
    assert gone == [RawEntry("b", 2, twice.metadata.current_snapshot_id, 1, 1)]
    assert live(twice) == {"a2": 1, "b2": 1, "c": 1}


def test_concurrent_appends_keep_rewritten_manifests():
    """Retries after appends of others write only what is new, and the appended files stay."""
    written = []
    storage = HookedStorage(
        MemoryStorage(), before=lambda what, at: written.append(at) if what == "write" and "-m" in at else None
    )
    catalog = MemoryCatalog(storage)
    table = add(memory_table(catalog), "a", "b")
    change = Applying(rewrite(table))
    written.clear()
    catalog.follow(after(lambda: add(table, "theirs")), after(lambda: add(table, "more")))
    result = run(table, change)
    assert live(result.table) == {"ab": 1, "theirs": 1, "more": 1}
    assert len(change.bases) == 3
    # One for the new file, one with the removed files marked, and one for each of the others' appends.
    assert len(written) == 4
    assert result.table.metadata.current_snapshot.summary["total-records"] == "40"


def test_the_conflict_counts_all_files_that_are_missing(table):
    run(table, rewrite(table))
    refused(table, rewrite(table, ("a", "b", "c"), ("abc",)), match=r"\(2 in all\)")


@pytest.mark.parametrize(
    "changed",
    [
        {"sequence_number": 9},
        {"data_file": data_file("a", partition=("y",))},
        {"data_file": data_file("a", partition=(None,))},
        {"data_file": data_file("a", partition=("x",), spec_id=1)},
        {"data_file": msgspec.structs.replace(data_file("a", partition=("x",)), first_row_id=5)},
    ],
)
def test_live_file_that_differs_from_plan_is_a_conflict(catalog, changed):
    table = add(memory_table(catalog, spec=BY_KIND), data_file("a", partition=("x",)))
    (entry,) = entries_of(table)
    change = RewriteFiles(
        removed=(msgspec.structs.replace(entry, **changed),), added=(data_file("b", partition=("x",)),), schema_id=0
    )
    refused(table, change, match="no longer live as it was read")
    assert live(table.catalog.load(EVENTS)) == {"a": 1}


def test_readded_file_is_not_the_one_that_was_read(table):
    change = rewrite(table, ("a",), ("a2",))

    def replace_and_add_again():
        latest = run(table, rewrite(table, ("a",), ("x",))).table
        run(latest, RewriteFiles(removed=entries_of(latest, "x"), added=files("a"), schema_id=0))

    table.catalog.follow(after(replace_and_add_again))
    refused(table, change)
    assert live(table.catalog.load(EVENTS)) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("value", [math.nan, -0.0, math.inf])
def test_files_are_found_in_nan_and_infinite_partitions(catalog, value):
    table = add(memory_table(catalog, spec=BY_SCORE), data_file("a", partition=(value,)))
    change = RewriteFiles(removed=entries_of(table), added=(data_file("b", partition=(value,)),), schema_id=0)
    assert live(run(table, change).table) == {"b": 1}


def test_a_nan_is_not_taken_for_another_partition(catalog):
    table = add(memory_table(catalog, spec=BY_SCORE), data_file("a", partition=(1.0,)))
    (entry,) = entries_of(table)
    read = msgspec.structs.replace(entry, data_file=data_file("a", partition=(math.nan,)))
    refused(table, RewriteFiles(removed=(read,), added=(data_file("b", partition=(1.0,)),), schema_id=0))


class Deletes:
    """Another writer's commit: a position delete file, or the entry of one that is gone."""

    def __init__(self, **entry):
        file = msgspec.structs.replace(data_file("deletes", 1), content=FileContent.POSITION_DELETES)
        self.entry = ManifestEntry(data_file=file, **entry)

    def apply(self, base, attempt):
        manifests = attempt.write_manifests("d", [self.entry], 0, ManifestContent.DELETES)
        kept = attempt.reader.manifests(base.current_snapshot)
        summary = SummaryBuilder()
        if self.entry.is_live:
            summary.add(self.entry.data_file)
        return attempt.snapshot_updates("delete", [*manifests, *kept], summary)


def test_delete_files_that_appeared_meanwhile_are_a_conflict(table):
    table.catalog.follow(after(lambda: run(table, Deletes(status=Status.ADDED))))
    refused(table, rewrite(table), match="/deletes' reaches data file .*/a', whose rewrite did not apply it")
    assert live(table.catalog.load(EVENTS)) == {"a": 1, "b": 1, "c": 1, "deletes": 1}


def test_delete_manifests_that_list_nothing_live_are_no_conflict(table):
    gone = Deletes(status=Status.DELETED, snapshot_id=1, sequence_number=1, file_sequence_number=1)
    table.catalog.follow(after(lambda: run(table, gone)))
    assert live(run(table, rewrite(table)).table) == {"ab": 1, "c": 1}


def test_a_schema_or_spec_that_vanished_is_a_conflict(catalog):
    table = memory_table(catalog)
    metadata = msgspec.structs.replace(
        table.metadata,
        schemas=(*table.metadata.schemas, msgspec.structs.replace(table.metadata.schema, schema_id=1)),
        partition_specs=(table.metadata.spec, msgspec.structs.replace(BY_KIND, spec_id=1)),
        last_partition_id=1000,
    )
    catalog.drop(EVENTS)
    table = add(catalog.create(EVENTS, metadata), "a", "b")
    catalog.follow(after(lambda: swap(table, RemoveSchemas((1,)))))
    refused(table, rewrite(table, schema_id=1), match="schema 1")
    in_spec_1 = RewriteFiles(
        removed=entries_of(table),
        added=(data_file("ab", partition=("x",), spec_id=1),),
        schema_id=0,
        starting_sequence_number=1,
    )
    catalog.follow(after(lambda: swap(table, RemovePartitionSpecs((1,)))))
    refused(table, in_spec_1, match="partition spec 1")
    assert live(catalog.load(EVENTS)) == {"a": 1, "b": 1}


def test_a_schema_that_is_not_current_any_more_is_fine(table):
    # The new files are projected by field id, like every older file.
    newer = msgspec.structs.replace(table.metadata.schema, schema_id=5)
    metadata = msgspec.structs.replace(table.metadata, schemas=(*table.metadata.schemas, newer), current_schema_id=5)
    table.catalog.drop(EVENTS)
    done = run(table.catalog.create(EVENTS, metadata), rewrite(table)).table
    assert live(done) == {"ab": 1, "c": 1}
    assert done.metadata.current_snapshot.schema_id == 5


def test_a_rewrite_that_would_make_rows_is_a_bug(table):
    change = RewriteFiles(removed=entries_of(table, "a"), added=files("a2", records=11), schema_id=0)
    refused(table, change, error=IcekeepBug, match="more rows than it removes")


def test_file_listed_twice_is_refused(catalog):
    """Only one listing would go, and the rows of the other would be in the table twice."""
    # Rows of both listings are in the new file; with one of them left in the table they would be there twice.
    table = add(add(memory_table(catalog), "a"), "a", "b")
    assert live(table) == {"a": 2, "b": 1}
    refused(
        table, rewrite(table, ("a", "b"), ("ab",)), error=InvalidTableError, match=r"'memory.*/a' .* more than once"
    )
    assert live(catalog.load(EVENTS)) == {"a": 2, "b": 1}


def test_nothing_to_replace_is_no_commit(table):
    swaps = len(table.catalog.swaps)
    assert run(table, RewriteFiles(removed=(), added=(), schema_id=0)).changed is False
    assert len(table.catalog.swaps) == swaps


def test_on_an_empty_table_nothing_is_live(catalog):
    table = memory_table(catalog)
    gone = ManifestEntry(status=Status.EXISTING, data_file=data_file("a"), sequence_number=1)
    refused(table, RewriteFiles(removed=(gone,), added=files("b"), schema_id=0), match="no longer live")


def test_only_the_manifests_that_a_plan_names_are_opened():
    storage = HookedStorage(MemoryStorage())
    table = memory_table(MemoryCatalog(storage))
    for number in range(10):
        table = add(table, f"f{number}")
    (entry,) = entries_of(table, "f0")
    (path,) = [m["manifest_path"] for m in raw_list(table) if m["sequence_number"] == 1]
    opened = []
    storage.before = lambda what, at: opened.append(at) if what == "read" and "-m" in at else None
    change = RewriteFiles(removed=(entry,), added=files("new"), schema_id=0, manifest_paths=frozenset({path}))
    run(table, change)
    assert set(opened) == {path}


@pytest.mark.parametrize("hint", [frozenset(), frozenset({"memory://lake/wh/db/events/metadata/gone.avro"})])
def test_wrong_manifest_hints_do_not_hide_files(table, hint):
    assert live(run(table, rewrite(table, manifest_paths=hint)).table) == {"ab": 1, "c": 1}


@pytest.mark.slow
@given(
    st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), min_size=1, max_size=4),
    st.data(),
)
def test_rewrite_swaps_exactly_its_files(commits, data):
    """Live files after a rewrite are those before, less the removed ones, plus the added ones."""
    table = memory_table()
    seen: set[str] = set()
    for names in commits:
        if names - seen:
            table = add(table, *sorted(names - seen))
            seen |= names
    removed = data.draw(st.sets(st.sampled_from(sorted(seen)), min_size=1))
    meanwhile = data.draw(st.lists(st.sampled_from(["append", "conflict"]), max_size=3))
    steps = {"append": lambda n: after(lambda: add(table, f"theirs-{n}")), "conflict": lambda n: CONFLICTS}
    table.catalog.follow(*(steps[what](n) for n, what in enumerate(meanwhile)))
    theirs = [f"theirs-{n}" for n, what in enumerate(meanwhile) if what == "append"]
    done = run(table, rewrite(table, sorted(removed), ("new",))).table
    assert live(done) == dict.fromkeys([*(seen - removed), *theirs, "new"], 1)
    assert done.metadata.current_snapshot.summary["total-data-files"] == str(len(live(done)))
