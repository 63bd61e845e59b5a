"""The look at all tables before any work: which the policies reach, what is in force for each, how healthy it is; read once.

Runs tell each other by the record of runs who works on a table, and how jobs ended there. No safety rests on it: two
runs on one table commit beside each other as any two writers do. Where the record is out of reach a warning says so
once, and the run goes on as if it were alone. What a job asks of the stores of its table is counted by wrapping the
table.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table, format_identifier
from icekeep.catalog.wrappers import CatalogWrapper
from icekeep.errors import IcekeepError, NotFoundError, and_more, first_line, shown_command
from icekeep.events import SILENT, Listener, Warned
from icekeep.fleet.choosing import (
    NEVER_RAN,
    NOT_KNOWN,
    Choice,
    JobEstimate,
    Slots,
    Verdict,
    Worth,
    choices,
    estimate_of,
    may_begin,
    one_slot,
    value_of,
    worth_of,
)
from icekeep.health.prices import Prices
from icekeep.health.values import TableHealth
from icekeep.names import catalog_of, full_name
from icekeep.planning.memory import Memory
from icekeep.planning.spark.session import SparkSource
from icekeep.policies.resolution import JobRule, TableRules, never_run
from icekeep.policies.table_properties import Problem
from icekeep.policies.values import Glob, Policy, Rules
from icekeep.reports.job import look_over, tables_matching
from icekeep.reports.values import NotRead
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import BEAT_EVERY_MS, SILENT_MS, LastRuns, Paces, RunFilter
from icekeep.runs import RUNNING
from icekeep.runtime import Runtime
from icekeep.storage.wrappers import CountedStorage, Meter

T = TypeVar("T")

LEASE_MS = SILENT_MS
"""A run that does not prolong its leases for so long has died."""


class TableLeases:
    """The leases of one run; without a record it gets each that it asks for."""

    def __init__(self, records: RunRecords | None, holder: str, runtime: Runtime, listener: Listener) -> None:
        self._records, self._holder, self._runtime, self._listener = records, holder, runtime, listener
        self._has_warned = threading.Event()

    def take(self, table: str) -> str | None:
        """Take the lease of a table; `None` where that is ours now, else the run that has it and lives."""
        records, now_ms = self._records, self._runtime.now_ms()
        if records is None:
            return None
        until_ms = now_ms + LEASE_MS

        def work() -> str:
            holder = records.take_lease(table, self._holder, until_ms, now_ms)
            if holder != self._holder and self._has_ended(records, holder, now_ms):
                records.drop_lease(table, holder)
                holder = records.take_lease(table, self._holder, until_ms, now_ms)
            return holder

        holder = self._guarded(work, self._holder)
        return None if holder == self._holder else holder

    def drop(self, table: str) -> None:
        """Give it back."""
        if (records := self._records) is not None:
            self._guarded(lambda: records.drop_lease(table, self._holder), None)

    def last_of(self, tables: Collection[str]) -> Mapping[tuple[str, str], LastRuns] | None:
        """What is known of the last runs of each job, by table and job; `None` where the record is out of reach."""
        if (records := self._records) is None or not tables:
            return {}
        now_ms = self._runtime.now_ms()
        return self._guarded(lambda: records.last_of(tables, now_ms), None)

    def paces(self) -> Paces:
        """How much longer than rates say jobs took lately; nothing is known where the record is out of reach."""
        if (records := self._records) is None:
            return Paces()
        now_ms = self._runtime.now_ms()
        return self._guarded(lambda: records.paces(now_ms), Paces())

    @contextmanager
    def prolonged(self) -> Iterator[None]:
        """Prolong what the run has while the block lasts."""
        over = threading.Event()

        def beat(records: RunRecords) -> None:
            while not over.wait(BEAT_EVERY_MS / 1000):
                self._guarded(partial(records.renew_leases, self._holder, self._runtime.now_ms() + LEASE_MS), None)

        thread: threading.Thread | None = None
        if self._records is not None:
            thread = threading.Thread(target=beat, args=(self._records,), name="leases", daemon=True)
            thread.start()
        try:
            yield
        finally:
            over.set()
            if thread is not None:
                thread.join()

    def _has_ended(self, records: RunRecords, holder: str, now_ms: int) -> bool:
        """Whether a run is known to be over: its record says so, or its process on this machine is gone."""
        return any(
            one.status != RUNNING or one.is_unfinished(now_ms)
            for one in records.select(RunFilter(run_id=holder), now_ms)
            if one.run_id == holder
        )

    def _guarded(self, work: Callable[[], T], otherwise: T) -> T:
        try:
            return work()
        except IcekeepError as error:
            if not self._has_warned.is_set():
                self._has_warned.set()
                self._listener.on(
                    Warned(
                        f"{error.message}; the run goes on, and does not know what other runs do, nor what earlier ones did"
                    )
                )
            return otherwise


Resolve = Callable[[Catalog, Identifier, Mapping[str, str] | None], tuple[TableRules, tuple[Problem, ...]]]
"""What is in force for a table by the file, the catalog and the table's properties, `None` where nobody can read these."""


