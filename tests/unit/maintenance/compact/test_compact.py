from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles, DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import JobFailedError, NotFoundError, UsageError
from icekeep.events import Event, Warned
from icekeep.maintenance.compact.job import compact, plan_compact
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Bucket
from icekeep.spec.types import BINARY, LONG, STRING, NestedField
from icekeep.tables.read import read_table
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import append, create_table
from kit.cases import for_each
from kit.columns import column, table_of
from kit.deletes import data_files, delete_equal, delete_positions, position_delete_files
from kit.lake import EVENTS, SCHEMA, Lake, events, multiset
from kit.memory_catalog import MemoryCatalog
from kit.naive_scan import scan_rows
from kit.runtime import no_spark


def live_files(lake: Lake) -> list[str]:
    return [task.file.file_path for task in lake.foreign().scan().plan_files()]


def test_small_files_become_one_a_partition_and_no_row_changes(any_lake: Lake) -> None:
    table = any_lake.filled()
    before = any_lake.rows()
    result = compact(table, no_spark)
    assert (result.rewritten_data_files_count, result.added_data_files_count, result.commits_count) == (18, 3, 1)
    assert any_lake.rows() == before
    assert len(live_files(any_lake)) == 3
    assert result.added_bytes_count == any_lake.foreign().inspect.files()["file_size_in_bytes"].to_pandas().sum()


def test_the_new_snapshot_replaces_and_keeps_the_totals(lake: Lake) -> None:
    """seaweedfs PR #10420: after maintenance the summary had no totals."""
    compact(lake.filled(), no_spark)
    summary = lake.foreign().current_snapshot().summary
    assert summary.operation.value == "replace"
    assert summary["total-records"] == "360"
    assert summary["total-data-files"] == "3"
    assert (summary["added-data-files"], summary["deleted-data-files"]) == ("3", "18")
    assert int(summary["total-files-size"]) == lake.foreign().inspect.files()["file_size_in_bytes"].to_pandas().sum()


def test_where_chooses_files_that_are_rewritten_whole(lake: Lake) -> None:
    table = lake.filled()
    before = lake.rows()
    result = compact(table, no_spark, where="at >= '2013-02-01T03:00:00Z' and at < '2013-02-01T04:00:00Z'")
    assert (result.rewritten_data_files_count, result.added_data_files_count) == (6, 1)
    assert lake.rows() == before


def test_every_value_of_nested_and_null_columns_survives(lake: Lake) -> None:
    table = lake.filled(rows=50)
    before = multiset(lake.foreign().scan().to_arrow())
    compact(table, no_spark)
    assert multiset(lake.foreign().scan().to_arrow()) == before
    [path] = [p for p in live_files(lake) if "at_month=2013-01" in p]
    assert pq.read_schema(urlparse(path).path).field("tags").type.value_field.metadata[b"PARQUET:field_id"] == b"6"


def in_memory(name: str, columns: tuple[NestedField, ...], partition_by: str, *rows: dict[str, Any]) -> Table:
    """A table in memory to which the rows were appended twice."""
    catalog = MemoryCatalog()
    catalog.create_namespace(("db",))
    table = create_table(catalog, ("db", name), Schema(fields=columns), partition_by=[(partition_by, "identity")])
    return append(table, [table_of(table.schema, list(rows)) for _ in range(2)])


def test_sql_keywords_are_allowed_as_column_names() -> None:
    """A table whose columns and values are SQL keywords is compacted together with its deletes."""
    columns = (column(1, "order", LONG), column(2, "from", STRING), column(3, "group", STRING), column(4, "is", STRING))
    rows = [{"order": n, "from": f"f{n}", "group": "by" if n % 2 else "in", "is": None} for n in range(6)]
    table = in_memory("select", columns, "group", *rows)
    file = data_files(table)[0]
    table = delete_positions(table, [(file.file_path, 0)])
    table = delete_equal(table, table_of(table.schema, [{"from": "f3"}]).select(["from"]), ["from"], like=file)
    before = multiset(read_table(table))
    assert sum(before.values()) == 12 - 3
    asked: dict[str, Any] = {"where": '"order" >= 0 and `from` is not null', "sort_order": '"order" desc, `from`'}
    result = compact(table, no_spark, options={"rewrite-all": "true"}, **asked)
    assert (result.rewritten_data_files_count, result.added_data_files_count) == (4, 2)
    assert multiset(scan_rows(table.refresh())) == multiset(read_table(table.refresh())) == before


