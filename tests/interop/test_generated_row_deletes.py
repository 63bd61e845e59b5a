"""Generated tables whose rows Iceberg Java 1.12.0 deletes while columns and partitioning change; Java judges throughout.

`kit.row_histories` tells what happens, and Java does it. At the end `scan` and Java have the rows that the model says.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from icekeep.spec.manifests.structs import FileContent
from icekeep.tables.read import scan
from kit.cases import cases
from kit.foreign_tables import ByJava
from kit.java import IcebergJava
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.row_histories import SPECS, History, Step, steps
from kit.rows import row_texts

HISTORIES = 12


@pytest.fixture(scope="module")
def lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("generated"))
    java.open_catalog("local", lake.properties)
    return lake


@cases(
    HISTORIES,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=steps(), version=st.sampled_from([2, 3]), partition_by=st.sampled_from(SPECS))
def test_scan_and_java_have_the_rows_of_the_model_whatever_was_deleted_and_changed(
    java: IcebergJava,
    lake: Lake,
    spark_session: SparkSession,
    tried: Any,
    steps: list[Step],
    version: int,
    partition_by: Sequence[tuple[str, str]],
) -> None:
    history = History(ByJava(lake, java), version, partition_by).went_on(steps)
    table, expected = history.table, history.expected()
    assert row_texts(table.metadata.schema, scan(table, spark_session).toArrow().to_pylist()) == expected
    assert history.by.rows() == expected
    tried("histories of row-level deletes, scanned as Java does")
    tried("rows written in them", len(history.model.rows))
    tried("rows left in them", expected.total())
    tried("delete files in them", sum(e.data_file.content is not FileContent.DATA for e in live_entries(table)))
