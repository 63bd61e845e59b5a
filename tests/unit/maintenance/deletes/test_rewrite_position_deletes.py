"""Position delete files are merged, or become vectors, and no row changes: real tables, read before and after by two readers."""

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import Struct
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.live_files import live_manifests, remove
from icekeep.commit.retry import commit
from icekeep.errors import JobFailedError, OptionError, UsageError
from icekeep.events import StepAdvanced, Warned
from icekeep.formats.deletes.read import read_all_position_deletes, write_position_deletes
from icekeep.formats.puffin import VectorTarget, read_deletion_vector, write_deletion_vectors
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes import plan as planner
from icekeep.maintenance.deletes.job import (
    RewritePositionDeletesResult,
    plan_rewrite_position_deletes,
    rewrite_position_deletes,
)
from icekeep.spec.evolution import AddColumn, AddPartitionField, DropColumn, RemovePartitionField, RenameColumn
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_directory
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.schema import DELETE_FILE_PATH, Schema
from icekeep.spec.types import LONG, STRING, StructType
from icekeep.spec.updates import Update
from icekeep.tables.read import read_table
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import (
    append,
    create_table,
    rollback_to_snapshot,
    update_schema,
    update_spec,
    upgrade_format_version,
)
from kit.cases import for_each
from kit.columns import EVERY_TYPE, column, schema_of, table_of
from kit.deletes import AddDeleteFile, data_files, delete_by_vector, delete_positions
from kit.lake import SCHEMA, Lake, events, multiset
from kit.memory_catalog import MemoryCatalog
from kit.naive_scan import live_entries, scan_rows
from kit.runtime import limited, no_spark

NAMES = count()
PATH_ID = DELETE_FILE_PATH.field_id


def deletes_of(table: Table) -> list[DataFile]:
    files = [entry.data_file for entry in live_entries(table)]
    return [file for file in files if file.content is FileContent.POSITION_DELETES]


def ours(lake: Lake) -> Counter[str]:
    return multiset(read_table(lake.load()))


def check(lake: Lake, before: Counter[str], **arguments: Any) -> Table:
    """No row changed, for us and, where it can read them, for PyIceberg; and a second run finds nothing to do."""
    table = lake.load()
    assert ours(lake) == before
    if table.metadata.format_version < 3 and all(file.file_format != "AVRO" for file in deletes_of(table)):
        assert lake.rows() == before
    assert multiset(scan_rows(table)) == before
    again = rewrite_position_deletes(table, no_spark, **arguments)
    assert again == replace(RewritePositionDeletesResult(), elapsed_ms=again.elapsed_ms, run_id=again.run_id)
    assert lake.load().metadata.current_snapshot_id == table.metadata.current_snapshot_id
    return table


def many(table: Table, rounds: int = 6, file_format: str = "PARQUET") -> Table:
    """In each commit a position delete file for all data files of one partition; some positions more than once."""
    by_partition: dict[Any, list[str]] = {}
    for file in data_files(table):
        by_partition.setdefault((file.spec_id, file.partition), []).append(file.file_path)
    for number in range(rounds):
        for paths in by_partition.values():
            table = delete_positions(table, [(path, n) for path in paths for n in (number, 0)], file_format)
    return table


def added(table: Table, *pairs: tuple[str, int], row_type: StructType | None = None, rows: Any = None) -> Table:
    """The table with a position delete file that nobody looks at: its data files may not be there."""
    target = next((file for file in data_files(table) if file.file_path == pairs[0][0]), None)
    positions: Any = list(pairs)
    if rows is not None:
        positions = pa.table({"file_path": [p for p, _ in pairs], "pos": [n for _, n in pairs], "row": rows})
    file = write_position_deletes(
        table.storage,
        f"{data_directory(table.metadata)}/added-{next(NAMES)}.parquet",
        "PARQUET",
        positions,
        spec_id=table.metadata.default_spec_id if target is None else target.spec_id,
        partition=() if target is None else target.partition,
        row_type=row_type,
    )
    return commit(table, AddDeleteFile(file)).table


