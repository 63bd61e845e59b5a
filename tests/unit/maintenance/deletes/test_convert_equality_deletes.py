"""Equality deletes become deletes of positions, and every row stays as it was: generated tables of every make.

Evolved schemas and partition specs, nulls and NaN among the keys, Parquet, ORC and Avro, both format versions with deletes.
Afterwards a reader that knows no equality deletes has the rows (apache/iceberg #12280, #13674, #10312).
"""

import pyarrow as pa
import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles, DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import InvalidTableError, OptionError, UsageError
from icekeep.maintenance.deletes.equality import (
    ConvertEqualityDeletesPlan,
    ConvertEqualityDeletesResult,
    convert_equality_deletes,
    plan_convert_equality_deletes,
)
from icekeep.planning.spark.tasks import run_tasks
from icekeep.spec.evolution import AddPartitionField
from icekeep.spec.manifests.structs import FileContent
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import create_table, update_spec, upgrade_format_version
from kit.cases import Choices, chosen_of
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions
from kit.lake import Lake
from kit.naive_scan import lineage_of, live_entries, naive_rows
from kit.numbered_rows import SCHEMA, Intruder, added, deletes_of, gone, ids_of, made, places
from kit.row_histories import FORMATS, History, in_memory
from kit.rows import scanned_rows
from kit.runtime import limited, no_spark

TABLES = 16
VERSIONS = (2, 2, 3, 3)
KINDS = ("append", "append", "positions", "equality", "equality", "upsert", "column", "spec")


@pytest.mark.parametrize("seed", chosen_of(TABLES, (1, 3, 4, 6, 9, 11, 15)))
def test_no_row_comes_or_goes(seed: int) -> None:
    history = History.of(seed, in_memory(), VERSIONS, KINDS)
    granularity = Choices(seed).choice(("file", "partition"))
    table = history.table
    equality, vectors = deletes_of(table), deletes_of(table, FileContent.POSITION_DELETES)
    before = lineage_of(table) if history.version == 3 else {}
    assert equality
    result = convert_equality_deletes(table, no_spark, options={"delete-granularity": granularity})
    after = history.table
    assert not deletes_of(after)
    assert history.by.rows() == history.expected()
    # No equality delete is needed any more.
    assert naive_rows(after) == history.expected()
    removed = result.converted_equality_delete_files_count + result.removed_dangling_equality_delete_files_count
    assert removed == len(equality)
    assert result.converted_bytes_count == sum(file.file_size_in_bytes for file in equality)
    left = deletes_of(after, FileContent.POSITION_DELETES)
    assert len(left) == len(vectors) + result.added_delete_files_count - result.removed_position_delete_files_count
    if history.version == 3:
        ids = lineage_of(after)
        assert {i: before[i] for i in ids} == ids
        named = [file.referenced_data_file for file in left]
        assert len(named) == len(set(named))
        assert {file.file_format for file in left} <= {"PUFFIN"}
    snapshot = after.metadata.current_snapshot
    assert snapshot is not None
    assert snapshot.operation == ("delete" if result.added_delete_files_count else "overwrite")
    check_second_run(after)


def check_second_run(table: Table) -> None:
    again = convert_equality_deletes(table, no_spark)
    assert replace(again, elapsed_ms=0, run_id=None) == ConvertEqualityDeletesResult()
    assert table.catalog.load(table.identifier).metadata.current_snapshot_id == table.metadata.current_snapshot_id


@pytest.mark.nightly
def test_the_tables_above_have_what_they_are_to_have() -> None:
    """Both versions, formats, several specs and schemas, deletes of each kind, rows that are deleted and left."""
    histories = [History.of(seed, in_memory(), VERSIONS, KINDS) for seed in range(TABLES)]
    files = [entry.data_file for one in histories for entry in live_entries(one.table)]
    assert {one.version for one in histories} == {2, 3}
    assert {file.content for file in files} == set(FileContent)
    assert {f.file_format.upper() for f in files if f.content is FileContent.EQUALITY_DELETES} == {*FORMATS}
    assert sum(f.content is FileContent.EQUALITY_DELETES for f in files) > 50
    assert sum(len(one.table.metadata.specs_by_id) > 1 for one in histories) >= 4
    assert sum(len(one.table.metadata.schemas) > 1 for one in histories) >= 4
    assert sum(len(one.model.live) for one in histories) > 100
    assert sum(len(one.model.rows) - len(one.model.live) for one in histories) > 40


