"""The configuration file, read strictly: catalogs, policies and their layers, logs, metrics, notifications, the record of runs.

Unknown keys, wrong types and missing values are errors that name the key's path. Reading it needs neither Spark nor a
catalog nor the network, so that a scheduler can do it often. Environment variables in catalog properties stay as they are
written (`${NAME}`) until a catalog is opened.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from icekeep.errors import ConfigError, NotFoundError, UsageError
from icekeep.health.prices import Prices
from icekeep.operations.configuration.documents import Entry, checked, instead_of, parse_document, read_document
from icekeep.operations.configuration.policies import read_rules, require_full_name
from icekeep.operations.configuration.shape import LABEL, NAME, ConfigurationKeys
from icekeep.operations.console.looks import FORMATS
from icekeep.operations.jobs import JOBS, resolve
from icekeep.policies.values import Policy, Rules
from icekeep.secrets import is_own_file, masked
from icekeep.settings import CONFIG_PATH, CONFIG_VARIABLE
from icekeep.spec.times import span_ms
from icekeep.spec.types import DAY_MS
from icekeep.telemetry.figures import OF_RUN
from icekeep.telemetry.notifications import FAILURE, FORM, OUTCOMES, PARTIAL

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://\S+")
"""Of a service for messages; which there are is known to `apprise` alone."""
LOG, METRICS, NOTIFICATIONS = "log", "metrics", "notifications"


class NotificationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who is sent a message when a command has ended.

    Attributes:
        key_path: where it stands in the file.
        url: the address, with references to environment variables as they are written.
        when: how the command has ended, of `OUTCOMES`.
        jobs: names of jobs and commands; `None` for all.
    """

    key_path: str
    url: str
    when: frozenset[str] = frozenset({FAILURE, PARTIAL})
    jobs: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"NotificationSettings({masked(self.key_path, self.url)!r})"


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of log lines and metrics.

    Attributes:
        log_format: `None` where the file does not say.
        metrics_file: that is kept for node_exporter's textfile collector.
        pushgateway: the address of a Pushgateway, with references to environment variables as they are written.
        labels: of all that is pushed, beside those of the run.
        notifications: who is sent messages, in the order of the file.
    """

    log_format: str | None = None
    metrics_file: str | None = None
    pushgateway: str | None = None
    labels: Mapping[str, str] = {}
    notifications: tuple[NotificationSettings, ...] = ()

    def __repr__(self) -> str:
        # The address may hold a password.
        return f"TelemetrySettings({self.log_format!r}, has_pushgateway={self.pushgateway is not None})"


def _telemetry(document: Entry) -> TelemetrySettings:
    log, metrics = document.below(LOG), document.below(METRICS)
    given = document.mapping()
    return TelemetrySettings(
        log_format=log["format"].word(FORMATS) if "format" in log else None,
        metrics_file=metrics["file"].scalar() if "file" in metrics else None,
        pushgateway=_property(metrics["pushgateway"]) if "pushgateway" in metrics else None,
        labels=_labels(metrics["labels"]) if "labels" in metrics else {},
        notifications=tuple(map(_notification, given[NOTIFICATIONS].each())) if NOTIFICATIONS in given else (),
    )


def _notification(entry: Entry) -> NotificationSettings:
    given = entry.mapping()
    url = _property(given["url"])
    if not url.startswith("${") and not _ADDRESS.fullmatch(url):
        # It may hold a token, so it is not repeated.
        raise given["url"].wrong(f"is not an address; give {FORM}, or a reference to a variable that holds one")
    words = {
        key: frozenset(item.word(known) for item in given[key].each())
        for key, known in (("when", OUTCOMES), ("jobs", notifying_jobs()))
        if key in given
    }
    return NotificationSettings(key_path=given["url"].key_path, url=url, **words)


def notifying_jobs() -> tuple[str, ...]:
    # The table of commands imports the configuration.
    verbs: Any = resolve("icekeep.operations.command_specs:COMMANDS")
    return (*JOBS, *(name for name, verb in verbs.items() if verb.changes_tables))


def _labels(entry: Entry) -> dict[str, str]:
    """Names and values; those that runs have themselves are not free."""
    labels = {}
    for name, below in entry.mapping().items():
        if not re.fullmatch(LABEL, name) or name.startswith("__"):
            raise below.wrong("is no name of a label: it holds letters, digits and underscores")
        if name in OF_RUN:
            raise below.wrong("is a label that icekeep sets itself")
        labels[name] = below.scalar()
    return labels


RUNS = "runs"
KEEP_MS = 400 * DAY_MS
_DATABASES = frozenset({"sqlite", "postgresql", "postgres"})
_GIVE = "give sqlite:///PATH or postgresql://USER@HOST/DATABASE"


class RunsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of the record of runs.

    Attributes:
        uri: of the database, with references to environment variables as they are written. `None`: each catalog whose warehouse
            is a directory of this machine has a file beside that.
        is_enabled: whether runs are written down at all.
        table: `CATALOG.NAMESPACE.TABLE` of an Iceberg table that ended runs are appended to as well.
        keep_ms: how long runs stay in the database, milliseconds.
    """

    uri: str | None = None
    is_enabled: bool = True
    table: str | None = None
    keep_ms: int = KEEP_MS

    def __repr__(self) -> str:
        # An address may hold a password.
        return f"RunsSettings(has_uri={self.uri is not None}, is_enabled={self.is_enabled}, table={self.table!r})"


