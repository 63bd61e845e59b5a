"""Numbers that another writer got wrong in a manifest list or a summary: no change drops a file by them alone."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import ConvertDeletes, ConvertedFile, EntryDigests, RewriteDeletes, RowDelta
from icekeep.commit.changes.files import AppendFiles, CherryPick, DeleteFiles, OverwriteFiles
from icekeep.commit.changes.rewrites import RewriteFiles, RewriteManifests
from icekeep.commit.conflicts import Isolation
from icekeep.commit.file_sets import entry_digest
from icekeep.errors import ConflictError, InvalidTableError, UsageError
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import FileContent, ManifestContent
from icekeep.spec.reach import applied_delete
from icekeep.spec.updates import UpgradeFormatVersion
from kit.cases import Choices, for_each
from kit.changes import Staged, run
from kit.damager import Damager
from kit.deletes import add_deletes, deletion_vector, equality_deletes, path_of, position_deletes
from kit.memory_catalog import MemoryCatalog, after
from kit.rewritten_manifests import rewrite_staged as rewrite_manifests
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import BY_KIND, EVENTS, add, data_file, entries_of, live, manifests_of, memory_table, set_ref, swap

NO_COUNTS = dict.fromkeys(
    (f"{status}_{what}_count" for status in ("added", "existing", "deleted") for what in ("files", "rows")), 0
)
X, Y = {"partition": ("x",)}, {"partition": ("y",)}


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


def parted(**options: Any) -> Table:
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
def test_what_only_the_list_calls_empty_is_read_before_it_is_dropped(kind, name):
    table = parted()
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
    table = parted()
    change = CHANGES[kind](table)
    table = with_totals(table.catalog.load(EVENTS), **{total: "9"})
    with pytest.raises(InvalidTableError, match=f"says {total.replace('_', '-')} 9; run `icekeep check"):
        run(table, change)


def test_manifests_that_are_empty_are_dropped_still():
    table = parted()
    table = run(table, DeleteFiles(rows=parse_where("kind = 'y'"))).table
    assert len(manifests_of(table)) == 4
    table = add(table, data_file("n", **Y))
    assert set(live(table)) == {"x1", "px", "ex", "n"}
    assert all(manifest.may_have_live_files for manifest in manifests_of(table))


@for_each("drops", [True, False])
@for_each("lies", [{"min_sequence_number": 9}, {"partitions": None}, {"min_sequence_number": 9, "sequence_number": 9}])
def test_a_delete_file_stays_whatever_the_list_says_of_the_data_that_it_reaches(lies, drops):
    """apache/iceberg #10962: delete files that are still required must not go."""
    summary = {"contains_null": False, "contains_nan": False, "lower_bound": b"q", "upper_bound": b"r"}
    row = {**lies, "partitions": [summary]}
    for change in (
        lambda table: rewriting(table, "y1", remove_dangling=drops),
        lambda table: RewriteManifests(replaced=(), added=(), drop_dangling_deletes=True),
        lambda table: DeleteFiles(rows=parse_where("kind = 'y'")),
    ):
        table = add(parted(), data_file("x9", **X))
        # A merge by another writer: its entries keep their numbers.
        merged = run(table, rewrite_manifests(table, chosen=lambda m: m.content is ManifestContent.DATA, each=1)).table
        table = lie(merged, "x1", **row)
        done = run(table, change(table)).table
        assert {"x1", "px", "ex"} <= set(live(done))


@for_each("drops", [True, False])
def test_global_deletes_stay_while_an_older_data_file_is_there_whatever_the_list_says(drops):
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


def test_a_pick_reads_delete_manifests_that_the_list_says_add_nothing():
    table = parted()
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
def test_row_ids_are_not_given_out_by_counts_that_the_list_has_wrong(rows):
    table = add(add(memory_table(), "a"), "b")
    table = swap(lie(table, "a", added_rows_count=rows), UpgradeFormatVersion(3))
    with pytest.raises(InvalidTableError, match=f"holds 10 live rows, .* says {rows}, .* --fault 205`"):
        run(table, AppendFiles(files=(data_file("c"),)))
    table = lie(table, "a", added_rows_count=10)
    done = run(table, AppendFiles(files=(data_file("c"),))).table
    assert sorted(entry.data_file.first_row_id for entry in entries_of(done)) == [0, 10, 20]


@for_each("name", ["x1", "ex"])
def test_a_file_that_is_newer_than_the_table_is_not_made_older(name):
    table = lie(parted(), name, sequence_number=99)
    rewrite = RewriteFiles(
        removed=entries_of(table, "x1"),
        added=(data_file("x2", **X),),
        schema_id=0,
        applied_deletes={path_of("x1"): frozenset(map(applied_delete, entries_of(table, "px", "ex")))},
        data_sequence_number=table.metadata.last_sequence_number,
    )
    with pytest.raises(InvalidTableError, match=f"{name}' has sequence number 99, and the table is at 4:"):
        run(table, rewrite)


def test_a_vector_that_is_older_than_its_data_file_goes_where_the_file_is_given_one():
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
