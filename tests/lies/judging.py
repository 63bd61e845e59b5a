"""A table with one false statement in its files, and a job over it: readers keep the same rows, or the job refuses in a line."""

from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple, NoReturn

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.errors import IcekeepError, UnavailableError
from icekeep.maintenance.check.job import check
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.delete.locations import forget_locations
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.maintenance.repair.job import repair
from icekeep.spec.evolution import DropColumn
from icekeep.tables.verbs import update_schema
from kit.choices import Choices
from kit.damager import CannotDamageError, Damager
from kit.memory_catalog import MemoryCatalog
from kit.naive_scan import live_entries
from kit.our_histories import ByIcekeep
from kit.plain_reader import UnreadableError, plain_rows
from kit.row_histories import SPECS, VERSIONS, History, steps_of
from kit.runtime import FakeRuntime
from kit.storage import MemoryStorage
from lies.lying import Lie, lie

ALL = {"rewrite-all": "true"}
DANGLING = {"remove-dangling-deletes": "true"}
STEPS = 9
TEN_DAYS_MS = 10 * 24 * 3_600_000
FAR_AHEAD_MS = 4_102_444_800_000

Job = Callable[[Table], Any]


def no_spark() -> NoReturn:
    """Refuse: a number that is too large makes little work look like much."""
    raise UnavailableError("Spark was asked for, for a table of a few rows")


def _repair(table: Table) -> Any:
    """Whatever `check` finds, with no loss accepted."""
    result = check(table, no_spark, deep=True)
    found = sorted({one.fault_id for one in (*result.faults, *result.notices)})
    return repair(table, no_spark, fault=found) if found else None


JOBS: Mapping[str, Job] = {
    "compact": lambda table: compact(table, no_spark, options=ALL),
    "compact, dangling": lambda table: compact(table, no_spark, options={**ALL, **DANGLING}),
    "compact, deletes": lambda table: compact(table, no_spark, options={"delete-file-threshold": "1"}),
    "sort": lambda table: compact(table, no_spark, sort_order="id", options=ALL),
    "rewrite_manifests": lambda table: rewrite_manifests(table, no_spark),
    "rewrite_manifests, dangling": lambda table: rewrite_manifests(table, no_spark, options=DANGLING),
    "rewrite_position_deletes": lambda table: rewrite_position_deletes(table, no_spark, options=ALL),
    "convert_equality_deletes": lambda table: convert_equality_deletes(table, no_spark),
    "expire_snapshots": lambda table: expire_snapshots(
        table, no_spark, older_than=FAR_AHEAD_MS, retain_last=1, trash=0, clean_expired_metadata=True
    ),
    "remove_orphan_files": lambda table: remove_orphan_files(table, no_spark, trash=0, force=True),
    "repair": _repair,
}


CLEANING = ("expire_snapshots",)
"""Jobs after which nothing may be wrong that was right: what they take out of metadata is needed by no reader of rows alone."""


class Verdict(NamedTuple):
    """What came of a lie and a job.

    Attributes:
        outcome: `kept`, `refused`, `unreadable` where no reader of the specification could read the table, or `lost`.
        is_seen_by_none: whether the rows of a reader of the specification are others for the lie: nobody could know.
        text: what the job said, or which rows are lost or new.
    """

    lie: Lie
    job: str
    outcome: str
    is_seen_by_none: bool = False
    text: str = ""


@cache
def history(number: int) -> History:
    """The `history_in` of a number, in memory."""
    runtime = FakeRuntime()
    catalog = MemoryCatalog(MemoryStorage(runtime), runtime)
    catalog.create_namespace(("db",))
    return history_in(catalog, number)


def history_in(catalog: Catalog, number: int) -> History:
    """A table of Parquet files, with deletes of all kinds; some have manifests rewritten, or lost a column that deletes need."""
    chosen = Choices(number)
    made = History(ByIcekeep(catalog, f"lies{number}"), chosen.choice(VERSIONS), chosen.choice(SPECS), ("PARQUET",))
    steps = steps_of(number)
    made.went_on([*steps[:STEPS], *steps[-2:]])
    if chosen.random() < 0.4:
        rewrite_manifests(made.table, no_spark)
        made.went_on([("append", chosen.getrandbits(31)), ("equality", chosen.getrandbits(31))])
    if chosen.random() < 0.5:
        _drop_a_deleted_column(made, chosen.getrandbits(31))
    return made


def _drop_a_deleted_column(made: History, number: int) -> None:
    """One by which live deletes compare; the snapshot after it has a schema without."""
    table = made.table
    sources = {id_ for spec in table.metadata.partition_specs for field in spec.fields for id_ in field.source_ids}
    compared = {
        id_
        for entry in live_entries(table)
        for id_ in entry.data_file.equality_ids or ()
        if id_ not in sources and id_ != 1
    }
    names = [field.name for field in table.metadata.schema.fields if field.field_id in compared]
    if names:
        update_schema(table, [DropColumn(names[0])])
        made.went_on([("append", number)])


def judged(number: int, tables: int, job: str = "", kind: str = "") -> Verdict | None:
    """Put the lie of a number into one of so many tables and run a job over it, both drawn by lot where none is named.

    Returns:
        `None` where there was nothing to lie about in that way.

    Raises:
        AssertionError: an error was not icekeep's own, or more than a line.
    """
    chosen = Choices(number)
    by = history(chosen.randrange(tables)).by
    name = job or chosen.choice(list(JOBS))
    catalog: Any = deepcopy(by.catalog)
    forget_locations()
    try:
        one = lie(Damager(catalog, by.identifier, Choices(chosen.getrandbits(31))), kind)
    except CannotDamageError:
        return None
    catalog.runtime.pass_ms(TEN_DAYS_MS)
    sound = sound_rows(by)
    try:
        before = _rows(catalog, by.identifier)
    except UnreadableError:
        before = None
    faults = _faults(catalog, by.identifier) if name in CLEANING else None
    try:
        JOBS[name](catalog.load(by.identifier))
    except IcekeepError as error:
        text, outcome = str(error), "refused"
    else:
        text, outcome = "", "kept"
    assert len(text.splitlines()) <= 1, text
    if before is None:
        return Verdict(one, name, "unreadable", text=text)
    try:
        after = _rows(catalog, by.identifier)
    except UnreadableError as error:
        return Verdict(one, name, "lost", sound != before, f"unreadable now: {error}")
    if faults is not None and outcome == "kept":
        new = (_faults(catalog, by.identifier) or set()) - faults
        if new:
            return Verdict(one, name, "lost", sound != before, f"faults that were not there: {sorted(new)}")
    if after != before:
        text = f"lost {sorted((before - after).elements())[:3]}, new {sorted((after - before).elements())[:3]}"
        return Verdict(one, name, "lost", sound != before, text)
    return Verdict(one, name, outcome, sound != before, text)


@cache
def sound_rows(by: ByIcekeep) -> Counter[str]:
    """Of the table before any lie."""
    return _rows(by.catalog, by.identifier)


def _faults(catalog: Any, identifier: Identifier) -> set[int] | None:
    """What `check` finds without reading files; null where it cannot."""
    try:
        return {one.fault_id for one in check(catalog.load(identifier), no_spark).faults}
    except IcekeepError:
        return None


def _rows(catalog: Any, identifier: Identifier) -> Counter[str]:
    pointer = catalog.find(identifier)
    return plain_rows(pointer.storage.read, pointer.metadata_location)
