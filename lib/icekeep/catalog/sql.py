"""A catalog in a SQL database, which shares its two tables with Iceberg's JdbcCatalog and PyIceberg's SqlCatalog.

A table's row holds the location of its current metadata file. A commit writes the next file and moves the row to it, if
the row still names the file that the commit was based on.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from icekeep.catalog.base import (
    BaseCatalog,
    Committed,
    Conflict,
    Identifier,
    Pointer,
    SwapOutcome,
    Table,
    Unknown,
    as_identifier,
    check_meant,
    format_identifier,
    in_parts,
    namespace_exists,
    namespace_not_empty,
    no_such_namespace,
    no_such_table,
    no_warehouse,
    table_exists,
    validate_namespace,
    validate_table_identifier,
)
from icekeep.catalog.database import Database, DatabaseBusyError, DuplicateRowError
from icekeep.catalog.metadata_files import (
    attached_metadata,
    delete_dropped,
    delete_refused,
    file_version,
    new_location,
    next_metadata,
    read_current,
    write_metadata,
)
from icekeep.catalog.registering import read_unregistered, registered
from icekeep.catalog.resending import Sent, replaced
from icekeep.errors import IcekeepError, InvalidTableError, OutcomeUnknownError, UnavailableError, UsageError
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import Requirement, Update
from icekeep.storage.base import Storage
from icekeep.storage.locations import join

SCHEMA = sa.MetaData()
TABLES = sa.Table(
    "iceberg_tables",
    SCHEMA,
    sa.Column("catalog_name", sa.String(255), primary_key=True),
    sa.Column("table_namespace", sa.String(255), primary_key=True),
    sa.Column("table_name", sa.String(255), primary_key=True),
    sa.Column("metadata_location", sa.String(1000)),
    sa.Column("previous_metadata_location", sa.String(1000)),
    sa.Column("iceberg_type", sa.String(5)),
)
NAMESPACES = sa.Table(
    "iceberg_namespace_properties",
    SCHEMA,
    sa.Column("catalog_name", sa.String(255), primary_key=True),
    sa.Column("namespace", sa.String(255), primary_key=True),
    sa.Column("property_key", sa.String(255), primary_key=True),
    sa.Column("property_value", sa.String(1000)),
)


T = TypeVar("T")


class SqlCatalog(BaseCatalog):
    """Tables whose pointers are rows of `iceberg_tables`; properties `uri` and `warehouse`.

    The database's tables, and SQLite's file, are made by the first namespace, in the form with `iceberg_type` (Java's
    schema version V1); the older form V0 is used as it is.
    """

    compares_metadata = True
    restores_snapshots = True

    def __init__(self, name: str, properties: Mapping[str, str], storage: Storage, runtime: Runtime = SYSTEM) -> None:
        super().__init__(name, properties, runtime)
        self.warehouse = properties.get("warehouse", "").rstrip("/") or None
        self.storage = storage
        self._database = Database.of_catalog(name, properties)
        self._has_types: bool | None = None

    @property
    def identity(self) -> str:
        # One database holds several catalogs, told apart by their names.
        return f"sql {self._database.address} {self.name}"

    def load(self, identifier: Identifier | str) -> Table:
        return read_current(self, as_identifier(identifier))

    def find(self, identifier: Identifier | str) -> Pointer:
        identifier = as_identifier(identifier)
        columns = (TABLES.c.metadata_location, TABLES.c.previous_metadata_location)
        rows: Sequence[Any] = self._select(sa.select(*columns).where(*self._row(identifier)))
        if not rows:
            raise no_such_table(self, identifier)
        location, previous = rows[0]
        if not location:
            raise InvalidTableError(
                f"table {format_identifier(identifier)!r} in catalog {self.name!r} has no metadata location"
            )
        return Pointer(str(location), self.storage, previous or None)

    def describe(self, identifier: Identifier) -> None:
        """Nothing but the metadata location, which may lie anywhere."""

    def create(self, identifier: Identifier, metadata: TableMetadata) -> Table:
        validate_table_identifier(identifier)
        if identifier[:-1] not in self._namespaces():
            raise no_such_namespace(self, identifier[:-1])
        if self._select(sa.select(TABLES.c.table_name).where(*self._row(identifier))):
            raise table_exists(self, identifier)
        location = self._write(metadata, version=0)
        values = {"metadata_location": location, **self._key(identifier)}
        if self._has_types:
            values["iceberg_type"] = "TABLE"
        try:
            self._change(lambda connection: connection.execute(sa.insert(TABLES).values(values)))
        except OutcomeUnknownError:
            raise
        except DuplicateRowError as error:
            delete_refused(self.storage, location)
            raise table_exists(self, identifier) from error
        except IcekeepError:
            delete_refused(self.storage, location)
            raise
        return Table(identifier, metadata, location, self.storage, self)

    def default_location(self, identifier: Identifier) -> str:
        validate_table_identifier(identifier)
        namespace, table_name = identifier[:-1], identifier[-1]
        in_namespace = sa.and_(
            NAMESPACES.c.catalog_name == self.name,
            NAMESPACES.c.namespace == self._namespace_text(namespace),
            NAMESPACES.c.property_key == "location",
        )
        rows = self._select(sa.select(NAMESPACES.c.property_value).where(in_namespace))
        if rows and rows[0][0]:
            return join(rows[0][0], table_name)
        if not self.warehouse:
            raise no_warehouse(self)
        return join(self.warehouse, *identifier)

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        new = next_metadata(table, requirements, updates, self.runtime.now_ms())
        if isinstance(new, Conflict):
            return new
        outcome = self._replace(table, new)
        if isinstance(outcome, Committed):
            others = partial(self._pointers_but, table.identifier)
            delete_dropped(self.storage, table.metadata, new, roots=self.reclaim_roots, others=others)
        return outcome

    def reattach(self, table: Table) -> SwapOutcome:
        # The pointer alone is compared; the file that it names is not read.
        return self._replace(table, attached_metadata(table, self.runtime.now_ms()))

    def _replace(self, table: Table, new: TableMetadata) -> SwapOutcome:
        location = self._write(new, file_version(table.metadata_location) + 1)
        after = Table(table.identifier, new, location, self.storage, self)
        return replaced(table, after, partial(self._moved, table, location))

    def drop(
        self, identifier: Identifier, *, table_uuid: str | None = None, metadata_location: str | None = None
    ) -> str:
        row = self._row(identifier)
        while True:
            rows = self._select(sa.select(TABLES.c.metadata_location).where(*row))
            if not rows:
                raise no_such_table(self, identifier)
            location = rows[0][0]
            check_meant(self, identifier, Pointer(str(location), self.storage), table_uuid, metadata_location)
            # The row that was looked at goes, or none: else somebody committed meanwhile, and it is looked at again.
            statement = sa.delete(TABLES).where(*row, TABLES.c.metadata_location.is_not_distinct_from(location))
            if self._change(partial(_rows_changed, statement)):
                return str(location or "")

    def clock_ms(self) -> int | None:
        """What time the database's server says that it is, epoch milliseconds; `None` for a database in a file."""
        return self._database.clock_ms()

    def register_table(self, identifier: Identifier, metadata_location: str) -> Table:
        table = read_unregistered(self, identifier, metadata_location, self.storage)
        if identifier[:-1] not in self._namespaces():
            raise no_such_namespace(self, identifier[:-1])
        values = {"metadata_location": metadata_location, **self._key(identifier)}
        if self._has_types:
            values["iceberg_type"] = "TABLE"

        def insert() -> None:
            try:
                self._change(lambda connection: connection.execute(sa.insert(TABLES).values(values)))
            except DuplicateRowError as error:
                raise table_exists(self, identifier) from error

        return registered(table, insert)

    def rename(self, old: Identifier, new: Identifier) -> None:
        validate_table_identifier(new)
        if new[:-1] not in self._namespaces():
            raise no_such_namespace(self, new[:-1])
        statement = sa.update(TABLES).where(*self._row(old)).values(self._key(new))
        try:
            if self._change(partial(_rows_changed, statement)) == 0:
                raise no_such_table(self, old)
        except DuplicateRowError as error:
            raise table_exists(self, new) from error

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        if in_parts(namespace) not in self._namespaces():
            raise no_such_namespace(self, namespace)
        wanted = (
            TABLES.c.catalog_name == self.name,
            TABLES.c.table_namespace == self._namespace_text(namespace),
            self._is_table(),
        )
        return sorted((*namespace, name) for (name,) in self._select(sa.select(TABLES.c.table_name).where(*wanted)))

    def list_pointers(self) -> dict[Identifier, Pointer | None]:
        return {name[1:]: pointer for name, pointer in self._pointers(TABLES.c.catalog_name == self.name).items()}

    def list_pointers_beside(self) -> dict[Identifier, Pointer | None]:
        return self._pointers(TABLES.c.catalog_name != self.name)

    def _pointers(self, *wanted: sa.ColumnElement[bool]) -> dict[Identifier, Pointer | None]:
        """Tables of the database, by catalog, namespace and name."""
        named = (TABLES.c.catalog_name, TABLES.c.table_namespace, TABLES.c.table_name)
        where = (TABLES.c.metadata_location, TABLES.c.previous_metadata_location)
        rows: Sequence[Any] = self._select(sa.select(*named, *where).where(*wanted, self._is_table()))
        return {
            (catalog, *namespace.split("."), name): Pointer(str(location), self.storage, previous or None)
            if location
            else None
            for catalog, namespace, name, location, previous in rows
        }

    def _pointers_but(self, identifier: Identifier) -> set[str]:
        """The metadata files of all other tables of the database."""
        found = self._pointers()
        found.pop((self.name, *identifier), None)
        return {pointer.metadata_location for pointer in found.values() if pointer is not None}

    def list_namespaces(self) -> list[Identifier]:
        return sorted(self._namespaces())

    def create_namespace(
        self, namespace: Identifier, properties: Mapping[str, str] | None = None, *, exists_ok: bool = False
    ) -> None:
        text = self._namespace_text(validate_namespace(namespace))
        if self._database.is_there and namespace in self._namespaces():
            if exists_ok:
                return
            raise namespace_exists(self, namespace)
        self._prepare()
        # A namespace without properties needs a row all the same; PyIceberg and Java write this one.
        rows = [
            {
                "catalog_name": self.name,
                "namespace": text,
                "property_key": key,
                "property_value": value,
            }
            for key, value in {"exists": "true", **(properties or {})}.items()
        ]
        try:
            self._change(lambda connection: connection.execute(sa.insert(NAMESPACES), rows))
        except DuplicateRowError:
            # Somebody made it between the look and the insert.
            self.create_namespace(namespace, properties, exists_ok=exists_ok)

    def drop_namespace(self, namespace: Identifier) -> None:
        if in_parts(namespace) not in self._namespaces():
            raise no_such_namespace(self, namespace)
        text = self._namespace_text(namespace)
        statement = sa.delete(NAMESPACES).where(NAMESPACES.c.catalog_name == self.name, NAMESPACES.c.namespace == text)

        def remove(connection: sa.Connection) -> None:
            # Views count as well: a namespace is there as long as a row names it or one below it.
            connection.execute(statement)
            if namespace in _with_parents(connection.execute(self._namespaces_query()).scalars()):
                raise namespace_not_empty(self, namespace)

        self._change(remove)

    def names_beside(self) -> list[str]:
        """The names of the other catalogs that have tables in this database."""
        others = sa.select(TABLES.c.catalog_name).where(TABLES.c.catalog_name != self.name).distinct()
        return sorted(name for (name,) in self._select(others))

    def _moved(self, table: Table, location: str) -> Sent:
        """One transaction that moves the pointer; a later one waits for the lock of an earlier, so it sees what that did."""
        try:
            return self._database.transact(partial(self._move_pointer, table, location))
        except OutcomeUnknownError as error:
            return Unknown(error.message, location)
        except DatabaseBusyError as error:
            return Conflict(str(error), is_final=True)

    def _move_pointer(self, table: Table, location: str, connection: sa.Connection) -> Conflict | None:
        """The compare and swap; its conflict is proved, since the statement changed no row."""
        row = self._row(table.identifier)
        statement = (
            sa.update(TABLES)
            .where(*row, TABLES.c.metadata_location == table.metadata_location)
            .values(metadata_location=location, previous_metadata_location=table.metadata_location)
        )
        if connection.execute(statement).rowcount == 1:
            return None
        current = connection.execute(sa.select(TABLES.c.metadata_location).where(*row)).scalar_one_or_none()
        if current == location:
            # A statement that was sent again after a lost answer finds its own work.
            return None
        if current is None:
            return Conflict("the table was dropped or renamed", is_final=True)
        return Conflict(f"another writer committed {current!r}", is_final=True)

    def _write(self, metadata: TableMetadata, version: int) -> str:
        location = new_location(metadata, version, self.runtime)
        write_metadata(self.storage, metadata, location)
        return location

    def _change(self, work: Callable[[sa.Connection], T], *, creates: bool = False) -> T:
        try:
            return self._database.transact(work, creates=creates)
        except DatabaseBusyError as error:
            raise UnavailableError(
                f"the database of catalog {self.name!r} is busy: {error}", catalog=self.name
            ) from error

    def _select(self, query: sa.Select[Any] | sa.CompoundSelect[Any]) -> list[sa.Row[Any]]:
        if not self._is_prepared():
            self._database.require()
            return []
        with self._database.reading() as connection:
            return list(connection.execute(query))

    def _namespace_text(self, namespace: Identifier) -> str:
        """What the database calls a namespace: its levels with dots between, so that no level can have one."""
        if lost := next((level for level in namespace if "." in level), None):
            raise UsageError(
                f"catalog {self.name!r} keeps a namespace as its levels with dots between, and has none called {lost!r}; "
                f"name it without quotes, as {'.'.join(namespace)}"
            )
        return ".".join(namespace)

    def _key(self, identifier: Identifier) -> dict[str, str]:
        return {
            "catalog_name": self.name,
            "table_namespace": self._namespace_text(identifier[:-1]),
            "table_name": identifier[-1],
        }

    def _row(self, identifier: Identifier) -> list[sa.ColumnElement[bool]]:
        is_key = [
            TABLES.c[column] == value for column, value in self._key(validate_table_identifier(identifier)).items()
        ]
        return [*is_key, self._is_table()]

    def _is_table(self) -> sa.ColumnElement[bool]:
        """Views share the database's tables; rows that were written before V1 have no type and are tables."""
        if self._is_prepared() and not self._has_types:
            return sa.true()
        return sa.or_(TABLES.c.iceberg_type == "TABLE", TABLES.c.iceberg_type.is_(None))

    def _namespaces(self) -> set[Identifier]:
        return _with_parents(name for (name,) in self._select(self._namespaces_query()))

    def _namespaces_query(self) -> sa.CompoundSelect[Any]:
        return sa.union(
            sa.select(TABLES.c.table_namespace).where(TABLES.c.catalog_name == self.name),
            sa.select(NAMESPACES.c.namespace).where(NAMESPACES.c.catalog_name == self.name),
        )

    def _is_prepared(self) -> bool:
        """Whether the database has the catalog's tables; their form is found out once, and by asking for the column."""
        if self._has_types is None and self._database.is_there:
            if self._database.understands("SELECT iceberg_type FROM iceberg_tables LIMIT 0"):
                self._has_types = True
            elif self._database.understands("SELECT table_name FROM iceberg_tables LIMIT 0"):
                self._has_types = False
        return self._has_types is not None

    def _prepare(self) -> None:
        if self._is_prepared():
            return
        try:
            self._change(SCHEMA.create_all, creates=True)
        except (IcekeepError, DuplicateRowError):
            # Another process may have made them at the same moment.
            if not self._is_prepared():
                raise
        self._has_types = None
        self._is_prepared()


def _rows_changed(statement: sa.Delete | sa.Update, connection: sa.Connection) -> int:
    return connection.execute(statement).rowcount


def _with_parents(names: Any) -> set[Identifier]:
    """Namespaces by their texts, with those that they lie in."""
    levels = [tuple(name.split(".")) for name in names]
    return {namespace[: n + 1] for namespace in levels for n in range(len(namespace))}
