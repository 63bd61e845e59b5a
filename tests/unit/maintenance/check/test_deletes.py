"""Delete files that are not what their entries say: positions, vectors and equality deletes, here and in parts."""

import struct

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.deletes.read import BATCH_ROWS
from icekeep.formats.puffin import BLOB_TYPE, PuffinWriter, VectorTarget, frame, write_deletion_vectors
from icekeep.maintenance.check import by_file, deletes
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.schema import DELETE_FILE_PATH, Schema
from icekeep.spec.types import LONG, STRING, NestedField
from kit.cases import for_each
from kit.checked_entries import POSITIONS, SCHEMA, damager, exchange_here, made, one_fault, rows, with_files, written
from kit.checked_entries import checked_deletes as checked
from kit.columns import column, parquet_bytes, schema_of, table_of
from kit.damager import DATA, EQUALITY_DELETES, POSITION_DELETES
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions
from kit.naive_scan import live_entries
from kit.runtime import limited, no_spark

FORMATS = pytest.mark.parametrize("file_format", ["PARQUET", "ORC", "AVRO"])


def paths_of(table):
    return [file.file_path for file in data_files(table)]


def with_rows(table, pairs, file_format="PARQUET", schema=POSITIONS, **changes):
    """The table after deletes of rows in the given order."""
    names = [field.name for field in schema.fields]
    file = written(table, schema, [dict(zip(names, pair, strict=True)) for pair in pairs], file_format)
    changes = {"content": FileContent.POSITION_DELETES, "sort_order_id": None, **changes}
    return with_files(table, deletes=[replace(file, **changes)])


def test_position_deletes_without_field_ids():
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


def test_a_negative_count_says_nothing():
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


LOW, MIDDLE, HIGH = (f"memory://lake/data/{letter}.parquet" for letter in "bdf")


def with_bounds(paths, lower, upper):
    table = made(2)
    file = written(table, POSITIONS, [{"file_path": path, "pos": 0} for path in paths])
    bounds = [None if one is None else {DELETE_FILE_PATH.field_id: one} for one in (lower, upper)]
    kind = {"content": FileContent.POSITION_DELETES, "sort_order_id": None}
    return with_files(table, deletes=[replace(file, **kind, lower_bounds=bounds[0], upper_bounds=bounds[1])])


@pytest.mark.parametrize(
    ("lower", "upper", "recorded", "said"),
    [
        (MIDDLE.encode(), HIGH.encode(), MIDDLE, LOW),
        (MIDDLE.encode(), None, MIDDLE, LOW),
        (LOW.encode(), MIDDLE.encode(), MIDDLE, HIGH),
        (None, MIDDLE[:-4].encode(), MIDDLE[:-4], HIGH),
    ],
    ids=["lower", "lower-only", "upper", "upper-cut"],
)
def test_a_path_outside_of_the_bounds(lower, upper, recorded, said):
    fault = one_fault(with_bounds([LOW, HIGH], lower, upper))
    assert (fault.number, fault.facts["recorded"], fault.facts["found"]) == (421, recorded, None)
    assert repr(said) in fault.detail


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        (LOW.encode(), HIGH.encode()),
        (b"m", b"n"),
        (b"memory://lake/data/b", b"memory://lake/data/f"),
        (b"a", b"memory://lake/data/f.parq\xc3"),
        (None, None),
    ],
    ids=["exact", "cut", "cut-and-not-raised", "cut-in-a-character", "none"],
)
def test_bounds_that_hold_all_paths(lower, upper):
    assert checked(with_bounds([LOW, MIDDLE, HIGH], lower, upper))[0] == []


def test_the_order_of_java_is_one_too():
    high, low = "memory://lake/\U0001f600", "memory://lake/\uffee"
    for lower, upper in ((high, low), (low, high)):
        assert checked(with_bounds([low, high], lower.encode(), upper.encode()))[0] == []


@pytest.fixture
def table():
    """Of the second data file rows 1 and 3 are deleted."""
    table = made(3)
    return delete_by_vector(table, data_files(table)[1].file_path, [1, 3])


def place_of(table):
    return damager(table).vector()


