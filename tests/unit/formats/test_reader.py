import io
import json
import zlib
from contextlib import suppress
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import writer as write_avro
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.arrow.projection import KEPT_DICTIONARY
from icekeep.formats.puffin import frame, unframe
from icekeep.formats.reader import FileColumns, SourceFile, open_reader, read_file
from icekeep.spec.schema import (
    DELETE_FILE_PATH,
    DELETE_FILE_POS,
    DELETED,
    FILE,
    LAST_UPDATED_SEQUENCE_NUMBER,
    POS,
    ROW_ID,
    SPEC_ID,
    deleted_row_column,
    parse_name_mapping,
    partition_column,
)
from icekeep.spec.types import (
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMPTZ,
    ListType,
    MapType,
    NestedField,
    StructType,
)
from kit.cases import cases, for_each
from kit.columns import column, schema_of, table_of
from kit.data_files import options_for, read_table, read_tables, write_files
from kit.storage import MemoryStorage

FORMATS = ["PARQUET", "ORC", "AVRO"]
NUMBERS = schema_of(column(1, "n", LONG))


@pytest.fixture
def storage():
    return MemoryStorage()


def foreign_bytes(file_format, table, avro_schema=None):
    """A file without field ids."""
    out = io.BytesIO()
    if file_format == "PARQUET":
        pq.write_table(table, out)
    elif file_format == "ORC":
        orc.write_table(table, out)
    else:
        write_avro(out, avro_schema, table.to_pylist())
    return out.getvalue()


def put(storage, data, name="memory:/t/foreign"):
    storage.create(name, data)
    return name


# Metadata columns


@pytest.mark.parametrize("file_format", FORMATS)
def test_metadata_columns_describe_each_row(storage, file_format):
    (file,) = write_files(
        storage, NUMBERS, [table_of(NUMBERS, [{"n": i} for i in (7, 8, 9)])], options_for(file_format)
    )
    specs = [
        StructType((column(1000, "day", DATE), column(1001, "kind", STRING))),
        StructType((column(1001, "kind_renamed", STRING), column(1002, "bucket", INT))),
    ]
    schema = schema_of(DELETED, POS, column(1, "n", LONG), SPEC_ID, partition_column(specs), FILE)
    table = read_table(
        storage, file.file_path, schema, file_format=file_format, spec_id=4, partition={1001: "a", 1002: 3},
        deleted_positions=[2, 0],
    )  # fmt: skip
    partition = {"day": None, "kind_renamed": "a", "bucket": 3}
    assert table.to_pylist() == [
        {"_deleted": deleted, "_pos": i, "n": 7 + i, "_spec_id": 4, "_partition": partition, "_file": file.file_path}
        for i, deleted in enumerate((True, False, True))
    ]


def test_unpartitioned_partition_column_is_an_empty_struct(storage):
    (file,) = write_files(storage, NUMBERS, [table_of(NUMBERS, [{"n": 1}])])
    assert read_table(storage, file.file_path, schema_of(partition_column([]))).to_pylist() == [{"_partition": {}}]


@pytest.mark.parametrize("file_format", ["PARQUET", "ORC"])
def test_positions_count_the_rows_of_parts_that_are_not_read(storage, file_format):
    options = options_for("PARQUET", row_group_size_bytes=4096)
    if file_format == "ORC":
        options = options_for("ORC", stripe_size_bytes=4096)
    rows = [{"n": (i * 0x9E3779B97F4A7C15) % 2**63} for i in range(36_000)]
    (file,) = write_files(
        storage, NUMBERS, [table_of(NUMBERS, rows[i : i + 2000]) for i in range(0, 36_000, 2000)], options
    )
    assert len(file.split_offsets) > 3
    schema = schema_of(POS, DELETED, *NUMBERS.fields)
    everything = read_tables(storage, file.file_path, schema)
    assert [row["_pos"] for t in everything for row in t.to_pylist()] == list(range(36_000))
    assert len(everything) == len(file.split_offsets)
    some = read_table(storage, file.file_path, schema, 3, 1, deleted_positions=[everything[0].num_rows, 5])
    expected = pa.concat_tables([everything[3], everything[1]]).to_pylist()
    expected[everything[3].num_rows]["_deleted"] = True
    assert some.to_pylist() == expected
    ends = [t["_pos"][-1].as_py() for t in everything]
    borders = [position for end in ends for position in (end, end + 1)]
    deleted = read_table(storage, file.file_path, schema, deleted_positions=borders).to_pylist()
    assert [row["_pos"] for row in deleted if row["_deleted"]] == borders[:-1]
    with pytest.raises(InvalidTableError, match="there is no"):
        read_tables(storage, file.file_path, schema, len(everything))


