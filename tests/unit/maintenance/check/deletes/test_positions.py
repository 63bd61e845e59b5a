"""Position delete files that are not what their entries say (411, 412, 413, 415, 421)."""

import pyarrow as pa
import pytest
from msgspec.structs import replace

from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.deletes.read import BATCH_ROWS
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.schema import DELETE_FILE_PATH, Schema
from icekeep.spec.types import STRING, NestedField
from kit.cases import for_each
from kit.checked_deletes import POSITIONS, checked, damager, made, one_fault, with_files, written
from kit.columns import parquet_bytes
from kit.damager import DATA, POSITION_DELETES
from kit.naive_scan import live_entries
from kit.written_deletes import data_files, delete_positions

FORMATS = pytest.mark.parametrize("file_format", ["PARQUET", "ORC", "AVRO"])


def paths_of(table):
    return [file.file_path for file in data_files(table)]


def with_rows(table, pairs, file_format="PARQUET", schema=POSITIONS, **changes):
    """The table after deletes of rows in the given order."""
    names = [field.name for field in schema.fields]
    file = written(table, schema, [dict(zip(names, pair, strict=True)) for pair in pairs], file_format)
    changes = {"content": FileContent.POSITION_DELETES, "sort_order_id": None, **changes}
    return with_files(table, deletes=[replace(file, **changes)])


def test_files_without_field_ids_are_read_by_name_and_other_ids_are_told():
    for ids in ((None, None), (2147483646, 2147483645)):
        table = made(2)
        (path, *_) = paths_of(table)
        fields = [
            pa.field(field.name, field.type, metadata=None if id_ is None else {"PARQUET:field_id": str(id_)})
            for field, id_ in zip(arrow_schema(POSITIONS), ids, strict=True)
        ]
        deletes = with_rows(table, [(path, 4)], "PARQUET")
        place = damager(deletes).entry(POSITION_DELETES)
        data = parquet_bytes(pa.table([[path], [4]], schema=pa.schema(fields)))
        damager(deletes).write(place.file["file_path"], data)
        faults, tally = checked(deletes)
        assert tally.gaps() == ()
        assert [fault.number for fault in faults] == ([] if ids[0] is None else [413])


@FORMATS
@pytest.mark.parametrize("several", [False, True])
def test_sound_files(file_format, several):
    table = made(2)
    first, second = paths_of(table)
    pairs = [(second, 4), (first, 0), (first, 3)] if several else [(first, 4)]
    faults, tally = checked(delete_positions(table, pairs, file_format))
    assert (faults, tally.gaps()) == ([], ())


@FORMATS
@pytest.mark.parametrize("kind", ["positions", "paths"])
def test_rows_out_of_order(file_format, kind):
    table = made(2)
    first, second = paths_of(table)
    pairs = {"positions": [(first, 0), (first, 3), (first, 2)], "paths": [(second, 0), (first, 0)]}[kind]
    fault = one_fault(with_rows(table, pairs, file_format))
    assert (fault.number, fault.facts["content_offset"]) == (412, None)
    assert "comes after row" in fault.detail


@pytest.mark.parametrize("kind", ["positions", "paths", "sorted"])
def test_rows_out_of_order_between_batches(kind):
    table = made(2, range(BATCH_ROWS + 9))
    [first] = paths_of(table)
    before = [(first, n) for n in range(BATCH_ROWS)]
    after = {"positions": (first, 3), "paths": (first[:-20], 0), "sorted": (first, BATCH_ROWS)}[kind]
    faults, _ = checked(with_rows(table, [*before, after], "AVRO" if kind == "paths" else "PARQUET"))
    assert [fault.number for fault in faults] == ([] if kind == "sorted" else [412])


@FORMATS
def test_a_row_twice_is_in_order(file_format):
    table = made(2)
    assert checked(with_rows(table, [(paths_of(table)[0], 1)] * 2, file_format))[0] == []


def test_paths_in_the_order_of_java_are_in_order():
    high, low = "memory://lake/\U0001f600", "memory://lake/\uffee"
    assert (high > low) is (high.encode("utf-16-be") < low.encode("utf-16-be"))
    for pairs in ([(high, 0), (low, 0)], [(low, 0), (high, 0)]):
        assert checked(with_rows(made(2), pairs))[0] == []


@FORMATS
def test_a_file_that_is_no_file_of_its_format(file_format):
    table = made(2)
    table = delete_positions(table, [(paths_of(table)[0], 1)], file_format)
    path = damager(table).entry(POSITION_DELETES).file["file_path"]
    damager(table).write(path, damager(table).read(path)[:-30])
    fault = one_fault(table)
    assert (fault.number, fault.where) == (413, path)


