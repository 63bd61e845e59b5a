"""Rows of `scan` against what the tests know they wrote, and against PyIceberg where it can read."""

from collections import Counter
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from icekeep.errors import NotFoundError, UnsupportedError, UsageError
from icekeep.planning.scan.tasks import plan_tasks
from icekeep.planning.spark.rows import arrow_table
from icekeep.planning.spark.session import Engine, SparkSource
from icekeep.spec.evolution import AddColumn, DropColumn, RenameColumn, UpdateColumnType
from icekeep.spec.types import DOUBLE, LONG
from icekeep.tables.read import scan
from icekeep.tables.refs import create_tag
from icekeep.tables.verbs import append, create_table, update_schema
from kit.cases import thinned
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions
from kit.lake import EVENTS, Lake, multiset


@pytest.fixture(params=["driver", "tasks"])
def place(request: pytest.FixtureRequest, spark_session: SparkSession, in_tasks: Engine) -> SparkSource:
    """Both places where manifests are decoded."""
    return in_tasks if request.param == "tasks" else spark_session


def rows_of(frame: DataFrame) -> Counter[str]:
    return multiset(arrow_table(frame))


def ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.select("id").collect())


def table_of(lake: Lake, rows: pa.Table, parts: Iterable[int] = (), **properties: Any) -> Any:
    """A table of some rows in one file, or cut into files of so many rows each."""
    table = create_table(lake.catalog, EVENTS, rows.schema, **properties)
    starts, slices = 0, []
    for length in [*parts] or [rows.num_rows]:
        slices.append(rows.slice(starts, length))
        starts += length
    return append(table, slices)


def test_a_scan_gives_the_rows_that_were_appended(lake: Lake, place: SparkSource) -> None:
    table = lake.filled(commits=3)
    assert rows_of(scan(table, place)) == lake.rows()


@pytest.mark.parametrize(
    "where",
    thinned(["id >= 1000010 and kind != 'kind-1'", "kind is null", "at < '2013-02-01'", "amount > 18", "id = -1"], 2),
)
def test_a_filter_leaves_the_rows_that_pyiceberg_leaves(lake: Lake, spark_session: SparkSession, where: str) -> None:
    table = lake.filled(commits=3)
    expected = multiset(
        lake.foreign().scan(row_filter=where.replace("'2013-02-01'", "'2013-02-01T00:00:00+00:00'")).to_arrow()
    )
    assert rows_of(scan(table, spark_session, where=where)) == expected


def test_columns_come_as_they_are_selected(lake: Lake, spark_session: SparkSession) -> None:
    table = lake.filled(commits=1, files=1, rows=3)
    [file] = data_files(table)
    frame = scan(table, spark_session, select=["_pos", "id", "_file", "_partition"], where="kind != 'kind-1'")
    assert frame.columns == ["_pos", "id", "_file", "_partition"]
    assert [(row["_pos"], row["id"], row["_file"]) for row in frame.collect()] == [
        (0, 0, file.file_path),
        (2, 2, file.file_path),
    ]


def test_position_deletes_of_all_formats_remove_rows(lake: Lake, place: SparkSource) -> None:
    table = lake.filled(commits=1, files=3, rows=20)
    first, second, third = data_files(table)
    gone = {f.file_path: {n, n + 5} for n, f in enumerate((first, second, third))}
    before = scan(table, place, select=["id", "_file", "_pos"]).collect()
    for file, file_format in zip((first, second, third), ("PARQUET", "ORC", "AVRO"), strict=True):
        table = delete_positions(table, [(file.file_path, n) for n in gone[file.file_path]], file_format)
    left = sorted(row["id"] for row in before if row["_pos"] not in gone[row["_file"]])
    assert ids(scan(table, place)) == left
    assert len(left) == 60 - 6


def test_a_deletion_vector_takes_the_place_of_position_deletes(lake: Lake, spark_session: SparkSession) -> None:
    table = lake.filled(commits=1, files=1, rows=10, format_version=3)
    [file] = data_files(table)
    table = delete_by_vector(table, file.file_path, [0, 9])
    assert ids(scan(table, spark_session)) == [*range(1, 9)]


def test_equality_deletes_reach_rows_that_were_there_before_them(lake: Lake, place: SparkSource) -> None:
    rows = pa.table({"id": pa.array([1, 2, 3, 4], pa.int64()), "name": ["a", None, "b", "a"]})
    table = table_of(lake, rows, parts=[2, 2])
    table = delete_equal(table, pa.table({"name": pa.array([None, "b"], pa.string())}), ["name"])
    assert ids(scan(table, place)) == [1, 4]
    table = append(table, rows.slice(1, 2))
    assert ids(scan(table, place)) == [1, 2, 3, 4]
    assert ids(scan(table, place, where="name is null")) == [2]


def test_a_delete_column_that_was_dropped_is_read_through_an_older_schema(
    lake: Lake, spark_session: SparkSession
) -> None:
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})
    table = delete_equal(table_of(lake, rows), pa.table({"name": ["b"]}), ["name"])
    table = update_schema(table, [DropColumn("name")])
    assert scan(table, spark_session).columns == ["id"]
    assert ids(scan(table, spark_session)) == [1, 3]


