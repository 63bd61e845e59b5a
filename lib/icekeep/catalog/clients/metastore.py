"""Catalogs in a Hive metastore or in AWS Glue: we write the metadata file, PyIceberg's client moves the pointer to it.

The pointer moves only from the very file that the commit was based on: in Hive under the metastore's lock, in Glue by the
version of the table's entry. What a client raises before that change was sent proves that nothing landed.
"""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from icekeep.catalog.base import (
    Committed,
    Conflict,
    Identifier,
    Pointer,
    SwapOutcome,
    Table,
    Unknown,
    format_identifier,
    no_such_namespace,
    no_such_table,
    table_exists,
    validate_namespace,
    validate_table_identifier,
)
from icekeep.catalog.clients.adapter import ClientCatalog
from icekeep.catalog.clients.errors import is_model_error, proved_rejection, read_failure, was_sent_before
from icekeep.catalog.metadata_files import (
    dropped_from_log,
    file_version,
    new_location,
    next_metadata,
    read_table,
    write_metadata,
)
from icekeep.catalog.resending import Sent, has_landed, sent_until_known
from icekeep.errors import ConfigError, IcekeepError, OutcomeUnknownError, UnsupportedError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.metadata_codec import metadata_to_json
from icekeep.spec.requirements import Requirement
from icekeep.spec.updates import Update
from icekeep.storage.base import Storage
from icekeep.storage.locations import join
from icekeep.storage.open import open_storage

_GLUE_RETRIES = "glue.max-retries"
_MODIFIED = "The table has been modified"
"""What a Hive metastore says that compared the pointer and found another."""
_LOCK_ENABLED = "engine.hive.lock-enabled"


class MetastoreCatalog(ClientCatalog):
    """Tables whose pointers are entries of a metastore, with one level of namespaces."""

    compares_metadata = True

    def create(self, identifier: Identifier, metadata: TableMetadata) -> Table:
        validate_table_identifier(identifier)
        self._validate_depth(identifier[:-1])
        client = self._client()
        if not self._namespace_exists(identifier[:-1]):
            raise no_such_namespace(self, identifier[:-1])
        storage = self._storage()
        location = new_location(metadata, 0, self._runtime)
        staged = self._staged(client, identifier, None, "", metadata, location)
        if self._pointer(identifier) is not None:
            raise table_exists(self, identifier)
        write_metadata(storage, metadata, location)
        try:
            outcome = self._moved(client, staged, location)
        except IcekeepError:
            storage.delete_many([location])
            raise
        if isinstance(outcome, Conflict):
            storage.delete_many([location])
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

    def default_location(self, identifier: Identifier) -> str:
        validate_table_identifier(identifier)
        from pyiceberg.exceptions import NoSuchNamespaceError

        namespace, name = identifier[:-1], identifier[-1]
        with self._reading():
            try:
                place = self._client().load_namespace_properties(namespace).get("location")
            except NoSuchNamespaceError:
                place = None
        if place:
            return join(place, name)
        warehouse = self._properties.get("warehouse", "").rstrip("/")
        if not warehouse:
            raise ConfigError(
                f"catalogs.{self.name}.warehouse",
                "is missing, so that new tables have no place; give a directory as a URI, or each table a location",
            )
        return join(warehouse, f"{format_identifier(namespace)}.db", name)

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        new = next_metadata(table, requirements, updates, self._runtime.now_ms())
        if isinstance(new, Conflict):
            return new
        client = self._client()
        location = new_location(new, file_version(table.metadata_location) + 1, self._runtime)
        staged = self._staged(client, table.identifier, table.metadata, table.metadata_location, new, location)
        write_metadata(table.storage, new, location)

        def send() -> Sent:
            if staged.was_sent:
                self._check_compares(client)
            return self._moved(client, staged, location)

        try:
            outcome = sent_until_known(send, table, location, self._runtime)
        except IcekeepError:
            table.storage.delete_many([location])
            raise
        if isinstance(outcome, Conflict):
            table.storage.delete_many([location])
        if outcome is not None:
            return outcome
        table.storage.delete_many(entry.metadata_file for entry in dropped_from_log(table.metadata, new))
        return Committed(Table(table.identifier, new, location, table.storage, self))

    def _register(self, table: Table) -> None:
        self._validate_depth(table.identifier[:-1])
        client = self._client()
        staged = self._staged(client, table.identifier, None, "", table.metadata, table.metadata_location)
        what = f"the registration of table {table.name!r}"
        try:
            # Unlike a commit's, the metadata file is another's: it stays whatever comes of this.
            with self._changing(what, None, table.identifier):
                client.commit_staged(staged)
        except OutcomeUnknownError as error:
            if staged.was_sent:
                raise
            raise read_failure(error.__cause__ or error, self.name, self._properties) from error

    def _find(self, identifier: Identifier) -> Pointer:
        location = self._pointer(identifier)
        if location is None:
            raise no_such_table(self, identifier)
        return Pointer(location, self._storage())

    def _pointer(self, identifier: Identifier) -> str | None:
        from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchTableError

        if len(identifier) != 2:
            return None
        with self._reading():
            try:
                return str(self._client().pointer(identifier))
            except NoSuchIcebergTableError as error:
                raise UnsupportedError(
                    f"{format_identifier(identifier)!r} in catalog {self.name!r} is no Iceberg table"
                ) from error
            except NoSuchTableError:
                return None

    def _validate_depth(self, namespace: Identifier) -> None:
        if len(namespace) != 1:
            raise UnsupportedError(
                f"namespace {format_identifier(namespace)!r} has {len(namespace)} levels; catalog {self.name!r} has one"
            )

    def _namespace_exists(self, namespace: Identifier) -> bool:
        return len(namespace) == 1 and super()._namespace_exists(namespace)

    def _storage(self) -> Storage:
        return open_storage(self._properties, self._runtime)

    def _staged(
        self,
        client: Any,
        identifier: Identifier,
        base: TableMetadata | None,
        base_location: str,
        new: TableMetadata,
        location: str,
    ) -> Any:
        """The commit as the client takes it; raises `UnsupportedError` before anything is written if it cannot."""
        from icekeep.catalog.clients.pyiceberg_metastore import StagedCommit

        old = None if base is None else metadata_to_json(base)
        try:
            staged = StagedCommit(identifier, old, base_location, metadata_to_json(new), location)
        except Exception as error:
            if not is_model_error(error):
                raise
            raise UnsupportedError(
                f"PyIceberg cannot describe table {format_identifier(identifier)!r} to catalog {self.name!r}: "
                f"{self._described(error)}; nothing was changed"
            ) from error
        client.check(staged)
        return staged

    def _moved(self, client: Any, staged: Any, location: str) -> Sent:
        """Move the pointer by one request; an error or a conflict proves that it did not move it."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        staged.was_sent = False
        try:
            client.commit_staged(staged)
        except Exception as error:
            if not staged.was_sent:
                if isinstance(error, CommitFailedException | TableAlreadyExistsError):
                    return Conflict(self._described(error), is_final=True)
                raise read_failure(error, self.name, self._properties) from error
            return self._after_sending(error, staged, location)
        return None

    def _check_compares(self, client: Any) -> None:
        """Raise `UnsupportedError` where a request that is late could undo what others have committed since."""
        with self._reading():
            if not client.compares():
                raise UnsupportedError(f"the metastore of catalog {self.name!r} is not known to compare pointers")

    def _after_sending(self, error: Exception, staged: Any, location: str) -> Sent:
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError

        is_compared = type(error).__name__ == "MetaException" and _MODIFIED in str(error)
        if is_compared or isinstance(error, CommitFailedException | NoSuchTableError | TableAlreadyExistsError):
            return self._refused(error, staged, location)
        rejection = proved_rejection(error, self.name, self._properties)
        if rejection is None:
            return Unknown(self._described(error), location)
        raise rejection from error

    def _refused(self, error: Exception, staged: Any, location: str) -> Sent:
        """What a refusal is once the table was looked at: the client sends a change again whose answer was lost.

        Then the second request meets the first; and a third writer may have come after.
        """
        reason = self._described(error)
        try:
            pointer = self._pointer(staged.identifier)
            if pointer == location:
                return None
            if pointer == staged.base_location and was_sent_before(error):
                return Unknown(
                    f"{reason}; the client sent this request before, and that may still be carried out: look again later",
                    location,
                )
            if pointer is not None:
                now = read_table(self, staged.identifier, pointer, self._storage())
                landed = has_landed(now, staged.base_location, location)
                if landed:
                    return None
                if landed is None and staged.base_location:
                    return Unknown(f"{reason}; the table's history does not reach back to this commit", location)
        except IcekeepError as unseen:
            return Unknown(
                f"{reason}; the table cannot be loaded to see whether that was this commit: {unseen.message}", location
            )
        return Conflict(f"the table was dropped or renamed ({reason})" if pointer is None else reason)

    @abstractmethod
    def _connect(self) -> Any:
        """Make the client, a catalog of PyIceberg's that can `commit_staged`."""