def _optional(field):
    return NestedField(field_id=field.field_id, name=field.name, type=field.type, required=False)


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        ((DELETE_FILE_PATH,), ("p",)),
        ((NestedField(field_id=1, name="file_path", type=STRING), POSITIONS.fields[1]), ("p", 1)),
        (POSITIONS.fields, ("p", -1)),
        (tuple(map(_optional, POSITIONS.fields)), ("p", None)),
        (tuple(map(_optional, POSITIONS.fields)), (None, 1)),
    ],
    ids=["no-pos", "no-path", "below-0", "null-pos", "null-path"],
)
def test_a_file_without_its_columns(fields, row):
    assert one_fault(with_rows(made(2), [row], schema=Schema(fields=fields))).number == 413


@FORMATS
def test_a_count_that_is_not_that_of_the_rows(file_format):
    table = made(2)
    fault = one_fault(with_rows(table, [(paths_of(table)[0], 1)], file_format, record_count=3))
    assert (fault.number, fault.facts["recorded"], fault.facts["found"]) == (415, 3, 1)


@FORMATS
def test_rows_that_the_data_file_does_not_have(file_format):
    table = made(2)
    first, second = paths_of(table)
    fault = one_fault(with_rows(table, [(first, 4), (second, 2), (second, 5), (second + "-gone", 99)], file_format))
    assert (fault.number, fault.facts["recorded"], fault.facts["found"]) == (411, 5, 5)
    assert fault.facts["data_file"] == second


def test_a_data_file_whose_count_says_nothing_has_any_row():
    table = made(2)
    table = delete_positions(table, [(paths_of(table)[0], 3)])
    damager(table).edit_file(
        damager(table).entry(DATA, lambda f: f["file_path"] == paths_of(table)[0]), record_count=-1
    )
    assert checked(table)[0] == []


@for_each("kind", ["reference", "bounds"])
@for_each("several", [False, True])
def test_a_file_that_is_said_to_be_for_another_data_file(kind, several):
    table = made(2)
    first, second = paths_of(table)
    bound = {DELETE_FILE_PATH.field_id: second.encode()}
    none = {"lower_bounds": None, "upper_bounds": None}
    changes = {
        "reference": {"referenced_data_file": second, **none},
        "bounds": {"lower_bounds": bound, "upper_bounds": bound},
    }
    pairs = [(first, 1), *([(second, 1)] if several else [])]
    fault = one_fault(with_rows(table, pairs, **changes[kind]))
    assert (fault.number, fault.facts["recorded"]) == (421, second)
    assert fault.facts["found"] == (None if several else first)
    assert repr(first) in fault.detail
    assert checked(with_rows(made(2), [(second, 1)], **changes[kind]))[0] == []


def test_bounds_that_are_cut_short_name_no_file():
    table = made(2)
    first = paths_of(table)[0]
    lower, upper = (
        {DELETE_FILE_PATH.field_id: value} for value in (first[:16].encode(), first[:15].encode() + b"\x7f")
    )
    assert checked(with_rows(table, [(first, 1)], lower_bounds=lower, upper_bounds=upper))[0] == []


def test_an_entry_that_is_right_in_an_older_manifest():
    """Each manifest's saying is held against the file, which is read once."""
    table = made(2)
    first = paths_of(table)[0]
    table = delete_positions(table, [(first, 1)])
    place = damager(table).entry(POSITION_DELETES)
    file = next(e.data_file for e in live_entries(table) if e.data_file.content is FileContent.POSITION_DELETES)
    table = with_files(table, deletes=[replace(file, record_count=9)])
    fault = one_fault(table)
    assert (fault.number, fault.facts["recorded"]) == (415, 9)
    assert fault.facts["manifest"] != place.manifest
    assert fault.snapshot_id == table.metadata.current_snapshot_id


def test_a_file_that_is_encrypted_is_not_checked():
    table = made(2)
    faults, tally = checked(with_rows(table, [(paths_of(table)[0], 99)], key_metadata=b"k"))
    assert faults == []
    assert [gap.why for gap in tally.gaps()] == ["it is encrypted"]


def test_a_file_that_is_not_there_is_a_fault_of_another_level():
    table = made(2)
    table = delete_positions(table, [(paths_of(table)[0], 1)])
    table.storage.delete_many([damager(table).entry(POSITION_DELETES).file["file_path"]])
    assert checked(table)[0] == []
