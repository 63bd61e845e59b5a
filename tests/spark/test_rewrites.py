"""Rewrites of data files in Spark's tasks."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from msgspec.structs import replace
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType as SparkStruct

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import JobFailedError, MissingFileError
from icekeep.events import SILENT, Warned
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.deletes.read import write_position_deletes
from icekeep.formats.parquet.footer import read_footer
from icekeep.formats.parquet.thrift import Struct
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.row_moves import moves_locations
from icekeep.formats.sort.encode import Curve, Ordering
from icekeep.formats.sort.keys import ranges_of_files, sample_keys, sort_keys, split_points
from icekeep.formats.writer import DataFileWriter
from icekeep.maintenance.compact import job as compaction
from icekeep.maintenance.compact import key_ranges
from icekeep.maintenance.compact import method as methods
from icekeep.maintenance.compact import sort_tasks as shuffle
from icekeep.maintenance.compact.job import compact, plan_compact
from icekeep.maintenance.compact.options import RewriteMethod
from icekeep.maintenance.compact.plan import GroupFile, RewritePlan, group_files
from icekeep.maintenance.compact.sort_tasks import shuffled
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.orphans.listing import Look, keeping_rows
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.planning.spark import workers
from icekeep.planning.spark.session import LIMITS, Engine
from icekeep.planning.spark.workers import executor_slots
from icekeep.runtime import SYSTEM
from icekeep.spec.collections import PositionSet
from icekeep.spec.evolution import RemovePartitionField
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import UNPARTITIONED, PartitionSpec, build_spec
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID, Schema
from icekeep.spec.sorting import build_sort_order
from icekeep.spec.types import DAY_MS, DOUBLE, INT, LONG, STRING, TIMESTAMP, UNKNOWN, ListType, NestedField, StructType
from icekeep.spec.values import value_from_bytes
from icekeep.storage.local.storage import LocalStorage
from icekeep.storage.open import open_storage
from icekeep.tables.verbs import append, update_spec
from kit.cases import cases, thinned
from kit.columns import EVERY_TYPE, column, schema_of, table_of
from kit.columns import rows as column_rows
from kit.data_files import options_for, read_table
from kit.deletes import data_files
from kit.lake import Lake, events
from kit.runtime import limited
from kit.spark_jobs import last_job
from kit.spliced import MOVING, OldFile, check_moves, deleting, moving_task, old_file, put_table, stitched
from spark.test_compaction_plans import IN_TASKS, appended, bounded, described, equalities, planned
from spark.test_compaction_plans import with_deletes as described_with_deletes
from unit.maintenance.compact.test_compact_methods import ALL, rows, with_deletes, written


@pytest.mark.parametrize(
    ("format_version", "order"),
    thinned(
        [(3, None), (3, "id DESC"), (2, "zorder(id, amount)"), (3, "zorder(id, amount)"), (2, "id DESC"), (2, None)], 2
    ),
)
def test_compaction_in_tasks_changes_no_row(
    lake: Lake, spark_session: SparkSession, format_version: int, order: str | None
) -> None:
    table = with_deletes(lake, format_version)
    lineage = () if format_version == 2 else ("_row_id", "_last_updated_sequence_number")
    before = rows(table, *lineage)
    result = compact(table, spark_session, sort_order=order, options=ALL, verify=True)
    assert (result.rewritten_data_files_count, result.added_data_files_count) == (9, 3)
    assert result.deleted_records_count == 16
    assert rows(lake.load(), *lineage) == before
    assert compact(lake.load(), spark_session, sort_order=order).rewritten_data_files_count == 0


@pytest.mark.parametrize(
    "job",
    [
        lambda table, spark: compact(table, spark, options=ALL),
        convert_equality_deletes,
        lambda table, spark: rewrite_position_deletes(table, spark, options={"rewrite-all": "true"}),
    ],
    ids=["compact", "convert_equality_deletes", "rewrite_position_deletes"],
)
def test_small_jobs_start_no_spark_job(
    lake: Lake, spark_session: SparkSession, job: Callable[[Table, Engine], Any]
) -> None:
    table = with_deletes(lake)
    before, jobs = rows(table), last_job()
    job(table, Engine(spark=spark_session, limits=LIMITS))
    changed = lake.load()
    assert changed.metadata_location != table.metadata_location
    assert (rows(changed), last_job()) == (before, jobs)
    # So a test that counts jobs can fail.
    compact(changed, spark_session, options=ALL)
    assert last_job() > jobs


@pytest.mark.parametrize("partial", thinned(["true", "false"], 2))
def test_a_task_that_fails_leaves_none_of_its_groups_files(
    lake: Lake, spark_session: SparkSession, partial: str
) -> None:
    table = with_deletes(lake)
    broken = lake.directory / "warehouse" / data_files(table)[0].file_path.partition("/warehouse/")[2]
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    before, on_disk = table.metadata.current_snapshot_id, lake.content_on_disk()
    options = ALL | {"partial-progress.enabled": partial}
    if partial == "true":
        result = compact(table, spark_session, options=options)
        assert (result.status, result.added_data_files_count, result.failed_data_files_count) == ("partial", 2, 3)
        new = {path for path in lake.content_on_disk() - on_disk if "/data/" in str(path)}
        assert len(new) == 2
    else:
        with pytest.raises(JobFailedError, match="its files are as they were and the new files are removed"):
            compact(table, spark_session, options=options)
        assert (lake.load().metadata.current_snapshot_id, lake.content_on_disk()) == (before, on_disk)


@pytest.mark.parametrize(("options", "jobs_count"), [({}, 1), ({"max-concurrent-file-group-rewrites": "2"}, 3)])
def test_all_groups_are_one_spark_job(
    lake: Lake,
    spark_session: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    jobs_count: int,
) -> None:
    """Unless it is said how many go at a time."""
    execution: Any = import_module("icekeep.maintenance.compact.execute")
    table, real, jobs = lake.filled(), execution.finished_tasks, []

    def counted(spark: SparkSession, payloads: Any, **named: Any) -> Any:
        jobs.append(len(payloads))
        return real(spark, payloads, **named)

    monkeypatch.setattr(execution, "finished_tasks", counted)
    result = compact(table, spark_session, options=ALL | options)
    assert (result.rewritten_data_files_count, result.added_data_files_count) == (18, 3)
    assert (len(jobs), sum(jobs)) == (jobs_count, 3)


@pytest.mark.parametrize("format_version", thinned([3, 2], 2))
def test_deletes_are_rewritten_in_tasks(
    lake: Lake, spark_session: SparkSession, in_tasks: Engine, format_version: int
) -> None:
    table = with_deletes(lake, format_version)
    before = rows(table)
    result = rewrite_position_deletes(table, in_tasks, options={"rewrite-all": "true"}, convert_equality_deletes=True)
    assert result.conversion is not None
    assert (result.status, result.conversion.converted_equality_delete_files_count) == ("done", 1)
    assert rows(lake.load()) == before
    assert convert_equality_deletes(lake.load(), spark_session).is_idle


@pytest.mark.parametrize(("is_local", "parts"), thinned([(True, 7), (True, 1), (False, 1)], 2))
def test_key_ranges_split_a_group_over_threads_or_tasks(
    lake: Lake, spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch, is_local: bool, parts: int
) -> None:
    """Into as many files as was planned, however many parts of the rows fit in memory, each by itself."""
    table = append(lake.create(partition_by=()), [events(n, 500) for n in range(8)])
    if not is_local:
        monkeypatch.setattr(workers, "is_local", lambda _: False)
    if parts > 1:
        size_bytes = sum(file.file_size_in_bytes for file in data_files(table))
        monkeypatch.setattr(compaction, "BUDGET_BYTES", methods.ARROW_GROWTH * size_bytes // parts + 1)
    before = rows(table)
    target = {"target-file-size-bytes": "12000"}
    engine = spark_session if is_local else limited(spark_session, sort_sample_bytes=0)
    plan = plan_compact(table, engine, sort_order="id", options=ALL | target)
    result = compact(table, engine, sort_order="id", options=ALL | target)
    assert result.added_data_files_count == plan.added_data_files_count > 1
    ranges = sorted((file["id"][0].as_py(), file["id"][-1].as_py()) for file in written(lake.load()))
    assert all(high < low for (_, high), (low, _) in pairwise(ranges))
    assert rows(lake.load()) == before


@pytest.mark.parametrize("order", thinned(["kind NULLS LAST, id", "hilbert(id, amount)"], 2))
def test_a_group_above_the_budget_goes_through_sparks_shuffle(
    lake: Lake, spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    table = with_deletes(lake, 3)
    before = rows(table, "_row_id")
    monkeypatch.setattr(compaction, "BUDGET_BYTES", 1000)
    plan = plan_compact(table, spark_session, sort_order=order, options=ALL)
    assert {group.method for group in plan.groups} == {RewriteMethod.SHUFFLE}
    result = compact(table, spark_session, sort_order=order, options=ALL)
    assert result.deleted_records_count == 16
    assert rows(lake.load(), "_row_id") == before


def test_many_partitions_on_one_machine_do_not_shrink_memory(
    lake: Lake, spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `spark.default.parallelism=400` each task had the 400th part of the machine, and refused files."""
    table = append(lake.create(partition_by=()), [events(n, 500) for n in range(8)])
    tasks: list[Any] = []
    module = import_module("icekeep.maintenance.compact.execute")
    whole = module.group_task

    def noted(*arguments: Any) -> Any:
        tasks.append(whole(*arguments))
        return tasks[-1]

    monkeypatch.setattr(module, "group_task", noted)
    monkeypatch.setattr(SparkContext, "defaultParallelism", property(lambda _: 400))
    result = compact(table, spark_session, sort_order="id", options=ALL | {"target-file-size-bytes": "12000"})
    assert {(task.slots, task.is_local) for task in tasks} == {(executor_slots(spark_session), True)}
    # As many threads at once as there are cores, not 400.
    assert result.added_data_files_count < 100


