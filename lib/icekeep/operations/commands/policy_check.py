"""`icekeep policy check` and `check_policies`: tables that policies miss or reach twice, and names that fit no table."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog
from icekeep.errors import IcekeepError, OptionError, TryAgainError, UsageError, and_more, first_line
from icekeep.maintenance.options import parse_options
from icekeep.names import catalog_of, split_name
from icekeep.operations.configuration.catalogs import Catalogs
from icekeep.operations.configuration.file import CatalogSettings, Configuration
from icekeep.operations.configuration.policy_tables import require_file, tables_of
from icekeep.operations.jobs import JOBS, resolve
from icekeep.operations.loading import configured_catalogs, open_settings
from icekeep.policies.resolution import NeverRun, never_run, rules_for
from icekeep.policies.values import Glob, Layer, Rules
from icekeep.rendered import Rendered

__all__ = ["check_over", "check_policies", "refuse_wrong_options"]

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
    """Those of the file and those that are named."""
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
        if listing.knows(catalog_of(name)) and not any(_lies_in(name, table) for table in tables):
            yield UnknownName("namespaces", name)


def _lies_in(namespace: str, table: str) -> bool:
    levels = split_name(namespace)
    return split_name(table)[:-1][: len(levels)] == levels


def refuse_wrong_options(rules: Rules) -> None:
    """Refuse a configuration with options that a job does not have: they would fail on each table, each night.

    Raises:
        UsageError: it has some; names the first.
    """
    wrong = [f"{one.where}: {one.problem}" for one in _wrong_options(rules)]
    if wrong:
        more = f"{and_more(wrong)}; `icekeep policy check` names all" if len(wrong) > 1 else ""
        raise UsageError(f"{wrong[0]}{more}")


def _wrong_options(rules: Rules) -> Iterator[PolicyProblem]:
    """Options that a job does not have, or that cannot take their value: nothing in the file itself says so."""
    layers = (rules.defaults, *(policy.layer for policy in rules.policies))
    for layer in (*layers, *rules.namespaces.values(), *rules.tables.values()):
        yield from _wrong_options_of(layer)


def _wrong_options_of(layer: Layer) -> Iterator[PolicyProblem]:
    for job, values in layer.jobs.items():
        named = JOBS[job].options
        if named is None:
            continue
        options: Any = resolve(named)
        for key, said in values.items():
            if key.startswith(_OPTIONS):
                try:
                    parse_options(options, {key.removeprefix(_OPTIONS): said.text})
                except OptionError as error:
                    yield PolicyProblem(said.source, error.message)
