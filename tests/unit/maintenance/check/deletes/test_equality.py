"""Equality delete files that are not what their entries say (413, 415, 420)."""

import pytest
from msgspec.structs import replace

from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.types import LONG, STRING
from kit.checked_deletes import SCHEMA, checked, damager, made, one_fault, with_files, written
from kit.columns import column, schema_of, table_of
from kit.damager import EQUALITY_DELETES
from kit.written_deletes import delete_equal

FORMATS = pytest.mark.parametrize("file_format", ["PARQUET", "ORC", "AVRO"])
IDS = schema_of(column(1, "id", LONG, required=True))


def with_deletes(table, schema, ids, file_format="PARQUET", **changes):
    rows = [{"id": 3, "kind": "a"}, {"id": 4, "kind": None}]
    values = [{field.name: row[field.name] for field in schema.fields} for row in rows]
    file = written(table, schema, values, file_format)
    changes = {"content": FileContent.EQUALITY_DELETES, "equality_ids": ids, **changes}
    return with_files(table, deletes=[replace(file, **changes)])


@FORMATS
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("columns", [["id"], ["id", "kind"]])
def test_sound_files(file_format, version, columns):
    table = made(version)
    rows = table_of(SCHEMA, [{"id": 1, "kind": "b"}, {"id": 2, "kind": None}])
    faults, tally = checked(delete_equal(table, rows, columns, file_format=file_format))
    assert (faults, tally.gaps()) == ([], ())


@FORMATS
@pytest.mark.parametrize("schema", [IDS, schema_of(*IDS.fields, column(7, "kind", STRING))], ids=["gone", "other-id"])
def test_a_file_without_a_column_that_it_deletes_by(file_format, schema):
    fault = one_fault(with_deletes(made(2), schema, (1, 2), file_format))
    assert (fault.number, fault.facts["recorded"]) == (420, [1, 2])
    assert "field id 2" in fault.detail


@FORMATS
def test_a_count_that_is_not_that_of_the_rows(file_format):
    fault = one_fault(with_deletes(made(2), IDS, (1,), file_format, record_count=5))
    assert (fault.number, fault.facts["recorded"], fault.facts["found"]) == (415, 5, 2)


@FORMATS
@pytest.mark.parametrize("cut", [5, 60])
def test_a_file_that_is_cut_short(file_format, cut):
    table = with_deletes(made(2), IDS, (1,), file_format)
    path = damager(table).entry(EQUALITY_DELETES).file["file_path"]
    damager(table).write(path, damager(table).read(path)[:-cut])
    fault = one_fault(table)
    assert (fault.number, fault.where) == (413, path)


@pytest.mark.parametrize(
    ("properties", "gaps"),
    [({"schema.name-mapping.default": '[{"field-id": 1, "names": ["id"]}]'}, 0), ({}, 1)],
    ids=["mapped", "unmapped"],
)
def test_a_file_without_field_ids_goes_by_the_name_mapping(properties, gaps):
    table = with_deletes(made(2, **properties), IDS, (1,), "AVRO")
    path = damager(table).entry(EQUALITY_DELETES).file["file_path"]
    data = damager(table).read(path)
    assert data.count(b"field-id") == 1
    damager(table).write(path, data.replace(b"field-id", b"fe1ld-1d"))
    faults, tally = checked(table)
    assert (faults, len(tally.gaps())) == ([], gaps)


def test_a_format_that_is_not_known_is_not_checked():
    table = with_deletes(made(2), IDS, (1,))
    damager(table).edit_file(damager(table).entry(EQUALITY_DELETES), file_format="LANCE")
    faults, tally = checked(table)
    assert (faults, len(tally.gaps())) == ([], 1)
