"""Dictionaries, statistics and bloom filters of single columns, and the metrics that are taken from a footer."""

import math
import struct
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID as UUIDValue

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)

import icekeep.formats.arrow.schema
import icekeep.formats.parquet.writer
from icekeep.formats.arrow.projection import KEPT_DICTIONARY
from icekeep.formats.base import count_nans
from icekeep.formats.options import ParquetColumns, write_options
from icekeep.formats.parquet.metrics import file_metrics
from icekeep.formats.parquet.writer import bloom_filters, repeating_columns, with_dictionary
from icekeep.spec.properties import metrics_modes
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
    decimal,
    fixed,
)
from icekeep.spec.values import value_from_bytes, value_to_bytes
from kit.cases import cases, for_each
from kit.columns import (
    EVERY_TYPE,
    column,
    parquet_bytes,
    parquet_file,
    pyiceberg_schema,
    rows,
    schema_of,
    table_of,
    values,
)
from kit.data_files import read_files, write_files
from kit.examples import check_examples
from kit.storage import MemoryStorage

POINT = StructType((column(11, "x", DOUBLE), column(12, "y", DOUBLE)))
SCHEMA = schema_of(
    column(1, "id", LONG),
    column(2, "word", STRING),
    column(10, "point", POINT),
    column(20, "tags", ListType(element_id=21, element=STRING)),
    column(30, "counts", MapType(key_id=31, key=STRING, value_id=32, value=INT)),
)


def rows_of(count, start=0):
    return table_of(
        SCHEMA,
        [
            {
                "id": i,
                "word": f"w{i % 7}",
                "point": {"x": i / 2, "y": 1.0},
                "tags": [f"t{i}", "t"],
                "counts": [("k", i)],
            }
            for i in range(start, start + count)
        ],
    )


def written(table=None, schema=SCHEMA, **properties):
    """The footer of a file that is written under properties, `__` for a dot and `_` for a dash."""
    options = write_options(
        {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}, schema
    )
    storage = MemoryStorage()
    table = rows_of(1000) if table is None else table
    (file,) = write_files(storage, schema, [table], options)
    assert read_files(storage, (file,), schema).equals(table)
    with storage.open(file.file_path) as stream:
        return pq.ParquetFile(stream).metadata, file


def chunks(metadata):
    group = metadata.row_group(0)
    return {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}


def filters(metadata):
    """The bytes of each bloom filter by path."""
    return {path: chunk.bloom_filter_length for path, chunk in chunks(metadata).items() if chunk.bloom_filter_offset}


ENABLED = "write__parquet__bloom_filter_enabled__column__"
FPP, NDV = "write__parquet__bloom_filter_fpp__column__", "write__parquet__bloom_filter_ndv__column__"


def test_bloom_filters_are_written_where_requested():
    asked = [f"{ENABLED}{name}" for name in ("id", "point__x", "tags__element", "counts__key", "gone")]
    metadata, _ = written(**dict.fromkeys(asked, "true"), **{f"{ENABLED}word": "false"})
    assert set(filters(metadata)) == {"id", "point.x", "tags.list.element", "counts.key_value.key"}
    assert filters(written()[0]) == {}


NUMBERS = schema_of(column(1, "id", LONG))


def filter_bytes(distinct, **properties):
    table = table_of(NUMBERS, [{"id": i % distinct} for i in range(20_000)])
    return filters(written(table, NUMBERS, **{f"{ENABLED}id": "true", **properties})[0])["id"]


def needed_bytes(ndv, fpp):
    """The size of a split block filter (Parquet's specification, "Sizing an SBBF")."""
    return -ndv / math.log(1 - fpp ** (1 / 8))


@for_each(("distinct", "fpp"), [(100, "0.1"), (100, "0.001"), (20_000, "0.1"), (20_000, "0.001")])
def test_bloom_filter_size_follows_ndv_and_fpp(distinct, fpp):
    least = needed_bytes(distinct, float(fpp))
    # A power of two, folded no further than it may, and the filter's header.
    assert least * 0.9 <= filter_bytes(distinct, **{f"{FPP}id": fpp}) <= 2 * least + 64