@pytest.mark.parametrize("granularity", ["file", "partition"])
def test_granularity_makes_deletes_per_file_or_partition(lake: Lake, granularity: str) -> None:
    table = gone(made(lake, write__delete__granularity=granularity), 1, 2, 6)
    result = convert_equality_deletes(table, no_spark)
    after = lake.catalog.load(table.identifier)
    files = deletes_of(after, FileContent.POSITION_DELETES)
    whole = len(files) == 1 and files[0].referenced_data_file is None
    each = [f.referenced_data_file for f in files] and {f.referenced_data_file for f in files} == {
        f.file_path for f in data_files(after)
    }
    assert whole if granularity == "partition" and len(files) == 1 else each
    assert (result.deleted_positions_count, result.read_records_count) == (3, 10)
    assert ids_of(after) == [0, 3, 4, 5, 7, 8, 9]


@pytest.mark.parametrize(("delete_format", "expected"), [("orc", "ORC"), ("avro", "AVRO"), ("", "PARQUET")])
def test_position_delete_files_have_the_format_of_delete_files(lake: Lake, delete_format: str, expected: str) -> None:
    properties = {"write__delete__format__default": delete_format} if delete_format else {}
    table = gone(made(lake, **properties), 1)
    convert_equality_deletes(table, no_spark)
    [file] = deletes_of(lake.catalog.load(table.identifier), FileContent.POSITION_DELETES)
    assert file.file_format == expected
    assert file.file_path.endswith(f"-deletes.{expected.lower()}")


def test_a_vector_takes_in_the_one_that_was_there(lake: Lake) -> None:
    table = made(lake, version=3)
    first, _ = data_files(table)
    table = gone(delete_by_vector(table, first.file_path, [0, 4]), 2, 7)
    before = ids_of(table)
    result = convert_equality_deletes(table, no_spark)
    after = lake.catalog.load(table.identifier)
    assert sorted(f.record_count for f in deletes_of(after, FileContent.POSITION_DELETES)) in ([1, 3], [2, 2])
    assert (result.removed_position_delete_files_count, result.added_delete_files_count) == (1, 2)
    assert ids_of(after) == before


def test_a_vector_that_has_all_positions_already_stays(lake: Lake) -> None:
    table = made(lake, version=3)
    table = gone(table, 0)
    path = next(f.file_path for f in data_files(table) if f.sort_order_id == 0 and f.record_count == 5)
    rows = {row["id"]: (row["_file"], row["_pos"]) for row in places(table)}
    path, position = rows[0]
    table = delete_by_vector(table, path, [position])
    result = convert_equality_deletes(table, no_spark)
    after = lake.catalog.load(table.identifier)
    assert (result.added_delete_files_count, result.deleted_positions_count) == (0, 1)
    assert len(deletes_of(after, FileContent.POSITION_DELETES)) == 1
    assert ids_of(after) == list(range(1, 10))


def test_vectors_absorb_older_position_delete_files(lake: Lake) -> None:
    table = made(lake)
    rows = {row["id"]: (row["_file"], row["_pos"]) for row in places(table)}
    table = delete_positions(table, [rows[0]])
    table = delete_positions(table, [rows[1], rows[6]])
    table = upgrade_format_version(table, 3)
    table = gone(added(table, [10, 11]), 2, 7)
    result = convert_equality_deletes(table, no_spark)
    after = lake.catalog.load(table.identifier)
    # The one that names two data files stays, though vectors stand for it now.
    assert (result.removed_position_delete_files_count, result.added_delete_files_count) == (1, 2)
    assert ids_of(after) == [3, 4, 5, 8, 9, 10, 11]
    assert naive_rows(after) == scanned_rows(after)


def test_an_equality_delete_that_reaches_nothing_goes_too(lake: Lake) -> None:
    table = made(lake, ("kind", "identity"))
    of_a = [file for file in data_files(table) if file.partition == ("a",)]
    table = gone(table, 0, 6, like=of_a[0])
    table = commit(table, DeleteFiles(paths=frozenset(file.file_path for file in of_a))).table
    planned = plan_convert_equality_deletes(table, no_spark)
    assert planned.removed_dangling_equality_delete_files_count == 1
    assert planned.converted_equality_delete_files_count == 0
    # Nobody reads it, so that however much it is Spark has nothing to do.
    result = convert_equality_deletes(table, limited(no_spark, rewrite_bytes=0))
    after = lake.catalog.load(table.identifier)
    assert result.removed_dangling_equality_delete_files_count == 1
    assert (result.converted_equality_delete_files_count, result.added_delete_files_count) == (0, 0)
    assert not deletes_of(after)
    assert after.metadata.current_snapshot.operation == "overwrite"  # type: ignore[union-attr]
    assert ids_of(after) == [1, 3, 5, 7, 9]


