"""Every change beside everything that others may do between its plan and its commit, on a table in memory, with its rows.

No file is written: what each holds is said here, by name. A row is the name of the file that it was first in, and its number.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import (
    ChangeProperties,
    ChangeStatistics,
    RaiseLowCounters,
    UpdateSchema,
    UpdateSortOrder,
    UpdateSpec,
    UpgradeTable,
)
from icekeep.commit.changes.deletes import (
    AddedDeletes,
    ConvertDeletes,
    ConvertedFile,
    EntryDigests,
    NamedFile,
    RewriteDeletes,
    RowDelta,
)
from icekeep.commit.changes.files import AppendFiles, CherryPick, DeleteFiles, OverwriteFiles
from icekeep.commit.changes.repair_entries import RepairedEntry, RepairEntries
from icekeep.commit.changes.rewrites import RewriteFiles, RewriteManifests
from icekeep.commit.changes.snapshots import (
    CreateRef,
    DropRef,
    ExpireSnapshots,
    FastForwardBranch,
    RenameBranch,
    ReplaceRef,
    RestoreExpired,
    RollbackToSnapshot,
    SetCurrentSnapshot,
    SetRefRetention,
)
from icekeep.commit.conflicts import Isolation
from icekeep.commit.file_sets import entry_digest
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, IcekeepError
from icekeep.spec.evolution import AddColumn, AddPartitionField
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.reach import applied_delete, path_digest
from icekeep.spec.retention import RetentionPolicy
from icekeep.spec.snapshots import SnapshotRef, StatisticsFile
from icekeep.spec.sorting import SortKey
from icekeep.spec.types import STRING
from icekeep.spec.updates import RemoveSnapshots
from kit.cases import Choices
from kit.changes import SharingReader
from kit.damager import Damager
from kit.deletes import add_deletes, equality_deletes, path_of, position_deletes
from kit.memory_catalog import MemoryCatalog, after
from kit.tables import (
    EVENTS,
    add,
    data_file,
    entries_of,
    manifests_of,
    memory_table,
    orphans,
    set_ref,
    staged_manifest,
    stored,
    swap,
)

Row = tuple[str, int]


def whole(name: str) -> tuple[Row, ...]:
    """The ten rows of a file as it was written."""
    return tuple((name, number) for number in range(10))


POSITIONS: Mapping[str, frozenset[Row]] = {
    "p": frozenset({("a", 0), ("b", 0)}),
    "q": frozenset({("a", 1)}),
    "p+q": frozenset({("a", 0), ("a", 1), ("b", 0)}),
    "of e": frozenset({("a", 2), ("b", 2)}),
    "ours": frozenset({("b", 5)}),
    "theirs": frozenset({("a", 6)}),
}
"""Of position delete files: the places that they delete."""
KEYS: Mapping[str, frozenset[Row]] = {
    "e": frozenset({("a", 2), ("b", 2)}),
    "their keys": frozenset({("a", 7), ("b", 7)}),
}
"""Of equality delete files: the rows that they delete, wherever they are."""
COMPACTED = tuple(row for name in "ab" for row in whole(name) if row not in POSITIONS["p+q"] | KEYS["e"])
HOLDS = {"our a+b": COMPACTED, "their a+b": COMPACTED}
"""Of data files that are not as they were written: the rows that they hold, in order."""


def rows_of(table: Table, ref: str = "main") -> Counter[Row]:
    """The rows of a branch, by the specification's rules of which delete reaches which file."""
    head = table.metadata.head(ref)
    if head is None:
        return Counter()
    at_ref = replace(table, metadata=replace(table.metadata, current_snapshot_id=head.snapshot_id))
    entries = [(e.data_file.file_path.rpartition("/")[2], e.sequence_number or 0, e) for e in entries_of(at_ref)]
    places: dict[Row, int] = {}
    keys: dict[Row, int] = {}
    for name, number, entry in entries:
        if entry.data_file.content is FileContent.POSITION_DELETES:
            places |= {place: max(number, places.get(place, 0)) for place in POSITIONS[name]}
        elif entry.data_file.content is FileContent.EQUALITY_DELETES:
            keys |= {row: max(number, keys.get(row, 0)) for row in KEYS[name]}
    return Counter(
        row
        for name, number, entry in entries
        if entry.data_file.content is FileContent.DATA
        for position, row in enumerate(HOLDS.get(name) or whole(name))
        if places.get((name, position), -1) < number and keys.get(row, 0) <= number
    )


class Start(NamedTuple):
    """A table, and what it was before its first snapshot expired."""

    table: Table
    unexpired: Table


