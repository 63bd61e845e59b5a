"""What `doctor` finds of catalogs and stores.

In a store a file below `.icekeep/doctor/` is put, read, put again, listed and deleted. To prove that a catalog takes commits, a
table of this run's own is created, committed to and dropped. Its name, `icekeep_doctor_<number>`, holds a number that this run
has drawn, so that nothing of others is touched; if the process is killed the table stays.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Catalog, Committed, Identifier, Table, Unknown, format_identifier
from icekeep.catalog.clients.rest import RestCatalog
from icekeep.catalog.sql import SqlCatalog
from icekeep.errors import (
    IcekeepError,
    MissingFileError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
    UsageError,
    and_more,
)
from icekeep.operations.doctor.driver import (
    NOT_TRIED,
    STORE_GRAIN_MS,
    Needs,
    Notes,
    NotTried,
    absent,
    ahead_ms,
    checked_clock,
    look_at_packages,
    needed_extras,
    remove_empty,
    remove_own,
)
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunFilter
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.evolution import AddColumn
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.spec.times import format_time
from icekeep.spec.updates import AssertCurrentSchemaId, SetProperties
from icekeep.spelling import counted, with_one_typo
from icekeep.storage.base import DeleteStatus, Storage
from icekeep.tables.verbs import create_table, update_schema

_DATA = b"icekeep doctor\n"
_OTHER_DATA = b"another file\n"


class StorePlace(msgspec.Struct, frozen=True):
    """A location, and what reaches it."""

    storage: Storage
    location: str


def look_at_store(notes: Notes, place: StorePlace, runtime: Runtime) -> bool:
    """Try what jobs do with a store, in a directory of this run's own, which is removed. Returns whether it can be reached."""
    about, storage = f"store {place.location}", place.storage
    base = place.location.rstrip("/")
    trial = _Trial(storage, f"{base}/{OWN_DIRECTORY}/doctor", runtime)
    # A store that is not there is asked by something that does not go on for minutes, as a put does.
    if not notes.look(about, "reached", trial.reach):
        return False
    made = absent(storage, f"{base}/{OWN_DIRECTORY}/doctor", f"{base}/{OWN_DIRECTORY}", base)
    is_put = False
    try:
        is_put = notes.look(about, "put", trial.put)
        for check, look in trial.after_put.items() if is_put else ():
            notes.look(about, check, look)
    finally:
        if is_put:
            notes.look(about, "delete", trial.remove)
        else:
            # It is hardly there, and why it could not be made is said already.
            with suppress(IcekeepError):
                trial.remove()
        remove_empty(storage, made)
    return True