def changed(table, at, data):
    """Put bytes into the blob."""
    place = place_of(table)
    start = place.file["content_offset"] + at

    def change(found):
        found[start : start + len(data)] = data

    damager(table).change_bytes(place.file["file_path"], change)


def test_a_sound_vector(table):
    faults, tally = checked(table)
    assert (faults, tally.gaps()) == ([], ())


@pytest.mark.parametrize(
    ("at", "data", "says"),
    [
        (0, struct.pack(">i", 7), "not the length that it says"),
        (4, b"\0\0\0\0", "begins with 00000000"),
        (9, b"\xff", "its checksum does not fit"),
    ],
    ids=["length", "magic", "checksum"],
)
def test_a_blob_that_is_damaged(table, at, data, says):
    changed(table, at, data)
    fault = one_fault(table)
    place = place_of(table)
    assert (fault.number, fault.where) == (414, place.file["file_path"])
    assert says in fault.detail
    assert fault.snapshot_id == table.metadata.current_snapshot_id
    assert fault.facts["manifest"] == place.manifest
    assert (fault.facts["content_offset"], fault.facts["spec_id"]) == (place.file["content_offset"], 0)


@pytest.mark.parametrize(("field", "value"), [("content_offset", 10**12), ("content_size_in_bytes", 10**12)])
def test_a_blob_outside_of_the_file(table, field, value):
    damager(table).edit_file(place_of(table), **{field: value})
    faults, _ = checked(table)
    assert [fault.number for fault in faults] == [414, 416]
    assert "and the file has" in faults[0].detail


def test_a_bitmap_that_cannot_be_read(table):
    location = f"{table.metadata.location}/odd.puffin"
    target = data_files(table)[0].file_path
    with PuffinWriter(table.storage, location) as writer:
        properties = {"referenced-data-file": target, "cardinality": "2"}
        blob = writer.add(frame(b"\x01\0\0\0\0\0\0\0\0"), BLOB_TYPE, properties=properties)
    [vector] = write_deletion_vectors(
        table.storage,
        f"{table.metadata.location}/other.puffin",
        [(VectorTarget(location=target, spec_id=0), BitMap64([1]))],
    )
    odd = replace(vector, file_path=location, content_offset=blob.offset, content_size_in_bytes=blob.length)
    fault = one_fault(with_files(table, deletes=[odd]))
    assert (fault.number, fault.where) == (414, location)


@pytest.mark.parametrize("at", [0, -1, -6, -12], ids=["first-magic", "last-magic", "flags", "length"])
def test_a_footer_that_is_damaged(table, at):
    path = place_of(table).file["file_path"]
    damager(table).change_bytes(path, lambda data: data.__setitem__(at, data[at] ^ 0x55))
    fault = one_fault(table)
    assert (fault.number, fault.where) == (416, path)


@pytest.mark.parametrize(
    ("properties", "type_", "says"),
    [
        ({"referenced-data-file": "s3://b/other", "cardinality": "2"}, BLOB_TYPE, "for data file 's3://b/other'"),
        ({"cardinality": "3"}, BLOB_TYPE, "has cardinality '3', where 2 rows"),
        ({"referenced-data-file": None}, BLOB_TYPE, "for data file None"),
        ({}, "apache-datasketches-theta-v1", "is of type 'apache-datasketches-theta-v1'"),
    ],
    ids=["target", "cardinality", "no-target", "type"],
)
def test_a_footer_that_says_something_else(table, properties, type_, says):
    file = place_of(table).file
    right = {"referenced-data-file": file["referenced_data_file"], "cardinality": "2", **properties}
    data = damager(table).read(file["file_path"])
    blob = data[file["content_offset"] :][: file["content_size_in_bytes"]]
    table.storage.delete_many([file["file_path"]])
    with PuffinWriter(table.storage, file["file_path"]) as writer:
        writer.add(blob, type_, properties={key: value for key, value in right.items() if value is not None})
    fault = one_fault(table)
    assert (fault.number, fault.facts["content_offset"]) == (416, 4)
    assert says in fault.detail


def test_a_vector_of_missing_rows():
    table = made(3)
    path = data_files(table)[0].file_path
    fault = one_fault(delete_by_vector(table, path, [4, 5]))
    assert (fault.number, fault.facts["recorded"], fault.facts["found"]) == (411, 5, 5)
    assert fault.facts["data_file"] == path


