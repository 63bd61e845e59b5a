"""The columns that a filter names, and what to say about a name that is none.

Names are full ones, parents and children joined by dots, and are compared as they are written, case included.
"""

from collections.abc import Iterator, Sequence

import msgspec

from icekeep.errors import ExpressionError, IcekeepError, NotFoundError
from icekeep.spec.filters.expressions import Predicate
from icekeep.spec.filters.formatting import format_expression
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema, meant_column
from icekeep.spec.transforms import Identity, UnknownTransform, Void
from icekeep.spec.types import NestedField, StructType


class References:
    """The columns of a schema that a filter may name."""

    def __init__(self, schema: Schema, specs: Sequence[PartitionSpec]) -> None:
        self._schema = schema
        self._specs = specs
        self._fields = {field.name: field for field in _filterable(schema.as_struct(), "", optional=False)}

    def field(self, predicate: Predicate) -> NestedField:
        """The field that a predicate names, under its full name; required only if all structs around it are.

        Raises:
            NotFoundError: there is no such column.
            ExpressionError: the column lies in a list or a map.
        """
        field = self._fields.get(predicate.column)
        if field is None:
            raise self._unknown(predicate)
        return field

    def _unknown(self, predicate: Predicate) -> IcekeepError:
        name = predicate.column
        if name in self._schema.ids_by_name:
            return ExpressionError(
                f"column {name!r} lies in a list or a map; a filter takes columns of the table and of structs",
                column=name,
            )
        part = next((field for spec in reversed(self._specs) for field in spec.fields if field.name == name), None)
        if part is not None:
            return NotFoundError(f"there is no column {name!r}: {self._about(part, predicate)}", column=name)
        return NotFoundError(
            f"there is no column {name!r}; {meant_column(name, self._fields, [*self._fields])}", column=name
        )

    def _about(self, part: PartitionField, predicate: Predicate) -> str:
        """What partition field it is, and how to write the same filter with its column."""
        column = self._schema.names_by_id.get(part.source_id)
        if column is None:
            return "it is a partition field whose column was dropped"
        about = f"it is a partition field, {part.transform} of column {column!r}; "
        if isinstance(part.transform, Void | UnknownTransform) or column not in self._fields:
            return f"{about}filter on that column"
        transform = None if isinstance(part.transform, Identity) else part.transform
        return (
            f"{about}write {format_expression(msgspec.structs.replace(predicate, column=column, transform=transform))}"
        )


def _filterable(struct: StructType, prefix: str, *, optional: bool) -> Iterator[NestedField]:
    for field in struct.fields:
        is_optional = optional or not field.required
        yield msgspec.structs.replace(field, name=prefix + field.name, required=not is_optional)
        if isinstance(field.type, StructType):
            yield from _filterable(field.type, f"{prefix}{field.name}.", optional=is_optional)
