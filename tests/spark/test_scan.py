"""Scans planned and read in Spark."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from icekeep.errors import ExpressionError, NotFoundError, UnsupportedError, UsageError
from icekeep.planning import deletes as delete_join
from icekeep.planning import deletes as delete_tasks
from icekeep.planning.scan import plan as scan_plan
from icekeep.planning.scan import tasks as task_groups
from icekeep.planning.scan.explain import Evidence, Explanation, explain_file
from icekeep.planning.scan.plan import open_scan, planned_files
from icekeep.planning.scan.report import plan_scan
from icekeep.planning.scan.tasks import plan_tasks
from icekeep.planning.spark.rows import arrow_table
from icekeep.planning.spark.session import Engine, SparkSource
from icekeep.spec.evolution import AddColumn, DropColumn, RenameColumn, UpdateColumnType
from icekeep.spec.types import DOUBLE, LONG
from icekeep.tables.read import read_batches, read_table, scan
from icekeep.tables.refs import create_tag
from icekeep.tables.verbs import append, create_table, update_schema
from kit.cases import thinned
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions
from kit.lake import EVENTS, Lake, events, multiset


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


def test_dropped_delete_column_is_read_by_an_older_schema(lake: Lake, spark_session: SparkSession) -> None:
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


def test_incremental_scan_reads_files_compacted_since(lake: Lake, spark_session: SparkSession) -> None:
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


def test_the_plan_of_the_table_stands_before_spark_s_own(
    spark_session: SparkSession, tmp_path: Any, capfd: Any
) -> None:
    table = Lake(tmp_path).filled(commits=3, files=2)
    rows = scan(table, spark_session, where="at >= '2013-03-01T00:00:00Z'")
    rows.explain(mode="simple")
    out = capfd.readouterr().out
    head, _, of_spark = out.partition("== Physical Plan ==")
    assert head.startswith(f"== icekeep: scan of db.events, snapshot {table.metadata.current_snapshot_id} ==")
    assert "data files   2 of 6 read" in head
    assert "MapInArrow" in of_spark
    assert rows.count() == 40
    rows.select("id").explain()
    assert "icekeep: scan" not in capfd.readouterr().out


COALESCED = "spark.sql.adaptive.coalescePartitions.minPartitionNum"
PROPERTIES = {"read__split__target_size": "1", "read__split__open_file_cost": "1"}


@pytest.fixture
def lake(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Joined with the deletes as if these were many."""
    monkeypatch.setattr(delete_join, "BROADCAST_MAX_COUNT", 0)
    return lake


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Spark's settings while the block lasts."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def scan_again(frame: DataFrame) -> pa.Table:
    """The rows of a frame, planned by Spark anew."""
    return arrow_table(frame.select("*"))


def with_deletes(lake: Lake, files: int) -> Any:
    table = lake.filled(commits=1, files=files, rows=20, **PROPERTIES)
    for file in data_files(table)[:2]:
        table = delete_positions(table, [(file.file_path, 3)])
    return table


def test_batches_are_read_locally_from_tasks_planned_by_spark(lake: Lake, in_tasks: Engine) -> None:
    table = with_deletes(lake, files=9)
    reader = read_batches(table, in_tasks, where="id >= 5")
    assert multiset(reader.read_all()) == multiset(read_table(table, where="id >= 5"))


@pytest.mark.parametrize("order", [F.asc, F.desc])
def test_task_ids_do_not_depend_on_file_order(
    lake: Lake, in_tasks: Engine, monkeypatch: pytest.MonkeyPatch, order: Callable[[str], Any]
) -> None:
    """Rows of a shuffle arrive as blocks do; a partition that is computed again must give the same tasks."""
    table = with_deletes(lake, files=9)
    planned = task_groups.planned_files_with_deletes
    monkeypatch.setattr(
        task_groups,
        "planned_files_with_deletes",
        lambda *args: planned(*args).coalesce(1).sortWithinPartitions(order("file_path")),
    )
    found = {(row["file_path"], row["start"]): row["task_id"] for row in plan_tasks(table, in_tasks).collect()}
    by_path = [found[key] for key in sorted(found)]
    assert len(set(by_path)) > 2
    assert by_path == sorted(by_path)


def test_each_task_of_a_large_scan_has_a_reader_of_its_own(lake: Lake, in_tasks: Engine) -> None:
    """Hashes of ids put several tasks into one reader and none into others."""
    table = with_deletes(lake, files=12)
    tasks = plan_tasks(table, in_tasks).groupBy("task_id").agg(F.collect_set("file_path").alias("paths")).collect()
    frame = scan(table, in_tasks, select=["id", "_file"])
    readers = (
        frame.withColumn("reader", F.spark_partition_id()).groupBy("reader").agg(F.collect_set("_file").alias("paths"))
    )
    assert sorted(sorted(row["paths"]) for row in readers.collect()) == sorted(sorted(row["paths"]) for row in tasks)
    assert len(tasks) > 4
    assert frame.rdd.getNumPartitions() == len(tasks)
    assert frame.count() == 12 * 20 - 2


