"""Equality deletes of many data files: planned and converted where Spark holds these."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeep.maintenance.deletes import equality_plan as planning
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.equality_plan import plan
from icekeep.planning.scan.plan import open_scan
from icekeep.planning.spark.session import Engine
from kit.cases import thinned
from kit.lake import Lake
from kit.naive_scan import naive_rows
from kit.numbered_rows import deletes_of
from kit.row_histories import ByIcekeep, History
from kit.spark_jobs import Counted
from unit.maintenance.deletes.test_convert_equality_deletes import KINDS


@pytest.mark.parametrize("version", thinned([3, 2], 2))
def test_what_is_planned_in_spark_is_the_same(
    lake: Lake, spark_session: SparkSession, in_tasks: Engine, version: int
) -> None:
    history = History.of(40 + version, ByIcekeep(lake.catalog), (version,), KINDS)
    scan = open_scan(history.table)
    here, there = (plan(scan, spark, "main") for spark in (spark_session, in_tasks))
    assert here.preview == there.preview
    assert here.files.few is not None
    assert there.files.many is not None
    convert_equality_deletes(history.table, in_tasks)
    assert not deletes_of(history.table)
    assert naive_rows(history.table) == history.expected()


@pytest.mark.parametrize("version", thinned([3, 2], 2))
def test_data_files_are_planned_once_and_then_forgotten(
    lake: Lake,
    spark_session: SparkSession,
    in_tasks: Engine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: int,
) -> None:
    """Manifests were read for the plan, for what it amounts to, for a sample of what is sorted, and for the run."""
    history = History.of(40 + version, ByIcekeep(lake.catalog), (version,), KINDS)
    counted, real = Counted(tmp_path), planning.entries

    def entries(*told: Any) -> Any:
        rows = real(*told)
        return counted.frame(rows) if "record_count" in rows.columns and "equality_ids" not in rows.columns else rows

    monkeypatch.setattr(planning, "entries", entries)
    convert_equality_deletes(history.table, in_tasks)
    assert counted.times == [1]
    assert spark_session.sparkContext._jsc.getPersistentRDDs().isEmpty()
    assert not deletes_of(history.table)
    assert naive_rows(history.table) == history.expected()
