"""A catalog: whether it opens, answers and lists; the store of its tables; and, given a namespace, whether it commits."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import cast

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table, format_identifier
from icekeep.catalog.clients.rest import RestCatalog
from icekeep.catalog.sql import SqlCatalog
from icekeep.errors import UsageError, and_more
from icekeep.operations.doctor.clocks import ahead_ms, checked_clock
from icekeep.operations.doctor.driver import look_at_packages
from icekeep.operations.doctor.findings import NOT_TRIED, WRONG, Notes, NotTried
from icekeep.operations.doctor.requirements import Needs, needed_extras
from icekeep.operations.doctor.store import StorePlace, look_at_store
from icekeep.operations.jobs import resolve
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunFilter
from icekeep.runtime import SYSTEM
from icekeep.spec.times import format_time
from icekeep.spelling import counted, with_one_typo
from icekeep.storage.base import DirectoryStorage

_LOOK_AT_COMMITS = "icekeep.operations.doctor.trial_table:look_at_commits"
"""Imported when its turn has come: it needs Arrow."""

_NAMES_SHOWN = 3
"""Of the other catalogs in a database."""


class DoctorCatalog(msgspec.Struct, frozen=True):
    """A catalog to look at: its name, its properties as far as they are known, and how it is opened.

    `records` tells where runs on its tables are written down, `None` for nowhere; without it nobody knows.
    """

    name: str
    properties: Mapping[str, str]
    open: Callable[[], Catalog]
    records: Callable[[], RunRecords | None] | None = None
    placing: Callable[[], AbstractContextManager[None]] = nullcontext
    """In it an error on a property of the catalog says where that stands."""


class TrialSite(msgspec.Struct, frozen=True, kw_only=True):
    """What the user gives to try things in: an existing namespace, and a directory in place of the warehouse."""

    namespace: Identifier | None = None
    location: str | None = None


def look_at_opening(
    notes: Notes, subject: DoctorCatalog, needs: Needs | None, namespace: Identifier | None = None
) -> tuple[Catalog | None, bool]:
    """Look whether a catalog opens, answers and lists; nothing is written to it or its store.

    Returns:
        The catalog, `None` if it does not open; and whether it lists the tables of a namespace, by default of its first.
    """
    about = f"catalog {subject.name}"
    if needs is not None:
        extras = needed_extras(subject.properties).items()
        look_at_packages(notes, about, [one for extra, packages in extras for one in needs.of(extra, packages)])
    opened: list[Catalog] = []
    if not notes.look(about, "settings", partial(_opened, subject, opened)):
        return None, False
    (catalog,) = opened
    if not notes.look(about, "namespaces", partial(_namespaces, subject, catalog)):
        return catalog, False
    lists = notes.look(about, "tables", partial(_tables, catalog, namespace))
    if isinstance(catalog, SqlCatalog):
        notes.look(about, "clock", partial(_database_clock, catalog))
    return catalog, lists


def look_at_catalog(
    notes: Notes, subject: DoctorCatalog, site: TrialSite, needs: Needs | None
) -> tuple[StorePlace, ...]:
    """Look at a catalog and the store of its tables; returns the places in it that were reached."""
    about = f"catalog {subject.name}"
    catalog, lists = look_at_opening(notes, subject, needs, site.namespace)
    if catalog is None:
        return ()
    location = site.location or catalog.warehouse
    # What reaches a table's files may come with the table, from a server.
    is_by_table = location is None or (
        isinstance(catalog, RestCatalog) and site.location is None and site.namespace is not None
    )
    places = _Places(notes, catalog)
    if location is not None and not is_by_table:
        places.look(StorePlace(cast(DirectoryStorage, catalog.storage), location))
    elif site.namespace is None:
        notes.tell(
            about, "store", NOT_TRIED, "the catalog does not say where its tables lie; give --location or --namespace"
        )
    if site.namespace is None:
        reason = "give --namespace with an existing one: a table is created in it, committed to and dropped"
        notes.tell(about, "commit", NOT_TRIED, reason)
    elif not lists or places.has_failed:
        notes.tell(about, "commit", NOT_TRIED, "its namespace cannot be listed, or its store failed: see above")
    else:
        on_table = places.look_at_table if is_by_table else None
        try:
            resolve(_LOOK_AT_COMMITS)(notes, about, catalog, site.namespace, on_table)
        except UsageError as error:
            notes.tell(about, "commit", WRONG, error.message)
    return tuple(places.reached)


def look_at_records(notes: Notes, subject: DoctorCatalog) -> None:
    """Look whether runs on a catalog's tables are written down, as the configuration says, and whether that can be read."""
    if subject.records is not None:
        notes.look(f"catalog {subject.name}", "record of runs", partial(_record_of_runs, subject.records))


