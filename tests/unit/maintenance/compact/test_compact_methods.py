"""The ways in which rows reach new files: deletes applied, sorted in tasks, shuffled, copied byte for byte."""

from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.errors import JobFailedError, UnsupportedError
from icekeep.events import Event, StepStarted, Warned
from icekeep.formats.sort.external import Sorter
from icekeep.maintenance.compact import job as compaction
from icekeep.maintenance.compact import method as methods
from icekeep.maintenance.compact.job import compact, plan_compact
from icekeep.maintenance.compact.options import RewriteMethod
from icekeep.planning.spark.session import Engine, Limits
from icekeep.spec.sorting import SortKey
from icekeep.spec.types import LONG, STRING
from icekeep.tables.read import read_table
from icekeep.tables.verbs import append, create_table, update_sort_order
from kit.columns import column, schema_of, table_of
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions
from kit.lake import Lake, events, multiset
from kit.runtime import no_spark
from kit.spliced import chunks_found_in

ALL = {"rewrite-all": "true"}


class Ear:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def on(self, event: Event) -> None:
        self.heard.append(event)


def written(table: Table) -> list[pa.Table]:
    """The rows of each data file, as they lie there."""
    return [pq.read_table(urlparse(file.file_path).path, partitioning=None) for file in data_files(table)]


def rows(table: Table, *extra: str) -> Any:
    """All live rows as our scan reads them, with metadata columns if wanted."""
    names = [field.name for field in table.metadata.schema.fields]
    return multiset(read_table(table, select=[*names, *extra]))


def with_deletes(lake: Lake, format_version: int = 2) -> Table:
    """Nine files over three months, with 13 deleted rows: by position or vector, and by equality."""
    table = lake.filled(commits=3, format_version=format_version)
    first, second, *_ = data_files(table)
    if format_version == 2:
        table = delete_positions(table, [(first.file_path, n) for n in (0, 3, 19)])
        table = delete_positions(table, [(second.file_path, n) for n in range(10)])
    else:
        table = delete_by_vector(table, first.file_path, [0, 3, 19])
        table = delete_by_vector(table, second.file_path, range(10))
    return delete_equal(table, events(8, rows=3, month=3).select(["id"]), ["id"], like=data_files(table)[-1])


def test_delete_ratio_makes_a_file_a_candidate(lake: Lake) -> None:
    table = with_deletes(lake, 3)
    small = {"target-file-size-bytes": "3000", "min-file-size-bytes": "0"}
    assert plan_compact(table, no_spark, options=small).rewritten_data_files_count == 1
    before = rows(table)
    result = compact(table, no_spark, options=small | {"delete-ratio-threshold": "0.1"})
    assert result.rewritten_data_files_count == 2
    assert rows(lake.load()) == before
    assert compact(lake.load(), no_spark, options=small).rewritten_data_files_count == 0


@pytest.mark.parametrize(("strategy", "asks_count"), [("sort", 1), ("binpack", 0)])
def test_only_a_sort_looks_at_memory_and_before_it_begins(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, strategy: str, asks_count: int
) -> None:
    table = update_sort_order(lake.filled(commits=2), [SortKey("id")])
    ear = Ear()
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "icekeep.maintenance.compact.job.warn_of_memory", lambda _, size, told: asked.append((size, len(ear.heard)))
    )
    compact(table, no_spark, strategy=strategy, options=ALL, listener=ear)
    began = [type(event) for event in ear.heard].index(StepStarted)
    assert asked == [(compaction.BUDGET_BYTES, began)] * asks_count


def test_sorted_files_say_so_where_the_order_is_the_tables(lake: Lake) -> None:
    table = update_sort_order(lake.filled(), [SortKey("kind", direction="desc"), SortKey("id")])
    before = rows(table)
    result = compact(table, no_spark, strategy="sort")
    after = lake.load()
    assert rows(after) == before
    assert {file.sort_order_id for file in data_files(after)} == {1}
    for file in written(after):
        found = [
            (kind or "", id_) for kind, id_ in zip(*(file[name].to_pylist() for name in ("kind", "id")), strict=True)
        ]
        # Kinds from z to a and nulls at the end; ids rise within a kind.
        assert found == sorted(sorted(found, key=lambda row: row[1]), key=lambda row: row[0], reverse=True)
        assert {kind for kind, _ in found} > {""}
    # apache/iceberg #17489: sizes ask for nothing now, and nothing is sorted again; after an append only what is new is.
    again = compact(after, no_spark, strategy="sort")
    assert again.rewritten_data_files_count == 0
    assert result.overlap_depth_before > again.overlap_depth_before == 1.0