class RemoveData(Struct, frozen=True):
    """A change that removes data files and leaves all deletes, as other writers do."""

    removed: tuple[ManifestEntry, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        manifests = live_manifests(attempt, "main")
        kept = remove(manifests.data, attempt, as_read=self.removed)
        return attempt.snapshot_updates("delete", [*kept.manifests, *manifests.deletes], kept.summary)


class Meanwhile:
    """A listener that does something once, when the first group has been rewritten."""

    def __init__(self, act: Any) -> None:
        self.act: Any = act
        self.warnings: list[str] = []

    def on(self, event: Any) -> None:
        if isinstance(event, Warned):
            self.warnings.append(event.message)
        if isinstance(event, StepAdvanced) and self.act is not None:
            act, self.act = self.act, None
            act()


@pytest.mark.parametrize("file_format", ["PARQUET", "ORC", "AVRO"])
def test_partition_granularity_makes_one_file_per_partition(lake: Lake, file_format: str) -> None:
    """Each position is in it once."""
    table = lake.filled(write__delete__granularity="partition", write__delete__format__default=file_format.lower())
    table = many(table, file_format=file_format)
    before = ours(lake)
    seen = plan_rewrite_position_deletes(table, no_spark)
    result = rewrite_position_deletes(table, no_spark)
    assert (result.rewritten_delete_files_count, result.added_delete_files_count) == (18, 3)
    assert (seen.rewritten_delete_files_count, seen.rewritten_bytes_count) == (18, result.rewritten_bytes_count)
    assert [group.files_count for group in seen.groups] == [6, 6, 6]
    table = check(lake, before)
    newest = {}
    for entry in live_entries(table):
        if entry.data_file.content is FileContent.POSITION_DELETES:
            newest[entry.data_file.partition] = entry.sequence_number
            file = entry.data_file
            found = read_all_position_deletes(table.storage, file, 1 << 20)
            assert found is not None
            assert sum(map(len, found.values())) == file.record_count == 6 * 6
            bounds = [min(found).encode(), max(found).encode()]
            assert [file.lower_bounds[PATH_ID], file.upper_bounds[PATH_ID]] == bounds
            assert (file.file_format, file.referenced_data_file) == (file_format, None)
    # The 18 commits of deletes came after the 6 of data, by turns of the partitions.
    assert sorted(newest.values()) == [22, 23, 24]
    assert table.metadata.current_snapshot.summary["operation"] == "replace"
    assert table.metadata.current_snapshot.summary["total-position-deletes"] == str(3 * 36)


def test_merged_by_file_each_data_file_has_one_file_that_says_so(lake: Lake) -> None:
    table = many(lake.filled(commits=3), rounds=5)
    before = ours(lake)
    result = rewrite_position_deletes(table, no_spark)
    assert (result.rewritten_delete_files_count, result.added_delete_files_count) == (15, 9)
    table = check(lake, before)
    assert {file.referenced_data_file for file in deletes_of(table)} == {f.file_path for f in data_files(table)}
    assert result.added_bytes_count == sum(file.file_size_in_bytes for file in deletes_of(table))


@pytest.mark.parametrize("names_file", [True, False])
def test_file_scoped_deletes_stay_and_others_are_merged(lake: Lake, names_file: bool) -> None:
    table = lake.filled(commits=1, files=9)
    paths = [file.file_path for file in data_files(table)]
    for path in paths:
        table = delete_positions(table, [(path, 1)], names_file=names_file)
    assert rewrite_position_deletes(table, no_spark).commits_count == 0
    for path in paths[:3]:
        table = delete_positions(table, [(path, 2)], names_file=names_file)
    before = ours(lake)
    result = rewrite_position_deletes(table, no_spark)
    assert (result.rewritten_delete_files_count, result.added_delete_files_count) == (6, 3)
    check(lake, before)
    everything = rewrite_position_deletes(lake.load(), no_spark, options={"rewrite-all": "true"})
    assert (everything.rewritten_delete_files_count, everything.added_delete_files_count) == (9, 9)
    check(lake, before)


def test_deleted_row_values_are_written_to_their_own_files(lake: Lake) -> None:
    table = lake.filled(commits=1, files=2, write__delete__granularity="partition")
    schema = table.metadata.schema
    kept = StructType(tuple(replace(field, required=False) for field in schema.fields[:2]))
    a, b = (file.file_path for file in data_files(table))
    table = added(table, (a, 3), (b, 1), row_type=kept, rows=[{"id": 3, "kind": "x"}, {"id": 1, "kind": None}])
    table = added(table, (a, 1), (a, 3), row_type=kept, rows=[{"id": 7, "kind": "y"}, {"id": 3, "kind": "x"}])
    for pairs in ([(a, 3)], [(b, 5), (a, 2)], [(b, 1), (b, 6)]):
        table = added(table, *pairs)
    before = ours(lake)
    result = rewrite_position_deletes(table, no_spark)
    assert (result.rewritten_delete_files_count, result.added_delete_files_count) == (5, 2)
    table = check(lake, before)
    plain, valued = sorted(
        (pq.read_table(table.storage.open(file.file_path)) for file in deletes_of(table)), key=lambda t: t.num_columns
    )
    assert plain.to_pydict() == {"file_path": [a, b, b], "pos": [2, 5, 6]}
    assert [(*row.values(),)[:2] for row in valued.to_pylist()] == [(a, 1), (a, 3), (b, 1)]
    assert [row["row"]["id"] for row in valued.to_pylist()] == [7, 3, 1]
    assert [row["row"]["kind"] for row in valued.to_pylist()] == ["y", "x", None]
    assert not valued.schema.field("row").nullable


def test_second_run_leaves_file_scoped_row_values(lake: Lake) -> None:
    table = lake.filled(commits=1, files=5)
    schema = table.metadata.schema
    kept = StructType(tuple(replace(field, required=False) for field in schema.fields[:1]))
    for file in data_files(table):
        table = added(table, (file.file_path, 3), row_type=kept, rows=[{"id": 3}])
        table = added(table, (file.file_path, 4))
    # They are as they would come out.
    assert rewrite_position_deletes(table, no_spark).commits_count == 0
    for file in data_files(table):
        table = added(table, (file.file_path, 5), row_type=kept, rows=[{"id": 5}])
    before = ours(lake)
    result = rewrite_position_deletes(table, no_spark)
    assert (result.rewritten_delete_files_count, result.added_delete_files_count) == (10, 5)
    check(lake, before)


def test_what_reaches_no_data_file_is_dropped_and_counted(lake: Lake) -> None:
    """apache/iceberg #6126: dangling deletes stay for ever."""
    table = lake.filled(commits=1, files=4, write__delete__granularity="partition")
    paths = [file.file_path for file in data_files(table)]
    for number in range(5):
        table = delete_positions(table, [(path, number) for path in paths])
    table = delete_positions(table, [(paths[0], 9)])
    gone = tuple(e for e in live_entries(table) if e.data_file.file_path in paths[:2])
    table = commit(table, RemoveData(gone)).table
    before = ours(lake)
    seen = plan_rewrite_position_deletes(table, no_spark)
    assert seen.removed_dangling_delete_files_count == 1
    result = rewrite_position_deletes(table, no_spark)
    assert result.removed_dangling_delete_files_count == 1
    assert (result.rewritten_delete_files_count, result.removed_dangling_positions_count) == (5, 10)
    table = check(lake, before)
    assert sum(file.record_count for file in deletes_of(table)) == 10
    table = commit(table, RemoveData(tuple(e for e in live_entries(table) if e.data_file.file_path in paths))).table
    result = rewrite_position_deletes(table, no_spark)
    assert (result.removed_dangling_delete_files_count, result.commits_count) == (1, 1)
    assert live_entries(lake.load()) == []


def test_groups_are_of_one_spec_and_partition(lake: Lake) -> None:
    table = many(lake.filled(commits=3, files=2, write__delete__granularity="partition"), rounds=5)
    table = update_spec(table, [RemovePartitionField("at_month"), AddPartitionField("kind")])
    table = append(table, [events(100), events(101)])
    table = many(table, rounds=5)
    before = ours(lake)
    result = rewrite_position_deletes(table, no_spark)
    partitions = Counter((f.spec_id, f.partition) for f in deletes_of(lake.load()))
    assert set(partitions.values()) == {1}
    assert {spec_id for spec_id, _ in partitions} == {0, 1}
    assert result.added_delete_files_count == len(partitions)
    check(lake, before)


WIDE = schema_of(column(1, "key", LONG), *(column(number, f"c{number}", LONG) for number in range(2, 402)))
NESTED = {"numbers": [1, 2], "points": [{"y": 0.5, "at": None}], "counts": [("a", 1)], "deep": [(1, [None])]}


def with_deletes(schema: Schema, *rows: dict[str, Any]) -> Table:
    """A table in memory of two files of the same rows, and two delete files, each for a row of both."""
    catalog = MemoryCatalog()
    catalog.create_namespace(("db",))
    properties = {"write.delete.granularity": "partition"}
    table = create_table(catalog, ("db", "t"), schema, properties=properties)
    table = append(table, [table_of(table.schema, [*rows]) for _ in range(2)])
    for position in (0, 1):
        table = delete_positions(table, [(file.file_path, position) for file in data_files(table)])
    return table


def check_merged(table: Table) -> None:
    """Two delete files become one, no row changes, and the snapshot has the caller's key."""
    before = multiset(scan_rows(table))
    arguments: dict[str, Any] = {"options": {"rewrite-all": "true"}, "snapshot_properties": {"ticket": "OPS-7"}}
    result = rewrite_position_deletes(table, no_spark, **arguments)
    assert (result.rewritten_delete_files_count, result.added_delete_files_count) == (2, 1)
    table = table.refresh()
    assert multiset(scan_rows(table)) == before
    assert table.metadata.current_snapshot.summary["ticket"] == "OPS-7"


@for_each("schema", [EVERY_TYPE, WIDE], ids=lambda schema: len(schema.fields))
def test_deletes_of_nested_and_wide_tables_are_merged(schema: Schema) -> None:
    check_merged(with_deletes(schema, {"key": 0}, {"key": 1, **NESTED}, {"key": 2, **NESTED}))


def test_deletes_from_before_schema_changes_are_merged() -> None:
    schema = schema_of(column(1, "id", LONG), column(2, "kind", STRING), column(3, "old", STRING))
    table = with_deletes(schema, *({"id": n, "kind": str(n), "old": str(n)} for n in range(4)))
    table = update_schema(table, [DropColumn("old"), RenameColumn("kind", "sort"), AddColumn("new", LONG)])
    check_merged(append(table, table_of(table.schema, [{"id": 9, "sort": "9", "new": 9}])))


def test_filter_selects_partitions_on_one_branch(lake: Lake) -> None:
    table = many(lake.filled(commits=3, write__delete__granularity="partition"))
    table = create_branch(table, "audit")
    main = table.metadata.current_snapshot_id
    where = "at >= '2013-02-01' and at < '2013-03-01'"
    result = rewrite_position_deletes(table, no_spark, where=where, branch="audit")
    assert (result.rewritten_delete_files_count, result.added_delete_files_count) == (6, 1)
    table = lake.load()
    assert table.metadata.current_snapshot_id == main
    before = ours(lake)
    assert multiset(read_table(table, ref="audit")) == before
    assert rewrite_position_deletes(table, no_spark, where=where, branch="audit").commits_count == 0
    assert rewrite_position_deletes(table, no_spark, branch="audit").rewritten_delete_files_count == 12


def test_a_table_without_position_deletes_is_left_alone(lake: Lake) -> None:
    for version in (1, 2, 3):
        table = create_table(lake.catalog, ("db", f"v{version}"), SCHEMA, format_version=version)
        assert rewrite_position_deletes(table, no_spark).commits_count == 0
        table = append(table, [events(1)])
        assert rewrite_position_deletes(table, no_spark, options={"rewrite-all": "true"}).commits_count == 0


def test_version_3_turns_position_deletes_into_vectors(lake: Lake) -> None:
    table = many(lake.filled(commits=3), rounds=3)
    table = upgrade_format_version(table, 3)
    with_vector = data_files(table)[0].file_path
    table = delete_by_vector_of_all(table, with_vector, 11)
    old = [file for file in deletes_of(table) if is_deletion_vector(file)]
    before = ours(lake)
    seen = plan_rewrite_position_deletes(table, no_spark)
    assert (seen.becomes, seen.rewritten_delete_files_count) == ("vectors", 9)
    result = rewrite_position_deletes(table, no_spark)
    assert (result.rewritten_delete_files_count, result.added_delete_files_count) == (9, 8)
    # Two positions a commit, of three commits: one vector holds them already.
    assert result.replaced_positions_count == 5
    table = check(lake, before)
    vectors = deletes_of(table)
    assert all(map(is_deletion_vector, vectors))
    assert {file.referenced_data_file for file in vectors} == {file.file_path for file in data_files(table)}
    assert [file for file in vectors if file.referenced_data_file == with_vector] == old
    # One Puffin file a group.
    assert len({file.file_path for file in vectors}) == 3 + 1
    assert result.added_bytes_count == sum(f.content_size_in_bytes or 0 for f in vectors if f not in old)


def test_vectors_of_data_files_that_are_gone_are_dropped(lake: Lake) -> None:
    table = lake.filled(commits=1, files=2, format_version=3)
    a, b = (file.file_path for file in data_files(table))
    table = delete_by_vector(delete_by_vector(table, a, [1]), b, [2])
    table = commit(table, RemoveData(tuple(e for e in live_entries(table) if e.data_file.file_path == a))).table
    before = ours(lake)
    result = rewrite_position_deletes(table, no_spark)
    assert result.removed_dangling_delete_files_count == 1
    table = check(lake, before)
    assert [file.referenced_data_file for file in deletes_of(table)] == [b]


@pytest.mark.parametrize("granularity", ["file", "partition"])
def test_large_groups_are_shared_by_tasks(lake: Lake, granularity: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(planner, "_FILES_A_TASK", 4)
    table = many(lake.filled(commits=1, files=7, write__delete__granularity=granularity), rounds=12)
    before = ours(lake)
    result = rewrite_position_deletes(table, limited(no_spark, delete_group_files_count=0))
    assert result.added_delete_files_count == (7 if granularity == "file" else 1)
    names = {Path(file.file_path).name[:5] for file in deletes_of(lake.load())}
    assert len(names) == (3 if granularity == "file" else 1)
    check(lake, before)


def test_partial_progress_commits_in_batches(lake: Lake) -> None:
    table = many(lake.filled(commits=3))
    before = ours(lake)
    options = {"partial-progress.enabled": "true", "partial-progress.max-commits": "2"}
    result = rewrite_position_deletes(table, no_spark, options=options)
    assert (result.commits_count, result.status, result.rewritten_delete_files_count) == (2, "done", 18)
    check(lake, before)


def test_unreadable_delete_file_fails_the_run_cleanly(lake: Lake) -> None:
    table = many(lake.filled(commits=3))
    broken = Path(urlparse(deletes_of(table)[0].file_path).path)
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    on_disk = lake.content_on_disk()
    with pytest.raises(JobFailedError, match="cannot rewrite 6 delete files of partition"):
        rewrite_position_deletes(table, no_spark)
    assert lake.content_on_disk() == on_disk
    result = rewrite_position_deletes(table, no_spark, options={"partial-progress.enabled": "true"})
    assert (result.status, result.rewritten_delete_files_count, result.failed_delete_files_count) == ("partial", 12, 6)
    broken.write_bytes(whole)
    assert rewrite_position_deletes(lake.load(), no_spark).rewritten_delete_files_count == 6


def test_revived_data_file_makes_its_group_planned_again(lake: Lake) -> None:
    """Deletes that were dropped as dangling are not lost; nobody's rows come back."""
    table = many(lake.filled(commits=3, write__delete__granularity="partition"))
    before, head = ours(lake), table.metadata.current_snapshot_id
    victim = data_files(table)[0]
    gone = tuple(e for e in live_entries(table) if e.data_file.file_path == victim.file_path)
    table = commit(table, RemoveData(gone)).table
    listener = Meanwhile(lambda: rollback_to_snapshot(lake.load(), head))
    result = rewrite_position_deletes(table, no_spark, listener=listener)
    assert "is live, and deletes of its rows were dropped" in listener.warnings[0]
    assert (result.commits_count, result.removed_dangling_positions_count) == (1, 0)
    # The two groups that nothing happened to were not written again.
    assert result.rewritten_delete_files_count == 18
    table = check(lake, before)
    assert len(lake_delete_files(lake)) == 18 + 3


def test_others_that_rewrite_the_same_files_are_no_harm(lake: Lake) -> None:
    table = many(lake.filled(commits=3, write__delete__granularity="partition"))
    before = ours(lake)
    listener = Meanwhile(lambda: rewrite_position_deletes(lake.load(), no_spark))
    result = rewrite_position_deletes(table, no_spark, listener=listener)
    assert (result.commits_count, result.rewritten_delete_files_count) == (0, 0)
    check(lake, before)
    assert len(lake_delete_files(lake)) == 18 + 3


def test_concurrent_vector_replaces_the_merged_positions(lake: Lake) -> None:
    table = upgrade_format_version(many(lake.filled(commits=3), rounds=2), 3)
    victim = data_files(table)[0].file_path
    before = ours(lake)
    listener = Meanwhile(lambda: delete_by_vector_of_all(lake.load(), victim, 13))
    result = rewrite_position_deletes(table, no_spark, listener=listener)
    assert "was given a deletion vector by others" in listener.warnings[0]
    assert result.added_delete_files_count == 8
    table = lake.load()
    (vector,) = (file for file in deletes_of(table) if file.referenced_data_file == victim)
    assert [*read_deletion_vector(table.storage, vector)] == [0, 1, 13]
    after = ours(lake)
    assert (before - after).total() == 1
    check(lake, after)


def test_concurrent_compaction_is_no_conflict(lake: Lake) -> None:
    table = many(lake.filled(commits=3, write__delete__granularity="partition"))
    before = ours(lake)
    listener = Meanwhile(lambda: compact(lake.load(), no_spark, options={"rewrite-all": "true"}))
    rewrite_position_deletes(table, no_spark, listener=listener)
    check(lake, before)
    # New files may lie between the bounds of what is left; its rows say that they are for none of them.
    rewrite_position_deletes(lake.load(), no_spark, options={"rewrite-all": "true"})
    assert deletes_of(check(lake, before)) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max-files-to-rewrite": "1"}, OptionError),
        ({"min-file-size-bytes": "70000000"}, OptionError),
        ({"target-file-size-bytes": "0"}, OptionError),
        ({"partial-progress.enabled": "yes please"}, OptionError),
    ],
)
def test_options_that_iceberg_does_not_take_are_refused(
    lake: Lake, options: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        rewrite_position_deletes(lake.filled(commits=1), no_spark, options=options)


def test_a_property_that_is_wrong_is_refused(lake: Lake) -> None:
    with pytest.raises(UsageError, match=r"write\.delete\.granularity"):
        rewrite_position_deletes(lake.filled(commits=1, write__delete__granularity="row"), no_spark)


def test_fewer_files_than_min_input_files_are_left(lake: Lake) -> None:
    table = many(lake.filled(commits=1, write__delete__granularity="partition"), rounds=4)
    assert rewrite_position_deletes(table, no_spark).commits_count == 0
    result = rewrite_position_deletes(table, no_spark, options={"min-input-files": "4"})
    assert (result.rewritten_delete_files_count, result.added_delete_files_count) == (4, 1)


def delete_by_vector_of_all(table: Table, path: str, position: int) -> Table:
    """The table with a vector as a writer makes it: with all that older delete files delete."""
    older = [
        positions.tolist()
        for file in deletes_of(table)
        for named, positions in (read_all_position_deletes(table.storage, file, 1 << 20) or {}).items()
        if named == path and not is_deletion_vector(file)
    ]
    target = next(file for file in data_files(table) if file.file_path == path)
    positions = BitMap64([position, *(n for some in older for n in some)])
    vector = VectorTarget(location=path, spec_id=target.spec_id, partition=target.partition)
    location = f"{data_directory(table.metadata)}/vector-{next(NAMES)}.puffin"
    files = write_deletion_vectors(table.storage, location, [(vector, positions)])
    start = table.metadata.current_snapshot_id
    return commit(table, RowDelta(added_deletes=files, starting_snapshot_id=start)).table


def lake_delete_files(lake: Lake) -> list[Path]:
    """Delete files on disk, of whatever snapshot."""
    return [path for path in lake.files_on_disk() if "delete" in path.name]
