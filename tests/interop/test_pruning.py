"""What a filter makes foreign engines read before and after a job: they prune by the bounds and partitions of icekeep."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.tables.verbs import append, create_table
from kit.deletes import data_files
from kit.judging.panel import Panel
from kit.lake import Lake
from kit.runtime import no_spark

pytestmark = pytest.mark.deep

FILES = 6
ROWS = 600
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.date32()), ("text", pa.string())])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Without Iceberg Java."""
    return Lake(tmp_path)


def filled(lake: Lake, partition_by: tuple[tuple[str, str], ...] = ()) -> Table:
    """Files in one commit each, every one of which has ids from the whole range."""
    table = create_table(lake.catalog, ("db", "t"), SCHEMA, partition_by=partition_by)
    for file in range(FILES):
        rows = [{"id": n, "day": n // 100, "text": f"{n * 7919 % 10007:>040}"} for n in range(file, ROWS, FILES)]
        table = append(table, pa.Table.from_pylist(rows, schema=SCHEMA))
    return table


@pytest.mark.parametrize("judge", ["DuckDB", "ClickHouse", "Trino"])
def test_a_sort_leaves_one_file_to_read_where_all_were(
    judge: str, lake: Lake, panel: Panel, spark_session: SparkSession
) -> None:
    table, reader = filled(lake), panel.judge(judge)
    assert reader.files_read(table, "id = 300") == FILES
    options = {"rewrite-all": "true", "target-file-size-bytes": "2048"}
    compact(table, spark_session, strategy="sort", sort_order="id", options=options)
    table = lake.catalog.load(table.identifier)
    assert len(data_files(table)) > 3
    assert reader.files_read(table, "id = 300") == 1
    assert reader.files_read(table, "id < 0") == 0


@pytest.mark.parametrize("judge", ["DuckDB", "ClickHouse", "Trino"])
def test_rewritten_manifests_leave_what_is_read_as_it_was(judge: str, lake: Lake, panel: Panel) -> None:
    table, reader = filled(lake, (("day", "identity"),)), panel.judge(judge)
    filters = ("day = DATE '1970-01-03'", "id = 300", "id < 100 AND day = DATE '1970-01-03'", "id > 1000")
    before = [reader.files_read(table, where) for where in filters]
    assert before[0] == FILES
    assert before[3] == 0
    rewrite_manifests(table, no_spark)
    table = lake.catalog.load(table.identifier)
    assert [reader.files_read(table, where) for where in filters] == before
