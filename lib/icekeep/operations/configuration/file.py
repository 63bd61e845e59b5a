"""The configuration file: catalogs, policies and their layers, read strictly.

Unknown keys, wrong types and missing values are errors that name the key's path. Reading it needs neither Spark nor a
catalog nor the network, so that a scheduler can do it often. Environment variables in catalog properties stay as they are
written (`${NAME}`) until a catalog is opened.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from icekeep.errors import ConfigError, NotFoundError, UsageError
from icekeep.health.prices import Prices
from icekeep.operations.configuration.documents import Entry, instead_of, parse_document, read_document
from icekeep.operations.configuration.policies import RULES_KEYS, read_rules
from icekeep.operations.configuration.receivers import LOG, METRICS, NOTIFICATIONS, TellingSettings, read_telling
from icekeep.operations.configuration.runs import RUNS, RunsSettings, read_runs
from icekeep.policies.values import Policy, Rules
from icekeep.secrets import is_own_file
from icekeep.settings import CONFIG_PATH, CONFIG_VARIABLE

KEYS = frozenset({"catalogs", "prices", RUNS, LOG, METRICS, NOTIFICATIONS}) | RULES_KEYS
"""Of the file, at the top."""

CURRENCY = "currency"
CATALOG_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_SCHEDULE_KEY = "schedule"
_OF_ALL = f"defaults.{_SCHEDULE_KEY}"
_SCHEDULE = re.compile(rf"policies\[\d+\]\.{_SCHEDULE_KEY}|{re.escape(_OF_ALL)}")
_PLACEHOLDER = re.compile(r"\$\{([^}]*)(\}?)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CatalogSettings(msgspec.Struct, frozen=True):
    """The properties of a catalog, unresolved, and where each was found; `repr` does not show their values."""

    name: str
    properties: Mapping[str, str]
    sources: Mapping[str, str]
    has_placeholders: bool = False

    def __repr__(self) -> str:
        return f"CatalogSettings({self.name!r}, keys={sorted(self.properties)})"

    def resolved(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The properties with the values of environment variables filled in.

        Raises:
            ConfigError: a variable is not set; names the key and the variable.
        """
        if not self.has_placeholders:
            return dict(self.properties)
        return {
            key: resolve_references(f"catalogs.{self.name}.{key}", text, environ)
            for key, text in self.properties.items()
        }

    @contextmanager
    def placing(self) -> Iterator[None]:
        """In here an error on a property of the catalog says where that stands."""
        try:
            yield
        except ConfigError as error:
            placed = self._placed(error)
            if placed is error:
                raise
            raise placed from error

    def _placed(self, error: ConfigError) -> ConfigError:
        key_path = str(error.facts.get("key_path", ""))
        key = key_path.removeprefix(f"catalogs.{self.name}.")
        # A store names a property alone. One that is missing is told with where the catalog begins.
        if error.place or (key == key_path and key not in self.sources):
            return error
        place = self.sources.get(key) or next(iter(self.sources.values()), "without properties")
        return error.at(place, "" if key in self.properties else instead_of(key, self.properties))


class ConfiguredValue(msgspec.Struct, frozen=True):
    """A value as it stands in the file, and where; references to environment variables are as they are written."""

    key: str
    value: str
    source: str


class Configuration(msgspec.Struct, frozen=True):
    """What the file says; `path` is `None` where there is no file.

    Attributes:
        written: each single value of it, but for those of catalogs and policies.
        wrong_schedules: by policy the error of its schedule, where `read_config` lets that pass; it has none then.
    """

    path: str | None
    catalogs: Mapping[str, CatalogSettings]
    rules: Rules = Rules()
    prices: Prices | None = None
    runs: RunsSettings = RunsSettings()
    telling: TellingSettings = TellingSettings()
    written: tuple[ConfiguredValue, ...] = ()
    wrong_schedules: Mapping[str, ConfigError] = {}

    @property
    def policies(self) -> tuple[Policy, ...]:
        """In the order of the file."""
        return self.rules.policies


def read_config(path: str | None = None, *, checks_schedules: bool = True) -> Configuration:
    """Read a configuration file.

    Args:
        path: the file, which must exist; `None` for the one that `CONFIG_VARIABLE` names, which must exist too, or else the
            first of `CONFIG_PATH` and the user's own below `XDG_CONFIG_HOME` that is there.
        checks_schedules: whether a wrong schedule of any policy is an error. Else it is in `Configuration.wrong_schedules`:
            what is done in the name of another policy depends on none, and the policy keeps its place, so that none after it
            takes its tables.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it cannot be read or is not YAML; or nobody named it, and it belongs to another user and uses environment
            variables.
        ConfigError: a key is unknown, missing, or has a value that it cannot take.
    """
    chosen = os.environ.get(CONFIG_VARIABLE) or None if path is None else path
    if chosen is None:
        found = _found_path()
        return Configuration(None, {}) if found is None else _found_config(found, checks_schedules)
    if not Path(chosen).exists():
        by = "" if path is not None else f", which {CONFIG_VARIABLE} names"
        raise NotFoundError(f"there is no configuration file {chosen!r}{by}; name another with --config", path=chosen)
    return _config(read_document(chosen), chosen, checks_schedules)