_SHOWN = 5


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Which tables and jobs a run is about.

    Attributes:
        policy: only jobs of which this one decides. Without it those of all that have a schedule: what has none is run by hand.
        match: only tables of this pattern over `namespace.table`.
        match_text: the pattern as it was given, maybe with a catalog in front.
        tables: only tables of these full names.
    """

    policy: str | None = None
    match: Glob | None = None
    match_text: str = ""
    tables: frozenset[str] | None = None

    @property
    def is_part(self) -> bool:
        """Whether it is about some tables only."""
        return self.match is not None or self.tables is not None

    def has_table(self, full_name: str, name: str) -> bool:
        """Whether the run is about a table, by its full name and its name in the catalog."""
        return (self.match is None or self.match.matches(name)) and (self.tables is None or full_name in self.tables)

    def has_policy(self, policy: Policy) -> bool:
        """Whether the run is about a policy's jobs."""
        return policy.schedule is not None if self.policy is None else policy.name == self.policy


class ScanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the look needs.

    Attributes:
        slots: how many tasks of a job would run at once, for estimates.
    """

    rules: Rules
    scope: Scope
    resolve: Resolve
    memory: Memory
    spark: SparkSource = None
    prices: Prices | None = None
    listener: Listener = SILENT
    slots: Slots = one_slot


class PolicyTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that policies reach.

    Attributes:
        choices: its jobs, in the order in which they run.
        health: `None` where it cannot be told (`not_read` says why), or nothing of it may be begun now.
        table_uuid: of the table that was looked at; `None` where it could not be read.
        seen_ms: when the look began; what other runs have done since is done.
        paces: what the last runs teach of estimates.
    """

    catalog: Catalog
    identifier: Identifier
    choices: tuple[Choice, ...]
    problems: tuple[Problem, ...]
    health: TableHealth | None
    not_read: NotRead | None
    seen_ms: int
    table_uuid: str | None = None
    slots: Slots = one_slot
    paces: Paces = Paces()

    @property
    def name(self) -> str:
        """`catalog.namespace.table`."""
        return full_name(self.catalog.name, self.identifier)

    @property
    def due(self) -> tuple[Choice, ...]:
        """The jobs that are due."""
        return tuple(one for one in self.choices if one.verdict is Verdict.DUE)

    @property
    def tried_ms(self) -> int | None:
        """When the last of its due jobs was tried; `None`: none ever was, as far as is known."""
        return max((one.last.last_try_ms for one in self.due if one.last.last_try_ms is not None), default=None)

    @property
    def cut_off_ms(self) -> int | None:
        """When the last of its due jobs was cut off that has not ended well since; `None`: there is none."""
        return max((one.last.last_cut_off_ms for one in self.due if one.last.last_cut_off_ms is not None), default=None)

    def value(self, prices: Prices | None) -> float:
        """Benefit for cost of what is due."""
        return value_of(self._worth(one, prices) for one in self.due)

    def estimate(self, choice: Choice) -> JobEstimate:
        """What a job takes."""
        size = 0 if self.health is None else self.health.data.data_files_bytes
        pace = self.paces.of(self.name, choice.call.job).elapsed
        return estimate_of(choice.call.job, choice.call.arguments, choice.advice, size, self.slots, pace)

    def _worth(self, choice: Choice, prices: Prices | None) -> Worth:
        ran_ms = choice.last.last_ok_ms
        return worth_of(choice.advice, None if ran_ms is None else self.seen_ms - ran_ms, prices)


class Overview(msgspec.Struct, frozen=True):
    """All that was seen: tables in the order in which they are worked on, those without due jobs last, by name.

    Attributes:
        not_read: what could not be read or listed, and the tables that were asked for by name and that no policy reaches.
        notes: which jobs policies with a schedule ask for that no schedule runs, and what of the policies fits no table.
    """

    tables: tuple[PolicyTable, ...]
    not_read: tuple[NotRead, ...]
    other_tables_count: int
    notes: tuple[str, ...] = ()


