"""What may be changed in a schema, one value a change; `schema_evolution.py` applies them.

Columns are named by their full names in the schema as the changes before left it: `point.x` is the field x of the struct
point, `points.element.x` one of a list's elements, `counts.value.n` one of a map's values. A type is a `Type`, or the
name of a primitive one (`decimal(9, 2)`).
"""

from typing import Any

import msgspec

from icekeep.spec.types import Type


class SchemaChange(msgspec.Struct, frozen=True):
    """One change of a schema."""


class AddColumn(SchemaChange, frozen=True):
    """Add a column at the end of the table, or of the struct `parent` (a list's elements or a map's values if these are structs).

    Rows that exist have the `default` there, and so have new ones that are given no value; see `default_to_json` for how
    it is written. A required column needs one. The field ids of `type` do not matter, new ones are assigned.

    Iceberg's Java library (1.12) opens no table in which a struct, list or map has a default other than null.
    """

    name: str
    type: Type | str
    parent: str | None = None
    required: bool = False
    doc: str | None = None
    default: Any = None


class DropColumn(SchemaChange, frozen=True):
    """Remove a column and what is nested in it; data files keep their values."""

    name: str


class RenameColumn(SchemaChange, frozen=True):
    """Give a column another name within its struct: `RenameColumn("point.x", "longitude")`."""

    name: str
    new_name: str


class MoveFirst(SchemaChange, frozen=True):
    """Make a column the first one of its struct."""

    name: str


class MoveBefore(SchemaChange, frozen=True):
    """Put a column before another one of the same struct."""

    name: str
    other: str


class MoveAfter(SchemaChange, frozen=True):
    """Put a column after another one of the same struct."""

    name: str
    other: str


class MakeOptional(SchemaChange, frozen=True):
    """Let a required column, list element or map value be null."""

    name: str


class RequireColumn(SchemaChange, frozen=True):
    """Let an optional column, list element or map value never be null.

    Nobody looks whether rows have nulls there, and reading those fails: so this takes `allow_incompatible`, except for a
    column that was added just before with a default.
    """

    name: str
    allow_incompatible: bool = False


class UpdateColumnType(SchemaChange, frozen=True):
    """Promote a column to a wider type (spec, "Schema Evolution")."""

    name: str
    type: Type | str


class UpdateColumnDoc(SchemaChange, frozen=True):
    """Set a column's comment; null removes it."""

    name: str
    doc: str | None


class SetWriteDefault(SchemaChange, frozen=True):
    """Set what new rows have in a column that they give no value for; rows that exist keep what they have."""

    name: str
    default: Any


class SetIdentifierFields(SchemaChange, frozen=True):
    """Name the columns that identify a row, in place of those that did; none is fine."""

    names: tuple[str, ...]


class RestoreColumn(SchemaChange, frozen=True):
    """Bring back a dropped column with its field id, at the end of its struct: data files still have its values.

    Allowed for an optional column, and for a required one as long as no snapshot was made without it.
    """

    name: str