@pytest.mark.slow
def test_positions_in_avro_go_on_from_block_to_block(storage):
    (file,) = write_files(storage, NUMBERS, [table_of(NUMBERS, [{"n": i} for i in range(50_000)])], options_for("AVRO"))
    tables = read_tables(storage, file.file_path, schema_of(*NUMBERS.fields, POS))
    assert len(tables) > 1
    assert all(table["n"].equals(table["_pos"]) for table in tables)


def test_split_offsets_are_where_the_stripes_of_orc_begin(storage):
    rows = [{"n": (i * 0x9E3779B97F4A7C15) % 2**63} for i in range(20_000)]
    (file,) = write_files(
        storage, NUMBERS, [table_of(NUMBERS, rows)] * 3, options_for("ORC", stripe_size_bytes=100_000)
    )
    stripes = orc.ORCFile(storage.open(file.file_path)).nstripes
    assert len(file.split_offsets) == stripes > 2
    assert file.split_offsets[0] == 3
    assert list(file.split_offsets) == sorted(set(file.split_offsets))


def test_an_avro_file_is_one_part(storage):
    (file,) = write_files(storage, NUMBERS, [table_of(NUMBERS, [{"n": 1}])], options_for("AVRO"))
    assert read_table(storage, file.file_path, NUMBERS, 0).to_pylist() == [{"n": 1}]
    with pytest.raises(InvalidTableError, match="no parts"):
        read_tables(storage, file.file_path, NUMBERS, 1)


LINEAGE = schema_of(*NUMBERS.fields, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)
_ROWS = [{"n": 1}, {"n": 2}, {"n": 3}]
_STORED = [
    {"n": 1, "_row_id": 70, "_last_updated_sequence_number": 3},
    {"n": 2},
    {"n": 3, "_row_id": 71, "_last_updated_sequence_number": None},
]


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize(
    ("schema", "rows", "first_row_id", "expected"),
    [
        (NUMBERS, _ROWS, 1000, [(1000, 9), (1001, 9), (1002, 9)]),
        (NUMBERS, _ROWS, None, [(None, None)] * 3),
        (LINEAGE, _STORED, 1000, [(70, 3), (1001, 9), (71, 9)]),
        (LINEAGE, _STORED, None, [(None, None)] * 3),
    ],
    ids=["inherited", "before the upgrade", "stored", "stored without a first row id"],
)
def test_row_lineage_is_stored_or_inherited(storage, file_format, schema, rows, first_row_id, expected):
    """What is inherited is the data sequence number, as the spec says and Iceberg Java 1.12 does."""
    (file,) = write_files(storage, schema, [table_of(schema, rows)], options_for(file_format))
    table = read_table(storage, file.file_path, LINEAGE, first_row_id=first_row_id, data_sequence_number=9)
    assert [(row["_row_id"], row["_last_updated_sequence_number"]) for row in table.to_pylist()] == expected