def look(catalogs: Mapping[str, tuple[Catalog, TableLeases]], settings: ScanSettings) -> Overview:
    """Look at the tables of some catalogs. A catalog or namespace that cannot be listed is told, and stops nothing.

    Raises:
        NotFoundError: tables were asked for by pattern or name, and policies reach none of them.
        UnavailableError: the only catalog is out of reach.
    """
    seen: list[PolicyTable] = []
    not_read: list[NotRead] = []
    listed: dict[str, frozenset[str]] = {}
    found: set[str] = set()
    in_force: list[TableRules] = []
    scope, policies = settings.scope, [one for one in settings.rules.policies if settings.scope.has_policy(one)]
    others_count = 0
    for catalog, leases in catalogs.values():
        failed_count = len(not_read)
        everything: Sequence[Identifier] = ()
        try:
            everything = tables_matching(catalog, None, not_read)
        except IcekeepError as error:
            if len(catalogs) == 1:
                raise
            not_read.append(NotRead(name=f"{catalog.name}.*", kind=error.kind, reason=first_line(error)))
        if len(not_read) == failed_count:
            listed[catalog.name] = frozenset(full_name(catalog.name, one) for one in everything)
        names = [one for one in everything if scope.has_table(full_name(catalog.name, one), format_identifier(one))]
        reached = [one for one in names if any(p.reaches(full_name(catalog.name, one)) for p in policies)]
        others_count += len(names) - len(reached)
        found |= {full_name(catalog.name, one) for one in reached}
        one_look = _Look(catalog, leases, settings)
        seen += one_look.at(reached)
        in_force += one_look.in_force.values()
    missed = [*_missed(settings, found, listed)]
    if not found and not not_read and scope.is_part:
        among = _why(missed) if scope.match is None else _unlike(settings, [*catalogs])
        raise NotFoundError(f"no table that the policies of this run reach is among those that {among}")
    ordered = in_order(seen, settings.prices)
    notes = [one.line for one in never_run(settings.rules, in_force, {one.name for one in policies})]
    if not scope.is_part:
        notes += _unmatched(policies, listed)
    return Overview(ordered, (*not_read, *missed), others_count, tuple(notes))


def _missed(settings: ScanSettings, found: Collection[str], listed: Mapping[str, Collection[str]]) -> Iterator[NotRead]:
    """The tables that were asked for by name, and that no policy reaches; of a catalog that is not listed nobody knows."""
    for name in sorted(set(settings.scope.tables or ()) - set(found)):
        if catalog_of(name) in listed:
            reason = f"no policy of this run reaches it; `{_explains(name)}` says why"
            yield NotRead(name=name, kind=NotFoundError.kind, reason=reason)


def _why(missed: Sequence[NotRead]) -> str:
    names = [repr(one.name) for one in missed]
    why = f": {names[0]}{and_more(names)}; `{_explains(missed[0].name)}` says why" if missed else ""
    return f"were asked for{why}"


def _unlike(settings: ScanSettings, catalogs: Sequence[str]) -> str:
    one = ("--catalog", *catalogs) if len(catalogs) == 1 else ()
    return f"match {settings.scope.match_text!r}; `{shown_command('report', *one)}` lists all"


def _explains(name: str) -> str:
    return shown_command("policy", "explain", "--table", name)


def _unmatched(policies: Iterable[Policy], listed: Mapping[str, Collection[str]]) -> Iterator[str]:
    """What policies name and no table is, one line a policy; nothing is said of catalogs that could not be listed whole."""
    for policy in policies:
        lost = [repr(glob.text) for glob in policy.match if _fits_nothing(policy, glob, listed)]
        lost += [repr(one) for one in policy.tables if one not in listed.get(catalog_of(one), (one,))]
        if lost:
            shown = f"{', '.join(lost[:_SHOWN])}{and_more(lost, _SHOWN)}"
            yield f"policy {policy.name!r}: no table is meant by {shown}; `{shown_command('policy', 'check')}` tells more"


def _fits_nothing(policy: Policy, glob: Glob, listed: Mapping[str, Collection[str]]) -> bool:
    catalogs = policy.catalogs if glob.catalog is None else frozenset({glob.catalog})
    if catalogs is None or not catalogs <= listed.keys():
        return False
    return not any(glob.matches(name) for catalog in catalogs for name in listed[catalog])


def in_order(tables: Iterable[PolicyTable], prices: Prices | None) -> tuple[PolicyTable, ...]:
    """Tables in the order in which they are worked on, those without due jobs last, by name.

    A table with a job that was cut off comes after all that have not been tried since: or it would be the first in each night,
    and be cut off again, and the others would never have their turn.
    """
    in_turn = sorted((one for one in tables if one.cut_off_ms is None), key=lambda one: _order(one, prices))
    for late in sorted((one for one in tables if one.cut_off_ms is not None), key=lambda one: one.cut_off_ms or 0):
        order = _order(late, prices)
        by_value = next((n for n, one in enumerate(in_turn) if _order(one, prices) > order), len(in_turn))
        waiting = [n for n, one in enumerate(in_turn) if one.due and (one.tried_ms or 0) < (late.cut_off_ms or 0)]
        in_turn.insert(max(by_value, waiting[-1] + 1 if waiting else 0), late)
    return tuple(in_turn)