@pytest.mark.slow
def test_a_filter_finds_what_is_there_and_hardly_anything_else():
    """By the reader of another engine, which skips the file if its filter says that nothing in it matches."""
    table = table_of(NUMBERS, [{"id": 2 * i} for i in range(20_000)])
    options = write_options({"write.parquet.bloom-filter-enabled.column.id": "true"}, NUMBERS)
    storage = MemoryStorage()
    (file,) = write_files(storage, NUMBERS, [table], options)
    with TemporaryDirectory() as directory:
        path = Path(directory) / "a.parquet"
        path.write_bytes(storage.read(file.file_path))
        query = f"SELECT count(bloom_filter_excludes) FROM parquet_bloom_probe('{path}', 'id', $1) WHERE bloom_filter_excludes"
        excluded = [duckdb.execute(query, [value]).fetchone()[0] for value in range(2000)]
    assert not any(excluded[::2])
    assert sum(excluded[1::2]) > 950


def test_truth_values_have_no_filter_and_dictionaries_have_one():
    schema = schema_of(column(1, "flag", BOOLEAN), column(2, "word", STRING), column(3, "key", UUID))
    columns = ParquetColumns(bloom_filters={"flag": True, "word": True, "key": True})
    encoded = pa.schema([("flag", pa.bool_()), ("word", KEPT_DICTIONARY), ("key", pa.uuid())])
    assert set(bloom_filters(columns, encoded)) == {"word", "key"}
    asked = {f"{ENABLED}{name}": "true" for name in ("flag", "word", "key")}
    metadata, _ = written(table_of(schema, [{"flag": True, "word": "a"}]), schema, **asked)
    assert set(filters(metadata)) == {"word", "key"}


def test_column_without_statistics_has_no_bounds():
    metadata, file = written(write__parquet__stats_enabled__column__id="false")
    statistics = {path: chunk.statistics for path, chunk in chunks(metadata).items()}
    assert [path for path, found in statistics.items() if found is None or not found.has_min_max] == ["id"]
    assert 1 not in file.lower_bounds
    assert {2, 11} <= set(file.lower_bounds)


def test_dictionary_properties_override_the_data():
    prefix = "write__parquet__dict_encoding_enabled__column__"
    with_one = lambda metadata: {p for p, chunk in chunks(metadata).items() if chunk.has_dictionary_page}  # noqa: E731
    assert {"word", "point.y"} <= with_one(written()[0])
    assert "id" not in with_one(written()[0])
    said = with_one(written(**{f"{prefix}id": "true", f"{prefix}word": "false", f"{prefix}tags__element": "false"})[0])
    assert "id" in said
    assert not {"word", "tags.list.element"} & said
    assert with_one(written(**{"parquet__enable__dictionary": "false", f"{prefix}id": "true"})[0]) == {"id"}


def test_dictionary_input_is_plain_if_disabled():
    kept = pa.table(
        {"word": pa.array(["a", "b"] * 50).dictionary_encode()}, schema=pa.schema([("word", KEPT_DICTIONARY)])
    )
    options = write_options({"parquet.enable.dictionary": "false"})
    assert with_dictionary(options.encoding.columns, kept.schema, repeating_columns(kept)) == []
    assert with_dictionary(write_options({}).encoding.columns, kept.schema, repeating_columns(kept)) == ["word"]


@pytest.mark.parametrize(("version", "encoding"), [("v1", "PLAIN_DICTIONARY"), ("v2", "RLE_DICTIONARY")])
def test_page_version_and_row_limit_are_applied(version, encoding):
    few = {"write__parquet__page_row_limit": "100", "write__parquet__page_version": version}
    many = {"write__parquet__page_version": version}
    sizes = [chunks(written(**properties)[0])["id"].total_uncompressed_size for properties in (few, many)]
    # Each page has a header.
    assert sizes[0] > sizes[1] + 9 * 10