@pytest.mark.parametrize("file_format", FORMATS)
def test_position_delete_files_are_read_with_their_reserved_ids(storage, file_format):
    schema = schema_of(DELETE_FILE_PATH, DELETE_FILE_POS, deleted_row_column(StructType(NUMBERS.fields)))
    rows = [
        {"file_path": "memory:/t/a", "pos": 4, "row": {"n": 1}},
        {"file_path": "memory:/t/b", "pos": 0, "row": None},
    ]
    (file,) = write_files(storage, schema, [table_of(schema, rows)], options_for(file_format))
    assert read_table(storage, file.file_path, schema).to_pylist() == rows
    positions = schema_of(DELETE_FILE_POS, POS)
    assert read_table(storage, file.file_path, positions).to_pylist() == [{"pos": 4, "_pos": 0}, {"pos": 0, "_pos": 1}]


# Files without field ids

MAPPING = json.dumps(
    [
        {"field-id": 1, "names": ["id", "record_id"]},
        {"field-id": 2, "names": ["data"]},
        {"names": ["ignored"]},
        {
            "field-id": 3,
            "names": ["location"],
            "fields": [{"field-id": 4, "names": ["latitude", "lat"]}, {"field-id": 5, "names": ["longitude", "long"]}],
        },
        {
            "field-id": 6,
            "names": ["l"],
            "fields": [{"field-id": 7, "names": ["element"], "fields": [{"field-id": 8, "names": ["x"]}]}],
        },
        {
            "field-id": 9,
            "names": ["m"],
            "fields": [{"field-id": 10, "names": ["key"]}, {"field-id": 11, "names": ["value"]}],
        },
        {"field-id": 12, "names": ["a.b"]},
        {"field-id": 13, "names": []},
    ]
)
MAPPED = schema_of(
    column(3, "place", StructType((column(5, "lon", DOUBLE), column(4, "lat", DOUBLE)))),
    column(1, "number", LONG),
    column(6, "l", ListType(element_id=7, element=StructType((column(8, "y", LONG),)))),
    column(9, "m", MapType(key_id=10, key=STRING, value_id=11, value=LONG)),
    column(12, "ab", LONG),
    NestedField(field_id=13, name="only here", type=LONG, initial_default=5),
)
AVRO_SCHEMA = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "record_id", "type": "int"},
        {"name": "ignored", "type": ["null", "string"]},
        {"name": "other", "type": "string"},
        {
            "name": "location",
            "type": ["null", {"type": "record", "name": "loc", "fields": [
                {"name": "lat", "type": "double"}, {"name": "long", "type": "double"}, {"name": "alt", "type": "double"}
            ]}],
        },
        {"name": "l", "type": {"type": "array", "items": {"type": "record", "name": "e", "fields": [
            {"name": "x", "type": "int"}
        ]}}},
        {"name": "m", "type": {"type": "map", "values": "int"}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("file_format", FORMATS)
def test_name_mapping_applies_at_every_level(storage, file_format):
    rows = [
        {
            "record_id": 1, "ignored": "i", "other": "o", "location": {"lat": 1.5, "long": 2.5, "alt": 3.5},
            "l": [{"x": 1}], "m": {"k": 2},
        },
        {"record_id": 2, "ignored": None, "other": "o", "location": None, "l": [], "m": {}},
    ]  # fmt: skip
    types = {
        "record_id": pa.int32(),
        "ignored": pa.string(),
        "other": pa.string(),
        "location": pa.struct([("lat", pa.float64()), ("long", pa.float64()), ("alt", pa.float64())]),
        "l": pa.list_(pa.struct([("x", pa.int32())])),
        "m": pa.map_(pa.string(), pa.int32()),
    }
    if file_format == "AVRO":
        out = io.BytesIO()
        write_avro(out, AVRO_SCHEMA, rows)
        data = out.getvalue()
    else:
        given_rows = [{**row, "m": list(row["m"].items())} for row in rows]
        data = foreign_bytes(file_format, pa.Table.from_pylist(given_rows, schema=pa.schema(types)))
    location = put(storage, data)
    facts = {"file_format": file_format, "name_mapping": parse_name_mapping(MAPPING)}
    assert read_table(storage, location, MAPPED, **facts).to_pylist() == [
        {"place": {"lon": 2.5, "lat": 1.5}, "number": 1, "l": [{"y": 1}], "m": [("k", 2)], "ab": None, "only here": 5},
        {"place": None, "number": 2, "l": [], "m": [], "ab": None, "only here": 5},
    ]
    with pytest.raises(UnsupportedError, match=r"data file .* no field ids .* 'schema\.name-mapping\.default'"):
        read_tables(storage, location, MAPPED, file_format=file_format)


@pytest.mark.parametrize("file_format", ["PARQUET", "ORC"])
def test_a_dot_in_a_mapped_name_is_part_of_the_name(storage, file_format):
    data = foreign_bytes(file_format, pa.table({"a": [{"b": 1}], "a.b": [2]}))
    location = put(storage, data)
    facts = {"file_format": file_format, "name_mapping": parse_name_mapping(MAPPING)}
    assert read_table(storage, location, schema_of(column(12, "ab", LONG)), **facts)["ab"].to_pylist() == [2]


@pytest.mark.parametrize("file_format", ["PARQUET", "ORC"])
def test_partition_value_beats_mapped_column_without_ids(storage, file_format):
    location = put(storage, foreign_bytes(file_format, pa.table({"id": pa.array([1], pa.int64()), "data": ["file"]})))
    schema = schema_of(column(1, "id", LONG), column(2, "data", STRING))
    mapping = parse_name_mapping(MAPPING)
    table = read_table(
        storage, location, schema, file_format=file_format, name_mapping=mapping, constants={2: "partition"}
    )
    assert table.to_pylist() == [{"id": 1, "data": "partition"}]
    # So it is where columns beside it have ids, and where no mapping names it.
    half = pa.schema([marked("id", pa.int64(), 1), marked("data", pa.string())])
    location = put(storage, foreign_bytes("PARQUET", pa.table([[1], ["file"]], schema=half)), "memory:/t/half")
    for names in (mapping, None):
        facts = {"file_format": "PARQUET", "name_mapping": names, "constants": {2: "partition"}}
        assert read_table(storage, location, schema, **facts)["data"].to_pylist() == ["partition"]


def test_a_file_with_ids_needs_no_mapping_and_takes_none(storage):
    (file,) = write_files(storage, NUMBERS, [table_of(NUMBERS, [{"n": 1}])])
    mapping = parse_name_mapping('[{"field-id": 2, "names": ["n"]}]')
    schema = schema_of(column(1, "n", LONG), column(2, "other", LONG))
    assert read_table(storage, file.file_path, schema, name_mapping=mapping).to_pylist() == [{"n": 1, "other": None}]


def marked(name, type_, id_=None):
    return pa.field(name, type_, metadata=None if id_ is None else {"PARQUET:field_id": str(id_)})


HALF_MAPPED = schema_of(
    column(1, "id", LONG),
    column(2, "place", StructType((column(3, "lat", LONG), column(4, "lon", LONG)))),
    column(5, "tags", ListType(element_id=6, element=LONG)),
    column(7, "notes", MapType(key_id=8, key=STRING, value_id=9, value=LONG)),
)
HALF_MAPPING = """[
    {"field-id": 1, "names": ["id", "copy"]},
    {"field-id": 2, "names": ["place"],
     "fields": [{"field-id": 3, "names": ["lat"]}, {"field-id": 4, "names": ["lon", "long"]}]},
    {"field-id": 5, "names": ["tags"], "fields": [{"field-id": 6, "names": ["element"]}]},
    {"field-id": 7, "names": ["notes"],
     "fields": [{"field-id": 8, "names": ["key"]}, {"field-id": 9, "names": ["value"]}]}]"""
PLACE = pa.struct([marked("lat", pa.int64()), marked("long", pa.int64())])
TAGS, NOTES = pa.list_(marked("element", pa.int64())), pa.map_(pa.string(), pa.int64())
HALF_ROW = {"id": 1, "place": {"lat": 2, "lon": 3}, "tags": [4], "notes": [("k", 5)]}


@for_each(
    "fields",
    [
        # One column has an id, which the others lack at every level.
        [marked("id", pa.int64(), 1), marked("place", PLACE), marked("tags", TAGS), marked("notes", NOTES)],
        # Columns have ids, and what lies in them has none; the names of those with ids do not count.
        [marked("id", pa.int64(), 1), marked("p", PLACE, 2), marked("t", TAGS, 5), marked("n", NOTES, 7)],
        # An id that the file has goes to no column that is called so.
        [marked("copy", pa.int64(), 1), marked("place", PLACE, 2), marked("tags", TAGS), marked("notes", NOTES),
         marked("id", pa.int64())],
    ],
)  # fmt: skip
def test_columns_without_ids_are_mapped_beside_others(fields):
    storage = MemoryStorage()
    values = [[1], [{"lat": 2, "long": 3}], [[4]], [[("k", 5)]], [None]]
    columns = [pa.array(some, field.type) for some, field in zip(values, fields, strict=False)]
    location = put(storage, foreign_bytes("PARQUET", pa.Table.from_arrays(columns, schema=pa.schema(fields))))
    facts = {"file_format": "PARQUET", "name_mapping": parse_name_mapping(HALF_MAPPING)}
    assert read_table(storage, location, HALF_MAPPED, **facts).to_pylist() == [HALF_ROW]


@for_each(
    ("fields", "mapping", "lost"),
    [
        ([marked("id", pa.int64(), 1), marked("tags", TAGS)], None, "tags"),
        ([marked("id", pa.int64(), 1), marked("tags", TAGS)], "[]", "tags"),
        ([marked("id", pa.int64()), marked("tags", TAGS)], "[]", "id"),
        ([marked("place", PLACE, 2)], None, "place.lat"),
        ([marked("place", PLACE, 2)], '[{"field-id": 9, "names": ["place"]}]', "place.lat"),
        ([marked("tags", TAGS, 5)], None, "tags.element"),
        ([marked("notes", NOTES, 7)], None, "notes.key"),
    ],
)
def test_unmapped_column_without_id_is_refused_not_null(fields, mapping, lost):
    """Reading such a column as null would lose its values in a rewrite."""
    storage = MemoryStorage()
    table = pa.Table.from_arrays([pa.nulls(1, field.type) for field in fields], schema=pa.schema(fields))
    location = put(storage, foreign_bytes("PARQUET", table))
    mapping = None if mapping is None else parse_name_mapping(mapping)
    says = rf"column '{lost}' has no field id in the file.* add it to .*'schema\.name-mapping\.default'"
    with pytest.raises(UnsupportedError, match=says):
        read_table(storage, location, HALF_MAPPED, file_format="PARQUET", name_mapping=mapping)
    # It is in nobody's way who does not read it.
    other = schema_of(column(10, "other", LONG))
    facts = {"file_format": "PARQUET", "name_mapping": mapping}
    assert read_table(storage, location, other, **facts)["other"].to_pylist() == [None]


def test_two_columns_of_one_id_are_an_invalid_table(storage):
    location = put(storage, foreign_bytes("PARQUET", pa.table({"id": [1], "copy": [2]})))
    mapping = parse_name_mapping(HALF_MAPPING)
    with pytest.raises(InvalidTableError, match="column 'id' is there twice in the file, as 'id' and 'copy'"):
        read_table(storage, location, HALF_MAPPED, file_format="PARQUET", name_mapping=mapping)


def test_file_with_nothing_mapped_reads_as_nulls(storage):
    location = put(storage, foreign_bytes("PARQUET", pa.table({"x": [1, 2]})))
    table = read_table(storage, location, NUMBERS, file_format="parquet", name_mapping=parse_name_mapping("[]"))
    assert table["n"].to_pylist() == [None, None]


def test_list_with_unmapped_element_is_refused(storage):
    location = put(storage, foreign_bytes("PARQUET", pa.table({"l": [[1]]})))
    mapping = parse_name_mapping('[{"field-id": 1, "names": ["l"]}]')
    schema = schema_of(column(1, "l", ListType(element_id=2, element=LONG)))
    with pytest.raises(UnsupportedError, match=r"column 'l\.element' has no field id"):
        read_tables(storage, location, schema, file_format="parquet", name_mapping=mapping)


@pytest.mark.parametrize("compliant", [True, False])
def test_list_element_is_mapped_under_any_name(storage, compliant):
    out = io.BytesIO()
    pq.write_table(pa.table({"l": [[1, 2], None]}), out, use_compliant_nested_type=compliant)
    mapping = parse_name_mapping('[{"field-id": 1, "names": ["l"], "fields": [{"field-id": 2, "names": ["element"]}]}]')
    schema = schema_of(column(1, "l", ListType(element_id=2, element=LONG)))
    location = put(storage, out.getvalue())
    table = read_table(storage, location, schema, file_format="parquet", name_mapping=mapping)
    assert table["l"].to_pylist() == [[1, 2], None]


def test_int96_timestamps_are_instants_at_every_level(storage):
    moment = datetime(2020, 1, 2, 3, 4, 5, 6)
    out = io.BytesIO()
    pq.write_table(pa.table({"k": [1], "t": [moment], "s": [{"u": moment}]}), out, use_deprecated_int96_timestamps=True)
    mapping = parse_name_mapping(
        '[{"field-id": 1, "names": ["t"]}, {"field-id": 2, "names": ["s"], "fields": [{"field-id": 3, "names": ["u"]}]}]'
    )
    location = put(storage, out.getvalue())
    for type_, expected in ((TIMESTAMP, moment), (TIMESTAMPTZ, moment.replace(tzinfo=UTC))):
        schema = schema_of(column(1, "t", type_), column(2, "s", StructType((column(3, "u", type_),))))
        table = read_table(storage, location, schema, file_format="parquet", name_mapping=mapping)
        assert table.to_pylist() == [{"t": expected, "s": {"u": expected}}]


@for_each("file_format", FORMATS)
@for_each(("stored", "wanted"), [(TIMESTAMPTZ, TIMESTAMP), (TIMESTAMP, TIMESTAMPTZ)], ids=str)
def test_what_a_file_says_of_a_time_zone_changes_no_timestamp(stored, wanted, file_format):
    """Presto and ClickHouse write `timestamp` as adjusted to UTC; in ORC a timestamp without zone is its writer's wall clock."""
    storage, moment = MemoryStorage(), datetime(2024, 8, 1, 3, 4, 5, 6)
    given = moment.replace(tzinfo=UTC) if stored == TIMESTAMPTZ else moment
    schema = schema_of(column(1, "t", stored), column(2, "s", StructType((column(3, "u", stored),))))
    (file,) = write_files(
        storage, schema, [table_of(schema, [{"t": given, "s": {"u": given}}])], options_for(file_format)
    )
    other = schema_of(column(1, "t", wanted), column(2, "s", StructType((column(3, "u", wanted),))))
    if file_format == "ORC":
        with pytest.raises(InvalidTableError, match=f"cannot become '{wanted}'"):
            read_tables(storage, file.file_path, other, file_format="ORC")
        return
    expected = moment.replace(tzinfo=UTC) if wanted == TIMESTAMPTZ else moment
    table = read_table(storage, file.file_path, other, file_format=file_format)
    assert table.to_pylist() == [{"t": expected, "s": {"u": expected}}]


def test_a_zone_of_another_place_is_none_of_the_timestamp(storage):
    stamps = pa.array([0], pa.timestamp("ms", "Europe/Berlin"))
    table = pa.Table.from_arrays([stamps], schema=pa.schema([marked("t", stamps.type, 1)]))
    location = put(storage, foreign_bytes("PARQUET", table))
    found = read_table(storage, location, schema_of(column(1, "t", TIMESTAMP)), file_format="PARQUET")
    assert found.to_pylist() == [{"t": datetime(1970, 1, 1)}]


def test_a_file_with_two_columns_of_one_name_is_an_invalid_table(storage):
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["n", "n", "other"]), out)
    location = put(storage, out.getvalue())
    mapping = parse_name_mapping('[{"field-id": 1, "names": ["n"]}, {"field-id": 2, "names": ["other"]}]')
    with pytest.raises(InvalidTableError, match="it has two columns named 'n'"):
        read_tables(storage, location, NUMBERS, file_format="parquet", name_mapping=mapping)
    other = schema_of(column(2, "other", LONG))
    table = read_table(storage, location, other, file_format="parquet", name_mapping=mapping)
    assert table["other"].to_pylist() == [3]