def _runs(given: Mapping[str, Entry]) -> RunsSettings:
    return RunsSettings(
        uri=_database(given["uri"]) if "uri" in given else None,
        is_enabled=given["enabled"].plain() if "enabled" in given else True,
        table=given["table"].parsed(require_full_name) if "table" in given else None,
        keep_ms=given["keep"].parsed(_keep_ms) if "keep" in given else KEEP_MS,
    )


def _database(entry: Entry) -> str:
    """The address of a database, as far as it can be judged before references to environment variables are filled in."""
    uri = _property(entry)
    kind, colon, _ = uri.removeprefix("jdbc:").partition(":")
    if kind.startswith("${"):
        return uri
    if not colon:
        # The text may hold a password, so it is not repeated.
        raise entry.wrong(f"is no address; {_GIVE}")
    if kind.partition("+")[0] not in _DATABASES:
        raise entry.wrong(f"is of a database {kind!r}, which is not supported; {_GIVE}")
    return uri


def _keep_ms(text: str) -> int:
    keep_ms = span_ms(text)
    if keep_ms < DAY_MS:
        raise UsageError("is less than a day, and each run would forget the others")
    return keep_ms


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
        """The properties with the values of environment variables filled in."""
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
    telemetry: TelemetrySettings = TelemetrySettings()
    written: tuple[ConfiguredValue, ...] = ()
    wrong_schedules: Mapping[str, ConfigError] = {}

    @property
    def policies(self) -> tuple[Policy, ...]:
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
    if path is None:
        return ()
    # A directory of the places where it is looked for may be closed to this user.
    with suppress(OSError):
        if path == (os.environ.get(CONFIG_VARIABLE) or _found_path()):
            return ()
    return ("--config", path)


def parse_config(text: str, path: str = "icekeep.yaml") -> Configuration:
    """Read the configuration from text; `path` is only named in errors. Raises as `read_config` does."""
    return _config(parse_document(text, path), path)


def _config(document: Entry | None, path: str, checks_schedules: bool = True) -> Configuration:
    if document is None:
        return Configuration(path, {})
    read = checked(document, ConfigurationKeys)
    given = document.mapping()
    catalogs = _catalogs(given["catalogs"]) if "catalogs" in given else {}
    wrong_schedules: dict[str, ConfigError] = {}
    return Configuration(
        path,
        catalogs,
        read_rules(document, catalogs, None if checks_schedules else wrong_schedules),
        read.prices if "prices" in given else None,
        _runs(document.below(RUNS)),
        _telemetry(document),
        tuple(_written(entry for key, entry in given.items() if key not in ("catalogs", "policies"))),
        wrong_schedules,
    )


def _written(entries: Iterable[Entry]) -> Iterator[ConfiguredValue]:
    for entry in entries:
        if isinstance(entry.value, str):
            yield ConfiguredValue(entry.key_path, "null" if entry.kind == "null" else entry.value, entry.place)
        else:
            yield from _written(entry.value.values() if isinstance(entry.value, Mapping) else entry.value)


def _catalogs(entry: Entry) -> dict[str, CatalogSettings]:
    catalogs = {}
    for name, below in entry.mapping().items():
        if not is_catalog_name(name):
            raise below.wrong("a catalog's name holds letters, digits, dashes and underscores")
        properties = {key: _property(item) for key, item in below.mapping().items()}
        if "type" not in properties:
            raise below.missing("type")
        if not properties["type"].strip():
            raise below.mapping()["type"].wrong("is empty")
        sources = {key: item.place for key, item in below.mapping().items()}
        catalogs[name] = CatalogSettings(name, properties, sources, has_placeholders=True)
    return catalogs


def is_catalog_name(name: str) -> bool:
    return re.fullmatch(NAME, name) is not None


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
