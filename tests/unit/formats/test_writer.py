"""Data files of all formats, and those that PyIceberg 0.12 writes and reads.

It writes Parquet only, reads ORC too, and reads no Avro.
"""

import math
import os
from decimal import Decimal
from uuid import UUID as UUIDValue

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.writer import DataFileWriter, next_row_group_bytes
from icekeep.spec.properties import metrics_modes
from icekeep.spec.schema import assign_fresh_ids
from icekeep.spec.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
    decimal,
)
from icekeep.storage.open import open_storage
from kit.cases import cases, for_each
from kit.columns import EVERY_TYPE, column, rows, schema_of, table_of
from kit.data_files import options_for, read_files, read_table, read_tables, tables, write_files
from kit.foreign_files import read_data_with_pyiceberg, write_data_with_pyiceberg
from kit.storage import MemoryStorage

pytestmark = pytest.mark.slow

FORMATS = ["PARQUET", "ORC", "AVRO"]
WORDS = schema_of(column(1, "n", LONG), column(2, "s", STRING))


@pytest.fixture
def storage():
    return MemoryStorage()


def words(row_count, start=0):
    """Rows that hardly compress."""
    numbers = [(i * 0x9E3779B97F4A7C15) % 2**63 for i in range(start, start + row_count)]
    return table_of(WORDS, [{"n": n, "s": f"{n:x}"} for n in numbers])


@pytest.mark.parametrize("file_format", FORMATS)
@cases(60)
@given(tables(), st.integers(0, 5))
def test_rows_of_any_schema_come_back(file_format, generated, cut):
    schema, table = generated
    storage = MemoryStorage()
    # Slices have offsets, which writers of nested data get wrong.
    (file,) = write_files(storage, schema, [table.slice(0, cut), table.slice(cut)], options_for(file_format))
    found = read_table(storage, file.file_path, schema)
    assert found.schema.equals(arrow_schema(schema))
    # As text, in which NaN and NaT are equal to themselves and the zeros differ.
    assert repr(found.to_pylist()) == repr(table.to_pylist())
    assert (file.record_count, file.file_format) == (table.num_rows, file_format)


@pytest.mark.parametrize("file_format", ["PARQUET", "AVRO"])
@cases(20)
@given(st.lists(rows(EVERY_TYPE), max_size=3))
def test_rows_of_many_tables_come_back_in_their_order(file_format, parts):
    storage = MemoryStorage()
    written = [table_of(EVERY_TYPE, part) for part in parts]
    files = write_files(storage, EVERY_TYPE, written, options_for(file_format))
    expected = [row for table in written for row in table.to_pylist()]
    assert len(files) == (1 if expected else 0)
    assert str(read_files(storage, files, EVERY_TYPE).to_pylist()) == str(expected)


@pytest.mark.parametrize(("file_format", "suffix"), [("PARQUET", "parquet"), ("ORC", "orc"), ("AVRO", "avro")])
def test_a_data_file_says_what_was_written(storage, file_format, suffix):
    table = table_of(WORDS, [{"n": 1, "s": "a"}, {"n": 2, "s": None}])
    (file,) = write_files(storage, WORDS, [table], options_for(file_format), spec_id=3, partition=("x", None))
    assert (file.file_path, file.file_format) == (f"memory:/t/001.{suffix}", file_format)
    assert (file.spec_id, file.partition) == (3, ("x", None))
    assert file.file_size_in_bytes == storage.head(file.file_path).size_bytes
    assert (file.record_count, file.value_counts, file.null_value_counts) == (2, {1: 2, 2: 2}, {1: 0, 2: 1})
    assert (file.lower_bounds[2], file.upper_bounds[2]) == (b"a", b"a")


@pytest.mark.parametrize("file_format", ["ORC", "AVRO"])
def test_files_end_near_the_target_size(storage, file_format):
    options = options_for(file_format, target_file_size_bytes=400_000)
    written = [words(3_000, start) for start in range(0, 60_000, 3_000)]
    files = write_files(storage, WORDS, written, options)
    assert len(files) > 2
    assert read_files(storage, files, WORDS).equals(pa.concat_tables(written))
    for file in files[:-1]:
        assert 300_000 < file.file_size_in_bytes < 600_000