@for_each("curve", ["zorder", "hilbert"])
def test_null_and_empty_binary_values_sort_on_a_curve(curve: str) -> None:
    columns = (column(1, "id", LONG), column(2, "data", BINARY), column(3, "kind", STRING))
    values = (None, b"", b"\xff", None, b"\x00\x01")
    table = in_memory("t", columns, "kind", *({"id": n, "data": value} for n, value in enumerate(values)))
    before = multiset(scan_rows(table))
    result = compact(table, no_spark, sort_order=f"{curve}(id, data)", options={"rewrite-all": "true"})
    assert (result.rewritten_data_files_count, result.added_data_files_count) == (2, 1)
    assert multiset(scan_rows(table.refresh())) == before


@for_each("function", [compact, plan_compact])
def test_unknown_output_spec_id_is_refused(function: Any) -> None:
    table = in_memory("t", (column(1, "kind", STRING),), "kind", {"kind": "a"})
    with pytest.raises(NotFoundError, match=r"the table has no partition spec 7 \(option output-spec-id\); it has 0"):
        function(table, no_spark, options={"rewrite-all": "true", "output-spec-id": "7"})
    assert table.refresh().metadata == table.metadata


def test_dry_run_accepts_unknown_record_counts() -> None:
    """Earlier versions of Iceberg imported files of Avro with -1. They are read only when they are rewritten."""
    table = in_memory("t", (column(1, "kind", STRING),), "kind", {"kind": "a"})
    files = data_files(table)
    table = commit(table, DeleteFiles(paths=frozenset(file.file_path for file in files))).table
    table = commit(table, AppendFiles(files=tuple(replace(file, record_count=-1) for file in files))).table
    table = commit(table, RowDelta(added_deletes=position_delete_files(table, [(files[0], 0)]))).table
    options = {"rewrite-all": "true", "target-file-size-bytes": str(files[0].file_size_in_bytes)}
    plan = plan_compact(table, no_spark, options=options)
    assert (plan.rewritten_data_files_count, plan.added_data_files_count, plan.removed_delete_files_count) == (2, 2, 1)