def test_text_that_its_writer_did_not_mark_is_read_as_text(storage):
    mapping = parse_name_mapping('[{"field-id": 1, "names": ["s"]}]')
    location = put(storage, foreign_bytes("PARQUET", pa.table({"s": [b"\xc3\xa4"]})))
    schema = schema_of(column(1, "s", STRING))
    assert read_table(storage, location, schema, file_format="parquet", name_mapping=mapping)["s"].to_pylist() == ["ä"]
    bad = put(storage, foreign_bytes("PARQUET", pa.table({"s": [b"\xff"]})), "memory:/t/bad")
    with pytest.raises(InvalidTableError, match="memory:/t/bad"):
        read_tables(storage, bad, schema, file_format="parquet", name_mapping=mapping)


@cases(60)
@given(st.sampled_from(FORMATS), st.data())
def test_changed_bytes_read_or_raise_own_error(file_format, data):
    storage = MemoryStorage()
    schema = schema_of(
        column(1, "n", LONG), column(2, "s", STRING), column(3, "l", ListType(element_id=4, element=INT))
    )
    rows = [{"n": i, "s": "ab" * (i % 3), "l": [i] * (i % 4)} for i in range(50)]
    (file,) = write_files(storage, schema, [table_of(schema, rows)], options_for(file_format))
    broken = bytearray(storage.read(file.file_path))
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    storage.create("memory:/t/broken", bytes(broken))
    with suppress(InvalidTableError, UnsupportedError):
        read_tables(storage, "memory:/t/broken", schema, file_format=file_format)


