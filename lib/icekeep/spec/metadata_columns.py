"""Columns that every table has though no schema names them (spec, "Reserved Field IDs").

They are ordinary fields with reserved ids: put one into a schema that is read with, and the reader fills it in. The
columns of position delete files are among them, since those files store them under their ids.
"""

from collections.abc import Iterable

from icekeep.spec.types import BOOLEAN, INT, LONG, OPAQUE, STRING, NestedField, StructType, Type


def _column(field_id: int, name: str, type_: Type, *, required: bool = True) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_, required=required)


FILE = _column(2147483646, "_file", STRING)
POS = _column(2147483645, "_pos", LONG)
DELETED = _column(2147483644, "_deleted", BOOLEAN)
SPEC_ID = _column(2147483643, "_spec_id", INT)
PARTITION_ID = 2147483642
"""Of `_partition`, whose type depends on the table: see `partition_column`."""

DELETE_FILE_PATH = _column(2147483546, "file_path", STRING)
DELETE_FILE_POS = _column(2147483545, "pos", LONG)
DELETE_FILE_ROW_ID = 2147483544
"""Of `row`, whose type depends on the table: see `deleted_row_column`."""

ROW_ID = _column(2147483540, "_row_id", LONG, required=False)
LAST_UPDATED_SEQUENCE_NUMBER = _column(2147483539, "_last_updated_sequence_number", LONG, required=False)


def partition_column(partition_types: Iterable[StructType]) -> NestedField:
    """The column `_partition`: a struct with a field for each partition field of any spec, by its field id.

    Where specs disagree on a field of one id, the later one in `partition_types` gives its name and type. A row's value
    has null for the fields that its file's spec does not have.
    """
    fields: dict[int, NestedField] = {}
    for struct in partition_types:
        for field in struct.fields:
            type_ = STRING if field.type == OPAQUE else field.type
            fields[field.field_id] = NestedField(field_id=field.field_id, name=field.name, type=type_)
    return _column(PARTITION_ID, "_partition", StructType(tuple(fields.values())), required=False)


def deleted_row_column(row: StructType) -> NestedField:
    """The column `row` of a position delete file: the values of the deleted row, in columns of the table."""
    return _column(DELETE_FILE_ROW_ID, "row", row, required=False)