class _Places:
    """The places of a catalog that were looked at."""

    def __init__(self, notes: Notes, catalog: Catalog) -> None:
        self._notes, self._runtime = notes, catalog.runtime
        self.reached: list[StorePlace] = []
        self.has_failed = False

    def look(self, place: StorePlace) -> None:
        if look_at_store(self._notes, place, self._runtime):
            self.reached.append(place)
        else:
            self.has_failed = True

    def look_at_table(self, table: Table) -> None:
        self.look(StorePlace(cast(DirectoryStorage, table.storage), table.metadata.location))


def _opened(subject: DoctorCatalog, opened: list[Catalog]) -> str:
    catalog = subject.open()
    opened.append(catalog)
    return catalog.identity


def _record_of_runs(records_of: Callable[[], RunRecords | None]) -> str:
    records = records_of()
    if records is None:
        raise NotTried(
            "runs are not written down; give `runs: {uri: ...}` in the configuration, and `icekeep runs` shows them"
        )
    found = records.select(RunFilter(limit=1), SYSTEM.now_ms())
    last = f"the last began at {format_time(found[0].started_ms)}" if found else "there is none yet"
    return f"runs are written down in {records.address}; {last}"


def _namespaces(subject: DoctorCatalog, catalog: Catalog) -> str:
    began_ms = catalog.runtime.monotonic_ms()
    with subject.placing():
        count = len(catalog.list_namespaces())
    listed = f"{counted(count, 'namespaces')}, listed in {catalog.runtime.monotonic_ms() - began_ms:,} ms"
    return listed if count else f"{listed}; {_doubt(catalog)}"


def _doubt(catalog: Catalog) -> str:
    """What may be wrong with a catalog that has no namespace."""
    others = catalog.names_beside() if isinstance(catalog, SqlCatalog) else []
    if others:
        # Several catalogs share a database, so that a new one may have a name of its own, like another's.
        near = with_one_typo(catalog.name, others)
        names = f"{', '.join(map(repr, near or others[:_NAMES_SHOWN]))}{'' if near else and_more(others, _NAMES_SHOWN)}"
        return (
            f"this database has no tables of catalog {catalog.name!r}, but of {names}; a new catalog has none, and where there "
            "should be tables name it so in the configuration"
        )
    # A wrong address often leads to a database that is there, and belongs to somebody else.
    return "a new catalog has none, and where there should be tables its address is wrong"


def _tables(catalog: Catalog, namespace: Identifier | None) -> str:
    chosen = namespace or next(iter(catalog.list_namespaces()), None)
    if chosen is None:
        raise NotTried("there is no namespace yet")
    return f"{len(catalog.list_tables(chosen)):,} in namespace {format_identifier(chosen)!r}"


def _database_clock(catalog: SqlCatalog) -> str:
    began_ms = catalog.runtime.now_ms()
    theirs_ms = catalog.clock_ms()
    if theirs_ms is None:
        return "its database is a file, and has none of its own"
    return checked_clock("the catalog's database", ahead_ms(theirs_ms, began_ms, catalog.runtime.now_ms()))
