"""The look at all tables before any work: which the policies reach, what is in force for each, how healthy it is; read once."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table, format_identifier
from icekeep.errors import IcekeepError, NotFoundError, first_line
from icekeep.events import SILENT, Listener
from icekeep.fleet.budget import Estimate
from icekeep.fleet.choosing import NEVER_RAN, Choice, Verdict, choices, may_begin
from icekeep.fleet.leases import Leases
from icekeep.fleet.ranking import Worth, estimate_of, value_of, worth_of
from icekeep.health.prices import Prices
from icekeep.health.values import TableHealth
from icekeep.planning.memory import Memory
from icekeep.planning.spark.source import SparkSource
from icekeep.policies.globs import Glob
from icekeep.policies.resolution import JobRule, TableRules
from icekeep.policies.told import Problem
from icekeep.policies.values import Policy, Rules
from icekeep.reports.job import look_over
from icekeep.reports.values import NotRead
from icekeep.run_records.values import LastRuns

Resolve = Callable[[Catalog, Identifier, Mapping[str, str] | None], tuple[TableRules, tuple[Problem, ...]]]
"""What is in force for a table by the file, the catalog and the table's properties, `None` where nobody can read these."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Which tables and jobs a run is about.

    Attributes:
        policy: only jobs of which this one decides. Without it those of all that have a schedule: what has none is run by hand.
        match: only tables of this pattern over `namespace.table`.
        tables: only tables of these full names.
    """

    policy: str | None = None
    match: Glob | None = None
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


class Looking(msgspec.Struct, frozen=True, kw_only=True):
    """What the look needs."""

    rules: Rules
    scope: Scope
    resolve: Resolve
    memory: Memory
    spark: SparkSource = None
    prices: Prices | None = None
    listener: Listener = SILENT


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A table that policies reach.

    Attributes:
        choices: its jobs, in the order in which they run.
        health: `None` where it cannot be told (`not_read` says why), or nothing of it may be begun now.
        table_uuid: of the table that was looked at; `None` where it could not be read.
        seen_ms: when the look began; what other runs have done since is done.
    """

    catalog: Catalog
    identifier: Identifier
    choices: tuple[Choice, ...]
    problems: tuple[Problem, ...]
    health: TableHealth | None
    not_read: NotRead | None
    seen_ms: int
    table_uuid: str | None = None

    @property
    def name(self) -> str:
        """`catalog.namespace.table`."""
        return f"{self.catalog.name}.{format_identifier(self.identifier)}"

    @property
    def due(self) -> tuple[Choice, ...]:
        """The jobs that are due."""
        return tuple(one for one in self.choices if one.verdict is Verdict.DUE)

    def value(self, prices: Prices | None) -> float:
        """Benefit for cost of what is due."""
        return value_of(self._worth(one, prices) for one in self.due)

    def estimate(self, choice: Choice) -> Estimate:
        """What a job takes."""
        size = 0 if self.health is None else self.health.data.data_files_bytes
        return estimate_of(choice.call.job, choice.call.arguments, choice.advice, size)

    def _worth(self, choice: Choice, prices: Prices | None) -> Worth:
        ran_ms = choice.last.last_ok_ms
        return worth_of(choice.advice, None if ran_ms is None else self.seen_ms - ran_ms, prices)


class Overview(msgspec.Struct, frozen=True):
    """All that was seen: tables in the order in which they are worked on, those without due jobs last, by name."""

    tables: tuple[Seen, ...]
    not_read: tuple[NotRead, ...]
    other_tables_count: int


def look(catalogs: Mapping[str, tuple[Catalog, Leases]], looking: Looking) -> Overview:
    """Look at the tables of some catalogs. A catalog or namespace that cannot be listed is told, and stops nothing.

    Raises:
        NotFoundError: tables were asked for by pattern or name, and policies reach none of them.
    """
    seen: list[Seen] = []
    not_read: list[NotRead] = []
    others_count = 0
    for catalog, leases in catalogs.values():
        names = [*_names(catalog, looking.scope, not_read)]
        policies = [one for one in looking.rules.policies if looking.scope.has_policy(one)]
        reached = [one for one in names if any(p.reaches(_full(catalog, one)) for p in policies)]
        others_count += len(names) - len(reached)
        seen += _Look(catalog, leases, looking).at(reached)
    if not seen and not not_read and looking.scope.is_part:
        raise NotFoundError("no table that the policies of this run reach is among those that were asked for")
    ordered = sorted(seen, key=lambda one: _order(one, looking.prices))
    return Overview(tuple(ordered), tuple(not_read), others_count)


