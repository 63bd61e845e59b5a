from icekeep.spec import schema as columns
from icekeep.spec.types import INT, LONG, MAX_COLUMN_ID, STRING, StructType
from kit.cases import for_each
from kit.columns import column

RESERVED = [
    (2147483646, "_file", "string", columns.FILE),
    (2147483645, "_pos", "long", columns.POS),
    (2147483644, "_deleted", "boolean", columns.DELETED),
    (2147483643, "_spec_id", "int", columns.SPEC_ID),
    (2147483642, "_partition", "struct<>", columns.partition_column([])),
    (2147483546, "file_path", "string", columns.DELETE_FILE_PATH),
    (2147483545, "pos", "long", columns.DELETE_FILE_POS),
    (2147483544, "row", "struct<>", columns.deleted_row_column(StructType(()))),
    (2147483540, "_row_id", "long", columns.ROW_ID),
    (2147483539, "_last_updated_sequence_number", "long", columns.LAST_UPDATED_SEQUENCE_NUMBER),
]


@for_each(("field_id", "name", "type_", "field"), RESERVED)
def test_the_specs_reserved_field_ids(field_id, name, type_, field):
    assert (field.field_id, field.name, str(field.type)) == (field_id, name, type_)
    assert field.field_id > MAX_COLUMN_ID


def test_row_lineage_may_be_null():
    assert not columns.ROW_ID.required
    assert not columns.LAST_UPDATED_SEQUENCE_NUMBER.required


def test_the_partition_of_a_row_has_the_fields_of_all_specs_by_id():
    first = StructType((column(1000, "a", INT), column(1001, "b", STRING, required=True)))
    second = StructType((column(1001, "b2", STRING), column(1002, "c", LONG)))
    fields = columns.partition_column([first, second]).type.fields
    assert [(f.field_id, f.name, f.required) for f in fields] == [
        (1000, "a", False),
        (1001, "b2", False),
        (1002, "c", False),
    ]