STORAGE = open_storage({})
"""Local files: Spark's workers read them as well."""


ODD_FIELDS = (column(202, "x.y", INT), column(204, "X.Y", TIMESTAMP), column(205, "x y", STRING))
HELD = schema_of(*EVERY_TYPE.fields, column(200, "KEY", STRING), column(201, "odd `", StructType(ODD_FIELDS)))
"""What files hold, under names of which Spark takes some for one."""

ODD = schema_of(
    *HELD.fields[:-1],
    column(201, "odd `", StructType((*ODD_FIELDS, column(206, "no", UNKNOWN)))),
    column(207, "none", UNKNOWN),
)
"""The same and columns that no file holds."""


def pieces_of(directory: Path, schema: Schema, tables: list[pa.Table], **facts) -> tuple[FilePiece, ...]:
    numbers = count()
    pieces = []
    for table in tables:
        location = (directory / f"old-{next(numbers)}.parquet").as_uri()
        with DataFileWriter(STORAGE, schema, options_for(), lambda location=location: location) as writer:
            writer.write(table)
            (file,) = writer.close()
        piece = FilePiece(
            location=location, record_count=file.record_count, size_bytes=file.file_size_in_bytes, **facts
        )
        pieces.append(piece)
    return tuple(pieces)


def task_of(directory: Path, pieces, schema: Schema, ordering: Ordering, spec: PartitionSpec = UNPARTITIONED, **facts):
    return RewriteTask(
        pieces=pieces,
        schema=schema,
        specs={0: UNPARTITIONED, spec.spec_id: spec},
        spec_id=spec.spec_id,
        table_location=directory.as_uri(),
        properties={},
        target_file_size_bytes=2**29,
        ordering=ordering,
        operation_id="run",
        **facts,
    )


