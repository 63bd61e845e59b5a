"""What the configuration says under `runs`: where runs are written down."""

import msgspec

from icekeep.names import FULL_NAME, name_of_form
from icekeep.operations.configuration.documents import Entry
from icekeep.operations.configuration.layers import span_of
from icekeep.spec.types import DAY_MS

RUNS = "runs"
KEEP_MS = 400 * DAY_MS
KEYS = frozenset({"uri", "enabled", "table", "keep"})
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


def read_runs(entry: Entry) -> RunsSettings:
    """What the entry of `runs` says; raises `ConfigError` where that is not what it must be."""
    given = entry.mapping(KEYS)
    return RunsSettings(
        uri=_uri(given["uri"]) if "uri" in given else None,
        is_enabled=given["enabled"].boolean() if "enabled" in given else True,
        table=_table(given["table"]) if "table" in given else None,
        keep_ms=_keep_ms(given["keep"]) if "keep" in given else KEEP_MS,
    )


def _uri(entry: Entry) -> str:
    """The address of a database, as far as it can be judged before references to environment variables are filled in."""
    uri = entry.text()
    kind, colon, _ = uri.removeprefix("jdbc:").partition(":")
    if kind.startswith("${"):
        return uri
    if not colon:
        # The text may hold a password, so it is not repeated.
        raise entry.wrong(f"is no address; {_GIVE}")
    if kind.partition("+")[0] not in _DATABASES:
        raise entry.wrong(f"is of a database {kind!r}, which is not supported; {_GIVE}")
    return uri


def _keep_ms(entry: Entry) -> int:
    keep_ms = span_of(entry)
    if keep_ms < DAY_MS:
        raise entry.wrong("is less than a day, and each run would forget the others")
    return keep_ms


def _table(entry: Entry) -> str:
    name = name_of_form(entry.text(), FULL_NAME)
    if name is None:
        raise entry.wrong(f"is {entry.text()!r}; give {FULL_NAME}")
    return name
