"""What compaction takes from Iceberg Java 1.12.0 to the byte: places on curves, places of files, bloom filters, page indexes.

Java is asked about each one and judges throughout.
"""

from collections import Counter
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.sort.encode import Curve, curve_bytes, curve_values
from icekeep.maintenance.compact.job import compact
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import build_spec, partition_path, spec_to_json
from icekeep.spec.properties import data_layout
from icekeep.spec.schema import Schema, schema_to_json
from icekeep.spec.types import (
    BINARY,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    PrimitiveType,
)
from icekeep.tables.verbs import append, create_table
from kit.cases import cases
from kit.columns import column, schema_of, table_of, values
from kit.deletes import data_files
from kit.java import IcebergJava
from kit.lake import Lake
from kit.rows import to_wire

QUICK = cases(
    30,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
ON_CURVES = (INT, LONG, FLOAT, DOUBLE, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, STRING, BINARY)
LENGTH = 8


def our_bytes(type_: PrimitiveType, found: list[Any], curve: Curve) -> np.ndarray[Any, Any]:
    """What our curve gets of values: a row of bytes each."""
    schema = schema_of(column(1, "c", type_))
    array = table_of(schema, [{"c": value} for value in found]).column(0).combine_chunks()
    assert array.type == arrow_schema(schema).field(0).type
    return curve_bytes(array, type_, curve)


def curve_of(kind: str, columns: int, **settings_: Any) -> Curve:
    return Curve(kind=kind, column_ids=tuple(range(1, columns + 1)), **settings_)  # type: ignore[arg-type]


@pytest.mark.deep
@pytest.mark.parametrize("type_", ON_CURVES, ids=str)
@QUICK
@given(data=st.data())
def test_a_value_on_a_curve_has_the_bytes_that_java_gives_it(
    java: IcebergJava, tried: Any, type_: PrimitiveType, data: st.DataObject
) -> None:
    """Strings of ASCII: where a character is cut, Java keeps none of it and we its first bytes."""
    wanted = st.text(alphabet="aB 0~", max_size=12) if type_ == STRING else values(type_)
    found = data.draw(st.lists(wanted, min_size=1, max_size=40))
    requests = [{"type": str(type_), "value": to_wire(type_, value), "length": LENGTH} for value in found]
    theirs = java.ask_each("Curves.ordered", requests)
    ours = our_bytes(type_, found, curve_of("zorder", 2))
    assert [bytes(row).hex() for row in ours] == theirs
    tried("values on curves with Java's bytes", len(found))


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["zorder", "hilbert"])
@QUICK
@given(data=st.data())
def test_a_row_has_the_place_on_the_curve_that_java_gives_it(
    java: IcebergJava, tried: Any, kind: str, data: st.DataObject
) -> None:
    """Of two columns to five; z-order also of columns of other widths, and cut to fewer bytes."""
    width = st.just(8) if kind == "hilbert" else st.integers(1, 12)
    widths = data.draw(st.lists(width, min_size=2, max_size=5))
    places = st.tuples(*(st.binary(min_size=w, max_size=w) for w in widths))
    rows = data.draw(st.lists(places, min_size=1, max_size=40))
    columns = [np.array([list(row[n]) for row in rows], np.uint8) for n in range(len(widths))]
    max_bytes = data.draw(st.integers(1, 60)) if kind == "zorder" else 2**31 - 1
    requests = [{"kind": kind, "columns": [c.hex() for c in row], "max_bytes": max_bytes} for row in rows]
    ours = curve_values(columns, curve_of(kind, len(widths), max_output_bytes=max_bytes))
    assert [bytes(row).hex() for row in ours] == java.ask_each("Curves.place", requests)
    tried(f"places on the curve {kind}", len(rows))


