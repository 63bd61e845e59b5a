"""Jobs on tables of which a manifest list, a summary or an entry says something wrong: the rows stay, or the job refuses."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError
from icekeep.maintenance.check.faults import Tally
from icekeep.maintenance.check.job import check
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.repair.heads import Head
from icekeep.maintenance.repair.job import repair
from icekeep.maintenance.repair.plan import RepairScope
from icekeep.maintenance.repair.planner import guard
from icekeep.maintenance.repair.trash import Trash
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.spark.session import LIMITS, Engine
from icekeep.spec.schema import DELETE_FILE_PATH
from kit.cases import Choices, for_each
from kit.damager import DATA, POSITION_DELETES, Damager
from kit.deletes import data_files, delete_equal, delete_positions
from kit.job_world import EVENTS, World
from kit.runtime import no_spark
from kit.tables import manifests_of

EVERYTHING = {"rewrite-all": "true"}
FIRST, SECOND = "at < TIMESTAMP '2013-02-01T00:00:00+00:00'", "at >= TIMESTAMP '2013-02-01T00:00:00+00:00'"
DROPS = {"remove-dangling-deletes": "true"}
JOBS: dict[str, Callable[[World], Any]] = {
    "compact": lambda world: compact(world.table, no_spark, options=EVERYTHING),
    "compact, dangling": lambda world: compact(world.table, no_spark, options={**EVERYTHING, **DROPS}),
    "compact, where": lambda world: compact(world.table, no_spark, where=FIRST, options={**EVERYTHING, **DROPS}),
    "compact, elsewhere": lambda world: compact(world.table, no_spark, where=SECOND, options=EVERYTHING),
    "rewrite_position_deletes": lambda world: rewrite_position_deletes(
        world.table, no_spark, where=FIRST, options=EVERYTHING
    ),
    "convert_equality_deletes": lambda world: convert_equality_deletes(world.table, no_spark),
    "rewrite_manifests": lambda world: rewrite_manifests(world.table, no_spark),
    "rewrite_manifests, dangling": lambda world: rewrite_manifests(world.table, no_spark, options=DROPS),
}


@pytest.fixture(scope="module")
def filled():
    """Two months of three data files, deletes of both kinds in the first, its data merged by another writer."""
    world = World(2, [("at", "month")])
    for number in range(6):
        world.append(number, month=1 + number % 2)
    month = min(file.partition for file in data_files(world.table))
    first, second, third = (file for file in data_files(world.table) if file.partition == month)
    delete_positions(world.table, [(first.file_path, 0), (second.file_path, 1)])
    delete_equal(world.table, pa.table({"id": pa.array([4_000_002], pa.int64())}), ["id"], like=third)
    rewrite_manifests(world.table, no_spark)
    assert sum(world.rows().values()) == 27
    return world


def lie(world: World, content: int, **row: Any) -> None:
    damager = Damager(world.catalog, EVENTS, Choices(1))
    for manifest in damager.rows():
        if manifest["content"] == content:
            damager.edit_row(manifest["manifest_path"], **row)


SUMMARY = {"contains_null": False, "contains_nan": False}
LIES: dict[str, Callable[[World], None]] = {
    "numbers of data": lambda world: lie(world, 0, min_sequence_number=99),
    "numbers of deletes": lambda world: lie(world, 1, min_sequence_number=99),
    "summaries of deletes": lambda world: lie(
        world, 1, partitions=[{**SUMMARY, "lower_bound": bytes([7, 0, 0, 0]), "upper_bound": bytes([9, 0, 0, 0])}]
    ),
    "crossed summaries": lambda world: [
        lie(
            world,
            content,
            partitions=[{**SUMMARY, "lower_bound": bytes([9, 0, 0, 0]), "upper_bound": bytes([0, 0, 0, 0])}],
        )
        for content in (0, 1)
    ],
    "crossed paths": lambda world: _paths(world, b"z", b"a"),
    "other paths": lambda world: _paths(world, b"a", b"b"),
}


def _paths(world: World, lower: bytes, upper: bytes) -> None:
    damager = Damager(world.catalog, EVENTS, Choices(1))
    place = damager.entry(POSITION_DELETES)
    bounds = (("lower_bounds", lower), ("upper_bounds", upper))
    damager.edit_file(place, **{name: [{"key": DELETE_FILE_PATH.field_id, "value": value}] for name, value in bounds})


@for_each("job", JOBS)
@for_each("kind", LIES)
def test_no_row_goes_or_comes_back(filled, kind, job):
    world = filled.copy()
    before = world.rows()
    LIES[kind](world)
    JOBS[job](world)
    assert world.rows() == before


@for_each("job", JOBS)
@for_each("content", [DATA, 1])
def test_manifests_that_the_list_calls_empty_are_refused_by_all(filled, content, job):
    world = filled.copy()
    lie(world, content, **dict.fromkeys(("added_files_count", "existing_files_count"), 0))
    state = world.pointer()
    with pytest.raises(InvalidTableError, match=r"`icekeep repair --table NAME --fault 204`"):
        JOBS[job](world)
    assert world.pointer() == state


@for_each("content", [DATA, 1])
def test_the_repair_that_is_named_lets_jobs_go_on(filled, content):
    world = filled.copy()
    before = world.rows()
    lie(world, content, **dict.fromkeys(("added_files_count", "existing_files_count"), 0))
    assert repair(world.table, no_spark, fault=[204]).status == "done"
    JOBS["compact, dangling"](world)
    assert world.rows() == before


def test_many_entries_are_counted_in_columns(filled):
    world = filled.copy()
    engine = Engine(spark=no_spark, limits=replace(LIMITS, commit_entries_count=0))
    reader = SparkManifestReader(engine, world.table.storage)
    manifests = manifests_of(world.table)
    assert len(manifests) > 1
    reader.check_counts(manifests, world.table.metadata)
    lie(world, DATA, existing_files_count=0)
    with pytest.raises(
        InvalidTableError, match="holds 6 existing entries, but its manifest list says 0; run `icekeep repair"
    ):
        reader.check_counts(manifests_of(world.table), world.table.metadata)


def test_crossed_bounds_of_paths_are_told_and_corrected(filled):
    world = filled.copy()
    before = world.rows()
    _paths(world, b"z", b"a")
    found = check(world.table, no_spark)
    assert [kind.fault_id for kind in found.faults] == [226]
    repair(world.table, no_spark, fault=[226])
    assert check(world.table, no_spark, ref="main").status == "sound"
    assert world.rows() == before


@for_each("fault", [[215], [215, 226], [226]])
def test_a_list_that_was_cut_short_keeps_the_totals_that_show_it(filled, fault):
    """Totals that are counted anew would hide it, and what the list lacks would be taken for garbage."""
    world = filled.copy()
    world.append(9, month=2)
    _paths(world, b"z", b"a")
    damager = Damager(world.catalog, EVENTS, Choices(1))
    damager.edit_rows(lambda rows: rows.remove(next(row for row in rows if row["content"] == DATA)))
    state = world.pointer()
    result = repair(world.table, no_spark, fault=fault)
    assert (result.mended, world.pointer()) == ((), state)
    assert all(
        "the list was probably cut short; go back to an earlier snapshot" in one.reason for one in result.not_mended
    )
    assert len(result.not_mended) == len(fault)
    with pytest.raises(InvalidTableError, match="a list that was cut short needs a rollback"):
        JOBS["compact"](world)


@for_each("is_missing", [True, False])
def test_a_list_without_all_counts_is_not_cut_short(filled, is_missing):
    world = filled.copy()
    world.append(9, month=2)
    snapshot = world.table.metadata.head("main")
    reader, scope = ManifestReader(world.table.storage), RepairScope(numbers=frozenset())
    head = Head(world.table, "main", snapshot, reader, scope, Trash(world.table))
    data, *others = sorted(head.rows, key=lambda row: row.content)
    head.rows = others if is_missing else [replace(data, added_files_count=None), *others]
    guard(head, Tally())
    assert (head.barred is not None) == is_missing
