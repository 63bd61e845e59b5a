import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from icekeep.errors import ExpressionError, NotFoundError
from icekeep.planning.scan.plan import open_scan, planned_files
from icekeep.planning.scan.report import plan_scan
from icekeep.planning.spark.session import Engine
from kit.cases import thinned
from kit.deletes import data_files, delete_by_vector, delete_equal
from kit.lake import Lake


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


def test_entries_are_pruned_by_partition_where_a_manifest_holds_several(
    lake: Lake, spark_session: SparkSession
) -> None:
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
