"""`icekeep policy explain` and `explain_policies`: what is in force for one table, and where each value comes from."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table, parse_identifier
from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.operations.configuration.catalogs import Catalogs, find_table
from icekeep.operations.configuration.file import CatalogSettings, Configuration, config_words, read_config
from icekeep.operations.configuration.policy_tables import require_file, resolve_table
from icekeep.policies.resolution import Effective, JobRule, TableRules
from icekeep.policies.table_properties import Problem
from icekeep.policies.values import MODE, WHEN, Mode, PolicyValue
from icekeep.policies.windows import is_open
from icekeep.rendered import Rendered

__all__ = ["explain", "explain_policies", "explanation_shown"]


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
    """Tell what policies say of a table.

    Raises:
        NotFoundError: there is no configuration file, no such catalog, or no such table.
        UnavailableError: the catalog is out of reach.
    """
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
    told = {name: value for name, value in msgspec.to_builtins(result).items() if value and name != "status"}
    return told if result.policies else {**told, "policies": "no policy reaches it"}


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
            f"{value.key.removeprefix(prefix)} {value.said.text}"
            for value in rule.values
            if value.key.startswith(prefix)
        ),
        window=None if rule.window is None else str(rule.window),
        is_open=rule.window is None or is_open(rule.window, now_ms),
        command=shlex.join(("icekeep", rule.job, "--table", table, *rule.call.arguments, *dry, *config)),
    )


def _values(rules: TableRules) -> Iterator[ValueExplained]:
    """Values of all jobs once for each policy that decides, then those of each job."""
    told: set[str] = set()
    for rule in rules.jobs:
        if rule.policy not in told:
            told.add(rule.policy)
            yield from _explained(rule.policy, "all", rule.common)
    for rule in rules.jobs:
        yield from _explained(rule.policy, rule.job, rule.values)


def _explained(policy: str, job: str, values: Iterable[Effective]) -> Iterator[ValueExplained]:
    for value in values:
        yield ValueExplained(
            policy=policy,
            job=job,
            key=value.key,
            value=_text(value.key, value.said),
            source=value.said.source,
            overridden=tuple(f"{_text(value.key, said)} ({said.source})" for said in value.overridden),
        )


def _text(key: str, said: PolicyValue) -> str:
    return said.text.lower() if key == MODE else said.text
