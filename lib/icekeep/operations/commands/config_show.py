"""What `icekeep config show` tells: all that is in force, with where each value stands; secrets masked."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from icekeep.operations.configuration.file import KEEP_MS, LOG, RUNS, CatalogSettings, Configuration
from icekeep.operations.console.looks import TEXT
from icekeep.operations.recording import beside_warehouse
from icekeep.secrets import masked
from icekeep.spec.times import format_span

_DEFAULT = "default"


class PropertyShown(msgspec.Struct, frozen=True):
    """One property of a catalog."""

    catalog: str
    key: str
    value: str
    source: str


class ValueShown(msgspec.Struct, frozen=True):
    """A value of the file beside catalogs and policies, or a default that is in force in its place."""

    key: str
    value: str
    source: str


class PolicyShown(msgspec.Struct, frozen=True):
    """One policy; `jobs` in the order in which they run on each table, `match` and `excepted` as they were written."""

    policy: str
    schedule: str | None
    tables: tuple[str, ...]
    match: tuple[str, ...]
    excepted: tuple[str, ...]
    jobs: tuple[str, ...]


class ConfigShown(msgspec.Struct, frozen=True):
    """The configuration as it would be used; references to environment variables stay unresolved."""

    conf: str | None
    properties: tuple[PropertyShown, ...]
    values: tuple[ValueShown, ...]
    policies: tuple[PolicyShown, ...]


def show_config(config: Configuration, catalogs: Iterable[CatalogSettings], environ: Mapping[str, str]) -> ConfigShown:
    catalogs = [*catalogs]
    properties = [
        PropertyShown(settings.name, key, masked(key, settings.properties[key]), settings.sources[key])
        for settings in catalogs
        for key in sorted(settings.properties)
    ]
    values = [ValueShown(one.key, masked(one.key, one.value), one.source) for one in config.written]
    given = {one.key for one in values}
    values += [one for one in _defaults(config, catalogs, environ) if one.key not in given]
    policies = [
        PolicyShown(
            one.name,
            one.schedule,
            one.tables,
            tuple(glob.text for glob in one.match),
            tuple(glob.text for glob in one.excepted),
            tuple(call.job for call in one.calls),
        )
        for one in config.policies
    ]
    return ConfigShown(config.path, tuple(properties), tuple(values), tuple(policies))


def _defaults(
    config: Configuration, catalogs: Iterable[CatalogSettings], environ: Mapping[str, str]
) -> Iterator[ValueShown]:
    """What is in force where the file says nothing."""
    yield ValueShown(f"{LOG}.format", TEXT, _DEFAULT)
    yield ValueShown(f"{RUNS}.enabled", "true", _DEFAULT)
    yield ValueShown(f"{RUNS}.keep", format_span(KEEP_MS), _DEFAULT)
    for catalog in catalogs if config.runs.uri is None and config.runs.is_enabled else ():
        path = beside_warehouse(catalog, environ)
        place = "nothing is written down" if path is None else f"sqlite:///{path}"
        yield ValueShown(f"{RUNS}.uri", place, f"{_DEFAULT} for catalog {catalog.name}")
