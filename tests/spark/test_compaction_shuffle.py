"""Rows through Spark's shuffle: all of them, unchanged, in the files of the range that each belongs to."""

from collections import Counter
from itertools import count, pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from msgspec.structs import replace
from pyspark.sql import SparkSession

from icekeep.errors import MissingFileError
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.deletes.read import write_position_deletes
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.row_moves import moves_locations
from icekeep.formats.sort.encode import Curve, Ordering
from icekeep.formats.sort.keys import ranges_of_files, sample_keys, sort_keys, split_points
from icekeep.formats.writer import DataFileWriter
from icekeep.maintenance.compact import sort_tasks as shuffle
from icekeep.maintenance.compact.sort_tasks import shuffled
from icekeep.spec.collections import PositionSet
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import UNPARTITIONED, PartitionSpec, build_spec
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID, Schema
from icekeep.spec.sorting import build_sort_order
from icekeep.spec.types import DOUBLE, INT, LONG, STRING, TIMESTAMP, UNKNOWN, NestedField, StructType
from icekeep.storage.open import open_storage
from kit.cases import cases, thinned
from kit.columns import EVERY_TYPE, column, rows, schema_of, table_of
from kit.data_files import options_for, read_table
from kit.spliced import MOVING, OldFile, check_moves, deleting, moving_task, old_file

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
    """Ranges follow each other and rows in each of them as well; gives all rows."""
    assert not ran.errors
    tables = [read_table(STORAGE, file.file_path, schema) for files in files_by_range(ran) for file in files]
    together = pa.concat_tables(tables)
    keys = sort_keys(together, ordering, schema).to_pylist()
    assert all(a <= b for a, b in pairwise(keys))
    return together


@cases(3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=rows(HELD, max_size=40))
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


def events(ids: range) -> pa.Table:
    return table_of(EVENTS, [{"id": id_ * 7919 % 1000, "kind": f"kind-{id_ % 5}"} for id_ in ids])


@pytest.mark.parametrize("points_count", thinned([3, 0], 2))
def test_deleted_rows_stay_away_and_each_row_that_was_read_counts_once(
    tmp_path: Path, spark_session: SparkSession, points_count: int
) -> None:
    tables = [events(range(start, start + 100)) for start in range(0, 1000, 100)]
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
    tables = [events(range(1000))]
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
    pieces = pieces_of(tmp_path, EVENTS, [events(range(10))])
    ran = shuffled(task_of(tmp_path, pieces, EVENTS, ordering), nowhere, None, spark_session, STORAGE)
    assert text_of(assert_ordered(ran, EVENTS, ordering)) == text_of(events(range(10)))
    assert sum(len(done.outcome.files) for done in ran.done) == 1


def test_rows_keep_their_lineage(tmp_path: Path, spark_session: SparkSession) -> None:
    tables = [events(range(start, start + 10)) for start in (0, 10, 20)]
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


def test_rows_that_move_to_another_spec_lie_in_files_of_its_partitions(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    spec = replace(build_spec(EVENTS, [("kind", "identity", None)]), spec_id=1)
    ordering = replace(by(EVENTS, "id"), partition_by=spec)
    tables = [events(range(start, start + 50)) for start in (0, 50)]
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
    pieces = pieces_of(tmp_path, EVENTS, [events(range(10)), events(range(10, 20))])
    (tmp_path / "old-1.parquet").unlink()
    ran = shuffled(task_of(tmp_path, pieces, EVENTS, by(EVENTS, "id")), [], None, spark_session, STORAGE)
    assert [type(error) for error in ran.errors] == [MissingFileError]
    assert not ran.done
    assert [path.name for path in tmp_path.iterdir()] == ["old-0.parquet"]


def test_a_property_that_is_wrong_is_the_error_of_every_task_and_nothing_is_left(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    pieces = pieces_of(tmp_path, EVENTS, [events(range(10)), events(range(10, 20))])
    whole = replace(
        task_of(tmp_path, pieces, EVENTS, by(EVENTS, "id")), properties={"write.parquet.compression-codec": "shiny"}
    )
    points = split_points([sample_keys([events(range(20))], by(EVENTS, "id"), EVENTS)], 2)
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