def test_compressible_rows_do_not_end_orc_file_early(storage):
    # Half of what a row takes in memory, which a file is believed to take until a stripe is written, is forty times too much.
    options = options_for("ORC", target_file_size_bytes=400_000)
    rows_count = 200_000
    same = table_of(WORDS, [{"n": 1, "s": "the same in each row"}] * 1_000)
    (file,) = write_files(storage, WORDS, [same] * (rows_count // 1_000), options)
    assert file.record_count == rows_count
    assert file.file_size_in_bytes < 100_000


@pytest.mark.parametrize("file_format", FORMATS)
def test_the_metrics_of_all_formats_are_the_same(storage, file_format):
    schema = schema_of(*(f for f in EVERY_TYPE.fields), column(90, "x", DOUBLE))
    data = [
        {"key": 1, "x": math.nan},
        {"key": 5, "x": -0.0, "c10_string": "z" * 30, "point": {"x": 1.0, "label": None}},
    ]
    table = table_of(schema, data)
    (parquet,) = write_files(MemoryStorage(), schema, [table])
    (file,) = write_files(storage, schema, [table], options_for(file_format))
    for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        assert getattr(file, name) == getattr(parquet, name), name


@pytest.mark.parametrize("file_format", FORMATS)
def test_metrics_follow_the_modes(storage, file_format):
    properties = {
        "write.metadata.metrics.default": "none",
        "write.metadata.metrics.column.n": "counts",
        "write.metadata.metrics.column.s": "truncate(2)",
    }
    schema = schema_of(*WORDS.fields, column(3, "other", DOUBLE))
    options = options_for(file_format, metrics_modes=metrics_modes(properties, schema))
    (file,) = write_files(storage, schema, [table_of(schema, [{"n": 1, "s": "abc", "other": math.nan}])], options)
    assert (file.value_counts, file.null_value_counts, file.nan_value_counts) == ({1: 1, 2: 1}, {1: 0, 2: 0}, {})
    assert (file.lower_bounds, file.upper_bounds) == ({2: b"ab"}, {2: b"ac"})
    assert file.column_sizes is None or file.column_sizes.keys() == {1, 2}


@pytest.mark.parametrize("file_format", FORMATS)
def test_unknown_type_columns_are_not_written(storage, file_format):
    schema = schema_of(
        column(1, "u", UNKNOWN),
        column(2, "n", INT),
        column(3, "s", StructType((column(4, "x", INT), column(5, "u", UNKNOWN)))),
    )
    table = table_of(schema, [{"n": 1, "s": {"x": 2, "u": None}, "u": None}, {"n": None, "s": None, "u": None}])
    (file,) = write_files(storage, schema, [table], options_for(file_format))
    assert file.value_counts.keys() == {2, 4}
    assert read_table(storage, file.file_path, schema).equals(table)
    # Only what is not there can become a column of any type (v3: unknown is promoted to anything).
    later = schema_of(column(1, "u", STRING), column(2, "n", INT))
    assert read_table(storage, file.file_path, later)["u"].to_pylist() == [None, None]


@pytest.mark.parametrize("file_format", FORMATS)
def test_old_file_is_read_in_evolved_schema(storage, file_format):
    old = schema_of(
        column(1, "a", INT),
        column(2, "gone", STRING),
        column(3, "s", StructType((column(4, "x", INT), column(5, "old", STRING)))),
        column(6, "l", ListType(element_id=7, element=StructType((column(8, "y", INT),)))),
        column(9, "m", MapType(key_id=10, key=STRING, value_id=11, value=StructType((column(12, "z", INT),)))),
    )
    data = {"a": 1, "gone": "x", "s": {"x": 2, "old": "o"}, "l": [{"y": 3}, None], "m": [("k", {"z": 4})]}
    (file,) = write_files(storage, old, [table_of(old, [data])], options_for(file_format))
    new = schema_of(
        column(9, "map", MapType(key_id=10, key=STRING, value_id=11, value=StructType((column(12, "zz", LONG),)))),
        column(
            6, "list", ListType(element_id=7, element=StructType((column(13, "new", STRING), column(8, "y", LONG))))
        ),
        column(3, "s", StructType((column(5, "renamed", STRING), column(4, "x", LONG)))),
        column(1, "gone", LONG),
    )
    assert read_table(storage, file.file_path, new).to_pylist() == [
        {"map": [("k", {"zz": 4})], "list": [{"new": None, "y": 3}, None], "s": {"renamed": "o", "x": 2}, "gone": 1}
    ]


@pytest.mark.parametrize("file_format", FORMATS)
def test_schema_without_file_columns_keeps_row_count(storage, file_format):
    (file,) = write_files(storage, WORDS, [words(7)], options_for(file_format))
    assert read_table(storage, file.file_path, schema_of(column(9, "new", INT)))["new"].to_pylist() == [None] * 7


@pytest.mark.parametrize("file_format", FORMATS)
def test_what_lies_below_nulls_and_before_a_slice_is_no_data(storage, file_format):
    def inner(first_id):
        deep = StructType((column(first_id + 2, "y", STRING),))
        return StructType((column(first_id, "x", LONG), column(first_id + 1, "s", deep)))

    map_type = MapType(key_id=4, key=STRING, value_id=5, value=inner(20))
    list_type = ListType(element_id=2, element=ListType(element_id=13, element=LONG))
    schema = schema_of(column(1, "l", list_type), column(3, "m", map_type), column(6, "i", inner(30)))
    types = [f.type for f in arrow_schema(schema)]
    mask, offsets = pa.array([True, False, True, False]), pa.array([0, 1, 3, 4, 6], pa.int32())
    lists = pa.array([[i] for i in range(6)], types[0].value_type)
    structs = pa.array([{"x": i, "s": {"y": f"{i}"}} for i in range(6)], types[2])
    hidden = pa.StructArray.from_arrays(structs.slice(2).flatten(), fields=list(types[2]), mask=mask)
    table = pa.Table.from_arrays(
        [
            pa.ListArray.from_arrays(offsets, lists, type=types[0], mask=mask),
            pa.MapArray.from_arrays(
                offsets, pa.array(list("abcdef")), structs.cast(types[1].item_type), type=types[1], mask=mask
            ),
            hidden,
        ],
        schema=arrow_schema(schema),
    )
    for start in range(4):
        for length in range(1, 5 - start):
            part = table.slice(start, length)
            (file,) = write_files(memory := MemoryStorage(), schema, [part], options_for(file_format))
            assert read_table(memory, file.file_path, schema).to_pylist() == part.to_pylist()


@pytest.mark.parametrize("file_format", FORMATS)
def test_names_with_dots_and_strange_letters_are_only_names(storage, file_format):
    schema = schema_of(
        column(1, "a.b", INT),
        column(2, "a", StructType((column(3, "b", STRING),))),
        column(4, "ü 1", LONG),
        column(5, "1", INT),
    )
    table = table_of(schema, [{"a.b": 1, "a": {"b": "x"}, "ü 1": 2, "1": 3}])
    (file,) = write_files(storage, schema, [table], options_for(file_format))
    assert read_table(storage, file.file_path, schema).equals(table)
    for field in schema.fields:
        one = schema_of(field)
        assert read_table(storage, file.file_path, one).equals(table.select([field.name]))


def _files_with_damage(file_format):
    memory = MemoryStorage()
    (file,) = write_files(memory, WORDS, [words(2_000)], options_for(file_format))
    data = memory.read(file.file_path)
    middle = len(data) // 2
    return {
        "empty": b"",
        "text": b"no data file at all, but long enough to be one of some kind",
        "cut": data[:-20],
        "half": data[:middle],
        "overwritten": data[:middle] + b"\xff" * 64 + data[middle + 64 :],
    }


DAMAGE = [(f, kind) for f in FORMATS for kind in ("empty", "text", "cut", "half")]


# ORC has no checksums: bytes of a stream that does not compress may be others, and nobody can tell.
@pytest.mark.parametrize(("file_format", "kind"), [*DAMAGE, ("PARQUET", "overwritten"), ("AVRO", "overwritten")])
def test_a_damaged_file_is_an_invalid_table_and_named(storage, file_format, kind):
    storage.create("memory:/t/bad", _files_with_damage(file_format)[kind])
    with pytest.raises(InvalidTableError, match="data file 'memory:/t/bad'") as caught:
        read_tables(storage, "memory:/t/bad", WORDS, file_format=file_format)
    assert caught.value.facts["location"] == "memory:/t/bad"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_file_that_was_cut_anywhere_is_an_invalid_table(storage, file_format):
    (file,) = write_files(storage, WORDS, [words(20)], options_for(file_format))
    data = storage.read(file.file_path)
    for length in range(0, len(data), 7):
        storage.create(f"memory:/t/{length}", data[:length])
        with pytest.raises(InvalidTableError):
            read_tables(storage, f"memory:/t/{length}", WORDS, file_format=file_format)


@pytest.mark.parametrize("file_format", FORMATS)
def test_format_other_than_in_manifest_is_invalid(storage, file_format):
    other = FORMATS[FORMATS.index(file_format) - 1]
    (file,) = write_files(storage, WORDS, [words(5)], options_for(file_format))
    with pytest.raises(InvalidTableError):
        read_tables(storage, file.file_path, WORDS, file_format=other)


def test_a_format_that_is_not_known_is_refused(storage):
    storage.create("memory:/t/a.vortex", b"x")
    with pytest.raises(UnsupportedError, match=r"data file 'memory:/t/a\.vortex': its format 'vortex' is not known"):
        read_tables(storage, "memory:/t/a.vortex", WORDS)


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_error_in_the_block_deletes_every_file(storage, file_format):
    names = iter(range(1000))

    def fail():
        options = options_for(file_format, target_file_size_bytes=20_000)
        with DataFileWriter(storage, WORDS, options, lambda: f"memory:/t/{next(names)}") as writer:
            for start in range(0, 20_000, 1_000):
                writer.write(words(1_000, start))
            writer.close()
            assert len(storage.files) > 1
            raise RuntimeError("later")

    with pytest.raises(RuntimeError, match="later"):
        fail()
    assert storage.files == {}


def test_unreadable_orc_timestamp_is_refused_by_writer(storage):
    schema = schema_of(column(1, "t", TIMESTAMP))
    far = table_of(schema, [{"t": 253_402_300_799_999_999}])
    with pytest.raises(UnsupportedError, match="years 1677 to 2262"):
        write_files(storage, schema, [far], options_for("ORC"))
    assert storage.files == {}
    (file,) = write_files(storage, schema, [far], options_for("PARQUET"))
    assert read_table(storage, file.file_path, schema).equals(far)


@for_each(
    ("remaining", "full", "next_one"),
    [
        pytest.param(30, 100, 30, id="the rest fits"),
        pytest.param(150, 100, 75, id="two of one size"),
        pytest.param(122, 100, 100, id="two would be small, and the rows may end with the first"),
        pytest.param(950, 100, 95, id="ten of one size"),
    ],
)
def test_row_groups_fill_file_unless_too_small(remaining, full, next_one):
    """Of lineitem, compacted to files of 64 MiB, they were too small on average to be copied by a later compaction."""
    assert next_row_group_bytes(remaining, full) == next_one


LISTS = {"numbers": [4], "points": [], "counts": [("a", 1)], "deep": []}
"""PyIceberg 0.12 reads and writes null lists as empty."""

ROWS = [
    {"key": 1, "c7_time": 5_000_001, "c11_uuid": UUIDValue(int=2**127 + 5), "c13_fixed": b"abcde", **LISTS},
    {"key": 2, "c8_timestamp": -1, "c9_timestamptz": 7, "c6_date": -3, "c12_binary": b"\xff\x00", **LISTS},
    {"key": 3, **LISTS, "deep": [(1, [{"id": UUIDValue(int=1), "n": None}])]},
]

ORC_SCHEMA = schema_of(
    column(1, "key", LONG, required=True),
    column(2, "b", BOOLEAN),
    column(3, "i", INT),
    column(4, "x", DOUBLE),
    column(5, "d", DATE),
    column(6, "ts", TIMESTAMP),
    column(7, "tz", TIMESTAMPTZ),
    column(8, "s", STRING),
    column(9, "n", decimal(20, 3)),
    column(10, "point", StructType((column(11, "y", DOUBLE), column(12, "label", STRING)))),
    column(13, "l", ListType(element_id=14, element=StructType((column(15, "z", INT),)))),
    column(16, "m", MapType(key_id=17, key=STRING, value_id=18, value=LONG)),
)
"""PyIceberg 0.12 reads times, UUIDs and fixed bytes of ORC as the numbers and bytes that they are stored as."""


NUMBERED = assign_fresh_ids(EVERY_TYPE)
"""With the ids that PyIceberg gives when it makes a table."""


def text(table):
    return [{name: str(value) for name, value in row.items()} for row in table.to_pylist()]


def test_pyiceberg_reads_our_parquet(tmp_path):
    table = table_of(EVERY_TYPE, ROWS)
    files = write_files(open_storage({}), EVERY_TYPE, [table], directory=tmp_path.as_uri())
    assert text(read_data_with_pyiceberg(files, EVERY_TYPE, tmp_path.as_uri())) == text(table)


def test_pyiceberg_reads_our_orc(tmp_path):
    data = [
        {
            "key": 1, "b": True, "i": -5, "x": 1.5, "d": -3, "ts": -1_000_000, "tz": 7, "s": "ü", "n": Decimal("1.250"),
            "l": [{"z": 1}], "m": [("a", 1)],
        },
        {"key": 2, "point": {"y": 2.5, "label": None}, "l": [], "m": []},
        {"key": 3, "point": None, "l": [{"z": None}], "m": [("b", None)]},
    ]  # fmt: skip
    table = table_of(ORC_SCHEMA, data)
    files = write_files(open_storage({}), ORC_SCHEMA, [table], options_for("ORC"), directory=tmp_path.as_uri())
    assert text(read_data_with_pyiceberg(files, ORC_SCHEMA, tmp_path.as_uri())) == text(table)


@pytest.mark.parametrize("file_format", ["PARQUET", "ORC"])
def test_pyiceberg_reads_our_files_in_a_later_schema(tmp_path, file_format):
    old = schema_of(column(1, "a", INT), column(2, "s", StructType((column(3, "x", INT),))))
    new = schema_of(
        column(4, "new", STRING),
        column(2, "renamed", StructType((column(5, "y", STRING), column(3, "xx", LONG)))),
        column(1, "a", LONG),
    )
    table = table_of(old, [{"a": 1, "s": {"x": 2}}, {"a": None, "s": {"x": None}}])
    storage = open_storage({})
    files = write_files(storage, old, [table], options_for(file_format), directory=tmp_path.as_uri())
    ours = read_table(storage, files[0].file_path, new)
    assert text(read_data_with_pyiceberg(files, new, tmp_path.as_uri())) == text(ours)
    assert ours.to_pylist() == [
        {"new": None, "renamed": {"y": None, "xx": 2}, "a": 1},
        {"new": None, "renamed": {"y": None, "xx": None}, "a": None},
    ]


@cases(25)
@given(rows(NUMBERED))
def test_we_read_what_pyiceberg_writes(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("theirs")
    data = [{**row, **{name: row[name] or [] for name in LISTS}} for row in data]
    table = table_of(NUMBERED, data)
    file = write_data_with_pyiceberg(table, NUMBERED, directory.as_uri())
    found = read_table(open_storage({}), file.file_path, NUMBERED)
    assert found.schema.equals(arrow_schema(NUMBERED))
    assert str(found.to_pylist()) == str(table.to_pylist())
    os.remove(file.file_path.removeprefix("file://"))


@pytest.mark.parametrize("mode", ["none", "counts", "truncate(3)", "full"])
def test_pyiceberg_keeps_the_same_metrics_in_every_mode(tmp_path, mode):
    properties = {"write.metadata.metrics.default": mode}
    table = table_of(NUMBERED, [{**ROWS[0], "c10_string": "abcdefgh", "c12_binary": b"12345"}, ROWS[1]])
    theirs = write_data_with_pyiceberg(table, NUMBERED, tmp_path.as_uri(), **properties)
    options = options_for(metrics_modes=metrics_modes(properties, NUMBERED))
    (ours,) = write_files(open_storage({}), NUMBERED, [table], options, directory=f"{tmp_path.as_uri()}/ours")
    top = {f.field_id for f in NUMBERED.fields if isinstance(f.type, PrimitiveType)}
    for name in ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds"):
        assert _of(getattr(ours, name), top) == _of(getattr(theirs, name), top), name


def _of(counts, ids):
    return {id_: count for id_, count in (counts or {}).items() if id_ in ids}