def by(schema: Schema, *columns: str) -> Ordering:
    return Ordering(fields=build_sort_order(schema, columns).fields)


def text_of(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


def files_by_range(ran) -> list[list[DataFile]]:
    """The new files of each task, in the order of the ranges."""
    files = [file for done in ran.done for file in done.outcome.files]
    numbers = {file.file_path: int(file.file_path.rsplit("/", 1)[1].split("-")[0]) for file in files}
    return [
        [f for f in files if numbers[f.file_path] == number] for number in range(max(numbers.values(), default=-1) + 1)
    ]


def assert_ordered(ran, schema: Schema, ordering: Ordering) -> pa.Table:
    """Ranges follow each other and column_rows in each of them as well; gives all column_rows."""
    assert not ran.errors
    tables = [read_table(STORAGE, file.file_path, schema) for files in files_by_range(ran) for file in files]
    together = pa.concat_tables(tables)
    keys = sort_keys(together, ordering, schema).to_pylist()
    assert all(a <= b for a, b in pairwise(keys))
    return together


@cases(3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=column_rows(HELD, max_size=40))
def test_rows_of_every_type_arrive_unchanged(tmp_path_factory, spark_session: SparkSession, data) -> None:
    directory = tmp_path_factory.mktemp("table")
    schema = ODD
    tables = [table_of(schema, data[start : start + 9]) for start in range(0, len(data), 9)]
    ordering = by(schema, "c10_string", "key")
    points = split_points([sample_keys(tables, ordering, schema)], 3)
    whole = task_of(directory, pieces_of(directory, schema, tables), schema, ordering)
    ran = shuffled(whole, points, None, spark_session, STORAGE)
    assert text_of(assert_ordered(ran, schema, ordering)) == text_of(pa.concat_tables(tables))
    assert sum(done.outcome.live_count for done in ran.done) == len(data)


EVENTS = schema_of(column(1, "id", LONG), column(2, "kind", STRING))


def events_of(ids: range) -> pa.Table:
    return table_of(EVENTS, [{"id": id_ * 7919 % 1000, "kind": f"kind-{id_ % 5}"} for id_ in ids])


@pytest.mark.parametrize("points_count", thinned([3, 0], 2))
def test_deleted_rows_stay_deleted_and_reads_count_once(
    tmp_path: Path, spark_session: SparkSession, points_count: int
) -> None:
    tables = [events_of(range(start, start + 100)) for start in range(0, 1000, 100)]
    pieces = pieces_of(tmp_path, EVENTS, tables, deletes=PositionSet([0]))
    pairs = [(piece.location, position) for piece in pieces for position in range(0, 100, 10)]
    deletes = write_position_deletes(STORAGE, (tmp_path / "deletes.parquet").as_uri(), "PARQUET", pairs, spec_id=0)
    ordering = by(EVENTS, "id")
    points = split_points([sample_keys(tables, ordering, EVENTS)], points_count + 1)
    whole = task_of(tmp_path, pieces, EVENTS, ordering, delete_files=(deletes,))
    counts = [2] * (points_count + 1)
    ran = shuffled(whole, points, counts, spark_session, STORAGE)
    expected = pa.concat_tables([t.filter(pa.array([n % 10 != 0 for n in range(100)])) for t in tables])
    assert text_of(assert_ordered(ran, EVENTS, ordering)) == text_of(expected)
    assert sum(done.outcome.read_count for done in ran.done) == 1000
    assert sum(done.outcome.live_count for done in ran.done) == 900
    assert all(done.cpu_ms >= 0 and done.outcome.peak_bytes > 0 for done in ran.done)
    assert [len(files) for files in files_by_range(ran)] == counts


def test_each_range_makes_as_many_files_as_it_is_told(tmp_path: Path, spark_session: SparkSession) -> None:
    tables = [events_of(range(1000))]
    ordering = by(EVENTS, "id")
    points, counts = ranges_of_files([sample_keys(tables, ordering, EVENTS)], 4, 3, finer=2)
    whole = task_of(tmp_path, pieces_of(tmp_path, EVENTS, tables), EVENTS, ordering)
    ran = shuffled(whole, points, counts, spark_session, STORAGE)
    assert text_of(assert_ordered(ran, EVENTS, ordering)) == text_of(tables[0])
    assert sorted(counts) == [1, 1, 2]
    assert [[file.record_count for file in files] for files in files_by_range(ran)] == [[250] * n for n in counts]


def test_ranges_that_no_row_is_in_make_no_file(tmp_path: Path, spark_session: SparkSession) -> None:
    ordering = by(EVENTS, "id")
    # As wide as a key, above that of any row.
    nowhere = [bytes([first]) + bytes(8) for first in (2, 3, 4)]
    pieces = pieces_of(tmp_path, EVENTS, [events_of(range(10))])
    ran = shuffled(task_of(tmp_path, pieces, EVENTS, ordering), nowhere, None, spark_session, STORAGE)
    assert text_of(assert_ordered(ran, EVENTS, ordering)) == text_of(events_of(range(10)))
    assert sum(len(done.outcome.files) for done in ran.done) == 1


def test_rows_keep_their_lineage(tmp_path: Path, spark_session: SparkSession) -> None:
    tables = [events_of(range(start, start + 10)) for start in (0, 10, 20)]
    first, second, third = pieces_of(tmp_path, EVENTS, tables)
    pieces = (
        replace(first, first_row_id=100, data_sequence_number=4),
        # Of a file that is older than lineage.
        second,
        replace(third, first_row_id=500, data_sequence_number=9),
    )
    ordering = Ordering(curve=Curve(kind="hilbert", column_ids=(1, 2)))
    points = split_points([sample_keys(tables, ordering, EVENTS)], 2)
    ran = shuffled(task_of(tmp_path, pieces, EVENTS, ordering), points, None, spark_session, STORAGE)
    wanted = schema_of(*EVENTS.fields, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)
    found = pa.concat_tables(
        [
            read_table(STORAGE, file.file_path, wanted, first_row_id=9999, data_sequence_number=99)
            for done in ran.done
            for file in done.outcome.files
        ]
    )
    lineage = {
        id_: (row_id, number)
        for table, start, number in ((tables[0], 100, 4), (tables[2], 500, 9))
        for row_id, id_ in enumerate(table["id"].to_pylist(), start=start)
    }
    rows_found = list(zip(*(found.column(n).to_pylist() for n in (0, 2, 3)), strict=True))
    assert len(rows_found) == 30
    assert {id_: (row_id, number) for id_, row_id, number in rows_found if id_ in lineage} == lineage


def test_rows_for_another_spec_are_written_by_its_partitions(tmp_path: Path, spark_session: SparkSession) -> None:
    spec = replace(build_spec(EVENTS, [("kind", "identity", None)]), spec_id=1)
    ordering = replace(by(EVENTS, "id"), partition_by=spec)
    tables = [events_of(range(start, start + 50)) for start in (0, 50)]
    points = split_points([sample_keys(tables, ordering, EVENTS)], 2)
    whole = task_of(tmp_path, pieces_of(tmp_path, EVENTS, tables), EVENTS, ordering, spec)
    ran = shuffled(whole, points, None, spark_session, STORAGE)
    files = [file for done in ran.done for file in done.outcome.files]
    # Five partitions, one of which the cut may go through.
    assert len(files) in (5, 6)
    for file in files:
        found = read_table(STORAGE, file.file_path, EVENTS)
        assert file.spec_id == 1
        assert set(found["kind"].to_pylist()) == set(file.partition)
        assert found["id"].to_pylist() == sorted(found["id"].to_pylist())
    together = pa.concat_tables([read_table(STORAGE, file.file_path, EVENTS) for file in files])
    assert text_of(together) == text_of(pa.concat_tables(tables))


def test_a_file_that_is_gone_is_the_error_and_nothing_is_written(tmp_path: Path, spark_session: SparkSession) -> None:
    pieces = pieces_of(tmp_path, EVENTS, [events_of(range(10)), events_of(range(10, 20))])
    (tmp_path / "old-1.parquet").unlink()
    ran = shuffled(task_of(tmp_path, pieces, EVENTS, by(EVENTS, "id")), [], None, spark_session, STORAGE)
    assert [type(error) for error in ran.errors] == [MissingFileError]
    assert not ran.done
    assert [path.name for path in tmp_path.iterdir()] == ["old-0.parquet"]


def test_bad_property_fails_every_task_and_leaves_no_files(tmp_path: Path, spark_session: SparkSession) -> None:
    pieces = pieces_of(tmp_path, EVENTS, [events_of(range(10)), events_of(range(10, 20))])
    whole = replace(
        task_of(tmp_path, pieces, EVENTS, by(EVENTS, "id")), properties={"write.parquet.compression-codec": "shiny"}
    )
    points = split_points([sample_keys([events_of(range(20))], by(EVENTS, "id"), EVENTS)], 2)
    ran = shuffled(whole, points, None, spark_session, STORAGE)
    assert len(ran.errors) == 2
    assert all("shiny" in str(error) for error in ran.errors)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old-0.parquet", "old-1.parquet"]


def test_a_not_a_number_keeps_its_bits(tmp_path: Path, spark_session: SparkSession) -> None:
    schema = schema_of(column(1, "id", LONG), NestedField(field_id=2, name="x", type=DOUBLE, required=False))
    odd = pa.array([0x7FF8_0000_0000_0001, -1, -(2**63), 0], pa.int64()).view(pa.float64())
    table = pa.table([pa.array(range(4), pa.int64()), odd], schema=arrow_schema(schema))
    ran = shuffled(
        task_of(tmp_path, pieces_of(tmp_path, schema, [table]), schema, by(schema, "id")),
        [],
        None,
        spark_session,
        STORAGE,
    )
    found = assert_ordered(ran, schema, by(schema, "id"))
    assert found["x"].combine_chunks().view(pa.int64()).to_pylist() == [0x7FF8_0000_0000_0001, -1, -(2**63), 0]


@pytest.mark.parametrize(
    ("ordering", "files_count"),
    [(by(MOVING, "key"), 3), (Ordering(partition_by=UNPARTITIONED), 1)],
    ids=["sorted", "moved to no partitions"],
)
@pytest.mark.parametrize("max_bytes", thinned([0, 2**20], 2))
def test_tasks_tell_where_each_row_went_that_others_read(
    tmp_path: Path,
    spark_session: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    max_bytes: int,
    ordering: Ordering,
    files_count: int,
) -> None:
    monkeypatch.setattr(shuffle, "MAX_REPORTED_BYTES", max_bytes)
    table = tmp_path.as_uri()
    data = [old_file(STORAGE, number, 50, directory=f"{table}/old") for number in range(3)]
    files = [
        OldFile(file=data[0], named=frozenset({0, 3, 49, 77})),
        OldFile(file=data[1], keys=frozenset({2, 5})),
        OldFile(file=data[2], named=frozenset({8}), has_vector=True, keys=frozenset({2, 5})),
    ]
    deletes, pieces = deleting(STORAGE, files, f"{table}/deletes")
    tables = [read_table(STORAGE, file.file_path, MOVING) for file in data]
    points = split_points([sample_keys(tables, ordering, MOVING)], files_count)
    ran = shuffled(moving_task(pieces, deletes, table, ordering=ordering), points, None, spark_session, STORAGE)
    assert not ran.errors
    outcomes = [done.outcome for done in ran.done]
    assert len([outcome for outcome in outcomes if outcome.files]) == files_count
    check_moves(STORAGE, outcomes, files)
    stored = {location for outcome in outcomes for location in outcome.moves.stored}
    assert bool(stored) == (max_bytes == 0)
    kept = {path.as_uri() for path in (tmp_path / ".icekeep/runs/run").iterdir()}
    assert kept == set(moves_locations(outcomes)) > stored


LIMIT = 12


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ranges, "PLANNED_FILES_COUNT", LIMIT)