@cache
def _start() -> Start:
    """Version 2: on `main` `w`, which expired, and `z`; then `a` and `b` with deletes of all kinds. Other refs are at `z`."""
    table = memory_table(MemoryCatalog(), commit__retry__num_retries="2")
    table = add(add(table, "w"), "z")
    first, second = (s.snapshot_id for s in table.metadata.snapshots)
    unexpired = table
    table = swap(table, RemoveSnapshots((first,)))
    table = set_ref(set_ref(table, "side", second, "branch"), "behind", second, "branch")
    table = set_ref(table, "old", second)
    table = add(table, "side file", branch="side")
    table = add(table, "a", "b")
    table = add_deletes(table, position_deletes("p", "a", "b"), named=("a", "b"))
    table = add_deletes(table, position_deletes("q", "a"), named=("a",))
    table = add_deletes(table, equality_deletes("e"))
    return Start(table, unexpired)


def fresh() -> Start:
    """A start of its own, whose clock is a little later."""
    start = deepcopy(_start())
    start.table.catalog.runtime.pass_ms(1000)
    return start


class Act(NamedTuple):
    """A change or what others do: how it is done, and what it makes of the rows of `main`."""

    do: Callable[[Start], Any]
    effect: Callable[[Counter[Row]], Counter[Row]] = lambda rows: rows


def plus(name: str) -> Callable[[Counter[Row]], Counter[Row]]:
    """The rows of another file come."""
    return lambda rows: rows + Counter(whole(name))


def less(*gone: Row) -> Callable[[Counter[Row]], Counter[Row]]:
    """Some rows go, where they are there."""
    return lambda rows: rows - Counter(gone)


def instead(gone: str, name: str) -> Callable[[Counter[Row]], Counter[Row]]:
    """The rows of one file go, and those of another come."""
    return lambda rows: plus(name)(less(*whole(gone))(rows))


def only(*names: str) -> Callable[[Counter[Row]], Counter[Row]]:
    """Whatever there was, it is the rows of these files now."""
    return lambda _: Counter(row for name in names for row in whole(name))


def _head(table: Table) -> int:
    assert table.metadata.current_snapshot_id is not None
    return table.metadata.current_snapshot_id


def _tagged(table: Table) -> int:
    return table.metadata.refs["old"].snapshot_id


def _overwrite(table: Table, name: str, isolation: Isolation | None = None) -> OverwriteFiles:
    return OverwriteFiles(
        removed=entries_of(table, "a"),
        added=(data_file(name),),
        isolation=isolation,
        starting_snapshot_id=_head(table),
    )


def _row_delta(table: Table, isolation: Isolation | None = None) -> RowDelta:
    return RowDelta(
        added=(data_file("n"),),
        added_deletes=(position_deletes("ours", "b"),),
        named=frozenset({path_of("b")}),
        isolation=isolation,
        starting_snapshot_id=_head(table),
    )


def _rewrite(table: Table, name: str) -> RewriteFiles:
    of_a, of_b = (frozenset(map(applied_delete, entries_of(table, *names))) for names in ("pqe", "pe"))
    return RewriteFiles(
        removed=entries_of(table, "a", "b"),
        added=(data_file(name, len(COMPACTED)),),
        schema_id=0,
        applied_deletes={path_of("a"): of_a, path_of("b"): of_b},
        format_version=2,
        data_sequence_number=table.metadata.last_sequence_number,
    )


def _merge(table: Table) -> RewriteDeletes:
    rewritten = entries_of(table, "p", "q")
    numbers = [entry.sequence_number or 0 for entry in rewritten]
    return RewriteDeletes(
        rewritten=rewritten,
        added=(AddedDeletes(position_deletes("p+q", "a", "b"), max(numbers)),),
        named={path_digest(path_of(name)): NamedFile(kept_from=min(numbers)) for name in "ab"},
        format_version=2,
    )


def _convert(table: Table) -> ConvertDeletes:
    data = entries_of(table, "a", "b")
    return ConvertDeletes(
        converted=entries_of(table, "e"),
        data_files=EntryDigests.of(map(entry_digest, [*data, *entries_of(table, "w", "z")])),
        added=(position_deletes("of e", "a", "b"),),
        named=tuple(map(ConvertedFile, data)),
        format_version=2,
        starting_sequence_number=table.metadata.last_sequence_number,
    )


def _manifests(table: Table, name: str) -> RewriteManifests:
    data = [e for e in entries_of(table) if e.data_file.content is FileContent.DATA]
    listed = [m for m in manifests_of(table) if not m.content.value]
    return RewriteManifests(
        replaced=tuple(listed),
        added=(staged_manifest(table, data, name),),
        format_version=2,
    )