def test_repetition_sample_ignores_chunking() -> None:
    # Every sixth row is looked at, and only these repeat.
    numbers = np.arange(100_000)
    whole = pa.table({"a": np.where(numbers % 6, numbers, -1), "b": numbers})
    cuts = np.cumsum([0, 1, 5, 6, 7, 40_000, 3, 50_001]).tolist()
    parts = [whole.slice(first, end - first) for first, end in pairwise([*cuts, len(numbers)])]
    assert repeating_columns(pa.concat_tables(parts)) == repeating_columns(whole) == ["a"]


def one(type_):
    return schema_of(column(1, "c", type_))


def metrics_of(schema, data, row_group_rows=None, **options):
    table = table_of(schema, data)
    return file_metrics(
        parquet_file(table, row_group_rows, **options).metadata,
        schema,
        metrics_modes({}, schema),
        count_nans(table, schema),
    )


def footer_metrics(metadata, schema):
    return file_metrics(metadata, schema, metrics_modes({}, schema))


def bounds_of(type_, items, row_group_rows=None, **options):
    """Lower and upper bound of a column of these values, as values."""
    metrics = metrics_of(one(type_), [{"c": item} for item in items], row_group_rows, **options)
    return tuple(
        value_from_bytes(type_, found[1]) if 1 in found else None
        for found in (metrics.lower_bounds, metrics.upper_bounds)
    )


BOUNDS = [
    (BOOLEAN, [True, None, False], False, True),
    (INT, [3, -2, None], -2, 3),
    (LONG, [2**40, -(2**63)], -(2**63), 2**40),
    (FLOAT, [0.5, -1.5], -1.5, 0.5),
    (DOUBLE, [math.inf, -math.inf, 1.0], -math.inf, math.inf),
    (DATE, [-1, 20_000], -1, 20_000),
    (TIME, [86_399_999_999, 5], 5, 86_399_999_999),
    (TIMESTAMP, [-5, 5], -5, 5),
    (TIMESTAMPTZ, [-5, 5], -5, 5),
    (STRING, ["b", "", "Ü"], "", "Ü"),
    (UUID, [UUIDValue(int=2**127), UUIDValue(int=1)], UUIDValue(int=1), UUIDValue(int=2**127)),
    (BINARY, [b"\xff", b"\x00"], b"\x00", b"\xff"),
    (fixed(20), [b"a" * 20, b"b" * 20], b"a" * 20, b"b" * 20),
    (decimal(9, 2), [Decimal("-1.25"), Decimal("3.00")], Decimal("-1.25"), Decimal("3.00")),
    (decimal(18, 2), [Decimal("-1.25"), Decimal("3.00")], Decimal("-1.25"), Decimal("3.00")),
    (decimal(38, 2), [Decimal("-1.25"), Decimal("3.00")], Decimal("-1.25"), Decimal("3.00")),
]


@for_each(("type_", "items", "lower", "upper"), BOUNDS, ids=lambda value: str(value))
@for_each("row_group_rows", [None, 1])
def test_bounds_are_the_least_and_the_greatest_value(type_, items, lower, upper, row_group_rows):
    assert bounds_of(type_, items, row_group_rows) == (lower, upper)


@pytest.mark.parametrize("precision", [9, 18, 30])
def test_decimals_stored_as_fixed_bytes_have_the_same_bounds(precision):
    items = [Decimal("-200.50"), Decimal("-0.01"), Decimal("127.00")]
    bounds = bounds_of(decimal(precision, 2), items, store_decimal_as_integer=False)
    assert bounds == (Decimal("-200.50"), Decimal("127.00"))


@pytest.mark.slow
@cases(60)
@given(rows(EVERY_TYPE), st.integers(1, 3))
def test_no_value_lies_outside_the_bounds(data, row_group_rows):
    metrics = metrics_of(EVERY_TYPE, data, row_group_rows)
    for field in EVERY_TYPE.fields:
        found = [row[field.name] for row in data if row[field.name] is not None]
        if isinstance(field.type, PrimitiveType):
            _assert_within(metrics, field, found)
        elif isinstance(field.type, StructType):
            for child in field.type.fields:
                _assert_within(metrics, child, [value[child.name] for value in found if value[child.name] is not None])