def test_a_large_file_is_split_at_its_row_groups(lake: Lake) -> None:
    table = lake.create(partition_by=(), write__parquet__row_group_size_bytes="20000")
    table = append(table, events(1, 20_000))
    before = lake.rows()
    assert table.metadata.current_snapshot is not None
    size = int((table.metadata.current_snapshot.summary or {})["total-files-size"])
    options = {"target-file-size-bytes": str(size // 4), "max-file-size-bytes": str(size // 3)}
    result = compact(table, no_spark, options=options)
    assert result.rewritten_data_files_count == 1
    assert 3 <= result.added_data_files_count <= 6
    assert lake.rows() == before


def test_a_file_group_holds_no_more_than_its_greatest_size(lake: Lake) -> None:
    table = lake.filled()
    plan = plan_compact(table, no_spark, options={"max-file-group-input-files": "3", "min-input-files": "2"})
    assert [group.files_count for group in plan.groups] == [3, 3] * 3
    assert plan.groups[0].partition == "at_month=2013-01"


def test_a_branch_is_compacted_and_main_stays_as_it_was(any_lake: Lake) -> None:
    table = create_branch(any_lake.filled(), "audit")
    for number in range(3):
        table = append(table, events(800 + number, month=2), branch="audit")
    table = append(table, events(900))
    main, main_rows, main_files = table.metadata.current_snapshot_id, any_lake.rows(), live_files(any_lake)
    rows = branch_rows(any_lake, "audit")
    assert rows != main_rows
    head = table.metadata.head("audit")
    assert head is not None
    plan = plan_compact(table, no_spark, branch="audit")
    assert (plan.branch, plan.snapshot_id) == ("audit", head.snapshot_id)
    result = compact(table, no_spark, branch="audit")
    assert (result.rewritten_data_files_count, result.added_data_files_count) == (21, 3)
    after = any_lake.load().metadata
    assert (after.current_snapshot_id, live_files(any_lake), any_lake.rows()) == (main, main_files, main_rows)
    new = after.head("audit")
    assert new is not None
    assert (new.parent_snapshot_id, new.operation) == (head.snapshot_id, "replace")
    assert branch_rows(any_lake, "audit") == rows
    scan = any_lake.foreign().scan(snapshot_id=new.snapshot_id)
    assert len(list(scan.plan_files())) == 3
    # The files keep the number of the branch's start, not that of main's later commit.
    foreign = any_lake.foreign()
    [manifest] = [m for m in new_manifests(foreign, new.snapshot_id) if m.added_files_count]
    assert {e.sequence_number for e in manifest.fetch_manifest_entry(foreign.io)} == {head.sequence_number}


def branch_rows(lake: Lake, branch: str) -> object:
    """The rows of a branch as PyIceberg reads them."""
    table = lake.foreign()
    return multiset(table.scan(snapshot_id=table.metadata.refs[branch].snapshot_id).to_arrow())


def new_manifests(table: Any, snapshot_id: int) -> list[Any]:
    return [m for m in table.snapshot_by_id(snapshot_id).manifests(table.io) if m.added_snapshot_id == snapshot_id]


def test_failed_rewrite_leaves_table_and_files_unchanged(lake: Lake) -> None:
    """apache/iceberg #12545: failed rewrites left their new files."""
    table = lake.filled()
    victim = Path(urlparse(live_files(lake)[7]).path)
    content = victim.read_bytes()
    victim.unlink()
    files = lake.content_on_disk()
    with pytest.raises(JobFailedError, match=victim.name):
        compact(table, no_spark, options={"max-concurrent-file-group-rewrites": "1"})
    after = lake.load().metadata
    assert (after.snapshots, after.refs) == (table.metadata.snapshots, table.metadata.refs)
    assert lake.content_on_disk() == files
    victim.write_bytes(content)
    assert compact(lake.load(), no_spark).rewritten_data_files_count == 18


def test_partial_progress_reports_failed_groups(lake: Lake) -> None:
    """apache/iceberg #16971: commits are counted, not subtracted."""
    table = lake.filled()
    Path(urlparse(live_files(lake)[7]).path).unlink()
    options = {"partial-progress.enabled": "true", "partial-progress.max-commits": "3"}
    heard: list[Event] = []

    class Ear:
        def on(self, event: Event) -> None:
            heard.append(event)

    result = compact(table, no_spark, options=options, listener=Ear())
    assert (result.status, result.commits_count) == ("partial", 2)
    assert (result.rewritten_data_files_count, result.failed_data_files_count) == (12, 6)
    assert any(isinstance(event, Warned) for event in heard)
    assert len(live_files(lake)) == 2 + 6


def test_rows_that_pyiceberg_appends_while_it_runs_are_all_there(lake: Lake) -> None:
    table = lake.filled()
    foreign = lake.foreign_catalog().load_table(EVENTS)
    foreign.append(events(900, 30))
    foreign.append(events(901, 30, month=2))
    before = lake.rows()
    compact(table, no_spark)
    assert lake.rows() == before
    assert sum(before.values()) == 360 + 60


def test_what_pyiceberg_deletes_while_it_runs_stays_deleted(lake: Lake) -> None:
    """StarRocks PR #77709: a rewrite that does not see a concurrent delete brings rows back."""
    table = lake.filled()
    # It writes the file anew without the row, so the group that had it is planned once more.
    lake.foreign_catalog().load_table(EVENTS).delete("id == 1000001")
    before = lake.rows()
    result = compact(table, no_spark)
    assert lake.rows() == before
    assert (result.status, result.planned_anew_files_count) == ("done", 6)


def test_a_table_that_pyiceberg_made_is_compacted(lake: Lake) -> None:
    foreign = lake.foreign_catalog().create_table(EVENTS, SCHEMA)
    for number in range(7):
        foreign.append(events(number))
    before = lake.rows()
    result = compact(lake.load(), no_spark)
    assert (result.rewritten_data_files_count, result.added_data_files_count) == (7, 1)
    assert lake.rows() == before


def test_files_of_older_schemas_get_the_current_schema(lake: Lake) -> None:
    lake.filled(commits=3)
    with lake.foreign_catalog().load_table(EVENTS).update_schema() as update:
        update.rename_column("kind", "sort_of")
        update.add_column("note", pa_string())
        update.delete_column("amount")
    with lake.foreign_catalog().load_table(EVENTS).update_schema() as update:
        update.move_first("at")
    before = lake.rows()
    result = compact(lake.load(), no_spark, options={"min-input-files": "2"})
    assert result.rewritten_data_files_count == 9
    assert lake.rows() == before
    [path, *_] = live_files(lake)
    assert pq.read_schema(urlparse(path).path).names == ["at", "id", "sort_of", "tags", "note"]


def pa_string() -> object:
    from pyiceberg.types import StringType

    return StringType()


def test_files_of_an_older_spec_move_to_the_current_spec(lake: Lake) -> None:
    """apache/iceberg #15465: after the partitioning changed small files were left behind."""
    lake.filled(commits=3)
    with lake.foreign_catalog().load_table(EVENTS).update_spec() as update:
        update.add_identity("kind")
    table, before = lake.load(), lake.rows()
    [group] = plan_compact(table, no_spark).groups
    assert (group.files_count, group.method) == (9, "sort")
    result = compact(table, no_spark)
    assert result.rewritten_data_files_count == 9
    assert lake.rows() == before
    files = lake.foreign().inspect.files().to_pylist()
    assert {file["spec_id"] for file in files} == {1}
    # A file holds rows of its own partition only: what the path says is what its bounds say.
    kinds = {(file["partition"]["kind"], file["readable_metrics"]["kind"]["lower_bound"]) for file in files}
    assert len(kinds) == 6
    assert all(partition == lower for partition, lower in kinds)
    assert compact(lake.load(), no_spark).rewritten_data_files_count == 0


def test_properties_of_the_table_are_honoured(lake: Lake) -> None:
    table = lake.filled(commits=2, files=6)
    change = ChangeProperties(updates={"write.parquet.compression-codec": "gzip", "write.data.path": "elsewhere"})
    table = commit(table, change).table
    compact(table, no_spark)
    paths = live_files(lake)
    assert all("/elsewhere/at_month=" in path for path in paths)
    assert pq.read_metadata(urlparse(paths[0]).path).row_group(0).column(0).compression == "GZIP"


@pytest.fixture(autouse=True)
def no_other_files(tmp_path: Path) -> Iterator[None]:
    """Nothing is ever written outside the lake's directory."""
    yield
    assert {p.name for p in tmp_path.iterdir()} <= {"catalog.db", "warehouse", "catalog.db-wal", "catalog.db-shm"}


def test_one_bucket_is_rewritten_and_the_others_stay(lake: Lake) -> None:
    table = lake.create([("id", "bucket[2]")])
    for number in range(6):
        table = append(table, [events(number)])
    before, rows = {*live_files(lake)}, lake.rows()
    result = compact(table, no_spark, where="local.system.bucket(2, id) = 0")
    assert (result.rewritten_data_files_count, result.added_data_files_count) == (6, 1)
    assert before - {*live_files(lake)} == {path for path in before if "/id_bucket=0/" in path}
    assert lake.rows() == rows


def test_bucket_filter_applies_to_an_unbucketed_table(lake: Lake) -> None:
    table = append(lake.create(), [events(0)])
    ids = events(0)["id"].to_pylist()
    for number in range(3):
        found = read_table(table, where=f"bucket(3, id) = {number} AND id < 10")["id"].to_pylist()
        assert sorted(found) == [one for one in ids if Bucket(3).apply(LONG, one) == number and one < 10]


def test_summary_has_user_keys_and_carried_keys(tmp_path: Path) -> None:
    """Only keys that the operator configures are carried over from the previous snapshot."""
    lake = Lake(tmp_path)
    lake.catalog = open_catalog("local", {**lake.properties, "carry.summary-keys": "pipeline-id, custom.*"})
    table = lake.create()
    for number in range(6):
        table = append(table, [events(number)], summary={"pipeline-id": str(number), "custom.at": "x", "theirs": "y"})
    result = compact(table, no_spark, snapshot_properties={"ticket": "OPS-7", "custom.at": "mine"})
    assert result.rewritten_data_files_count == 6
    summary = lake.foreign().current_snapshot().summary
    assert {key: summary[key] for key in ("ticket", "pipeline-id", "custom.at")} == {
        "ticket": "OPS-7",
        "pipeline-id": "5",
        "custom.at": "mine",
    }
    assert "theirs" not in summary.additional_properties


def test_reserved_summary_key_is_refused_up_front(lake: Lake) -> None:
    with pytest.raises(UsageError, match="'total-records' cannot be a key of your own"):
        compact(lake.create(), no_spark, snapshot_properties={"total-records": "0"})