def _mended(table: Table, name: str, **said: Any) -> RepairEntries:
    """The entry of a file that says something else of it, or goes where nothing is said."""
    reader = ManifestReader(table.storage)
    [one] = [
        RepairedEntry(
            manifest=manifest.manifest_path,
            index=index,
            planned=entry,
            file=replace(entry.data_file, **said) if said else None,
        )
        for manifest in manifests_of(table)
        for index, entry in enumerate(reader.entries(manifest, table.metadata))
        if entry.is_live and entry.data_file.file_path == path_of(name)
    ]
    return RepairEntries(entries=(one,), recounts_totals=True, format_version=2)


def _raised(table: Table) -> RaiseLowCounters:
    """After another engine has forgotten how many columns there were."""
    damager = Damager(table.catalog, EVENTS, Choices(0))
    damager.edit_metadata(lambda document: document.update({"last-column-id": 0}))
    return RaiseLowCounters(frozenset({"last_column_id"}))


def _statistics(table: Table) -> ChangeStatistics:
    at = path_of("s.puffin")
    sizes = {"file_size_in_bytes": 100, "file_footer_size_in_bytes": 10}
    return ChangeStatistics(
        updates=(StatisticsFile(snapshot_id=_head(table), statistics_path=at, blob_metadata=[], **sizes),)
    )


EVERYTHING_OLD = RetentionPolicy(older_than_ms=2**62, retain_last=1)

CHANGES: Mapping[str, Act] = {
    "append": Act(lambda s: AppendFiles(files=(data_file("n"),)), plus("n")),
    "delete b": Act(lambda s: DeleteFiles(paths=frozenset({path_of("b")})), less(*whole("b"))),
    "overwrite a": Act(lambda s: _overwrite(s.table, "n"), instead("a", "n")),
    "  serializable": Act(lambda s: _overwrite(s.table, "n", Isolation.SERIALIZABLE), instead("a", "n")),
    "row delta on b": Act(lambda s: _row_delta(s.table), lambda rows: plus("n")(less(("b", 5))(rows))),
    "  snapshot": Act(lambda s: _row_delta(s.table, Isolation.SNAPSHOT), lambda rows: plus("n")(less(("b", 5))(rows))),
    "rewrite a, b": Act(lambda s: _rewrite(s.table, "our a+b")),
    "merge deletes": Act(lambda s: _merge(s.table)),
    "convert e": Act(lambda s: _convert(s.table)),
    "rewrite manifests": Act(lambda s: _manifests(s.table, "optimized-m-ours")),
    "mend b": Act(lambda s: _mended(s.table, "b", file_size_in_bytes=1)),
    "take out b": Act(lambda s: _mended(s.table, "b"), less(*whole("b"))),
    "expire": Act(lambda s: ExpireSnapshots(policy=EVERYTHING_OLD, now_ms=s.table.runtime.now_ms())),
    "restore": Act(
        lambda s: RestoreExpired(
            before=s.unexpired.metadata, snapshot_ids=(s.unexpired.metadata.snapshots[0].snapshot_id,)
        )
    ),
    "cherry-pick": Act(lambda s: CherryPick(s.table.metadata.refs["side"].snapshot_id), plus("side file")),
    "rollback": Act(
        lambda s: RollbackToSnapshot(snapshot_id=_tagged(s.table), expected_id=_head(s.table)), only("w", "z")
    ),
    "set current": Act(
        lambda s: SetCurrentSnapshot(snapshot_id=s.table.metadata.refs["side"].snapshot_id, expected_id=_head(s.table)),
        only("w", "z", "side file"),
    ),
    "create tag": Act(lambda s: CreateRef("new", SnapshotRef(snapshot_id=_head(s.table), type="tag"))),
    "move tag": Act(
        lambda s: ReplaceRef(name="old", type="tag", snapshot_id=_head(s.table), expected_id=_tagged(s.table))
    ),
    "fast-forward": Act(lambda s: FastForwardBranch("behind", _head(s.table))),
    "rename branch": Act(
        lambda s: RenameBranch(name="side", new_name="other", snapshot_id=s.table.metadata.refs["side"].snapshot_id)
    ),
    "drop tag": Act(lambda s: DropRef(name="old", type="tag", expected_id=_tagged(s.table))),
    "set retention": Act(lambda s: SetRefRetention(name="old", max_ref_age_ms=1)),
    "set property": Act(lambda s: ChangeProperties(updates={"k": "v"})),
    "add column": Act(lambda s: UpdateSchema((AddColumn("note", STRING),))),
    "add partition": Act(lambda s: UpdateSpec((AddPartitionField("kind"),))),
    "set order": Act(lambda s: UpdateSortOrder((SortKey("kind"),))),
    "upgrade": Act(lambda s: UpgradeTable(3, str(s.table.runtime.new_uuid()))),
    "statistics": Act(lambda s: _statistics(s.table)),
    "raise counters": Act(lambda s: _raised(s.table)),
}
"""Every change, as it was worked out on the start."""


