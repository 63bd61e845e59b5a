"""Which files a change selects in manifests, and filtering: the same here and in shares, and once over attempts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.files import DeleteFiles, MatchingFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.conflicts import Matching
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, UnsupportedError
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import ManifestEntry, Status
from icekeep.spec.reach import applied_delete
from icekeep.spec.updates import SetProperties
from kit.changes import Applying, SharingReader, run, stored
from kit.deletes import add_deletes, equality_deletes, path_of, position_deletes
from kit.memory_catalog import MemoryCatalog
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import (
    BY_KIND,
    EVENTS,
    add,
    data_file,
    entries_of,
    files,
    live,
    manifests_of,
    memory_table,
    orphans,
    raw_list,
    swap,
    with_ids,
)


@pytest.fixture
def catalog():
    return MemoryCatalog(HookedStorage(MemoryStorage()))


@pytest.fixture
def opened(catalog):
    """The manifests that are opened from now on."""
    opened: list[str] = []

    def start() -> list[str]:
        def note(what: str, at: str) -> None:
            if what == "read" and "-m" in at:
                opened.append(at)

        catalog.storage.before = note
        return opened

    return start


def test_retry_does_not_reopen_filtered_manifests(catalog, opened):
    table = add(add(memory_table(catalog), "a"), "b", "c")
    change = RewriteFiles(removed=entries_of(table, "a", "b"), added=files("new"), schema_id=0)
    others = Applying(change, attempt_1=lambda: add(table, "d"), attempt_2=lambda: add(table, "e"))
    seen = opened()
    result = run(table, others)
    assert live(result.table) == {"c": 1, "d": 1, "e": 1, "new": 1}
    filtered = [at for at in seen if at in {m["manifest_path"] for m in raw_list(table)}]
    assert len(filtered) == len(set(filtered)) == 2


def test_retry_finds_new_deletes_in_filtered_manifests(catalog):
    table = add(memory_table(catalog), "a", "b")
    change = RewriteFiles(removed=entries_of(table, "a"), added=files("new", records=9), schema_id=0)
    racing = Applying(change, attempt_1=lambda: add_deletes(table, position_deletes("p", "a"), named=("a",)))
    with pytest.raises(ConflictError, match=r"'.*/p' reaches data file '.*/a', whose rewrite did not apply it"):
        run(table, racing)
    assert live(catalog.load(EVENTS)) == {"a": 1, "b": 1, "p": 1}
    assert not orphans(catalog)


def test_deletes_of_other_files_cause_no_second_write(catalog):
    table = add(memory_table(catalog), "a", "b")
    change = RewriteFiles(removed=entries_of(table, "a"), added=files("new"), schema_id=0)
    reader = SharingReader(table.storage)
    racing = Applying(change, attempt_1=lambda: add_deletes(table, position_deletes("p", "b"), named=("b",)))
    before = catalog.storage.fired["write"]
    result = run(table, racing, reader=reader)
    # The new file's manifest, the one that is filtered, two lists; and two files of the other commit.
    assert catalog.storage.fired["write"] - before == 6
    assert live(result.table) == {"b": 1, "new": 1, "p": 1}
    [data] = [m.manifest_path for m in manifests_of(table)]
    # Once to be filtered, once more for the check.
    assert reader.asked.count(data) == 2
    assert not orphans(catalog)


@pytest.mark.parametrize("is_stored", [False, True])
def test_files_are_found_wherever_others_have_put_their_entries(catalog, is_stored):
    table = add(add(memory_table(catalog), "a"), "b", "c")
    change = RewriteFiles(removed=entries_of(table, "a", "b"), added=files("new"), schema_id=0)
    if is_stored:
        change = replace(change, removed=stored(table, change.removed, change))
    # Others remove `c`, so that `b` is listed by another manifest, and merge both.
    run(table, DeleteFiles(paths=frozenset({path_of("c")})))
    merging = {"commit.manifest.min-count-to-merge": "1"}
    swap(table, SetProperties(merging))
    merged = add(table, "d")
    assert len(manifests_of(merged)) == 1
    for reader in (None, SharingReader(table.storage)):
        if reader is None:
            result = commit(merged, change, runtime=catalog.runtime)
            assert live(result.table) == {"d": 1, "new": 1}
        else:
            with pytest.raises(ConflictError, match=r"data file '.*/[ab]' \(2 in all\) is no longer live"):
                commit(merged, change, runtime=catalog.runtime, reader=reader)


def test_refused_change_removes_manifests_of_tasks(catalog):
    """Manifests that tasks wrote for an attempt are removed when the change is refused."""
    table = add(add(memory_table(catalog), "a"), "b")
    gone = replace(entries_of(table, "b")[0], data_file=data_file("elsewhere"))
    change = RewriteFiles(removed=(*entries_of(table, "a"), gone), added=files("new"), schema_id=0)
    with pytest.raises(ConflictError, match=r"'.*/elsewhere' \(1 in all\) is no longer live"):
        run(table, change, reader=SharingReader(table.storage))
    assert not orphans(catalog)


@pytest.mark.slow
@given(st.data())
def test_the_same_comes_of_it_here_and_in_shares(data):
    outcomes = []
    kinds = data.draw(st.lists(st.lists(st.sampled_from(["x", "y", None]), min_size=1, max_size=4), max_size=5))
    names = [[f"{i}-{j}" for j in range(len(some))] for i, some in enumerate(kinds)]
    flat = [name for some in names for name in some]
    removed = data.draw(st.sets(st.sampled_from(flat), max_size=4)) if flat else set()
    by_filter = data.draw(st.booleans())
    deletes = data.draw(st.lists(st.sampled_from(["x", "y"]), max_size=2))
    for way in ("here", "shared", "stored"):
        table = memory_table(MemoryCatalog(), spec=BY_KIND)
        for some_names, some_kinds in zip(names, kinds, strict=True):
            table = add(table, *(data_file(n, partition=(k,)) for n, k in zip(some_names, some_kinds, strict=True)))
        for number, kind in enumerate(deletes):
            table = add_deletes(table, equality_deletes(f"e{number}", partition=(kind,)))
        outcomes.append(outcome_of(table, removed, by_filter, way))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def outcome_of(table, removed, by_filter, way):
    entries = entries_of(table, *removed) if removed else ()
    deletes = [e for e in (entries_of(table) if table.metadata.current_snapshot else ()) if e.data_file.content.value]
    applied = {
        e.data_file.file_path: frozenset(
            applied_delete(d) for d in deletes if d.data_file.partition == e.data_file.partition
        )
        for e in entries
    }
    change = RewriteFiles(
        removed=entries, added=(data_file("new", 0, ("x",)),)[: len(removed)], schema_id=0, applied_deletes=applied
    )
    if way == "stored":
        change = replace(change, removed=stored(table, entries, change), applied_deletes={})
    if by_filter:
        change = DeleteFiles(rows=parse_where("kind = 'x'"))
    reader = None if way == "here" else SharingReader(table.storage)
    result = commit(table, change, runtime=table.catalog.runtime, reader=reader)
    snapshot = result.table.metadata.current_snapshot
    return (
        live(result.table),
        None if snapshot is None else {k: v for k, v in snapshot.summary.items() if "commit" not in k},
        [
            (m.content, m.added_files_count, m.existing_files_count, m.deleted_files_count)
            for m in manifests_of(result.table)
        ]
        if snapshot
        else [],
    )


@pytest.fixture
def table():
    return add(memory_table(spec=BY_KIND), with_ids("a", 1, 10))


def rows(table, where):
    return bind(parse_where(where), table.metadata.schema)


def entry(file):
    return ManifestEntry(status=Status.EXISTING, data_file=file, sequence_number=1)


@pytest.mark.parametrize(
    ("where", "file", "manifest"),
    [
        ("TRUE", True, True),
        ("kind = 'x'", True, True),
        ("kind = 'y'", False, False),
        ("id = 3", True, True),
        ("id = 30", False, True),
        ("kind = 'y' OR id > 3", True, True),
        ("kind = 'x' AND id > 30", False, True),
    ],
)
def test_file_matches_unless_partition_or_bounds_exclude(table, where, file, manifest):
    matching = Matching(table.metadata, rows(table, where))
    assert matching.entry(entry(with_ids("a", 1, 10))) is file
    (row,) = manifests_of(table)
    assert matching.manifest(row) is manifest
    # Without summaries nothing is ruled out.
    assert matching.manifest(replace(row, partitions=None))


@pytest.mark.parametrize("where", ["kind = 'x'", "id < 11", "kind = 'y' OR id >= 1", "TRUE"])
def test_data_files_are_selected_where_all_rows_match(table, where):
    assert MatchingFiles(rows(table, where), table.metadata).entry(entry(with_ids("a", 1, 10)))


@pytest.mark.parametrize("where", ["id < 10", "score > 1", "kind = 'x' AND id > 1"])
def test_a_data_file_that_may_match_in_part_is_refused(table, where):
    selection = MatchingFiles(rows(table, where), table.metadata)
    with pytest.raises(UnsupportedError, match="/a' may hold rows that match"):
        selection.entry(entry(with_ids("a", 1, 10)))
    assert not selection.entry(
        entry(with_ids("b", 20, 30, ("y",), null_value_counts={1: 0, 3: 10}, value_counts={1: 10, 3: 10}))
    )


@pytest.mark.parametrize(("where", "selected"), [("kind = 'x'", True), ("id < 11", False), ("TRUE", True)])
def test_delete_files_are_selected_by_partition_alone(table, where, selected):
    selection = MatchingFiles(rows(table, where), table.metadata)
    deletes = [position_deletes("p", "a", partition=("x",)), equality_deletes("e", partition=("x",))]
    with_bounds = replace(with_ids("e", 1, 10), content=deletes[1].content, equality_ids=(1,))
    assert [selection.entry(entry(f)) for f in (*deletes, with_bounds)] == [selected] * 3