class _Trial:
    """One file, and what is done with it."""

    def __init__(self, storage: Storage, directory: str, runtime: Runtime) -> None:
        self._storage, self._runtime = storage, runtime
        self._drawn = str(runtime.new_uuid())
        self._directory = f"{directory}/{self._drawn}"
        self._location = f"{self._directory}/file"
        self._began_ms = self._ended_ms = 0
        self._is_anothers = False
        self.after_put: dict[str, Callable[[], str]] = {
            "read": self._read,
            "conditional put": self._put_again,
            "list": self._list,
            "clock": self._clock,
        }

    def reach(self) -> str:
        """Read a file that is not there; the answer to a mere look would not tell that there is no such bucket."""
        began_ms = self._runtime.monotonic_ms()
        try:
            self._storage.read(self._location)
        except MissingFileError:
            return f"it answers, in {self._runtime.monotonic_ms() - began_ms:,} ms"
        raise UsageError(f"it has a file {self._location!r}, which nobody created")

    def put(self) -> str:
        self._began_ms = self._runtime.now_ms()
        try:
            self._storage.create(self._location, _DATA)
        except FileExistsError:
            self._is_anothers = True
            raise
        self._ended_ms = self._runtime.now_ms()
        return "a file can be created"

    def remove(self) -> str:
        if self._is_anothers:
            return "not removed: another process made the file"
        (outcome,) = self._storage.delete_many([self._location])
        if outcome.status is DeleteStatus.FAILED:
            raise UsageError(f"{self._location!r} cannot be deleted, and is left behind: {outcome.reason}")
        if self._storage.head(self._location) is not None:
            raise UsageError(f"{self._location!r} is still there after it was deleted; remove it by hand")
        remove_own(self._storage, self._directory, self._drawn)
        return "all that this run created is removed"

    def _put_again(self) -> str:
        try:
            self._storage.create(self._location, _OTHER_DATA)
        except FileExistsError:
            return "a second file of the same name is refused"
        raise UsageError(
            "the store put a second file over the first of the same name: two runs could claim the same work, and in a "
            "filesystem catalog two writers commit the same version; use a store, or a release of it, that honours If-None-Match"
        )

    def _read(self) -> str:
        found = self._storage.read(self._location)
        if found != _DATA:
            raise UsageError(f"{len(found)} bytes came back that are not the {len(_DATA)} that were put")
        return "what was put is read"

    def _list(self) -> str:
        listed = [file.location.rpartition("/")[2] for file in self._storage.list(self._directory)]
        if listed != ["file"]:
            raise UsageError(
                f"a listing shows {listed} where there is one file called 'file': orphan removal and deletion go by listings"
            )
        return "a new file is listed at once"

    def _clock(self) -> str:
        seen = self._storage.head(self._location)
        if seen is None:
            raise UsageError(f"it does not list {self._location!r}, which was just created")
        difference_ms = ahead_ms(seen.modified_ms, self._began_ms, self._ended_ms, STORE_GRAIN_MS)
        return checked_clock("the store", difference_ms)


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
    catalog = notes.ask(about, "settings", partial(_opened, subject))
    if catalog is None:
        return None, False
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
    reached: list[StorePlace] = []

    def reach(storage: Storage, location: str) -> bool:
        place = StorePlace(storage, location)
        is_reached = look_at_store(notes, place, catalog.runtime)
        if is_reached:
            reached.append(place)
        return is_reached

    is_ready = lists
    if location is not None and not is_by_table:
        is_ready = reach(catalog.storage, location) and lists
    elif site.namespace is None:
        notes.add(
            about, "store", NOT_TRIED, "the catalog does not say where its tables lie; give --location or --namespace"
        )
    if site.namespace is None:
        reason = "give --namespace with an existing one: a table is created in it, committed to and dropped"
        notes.add(about, "commit", NOT_TRIED, reason)
    elif not is_ready:
        notes.add(about, "commit", NOT_TRIED, "its namespace cannot be listed, or its store failed: see above")
    else:
        on_table = (lambda table: reach(table.storage, table.metadata.location)) if is_by_table else None
        look_at_commits(notes, about, catalog, site.namespace, on_table)
    return tuple(reached)


def look_at_records(notes: Notes, subject: DoctorCatalog) -> None:
    """Look whether runs on a catalog's tables are written down, as the configuration says, and whether that can be read."""
    if subject.records is not None:
        notes.look(f"catalog {subject.name}", "record of runs", partial(_record_of_runs, subject.records))


def _opened(subject: DoctorCatalog) -> tuple[str, Catalog]:
    catalog = subject.open()
    return catalog.identity, catalog


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


NAME_PREFIX = "icekeep_doctor_"

_COLUMNS = pa.schema([pa.field("id", pa.int64())])
_NOT_FOR_LONG = {
    "commit.retry.num-retries": "1",
    "commit.retry.total-timeout-ms": "10000",
    "commit.status-check.num-retries": "2",
    "commit.status-check.total-timeout-ms": "10000",
}
"""Whoever waits for an answer need not wait for half an hour, as a commit does that hours of work went into."""


