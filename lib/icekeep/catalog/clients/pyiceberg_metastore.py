"""PyIceberg's Hive and Glue clients, made to move a pointer from our base to our metadata file and do nothing else.

On their own they read the table anew, apply the updates by rules of their own, and write the result through models that
drop what they do not know. Of a commit we keep what they are good at: the lock, the version that Glue compares, and the
table's entry with its columns. The steps between are replaced, which ties this file to the inner methods of PyIceberg
0.12. Imported only when such a catalog is used, since PyIceberg is an optional extra.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from pyiceberg.catalog import ICEBERG, METADATA_LOCATION, TABLE_TYPE
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.hive import HiveCatalog, SchemaToHiveConverter, _HiveClient
from pyiceberg.exceptions import CommitFailedException, NoSuchIcebergTableError, TableAlreadyExistsError
from pyiceberg.schema import visit
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadataUtil
from thrift.Thrift import TException
from thrift.transport.TTransport import TTransportException

from icekeep.catalog.base import Description, Identifier
from icekeep.catalog.clients.adapter import HIVE_TIMEOUT
from icekeep.errors import IcekeepBug, UnsupportedError

_HIVE_TIMEOUT_DEFAULT_MS = 300_000
_FIRST_COMPARING_HIVE = 4
_HIVE_COMPATIBLE = "hive.hive2-compatible"


class StagedCommit:
    """One commit: the metadata that the pointer must be at and where it goes, as PyIceberg's models.

    `was_sent` says whether the pointer's change was about to be sent: before that nothing can have landed.
    """

    def __init__(self, identifier: Identifier, base: Any, base_location: str, new: Any, new_location: str) -> None:
        self.identifier = identifier
        self.was_sent = False
        self._base = None if base is None else TableMetadataUtil.parse_obj(base)
        self.base_location = base_location
        self.new = TableMetadataUtil.parse_obj(new)
        self._new_location = new_location

    def current(self, location: str, catalog: Any) -> Table:
        """The table that the metastore has now, if it is the base; raises PyIceberg's error if it is another."""
        if self._base is None:
            raise TableAlreadyExistsError(".".join(self.identifier))
        if location != self.base_location:
            raise CommitFailedException(f"another writer committed {location!r}")
        return Table(self.identifier, self._base, location, None, catalog)

    def result(self, current: Table | None, catalog: Any) -> StagedTable:
        """The table as it is to be."""
        if current is None and self._base is not None:
            raise CommitFailedException("the table was dropped or renamed")
        return StagedTable(self.identifier, self.new, self._new_location, None, catalog)

    def name(self) -> Identifier:
        """The table's identifier, which is all that PyIceberg asks of the table that is committed to."""
        return self.identifier


class StagingHiveCatalog(HiveCatalog):  # type: ignore[misc]
    """A Hive client that commits what was staged, and waits for answers as long as its properties say."""

    staged: StagedCommit | None = None

    @staticmethod
    def _create_hive_client(properties: dict[str, str]) -> Any:
        client = HiveCatalog._create_hive_client(properties)
        client.__class__ = _BoundedHiveClient
        client.timeout_ms = int(properties.get(HIVE_TIMEOUT, _HIVE_TIMEOUT_DEFAULT_MS))
        client._transport = client._init_thrift_transport()
        return client

    def pointer(self, identifier: Identifier) -> str:
        """The metadata location of a table; raises PyIceberg's error where there is none."""
        with self._client as metastore:
            entry = self._get_hive_table(metastore, *identifier)
        return pointer_of(entry.parameters, identifier)

    def compares(self) -> bool:
        """Whether the metastore itself compares the pointer (HIVE-26882), as Hive 4 does; older ones may, and do not tell."""
        try:
            with self._client as metastore:
                version = str(metastore.getVersion())
        except (TTransportException, OSError):
            raise
        except TException:
            # One that does not know the question.
            return False
        major = version.partition(".")[0]
        # The previews of version 4 came before it.
        return major.isdecimal() and int(major) >= _FIRST_COMPARING_HIVE and "alpha" not in version

    def describe(self, identifier: Identifier) -> Description | None:
        """What the entry of a table says of its places, whatever its format."""
        with self._client as metastore:
            entry = self._get_hive_table(metastore, *identifier)
        location = getattr(entry.sd, "location", None)
        return Description(location, dict(entry.parameters or {})) if location else None

    def check(self, staged: StagedCommit) -> None:
        """Raise `UnsupportedError` for columns that a metastore's entry cannot describe."""
        is_old = str(self.properties.get(_HIVE_COMPATIBLE, "false")).lower() == "true"
        try:
            visit(staged.new.schema(), SchemaToHiveConverter(is_old))
        except KeyError as error:
            raise UnsupportedError(f"a Hive metastore has no column type for {error.args[0].__name__!r}") from error

    def commit_staged(self, staged: StagedCommit) -> None:
        """Move a table's pointer, or create the table."""
        self.staged, self._client.expected_location = staged, staged.base_location
        try:
            self.commit_table(staged, (), ())
        finally:
            self.staged, self._client.expected_location = None, ""

    def _convert_hive_into_iceberg(self, table: Any) -> Any:
        return current_table(self, (table.dbName, table.tableName), table.parameters)

    def _update_and_stage_table(self, current_table: Table | None, *_: Any) -> StagedTable:
        return during(self).result(current_table, self)

    def _write_metadata(self, **_: Any) -> None:
        during(self).was_sent = True


