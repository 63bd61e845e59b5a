"""Generated tables whose rows Iceberg Java 1.12.0 deletes while columns and partitioning change; Java judges throughout.

`kit.java_histories` makes them. At the end `scan` has the rows that Java reads.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from icekeep.spec.manifests.structs import FileContent
from icekeep.tables.scan import scan
from kit.cases import cases
from kit.java import IcebergJava
from kit.java_histories import History, histories
from kit.java_values import multiset, to_wire
from kit.lake import Lake
from kit.naive_scan import live_entries

HISTORIES = 12


@pytest.fixture(scope="module")
def lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("generated"))
    java.open_catalog("local", lake.properties)
    return lake


@cases(
    HISTORIES,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=histories(), version=st.sampled_from([2, 3]))
def test_scan_has_the_rows_that_java_reads_whatever_was_deleted_and_changed(
    java: IcebergJava, lake: Lake, spark_session: SparkSession, tried: Any, steps: list[tuple[str, int]], version: int
) -> None:
    history = History(lake, java, version)
    for kind, number in steps:
        history.step(kind, number)
    table = history.table
    struct = table.metadata.schema.as_struct()
    ours = [to_wire(struct, row) for row in scan(table, spark_session).toArrow().to_pylist()]
    assert multiset(ours) == history.rows_of_java()
    tried("histories of row-level deletes, scanned as Java does")
    tried("rows written in them", len(history.written))
    tried("rows left in them", len(ours))
    tried("delete files in them", sum(e.data_file.content is not FileContent.DATA for e in live_entries(table)))