# One value for many files


WORDS = schema_of(column(1, "n", LONG, required=True), column(2, "s", STRING))


@pytest.mark.parametrize("file_format", FORMATS)
def test_column_lookup_is_redone_for_differing_files(storage, file_format):
    options = options_for(file_format)
    reordered = schema_of(column(2, "was_s", STRING), column(1, "n", INT))
    without = schema_of(column(1, "n", LONG), column(9, "dropped", STRING))
    given = [
        (WORDS, {"n": 1, "s": "a"}),
        (WORDS, {"n": 2, "s": "b"}),
        (reordered, {"n": 3, "was_s": "c"}),
        (without, {"n": 4, "dropped": "x"}),
        (WORDS, {"n": 5, "s": None}),
    ]
    columns, found = FileColumns(WORDS, kept_dictionaries={2}), []
    for number, (schema, row) in enumerate(given):
        (file,) = write_files(storage, schema, [table_of(schema, [row] * 3)], options, directory=f"memory:/{number}")
        source = SourceFile(location=file.file_path, file_format=file_format)
        (table,) = read_file(storage, source, columns)
        assert table.schema.field("s").type in (pa.string(), KEPT_DICTIONARY)
        found += table.to_pylist()[:1]
        assert table.num_rows == 3
    assert [(row["n"], row["s"]) for row in found] == [(1, "a"), (2, "b"), (3, "c"), (4, None), (5, None)]