def test_columns_are_found_by_id_whatever_they_were_called(lake: Lake, spark_session: SparkSession) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "b": pa.array([0.5, 1.5], pa.float32())})
    table = table_of(lake, rows)
    table = update_schema(
        table,
        [UpdateColumnType("id", LONG), UpdateColumnType("b", DOUBLE), RenameColumn("b", "c"), AddColumn("b", LONG)],
    )
    table = append(table, pa.table({"id": pa.array([3], pa.int64()), "c": [2.5], "b": pa.array([7], pa.int64())}))
    found = sorted(tuple(row) for row in scan(table, spark_session, select=["id", "c", "b"]).collect())
    assert found == [(1, 0.5, None), (2, 1.5, None), (3, 2.5, 7)]


def test_a_scan_travels_in_time(lake: Lake, spark_session: SparkSession) -> None:
    table = lake.filled(commits=2, files=1, rows=2)
    first, second = [s.snapshot_id for s in table.metadata.snapshots]
    table = create_tag(table, "then", first)
    table = update_schema(table, [DropColumn("kind")])
    old = [0, 1]
    assert ids(scan(table, spark_session, snapshot_id=first)) == old
    assert "kind" in scan(table, spark_session, ref="then").columns
    assert ids(scan(table, spark_session, ref="then")) == old
    assert ids(scan(table, spark_session, as_of=table.metadata.snapshots[0].timestamp_ms)) == old
    assert ids(scan(table, spark_session, start_snapshot_id=first)) == [1_000_000, 1_000_001]
    assert ids(scan(table, spark_session, start_snapshot_id=second)) == []
    assert "kind" not in scan(table, spark_session).columns


def test_appended_files_that_were_compacted_since_are_still_read_incrementally(
    lake: Lake, spark_session: SparkSession
) -> None:
    from icekeep.maintenance.compact.job import compact

    table = lake.filled(commits=3, files=2, rows=2)
    ids_of = [s.snapshot_id for s in table.metadata.snapshots]
    compact(table, spark_session, options={"rewrite-all": "true"})
    table = lake.load()
    appended = ids(scan(table, spark_session, start_snapshot_id=ids_of[0], end_snapshot_id=ids_of[1]))
    assert appended == [2_000_000, 2_000_001, 3_000_000, 3_000_001]
    assert len(ids(scan(table, spark_session, start_snapshot_id=ids_of[0]))) == 8


def test_a_large_file_is_split_and_each_row_is_read_once(lake: Lake, place: SparkSource) -> None:
    properties = {
        "write.parquet.row-group-size-bytes": "4000",
        "read.split.target-size": "6000",
        "read.split.open-file-cost": "1",
    }
    rows = pa.table({"id": pa.array(range(1000), pa.int64()), "text": [f"{n * 7919 % 1000}" * 20 for n in range(1000)]})
    table = table_of(lake, rows, properties=properties)
    [file] = data_files(table)
    table = delete_positions(table, [(file.file_path, n) for n in range(0, 1000, 10)])
    tasks = plan_tasks(table, place).collect()
    assert len({task["task_id"] for task in tasks}) > 1
    assert sum(task["length"] for task in tasks) == file.file_size_in_bytes
    assert ids(scan(table, place)) == [n for n in range(1000) if n % 10]


def test_planned_tasks_say_what_is_to_be_done(lake: Lake, place: SparkSource) -> None:
    table = lake.filled(commits=1, files=2, rows=10)
    first, _ = data_files(table)
    table = delete_positions(table, [(first.file_path, 1)])
    tasks = {
        task["file_path"]: task for task in plan_tasks(table, place, where="at < '2013-02-01' and id > 3").collect()
    }
    [delete] = tasks[first.file_path]["deletes"]
    assert (delete["content"], delete["record_count"]) == (1, 1)
    # The partition (January) decides the first question.
    assert {task["residual"] for task in tasks.values()} == {"id > 3"}
    assert sum(len(task["deletes"]) for task in tasks.values()) == 1


def test_types_that_spark_lacks_are_text_or_refused_by_name(lake: Lake, spark_session: SparkSession) -> None:
    uuid = UUID(int=7)
    rows = pa.table(
        {
            "id": pa.array([uuid.bytes, None], pa.uuid()),
            "many": pa.ListArray.from_arrays(pa.array([0, None, 1]), pa.array([uuid.bytes], pa.uuid())),
            "time": pa.array([1, 2], pa.time64("us")),
            "fixed": pa.array([b"ab", None], pa.binary(2)),
        }
    )
    table = table_of(lake, rows)
    found = scan(table, spark_session, select=["id", "many", "fixed"]).collect()
    assert [tuple(row) for row in found] == [(str(uuid), [str(uuid)], b"ab"), (None, None, None)]
    with pytest.raises(UnsupportedError, match=r"column 'time': Spark has no type for time .*select"):
        scan(table, spark_session)


def test_what_is_not_there_is_refused_at_once(lake: Lake, spark_session: SparkSession) -> None:
    table = lake.filled(commits=1, files=1, rows=2)
    with pytest.raises(NotFoundError, match="no column 'colour'; the columns are id, kind"):
        scan(table, spark_session, select=["colour"])
    with pytest.raises(UsageError, match="give a list"):
        scan(table, spark_session, select="id")
    with pytest.raises(NotFoundError, match="no snapshot 5"):
        scan(table, spark_session, snapshot_id=5)


def test_an_empty_table_has_columns_and_no_rows(lake: Lake, spark_session: SparkSession) -> None:
    frame = scan(lake.create(), spark_session)
    assert (frame.columns, frame.count()) == (["id", "kind", "at", "amount", "tags"], 0)