def look_at_commits(
    notes: Notes, about: str, catalog: Catalog, namespace: Identifier, on_table: Callable[[Table], object] | None
) -> None:
    """Create a table, let `on_table` look at it, commit to it, try to commit to what it was before, and drop it.

    Args:
        on_table: given where what reaches files comes with a table.
    """
    trial = _TableTrial(catalog, namespace, catalog.warehouse if on_table is None else None)
    try:
        if notes.look(about, "create table", trial.create) and trial.table is not None:
            if on_table is not None:
                on_table(trial.table)
            if notes.look(about, "commit", trial.commit):
                notes.look(about, "commit on an old version", trial.commit_late)
    finally:
        if trial.may_be_there:
            notes.look(about, "drop table", trial.remove)
        trial.leave()


class _TableTrial:
    """The table.

    Attributes:
        table: as it was created, `None` before.
        may_be_there: whether the catalog may have it.
    """

    def __init__(self, catalog: Catalog, namespace: Identifier, above: str | None) -> None:
        """Args:
        above: the directory of tables, where the catalog's own storage reaches it.
        """
        self.table: Table | None = None
        self.may_be_there = False
        self._catalog, self._storage = catalog, catalog.storage
        self._above = above
        self._name = f"{NAME_PREFIX}{catalog.runtime.new_uuid().hex}"
        self._identifier = (*namespace, self._name)
        self._location = ""
        self._made: tuple[str, ...] = ()

    def create(self) -> str:
        self._location = self._catalog.default_location(self._identifier).rstrip("/")
        if self._above is not None:
            self._made = absent(self._storage, self._location.rpartition("/")[0], self._above)
        self.may_be_there = True
        try:
            self.table = create_table(
                self._catalog, self._identifier, _COLUMNS, location=self._location, properties=_NOT_FOR_LONG
            )
        except OutcomeUnknownError:
            raise
        except IcekeepError:
            self.may_be_there = False
            raise
        return f"{self.table.name} at {self.table.metadata.location}"

    def commit(self) -> str:
        assert self.table is not None
        update_schema(self.table, [AddColumn("added", "string")])
        return "a column was added"

    def commit_late(self) -> str:
        """Do what the slower of two writers would do, who must be refused."""
        assert self.table is not None
        schema_id = self.table.metadata.current_schema_id
        late = SetProperties({"late": "true"})
        outcome = self._catalog.swap(self.table, [AssertCurrentSchemaId(schema_id)], [late])
        if isinstance(outcome, Committed):
            raise UsageError(
                "a commit on a version of the table that was not current any more was taken: commits of others are lost in this "
                "catalog; use another one"
            )
        if isinstance(outcome, Unknown):
            raise UnavailableError(f"its outcome is unknown: {outcome.cause}")
        return "it is refused"

    def remove(self) -> str:
        try:
            return self._removed()
        except IcekeepError as error:
            name = format_identifier(self._identifier)
            raise UsageError(
                f"table {name!r} of this run may be left behind: {error.message}; look for it, and drop it with icekeep drop "
                "--purge"
            ) from error

    def leave(self) -> None:
        """Remove what a table that was not created has left, and directories that were made for it."""
        with suppress(IcekeepError):
            if self._above is not None and self._is_named() and not self.may_be_there:
                remove_own(self._storage, self._location, self._name)
        remove_empty(self._storage, self._made)

    def _removed(self) -> str:
        try:
            table = self._catalog.load(self._identifier)
        except NotFoundError:
            raise NotTried("there is none") from None
        known = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        self._storage, self._location = table.storage, table.metadata.location.rstrip("/")
        known.add(self._catalog.drop(self._identifier, table_uuid=table.metadata.table_uuid))
        if self._is_named():
            remove_own(self._storage, self._location, self._name)
            return "all that this run created is removed"
        # A server may put tables where it likes: only what metadata names is this table's for certain.
        failed = [
            one for one in self._storage.delete_many(sorted(filter(None, known))) if one.status is DeleteStatus.FAILED
        ]
        if failed:
            raise UnavailableError(f"{failed[0].location!r} cannot be deleted ({failed[0].reason})")
        return f"its metadata files are deleted; what else lies below {self._location!r} is left alone"

    def _is_named(self) -> bool:
        """Whether the table's directory has its name, so that all in it is this run's."""
        return self._name in self._location.rpartition("/")[2]
