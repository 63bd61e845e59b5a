"""Delete files that reach nothing go in the commit that leaves them behind; no file goes by a number that a list has wrong."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import ConvertDeletes, ConvertedFile, EntryDigests, RewriteDeletes, RowDelta
from icekeep.commit.changes.files import AppendFiles, CherryPick, DeleteFiles, OverwriteFiles
from icekeep.commit.changes.rewrites import RewriteFiles, RewriteManifests
from icekeep.commit.conflicts import Isolation
from icekeep.commit.dangling import (
    DeleteScopes,
    FieldRange,
    PossibleManifests,
    dangling_deletes_count,
    partition_ranges,
)
from icekeep.commit.file_sets import entry_digest
from icekeep.commit.live_files import live_manifests, remove
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, InvalidTableError, UsageError
from icekeep.maintenance.check.job import check
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import FieldSummary, FileContent, ManifestContent
from icekeep.spec.matched_deletes import reaches, reaching_deletes
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.reach import applied_delete
from icekeep.spec.transforms import Bucket, UnknownTransform
from icekeep.spec.updates import AddPartitionSpec, UpgradeFormatVersion
from kit.cases import Choices, for_each
from kit.changes import Applying, SharingReader, Staged, run
from kit.damager import Damager
from kit.deletes import add_deletes, deletion_vector, equality_deletes, path_of, position_deletes
from kit.memory_catalog import MemoryCatalog, after
from kit.rewritten_manifests import rewrite_staged as rewrite_manifests
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import (
    BY_KIND,
    BY_SCORE,
    EVENTS,
    add,
    data_file,
    entries_of,
    live,
    manifests_of,
    memory_table,
    orphans,
    set_ref,
    swap,
)

BY_BUCKET = PartitionSpec(
    spec_id=0, fields=(PartitionField(source_id=1, field_id=1000, name="bucket", transform=Bucket(4)),)
)
X, Y = {"partition": ("x",)}, {"partition": ("y",)}


@pytest.fixture
def catalog():
    return MemoryCatalog(HookedStorage(MemoryStorage()))


def parted(catalog, *, format_version=2):
    """Partitioned by kind (spec 0), and once more not at all (spec 1): `x1`, `x2`, `y1`, one commit each."""
    table = memory_table(catalog, spec=BY_KIND, format_version=format_version)
    table = swap(table, AddPartitionSpec(replace(BY_KIND, spec_id=1, fields=())))
    for name in ("x1", "x2", "y1"):
        table = add(table, data_file(name, partition=(name[0],)))
    return table


def rewrite(table, *names, added=None, at_start=True, branch="main", **options):
    """What a rewrite of some files makes of the table as it is, dangling deletes removed."""
    entries = entries_of(table, *names) if names else ()
    deletes = [e for e in entries_of(table) if e.data_file.content is not FileContent.DATA]
    reaching = reaching_deletes(entries, deletes, table.metadata.specs_by_id)
    start = table.metadata.current_snapshot.sequence_number
    if added is None:
        added = tuple(
            replace(e.data_file, file_path=path_of(f"{n}+"), first_row_id=None)
            for e, n in zip(entries, names, strict=True)
        )
    options = {"remove_dangling": True, "data_sequence_number": start if at_start else None, **options}
    return RewriteFiles(
        removed=entries,
        added=added,
        schema_id=0,
        applied_deletes={path: frozenset(map(applied_delete, found)) for path, found in reaching.items()},
        starting_sequence_number=start,
        branch=branch,
        **options,
    )


def test_partitions_of_an_unknown_transform_are_in_no_order(catalog):
    table = memory_table(catalog, spec=BY_BUCKET)
    for name, bucket in (("a", 3), ("b", 70_000), ("c", None)):
        table = add(table, data_file(name, partition=(bucket,)))
    deletes = [equality_deletes(f"e{bucket}", partition=(bucket,)) for bucket in (3, 70_000, 5, None)]
    table = add(add_deletes(table, *deletes), data_file("d", partition=(3,)))
    Damager(catalog, EVENTS, Choices(1)).edit_metadata(
        lambda document: document["partition-specs"][0]["fields"][0].update(transform="curve[4]")
    )
    table = catalog.load(EVENTS)
    assert table.metadata.spec.has_unknown_transform
    assert dangling_deletes_count(table.metadata, "main", ManifestReader(table.storage)) == 1
    # The bounds of its summaries are of no type that is known, and so nothing is wrong with them.
    assert 206 not in {found.fault_id for found in check(table).faults}


def test_partition_deletes_go_with_last_reached_file(catalog):
    table = add_deletes(parted(catalog), equality_deletes("ex", **X), equality_deletes("ey", **Y))
    half = run(table, rewrite(table, "x1")).table
    assert live(half) == {"x1+": 1, "x2": 1, "y1": 1, "ex": 1, "ey": 1}
    whole = run(half, rewrite(half, "x2")).table
    assert live(whole) == {"x1+": 1, "x2+": 1, "y1": 1, "ey": 1}
    summary = whole.metadata.current_snapshot.summary
    assert (summary["removed-delete-files"], summary["removed-equality-deletes"]) == ("1", "1")
    assert (summary["operation"], summary["total-delete-files"]) == ("replace", "1")


def test_what_is_not_asked_for_stays(catalog):
    table = add_deletes(parted(catalog), equality_deletes("ex", **X))
    assert live(run(table, rewrite(table, "x1", "x2", remove_dangling=False)).table)["ex"] == 1


def test_position_deletes_of_equal_number_stay(catalog):
    """Position deletes as old as a new file may be for it and stay; older ones go."""
    table = add_deletes(parted(catalog), position_deletes("p4", "x1", "x2", **X), named=("x1", "x2"))
    at_start = run(table, rewrite(table, "x1", "x2")).table
    # The new files have the number of the start, which is that of the delete file: for all that numbers tell it may be theirs.
    assert live(at_start) == {"x1+": 1, "x2+": 1, "y1": 1, "p4": 1}
    later = run(at_start, rewrite(at_start, "x1+", "x2+", at_start=False)).table
    assert live(later) == {"x1++": 1, "x2++": 1, "y1": 1}


def test_global_delete_stays_for_older_file_of_any_spec(catalog):
    """Iceberg takes it for dangling where its own spec holds no data file, and the rows are back."""
    table = add_deletes(parted(catalog), equality_deletes("everywhere", spec_id=1))
    most = run(table, rewrite(table, "x1", "x2")).table
    assert live(most)["everywhere"] == 1
    assert "everywhere" not in live(run(most, rewrite(most, "y1")).table)


def test_vectors_go_with_their_data_file(catalog):
    """Vectors go with their data file, and also where another writer removed the file before."""
    table = add(memory_table(catalog, format_version=3), "a", "b", "c")
    table = add_deletes(table, deletion_vector("v", "a", 4), deletion_vector("v", "b", 44))
    # A writer that takes the data file out and leaves the vector.
    orphaned = run(table, DropsDataFile("b")).table
    assert live(orphaned) == {"a": 1, "c": 1, "v": 2}
    kept = run(orphaned, rewrite(orphaned, "c", remove_dangling=False)).table
    assert live(kept)["v"] == 2
    done = run(kept, rewrite(kept, "c+")).table
    (left,) = entries_of(done, "v")
    assert left.data_file.referenced_data_file == path_of("a")
    assert live(run(done, rewrite(done, "a")).table) == {"a+": 1, "c++": 1}


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


def test_removing_only_dangling_deletes_is_a_commit(catalog):
    table = parted(catalog)
    table = add_deletes(table, equality_deletes("ex", **X), equality_deletes("ez", partition=("z",)))
    before = len(catalog.swaps)
    done = run(table, rewrite(table))
    assert live(done.table) == {"x1": 1, "x2": 1, "y1": 1, "ex": 1}
    assert done.summary["removed-delete-files"] == "1"
    again = run(done.table, rewrite(done.table))
    assert (again.changed, len(catalog.swaps)) == (False, before + 1)
    assert not orphans(catalog)
    empty = memory_table(MemoryCatalog())
    assert run(empty, RewriteFiles(removed=(), added=(), schema_id=0, remove_dangling=True)).changed is False


def test_it_is_done_on_a_branch_by_what_the_branch_holds(catalog):
    table = add_deletes(parted(catalog), equality_deletes("ex", **X))
    table = set_ref(table, "other", table.metadata.current_snapshot_id, "branch")
    done = run(table, rewrite(table, "x1", "x2", branch="other")).table
    assert live(done, "other") == {"x1+": 1, "x2+": 1, "y1": 1}
    assert live(done)["ex"] == 1


def test_unpartitioned_tables_too(catalog):
    table = add_deletes(add(memory_table(catalog), "a", "b"), position_deletes("p", "a"), named=("a",))
    table = add(table, "c")
    done = run(table, rewrite(table, "a", "b", at_start=False)).table
    assert live(done) == {"a+": 1, "b+": 1, "c": 1}


def test_file_added_by_others_keeps_its_deletes(catalog):
    """The removal is decided on the base that it is committed to (nimtable/iceberg-compaction #163)."""
    table = add_deletes(parted(catalog), equality_deletes("ex", **X))

    def brings_an_old_file():
        # A rewrite of another run: its file keeps a number that is older than the delete.
        latest = catalog.load(EVENTS)
        old = rewrite(latest, "y1", added=(data_file("old", partition=("x",)),), remove_dangling=False)
        commit(latest, replace(old, data_sequence_number=1, applied_deletes={}), runtime=catalog.runtime)

    racing = Applying(rewrite(table, "x1", "x2"), attempt_1=brings_an_old_file)
    done = run(table, racing).table
    assert len(racing.bases) == 2
    assert live(done) == {"x1+": 1, "x2+": 1, "old": 1, "ex": 1}


def test_deletes_that_come_in_the_middle_are_looked_at_as_well(catalog):
    table = parted(catalog)
    unreached = equality_deletes("ez", partition=("z",))
    racing = Applying(
        rewrite(table, "x1"), attempt_1=lambda: add_deletes(table, unreached, equality_deletes("ey", **Y))
    )
    assert live(run(table, racing).table) == {"x1+": 1, "x2": 1, "y1": 1, "ey": 1}


@pytest.fixture
def opened(catalog):
    opened: list[str] = []
    catalog.storage.before = lambda what, at: opened.append(at) if what == "read" and "-m" in at else None
    return opened


def test_manifests_that_cannot_matter_are_not_opened(catalog, opened):
    """Manifests of other partitions, and of files newer than the deletes, are not opened."""
    table = add_deletes(parted(catalog), equality_deletes("ex", **X))
    table = add(table, data_file("x9", partition=("x",)))
    by_number = {m.min_sequence_number: m.manifest_path for m in manifests_of(table)}
    change = rewrite(table, "x1", manifest_paths=frozenset({by_number[1]}))
    opened.clear()
    run(table, change)
    # `x1` and `x2` may be reached, `y1` (3) lies elsewhere, `x9` (5) is newer than the delete (4).
    seen = {number for number, path in by_number.items() if path in opened}
    assert seen == {1, 2, 4}


@pytest.mark.parametrize("asked", ["x", "m", "y", None])
def test_partition_summaries_say_which_manifests_to_open(catalog, opened, asked):
    seen, is_live = opened_for(catalog, opened, asked)
    assert (seen, is_live) == ({asked}, True)


def test_all_manifests_are_opened_before_a_delete_file_goes(catalog, opened):
    seen, is_live = opened_for(catalog, opened, "n")
    assert (seen, is_live) == ({"m", None, "x", "y"}, False)


def opened_for(catalog, opened, asked):
    """Which of four partitions' manifests are opened for a delete file of one, and whether that is still live."""
    table = memory_table(catalog, spec=BY_KIND)
    for kind in ("m", None, "x", "y"):
        table = add(table, data_file(f"f-{kind}", partition=(kind,)))
    paths = {m.min_sequence_number: m.manifest_path for m in manifests_of(table)}
    table = add_deletes(table, equality_deletes("e", partition=(asked,)))
    opened.clear()
    done = run(table, rewrite_nothing(table)).table
    found = {kind for kind, number in (("m", 1), (None, 2), ("x", 3), ("y", 4)) if paths[number] in opened}
    return found, "e" in live(done)


def rewrite_nothing(table):
    return RewriteFiles(removed=(), added=(), schema_id=0, remove_dangling=True)


def test_new_delete_partitions_are_looked_up_again(catalog):
    """A retry asks a manifest again where new deletes are in partitions that it was not asked about."""
    table = memory_table(catalog, spec=BY_KIND)
    table = add(table, data_file("x1", partition=("x",)), data_file("y1", partition=("y",)))
    table = add_deletes(table, equality_deletes("ex", **X))
    table = add_deletes(add(table, data_file("z1", partition=("z",))), equality_deletes("ew", partition=("w",)))
    racing = Applying(rewrite(table, "z1"), attempt_1=lambda: add_deletes(table, equality_deletes("ey", **Y)))
    done = run(table, racing).table
    assert len(racing.bases) == 2
    assert live(done) == {"x1": 1, "y1": 1, "z1+": 1, "ex": 1, "ey": 1}


def test_a_second_attempt_opens_only_what_is_new(catalog, opened):
    table = add_deletes(parted(catalog), equality_deletes("ex", **X))
    paths = {m.min_sequence_number: m.manifest_path for m in manifests_of(table)}
    change = Applying(
        rewrite(table, "x1", manifest_paths=frozenset({paths[1]})),
        attempt_1=lambda: add(table, data_file("x7", partition=("x",))),
    )
    opened.clear()
    done = run(table, change).table
    seen = {number: opened.count(path) for number, path in paths.items()}
    assert live(done) == {"x1+": 1, "x2": 1, "x7": 1, "y1": 1, "ex": 1}
    assert len(change.bases) == 2
    # Each is read once, whatever is asked of it.
    assert seen == {1: 1, 2: 1, 3: 0, 4: 1}


def test_starting_number_is_ignored_without_added_files(catalog):
    table = add_deletes(parted(catalog), equality_deletes("everywhere", spec_id=1))
    table = add(table, data_file("x9", partition=("x",)))
    emptied = run(table, rewrite(table, "x1", "x2", "y1", added=(), data_sequence_number=3)).table
    assert live(emptied) == {"x9": 1}


@pytest.mark.parametrize("value", [float("nan"), -0.0, 1.5, None])
def test_nan_and_infinite_partitions_are_distinct(catalog, value):
    table = add(
        memory_table(catalog, spec=BY_SCORE), data_file("a", partition=(value,)), data_file("b", partition=(7.0,))
    )
    table = add_deletes(table, equality_deletes("e", partition=(value,)), equality_deletes("f", partition=(8.0,)))
    done = run(table, rewrite(table, "b")).table
    assert live(done) == {"a": 1, "b+": 1, "e": 1}
    assert live(run(done, rewrite(done, "a")).table) == {"a+": 1, "b+": 1}


_PLACES = [(0, ("x",)), (0, ("y",)), (0, (None,)), (1, ())]
_ACTS = st.tuples(st.sampled_from(["data", "positions", "equality", "one", "drop"]), st.sampled_from(_PLACES))


def _built(version, acts):
    """A small table of some commits in two specs; deletes lie where data may be, or nowhere."""
    table = memory_table(MemoryCatalog(), spec=BY_KIND, format_version=version)
    table = swap(table, AddPartitionSpec(replace(BY_KIND, spec_id=1, fields=())))
    at = {}
    for n, (what, (spec_id, partition)) in enumerate([("data", _PLACES[0]), *acts]):
        where = {"spec_id": spec_id, "partition": partition}
        there = [name for name, place in at.items() if place == (spec_id, partition)]
        if what == "data":
            table = add(table, data_file(f"f{n}", **where))
            at[f"f{n}"] = (spec_id, partition)
        elif what == "equality":
            table = add_deletes(table, equality_deletes(f"d{n}", **where))
        elif what == "drop" and len(at) > 1 and there:
            table = run(table, DropsDataFile(there[0])).table
            del at[there[0]]
        elif what in ("positions", "one") and there:
            try:
                if version == 3:
                    table = add_deletes(table, deletion_vector(f"d{n}", there[-1], **where))
                elif what == "one":
                    one = position_deletes(f"d{n}", there[-1], referenced_data_file=path_of(there[-1]), **where)
                    table = add_deletes(table, one)
                else:
                    table = add_deletes(table, position_deletes(f"d{n}", *there, **where), named=tuple(there))
            except ConflictError:
                continue
    return table


def _split(table):
    entries = entries_of(table)
    return [e for e in entries if e.data_file.content is FileContent.DATA], [
        e for e in entries if e.data_file.content is not FileContent.DATA
    ]


def _pairs(data, deletes, specs):
    return {(d.data_file.file_path, applied_delete(x)) for d in data for x in deletes if reaches(x, d, specs)}


def _reaches_by_numbers(delete, data, specs):
    """`reaches`, path bounds left aside."""
    bare = replace(delete, data_file=replace(delete.data_file, lower_bounds=None, upper_bounds=None))
    return reaches(bare, data, specs)


@pytest.mark.slow
@given(st.sampled_from([2, 3]), st.lists(_ACTS, max_size=8), st.data())
def test_only_dangling_deletes_are_removed(version, acts, draw):
    """No live data file loses a delete that reaches it, and no delete that reaches nothing is left."""
    table = _built(version, acts)
    data, deletes = _split(table)
    names = [e.data_file.file_path.rsplit("/", 1)[-1] for e in data]
    chosen = draw.draw(st.sets(st.sampled_from(names)))
    change = rewrite(table, *sorted(chosen), at_start=draw.draw(st.booleans()))
    if change.removed and draw.draw(st.booleans()):
        change = replace(change, added=())
    shared = draw.draw(st.booleans())
    done = commit(
        table, change, runtime=table.catalog.runtime, reader=SharingReader(table.storage) if shared else None
    ).table
    specs = table.metadata.specs_by_id
    data_after, deletes_after = _split(done)
    left = [e for e in data if e.data_file.file_path in {o.data_file.file_path for o in data_after}]
    assert _pairs(left, deletes, specs) == _pairs(left, deletes_after, specs)
    for delete in deletes_after:
        assert any(_reaches_by_numbers(delete, e, specs) for e in data_after)
    # And what went was dangling, by the sentences of the spec.
    gone = {applied_delete(d) for d in deletes} - {applied_delete(d) for d in deletes_after}
    for delete in deletes:
        if applied_delete(delete) in gone:
            assert not any(reaches(delete, e, specs) for e in data_after)
    assert not orphans(table.catalog)


TEXTS = st.one_of(st.none(), st.text(alphabet="abc", max_size=2))
NUMBERS = st.one_of(st.none(), st.floats(width=32))


def ranges(values, spec=BY_KIND, **changes):
    """The range of a manifest of files with these partition values; one that holds all where there is none."""
    files = [data_file(f"f{n}", partition=(value,)) for n, value in enumerate(values)]
    table = add(memory_table(MemoryCatalog(), spec=spec), *files)
    (manifest,) = manifests_of(table)
    return only_range(replace(manifest, **changes), table.metadata)


def only_range(manifest, metadata):
    return next(iter(partition_ranges(manifest, metadata)), FieldRange(True, True, None, None))


@given(st.lists(TEXTS, min_size=1, max_size=4), TEXTS)
def test_may_hold_is_true_between_bounds_only(values, asked):
    known = sorted(value for value in values if value is not None)
    expected = None in values if asked is None else bool(known) and known[0] <= asked <= known[-1]
    assert ranges(values).may_hold(asked) is expected


@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_of_numbers_whose_order_is_in_doubt_all_may_be_there(values):
    found = ranges(values, BY_SCORE)
    assert all(found.may_hold(value) for value in values)


def test_of_values_of_an_unknown_transform_all_may_be_there():
    field = replace(BY_KIND.fields[0], transform=UnknownTransform("zorder"))
    metadata = memory_table(MemoryCatalog(), spec=replace(BY_KIND, fields=(field,))).metadata
    (manifest,) = manifests_of(add(memory_table(MemoryCatalog(), spec=BY_KIND), data_file("f", partition=("b",))))
    found = only_range(manifest, metadata)
    assert all(found.may_hold(value) for value in ("a", 5, b"c"))
    assert (found.lower, found.upper, found.may_hold(None)) == (None, None, False)


def test_bounds_that_are_crossed_bound_nothing():
    crossed = FieldSummary(contains_null=False, lower_bound=b"y", upper_bound=b"b")
    found = ranges(["b", "y"], partitions=(crossed,))
    assert all(found.may_hold(value) for value in ("a", "b", "m", "y", "z"))
    assert (found.lower, found.upper) == (None, None)
    assert not found.may_hold(None)


def test_without_summaries_all_may_be_there():
    assert ranges(["b"], partitions=None).may_hold("a")


def test_missing_or_unreadable_bounds_bound_nothing():
    for lower, upper in ((None, b"c"), (b"a", None), (b"\xff", b"\xff")):
        found = ranges(["b"], partitions=(FieldSummary(contains_null=True, lower_bound=lower, upper_bound=upper),))
        assert found.may_hold("b")
    assert not ranges(["b"], partitions=(FieldSummary(contains_null=False, lower_bound=b"a"),)).may_hold(None)
    assert not ranges(["b"], partitions=(FieldSummary(contains_null=False, upper_bound=b"a"),)).may_hold("b")


@given(
    st.lists(st.sampled_from([None, *"abc"]), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from([None, *"abcd"]), st.integers(0, 3), max_size=3),
    st.integers(0, 3),
    st.booleans(),
)
@example(["b"], {"b": 1}, 1, True)
def test_manifests_that_may_hold_a_partition_are_opened(values, asked, least, is_told):
    files = [data_file(f"f{n}", partition=(value,)) for n, value in enumerate(values)]
    table = add(memory_table(MemoryCatalog(), spec=BY_KIND), *files)
    (manifest,) = manifests_of(table)
    manifest = replace(manifest, min_sequence_number=least, **({} if is_told else {"partitions": None}))
    scopes = DeleteScopes(partitions={(0, (value,)): number for value, number in asked.items()})
    found = only_range(manifest, table.metadata)
    expected = any(number >= least and found.may_hold(value) for value, number in asked.items())
    assert PossibleManifests(scopes, table.metadata).holds_reached_files(manifest) is expected


def test_unpartitioned_table_has_one_partition():
    table = add(memory_table(MemoryCatalog()), "a")
    possible = PossibleManifests(DeleteScopes(partitions={(0, ()): 1}), table.metadata)
    assert possible.holds_reached_files(manifests_of(table)[0])
    assert not possible.holds_reached_files(replace(manifests_of(table)[0], min_sequence_number=2))
    assert not possible.holds_reached_files(replace(manifests_of(table)[0], partition_spec_id=7))


NO_COUNTS = dict.fromkeys(
    (f"{status}_{what}_count" for status in ("added", "existing", "deleted") for what in ("files", "rows")), 0
)


def lie(table: Table, name: str, ref: str = "main", **row: Any) -> Table:
    """The table with other numbers in the rows of the manifests that list a file."""
    damager = Damager(table.catalog, EVENTS, Choices(1))
    head = table.metadata.head(ref)
    assert head is not None
    for manifest in damager.records(head.manifest_list or ""):
        entries = damager.records(manifest["manifest_path"])
        if any(entry["data_file"]["file_path"] == path_of(name) for entry in entries):
            damager.edit_row(manifest["manifest_path"], **row)
    return table.catalog.load(EVENTS)


def without_totals(table: Table) -> Table:
    """The table whose summaries tell no totals."""

    def change(document: dict[str, Any]) -> None:
        for snapshot in document["snapshots"]:
            snapshot["summary"] = {k: v for k, v in snapshot["summary"].items() if not k.startswith("total-")}

    Damager(table.catalog, EVENTS, Choices(1)).edit_metadata(change)
    return table.catalog.load(EVENTS)


def with_totals(table: Table, **totals: str) -> Table:
    """The table whose head says other totals."""

    def change(document: dict[str, Any]) -> None:
        head = next(s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"])
        head["summary"].update({name.replace("_", "-"): value for name, value in totals.items()})

    Damager(table.catalog, EVENTS, Choices(1)).edit_metadata(change)
    return table.catalog.load(EVENTS)


def parted_by_kind(**options: Any) -> Table:
    """`x1` and `y1`, a commit each, and a position delete file and equality deletes of `x`."""
    table = memory_table(MemoryCatalog(HookedStorage(MemoryStorage())), spec=BY_KIND, **options)
    for name in ("x1", "y1"):
        table = add(table, data_file(name, partition=(name[0],)))
    table = add_deletes(table, position_deletes("px", "x1", **X), named=("x1",))
    return add_deletes(table, equality_deletes("ex", **X))


def picked(table: Table) -> CherryPick:
    """A pick of a snapshot that is not on top of the head."""
    staged = run(table, Staged(AppendFiles(files=(data_file("s", **X),)))).table
    on_top = add(staged, data_file("x8", **X))
    other = {s.snapshot_id for s in on_top.metadata.snapshots} - {
        s.snapshot_id for s in on_top.metadata.ancestors(on_top.metadata.current_snapshot_id)
    }
    return CherryPick(snapshot_id=other.pop())


def rewriting(table: Table, *names: str, **options: Any) -> RewriteFiles:
    entries = entries_of(table, *names)
    return RewriteFiles(
        removed=entries,
        added=tuple(replace(e.data_file, file_path=f"{e.data_file.file_path}+") for e in entries),
        schema_id=0,
        **options,
    )


CHANGES: dict[str, Callable[[Table], Any]] = {
    "append": lambda table: AppendFiles(files=(data_file("n", **X),)),
    "delete": lambda table: DeleteFiles(rows=parse_where("kind = 'y'")),
    "overwrite": lambda table: OverwriteFiles(rows=parse_where("kind = 'y'"), added=(data_file("n", **Y),)),
    "row delta": lambda table: RowDelta(added_deletes=(equality_deletes("e9", **X),)),
    "rewrite": lambda table: rewriting(table, "y1"),
    "rewrite, dangling": lambda table: rewriting(table, "y1", remove_dangling=True),
    "rewrite manifests": lambda table: rewrite_manifests(
        table, chosen=lambda m: m.content is ManifestContent.DATA and m.may_have_live_files
    ),
    "rewrite manifests, dangling": lambda table: RewriteManifests(replaced=(), added=(), drop_dangling_deletes=True),
    "rewrite deletes": lambda table: RewriteDeletes(dangling=entries_of(table, "px"), format_version=2),
    "convert deletes": lambda table: ConvertDeletes(
        converted=entries_of(table, "ex"), format_version=2, starting_sequence_number=4
    ),
    "pick": picked,
}


@for_each("name", ["x1", "px", "ex"])
@for_each("kind", CHANGES)
def test_manifest_listed_as_empty_is_read_before_dropping(kind, name):
    """A manifest that only its list calls empty is read, and a wrong count stops the commit."""
    table = parted_by_kind()
    change = CHANGES[kind](table)
    table = without_totals(lie(table.catalog.load(EVENTS), name, **NO_COUNTS))
    with pytest.raises(
        InvalidTableError, match=r"holds 1 added entries.* says 0; run `icekeep repair --table NAME --fault 204`"
    ):
        run(table, change)
    assert table.catalog.load(EVENTS).metadata_location == table.metadata_location


@for_each("total", ["total_data_files", "total_delete_files"])
@for_each("kind", CHANGES)
def test_the_list_is_held_against_the_totals_of_the_summary(kind, total):
    """A list that was cut between two blocks reads as a whole, shorter one."""
    table = parted_by_kind()
    change = CHANGES[kind](table)
    table = with_totals(table.catalog.load(EVENTS), **{total: "9"})
    with pytest.raises(InvalidTableError, match=f"says {total.replace('_', '-')} 9; run `icekeep check"):
        run(table, change)


def test_manifests_that_are_empty_are_dropped_still():
    table = parted_by_kind()
    table = run(table, DeleteFiles(rows=parse_where("kind = 'y'"))).table
    assert len(manifests_of(table)) == 4
    table = add(table, data_file("n", **Y))
    assert set(live(table)) == {"x1", "px", "ex", "n"}
    assert all(manifest.may_have_live_files for manifest in manifests_of(table))


@for_each("drops", [True, False])
@for_each("lies", [{"min_sequence_number": 9}, {"partitions": None}, {"min_sequence_number": 9, "sequence_number": 9}])
def test_delete_stays_despite_wrong_list_of_data(lies, drops):
    """apache/iceberg #10962: delete files that are still required must not go."""
    summary = {"contains_null": False, "contains_nan": False, "lower_bound": b"q", "upper_bound": b"r"}
    row = {**lies, "partitions": [summary]}
    for change in (
        lambda table: rewriting(table, "y1", remove_dangling=drops),
        lambda table: RewriteManifests(replaced=(), added=(), drop_dangling_deletes=True),
        lambda table: DeleteFiles(rows=parse_where("kind = 'y'")),
    ):
        table = add(parted_by_kind(), data_file("x9", **X))
        # A merge by another writer: its entries keep their numbers.
        merged = run(table, rewrite_manifests(table, chosen=lambda m: m.content is ManifestContent.DATA, each=1)).table
        table = lie(merged, "x1", **row)
        done = run(table, change(table)).table
        assert {"x1", "px", "ex"} <= set(live(done))


@for_each("drops", [True, False])
def test_global_delete_stays_despite_wrong_list(drops):
    """A wrong minimum sequence number in the list does not drop deletes that reach an older file."""
    table = add_deletes(add(add(memory_table(), "a"), "b"), equality_deletes("e"))
    table = run(table, rewrite_manifests(table, chosen=lambda m: m.content is ManifestContent.DATA, each=1)).table
    table = lie(lie(table, "a", min_sequence_number=9), "b", min_sequence_number=9)
    table = run(table, rewriting(table, "b", remove_dangling=drops, applied_deletes=applied(table, "b"))).table
    assert live(table) == {"a": 1, "b+": 1, "e": 1}
    table = run(table, RewriteManifests(replaced=(), added=(), drop_dangling_deletes=True)).table
    assert live(table) == {"a": 1, "b+": 1, "e": 1}
    # Once nothing that is older is left they go.
    table = run(table, rewriting(table, "a", applied_deletes=applied(table, "a"))).table
    assert live(table) == {"a+": 1, "b+": 1}


def test_deletes_stay_for_an_older_file_that_came_meanwhile():
    table = memory_table()
    for name in ("a", "b", "c", "d"):
        table = add(table, name)
    table = add(add_deletes(table, equality_deletes("e")), "x")
    # Their entry says 5, as before.
    merged = run(table, rewrite_manifests(table, chosen=lambda m: m.content is ManifestContent.DELETES, each=1)).table
    table = lie(merged, "e", sequence_number=1, min_sequence_number=1)
    names = ("a", "b", "c", "d")
    change = rewriting(
        table, *names, applied_deletes=dict(pair for name in names for pair in applied(table, name).items())
    )
    # By the first attempt's base all data files that are left have greater numbers than 5; by the second's one has 4.
    table.catalog.follow(after(lambda: run(table, rewriting(table, "x", data_sequence_number=4))))
    done = run(table, change).table
    assert live(done) == {"a+": 1, "b+": 1, "c+": 1, "d+": 1, "x+": 1, "e": 1}


def applied(table: Table, name: str) -> dict[str, frozenset[Any]]:
    deletes = [e for e in entries_of(table) if e.data_file.content is not FileContent.DATA]
    return {path_of(name): frozenset(map(applied_delete, deletes))}


def test_no_conversion_past_a_data_file_with_a_wrong_number():
    table = add(add(memory_table(), "a"), "b")
    table = add_deletes(table, equality_deletes("e"))
    merged = run(table, rewrite_manifests(table, chosen=lambda m: m.content is ManifestContent.DATA, each=1)).table
    table = lie(merged, "a", min_sequence_number=9)
    change = ConvertDeletes(converted=entries_of(table, "e"), format_version=2, starting_sequence_number=4)
    with pytest.raises(ConflictError, match="/a', which equality deletes reach that are to go"):
        run(table, change)


def test_pick_reads_delete_manifests_despite_wrong_counts():
    table = parted_by_kind()
    both = RowDelta(
        added=(data_file("n", **X),),
        added_deletes=(equality_deletes("e9", **X),),
        summary={"replace-partitions": "true"},
    )
    staged = run(table, Staged(both)).table
    (picked_id,) = {s.snapshot_id for s in staged.metadata.snapshots} - {
        s.snapshot_id for s in table.metadata.snapshots
    }
    table = set_ref(add(staged, data_file("x8", **X)), "staged", picked_id)
    pick = CherryPick(snapshot_id=picked_id)
    with pytest.raises(UsageError, match="adds delete files"):
        run(table, pick)
    table = lie(table, "e9", "staged", added_files_count=0)
    with pytest.raises(UsageError, match="adds delete files"):
        run(table, pick)


@for_each("added", [lambda: equality_deletes("e", **X), lambda: data_file("x2", **X)])
def test_conflicts_are_found_whatever_partition_summaries_say(added):
    table = add(memory_table(spec=BY_KIND), data_file("x1", **X))
    change = OverwriteFiles(
        rows=parse_where("kind = 'x'"),
        starting_snapshot_id=table.metadata.current_snapshot_id,
        isolation=Isolation.SERIALIZABLE,
    )
    file = added()
    table = add(table, file) if file.content is FileContent.DATA else add_deletes(table, file)
    name = file.file_path.rpartition("/")[2]
    elsewhere = {"contains_null": False, "contains_nan": False, "lower_bound": b"q", "upper_bound": b"r"}
    table = lie(table, name, partitions=[elsewhere])
    with pytest.raises(ConflictError, match=f"/{name}', which may .* was added meanwhile"):
        run(table, change)


@for_each("rows", [0, 9, 11])
def test_row_ids_are_not_assigned_by_wrong_counts(rows):
    table = add(add(memory_table(), "a"), "b")
    table = swap(lie(table, "a", added_rows_count=rows), UpgradeFormatVersion(3))
    with pytest.raises(InvalidTableError, match=f"holds 10 live rows, .* says {rows}, .* --fault 205`"):
        run(table, AppendFiles(files=(data_file("c"),)))
    table = lie(table, "a", added_rows_count=10)
    done = run(table, AppendFiles(files=(data_file("c"),))).table
    assert sorted(entry.data_file.first_row_id for entry in entries_of(done)) == [0, 10, 20]


@for_each("name", ["x1", "ex"])
def test_a_file_that_is_newer_than_the_table_is_not_made_older(name):
    table = lie(parted_by_kind(), name, sequence_number=99)
    rewrite = RewriteFiles(
        removed=entries_of(table, "x1"),
        added=(data_file("x2", **X),),
        schema_id=0,
        applied_deletes={path_of("x1"): frozenset(map(applied_delete, entries_of(table, "px", "ex")))},
        data_sequence_number=table.metadata.last_sequence_number,
    )
    with pytest.raises(InvalidTableError, match=f"{name}' has sequence number 99, and the table is at 4:"):
        run(table, rewrite)


def test_conversion_replaces_vector_older_than_its_file():
    table = add(memory_table(MemoryCatalog(), format_version=3), "a")
    table = add_deletes(add_deletes(table, deletion_vector("v", "a")), equality_deletes("e"))
    table = lie(table, "v", sequence_number=0)
    [data] = entries_of(table, "a")
    conversion = ConvertDeletes(
        converted=entries_of(table, "e"),
        data_files=EntryDigests.of([entry_digest(data)]),
        added=(deletion_vector("w", "a"),),
        named=(ConvertedFile(data),),
        format_version=3,
        starting_sequence_number=table.metadata.last_sequence_number,
    )
    assert live(run(table, conversion).table) == {"a": 1, "w": 1}