def test_what_only_the_partition_says_is_said_of_each_file(storage):
    schema = schema_of(column(1, "n", LONG), column(3, "day", LONG))
    columns, found = FileColumns(schema), []
    for number in range(3):
        (file,) = write_files(storage, NUMBERS, [table_of(NUMBERS, [{"n": number}])], directory=f"memory:/{number}")
        source = SourceFile(location=file.file_path, constants={3: number * 10})
        found += [row for table in read_file(storage, source, columns) for row in table.to_pylist()]
    assert found == [{"n": n, "day": n * 10} for n in range(3)]


def test_partition_value_suppresses_name_mapping(storage):
    mapping = parse_name_mapping('[{"names": ["n"], "field-id": 1}]')
    columns, found = FileColumns(NUMBERS), []
    put(storage, foreign_bytes("PARQUET", pa.table({"n": [5]})))
    for constants in ({}, {1: 7}, {1: 8}, {}):
        source = SourceFile(location="memory:/t/foreign", name_mapping=mapping, constants=constants)
        found += [row["n"] for table in read_file(storage, source, columns) for row in table.to_pylist()]
    assert found == [5, 7, 8, 5]


def test_a_required_column_is_looked_at_in_every_file(storage):
    columns = FileColumns(WORDS)
    optional = schema_of(column(1, "n", LONG), column(2, "s", STRING))
    for number, value in enumerate([1, 2, None]):
        row = {"n": value, "s": "a"}
        (file,) = write_files(storage, optional, [table_of(optional, [row])], directory=f"memory:/{number}")
        tables = read_file(storage, SourceFile(location=file.file_path), columns)
        if value is not None:
            assert next(tables).to_pylist() == [row]
            continue
        with pytest.raises(InvalidTableError, match=r"column 'n' is required and has 1 nulls"):
            next(tables)


