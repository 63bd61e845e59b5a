"""The commands `policy check` and `policy explain`, and their functions `check_policies` and `explain_policies`."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table, parse_identifier
from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    OptionError,
    TryAgainError,
    UnsupportedError,
    UsageError,
    and_more,
    first_line,
)
from icekeep.maintenance.options import parse_options
from icekeep.names import catalog_of, split_name
from icekeep.operations.configuration.catalogs import Catalogs, find_table
from icekeep.operations.configuration.file import CatalogSettings, Configuration, config_words, read_config
from icekeep.operations.configuration.policy_tables import require_file, resolve_table, tables_of
from icekeep.operations.jobs import JOBS, resolve
from icekeep.operations.loading import configured_catalogs, open_settings
from icekeep.policies.resolution import Effective, JobRule, NeverRun, TableRules, never_run, rules_for
from icekeep.policies.table_properties import Problem
from icekeep.policies.values import MODE, WHEN, Glob, Mode, PolicyValue, Rules
from icekeep.policies.windows import is_open
from icekeep.rendered import Rendered

_OPTIONS = "options."


class ReachedBySeveral(msgspec.Struct, frozen=True):
    """A table that several policies reach.

    Attributes:
        decides: by job, the policy that decides, and those whose word on it is not in force.
    """

    table: str
    policies: tuple[str, ...]
    decides: tuple[str, ...]


class UnmatchedPattern(msgspec.Struct, frozen=True):
    """A pattern of a policy that fits no table; `key` is `match` or `except`."""

    policy: str
    key: str
    pattern: str


class UnknownName(msgspec.Struct, frozen=True):
    """A name in the configuration that no table, or namespace, has."""

    where: str
    name: str


class PolicyProblem(msgspec.Struct, frozen=True):
    """Something that is wrong with the configuration, or kept the command from looking."""

    where: str
    problem: str


class PolicyCheck(Rendered, frozen=True, kw_only=True):
    """What `policy check` found.

    Attributes:
        status: `wrong` where something must be fixed: a name or pattern that fits nothing, an option that a job does not
            have, a job that is asked for and that no schedule runs, or a catalog that is not known or whose configuration
            is wrong; else `unavailable` where a catalog is out of reach; else `done`.
        not_reached: tables that no policy reaches.
        never_run: jobs that a policy with a schedule asks for, and of which one without decides.
        unlisted_catalogs: those that could not be listed, and why; nothing is said of what would be in them.
    """

    status: str
    tables_count: int
    policies_count: int
    not_reached: tuple[str, ...]
    reached_by_several: tuple[ReachedBySeveral, ...]
    unmatched_patterns: tuple[UnmatchedPattern, ...]
    unknown_names: tuple[UnknownName, ...]
    wrong_options: tuple[PolicyProblem, ...]
    never_run: tuple[NeverRun, ...]
    unlisted_catalogs: tuple[PolicyProblem, ...]


class _Listing(msgspec.Struct, frozen=True):
    """The tables of the catalogs that could be listed, and why others could not; `may_pass`: each by itself, later."""

    tables: dict[str, list[str]]
    unlisted: tuple[PolicyProblem, ...]
    may_pass: bool

    def knows(self, catalog: str | None) -> bool:
        """Whether all tables of a catalog, or of all catalogs, are known."""
        return not self.unlisted if catalog is None else catalog in self.tables

    def all(self) -> list[str]:
        return [table for tables in self.tables.values() for table in tables]


def check_policies(catalog: str | None = None, *, conf: str | None = None) -> PolicyCheck:
    """Hold the policies of the configuration against the tables that there are; what `icekeep policy check` shows.

    What is wrong is in the result, whose `status` is `wrong` then; nothing is changed.

    Args:
        catalog: the catalog to look at, as the configuration calls it; by default each in the file or that a policy names.
        conf: the YAML file, as `load_catalog` takes it.

    Raises:
        NotFoundError: there is no configuration file, or no such catalog.
        ConfigError: the configuration is wrong.
    """
    catalogs = configured_catalogs(conf)
    return check_over(catalogs.config, catalogs, open_settings, catalog)


def check_over(
    config: Configuration, catalogs: Catalogs, opens: Callable[[CatalogSettings], Catalog], catalog: str | None
) -> PolicyCheck:
    """The same for catalogs that are known; raises as `check_policies`."""
    require_file(config)
    rules = config.rules
    names = [catalogs.get(catalog).name] if catalog is not None else _catalogs_to_list(config)
    listing = _listed(names, catalogs, opens)
    tables = listing.all()
    not_reached, several = _reached(rules, tables)
    unmatched = tuple(_unmatched(rules, listing, tables))
    unknown = tuple(_unknown(rules, listing, {*tables}))
    options = tuple(_wrong_options(rules))
    never = never_run(rules, (rules_for(rules, table) for table in tables))
    is_wrong = bool(unmatched or unknown or options or never) or not listing.may_pass
    return PolicyCheck(
        status="wrong" if is_wrong else "unavailable" if listing.unlisted else "done",
        tables_count=len(tables),
        policies_count=len(rules.policies),
        not_reached=not_reached,
        reached_by_several=several,
        unmatched_patterns=unmatched,
        unknown_names=unknown,
        wrong_options=options,
        never_run=never,
        unlisted_catalogs=listing.unlisted,
    )


def _catalogs_to_list(config: Configuration) -> list[str]:
    globs = [glob for policy in config.policies for glob in policy.match]
    rules = config.rules
    named = [*rules.tables, *rules.namespaces, *(table for policy in config.policies for table in policy.tables)]
    names = {*config.catalogs, *(catalog_of(name) for name in named)}
    return sorted(names | {glob.catalog for glob in globs if glob.catalog is not None})


def _listed(names: Iterable[str], catalogs: Catalogs, opens: Callable[[CatalogSettings], Catalog]) -> _Listing:
    tables: dict[str, list[str]] = {}
    unlisted = []
    may_pass = True
    for name in names:
        try:
            settings = catalogs.get(name)
            with settings.placing():
                tables[name] = sorted(tables_of(opens(settings)))
        except IcekeepError as error:
            unlisted.append(PolicyProblem(name, first_line(error)))
            may_pass = may_pass and isinstance(error, TryAgainError)
    return _Listing(tables, tuple(unlisted), may_pass)


def _reached(rules: Rules, tables: Sequence[str]) -> tuple[tuple[str, ...], tuple[ReachedBySeveral, ...]]:
    none, several = [], []
    for table in tables:
        found = rules_for(rules, table)
        if not found.policies:
            none.append(table)
        elif len(found.policies) > 1:
            decides = tuple(
                f"{rule.job}: {rule.policy}" + (f" over {', '.join(rule.others)}" if rule.others else "")
                for rule in found.jobs
            )
            several.append(ReachedBySeveral(table, found.policies, decides))
    return tuple(none), tuple(several)


def _unmatched(rules: Rules, listing: _Listing, tables: Sequence[str]) -> Iterator[UnmatchedPattern]:
    for policy in rules.policies:
        both: tuple[tuple[str, tuple[Glob, ...]], ...] = (("match", policy.match), ("except", policy.excepted))
        for key, globs in both:
            for glob in globs:
                if listing.knows(glob.catalog) and not any(map(glob.matches, tables)):
                    yield UnmatchedPattern(policy.name, key, glob.text)


def _unknown(rules: Rules, listing: _Listing, tables: set[str]) -> Iterator[UnknownName]:
    named = [(f"policy {policy.name}", table) for policy in rules.policies for table in policy.tables]
    for where, name in (*named, *(("tables", table) for table in rules.tables)):
        if listing.knows(catalog_of(name)) and name not in tables:
            yield UnknownName(where, name)
    for name in rules.namespaces:
        levels = split_name(name)
        is_there = any(split_name(table)[:-1][: len(levels)] == levels for table in tables)
        if listing.knows(catalog_of(name)) and not is_there:
            yield UnknownName("namespaces", name)


def validate_options(rules: Rules) -> None:
    """Refuse a configuration with options that a job does not have: they would fail on each table, each night."""
    wrong = [f"{one.where}: {one.problem}" for one in _wrong_options(rules)]
    if wrong:
        more = f"{and_more(wrong)}; `icekeep policy check` names all" if len(wrong) > 1 else ""
        raise UsageError(f"{wrong[0]}{more}")


def _wrong_options(rules: Rules) -> Iterator[PolicyProblem]:
    """Options that a job does not have, or that cannot take their value: nothing in the file itself says so."""
    layers = (rules.defaults, *(policy.layer for policy in rules.policies), *rules.namespaces.values())
    for layer in (*layers, *rules.tables.values()):
        for job, values in layer.jobs.items():
            named = JOBS[job].options
            for key, said in values.items():
                if named is not None and key.startswith(_OPTIONS):
                    options: Any = resolve(named)
                    try:
                        parse_options(options, {key.removeprefix(_OPTIONS): said.text})
                    except OptionError as error:
                        yield PolicyProblem(said.source, error.message)


class JobExplained(Rendered, frozen=True, kw_only=True):
    """A job on the table.

    Attributes:
        policy: the one that decides, the first in the file that reaches the table and names the job.
        in_place_of: later ones that do so too; nothing of them is in force for the job.
        state: `runs`, `observes`, or `held`, which it is as `held_because` says.
        conditions: under which it is worth running; none where it always is.
        is_open: whether it may begin now, by its window.
        command: the same by hand.
    """

    job: str
    policy: str
    in_place_of: tuple[str, ...]
    state: str
    held_because: str | None
    conditions: tuple[str, ...]
    window: str | None
    is_open: bool
    command: str


class ValueExplained(Rendered, frozen=True, kw_only=True):
    """A value that is in force.

    Attributes:
        job: `all` where it is of all jobs of which the policy decides.
        overridden: what outer layers say, the innermost first, each with where it stands.
    """

    policy: str
    job: str
    key: str
    value: str
    source: str
    overridden: tuple[str, ...]


class UnaskedValue(msgspec.Struct, frozen=True):
    """What a layer says of a job that no policy names for the table."""

    job: str
    value: str
    source: str


class PolicyExplanation(Rendered, frozen=True, kw_only=True):
    """What policies say of a table.

    Attributes:
        policies: those that reach it, in the order of the file.
        without_effect: what layers say in vain, since no policy names the job.
        problems: what the table's properties or its catalog say that is not understood, or not taken.
    """

    table: str
    policies: tuple[str, ...]
    jobs: tuple[JobExplained, ...]
    values: tuple[ValueExplained, ...]
    without_effect: tuple[UnaskedValue, ...]
    problems: tuple[Problem, ...]
    status: str = "done"


def explain_policies(table: Table, *, conf: str | None = None) -> PolicyExplanation:
    """Show what policies say about a table: its jobs, and each value with its source; what `icekeep policy explain` shows.

    Args:
        table: as it was loaded; its properties are asked, and what its catalog stores.
        conf: the YAML file with the policies, as `load_catalog` takes it.

    Raises:
        NotFoundError: there is no configuration file, or the catalog has no such table any more.
        ConfigError: the configuration is wrong.
        UnavailableError: the catalog stores policies, and is out of reach.
    """
    config = read_config(conf)
    require_file(config)
    return _explanation(config, table.catalog, table.identifier, table.metadata.properties)


def explain(
    config: Configuration,
    catalogs: Catalogs,
    opens: Callable[[CatalogSettings], Catalog],
    catalog: str | None,
    *,
    table: str,
) -> PolicyExplanation:
    """Tell what policies say of a table."""
    require_file(config)
    reference = find_table(catalogs, table, catalog)
    opened, identifier = opens(reference.catalog), parse_identifier(reference.name)
    try:
        with reference.catalog.placing():
            properties = opened.load(identifier).metadata.properties
    except (InvalidTableError, UnsupportedError):
        properties = None
    return _explanation(config, opened, identifier, properties)


def _explanation(
    config: Configuration, opened: Catalog, identifier: Identifier, properties: Mapping[str, str] | None
) -> PolicyExplanation:
    resolved = resolve_table(config.rules, opened, identifier, properties)
    now_ms = opened.runtime.now_ms()
    return PolicyExplanation(
        table=resolved.rules.table,
        policies=resolved.rules.policies,
        jobs=tuple(_job(resolved.rules.table, rule, now_ms, config_words(config.path)) for rule in resolved.rules.jobs),
        values=tuple(_values(resolved.rules)),
        without_effect=tuple(
            UnaskedValue(job, said.text, said.source) for job, some in resolved.rules.unasked.items() for said in some
        ),
        problems=resolved.problems,
    )


def explanation_shown(result: PolicyExplanation) -> Mapping[str, Any]:
    """What is printed for people: what there is, and that no policy reaches the table where none does."""
    shown = {name: value for name, value in msgspec.to_builtins(result).items() if value and name != "status"}
    return shown if result.policies else {**shown, "policies": "no policy reaches it"}


def _job(table: str, rule: JobRule, now_ms: int, config: Sequence[str]) -> JobExplained:
    does = "observes" if rule.mode is Mode.OBSERVE else "runs"
    prefix = f"{WHEN}."
    dry = ("--dry-run",) if rule.mode is Mode.OBSERVE else ()
    return JobExplained(
        job=rule.job,
        policy=rule.policy,
        in_place_of=rule.others,
        state=does if rule.held_by is None else "held",
        held_because=rule.held_by,
        conditions=tuple(
            f"{value.key.removeprefix(prefix)} {value.innermost.text}"
            for value in rule.values
            if value.key.startswith(prefix)
        ),
        window=None if rule.window is None else str(rule.window),
        is_open=rule.window is None or is_open(rule.window, now_ms),
        command=shlex.join(("icekeep", rule.job, "--table", table, *rule.call.arguments, *dry, *config)),
    )


def _values(rules: TableRules) -> Iterator[ValueExplained]:
    """Values of all jobs once for each policy that decides, then those of each job."""
    shown: set[str] = set()
    for rule in rules.jobs:
        if rule.policy not in shown:
            shown.add(rule.policy)
            yield from _explained(rule.policy, "all", rule.common)
    for rule in rules.jobs:
        yield from _explained(rule.policy, rule.job, rule.values)


def _explained(policy: str, job: str, values: Iterable[Effective]) -> Iterator[ValueExplained]:
    for value in values:
        yield ValueExplained(
            policy=policy,
            job=job,
            key=value.key,
            value=_text(value.key, value.innermost),
            source=value.innermost.source,
            overridden=tuple(f"{_text(value.key, said)} ({said.source})" for said in value.overridden),
        )


def _text(key: str, said: PolicyValue) -> str:
    return said.text.lower() if key == MODE else said.text
