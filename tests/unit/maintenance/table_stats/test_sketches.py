"""Statistics of columns, held against the rows: what is read, what is reused, and what is kept."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, NotFoundError, UsageError
from icekeep.formats.puffin import PuffinWriter, read_puffin_footer
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.table_stats.job import (
    ComputeTableStatsResult,
    compute_table_stats,
    plan_compute_table_stats,
)
from icekeep.spec.evolution import UpdateColumnType
from icekeep.spec.snapshots import StatisticsFile
from icekeep.spec.types import DAY_MS, LONG
from icekeep.tables.read import read_table
from icekeep.tables.verbs import append, create_table, update_schema
from kit.cases import cases
from kit.columns import column, schema_of, table_of
from kit.deletes import data_files, delete_by_vector
from kit.job_world import World
from kit.row_histories import SPECS, History, Step, in_memory, steps
from kit.runtime import no_spark


def distinct(table: Table, name: str) -> int:
    """How many values a column has, but for null and empty text; all NaN are one, and -0.0 is not 0.0."""
    values = read_table(table, select=[name])[name].to_pylist()
    return len({repr(value) for value in values if value is not None and value not in ("", b"")})


def check(table: Table, result: ComputeTableStatsResult) -> None:
    """The result says what the rows do, and the metadata and the file say the same."""
    assert {one.column: one.distinct_values_count for one in result.columns} == {
        one.column: distinct(table, one.column) for one in result.columns
    }
    now = table.refresh()
    [file] = [one for one in now.metadata.statistics if one.statistics_path == result.statistics_file]
    told = {blob["fields"][0]: int(blob["properties"]["ndv"]) for blob in file.blob_metadata}
    assert told == {one.field_id: one.distinct_values_count for one in result.columns}
    footer = read_puffin_footer(now.storage, file.statistics_path)
    assert {blob.fields[0]: int(blob.properties["ndv"]) for blob in footer.blobs} == told


@given(
    history=st.lists(steps(), min_size=2, max_size=3),
    version=st.sampled_from((1, 2, 3)),
    spec=st.sampled_from(SPECS),
)
@cases(40)
def test_estimates_of_few_values_are_their_number(history: list[list[Step]], version: int, spec: Any) -> None:
    """Whatever is read, reused or gone on from, after appends, deletes of each kind and changes of columns and specs."""
    made = History(in_memory(), version, spec)
    for part in history:
        made.went_on(part)
        result = compute_table_stats(made.table, no_spark)
        if result.statistics_file is not None:
            snapshot = made.table.metadata.snapshot(result.snapshot_id or 0)
            if snapshot.schema_id in (None, made.table.metadata.current_schema_id):
                check(made.table, result)


def world(files: int = 3, **properties: str) -> World:
    made = World(3, [("at", "month")], **properties)
    for number in range(files):
        made.append(number, month=1 + number % 2)
    return made


def test_appends_and_compactions_are_gone_on_from() -> None:
    made = world()
    first = compute_table_stats(made.table, no_spark)
    assert (first.read_files_count, first.base_snapshot_id) == (3, None)
    made.append(7)
    compact(made.table, no_spark, options={"rewrite-all": "true"})
    planned = plan_compute_table_stats(made.table, no_spark)
    second = compute_table_stats(made.table, no_spark)
    assert (planned.base_snapshot_id, planned.read_files_count) == (first.snapshot_id, 1)
    assert (second.base_snapshot_id, second.read_files_count, second.reused_files_count) == (first.snapshot_id, 1, 0)
    check(made.table, second)
    compact(made.table, no_spark, options={"rewrite-all": "true"})
    third = compute_table_stats(made.table, no_spark)
    assert (third.base_snapshot_id, third.read_files_count) == (second.snapshot_id, 0)
    check(made.table, third)


def test_after_deletes_only_files_that_they_reach_are_read() -> None:
    made = world()
    compute_table_stats(made.table, no_spark)
    delete_by_vector(made.table, data_files(made.table)[0].file_path, [0, 1])
    result = compute_table_stats(made.table, no_spark)
    assert (result.base_snapshot_id, result.read_files_count, result.reused_files_count) == (None, 1, 2)
    check(made.table, result)


def test_files_that_are_read_in_splits_are_kept_whole() -> None:
    made = world(1, read__split__target_size="1000", write__parquet__row_group_size_bytes="500")
    made.append(9, rows=3000)
    first = compute_table_stats(made.table, no_spark)
    check(made.table, first)
    delete_by_vector(made.table, min(data_files(made.table), key=lambda f: f.record_count).file_path, [0])
    result = compute_table_stats(made.table, no_spark)
    assert (result.read_files_count, result.reused_files_count) == (1, 1)
    check(made.table, result)


@pytest.mark.parametrize("damage", ["cut short", "gone"])
def test_kept_sketches_that_cannot_be_read_are_made_again(damage: str) -> None:
    made = world()
    compute_table_stats(made.table, no_spark)
    delete_by_vector(made.table, data_files(made.table)[0].file_path, [0])
    [kept] = [location for location in made.memory.files if "/sketches/" in location]
    if damage == "gone":
        made.memory.delete_many([kept])
    else:
        data, at = made.memory.files[kept]
        made.memory.files[kept] = (data[:60], at)
    result = compute_table_stats(made.table, no_spark)
    assert (result.read_files_count, result.reused_files_count) == (3, 0)
    check(made.table, result)


def test_sketches_of_files_that_are_gone_are_removed() -> None:
    made = world()
    compute_table_stats(made.table, no_spark)
    compact(made.table, no_spark, options={"rewrite-all": "true"})
    delete_by_vector(made.table, data_files(made.table)[0].file_path, [0])
    compute_table_stats(made.table, no_spark)
    assert len([location for location in made.memory.files if "/sketches/" in location]) == 1
    [left] = [location for location in made.memory.files if "/sketches/" in location]
    named = {blob.properties["data-file"] for blob in read_puffin_footer(made.table.storage, left).blobs}
    assert named <= {file.file_path for file in data_files(made.table)}


def test_a_column_of_another_type_is_read_again() -> None:
    by = in_memory()
    schema = schema_of(
        column(1, "id", LONG, required=True), column(2, "number", msgspec.structs.replace(LONG, name="int"))
    )
    table = create_table(by.catalog, ("db", "t"), schema)
    table = append(table, [table_of(schema, [{"id": n, "number": n % 5} for n in range(20)])])
    compute_table_stats(table, no_spark)
    table = update_schema(table.refresh(), [UpdateColumnType("number", LONG)])
    table = append(table, [table_of(table.metadata.schema, [{"id": n, "number": n % 9} for n in range(20, 40)])])
    result = compute_table_stats(table, no_spark)
    assert (result.base_snapshot_id, result.reused_files_count, result.read_files_count) == (None, 0, 2)
    check(table, result)
    assert [one.distinct_values_count for one in result.columns] == [40, 9]


def test_other_statistics_of_the_snapshot_are_carried_over() -> None:
    made = world()
    first = compute_table_stats(made.table, no_spark, columns=["kind"])
    table = made.table
    location = f"{table.metadata.location}/metadata/foreign.stats"
    with PuffinWriter(table.storage, location, {"created-by": "somebody"}) as writer:
        writer.add(b"what is it", "a-kind-of-its-own", fields=(1, 2), snapshot_id=5, sequence_number=6)
    size, footer = writer.length_bytes, writer.footer_bytes
    file = StatisticsFile(
        snapshot_id=first.snapshot_id or 0,
        statistics_path=location,
        file_size_in_bytes=size,
        file_footer_size_in_bytes=footer,
    )
    commit(table, ChangeStatistics(updates=(file,)))
    result = compute_table_stats(made.table, no_spark, columns=["kind", "id"])
    [now] = made.table.metadata.statistics
    assert [(blob["type"], blob["fields"]) for blob in now.blob_metadata] == [
        ("a-kind-of-its-own", [1, 2]),
        ("apache-datasketches-theta-v1", [2]),
        ("apache-datasketches-theta-v1", [1]),
    ]
    assert [one.column for one in result.columns] == ["kind", "id"]
    again = compute_table_stats(made.table, no_spark, columns=["id"])
    assert (again.is_idle, "already" in again.reason) == (True, True)


def test_statistics_that_others_set_meanwhile_stay() -> None:
    made = world()

    def before(operation: str, location: str) -> None:
        if operation == "write" and location.endswith(".stats"):
            made.storage.before = lambda operation, location: None
            compute_table_stats(made.table, no_spark, columns=["kind"])

    made.storage.before = before
    with pytest.raises(ConflictError, match="others have set the statistics of snapshot"):
        compute_table_stats(made.table, no_spark)
    [file] = made.table.metadata.statistics
    assert [blob["fields"] for blob in file.blob_metadata] == [[2]]
    assert [location for location in made.memory.files if location.endswith(".stats")] == [file.statistics_path]


def test_columns_that_cannot_be_sketched_are_refused() -> None:
    made = world()
    with pytest.raises(NotFoundError, match=r"no column 'tags\.element'"):
        compute_table_stats(made.table, no_spark, columns=["tags.element"])
    with pytest.raises(UsageError, match="column 'tags' is of type list"):
        plan_compute_table_stats(made.table, no_spark, columns=["tags"])
    with pytest.raises(UsageError, match="name one column at least"):
        compute_table_stats(made.table, no_spark, columns="kind,")


def test_expiration_collects_the_files_of_snapshots_that_go() -> None:
    made = world()
    first = compute_table_stats(made.table, no_spark).statistics_file
    made.append(7)
    second = compute_table_stats(made.table, no_spark).statistics_file
    made.runtime.pass_ms(10 * DAY_MS)
    expire_snapshots(made.table, no_spark, older_than="0s", retain_last=1, trash=0)
    assert first not in made.memory.files
    assert second in made.memory.files
    assert [file.statistics_path for file in made.table.metadata.statistics] == [second]
