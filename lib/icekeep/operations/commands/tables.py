"""The command `tables`: which tables there are, and what their metadata files alone say of them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from icekeep.catalog.base import Catalog, Identifier
from icekeep.errors import IcekeepError, NotFoundError, first_line
from icekeep.health.values import number_of
from icekeep.names import full_name
from icekeep.operations.configuration.catalogs import Catalogs, catalogs_of_tables, find_pattern
from icekeep.operations.configuration.file import CatalogSettings, Configuration
from icekeep.policies.values import Glob
from icekeep.reports.histories import in_threads
from icekeep.reports.job import TABLES_AT_ONCE, tables_matching
from icekeep.reports.values import NotRead

R = TypeVar("R")


def for_each_catalog(
    chosen: Sequence[CatalogSettings], work: Callable[[CatalogSettings], R]
) -> tuple[list[R], list[NotRead]]:
    """What `work` makes of each, and those of which it cannot; of the only one its error is raised."""
    found: list[R] = []
    not_read: list[NotRead] = []
    for settings in chosen:
        try:
            found.append(work(settings))
        except IcekeepError as error:
            if len(chosen) == 1:
                raise
            not_read.append(NotRead(name=f"{settings.name}.*", kind=error.kind, reason=first_line(error)))
    return found, not_read


class TableListed(msgspec.Struct, frozen=True, kw_only=True):
    """A table by its metadata file; `report` looks at manifests too.

    Attributes:
        table: `catalog.namespace.name`.
        data_files_count, delete_files_count, bytes: as the summary of the current snapshot says; null where it does not.
        snapshots_count: that have not expired.
        last_updated_ms: when the table was last changed, epoch milliseconds.
    """

    table: str
    format_version: int
    data_files_count: int | None
    delete_files_count: int | None
    bytes: int | None
    snapshots_count: int
    last_updated_ms: int
    location: str


class TablesFound(msgspec.Struct, frozen=True, kw_only=True):
    """Tables in the order of their names.

    Attributes:
        status: `partial` where something could not be read.
        not_read: tables whose metadata does not load, and namespaces and catalogs that cannot be listed.
    """

    status: str
    catalogs: tuple[str, ...]
    tables_count: int
    not_read: tuple[NotRead, ...]
    tables: tuple[TableListed, ...]


def tables(
    config: Configuration,
    catalogs: Catalogs,
    opens: Callable[[CatalogSettings], Catalog],
    catalog: str | None,
    *,
    match: str | None = None,
) -> TablesFound:
    """List the tables of a catalog, or of each that is configured."""
    pattern = None if match is None else find_pattern(catalogs, match, catalog)
    chosen = catalogs_of_tables(catalogs, catalog, pattern)
    listed, unread = for_each_catalog(
        chosen, lambda one: _listed(one, opens, None if pattern is None else pattern.glob)
    )
    found = [each for some in listed for each in some]
    read = sorted((one for one in found if isinstance(one, TableListed)), key=lambda one: one.table)
    not_read = [*unread, *(one for one in found if isinstance(one, NotRead))]
    if pattern is not None and not found and not unread:
        raise pattern.matches_nothing()
    return TablesFound(
        status="partial" if not_read else "done",
        catalogs=tuple(one.name for one in chosen),
        tables_count=len(read) + sum(not one.name.endswith("*") for one in not_read),
        not_read=tuple(sorted(not_read, key=lambda one: one.name)),
        tables=tuple(read),
    )


def _listed(
    settings: CatalogSettings, opens: Callable[[CatalogSettings], Any], glob: Glob | None
) -> list[TableListed | NotRead]:
    with settings.placing():
        catalog = opens(settings)
        not_read: list[NotRead] = []
        identifiers = tables_matching(catalog, glob, not_read)
        found = in_threads(partial(_loaded, catalog), identifiers, TABLES_AT_ONCE)
        return [*not_read, *(one for one in found if one is not None)]


def _loaded(catalog: Catalog, identifier: Identifier) -> TableListed | NotRead | None:
    """A table; `None` for one that was dropped meanwhile."""
    name = full_name(catalog.name, identifier)
    try:
        table = catalog.load(identifier)
    except NotFoundError:
        return None
    except IcekeepError as error:
        return NotRead(name=name, kind=error.kind, reason=first_line(error))
    metadata, head = table.metadata, table.current_snapshot
    totals = (
        [number_of(head.summary, key) for key in ("total-data-files", "total-delete-files", "total-files-size")]
        if head is not None
        else [0, 0, 0]
    )
    return TableListed(
        table=name,
        format_version=metadata.format_version,
        data_files_count=totals[0],
        delete_files_count=totals[1],
        bytes=totals[2],
        snapshots_count=len(metadata.snapshots),
        last_updated_ms=metadata.last_updated_ms,
        location=metadata.location,
    )