class HiveCatalog(MetastoreCatalog):
    """Tables in a Hive metastore; properties are PyIceberg's, handed on as they are (`uri=thrift://HOST:PORT`)."""

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        if table.metadata.properties.get(_LOCK_ENABLED, "true").lower() == "false":
            raise UnsupportedError(
                f"table {table.name!r} has {_LOCK_ENABLED}=false: its other writers take no lock, and the one that is "
                "taken here does not stop them; nothing was changed"
            )
        return super().swap(table, requirements, updates)

    def _connect(self) -> Any:
        from icekeep.catalog.clients.pyiceberg_metastore import StagingHiveCatalog

        return StagingHiveCatalog(self.name, **self._properties)


class GlueCatalog(MetastoreCatalog):
    """Tables in AWS Glue; properties are PyIceberg's, handed on as they are (`glue.region`, `glue.endpoint` ...)."""

    @property
    def identity(self) -> str:
        # Where no property names the region these do, as for Amazon's own clients.
        regions = map(os.environ.get, ("AWS_REGION", "AWS_DEFAULT_REGION"))
        return " ".join([super().identity, *filter(None, regions)])

    def rename(self, old: Identifier, new: Identifier) -> None:
        raise UnsupportedError(
            f"catalog {self.name!r} cannot rename tables: Glue has no such request, and a copy of the entry that lost its "
            "original halfway would be lost with it"
        )

    def _connect(self) -> Any:
        from icekeep.catalog.clients.pyiceberg_metastore import StagingGlueCatalog

        given: dict[str, Any] = dict(self._properties)
        retries = self._properties.get(_GLUE_RETRIES, "10")
        if not retries.isdecimal():
            raise ConfigError(f"catalogs.{self.name}.{_GLUE_RETRIES}", f"is {retries!r}; give a whole number")
        # The one property that the client does not take as text.
        return StagingGlueCatalog(self.name, **{**given, _GLUE_RETRIES: int(retries)})
