"""Rows that tasks have made once, kept where no lost executor takes them along."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from icekeep.catalog.base import Table
from icekeep.errors import JobFailedError
from icekeep.events import SILENT
from icekeep.maintenance.orphans.listing import Look, keeping_rows
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.runtime import SYSTEM
from icekeep.spec.types import DAY_MS
from kit.lake import Lake

NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("text", pa.string())])


@pytest.fixture
def table(lake: Lake) -> Table:
    return lake.create()


def below(lake: Lake) -> set[Path]:
    return {path for path in lake.files_on_disk() if ".icekeep" in path.parts}


def looking() -> Look:
    """Made in a function so that it travels by value: workers cannot import what this module imports."""

    def even(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        mask = pa.array([n % 2 == 0 for n in rows["n"].to_pylist()])
        return rows.filter(mask), {"odd": rows.num_rows - mask.true_count}

    return even


def test_rows_are_made_once_and_read_as_often_as_they_are_wanted(
    lake: Lake, table: Table, spark_session: SparkSession, tmp_path: Path
) -> None:
    mark = tmp_path / "made"

    def made(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with mark.open("a") as file:
            file.write("x")
        for batch in batches:
            numbers = batch.column(0)
            yield pa.record_batch([numbers, numbers.cast(pa.string())], schema=NUMBERS)

    rows = spark_session.range(0, 10, 1, 3).mapInArrow(made, from_arrow_schema(NUMBERS))
    with keeping_rows(table, SILENT) as keeper:
        assert below(lake) == set()
        kept = keeper.keep(rows, NUMBERS, "numbers", "making numbers", looking())
        assert (kept.rows_count, kept.counts) == (5, {"odd": 5})
        for _ in range(2):
            frame = kept.frame(spark_session)
            assert sorted((row["n"], row["text"]) for row in frame.collect()) == [(n, str(n)) for n in range(0, 10, 2)]
            assert sorted(kept.table()["n"].to_pylist()) == [0, 2, 4, 6, 8]
        assert kept.table().schema == NUMBERS
        assert mark.read_text() == "xxx"
        assert len([path for path in below(lake) if path.name.startswith("numbers-")]) == len(kept.parts)
        assert [path for path in below(lake) if path.name.startswith("alive-")]
    assert below(lake) == set()


def test_no_rows_are_kept_as_none(table: Table, spark_session: SparkSession) -> None:
    rows = spark_session.range(0, 0, 1, 2).selectExpr("id n", "'' text")
    with keeping_rows(table, SILENT) as keeper:
        kept = keeper.keep(rows, NUMBERS, "numbers", "making numbers")
        assert (kept.rows_count, kept.frame(spark_session).count(), kept.table().num_rows) == (0, 0, 0)


def test_where_a_task_fails_nothing_is_left(lake: Lake, table: Table, spark_session: SparkSession) -> None:
    rows = spark_session.range(0, 10, 1, 2).selectExpr("id n", "'' text")
    with keeping_rows(table, SILENT) as keeper:
        keeper.keep(rows, NUMBERS, "numbers", "making numbers")
        with pytest.raises(JobFailedError, match="ZeroDivisionError: "):
            keeper.keep(rows, NUMBERS, "more", "making more", lambda _: 1 // 0)
    assert below(lake) == set()


def test_what_a_killed_run_has_kept_goes_with_what_else_it_left(
    lake: Lake, table: Table, spark_session: SparkSession
) -> None:
    rows = spark_session.range(0, 10, 1, 2).selectExpr("id n", "'' text")
    keeping = keeping_rows(table, SILENT)
    keeping.__enter__().keep(rows, NUMBERS, "numbers", "making numbers")
    left = below(lake)
    assert len(left) >= 3
    assert sweep_runs(table, SYSTEM, keep="", listener=SILENT) == 0
    for path in left:
        at = (SYSTEM.now_ms() - 2 * DAY_MS) / 1000
        os.utime(path, (at, at))
    assert sweep_runs(table, SYSTEM, keep="", listener=SILENT) == len(left)
    assert below(lake) == set()
    keeping.__exit__(None, None, None)