PARTITIONED = schema_of(column(1, "kind", STRING), column(2, "day", DATE), column(3, "id", LONG))
LAYOUTS: tuple[dict[str, str], ...] = (
    {},
    {"write.data.path": "file:///elsewhere/data/"},
    {"write.object-storage.enabled": "true"},
    {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"},
    {"write.object-storage.enabled": "true", "write.data.path": "s3://bucket/spread"},
    {
        "write.object-storage.enabled": "true",
        "write.data.path": "s3://bucket/spread/",
        "write.object-storage.partitioned-paths": "false",
    },
)


@pytest.mark.deep
@pytest.mark.parametrize("properties", LAYOUTS, ids=lambda properties: ",".join(properties.values()) or "default")
@pytest.mark.parametrize("location", ["s3://lake/warehouse/db/t", "file:/lake/t/"])
@QUICK
@given(names=st.lists(st.text(alphabet="ab-0/ é", min_size=1, max_size=12), min_size=1, max_size=20), data=st.data())
def test_a_data_file_goes_where_java_would_put_it(
    java: IcebergJava,
    tried: Any,
    properties: dict[str, str],
    location: str,
    names: list[str],
    data: st.DataObject,
) -> None:
    fields = data.draw(
        st.sampled_from([(), (("kind", "identity", None), ("day", "month", None), ("id", "bucket[7]", None))])
    )
    spec = build_spec(PARTITIONED, fields)
    partition = data.draw(
        st.tuples(st.none() | st.text(max_size=5), st.none() | st.integers(0, 600), st.none() | st.integers(0, 6))
    )
    partition = partition[: len(spec.fields)]
    types = [field.transform.result_type(PARTITIONED.fields_by_id[field.source_id].type) for field in spec.fields]
    request = {
        "location": location,
        "properties": properties,
        "schema": schema_to_json(PARTITIONED),
        "spec": spec_to_json(spec),
        "partition": [to_wire(type_, value) for type_, value in zip(types, partition, strict=True)],
    }
    file_names = [f"{name.strip('/')}.parquet" for name in names]
    theirs = java.ask_each("ParquetFiles.location", [{**request, "file_name": name} for name in file_names])
    layout = data_layout(location, properties)
    path = partition_path(spec, PARTITIONED, partition)
    assert [layout.location(name, path) for name in file_names] == theirs
    tried("locations of data files that are Java's", len(names))


@pytest.fixture
def small_files(lake: Lake) -> Any:
    """Makes a table of rows in files of their own: ids 0 to 3,999 in fours, and their text."""

    def make(files: int = 8, **properties: str) -> Any:
        schema: Schema = schema_of(column(1, "id", LONG), column(2, "name", STRING), column(3, "amount", DOUBLE))
        table = create_table(lake.catalog, ("db", "t"), schema, properties=properties)
        share = 4_000 // files
        return append(
            table,
            [
                pa.table(
                    {
                        "id": pa.array([4 * n for n in range(start, start + share)], pa.int64()),
                        "name": [f"name {n}" for n in range(start, start + share)],
                        "amount": [n / 8 for n in range(start, start + share)],
                    }
                )
                for start in range(0, 4_000, share)
            ],
        )

    return make


def local_path(file: DataFile) -> str:
    return urlparse(file.file_path).path


@pytest.mark.deep
@pytest.mark.parametrize("stitch", ["never", "always"])
def test_java_skips_row_groups_by_our_bloom_filters(
    java: IcebergJava, lake: Lake, spark_session: SparkSession, small_files: Any, stitch: str
) -> None:
    """Ids between those that are there: bounds cannot tell, and no filter misses one that is there."""
    properties = {f"write.parquet.bloom-filter-enabled.column.{name}": "true" for name in ("id", "name")}
    table = small_files(**properties)
    compact(table, spark_session, options={"rewrite-all": "true", "stitch": stitch})
    [file] = data_files(lake.catalog.load(("db", "t")))
    requests = [
        {"table": ["local", "db", "t"], "file_path": local_path(file), "filter": ["EQ", "id", {"long": str(number)}]}
        for number in range(400)
    ]
    answers = java.ask_each("ParquetFiles.bloomFilters", requests)
    assert all(any(groups) for number, groups in enumerate(answers) if number % 4 == 0)
    skipped = sum(not any(groups) for number, groups in enumerate(answers) if number % 4)
    assert skipped > 280  # of 300
    for number in (0, 1, 396):
        found = java.sql(f"SELECT id FROM local.db.t WHERE id = {number}")
        assert [row["id"] for row in found] == ([number] if number % 4 == 0 else [])


@pytest.mark.deep
@pytest.mark.parametrize("stitch", ["never", "always"])
def test_java_finds_every_page_by_the_indexes_of_our_files(
    java: IcebergJava, lake: Lake, spark_session: SparkSession, small_files: Any, stitch: str
) -> None:
    """Parquet's own reader: row groups in order, their pages' first rows, and the rows of all of them."""
    table = small_files(**{"write.parquet.page-row-limit": "100"})
    before = java.rows("local.db.t")
    compact(table, spark_session, options={"rewrite-all": "true", "stitch": stitch})
    [file] = data_files(lake.catalog.load(("db", "t")))
    groups = java.ask("ParquetFiles.rowGroups", file_path=local_path(file))
    assert len(groups) == (8 if stitch == "always" else 1)
    assert sum(group["rows"] for group in groups) == 4_000
    for group in groups:
        assert group["pages"].keys() == {"id", "name", "amount"}
        for starts in group["pages"].values():
            assert starts[0] == 0
            assert starts == sorted(set(starts))
    assert Counter(java.rows("local.db.t")) == before
