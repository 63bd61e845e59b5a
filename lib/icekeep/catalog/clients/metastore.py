"""Catalogs in a Hive metastore or in AWS Glue: we write the metadata file, and a request moves the pointer to it.

The pointer moves only from the very file that the commit was based on: in Hive under the metastore's lock, in Glue by the
version of the table's entry. What a client raises before that change was sent proves that nothing landed.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Protocol

from icekeep.catalog.base import (
    Committed,
    Conflict,
    Description,
    Identifier,
    Pointer,
    SwapOutcome,
    Table,
    Unknown,
    format_identifier,
    no_such_namespace,
    no_such_table,
    no_warehouse,
    table_exists,
    validate_namespace,
    validate_table_identifier,
)
from icekeep.catalog.clients.adapter import Client, ClientCatalog, installed_release
from icekeep.catalog.clients.entries import EntryPointer, PointerChange
from icekeep.catalog.clients.errors import (
    KERBEROS,
    CommitRefused,
    NoIcebergTable,
    NoSuchNamespace,
    NoSuchTable,
    TableExists,
    described,
    proved_rejection,
    read_failure,
    was_sent_before,
)
from icekeep.catalog.metadata_files import (
    attached_metadata,
    delete_dropped,
    delete_refused,
    file_version,
    new_location,
    next_metadata,
    read_table,
    write_metadata,
)
from icekeep.catalog.resending import Sent, has_landed, replaced
from icekeep.errors import IcekeepError, OutcomeUnknownError, UnsupportedError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import Requirement, Update
from icekeep.storage.locations import join


class MetastoreClient(Client, Protocol):
    """What is asked of a metastore besides."""

    def pointer(self, identifier: Identifier) -> EntryPointer:
        """The metadata location of a table, and the one before; raises `NoSuchTable` or `NoIcebergTable`."""

    def compares(self) -> bool:
        """Whether a change that is late can do no harm, since the metastore compares what it replaces."""

    def locked(self, identifier: Identifier, properties: Mapping[str, str]) -> AbstractContextManager[None]:
        """A context in which this thread holds a table's lock, if its properties say that writers take one."""

    def check(self, metadata: TableMetadata) -> None:
        """Raise `UnsupportedError` for a table that an entry cannot describe."""

    def move(self, change: PointerChange) -> None:
        """Move a table's pointer, or create the table.

        Raises:
            CommitRefused: the pointer is not where the change wants it, or somebody else has the lock.
            TableExists, NoSuchTable, NoSuchNamespace: what the change is based on is not so.
        """


