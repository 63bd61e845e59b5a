"""Stitched files read by Spark's own Parquet reader, and files that Spark wrote, put together."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType as SparkStruct

from icekeep.formats.parquet.footer import read_footer
from icekeep.formats.parquet.thrift import Struct
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.types import INT, LONG, STRING, ListType, StructType
from icekeep.storage.local.storage import LocalStorage
from kit.columns import column, schema_of, table_of
from kit.spliced import put_table, stitched

SCHEMA = schema_of(
    column(1, "n", LONG),
    column(2, "s", STRING),
    column(3, "p", StructType((column(4, "x", INT), column(5, "t", STRING)))),
)
LISTS = schema_of(*SCHEMA.fields, column(6, "l", ListType(element_id=7, element=LONG)))


def some_rows(start: int, count: int, schema: Any = SCHEMA) -> pa.Table:
    return table_of(
        schema,
        [
            {
                "n": n if n % 7 else None,
                "s": f"text {n // 3 * 7919 % 100_003}",
                "p": {"x": n, "t": str(n % 5)} if n % 4 else None,
                "l": [n, None][: n % 3],
            }
            for n in range(start, start + count)
        ],
    )


def spark_schema(spark: SparkSession) -> SparkStruct:
    """The columns with their field ids, as Spark writes them to Parquet."""

    def field(of: Any) -> dict[str, Any]:
        nested = isinstance(of.type, StructType)
        type_ = {"type": "struct", "fields": [field(f) for f in of.type.fields]} if nested else of.type.name
        names = {"int": "integer"}
        return {
            "name": of.name,
            "type": names.get(type_, type_) if isinstance(type_, str) else type_,
            "nullable": True,
            "metadata": {"parquet.field.id": of.field_id},
        }

    return SparkStruct.fromJson(json.loads(json.dumps({"type": "struct", "fields": [field(f) for f in SCHEMA.fields]})))


def written_by_spark(spark: SparkSession, directory: Path, parts: int) -> list[DataFile]:
    files = []
    for part in range(parts):
        frame = spark.createDataFrame(some_rows(3000 * part, 3000).to_pylist(), spark_schema(spark)).coalesce(1)
        (
            frame.write.option("compression", "zstd")
            .option("parquet.block.size", 16 * 1024)
            .option("parquet.page.size", 1024)
            .option("parquet.bloom.filter.enabled#s", "true")
            .option("parquet.bloom.filter.expected.ndv#s", "1000")
            .option("parquet.enable.dictionary#s", "false")
            .parquet(str(directory / f"part-{part}"))
        )
        (path,) = (directory / f"part-{part}").glob("*.parquet")
        files.append(entry(str(path)))
    return files


def entry(path: str) -> DataFile:
    return DataFile(
        file_path=path,
        file_format="PARQUET",
        spec_id=0,
        record_count=pq.read_metadata(path).num_rows,
        file_size_in_bytes=os.path.getsize(path),
    )


def ordinals(path: str) -> list[int]:
    data = read_footer(LocalStorage(), path, os.path.getsize(path)).data
    return [group.required_integer(7).value for group in Struct(data).structs(4)]


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(repr(row.asDict(recursive=True)) for row in frame.collect())


def scanned_rows(spark: SparkSession, path: str, where: str, **switches: str) -> int:
    """How many rows Spark's reader gave to the filter: those of the row groups and pages that it did not skip.

    `switches` are the reader's options `parquet.filter.*.enabled`.
    """
    options = {f"parquet.filter.{name}.enabled": value for name, value in switches.items()}
    frame = spark.read.options(**options).parquet(path).where(where)
    plan = frame._jdf.queryExecution().executedPlan()
    frame._jdf.collect()
    leaf = plan.collectLeaves().head()
    return int(leaf.metrics().apply("numOutputRows").value())


@pytest.fixture
def plain_session(spark_session: SparkSession) -> Any:
    """The session with adaptive execution off, so that the plan that ran can be asked."""
    before = spark_session.conf.get("spark.sql.adaptive.enabled")
    spark_session.conf.set("spark.sql.adaptive.enabled", "false")
    yield spark_session
    spark_session.conf.set("spark.sql.adaptive.enabled", before)


def test_spark_reads_a_stitched_file_as_its_parts(spark_session: SparkSession, tmp_path: Path) -> None:
    options = {"write_page_index": True, "write_page_checksum": True, "data_page_size": 512}
    files = [
        put_table(LocalStorage(), str(tmp_path / f"{n}.parquet"), some_rows(250 * n, 250, LISTS), 100, **options)
        for n in range(3)
    ]
    stitched(LocalStorage(), files, LISTS, str(tmp_path / "stitched.parquet"))
    whole = spark_session.read.parquet(str(tmp_path / "stitched.parquet"))
    parts = spark_session.read.parquet(*(file.file_path for file in files))
    assert rows_of(whole) == rows_of(parts)
    assert whole.count() == 750


def test_files_that_spark_wrote_are_stitched_with_their_indexes_and_filters(
    plain_session: SparkSession, tmp_path: Path
) -> None:
    files = written_by_spark(plain_session, tmp_path, 3)
    path = str(tmp_path / "stitched.parquet")
    file = stitched(LocalStorage(), files, SCHEMA, path)
    groups = sum(pq.read_metadata(f.file_path).num_row_groups for f in files)
    assert groups > 3
    assert ordinals(path) == list(range(groups))
    assert file.record_count == 9000
    assert rows_of(plain_session.read.parquet(path)) == rows_of(
        plain_session.read.parquet(*(f.file_path for f in files))
    )

    for n in (1, 4111, 8999):
        where = f"n = {n}"
        assert [row["n"] for row in plain_session.read.parquet(path).where(where).collect()] == [n]
        found = scanned_rows(plain_session, path, where)
        assert found == max(scanned_rows(plain_session, f.file_path, where) for f in files)
        # Less than a row group: pages are skipped by the page index.
        assert 0 < found < min(pq.read_metadata(path).row_group(g).num_rows for g in range(groups - 1))

    text = some_rows(4110, 1)["s"][0].as_py()
    for sought, least in ((text, 3), ("text 5x", 0)):
        where = f"s = '{sought}'"
        by_filters = scanned_rows(plain_session, path, where, bloom="true", columnindex="false")
        without = scanned_rows(plain_session, path, where, bloom="false", columnindex="false")
        # Between the bounds of most row groups, and in few of their bloom filters.
        assert least <= by_filters < without / 2
        assert plain_session.read.parquet(path).where(where).count() == least