def _found_path() -> str | None:
    """The first file that is there, of those that are read though nobody names them."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification has relative paths ignored.
    own = Path(base if os.path.isabs(base) else os.path.expanduser("~/.config")) / "icekeep" / "icekeep.yaml"
    return next((path for path in (CONFIG_PATH, str(own)) if Path(path).is_file()), None)


def _found_config(path: str, checks_schedules: bool) -> Configuration:
    config = _config(read_document(path), path, checks_schedules)
    given = [value for one in config.catalogs.values() for value in one.properties.values()]
    variable = next(filter(None, map(_PLACEHOLDER.search, [*given, *(one.value for one in config.written)])), None)
    if variable is not None and not is_own_file(path):
        raise UsageError(
            f"configuration file {path!r} belongs to another user, and takes {variable[0]} from the environment; "
            f"if you trust it, name it with --config {path}",
            path=path,
        )
    return config


def config_words(path: str | None) -> tuple[str, ...]:
    """What a command that is shown to people needs to read the same configuration: nothing for the one by default."""
    found = os.environ.get(CONFIG_VARIABLE) or _found_path()
    return () if path is None or path == found else ("--config", path)


def parse_config(text: str, path: str = "icekeep.yaml") -> Configuration:
    """Read the configuration from text; `path` is only named in errors. Raises as `read_config` does."""
    return _config(parse_document(text, path), path)


def _config(document: Entry | None, path: str, checks_schedules: bool = True) -> Configuration:
    if document is None:
        return Configuration(path, {})
    return _strictly(document, path) if checks_schedules else _without_wrong_schedules(document, path)


def _without_wrong_schedules(document: Entry, path: str) -> Configuration:
    wrong: dict[str, ConfigError] = {}
    while True:
        try:
            config = _strictly(document, path)
        except ConfigError as error:
            key_path = str(error.facts["key_path"])
            nulled = document.nulled(key_path) if _SCHEDULE.fullmatch(key_path) else document
            if nulled == document:
                raise
            document, wrong[key_path] = nulled, error
        else:
            break
    found = {
        policy.name: wrong.get(f"policies[{at}].{_SCHEDULE_KEY}" if _SCHEDULE_KEY in policy.layer.keys else _OF_ALL)
        for at, policy in enumerate(config.policies)
    }
    errors = {name: error for name, error in found.items() if error is not None}
    return msgspec.structs.replace(config, wrong_schedules=errors)


def _strictly(document: Entry, path: str) -> Configuration:
    given = document.mapping(KEYS)
    catalogs = _catalogs(given["catalogs"]) if "catalogs" in given else {}
    prices = _prices(given["prices"]) if "prices" in given else None
    if RUNS in given and "uri" in given[RUNS].mapping():
        _property(given[RUNS].required("uri"))
    runs = read_runs(given[RUNS]) if RUNS in given else RunsSettings()
    if METRICS in given and "pushgateway" in given[METRICS].mapping():
        _property(given[METRICS].required("pushgateway"))
    for one in given[NOTIFICATIONS].sequence() if NOTIFICATIONS in given else ():
        _property(one.required("url"))
    written = tuple(_written(entry for key, entry in given.items() if key not in ("catalogs", "policies")))
    return Configuration(path, catalogs, read_rules(given, catalogs), prices, runs, read_telling(given), written)


def _written(entries: Iterable[Entry]) -> Iterator[ConfiguredValue]:
    for entry in entries:
        if isinstance(entry.value, str):
            yield ConfiguredValue(entry.key_path, "null" if entry.is_null else entry.value, entry.place)
        else:
            yield from _written(entry.value.values() if isinstance(entry.value, Mapping) else entry.value)


def _catalogs(entry: Entry) -> dict[str, CatalogSettings]:
    catalogs = {}
    for name, below in entry.mapping().items():
        if not is_catalog_name(name):
            raise below.wrong("a catalog's name holds letters, digits, dashes and underscores")
        properties = {key: _property(item) for key, item in below.mapping().items()}
        if not below.required("type").scalar().strip():
            raise below.required("type").wrong("is empty")
        sources = {key: item.place for key, item in below.mapping().items()}
        catalogs[name] = CatalogSettings(name, properties, sources, has_placeholders=True)
    return catalogs


def is_catalog_name(name: str) -> bool:
    """Whether a catalog can have that name in the file."""
    return CATALOG_NAME.fullmatch(name) is not None


def _prices(entry: Entry) -> Prices:
    """What work and storage cost, for `report`."""
    given = entry.mapping({*Prices.__struct_fields__})
    numbers = {name: below.number(minimum=0) for name, below in given.items() if name != CURRENCY}
    currency = {CURRENCY: given[CURRENCY].text()} if CURRENCY in given else {}
    return Prices(**numbers, **currency)  # type: ignore[arg-type]


def _property(entry: Entry) -> str:
    text = entry.scalar()
    for match in _PLACEHOLDER.finditer(text):
        if not match[2] or not _VARIABLE.fullmatch(match[1]):
            raise entry.wrong("holds '${' that is no reference; write ${NAME} with letters, digits and underscores")
    return text


def resolve_references(key_path: str, text: str, environ: Mapping[str, str]) -> str:
    """A value with the values of environment variables filled in, without the line breaks that they end with, as in a shell.

    Raises `ConfigError` where a variable is not set.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in environ:
            raise ConfigError(key_path, f"refers to environment variable {name!r}, which is not set", variable=name)
        return environ[name].rstrip("\r\n")

    return _PLACEHOLDER.sub(value, text)