class _BoundedHiveClient(_HiveClient):  # type: ignore[misc]
    timeout_ms: int = _HIVE_TIMEOUT_DEFAULT_MS
    expected_location: str = ""

    def _client(self) -> Any:
        metastore = super()._client()
        if self.expected_location:
            alter = metastore.alter_table_with_environment_context
            metastore.alter_table_with_environment_context = partial(_alter_if_at, alter, self.expected_location)
        return metastore

    def _init_thrift_transport(self) -> Any:
        transport = super()._init_thrift_transport()
        for name in ("_TBufferedTransport__trans", "transport"):
            wire: Any = getattr(transport, name, None)
            if hasattr(wire, "setTimeout"):
                wire.setTimeout(self.timeout_ms)
        return transport


def _alter_if_at(alter: Callable[..., None], location: str, *, environment_context: Any, **named: Any) -> None:
    """Change a table's entry, and have the metastore compare the pointer, if it is one that can (HIVE-26882).

    This is what stops a writer who takes no lock, and us where our lock ran out.
    """
    expected = {"expected_parameter_key": METADATA_LOCATION, "expected_parameter_value": location}
    environment_context.properties = {**environment_context.properties, **expected}
    alter(environment_context=environment_context, **named)


class StagingGlueCatalog(GlueCatalog):  # type: ignore[misc]
    """A Glue client that commits what was staged."""

    staged: StagedCommit | None = None

    def pointer(self, identifier: Identifier) -> str:
        """The metadata location of a table; raises PyIceberg's error where there is none."""
        return pointer_of(self._get_glue_table(*identifier).get("Parameters", {}), identifier)

    def compares(self) -> bool:
        """Glue compares the version of the table's entry."""
        return True

    def describe(self, identifier: Identifier) -> Description | None:
        """What the entry of a table says of its places, whatever its format."""
        entry = self._get_glue_table(*identifier)
        stored = entry.get("StorageDescriptor") or {}
        if not stored.get("Location"):
            return None
        elsewhere = tuple(stored.get("AdditionalLocations") or ())
        return Description(stored["Location"], dict(entry.get("Parameters") or {}), elsewhere)

    def check(self, staged: StagedCommit) -> None:
        """Glue's entry describes every column, one of an unknown type by its Iceberg name."""

    def commit_staged(self, staged: StagedCommit) -> None:
        """Move a table's pointer, or create the table."""
        self.staged = staged
        try:
            self.commit_table(staged, (), ())
        finally:
            self.staged = None

    def _convert_glue_to_iceberg(self, glue_table: Any) -> Any:
        return current_table(self, (glue_table["DatabaseName"], glue_table["Name"]), glue_table.get("Parameters", {}))

    def _update_and_stage_table(self, current_table: Table | None, *_: Any) -> StagedTable:
        return during(self).result(current_table, self)

    def _write_metadata(self, **_: Any) -> None:
        during(self).was_sent = True


def current_table(catalog: Any, identifier: Identifier, entry: dict[str, str]) -> Table:
    """A table by its entry: during a commit the base, else one of which nothing but the pointer was read."""
    location = pointer_of(entry, identifier)
    if catalog.staged is None:
        return Table(identifier, None, location, None, catalog)
    return catalog.staged.current(location, catalog)


def during(catalog: Any) -> StagedCommit:
    """The commit that a client is at; only its `commit_staged` leads here."""
    if catalog.staged is None:
        raise IcekeepBug("a client of PyIceberg's writes metadata outside of a commit")
    return cast("StagedCommit", catalog.staged)


def pointer_of(entry: dict[str, str], identifier: Identifier) -> str:
    """The metadata location in a table's entry; raises PyIceberg's error if it is another kind of table."""
    location = (entry or {}).get(METADATA_LOCATION)
    if (entry or {}).get(TABLE_TYPE, "").lower() != ICEBERG or not location:
        raise NoSuchIcebergTableError(".".join(identifier))
    return location