def _assert_within(metrics, field, found):
    numbers = [value for value in found if not (isinstance(value, float) and math.isnan(value))]
    if field.field_id in metrics.lower_bounds:
        assert value_from_bytes(field.type, metrics.lower_bounds[field.field_id]) <= min(numbers)
    if field.field_id in metrics.upper_bounds:
        assert value_from_bytes(field.type, metrics.upper_bounds[field.field_id]) >= max(numbers)
    if field.type in (FLOAT, DOUBLE):
        assert metrics.nan_value_counts[field.field_id] == len(found) - len(numbers)
    elif numbers:
        assert field.field_id in metrics.lower_bounds
    else:
        assert field.field_id not in metrics.lower_bounds
        assert field.field_id not in metrics.upper_bounds


@pytest.mark.slow
@cases(40)
@given(rows(EVERY_TYPE), st.integers(1, 3))
def test_pyiceberg_takes_the_same_metrics_from_the_footer(data, row_group_rows):
    schema = pyiceberg_schema(EVERY_TYPE)
    metadata = parquet_file(table_of(EVERY_TYPE, data), row_group_rows).metadata
    ours = file_metrics(metadata, EVERY_TYPE, metrics_modes({}, EVERY_TYPE))
    theirs = data_file_statistics_from_parquet_metadata(
        metadata, compute_statistics_plan(schema, {}), parquet_path_to_id_mapping(schema)
    )
    assert ours.record_count == theirs.record_count
    assert ours.column_sizes == theirs.column_sizes
    # PyIceberg also counts what lists and maps hold; Iceberg Java does not, and no reader asks for it.
    assert ours.value_counts.items() <= theirs.value_counts.items()
    assert ours.null_value_counts.items() <= theirs.null_value_counts.items()
    assert theirs.value_counts.keys() - ours.value_counts.keys() == {41, 52, 53, 61, 62, 71, 74, 75}
    assert list(ours.split_offsets) == theirs.split_offsets
    for field in EVERY_TYPE.fields:  # PyIceberg gives fields of structs no bounds; ours have them, as in Iceberg Java
        aggregate = theirs.column_aggregates.get(field.field_id)
        if aggregate is None or (field.type in (FLOAT, DOUBLE) and field.field_id not in ours.lower_bounds):
            continue  # a row group of NaN alone has no statistics, which PyIceberg passes over and we do not
        assert ours.lower_bounds.get(field.field_id) == aggregate.min_as_bytes()
        assert ours.upper_bounds.get(field.field_id) == aggregate.max_as_bytes()


@cases(100)
@given(st.lists(values(STRING), min_size=1), st.lists(values(BINARY), min_size=1))
def test_bounds_of_text_and_bytes_are_short(texts, binaries):
    text_bounds = [bound for bound in bounds_of(STRING, texts) if bound is not None]
    byte_bounds = [bound for bound in bounds_of(BINARY, binaries) if bound is not None]
    assert all(len(bound) <= 16 for bound in (*text_bounds, *byte_bounds))


@for_each(("type_", "form"), [(FLOAT, "<f"), (DOUBLE, "<d")], ids=str)
@for_each("zero", [0.0, -0.0])
def test_a_zero_bound_includes_both_zeros(type_, form, zero):
    metrics = metrics_of(one(type_), [{"c": zero}])
    assert metrics.lower_bounds[1] == struct.pack(form, -0.0)
    assert metrics.upper_bounds[1] == struct.pack(form, 0.0)


def test_nan_is_counted_and_bounds_nothing():
    metrics = metrics_of(one(DOUBLE), [{"c": math.nan}, {"c": 1.5}, {"c": None}])
    assert (metrics.value_counts, metrics.null_value_counts, metrics.nan_value_counts) == ({1: 3}, {1: 1}, {1: 1})
    assert bounds_of(DOUBLE, [math.nan, 1.5, None]) == (1.5, 1.5)
    assert bounds_of(DOUBLE, [math.nan, None]) == (None, None)
    assert bounds_of(DOUBLE, [math.nan, 1.5], row_group_rows=1) == (None, None)