def _order(one: PolicyTable, prices: Prices | None) -> tuple[Any, ...]:
    score = 0.0 if one.health is None else one.health.score
    return not one.due, -one.value(prices), score, one.name


class _Look:
    """The tables of one catalog.

    Attributes:
        in_force: all that policies say of each table, also of jobs that this run leaves out.
    """

    def __init__(self, catalog: Catalog, leases: TableLeases, settings: ScanSettings) -> None:
        self._catalog, self._leases, self._settings = catalog, leases, settings
        self.in_force: dict[Identifier, TableRules] = {}
        self._in_force: dict[Identifier, tuple[TableRules, tuple[Problem, ...]]] = {}
        self._left_out: set[Identifier] = set()
        self._uuids: dict[Identifier, str | None] = {}
        self._last: dict[str, dict[str, LastRuns]] = {}
        self._is_known = True
        self._paces = leases.paces()
        self._now_ms = catalog.runtime.now_ms()

    def at(self, identifiers: list[Identifier]) -> Iterator[PolicyTable]:
        """Look at these; one that is dropped meanwhile is left out."""
        last = self._leases.last_of([full_name(self._catalog.name, one) for one in identifiers])
        self._is_known = last is not None
        for (table, job), runs in (last or {}).items():
            self._last.setdefault(table, {})[job] = runs
        settings = self._settings
        found = look_over(
            self._catalog,
            identifiers,
            settings.spark,
            prices=settings.prices,
            prepare=self._prepared,
            listener=settings.listener,
        )
        for identifier, one in zip(identifiers, found, strict=True):
            seen = self._seen(identifier, one)
            if seen is not None:
                yield seen

    def _prepared(self, table: Table) -> Table | None:
        """The table, if any of its jobs may begin now."""
        self._uuids[table.identifier] = table.metadata.table_uuid
        self._in_force[table.identifier] = rules, _ = self._resolved(table.identifier, table.metadata.properties)
        last, now_ms = self._last_of(table.identifier, rules), self._now_ms
        may = any(may_begin(rule, last[rule.job], now_ms)[0] is Verdict.DUE for rule in rules.jobs)
        if not may:
            self._left_out.add(table.identifier)
        return self._settings.memory.over(table) if may else None

    def _seen(self, identifier: Identifier, found: TableHealth | NotRead | None) -> PolicyTable | None:
        in_force = self._in_force.get(identifier)
        not_read = found if isinstance(found, NotRead) else None
        if found is None and identifier not in self._left_out:
            return None
        if in_force is None:
            # Its properties are not known, which may switch jobs off: none may run.
            try:
                in_force = self._resolved(identifier, None)
            except IcekeepError:
                in_force = TableRules(table=full_name(self._catalog.name, identifier), policies=(), jobs=()), ()
        rules, problems = in_force
        health = found if isinstance(found, TableHealth) else None
        return PolicyTable(
            catalog=self._catalog,
            identifier=identifier,
            choices=choices(rules, health, self._last_of(identifier, rules), self._now_ms),
            problems=problems,
            health=health,
            not_read=not_read,
            seen_ms=self._now_ms,
            table_uuid=self._uuids.get(identifier),
            slots=self._settings.slots,
            paces=self._paces,
        )

    def _resolved(
        self, identifier: Identifier, properties: Mapping[str, str] | None
    ) -> tuple[TableRules, tuple[Problem, ...]]:
        rules, problems = self._settings.resolve(self._catalog, identifier, properties)
        self.in_force[identifier] = rules
        wanted = {one.name for one in self._settings.rules.policies if self._settings.scope.has_policy(one)}
        jobs: tuple[JobRule, ...] = tuple(rule for rule in rules.jobs if rule.policy in wanted)
        return msgspec.structs.replace(rules, jobs=jobs), problems

    def _last_of(self, identifier: Identifier, rules: TableRules) -> dict[str, LastRuns]:
        """By job."""
        found = self._last.get(full_name(self._catalog.name, identifier), {})
        otherwise = NEVER_RAN if self._is_known else NOT_KNOWN
        return {rule.job: found.get(rule.job, otherwise) for rule in rules.jobs}


def counted(table: Table, meter: Meter) -> Table:
    """The same table, and all that its catalog loads by it, whose requests are counted."""
    storage, catalog = table.storage, table.catalog
    return msgspec.structs.replace(
        table,
        storage=storage if isinstance(storage, CountedStorage) else CountedStorage(storage, meter),
        catalog=catalog if isinstance(catalog, CountedCatalog) else CountedCatalog(catalog, meter),
    )


class CountedCatalog(CatalogWrapper):
    """All of a catalog, but that the requests of its tables are counted. What it asks by itself is not."""

    def __init__(self, inner: Catalog, meter: Meter) -> None:
        super().__init__(inner)
        self._meter = meter

    def over(self, table: Table) -> Table:
        return counted(table, self._meter)