def _now(start: Start) -> Table:
    return start.table.catalog.load(EVENTS)


def _does(change: str | Callable[[Table], Any]) -> Callable[[Start], object]:
    """Others commit a change to the table as it is now."""
    return lambda start: commit(_now(start), change(_now(start)), runtime=start.table.runtime)  # type: ignore[operator]


def _expires(start: Start) -> object:
    """Another append, and all else goes but what references name."""
    table = add(_now(start), "o")
    policy = ExpireSnapshots(policy=EVERYTHING_OLD, now_ms=table.runtime.now_ms())
    return commit(table, policy, runtime=table.runtime)


def _again(start: Start) -> object:
    """The table is dropped, and another one made of that name."""
    catalog: Any = start.table.catalog
    catalog.drop(EVENTS)
    return memory_table(catalog)


MEANWHILE: Mapping[str, Act] = {
    "append": Act(lambda s: add(_now(s), "o"), plus("o")),
    "delete a": Act(_does(lambda t: DeleteFiles(paths=frozenset({path_of("a")}))), less(*whole("a"))),
    "overw. a": Act(_does(lambda t: _overwrite(t, "o")), instead("a", "o")),
    "pos. a": Act(lambda s: add_deletes(_now(s), position_deletes("theirs", "a"), named=("a",)), less(("a", 6))),
    "eq.": Act(lambda s: add_deletes(_now(s), equality_deletes("their keys")), less(("a", 7), ("b", 7))),
    "rewrite": Act(_does(lambda t: _rewrite(t, "their a+b"))),
    "merge": Act(_does(_merge)),
    "convert": Act(_does(_convert)),
    "manif.": Act(_does(lambda t: _manifests(t, "optimized-m-theirs"))),
    "expire": Act(_expires, plus("o")),
    "rollback": Act(_does(lambda t: RollbackToSnapshot(snapshot_id=_tagged(t), expected_id=_head(t))), only("w", "z")),
    "retag": Act(_does(lambda t: ReplaceRef(name="old", type="tag", snapshot_id=_head(t), expected_id=_tagged(t)))),
    "column": Act(_does(lambda t: UpdateSchema((AddColumn("note", STRING),)))),
    "spec": Act(_does(lambda t: UpdateSpec((AddPartitionField("score"),)))),
    "upgrade": Act(_does(lambda t: UpgradeTable(3, "2d2b1ff2-3b5b-4f2f-a6b5-f6ac7c9e2c11"))),
    "drop": Act(_again, only()),
}
"""What others do after the change was worked out and before it is swapped in."""


class Cell(NamedTuple):
    """What became of a change, and what is wrong about it, if anything."""

    outcome: str
    wrong: str


def met(change: str, other: str, *, shared: bool = False) -> Cell:
    """Carry out a change whose first attempt meets what others did; `shared`: manifests are filtered in shares."""
    start, act, theirs = fresh(), CHANGES[change], MEANWHILE[other]
    catalog: Any = start.table.catalog
    asked = act.do(start)
    known = stored(catalog)
    hindered: list[IcekeepError] = []

    def others() -> None:
        before = stored(catalog)
        try:
            theirs.do(start)
        except IcekeepError as error:
            hindered.append(error)
        known.update(stored(catalog) - before)

    catalog.follow(after(others))
    reader = SharingReader(start.table.storage) if shared else None
    try:
        outcome = "lands" if commit(start.table, asked, reader=reader).changed else "nothing"
    except ConflictError:
        outcome = "anew"
    except IcekeepError:
        outcome = "refused"
    wanted = theirs.effect(_rows_of_the_start())
    if outcome == "lands":
        wanted = act.effect(wanted)
    found = rows_of(_now(start))
    wrong = [f"others could not act: {error}" for error in hindered]
    if found != wanted:
        wrong.append(f"rows lost {wanted - found}, rows too many {found - wanted}")
    if litter := orphans(catalog) - known:
        wrong.append(f"left behind {sorted(litter)}")
    return Cell(outcome, "; ".join(wrong))


@cache
def _rows_of_the_start() -> Counter[Row]:
    return rows_of(_start().table)