def test_nan_in_foreign_statistics_gives_no_bounds():
    data = parquet_bytes(table_of(one(DOUBLE), [{"c": 12345.678}]), compression="none")
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:].replace(struct.pack("<d", 12345.678), struct.pack("<d", math.nan))
    assert footer != data[start:]
    metrics = footer_metrics(pq.ParquetFile(pa.BufferReader(data[:start] + footer)).metadata, one(DOUBLE))
    assert (metrics.value_counts, metrics.lower_bounds, metrics.upper_bounds) == ({1: 1}, {}, {})


def test_fields_of_lists_and_maps_have_sizes_and_nothing_else():
    schema = schema_of(
        column(1, "l", ListType(element_id=2, element=StructType((column(3, "x", INT),)))),
        column(4, "m", MapType(key_id=5, key=STRING, value_id=6, value=INT)),
    )
    metrics = metrics_of(
        schema, [{"l": [{"x": 1}, {"x": None}, None], "m": [("a", 1), ("b", None)]}, {"l": [], "m": None}]
    )
    assert set(metrics.column_sizes) == {3, 5, 6}
    assert metrics.value_counts == metrics.null_value_counts == {}
    assert metrics.lower_bounds == metrics.upper_bounds == {}


def test_fields_of_structs_have_bounds():
    schema = one(StructType((column(2, "x", INT), column(3, "y", StructType((column(4, "z", STRING),))))))
    metrics = metrics_of(schema, [{"c": {"x": 1, "y": {"z": "b"}}}, {"c": {"x": -1, "y": None}}, {"c": None}])
    assert metrics.lower_bounds == {2: value_to_bytes(INT, -1), 4: b"b"}
    assert metrics.null_value_counts == {2: 1, 4: 2}


def test_bounds_of_promoted_columns_use_the_new_type():
    before = schema_of(column(1, "i", INT), column(2, "f", FLOAT), column(3, "d", decimal(9, 2)))
    after = schema_of(column(1, "i", LONG), column(2, "f", DOUBLE), column(3, "d", decimal(20, 2)))
    metadata = parquet_file(table_of(before, [{"i": 7, "f": 0.5, "d": Decimal("1.25")}])).metadata
    bounds = footer_metrics(metadata, after).lower_bounds
    assert [value_from_bytes(f.type, bounds[f.field_id]) for f in after.fields] == [7, 0.5, Decimal("1.25")]
    assert [len(bounds[i]) for i in (1, 2)] == [8, 8]


def test_metrics_ignore_unknown_or_retyped_columns():
    metadata = parquet_file(
        table_of(schema_of(column(1, "a", INT), column(2, "b", STRING)), [{"a": 1, "b": "x"}])
    ).metadata
    metrics = footer_metrics(metadata, schema_of(column(2, "b", DATE)))
    assert (metrics.value_counts, metrics.lower_bounds) == ({2: 1}, {})


def test_split_offsets_are_where_the_row_groups_start():
    data = parquet_bytes(table_of(EVERY_TYPE, [{"key": i} for i in range(3)]), row_group_rows=1)
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    starts = [
        min(offset for offset in (c.dictionary_page_offset, c.data_page_offset) if offset is not None)
        for c in (metadata.row_group(i).column(0) for i in range(3))
    ]
    metrics = file_metrics(metadata, EVERY_TYPE, metrics_modes({}, EVERY_TYPE))
    assert metrics.split_offsets == tuple(starts)
    assert starts[0] == 4
    assert starts == sorted(starts)


def test_sizes_add_up_over_row_groups():
    metadata = parquet_file(table_of(one(INT), [{"c": i} for i in range(5)]), row_group_rows=2).metadata
    sizes = [metadata.row_group(i).column(0).total_compressed_size for i in range(3)]
    assert footer_metrics(metadata, one(INT)).column_sizes == {1: sum(sizes)}


def test_examples():
    check_examples(
        "formats/parquet/writer.txt", icekeep.formats.arrow.schema, icekeep.formats.parquet.writer, globals()
    )