@pytest.mark.parametrize("parts", [1, 16])
def test_several_threads_share_a_group_by_ranges_of_keys(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """Into as many files as was planned, however many parts of the rows fit in memory, each by itself."""
    table = append(lake.create(partition_by=()), [events(n, 500) for n in range(8)])
    if parts > 1:
        size_bytes = sum(file.file_size_in_bytes for file in data_files(table))
        monkeypatch.setattr(compaction, "BUDGET_BYTES", methods.ARROW_GROWTH * size_bytes // parts + 1)
    before = rows(table)
    target = {"target-file-size-bytes": "12000"}
    plan = plan_compact(table, no_spark, sort_order="id", options=ALL | target)
    result = compact(table, no_spark, sort_order="id", options=ALL | target)
    assert result.added_data_files_count == plan.added_data_files_count > 1
    ranges = sorted((file["id"][0].as_py(), file["id"][-1].as_py()) for file in written(lake.load()))
    assert all(high < low for (_, high), (low, _) in pairwise(ranges))
    assert rows(lake.load()) == before


@pytest.mark.parametrize("times", [methods.MAX_RANGES - 1, 2 * methods.MAX_RANGES])
def test_sort_in_threads_spills_to_disk_without_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    table = append(lake.create(partition_by=()), [events(n, 500) for n in range(8)])
    size_bytes = sum(file.file_size_in_bytes for file in data_files(table))
    monkeypatch.setattr(compaction, "BUDGET_BYTES", methods.ARROW_GROWTH * size_bytes // times + 1)
    spilled, ids = [], []
    spill = Sorter._spill
    monkeypatch.setattr(Sorter, "_spill", lambda sorter: (spilled.append(sorter), spill(sorter)))
    before = rows(table)
    result = compact(table, no_spark, sort_order="id", options=ALL | {"target-file-size-bytes": str(10 * size_bytes)})
    assert spilled
    assert result.added_data_files_count == 1
    for file in written(lake.load()):
        ids += file["id"].to_pylist()
    assert len(ids) == 4000
    assert ids == sorted(ids)
    assert rows(lake.load()) == before


def test_row_groups_are_copied_and_rows_stay_the_same(lake: Lake) -> None:
    table = lake.filled()
    before = lake.rows()
    plan = plan_compact(table, no_spark, options={"stitch": "always"})
    assert (plan.stitched_data_files_count, plan.added_data_files_count, plan.reencoded_data_files_count) == (3, 3, 0)
    result = compact(table, no_spark, options={"stitch": "always"})
    assert (result.stitched_data_files_count, result.added_data_files_count) == (3, 3)
    assert lake.rows() == before
    [footer, *_] = [pq.read_metadata(urlparse(file.file_path).path) for file in data_files(lake.load())]
    assert footer.num_row_groups == 6
    [entry, *_] = lake.foreign().inspect.files().to_pylist()
    assert entry["readable_metrics"]["id"]["value_count"] == entry["record_count"] == 120


@pytest.mark.parametrize(("choice", "copied"), [("auto", {"text"}), ("never", set())])
def test_plain_columns_are_copied_page_by_page_unless_never(lake: Lake, choice: str, copied: set[str]) -> None:
    """Columns without a dictionary are copied by page unless `stitch=never`."""
    schema = schema_of(column(1, "n", LONG, required=True), column(2, "text", STRING))
    table = create_table(lake.catalog, ("db", "wide"), schema)
    numbers = np.random.default_rng(7)
    parts = [[{"n": n, "text": numbers.bytes(40).hex()} for n in range(1000)] for _ in range(6)]
    table = append(table, [table_of(schema, part) for part in parts])
    before, olds = rows(table), data_files(table)
    compact(table, no_spark, options={"stitch": choice})
    after = lake.catalog.load(("db", "wide"))
    [new] = data_files(after)
    assert [chunks_found_in(table.storage, old.file_path, new.file_path) for old in olds] == [copied] * 6
    assert rows(after) == before


def test_small_row_groups_are_merged_by_default(lake: Lake) -> None:
    plan = plan_compact(lake.filled(), no_spark)
    assert (plan.stitched_data_files_count, plan.reencoded_data_files_count) == (0, 18)
    assert {group.reason for group in plan.groups} == {"its row groups are smaller than 33,554,432 bytes"}


@pytest.mark.parametrize(("footers", "looked_at"), [(5, 0), (6, 1), (17, 2), (18, 3)])
def test_dry_run_reads_few_footers_and_starts_no_spark(lake: Lake, footers: int, looked_at: int) -> None:
    table = lake.filled()
    engine = Engine(spark=no_spark, limits=Limits(rewrite_bytes=-1, footers_count=footers))
    plan, here = plan_compact(table, engine), plan_compact(table, no_spark)
    reasons = [group.reason for group in plan.groups]
    assert reasons == [here.groups[0].reason] * looked_at + [methods.NOT_LOOKED_AT] * (3 - looked_at)
    assert [replace(one, reason="") for one in plan.groups] == [replace(one, reason="") for one in here.groups]
    never = plan_compact(table, engine, options={"stitch": "never"})
    assert {group.reason for group in never.groups} == {methods.NEVER}
    with pytest.raises(UnsupportedError, match="cannot be stitched"):
        plan_compact(with_deletes(Lake(lake.directory / "other")), engine, options=ALL | {"stitch": "always"})


def test_stitch_always_refuses_files_with_deletes(lake: Lake) -> None:
    table = with_deletes(lake)
    files = lake.files_on_disk()
    with pytest.raises(UnsupportedError, match="cannot be stitched: deletes reach it; give option stitch=auto"):
        compact(table, no_spark, options=ALL | {"stitch": "always"})
    assert lake.files_on_disk() == files


def test_large_row_groups_are_copied_and_others_reencoded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create(partition_by=())
    table = append(table, [*(events(n, 3000) for n in range(4)), *(events(n, 10) for n in range(10, 14))])
    before = lake.rows()
    monkeypatch.setattr(methods, "STITCH_FLOOR_BYTES", 5_000)
    plan = plan_compact(table, no_spark)
    [group] = plan.groups
    assert (group.method, group.stitched_files_count, group.files_count) == (RewriteMethod.STITCH, 4, 8)
    assert (plan.stitched_data_files_count, plan.reencoded_data_files_count) == (1, 4)
    result = compact(table, no_spark)
    assert (result.stitched_data_files_count, result.added_data_files_count) == (1, 2)
    assert lake.rows() == before


def test_start_snapshot_is_tagged_during_the_run(lake: Lake) -> None:
    table = lake.filled()
    start = table.metadata.current_snapshot_id
    held: list[dict[str, Any]] = []

    class Looker(Ear):
        def on(self, event: Event) -> None:
            held.append({name: ref.snapshot_id for name, ref in lake.load().metadata.refs.items() if not ref.is_branch})

    compact(table, no_spark, listener=Looker())
    names = {name for refs in held for name, snapshot in refs.items() if snapshot == start}
    assert len(names) == 1
    assert next(iter(names)).startswith("icekeep-rewrite-")
    assert set(lake.load().metadata.refs) == {"main"}


def test_only_deletes_that_reach_nothing_are_left_to_remove(lake: Lake) -> None:
    table = with_deletes(lake)
    compact(table, no_spark, options=ALL)
    before = rows(lake.load())
    result = compact(lake.load(), no_spark, options={"remove-dangling-deletes": "true"})
    total = lake.load().metadata.current_snapshot.summary["total-delete-files"]
    assert (result.rewritten_data_files_count, total) == (0, "0")
    assert rows(lake.load()) == before


def test_the_estimate_is_in_the_result_beside_what_it_was(lake: Lake) -> None:
    table = with_deletes(lake)
    plan = plan_compact(table, no_spark, options=ALL)
    result = compact(table, no_spark, options=ALL)
    assert result.estimated == plan.estimated
    assert plan.estimated.read_bytes > plan.rewritten_bytes_count
    assert min(result.elapsed_ms, result.cpu_ms, result.peak_task_bytes) > 0


def test_foreign_sort_order_gives_a_warning(lake: Lake) -> None:
    """Files sorted by an order that the table does not have keep sort order 0, with a warning."""
    ear = Ear()
    compact(lake.filled(), no_spark, sort_order="id", listener=ear)
    assert {file.sort_order_id for file in data_files(lake.load())} == {0}
    assert any(
        isinstance(event, Warned) and "not one of the table's sort orders" in event.message for event in ear.heard
    )


def test_no_file_of_the_run_is_left_beside_the_table(lake: Lake) -> None:
    compact(with_deletes(lake), no_spark, sort_order="id", options=ALL)
    assert [path for path in Path(lake.directory).rglob(".icekeep/**/*") if path.is_file()] == []


def test_spark_failure_in_one_group_keeps_the_others(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    # The package has a function of the module's name.
    execution: Any = import_module("icekeep.maintenance.compact.execute")
    table, run = lake.filled(), execution.CompactionRewriter._run

    def failing(running: Any, group: Any) -> Any:
        if group.number == 1:
            raise RuntimeError("Traceback of a worker:\n  File x\nMemoryError: no room for a column\n\tat Java")
        return run(running, group)

    monkeypatch.setattr(execution.CompactionRewriter, "_run", failing)
    with pytest.raises(
        JobFailedError, match="Spark failed: MemoryError: no room for a column; its files are as they were"
    ):
        compact(table, no_spark)
    partial = {"partial-progress.enabled": "true"}
    result = compact(lake.load(), no_spark, options=partial)
    assert (result.status, result.rewritten_data_files_count, result.failed_data_files_count) == ("partial", 12, 6)
