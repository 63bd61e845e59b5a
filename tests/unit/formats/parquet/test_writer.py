"""Dictionaries, statistics and bloom filters of single columns, as the files have them."""

import math
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeep.formats.arrow.projection import KEPT_DICTIONARY
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.options import ParquetColumns, write_options
from icekeep.formats.parquet.writer import bloom_filters, leaf_paths, repeating_columns, with_dictionary
from icekeep.spec.types import BOOLEAN, DOUBLE, INT, LONG, STRING, UUID, ListType, MapType, StructType
from kit.cases import for_each
from kit.columns import column, parquet_file, schema_of, table_of
from kit.data_files import read_files, write_files
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


def test_paths_in_files_are_those_that_parquet_gives_them():
    found = leaf_paths(arrow_schema(SCHEMA))
    assert found == {
        "id": "id",
        "word": "word",
        "point.x": "point.x",
        "point.y": "point.y",
        "tags.element": "tags.list.element",
        "counts.key": "counts.key_value.key",
        "counts.value": "counts.key_value.value",
    }
    schema = parquet_file(rows_of(1)).schema
    assert [schema.column(i).path for i in range(len(schema))] == list(found.values())


def test_files_have_bloom_filters_of_the_columns_that_ask_for_one_nested_ones_too():
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
def test_a_filter_is_as_large_as_the_distinct_values_and_the_share_of_errors_ask_for(distinct, fpp):
    least = needed_bytes(distinct, float(fpp))
    # A power of two, folded no further than it may, and the filter's header.
    assert least * 0.9 <= filter_bytes(distinct, **{f"{FPP}id": fpp}) <= 2 * least + 64


def test_a_filter_is_made_for_as_many_distinct_values_as_the_table_says():
    assert filter_bytes(20_000, **{f"{NDV}id": "100"}) < 300 < filter_bytes(20_000) / 50


@pytest.mark.parametrize("max_bytes", ["4096", "8191"])
def test_no_filter_is_larger_than_the_table_allows(max_bytes):
    assert 4096 <= filter_bytes(20_000, write__parquet__bloom_filter_max_bytes=max_bytes) <= 4096 + 64


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


def test_a_column_without_statistics_has_no_bounds_and_the_others_have():
    metadata, file = written(write__parquet__stats_enabled__column__id="false")
    statistics = {path: chunk.statistics for path, chunk in chunks(metadata).items()}
    assert [path for path, found in statistics.items() if found is None or not found.has_min_max] == ["id"]
    assert 1 not in file.lower_bounds
    assert {2, 11} <= set(file.lower_bounds)


def test_properties_say_which_columns_have_a_dictionary_before_the_data_does():
    prefix = "write__parquet__dict_encoding_enabled__column__"
    with_one = lambda metadata: {p for p, chunk in chunks(metadata).items() if chunk.has_dictionary_page}  # noqa: E731
    assert {"word", "point.y"} <= with_one(written()[0])
    assert "id" not in with_one(written()[0])
    said = with_one(written(**{f"{prefix}id": "true", f"{prefix}word": "false", f"{prefix}tags__element": "false"})[0])
    assert "id" in said
    assert not {"word", "tags.list.element"} & said
    assert with_one(written(**{"parquet__enable__dictionary": "false", f"{prefix}id": "true"})[0]) == {"id"}


def test_strings_that_came_as_a_dictionary_are_written_plain_where_the_table_wants_none():
    kept = pa.table(
        {"word": pa.array(["a", "b"] * 50).dictionary_encode()}, schema=pa.schema([("word", KEPT_DICTIONARY)])
    )
    options = write_options({"parquet.enable.dictionary": "false"})
    assert with_dictionary(options.encoding.columns, kept.schema, repeating_columns(kept)) == []
    assert with_dictionary(write_options({}).encoding.columns, kept.schema, repeating_columns(kept)) == ["word"]


@pytest.mark.parametrize(("version", "encoding"), [("v1", "PLAIN_DICTIONARY"), ("v2", "RLE_DICTIONARY")])
def test_pages_are_of_the_version_and_length_that_the_table_asks_for(version, encoding):
    few = {"write__parquet__page_row_limit": "100", "write__parquet__page_version": version}
    many = {"write__parquet__page_version": version}
    sizes = [chunks(written(**properties)[0])["id"].total_uncompressed_size for properties in (few, many)]
    # Each page has a header.
    assert sizes[0] > sizes[1] + 9 * 10


def test_the_same_rows_are_looked_at_however_many_pieces_a_column_is_in() -> None:
    # Every sixth row is looked at, and only these repeat.
    numbers = np.arange(100_000)
    whole = pa.table({"a": np.where(numbers % 6, numbers, -1), "b": numbers})
    cuts = np.cumsum([0, 1, 5, 6, 7, 40_000, 3, 50_001]).tolist()
    parts = [whole.slice(first, end - first) for first, end in pairwise([*cuts, len(numbers)])]
    assert repeating_columns(pa.concat_tables(parts)) == repeating_columns(whole) == ["a"]