def _order(one: Seen, prices: Prices | None) -> tuple[Any, ...]:
    score = 0.0 if one.health is None else one.health.score
    return not one.due, -one.value(prices), score, one.name


def _names(catalog: Catalog, scope: Scope, not_read: list[NotRead]) -> Iterator[Identifier]:
    """The tables of all namespaces that the run is about."""
    try:
        namespaces = catalog.list_namespaces()
    except IcekeepError as error:
        not_read.append(NotRead(name=f"{catalog.name}.*", kind=error.kind, reason=first_line(error)))
        return
    for namespace in namespaces:
        try:
            tables = catalog.list_tables(namespace)
        except NotFoundError:
            # It was dropped meanwhile.
            continue
        except IcekeepError as error:
            name = f"{catalog.name}.{format_identifier(namespace)}.*"
            not_read.append(NotRead(name=name, kind=error.kind, reason=first_line(error)))
            continue
        yield from (one for one in tables if scope.has_table(_full(catalog, one), format_identifier(one)))


class _Look:
    """The tables of one catalog."""

    def __init__(self, catalog: Catalog, leases: Leases, looking: Looking) -> None:
        self._catalog, self._leases, self._looking = catalog, leases, looking
        self._in_force: dict[Identifier, tuple[TableRules, tuple[Problem, ...]]] = {}
        self._left_out: set[Identifier] = set()
        self._uuids: dict[Identifier, str | None] = {}
        self._last: dict[str, dict[str, LastRuns]] = {}
        self._now_ms = catalog.runtime.now_ms()

    def at(self, identifiers: list[Identifier]) -> Iterator[Seen]:
        """Look at these; one that is dropped meanwhile is left out."""
        last = self._leases.last_of([_full(self._catalog, one) for one in identifiers])
        for (table, job), runs in last.items():
            self._last.setdefault(table, {})[job] = runs
        looking = self._looking
        found = look_over(
            self._catalog,
            identifiers,
            looking.spark,
            prices=looking.prices,
            prepare=self._prepared,
            listener=looking.listener,
        )
        for identifier, one in zip(identifiers, found, strict=True):
            seen = self._seen(identifier, one)
            if seen is not None:
                yield seen

    def _prepared(self, table: Table) -> Table | None:
        """The table, if any of its jobs may begin now."""
        self._uuids[table.identifier] = table.metadata.table_uuid
        self._in_force[table.identifier] = rules, _ = self._resolved(table.identifier, table.metadata.properties)
        now_ms = self._now_ms
        may = any(
            may_begin(rule, self._last_of(table.identifier).get(rule.job, NEVER_RAN), now_ms)[0] is Verdict.DUE
            for rule in rules.jobs
        )
        if not may:
            self._left_out.add(table.identifier)
        return self._looking.memory.over(table) if may else None

    def _seen(self, identifier: Identifier, found: TableHealth | NotRead | None) -> Seen | None:
        in_force = self._in_force.get(identifier)
        not_read = found if isinstance(found, NotRead) else None
        if found is None and identifier not in self._left_out:
            return None
        if in_force is None:
            # Its properties are not known, which may switch jobs off: none may run.
            try:
                in_force = self._resolved(identifier, None)
            except IcekeepError:
                in_force = TableRules(table=_full(self._catalog, identifier), policies=(), jobs=()), ()
        rules, problems = in_force
        health = found if isinstance(found, TableHealth) else None
        return Seen(
            catalog=self._catalog,
            identifier=identifier,
            choices=choices(rules, health, self._last_of(identifier), self._now_ms),
            problems=problems,
            health=health,
            not_read=not_read,
            seen_ms=self._now_ms,
            table_uuid=self._uuids.get(identifier),
        )

    def _resolved(
        self, identifier: Identifier, properties: Mapping[str, str] | None
    ) -> tuple[TableRules, tuple[Problem, ...]]:
        rules, problems = self._looking.resolve(self._catalog, identifier, properties)
        wanted = {one.name for one in self._looking.rules.policies if self._looking.scope.has_policy(one)}
        jobs: tuple[JobRule, ...] = tuple(rule for rule in rules.jobs if rule.policy in wanted)
        return msgspec.structs.replace(rules, jobs=jobs), problems

    def _last_of(self, identifier: Identifier) -> dict[str, LastRuns]:
        return self._last.get(_full(self._catalog, identifier), {})


def _full(catalog: Catalog, identifier: Identifier) -> str:
    return f"{catalog.name}.{format_identifier(identifier)}"