def test_facts_and_lineage_are_those_of_each_file(storage):
    schema = schema_of(*NUMBERS.fields, FILE, POS, ROW_ID)
    columns, found = FileColumns(schema), []
    for number in range(2):
        rows = [{"n": 10 * number + i} for i in range(2)]
        (file,) = write_files(storage, NUMBERS, [table_of(NUMBERS, rows)], directory=f"memory:/{number}")
        source = SourceFile(location=file.file_path, first_row_id=100 * number, data_sequence_number=1)
        found += [tuple(row.values()) for table in read_file(storage, source, columns) for row in table.to_pylist()]
    places = ["memory:/0/001.parquet", "memory:/1/001.parquet"]
    assert found == [(10 * n + i, places[n], i, 100 * n + i) for n in range(2) for i in range(2)]


def test_a_file_that_is_looked_at_has_its_name_in_errors(storage):
    put(storage, b"not Parquet")
    with pytest.raises(InvalidTableError, match=r"data file 'memory:/t/foreign' is damaged"):
        open_reader(storage, "memory:/t/foreign", "PARQUET").__enter__()


BITMAP = b"bitmap"


def test_the_frame_is_length_magic_bitmap_and_checksum():
    body = bytes.fromhex("d1d33964") + BITMAP
    assert frame(BITMAP) == len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    assert unframe(frame(BITMAP), "x") == BITMAP


@pytest.mark.parametrize(
    ("blob", "problem"),
    [
        (b"", "has 0 bytes, which is not the length that it says"),
        (frame(BITMAP)[:-1], "has 17 bytes, which is not the length"),
        (frame(BITMAP) + b"x", "has 19 bytes, which is not the length"),
        (frame(BITMAP).replace(b"\xd1\xd3", b"\xd1\xd4"), "begins with d1d43964, not with d1d33964"),
        (frame(BITMAP).replace(b"bit", b"bat"), "its checksum does not fit"),
    ],
    ids=["empty", "cut", "longer", "magic", "damaged"],
)
def test_a_damaged_vector_is_refused(blob: bytes, problem: str):
    with pytest.raises(InvalidTableError, match=f"the deletion vector at byte 4 of 'f' .*{problem}"):
        unframe(blob, "at byte 4 of 'f'")


@given(st.binary(max_size=40), st.integers(0, 400), st.integers(1, 255))
def test_no_changed_byte_goes_unseen(bitmap: bytes, position: int, change: int):
    blob = bytearray(frame(bitmap))
    blob[position % len(blob)] ^= change
    with pytest.raises(InvalidTableError):
        unframe(bytes(blob), "x")