@pytest.mark.nightly
def test_partitions_crowded_with_deletes_give_the_same_tasks(
    lake: Lake, in_tasks: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = with_deletes(lake, files=9)
    gone = pa.table({"kind": pa.array(["kind-1"])})
    table = delete_equal(table, gone, ["kind"], like=data_files(table)[0])
    found = []
    for crowded in (2_000, 0):
        monkeypatch.setattr(delete_tasks, "CROWDED_COUNT", crowded)
        monkeypatch.setattr(scan_plan, "CROWDED_COUNT", crowded)
        rows = plan_tasks(table, in_tasks).sort("file_path", "start").drop("task_id").collect()
        found.append(([row.asDict(recursive=True) for row in rows], multiset(arrow_table(scan(table, in_tasks)))))
        monkeypatch.setattr(scan_plan, "with_deletes", None)
    assert found[0] == found[1]
    assert {len(row["deletes"]) for row in found[0][0]} == {1, 2}
    assert found[0][1] == multiset(arrow_table(scan(table, in_tasks.spark)))


def test_a_large_scan_without_files_has_no_rows(lake: Lake, in_tasks: Engine) -> None:
    table = with_deletes(lake, files=2)
    frame: DataFrame = scan(table, in_tasks, where="id < -5")
    assert (frame.columns[0], frame.count()) == ("id", 0)


def test_replanned_join_gives_each_split_its_own_deletes(
    lake: Lake, in_tasks: Engine, spark_session: SparkSession
) -> None:
    """Tasks are counted when the scan is made, and planned again when rows are read: Spark may divide the join otherwise then."""
    table = lake.filled(commits=6, files=2, rows=20, **PROPERTIES)
    for file in data_files(table):
        table = delete_positions(table, [(file.file_path, 3)])
    settings = {"spark.sql.shuffle.partitions": "16", "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1b"}
    with configured(spark_session, settings | {COALESCED: "1"}):
        frame = scan(table, in_tasks, select=["id", "_file"])
        expected = multiset(arrow_table(frame))
        assert expected.total() == 12 * 19
        for other in ({COALESCED: "16"}, {"spark.sql.adaptive.enabled": "false"}):
            with configured(spark_session, other):
                assert multiset(scan_again(frame)) == expected


def test_a_scan_without_a_filter_reads_every_file(lake: Lake, spark_session: SparkSession) -> None:
    result = plan_scan(lake.filled(), spark_session)
    assert (result.data_files_count, result.record_count, result.total_data_files_count) == (18, 360, 18)
    assert (result.opened_manifests_count, result.skipped_manifests_count) == (6, 0)
    assert result.partitions_count == 3
    assert result.total_files_bytes == result.opened_data_files_bytes == result.data_files_bytes
    assert result.data_files_bytes == sum(f.file.file_size_in_bytes for f in lake.foreign().scan().plan_files())


def test_each_pruning_step_is_counted(lake: Lake, spark_session: SparkSession) -> None:
    table = lake.filled()
    by_summary = plan_scan(table, spark_session, where="at >= '2013-02-01T00:00:00Z' and at < '2013-03-01T00:00:00Z'")
    assert (by_summary.opened_manifests_count, by_summary.skipped_manifests_count) == (2, 4)
    assert by_summary.data_files_count == 6
    by_bounds = plan_scan(table, spark_session, where="id = 4000001")
    assert (by_bounds.opened_data_files_count, by_bounds.pruned_by_metrics_count, by_bounds.data_files_count) == (
        18,
        17,
        1,
    )


def test_partition_pruning_drops_entries_within_a_manifest(lake: Lake, spark_session: SparkSession) -> None:
    from icekeep.tables.verbs import append
    from kit.lake import events

    table = append(lake.create(), [events(n, month=1 + n) for n in range(3)])
    result = plan_scan(table, spark_session, where="at < '2013-01-31T00:00:00Z'")
    assert (result.opened_manifests_count, result.pruned_by_partition_count, result.data_files_count) == (1, 2, 1)


@pytest.mark.parametrize(
    "where",
    thinned(
        [
            "id >= 3000000 and id < 5000010",
            "kind = 'kind-1'",
            "kind is null",
            "at = '2013-03-01T05:00:00+00:00'",
            "amount > 18.00",
            "id in (1, 17000019, 5)",
            "kind >= 'kind-9'",
        ],
        2,
    ),
)
def test_the_planned_files_are_those_that_pyiceberg_plans(lake: Lake, spark_session: SparkSession, where: str) -> None:
    table = lake.filled()
    ours = {row["file_path"] for row in planned_files(open_scan(table, where=where), spark_session).collect()}
    theirs = {task.file.file_path for task in lake.foreign().scan(row_filter=where).plan_files()}
    assert ours == theirs


def test_an_empty_table_has_an_empty_plan(lake: Lake, spark_session: SparkSession) -> None:
    result = plan_scan(lake.create(), spark_session)
    assert (result.snapshot_id, result.data_files_count, result.manifests_count) == (None, 0, 0)
    assert result.total_data_files_count == 0


def test_a_filter_that_does_not_fit_is_refused(lake: Lake, spark_session: SparkSession) -> None:
    table = lake.filled(commits=1)
    with pytest.raises(NotFoundError, match="no column 'colour'"):
        plan_scan(table, spark_session, where="colour = 'red'")
    with pytest.raises(ExpressionError):
        plan_scan(table, spark_session, where="id = 'red'")
    with pytest.raises(NotFoundError, match="no branch or tag 'audit'"):
        plan_scan(table, spark_session, ref="audit")


def test_few_deletes_are_counted_without_spark_as_with_it(lake: Lake, in_tasks: Engine) -> None:
    table = lake.filled(commits=2, format_version=3)
    first, second, *_ = data_files(table)
    table = delete_by_vector(delete_by_vector(table, first.file_path, [1, 2]), second.file_path, [0])
    table = delete_equal(table, pa.table({"id": pa.array([3], pa.int64())}), ["id"], like=first)

    def no_session() -> SparkSession:
        raise AssertionError("Spark was started")

    few = plan_scan(table, no_session)
    many = plan_scan(table, in_tasks)
    assert few.deletes == many.deletes
    counts = (few.deletes.deletion_vectors_count, few.deletes.deletion_vectors_record_count)
    assert (*counts, few.deletes.equality_delete_files_count) == (2, 3, 1)
    assert 0 < few.deletes.deletion_vectors_bytes < few.deletes.equality_delete_files_bytes


def never() -> SparkSession:
    raise AssertionError("a few entries need no Spark")


@pytest.fixture
def months(lake: Lake) -> Lake:
    """One commit of a file for each of January, February and March, and one more of March alone."""
    table = append(lake.create(), [events(n, month=1 + n) for n in range(3)])
    append(table, events(3, month=3))
    return lake


def explained(lake: Lake, month: int, where: str, **version: int) -> Explanation:
    file = next(f for f in data_files(lake.load()) if f"2013-0{month}" in f.file_path)
    return explain_file(lake.load(), file.file_path, never, where=where, **version)


def asked(explanation: Explanation, step: str) -> list[Evidence]:
    return [evidence for evidence in explanation.evidence if evidence.step == step]


def test_a_file_that_is_read_shows_why_nothing_drops_it(months: Lake) -> None:
    found = explained(months, 1, "at < '2013-01-15' and id = 3")
    assert (found.is_read, found.pruned_by, found.partition) == (True, None, "at_month=2013-01")
    assert [(e.asked, e.may_match) for e in asked(found, "metrics")] == [
        ("at < '2013-01-15T00:00:00+00:00'", True),
        ("id = 3", True),
    ]
    assert asked(found, "metrics")[1].known == "0 to 19, 0 nulls of 20 rows"


def test_first_pruning_step_is_named_with_its_evidence(months: Lake) -> None:
    by_metrics = explained(months, 1, "id = 1000003")
    assert (by_metrics.is_read, by_metrics.pruned_by) == (False, "metrics")
    assert [(e.known, e.may_match) for e in asked(by_metrics, "metrics")] == [("0 to 19, 0 nulls of 20 rows", False)]
    by_partition = explained(months, 2, "at < '2013-01-15'")
    assert by_partition.pruned_by == "partition"
    assert [(e.known, e.may_match) for e in asked(by_partition, "partition")] == [("517", False)]
    assert [e.may_match for e in asked(by_partition, "manifest")] == [True]
    march = [f.file_path for f in data_files(months.load()) if "2013-03" in f.file_path]
    pruned_by = {explain_file(months.load(), path, never, where="at < '2013-01-15'").pruned_by for path in march}
    assert pruned_by == {"partition", "manifest"}


def test_the_end_of_a_path_names_a_file_if_no_other_ends_so(months: Lake) -> None:
    file = data_files(months.load())[0].file_path
    assert explain_file(months.load(), file[-60:], never).file_path == file
    with pytest.raises(UsageError, match="4 data files end with 'parquet', such as"):
        explain_file(months.load(), "parquet", never)
    with pytest.raises(NotFoundError, match=r"no manifest of this version lists a data file 'nope\.parquet'"):
        explain_file(months.load(), "nope.parquet", never)


def test_file_outside_an_incremental_scan_is_not_in_its_version(months: Lake) -> None:
    first, second = [s.snapshot_id for s in months.load().metadata.snapshots]
    file = next(f.file_path for f in data_files(months.load()) if "2013-01" in f.file_path)
    with pytest.raises(NotFoundError, match="no manifest of this version"):
        explain_file(months.load(), file, never, start_snapshot_id=first)
    assert explain_file(months.load(), file, never, snapshot_id=second).is_read
