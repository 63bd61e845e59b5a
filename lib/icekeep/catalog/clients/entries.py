"""A table's entry in a metastore as other engines read it: the pointer, the properties, and the columns by Hive's types."""

from collections.abc import Callable, Mapping

import msgspec

from icekeep.catalog.base import Identifier
from icekeep.catalog.clients.errors import CommitRefused, NoIcebergTable, TableExists
from icekeep.errors import IcekeepBug
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.types import DecimalType, ListType, MapType, PrimitiveType, StructType, Type

EXTERNAL_TABLE = "EXTERNAL_TABLE"
"""The kind of an entry whose files the metastore leaves alone."""

POINTER = "metadata_location"
_PREVIOUS = "previous_metadata_location"
_FORMAT = "table_type"

COLUMN_TYPES: Mapping[str, str] = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "time": "string",
    "timestamp": "timestamp",
    "string": "string",
    "uuid": "string",
    "fixed": "binary",
    "binary": "binary",
}
"""Hive's types, by the names of Iceberg's."""


class EntryPointer(msgspec.Struct, frozen=True):
    """Where an entry says that a table's metadata is, and where it was before."""

    location: str
    previous: str | None


class PointerChange(msgspec.Struct):
    """A pointer's move from the metadata that a commit was based on to its own; a new table has no base.

    `was_sent` says whether the change was about to be sent: before that nothing can have landed.
    """

    identifier: Identifier
    base: TableMetadata | None
    base_location: str
    new: TableMetadata
    location: str
    was_sent: bool = False

    def check_base(self, entry: Mapping[str, str] | None) -> None:
        """Raise the refusal unless an entry's parameters are those of the base; `None` is that there is no entry."""
        if entry is None:
            if self.base is not None:
                raise CommitRefused("the table was dropped or renamed")
            return
        location = pointer_of(entry, self.identifier)
        if self.base is None:
            raise TableExists.of(self.identifier)
        if location != self.base_location:
            raise CommitRefused(f"another writer committed {location!r}")

    def parameters(self, entry: Mapping[str, str]) -> dict[str, str]:
        """The parameters of the entry after the change; what others have put there stays."""
        gone = set() if self.base is None else self.base.properties.keys() - self.new.properties.keys()
        kept = {key: value for key, value in entry.items() if key not in gone}
        previous = {_PREVIOUS: self.base_location} if self.base_location else {}
        return {**kept, **self.new.properties, _FORMAT: "ICEBERG", POINTER: self.location, **previous}


def is_iceberg(parameters: Mapping[str, str] | None) -> bool:
    return (parameters or {}).get(_FORMAT, "").lower() == "iceberg"


def pointer_of(parameters: Mapping[str, str] | None, identifier: Identifier) -> str:
    """The metadata location in an entry's parameters; raises the refusal if it is another kind of table."""
    location = (parameters or {}).get(POINTER)
    if not is_iceberg(parameters) or not location:
        raise NoIcebergTable.of(identifier)
    return location


def pointers_of(parameters: Mapping[str, str] | None, identifier: Identifier) -> EntryPointer:
    """Both metadata locations in an entry's parameters; raises as `pointer_of`."""
    return EntryPointer(pointer_of(parameters, identifier), (parameters or {}).get(_PREVIOUS) or None)


def column_type(type_: Type, name_of: Callable[[PrimitiveType], str]) -> str:
    """A column's type as Hive writes it; `name_of` tells the primitive ones without parameters."""
    match type_:
        case StructType():
            return f"struct<{','.join(f'{field.name}:{column_type(field.type, name_of)}' for field in type_.fields)}>"
        case ListType():
            return f"array<{column_type(type_.element, name_of)}>"
        case MapType():
            return f"map<{column_type(type_.key, name_of)},{column_type(type_.value, name_of)}>"
        case DecimalType():
            return f"decimal({type_.precision},{type_.scale})"
        case PrimitiveType():
            return name_of(type_)
    raise IcekeepBug(f"{type_!r} is no type of a column")