class MetastoreCatalog(ClientCatalog[MetastoreClient]):
    """Tables whose pointers are entries of a metastore, with one level of namespaces."""

    compares_metadata = True

    def create(self, identifier: Identifier, metadata: TableMetadata) -> Table:
        validate_table_identifier(identifier)
        self._validate_depth(identifier[:-1])
        client = self._client()
        if not self._namespace_exists(identifier[:-1]):
            raise no_such_namespace(self, identifier[:-1])
        storage = self.storage
        location = new_location(metadata, 0, self.runtime)
        client.check(metadata)
        change = PointerChange(identifier, None, "", metadata, location)
        if self._entry(identifier) is not None:
            raise table_exists(self, identifier)
        write_metadata(storage, metadata, location)
        try:
            outcome = self._moved(client, change)
        except IcekeepError:
            delete_refused(storage, location)
            raise
        if isinstance(outcome, Conflict):
            if outcome.is_final:
                delete_refused(storage, location)
            raise table_exists(self, identifier)
        if isinstance(outcome, Unknown):
            raise OutcomeUnknownError(
                f"table {format_identifier(identifier)!r} in catalog {self.name!r} may or may not have been created "
                f"({outcome.cause}); look before it is tried again",
                metadata_location=location,
            )
        return Table(identifier, metadata, location, storage, self)

    def create_namespace(
        self, namespace: Identifier, properties: Mapping[str, str] | None = None, *, exists_ok: bool = False
    ) -> None:
        validate_namespace(namespace)
        self._validate_depth(namespace)
        super().create_namespace(namespace, properties, exists_ok=exists_ok)

    def describe(self, identifier: Identifier) -> Description | None:
        if len(validate_table_identifier(identifier)) != 2:
            raise no_such_table(self, identifier)
        return super().describe(identifier)

    def rename(self, old: Identifier, new: Identifier) -> None:
        if len(validate_table_identifier(old)) != 2:
            raise no_such_table(self, old)
        super().rename(old, new)

    def default_location(self, identifier: Identifier) -> str:
        validate_table_identifier(identifier)
        namespace, name = identifier[:-1], identifier[-1]
        self._validate_depth(namespace)
        with self._reading():
            try:
                location = self._client().namespace_properties(namespace).get("location")
            except NoSuchNamespace:
                location = None
        if location:
            return join(location, name)
        warehouse = self._properties.get("warehouse", "").rstrip("/")
        if not warehouse:
            raise no_warehouse(self)
        return join(warehouse, f"{'.'.join(namespace)}.db", name)

    @contextmanager
    def locked(self, table: Table) -> Iterator[None]:
        client = self._client()
        with ExitStack() as held:
            with self._reading():
                held.enter_context(client.locked(table.identifier, table.metadata.properties))
            yield

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        new = next_metadata(table, requirements, updates, self.runtime.now_ms())
        if isinstance(new, Conflict):
            return new
        outcome = self._replace(table, new)
        if isinstance(outcome, Committed):
            delete_dropped(table.storage, table.metadata, new, roots=self.reclaim_roots)
        return outcome

    def reattach(self, table: Table) -> SwapOutcome:
        # The pointer alone is compared; the file that it names is not read.
        return self._replace(table, attached_metadata(table, self.runtime.now_ms()))

    def _replace(self, table: Table, new: TableMetadata) -> SwapOutcome:
        """Write metadata, and move the pointer from the file of `table` to it."""
        client = self._client()
        location = new_location(new, file_version(table.metadata_location) + 1, self.runtime)
        client.check(new)
        change = PointerChange(table.identifier, table.metadata, table.metadata_location, new, location)
        write_metadata(table.storage, new, location)
        after = Table(table.identifier, new, location, table.storage, self)
        return replaced(table, after, partial(self._moved, client, change))

    def _register(self, table: Table) -> None:
        self._validate_depth(table.identifier[:-1])
        client = self._client()
        client.check(table.metadata)
        change = PointerChange(table.identifier, None, "", table.metadata, table.metadata_location)
        what = f"the registration of table {table.name!r}"
        try:
            # Unlike a commit's, the metadata file is another's: it stays whatever comes of this.
            with self._changing(what, None, table.identifier):
                client.move(change)
        except OutcomeUnknownError as error:
            if change.was_sent:
                raise
            raise read_failure(error.__cause__ or error, self.name) from error

    def _find(self, identifier: Identifier) -> Pointer:
        entry = self._entry(identifier)
        if entry is None:
            raise no_such_table(self, identifier)
        return Pointer(entry.location, self.storage, entry.previous)

    def _entry(self, identifier: Identifier) -> EntryPointer | None:
        if len(identifier) != 2:
            return None
        with self._reading():
            try:
                return self._client().pointer(identifier)
            except NoIcebergTable as error:
                raise UnsupportedError(
                    f"{format_identifier(identifier)!r} in catalog {self.name!r} is no Iceberg table"
                ) from error
            except NoSuchTable:
                return None

    def _validate_depth(self, namespace: Identifier) -> None:
        if len(namespace) != 1:
            raise UnsupportedError(
                f"namespace {format_identifier(namespace)!r} has {len(namespace)} levels; catalog {self.name!r} has one"
            )

    def _namespace_exists(self, namespace: Identifier) -> bool:
        return len(namespace) == 1 and super()._namespace_exists(namespace)

    def _moved(self, client: MetastoreClient, change: PointerChange) -> Sent:
        """Move the pointer by one request; an error proves that it did not move it, and so does a conflict that is final.

        It is not sent again where a request that is late could undo what others have committed since.
        """
        if change.was_sent:
            with self._reading():
                if not client.compares():
                    raise UnsupportedError(f"the metastore of catalog {self.name!r} is not known to compare pointers")
        change.was_sent = False
        try:
            client.move(change)
        except Exception as error:
            if not change.was_sent:
                if isinstance(error, IcekeepError):
                    raise
                if isinstance(error, CommitRefused | TableExists):
                    return Conflict(described(error), is_final=True)
                raise read_failure(error, self.name) from error
            if isinstance(error, CommitRefused | NoSuchTable | TableExists):
                return self._refused(error, change)
            rejection = proved_rejection(error, self.name)
            if rejection is None:
                return Unknown(described(error), change.location)
            if isinstance(error, NoSuchNamespace):
                rejection = no_such_namespace(self, change.identifier[:-1])
            raise rejection from error
        return None

    def _refused(self, error: Exception, change: PointerChange) -> Sent:
        """What a refusal is once the table was looked at: the client sends a change again whose answer was lost.

        Then the second request meets the first; and a third writer may have come after. A conflict is final where the pointer
        leads elsewhere than to the base: else a request that arrived twice may land still, and would name the metadata file. That
        file stays where the table is gone, too.
        """
        reason = described(error)
        try:
            entry = self._entry(change.identifier)
            pointer = None if entry is None else entry.location
            if pointer == change.location:
                return None
            if pointer == change.base_location and was_sent_before(error):
                return Unknown(
                    f"{reason}; the client sent this request before, and that may still be carried out: look again later",
                    change.location,
                )
            if pointer is not None:
                now = read_table(self, change.identifier, pointer, self.storage)
                landed = has_landed(now, change.base_location, change.location)
                if landed:
                    return None
                if landed is None and change.base_location:
                    return Unknown(f"{reason}; the table's history does not reach back to this commit", change.location)
        except IcekeepError as unseen:
            return Unknown(
                f"{reason}; the table cannot be loaded to see whether that was this commit: {unseen.message}",
                change.location,
            )
        if pointer is None:
            return Conflict(f"the table was dropped or renamed ({reason})")
        return Conflict(reason, is_final=pointer != change.base_location)


class HiveCatalog(MetastoreCatalog):
    """Tables in a Hive metastore; properties are PyIceberg's (`uri=thrift://HOST:PORT`)."""

    @property
    def modules(self) -> tuple[str, ...]:
        kerberos = ("puresasl",) if self._settings().switch(KERBEROS, default=False) else ()
        return ("thrift", "hive_metastore", *kerberos)

    def _connect(self) -> MetastoreClient:
        try:
            from icekeep.catalog.clients.hive_client import HiveClient
        except ImportError as error:
            raise UnsupportedError(
                f"catalog {self.name!r} needs classes for Hive that {installed_release('pyiceberg')} lacks: {error}; "
                "install another release of pyiceberg"
            ) from error
        return HiveClient(self._settings(), self.runtime)


class GlueCatalog(MetastoreCatalog):
    """Tables in AWS Glue; properties are PyIceberg's (`glue.region`, `glue.endpoint` ...)."""

    modules = ("boto3",)

    @property
    def identity(self) -> str:
        # Where no property names the region these do, as for Amazon's own clients.
        regions = map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION"))
        return " ".join([super().identity, *filter(None, regions)])

    def _connect(self) -> MetastoreClient:
        from icekeep.catalog.clients.glue_client import GlueClient

        return GlueClient(self._settings())