def test_where_chooses_partitions(lake: Lake) -> None:
    table = made(lake, ("kind", "identity"))
    a, b = (next(f for f in data_files(table) if f.partition == (kind,)) for kind in "ab")
    table = gone(gone(table, 0, 6, like=a), 1, 7, like=b)
    preview = plan_convert_equality_deletes(table, no_spark, where="kind = 'a' AND id > 100")
    assert preview == ConvertEqualityDeletesPlan(
        snapshot_id=table.metadata.current_snapshot_id,
        converted_equality_delete_files_count=1,
        converted_bytes_count=preview.converted_bytes_count,
        left_equality_delete_files_count=1,
        read_data_files_count=2,
        read_records_count=5,
    )
    result = convert_equality_deletes(table, no_spark, where="kind = 'a'")
    after = lake.catalog.load(table.identifier)
    assert (result.converted_equality_delete_files_count, result.left_equality_delete_files_count) == (1, 1)
    assert [file.partition for file in deletes_of(after)] == [("b",)]
    assert ids_of(after) == [2, 3, 4, 5, 8, 9]


def test_global_deletes_go_only_if_all_their_data_is_chosen(lake: Lake) -> None:
    table = create_table(lake.catalog, ("db", "t"), SCHEMA)
    table = gone(added(table, range(4)), 0)
    table = update_spec(table, [AddPartitionField("kind", "identity")])
    unpartitioned = data_files(table)[0]
    table = added(table, [4, 6])
    table = gone(table, 1, 4, like=unpartitioned)
    table = added(table, [5, 7])
    table = gone(table, 2, 5, 6, like=unpartitioned)
    before = ids_of(table)
    # The oldest file is in no partition, so any filter may match it; those of kind b are not chosen.
    listener = Intruder(table)
    result = convert_equality_deletes(table, no_spark, where="kind = 'a'", listener=listener)
    assert listener.warnings == [
        "1 equality delete file of 'db.t' stays: they lie in partitions that `where` leaves out, or reach data files there"
    ]
    after = lake.catalog.load(table.identifier)
    assert (result.converted_equality_delete_files_count, result.left_equality_delete_files_count) == (2, 1)
    assert ids_of(after) == before == [3, 7]
    convert_equality_deletes(after, no_spark)
    assert not deletes_of(lake.catalog.load(table.identifier))
    assert ids_of(lake.catalog.load(table.identifier)) == before


def test_a_branch_is_converted_and_no_other(lake: Lake) -> None:
    table = gone(create_branch(made(lake), "audit"), 1)
    table = create_branch(table, "later")
    convert_equality_deletes(table, no_spark, branch="later")
    after = lake.catalog.load(table.identifier)
    assert after.metadata.current_snapshot_id == table.metadata.current_snapshot_id
    assert len(deletes_of(after)) == 1
    assert ids_of(after, "later") == ids_of(after)
    assert plan_convert_equality_deletes(after, no_spark, branch="later").converted_equality_delete_files_count == 0
    assert ids_of(after, "audit") == list(range(10))


def test_wrong_arguments_are_refused(lake: Lake) -> None:
    table = gone(made(lake), 1)
    with pytest.raises(OptionError, match="delete-granularity"):
        convert_equality_deletes(table, no_spark, options={"delete-granularity": "row"})
    wrong = commit(table, ChangeProperties(updates={"write.delete.granularity": "row"})).table
    with pytest.raises(UsageError, match=r"write\.delete\.granularity"):
        plan_convert_equality_deletes(wrong, no_spark)


def test_interrupt_after_some_shares_leaves_no_files(lake: Lake, monkeypatch) -> None:
    table = gone(made(lake), 1)
    before = lake.content_on_disk()

    def interrupted(*given, **named):
        done, _ = run_tasks(*given, **named)
        assert [file.file_path for one in done for file in one.added]
        assert lake.content_on_disk() > before
        raise SystemExit(143)

    monkeypatch.setattr("icekeep.maintenance.deletes.equality.run_tasks", interrupted)
    with pytest.raises(SystemExit):
        convert_equality_deletes(table, no_spark)
    assert lake.content_on_disk() == before
    assert not [name for name in lake.catalog.load(table.identifier).metadata.refs if name != "main"]


def listed_twice(directory) -> Table:
    """A table with a data file from before an equality delete, and listed again after it."""
    lake = Lake(directory)
    table = lake.filled(commits=1, files=1)
    (file,) = data_files(table)
    delete_equal(table, pa.table({"id": pa.array([3], pa.int64())}), ["id"], like=file)
    commit(lake.load(), AppendFiles(files=(file,)))
    return lake.load()


def test_a_file_that_is_listed_twice_is_refused(tmp_path) -> None:
    """Positions that are deleted of it would be gone in both places."""
    with pytest.raises(
        InvalidTableError, match="is live more than once in the table, with rows that deletes reach in one place"
    ):
        convert_equality_deletes(listed_twice(tmp_path), no_spark)
