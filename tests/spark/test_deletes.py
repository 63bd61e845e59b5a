"""Which deletes reach which files, in Spark's joins: checks, conversion, plans of position deletes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError
from icekeep.maintenance.check import entries as comparing
from icekeep.maintenance.deletes import equality_plan as planning
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.equality_plan import plan
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.deletes.live_rows import load_live_files
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions
from icekeep.maintenance.deletes.plan import DeleteGroup, DeletesPlan
from icekeep.maintenance.deletes.plan import plan as plan_merges
from icekeep.maintenance.options import parse_options
from icekeep.planning import deletes as delete_tasks
from icekeep.planning.deletes import count_deletes_in_use, reaching, with_deletes, with_deletes_in_tasks
from icekeep.planning.manifests import ENTRIES, REACHING_DELETES
from icekeep.planning.scan.plan import open_scan
from icekeep.planning.spark.rows import collected, streamed
from icekeep.planning.spark.session import Engine
from icekeep.planning.spark.tasks import dataframe_from_tasks
from icekeep.spec.manifests.structs import FileContent, ManifestEntry
from icekeep.spec.properties import own_directory
from icekeep.spec.schema import DELETE_FILE_PATH, ROW_ID, Schema
from kit.cases import cases, thinned
from kit.checked_entries import SCHEMA, Damaged, all_faults, damager, made, told, with_files, written
from kit.checked_entries import checked as checked_table
from kit.checked_entries import checked_deletes as checked
from kit.checked_entries import expected as expected_faults
from kit.deletes import data_files, delete_by_vector, delete_positions
from kit.lake import Lake
from kit.naive_scan import naive_rows
from kit.numbered_rows import deletes_of
from kit.reaching import (
    REFUSED,
    SPECS,
    A,
    columns_of,
    entry,
    equality,
    expected,
    generated_tables,
    positions,
    reaching_by_rule,
    table_of,
    vector,
)
from kit.row_histories import ByIcekeep, History
from kit.runtime import limited
from kit.spark_jobs import Counted
from spark.test_compaction_plans import generated
from unit.maintenance.compact.test_compact_methods import rows
from unit.maintenance.deletes.test_convert_equality_deletes import KINDS

REACHING = ArrayType(from_arrow_type(REACHING_DELETES.value_type), REACHING_DELETES.value_field.nullable)
"""The type of the column `deletes` of joins. (PySpark 4.0 loses whether members of an array of Arrow's may be null.)"""


def frame(spark: SparkSession, entries: list[ManifestEntry], log: Path | None = None) -> DataFrame:
    """Entries in two tasks, as planning makes them; `log` gets a line for each time that a task runs."""

    def batches(rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        if log is not None:
            with log.open("a", encoding="utf-8") as file:
                file.write("read\n")
        yield pa.RecordBatch.from_pylist(rows, schema=ENTRIES)

    columns = [columns_of(entry) for entry in entries]
    return dataframe_from_tasks(spark, [columns[::2], columns[1::2]], batches, ENTRIES)


def found(planned: DataFrame) -> dict[str, list[dict[str, Any]]]:
    return {row["file_path"]: [d.asDict() for d in row["deletes"]] for row in collected(planned)}


def _moved(entry: ManifestEntry, table: int) -> ManifestEntry:
    """An entry in the directory of a table, with what it says of paths."""
    file, prefix, field_id = entry.data_file, f"t{table}/", DELETE_FILE_PATH.field_id
    changes: dict[str, Any] = {"file_path": prefix + file.file_path}
    if file.referenced_data_file is not None:
        changes["referenced_data_file"] = prefix + file.referenced_data_file
    for name in ("lower_bounds", "upper_bounds"):
        bounds = getattr(file, name)
        if bounds and field_id in bounds:
            changes[name] = {**bounds, field_id: prefix.encode() + bounds[field_id]}
    return replace(entry, data_file=replace(file, **changes))


def reached_on_the_driver(data: list[ManifestEntry], deletes: list[ManifestEntry]) -> dict[str, list[dict[str, Any]]]:
    held = reaching(table_of(data), table_of(deletes), SPECS)
    assert held is not None
    rows = held.deletes.to_pylist()
    return {e.data_file.file_path: [rows[n] for n in held.of_row(row)] for row, e in enumerate(data)}


def in_tasks_of(data: DataFrame, deletes: DataFrame, parts_count: int, specs: Any = SPECS) -> DataFrame:
    """The same as `with_deletes`, in so many tasks."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(delete_tasks, "tasks_count", lambda *_, **__: parts_count)
        return with_deletes_in_tasks(data, deletes, specs, data_count=1, shared_count=1)


@pytest.fixture(scope="module")
def tables() -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    """Many small tables side by side in one: their global deletes reach them all."""
    data: list[ManifestEntry] = []
    deletes: list[ManifestEntry] = []
    count = 0

    @cases(200, least=200, database=None, suppress_health_check=list(HealthCheck))
    @given(generated_tables())
    def gather(table: tuple[list[ManifestEntry], list[ManifestEntry]]) -> None:
        nonlocal count
        count += 1
        data.extend(_moved(e, count) for e in table[0])
        # A global delete reaches all tables, and the others shall not drown in them.
        deletes.extend(
            _moved(e, count)
            for e in table[1]
            if count % 10 == 0
            or e.data_file.content is not FileContent.EQUALITY_DELETES
            or e.data_file.spec_id in (1, 2)
        )

    gather()
    return data, deletes


@pytest.mark.parametrize("is_counted", thinned([True, False], 2))
def test_joins_match_deletes_by_the_rule(
    spark_session: SparkSession, tables: tuple[list[ManifestEntry], list[ManifestEntry]], is_counted: bool
) -> None:
    data, deletes = tables
    planned = with_deletes(
        frame(spark_session, data),
        frame(spark_session, deletes),
        SPECS,
        deletes_count=len(deletes) if is_counted else None,
    )
    assert planned.columns == [*ENTRIES.names, "deletes"]
    assert planned.schema["deletes"].dataType == REACHING
    wanted = expected(data, deletes)
    assert found(planned) == wanted == reached_on_the_driver(data, deletes)
    kinds = {(d["content"], d["file_format"], d["spec_id"] in (0, 3)) for reaching in wanted.values() for d in reaching}
    assert len(kinds) == 6
    assert [] in wanted.values()


@pytest.mark.parametrize("parts_count", thinned([7, 1], 2))
def test_tasks_match_deletes_by_the_rule(
    spark_session: SparkSession,
    tables: tuple[list[ManifestEntry], list[ManifestEntry]],
    parts_count: int,
) -> None:
    data, deletes = tables
    planned = in_tasks_of(frame(spark_session, data), frame(spark_session, deletes), parts_count)
    assert planned.columns == [*ENTRIES.names, "deletes"]
    assert planned.schema["deletes"].dataType == from_arrow_type(REACHING_DELETES)
    assert found(planned) == expected(data, deletes)


@pytest.mark.parametrize(("deletes", "problem"), thinned(REFUSED, 4))
@pytest.mark.parametrize("parts_count", thinned([5, 1], 2))
def test_what_cannot_be_is_refused_by_tasks_as_by_the_rule(
    spark_session: SparkSession, deletes: list[ManifestEntry], problem: str, parts_count: int
) -> None:
    planned = in_tasks_of(frame(spark_session, [A]), frame(spark_session, deletes), parts_count)
    with pytest.raises(InvalidTableError) as refused:
        collected(planned)
    assert refused.value.message == problem


def test_tasks_need_only_four_data_file_columns(spark_session: SparkSession) -> None:
    data = frame(spark_session, [A]).select("file_path", "spec_id", "partition", "sequence_number")
    for deletes in ([positions("p", 5)], []):
        planned = in_tasks_of(data, frame(spark_session, deletes), 3)
        assert [d["file_path"] for d in found(planned)["a"]] == [d.data_file.file_path for d in deletes]


def test_tasks_read_both_sides_once(spark_session: SparkSession, tmp_path: Path) -> None:
    data = [A, entry("b", 1, spec_id=0, partition=())]
    deletes = [vector(7, "a"), positions("p", 7), equality("e", 9), equality("g", 9, spec_id=0, partition=())]
    logs = [tmp_path / "data", tmp_path / "deletes"]
    planned = in_tasks_of(frame(spark_session, data, logs[0]), frame(spark_session, deletes, logs[1]), 3)
    assert found(planned) == expected(data, deletes)
    assert [log.read_text(encoding="utf-8").count("read") for log in logs] == [2, 2]


@pytest.mark.parametrize(("deletes", "problem"), thinned(REFUSED, 4))
@pytest.mark.parametrize(
    ("run", "deletes_count"),
    [(collected, 2), (collected, None), (lambda rows: list(streamed(rows)), None)],
    ids=["few", "many", "streamed"],
)
def test_what_cannot_be_is_refused_by_joins_as_by_the_rule(
    spark_session: SparkSession,
    deletes: list[ManifestEntry],
    problem: str,
    run: Callable[[DataFrame], Any],
    deletes_count: int | None,
) -> None:
    with pytest.raises(InvalidTableError) as of_rule:
        reaching_by_rule([A], deletes)
    data = frame(spark_session, [A])
    planned = with_deletes(data, frame(spark_session, deletes), SPECS, deletes_count=deletes_count)
    with pytest.raises(InvalidTableError) as of_joins:
        run(planned)
    assert of_joins.value.message == of_rule.value.message == problem


@pytest.mark.parametrize("deletes_count", [1, None])
def test_invalid_delete_file_is_refused_without_data_files(
    spark_session: SparkSession, deletes_count: int | None
) -> None:
    data = frame(spark_session, [entry("b", 5, partition=("y",))])
    for delete in (positions("p", 7, spec_id=9), vector(7, None)):
        planned = with_deletes(data, frame(spark_session, [delete]), SPECS, deletes_count=deletes_count)
        with pytest.raises(InvalidTableError):
            collected(planned)


def test_stale_and_unmatched_deletes_are_ignored(spark_session: SparkSession) -> None:
    elsewhere = {"spec_id": 2, "partition": (0.5, 1)}
    old = [vector(4, "a", **elsewhere), positions("p", 4, referenced_data_file="a", **elsewhere)]
    lost = [vector(7, "gone", **elsewhere), vector(8, "gone", 50), positions("q", 7, referenced_data_file="gone")]
    planned = with_deletes(frame(spark_session, [A]), frame(spark_session, [*old, *lost]), SPECS)
    assert found(planned) == expected([A], [*old, *lost]) == {"a": []}


def test_both_sides_are_read_once(spark_session: SparkSession, tmp_path: Path) -> None:
    data = [A, entry("b", 1, spec_id=0, partition=())]
    deletes = [vector(7, "a"), positions("p", 7), equality("e", 9), equality("g", 9, spec_id=0, partition=())]
    for number, deletes_count in enumerate((None, len(deletes))):
        logs = [tmp_path / f"data{number}", tmp_path / f"deletes{number}"]
        planned = with_deletes(
            frame(spark_session, data, logs[0]),
            frame(spark_session, deletes, logs[1]),
            SPECS,
            deletes_count=deletes_count,
        )
        assert found(planned) == expected(data, deletes)
        # Two tasks each.
        assert [log.read_text(encoding="utf-8").count("read") for log in logs] == [2, 2]


def test_with_few_delete_files_no_data_file_is_shuffled(spark_session: SparkSession) -> None:
    data, deletes = frame(spark_session, [A]), frame(spark_session, [positions("p", 7)])

    def shuffles_of_data(planned: DataFrame) -> bool:
        text = planned._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
        return "SortMergeJoin" in text or "ShuffledHashJoin" in text

    assert not shuffles_of_data(with_deletes(data, deletes, SPECS, deletes_count=1))
    assert shuffles_of_data(with_deletes(data, deletes, SPECS))


def test_no_unpartitioned_spec_means_no_global_deletes(spark_session: SparkSession) -> None:
    specs = {1: SPECS[1]}
    deletes = [equality("e", 7), equality("older", 5), equality("elsewhere", 7, partition=(None,))]
    planned = with_deletes(frame(spark_session, [A]), frame(spark_session, deletes), specs)
    assert [d["file_path"] for d in found(planned)["a"]] == ["e"]
    assert planned.schema["deletes"].dataType == REACHING


def test_only_four_columns_of_data_files_are_needed(spark_session: SparkSession) -> None:
    data = frame(spark_session, [A]).select("file_path", "spec_id", "partition", "sequence_number")
    planned = with_deletes(data, frame(spark_session, [positions("p", 5)]), SPECS)
    assert [d["file_path"] for d in found(planned)["a"]] == ["p"]


def test_each_delete_file_in_use_is_counted_once(spark_session: SparkSession) -> None:
    data = [entry(name, 5, **where) for name in ("a", "b") for where in [{}]] + [entry("c", 5, partition=("y",))]
    deletes = [
        vector(7, "a", 4, record_count=2),
        vector(7, "b", 44, record_count=5),
        vector(7, "gone", 84),
        positions("p", 6, file_size_in_bytes=70),
        positions("q", 6, partition=("y",), file_size_in_bytes=30),
        equality("e", 7, file_size_in_bytes=1000, record_count=9),
        equality("f", 5),
    ]
    planned = with_deletes(frame(spark_session, data), frame(spark_session, deletes), SPECS)
    [row] = collected(count_deletes_in_use(planned))
    assert row.asDict() == {
        "deletion_vectors_count": 2,
        "deletion_vectors_bytes": 80,
        "deletion_vectors_record_count": 7,
        "position_delete_files_count": 1,
        "position_delete_files_bytes": 30,
        "position_delete_files_record_count": 3,
        "equality_delete_files_count": 1,
        "equality_delete_files_bytes": 1000,
        "equality_delete_files_record_count": 9,
    }
    [none] = collected(count_deletes_in_use(planned.where(F.lit(False))))
    assert set(none.asDict().values()) == {0}


pytestmark = pytest.mark.usefixtures("kit_in_tasks")


@pytest.mark.parametrize("version", thinned([3, 2], 2))
def test_checks_of_deletes_in_tasks(version: int, spark_session: SparkSession) -> None:
    table = made(version, range(5), range(5, 10))
    for file in data_files(table):
        if version == 3:
            table = delete_by_vector(table, file.file_path, [1, 8])
        else:
            table = delete_positions(table, [(file.file_path, 1), (file.file_path, 8)])
    in_tasks = limited(spark_session, entries_count=-1, folded_entries_count=-1)
    here, there = checked(table), checked(table, in_tasks)
    assert [fault.number for fault in here[0]] == [411, 411]
    assert there[0] == here[0]
    assert there[1].gaps() == here[1].gaps()


@pytest.mark.parametrize("kind", ["sound", "twice", "too-high", "unreadable"])
def test_tasks_find_the_row_ids_that_the_driver_finds(kind: str, spark_session: SparkSession) -> None:
    table = made(3, range(5), range(5, 10))
    first, second = sorted(data_files(table), key=lambda file: file.first_row_id or 0)
    table = delete_by_vector(table, first.file_path, [1, 3])
    ids = {"sound": [1, 3], "twice": [3, 1, 2, 7], "too-high": [1, 99], "unreadable": [1, 3]}[kind]
    schema = Schema(fields=(*SCHEMA.fields, ROW_ID))
    table = with_files(table, written(table, schema, [{"id": n, "kind": "a", "_row_id": n} for n in ids]))
    if kind == "unreadable":
        damager(table).write(second.file_path, b"\0" * 100)
    here = checked(table)
    there = checked(table, limited(spark_session, row_ids_count=-1))
    assert [fault.number for fault in here[0]] == {"twice": [417] * 2, "too-high": [417]}.get(kind, [])
    assert there[0] == here[0]
    assert len(there[1].gaps()) == len(here[1].gaps()) == int(kind == "unreadable")


@pytest.mark.parametrize("seed", thinned([9, 5, 26], 3))
def test_checks_of_entries_in_tasks(seed: int, in_tasks: Engine) -> None:
    table = Damaged(seed).table
    here, there = checked_table(table), checked_table(table, in_tasks)
    assert all_faults(there) == all_faults(here)
    assert there.gaps() == here.gaps()
    assert {key: count for key, count in told(there).items() if key[0] != 214} == expected_faults(table)


def test_much_that_looks_wrong_is_looked_at_in_tasks(in_tasks: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_in_tasks", None)
    table = Damaged(13).table
    some = limited(in_tasks.spark, entries_count=3)
    assert all_faults(checked_table(table, some)) == all_faults(checked_table(table))


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


ALL = {"rewrite-all": "true"}
IN_TASKS = {"entries_count": -1, "matched_entries_count": -1}


def planned(table: Table, spark: Any, directory: str | None = None, **limits: int) -> DeletesPlan:
    options = parse_options(RewritePositionDeletesOptions, ALL)
    return plan_merges(open_scan(table), limited(spark, **limits), options, branch="main", directory=directory)


def described(group: DeleteGroup) -> tuple[Any, ...]:
    return group.number, group.partition, group.files, group.tasks_count


def live_numbers(group: DeleteGroup, table: Table) -> dict[str, Any]:
    files = load_live_files(group.live, table.storage)
    found = {file.file_path: files.get(file.file_path) for file in data_files(table)}
    return {path: file for path, file in found.items() if file is not None}


@pytest.mark.parametrize(("seed", "has_vectors"), [(1, False), (3, True)])
def test_tasks_come_to_the_groups_that_the_driver_comes_to(
    lake: Lake, spark_session: SparkSession, seed: int, has_vectors: bool
) -> None:
    table = generated(lake, seed, has_vectors=has_vectors)
    directory = own_directory(table.metadata, "plans/1")
    few = planned(table, spark_session, directory)
    many = planned(table, spark_session, directory, **IN_TASKS)
    assert [*map(described, many.groups)] == [*map(described, few.groups)]
    assert (many.dangling, many.candidate_files_count) == (few.dangling, few.candidate_files_count)
    for here, there in zip(few.groups, many.groups, strict=True):
        assert live_numbers(here, table) == live_numbers(there, table)
    if not has_vectors:
        assert not few.has_stored
        assert many.has_stored
        stored = {part.location for group in many.groups for part in group.live if part.location is not None}
        assert {file.location for file in table.storage.list(directory)} >= stored
    # A preview puts nothing anywhere.
    before = lake.files_on_disk()
    assert [*map(described, planned(table, spark_session, **IN_TASKS).groups)] == [*map(described, few.groups)]
    assert lake.files_on_disk() == before


def test_data_files_stored_by_tasks_are_used_and_removed(
    lake: Lake, spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.filled(commits=3, format_version=2)
    for n in range(3):
        files = data_files(table)
        table = delete_positions(table, [(file.file_path, n) for file in files if file.partition == files[0].partition])
    before, on_disk = rows(table), lake.files_on_disk()
    result = rewrite_position_deletes(table, limited(spark_session, **IN_TASKS), options=ALL)
    assert (result.status, result.rewritten_delete_files_count) == ("done", 3)
    assert rows(lake.load()) == before
    assert not [path for path in lake.files_on_disk() - on_disk if ".icekeep/plans" in str(path)]


def test_failed_plan_removes_files_stored_by_tasks(
    lake: Lake, spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = generated(lake, 1)
    on_disk = lake.files_on_disk()

    def fail(*_: Any) -> Any:
        raise OSError("no more")

    monkeypatch.setattr("icekeep.maintenance.deletes.plan.groups_of", fail)
    with pytest.raises(OSError, match="no more"):
        rewrite_position_deletes(table, limited(spark_session, **IN_TASKS), options=ALL)
    assert lake.files_on_disk() == on_disk
