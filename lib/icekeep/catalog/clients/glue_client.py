"""AWS Glue by boto3: tables and databases as entries, and a pointer that moves by the version of its entry.

Properties are PyIceberg's: `glue.*`, and `client.*` where those are not given; without keys, the session finds them as
all clients of AWS do. Imported only when such a catalog is used, since boto3 is an optional extra.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from icekeep.catalog.base import Description, Identifier, format_identifier
from icekeep.catalog.clients.entries import (
    COLUMN_TYPES,
    EXTERNAL_TABLE,
    EntryPointer,
    PointerChange,
    column_type,
    is_iceberg,
    pointers_of,
)
from icekeep.catalog.clients.errors import (
    CommitRefused,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    Refusal,
    Settings,
    TableExists,
)
from icekeep.errors import UnsupportedError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.types import NestedField, PrimitiveType
from icekeep.storage.ranges import FirstAnswer, first_answer_ms

_GIVEN = {
    "profile_name": "profile-name",
    "region_name": "region",
    "aws_access_key_id": "access-key-id",
    "aws_secret_access_key": "secret-access-key",
    "aws_session_token": "session-token",
}


def aws_session(settings: Settings, *groups: str) -> Any:
    """boto3's session by properties such as `glue.region`; a property of an earlier group wins."""
    return boto3.Session(
        **{name: settings.text(*(f"{group}.{key}" for group in groups)) for name, key in _GIVEN.items()}
    )


_RETRIES_DEFAULT = 10
_MODES = ("standard", "adaptive", "legacy")
_KEPT = ("Description", "Owner", "Retention")
"""What an entry says besides, which a change of it would drop."""


class GlueClient:
    """One connection to Glue; `glue` is boto3's client."""

    def __init__(self, settings: Settings) -> None:
        self._name = settings.name
        mode = settings.text("glue.retry-mode")
        retries = {
            "max_attempts": settings.count("glue.max-retries", _RETRIES_DEFAULT),
            "mode": mode if mode in _MODES else _MODES[0],
        }
        self.glue: Any = aws_session(settings, "glue", "client").client(
            "glue", endpoint_url=settings.text("glue.endpoint"), config=Config(retries=retries)
        )
        limit_ms = first_answer_ms(f"catalogs.{settings.name}", settings.properties)
        self._first = FirstAnswer(self.glue.meta.endpoint_url, limit_ms)
        self._asked = self._first.asking(self.glue)
        account = settings.text("glue.id")
        # Without one it is the caller's.
        self._account = {"CatalogId": account} if account else {}
        # Else each commit adds to the history of its entry, and Glue keeps no endless one.
        self._skips_archive = settings.switch("glue.skip-archive", default=True)

    def pointer(self, identifier: Identifier) -> EntryPointer:
        return pointers_of(self._entry(identifier).get("Parameters"), identifier)

    def compares(self) -> bool:
        """Glue compares the version of the table's entry."""
        return True

    def describe(self, identifier: Identifier) -> Description | None:
        """What the entry of a table says of where it lies, whatever its format."""
        entry = self._entry(identifier)
        stored = entry.get("StorageDescriptor") or {}
        if not stored.get("Location"):
            return None
        elsewhere = tuple(stored.get("AdditionalLocations") or ())
        return Description(stored["Location"], dict(entry.get("Parameters") or {}), elsewhere)

    def locked(self, identifier: Identifier, properties: Mapping[str, str]) -> AbstractContextManager[None]:
        """Glue has no lock that writers take; the version of an entry is compared."""
        return nullcontext()

    def check(self, metadata: TableMetadata) -> None:
        """An entry describes every column, one of a type that Hive lacks by its Iceberg name."""

    def move(self, change: PointerChange) -> None:
        """Move a table's pointer, or create the table, by one request that says which version of the entry it replaces."""
        try:
            entry = self._entry(change.identifier)
        except NoSuchTable:
            entry = None
        change.check_base(None if entry is None else entry.get("Parameters") or {})
        if entry is None:
            self._create(change)
        else:
            self._update(change, entry)

    def drop_table(self, identifier: Identifier) -> None:
        database, name = identifier
        with _refused({"EntityNotFoundException": NoSuchTable}, identifier):
            self._asked.delete_table(**self._account, DatabaseName=database, Name=name)

    def rename_table(self, old: Identifier, new: Identifier) -> None:
        raise UnsupportedError(
            f"catalog {self._name!r} cannot rename tables: Glue has no such request, and a copy of the entry that lost its "
            "original halfway would be lost with it"
        )

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        (database,) = namespace
        return [(database, entry["Name"]) for entry in self._entries(database) if is_iceberg(entry.get("Parameters"))]

    def list_namespaces(self, parent: Identifier) -> list[Identifier]:
        """The databases; there are none within one."""
        if parent:
            return []
        pages = self._pages("get_databases")
        return [(database["Name"],) for page in pages for database in page["DatabaseList"]]

    def namespace_properties(self, namespace: Identifier) -> dict[str, str]:
        (name,) = namespace
        absent = {"EntityNotFoundException": NoSuchNamespace, "InvalidInputException": NoSuchNamespace}
        with _refused(absent, namespace):
            database = self._asked.get_database(**self._account, Name=name)["Database"]
        location = database.get("LocationUri")
        return {**(database.get("Parameters") or {}), **({"location": location} if location else {})}

    def create_namespace(self, namespace: Identifier, properties: Mapping[str, str]) -> None:
        """Create a database; `location` and `Description` go where Glue has them."""
        (name,) = namespace
        made: dict[str, Any] = {"Name": name, "Parameters": dict(properties)}
        for key, property_name in (("LocationUri", "location"), ("Description", "Description")):
            if property_name in properties:
                made[key] = made["Parameters"].pop(property_name)
        with _refused({"AlreadyExistsException": NamespaceExists}, namespace):
            self._asked.create_database(**self._account, DatabaseInput=made)

    def drop_namespace(self, namespace: Identifier) -> None:
        """Remove a database; Glue would remove what is in it too, so that is looked at first."""
        (name,) = namespace
        if next(iter(self._entries(name)), None) is not None:
            raise NamespaceNotEmpty.of(namespace)
        with _refused({"EntityNotFoundException": NoSuchNamespace}, namespace):
            self._asked.delete_database(**self._account, Name=name)

    def _entry(self, identifier: Identifier) -> dict[str, Any]:
        database, name = identifier
        with _refused({"EntityNotFoundException": NoSuchTable}, identifier):
            entry: dict[str, Any] = self._asked.get_table(**self._account, DatabaseName=database, Name=name)["Table"]
        return entry

    def _entries(self, database: str) -> Iterator[dict[str, Any]]:
        with _refused({"EntityNotFoundException": NoSuchNamespace}, (database,)):
            for page in self._pages("get_tables", DatabaseName=database):
                yield from page["TableList"]

    def _pages(self, operation: str, **asked: str) -> Iterator[dict[str, Any]]:
        pages = iter(self.glue.get_paginator(operation).paginate(**self._account, **asked))
        while (page := self._first.ask(lambda: next(pages, None))) is not None:
            yield page

    def _create(self, change: PointerChange) -> None:
        refusals = {"AlreadyExistsException": TableExists, "EntityNotFoundException": NoSuchNamespace}
        entry = _table_input(change, {})
        change.was_sent = True
        with _refused(refusals, change.identifier):
            self._asked.create_table(**self._account, DatabaseName=change.identifier[0], TableInput=entry)

    def _update(self, change: PointerChange, entry: Mapping[str, Any]) -> None:
        version = entry.get("VersionId")
        if not version:
            raise UnsupportedError(
                f"the entry of table {format_identifier(change.identifier)!r} in Glue has no version, without which nothing "
                "is compared; nothing was changed"
            )
        refusals = {"EntityNotFoundException": NoSuchTable, "ConcurrentModificationException": CommitRefused}
        new = _table_input(change, entry)
        change.was_sent = True
        with _refused(refusals, change.identifier):
            self._asked.update_table(
                **self._account,
                DatabaseName=change.identifier[0],
                TableInput=new,
                SkipArchive=self._skips_archive,
                VersionId=version,
            )