def crowded(lake: Lake, *, count: int = 40) -> Table:
    """Two partitions: one of many files, whose keys overlap by twos, in no order of their paths; and one of few."""
    table = lake.create(partition_by=(("kind", "identity"),))
    order = np.random.default_rng(7).permutation(count).tolist()
    files = [
        described(table, f"{name:03d}", 100, ("a",), **bounded(10 * place, 10 * place + 15, "a"))
        for name, place in enumerate(order)
    ]
    few = [described(table, f"few-{n}", 100, ("b",), **bounded(n, n + 5, "b")) for n in range(7)]
    table = appended(table, [*files[: count // 2], *few])
    table = appended(table, files[count // 2 :])
    return described_with_deletes(table, equalities(table, "e", ("a",)))


def files_of(found: RewritePlan, table: Table) -> list[tuple[GroupFile, ...]]:
    return [group_files(group, table.storage).files for group in found.groups]


def all_in_tasks(table: Table, spark: SparkSession, order: str | None, **given: Any) -> RewritePlan:
    return planned(table, spark, order, limit=IN_TASKS, rewrite_all="true", **given)


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("order", thinned(["zorder(id, kind)", "id", "id DESC"], 3))
def test_crowded_partition_is_split_without_sharing_files(
    lake: Lake, spark_session: SparkSession, order: str | None
) -> None:
    table = crowded(lake)
    found = all_in_tasks(table, spark_session, order)
    groups = files_of(found, table)
    by_partition = Counter(group.partition for group in found.groups)
    assert by_partition == {"kind=a": 4, "kind=b": 1}
    assert all(len(files) < LIMIT * 1.5 for files in groups)
    names = [file.file_path.rsplit("/", 1)[-1] for files in groups for file in files]
    assert sorted(names) == sorted([*(f"{n:03d}" for n in range(40)), *(f"few-{n}" for n in range(7))])
    # Each knows its deletes, which others share.
    assert {len(file.deletes) for files in groups for file in files if file.partition == files[0].partition} == {0, 1}
    assert found.notes == (
        "partition 'kind=a' has 40 data files, more than the 12 that one task plans: they are planned as 4 ranges of the sort "
        "order, each by itself; nothing is to be done, but finer partitions would be planned faster",
    )


@pytest.mark.usefixtures("few_files")
def test_ranges_of_a_sort_follow_one_another_in_its_keys(lake: Lake, spark_session: SparkSession) -> None:
    table = crowded(lake)
    found = all_in_tasks(table, spark_session, "id")
    bounds = {}
    for manifest in table_entries(table):
        bounds[manifest.file_path] = value_from_bytes(LONG, manifest.lower_bounds[1])
    ranges_of_a = [
        [bounds[file.file_path] for file in group_files(group, table.storage).files]
        for group in found.groups
        if group.partition == "kind=a"
    ]
    in_order = [key for keys in ranges_of_a for key in keys]
    assert in_order == sorted(in_order)
    assert len(in_order) == 40


def table_entries(table: Table) -> list[Any]:
    reader = ManifestReader(table.storage)
    manifests = reader.manifests(table.metadata.current_snapshot)
    entries = [entry for m in manifests for entry in reader.entries(m, table.metadata)]
    return [entry.data_file for entry in entries if entry.data_file.content == 0]


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("order", thinned([None, "id"], 2))
def test_files_whose_keys_nobody_knows_are_cut_by_their_paths(
    lake: Lake, spark_session: SparkSession, order: str | None
) -> None:
    table = lake.create(partition_by=())
    table = appended(table, [described(table, f"{n:03d}", 100) for n in range(50)])
    found = all_in_tasks(table, spark_session, order)
    assert len(found.groups) == 5
    assert f"planned as 5 ranges of {'paths' if order is None else 'the sort order'}, " in found.notes[0]
    paths = [file.file_path for files in files_of(found, table) for file in files]
    assert paths == sorted(paths)
    assert len(paths) == 50


@pytest.mark.usefixtures("few_files")
def test_a_limit_of_files_cuts_a_group_of_one_range(lake: Lake, spark_session: SparkSession) -> None:
    table = crowded(lake)
    whole = all_in_tasks(table, spark_session, "id")
    first, second = whole.groups[:2]
    count = first.files_count + second.files_count - 3
    found = all_in_tasks(table, spark_session, "id", run="2", max_files_to_rewrite=str(count))
    assert [group.files_count for group in found.groups] == [first.files_count, second.files_count - 3]
    assert files_of(found, table)[1] == files_of(whole, table)[1][:-3]


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("order", thinned(["id", None, "hilbert(id, amount)"], 3))
def test_rows_stay_and_the_operator_is_told(
    lake: Lake, spark_session: SparkSession, in_tasks: Engine, order: str | None
) -> None:
    table = lake.create(partition_by=())
    for number in range(4):
        table = append(table, [events(number * 9 + n, 5) for n in range(9)])
    rows, told = lake.rows(), Told()
    options = {"rewrite-all": "true"}
    preview = plan_compact(table, in_tasks, sort_order=order, options=options, listener=told)
    assert len(told.warnings) == 1
    result = compact(table, in_tasks, sort_order=order, options=options, listener=told)
    assert (preview.rewritten_data_files_count, result.rewritten_data_files_count) == (36, 36)
    assert len(preview.groups) == 3
    assert [warning for warning in told.warnings if "36 data files" in warning] == [told.warnings[0]] * 2
    assert lake.rows() == rows


class Told:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on(self, event: Any) -> None:
        if isinstance(event, Warned):
            self.warnings.append(event.message)


@pytest.mark.usefixtures("few_files")
def test_files_for_another_spec_are_split_across_partitions(lake: Lake, spark_session: SparkSession) -> None:
    table = update_spec(crowded(lake), [RemovePartitionField("kind")])
    found = all_in_tasks(table, spark_session, "id", output_spec_id="1")
    assert len(found.groups) == 4
    assert sum(group.files_count for group in found.groups) == 47
    assert "a partition spec that files move from has 47 data files" in found.notes[0]


@pytest.mark.usefixtures("few_files")
def test_binpack_of_a_crowded_partition_is_not_split(lake: Lake, spark_session: SparkSession) -> None:
    found = all_in_tasks(crowded(lake), spark_session, None)
    assert (len(found.groups), found.notes) == (2, ())


def test_tables_of_ordinary_partitions_are_planned_as_before(lake: Lake, spark_session: SparkSession) -> None:
    found = all_in_tasks(crowded(lake), spark_session, "id")
    assert (len(found.groups), found.notes) == (2, ())


@pytest.mark.usefixtures("few_files")
def test_filter_that_matches_no_crowded_file_plans_nothing(lake: Lake, in_tasks: Engine) -> None:
    table = lake.create(partition_by=())
    for number in range(2):
        table = append(table, [events(number * 9 + n, 5) for n in range(9)])
    plan = plan_compact(table, in_tasks, where="id < 0", options={"rewrite-all": "true"})
    assert plan.rewritten_data_files_count == 0


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


def test_stitched_spark_files_keep_indexes_and_bloom_filters(plain_session: SparkSession, tmp_path: Path) -> None:
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
