"""What is said of many tables."""

import msgspec

from icekeep.health.values import FaultsCount, TableHealth


class NotRead(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose health cannot be told, or a namespace or catalog whose tables cannot be listed.

    Attributes:
        name: `catalog.namespace.table`, or with `*` in the place of what is not known.
        kind: of the error, as machines know it; `unexpected` for one that nobody has thought of.
        faults: what `check` finds in metadata that does not load.
    """

    name: str
    kind: str
    reason: str
    faults: tuple[FaultsCount, ...] = ()


class ReportResult(msgspec.Struct, frozen=True, kw_only=True):
    """The health of tables, the worst first.

    Attributes:
        status: `partial` where a table could not be read, else `done`.
        catalogs: the names of those that were looked at.
        currency: of all costs; `None` without prices.
        tables_count: that were looked at, those that could not be read among them.
        requests_count, read_bytes: what it took of storage, beside the loading of tables.
    """

    status: str
    catalogs: tuple[str, ...]
    currency: str | None = None
    tables_count: int = 0
    not_read: tuple[NotRead, ...] = ()
    tables: tuple[TableHealth, ...] = ()
    requests_count: int = 0
    read_bytes: int = 0
    elapsed_ms: int = 0