@contextmanager
def _refused(refusals: Mapping[str, type[Refusal]], name: Identifier) -> Iterator[None]:
    """Raise the refusals that Glue's codes mean; `name` is what they are about."""
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code not in refusals:
            raise
        if code == "ConcurrentModificationException":
            raise refusals[code]("Glue detected a concurrent update of the table's entry") from error
        raise refusals[code].of(name) from error


def _table_input(change: PointerChange, entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry as it is to be; Glue forgets all that is not said anew."""
    stored = entry.get("StorageDescriptor") or {}
    more = {"AdditionalLocations": stored["AdditionalLocations"]} if stored.get("AdditionalLocations") else {}
    described = {key: entry[key] for key in _KEPT if key in entry}
    if "Description" in change.new.properties:
        described["Description"] = change.new.properties["Description"]
    return {
        **described,
        "Name": change.identifier[-1],
        "TableType": EXTERNAL_TABLE,
        "Parameters": change.parameters(entry.get("Parameters") or {}),
        "StorageDescriptor": {"Columns": _columns(change.new), "Location": change.new.location, **more},
    }


def _columns(metadata: TableMetadata) -> list[dict[str, Any]]:
    """The current columns, and behind them those that only former schemas have."""
    columns: dict[str, dict[str, Any]] = {}
    current = metadata.schema
    former = [schema for schema in metadata.schemas if schema.schema_id != current.schema_id]
    for schema in (current, *former):
        for field in schema.fields:
            columns.setdefault(field.name, _column(field, is_current=schema is current))
    return list(columns.values())


def _column(field: NestedField, *, is_current: bool) -> dict[str, Any]:
    # The names of the parameters are those of Iceberg Java.
    parameters = {
        "iceberg.field.id": str(field.field_id),
        "iceberg.field.optional": str(not field.required).lower(),
        "iceberg.field.current": str(is_current).lower(),
    }
    comment = {"Comment": field.doc} if field.doc else {}
    return {"Name": field.name, "Type": column_type(field.type, _type_name), "Parameters": parameters, **comment}


def _type_name(type_: PrimitiveType) -> str:
    return "timestamp" if type_.name == "timestamptz" else COLUMN_TYPES.get(type_.name, str(type_))