def test_a_vector_that_is_not_there(table):
    table.storage.delete_many([place_of(table).file["file_path"]])
    faults, tally = checked(table)
    assert faults == []
    assert [gap.what for gap in tally.gaps()] == ["row ids of branch 'main'"]


def test_each_vector_of_a_file_is_told_with_its_offset():
    table = made(3)
    targets = [VectorTarget(location=file.file_path, spec_id=0) for file in data_files(table)]
    location = f"{table.metadata.location}/v.puffin"
    first, second = write_deletion_vectors(table.storage, location, [(one, BitMap64([1, 2])) for one in targets])
    fault = one_fault(with_files(table, deletes=[first, replace(second, record_count=1)]))
    assert fault.facts["content_offset"] == second.content_offset != first.content_offset


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
def test_sound_equality_deletes(file_format, version, columns):
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
def test_a_count_that_is_not_that_of_equality_deletes(file_format):
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
def test_equality_deletes_without_field_ids(properties, gaps):
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


@pytest.fixture(params=["entries", "bytes", "files"])
def in_parts(request, monkeypatch):
    """There is too much for this process, in one way or another."""
    exchange_here(monkeypatch, by_file, deletes)
    names = {"entries": "entries_count", "bytes": "checked_delete_bytes", "files": "footers_count"}
    return limited(no_spark, **{names[request.param]: 1, "folded_entries_count": 1})


def position_deletes(table, pairs, **changes):
    file = written(table, POSITIONS, [{"file_path": path, "pos": pos} for path, pos in pairs])
    return replace(file, content=FileContent.POSITION_DELETES, sort_order_id=None, **changes)


def spoilt(version):
    """A table of delete files that are sound, and of others, one of which several manifests name."""
    table = made(version, range(5), range(5, 10), range(10, 15))
    paths = [file.file_path for file in data_files(table)]
    if version == 3:
        targets = [VectorTarget(location=path, spec_id=0) for path in paths]
        positions = [BitMap64([1]), BitMap64([2, 7]), BitMap64([3])]
        several = write_deletion_vectors(
            table.storage, f"{table.metadata.location}/v.puffin", list(zip(targets, positions, strict=True))
        )
        return with_files(table, deletes=[several[0], several[1], replace(several[2], record_count=4)])
    table = delete_positions(table, [(paths[0], 0)])
    table = delete_equal(table, rows([1, 2]), ["id"])
    beyond = position_deletes(table, [(paths[0], 2), (paths[1], 9), (paths[2], 8)])
    table = with_files(table, deletes=[beyond, position_deletes(table, [(paths[1], 3), (paths[1], 1)])])
    table = with_files(table, deletes=[replace(beyond, record_count=9)])
    return with_files(table, deletes=[position_deletes(table, [(paths[2], 1)], record_count=4)])


@pytest.mark.parametrize(("version", "numbers"), [(2, [411, 412, 415, 415]), (3, [411, 415])])
def test_parts_find_what_one_process_finds(version, numbers, in_parts):
    table = spoilt(version)
    here, tally = checked(table)
    there, other = checked(table, in_parts)
    assert [fault.number for fault in here] == numbers
    assert there == here
    assert other.gaps() == tally.gaps()


def test_a_manifest_that_cannot_be_read_is_noted(in_parts):
    table = spoilt(2)
    path = damager(table).entry(1).manifest
    damager(table).write(path, b"\0" * 10)
    here, tally = checked(table)
    there, other = checked(table, in_parts)
    assert there == here
    assert (
        {gap.what for gap in tally.gaps()} == {f"the files of manifest {path!r}"} == {gap.what for gap in other.gaps()}
    )


@pytest.mark.parametrize("limit", [0, 2])
def test_more_pairs_than_can_be_held_leave_a_gap(limit, monkeypatch):
    monkeypatch.setattr(deletes, "REACHES", limit)
    faults, tally = checked(spoilt(2))
    assert [fault.number for fault in faults] == [412, 415, 415]
    assert [gap.what for gap in tally.gaps()] == ["whether deletes name rows that data files have"]
