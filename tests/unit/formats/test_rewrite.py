import pickle
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError, MissingFileError, UsageError
from icekeep.formats.parquet import DataFileWriter, read_row_groups
from icekeep.formats.rewrite import FilePiece, RewriteTask, rewrite
from icekeep.formats.write_options import WriteOptions
from icekeep.spec.partitioning import UNPARTITIONED, build_spec
from icekeep.spec.types import DATE, INT, LONG, STRING
from icekeep.storage.open import open_storage
from kit.columns import EVERY_TYPE, column, rows, schema_of, table_of
from kit.storage import MemoryStorage

EVENTS = schema_of(column(1, "id", LONG), column(2, "kind", STRING), column(3, "day", DATE))


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = pa.cpu_count(), pa.io_thread_count()
    yield
    pa.set_cpu_count(before[0])
    pa.set_io_thread_count(before[1])


@pytest.fixture
def storage():
    return MemoryStorage()


def old_files(storage, schema, tables, row_group_bytes=128 * 2**20):
    """One data file for each table, as pieces."""
    pieces = []
    numbers = count(len(storage.files))
    for table in tables:
        options = WriteOptions(row_group_size_bytes=row_group_bytes)
        with DataFileWriter(storage, schema, options, lambda: f"memory:/t/data/old-{next(numbers)}.parquet") as writer:
            writer.write(table)
            (file,) = writer.close()
        pieces.append(
            FilePiece(location=file.file_path, record_count=file.record_count, size_bytes=file.file_size_in_bytes)
        )
    return tuple(pieces)


def task_of(pieces, schema, spec=UNPARTITIONED, partition=(), **facts):
    given = {"target_file_size_bytes": 2**29, "properties": {}, "data_location": "memory:/t/data", "operation_id": "op"}
    return RewriteTask(pieces=pieces, schema=schema, spec=spec, partition=partition, **{**given, **facts})


def events(start, end, kind="k"):
    return table_of(EVENTS, [{"id": i, "kind": f"{kind}{i % 3}", "day": i // 10} for i in range(start, end)])


def read(storage, files, schema):
    return pa.concat_tables([t for f in files for t in read_row_groups(storage, f.file_path, schema)])


def new_locations(storage):
    return [key for key in storage.files if "/old-" not in key]


def test_many_small_files_become_one_with_the_same_rows_in_order(storage):
    pieces = old_files(storage, EVENTS, [events(i, i + 5) for i in range(0, 50, 5)])
    (file,) = rewrite(task_of(pieces, EVENTS), storage)
    assert file.record_count == 50
    assert read(storage, [file], EVENTS).equals(events(0, 50))
    assert pq.ParquetFile(storage.open(file.file_path)).num_row_groups == 1


@settings(max_examples=15, deadline=None)
@given(
    st.lists(rows(EVERY_TYPE), min_size=1, max_size=4), st.sampled_from([1, 2**20]), st.sampled_from([1, 3_000, 2**29])
)
def test_rows_of_every_type_are_the_same_after_a_rewrite(parts, row_group_bytes, target):
    storage = MemoryStorage()
    tables = [table_of(EVERY_TYPE, part) for part in parts]
    pieces = old_files(storage, EVERY_TYPE, tables, row_group_bytes)
    files = rewrite(task_of(pieces, EVERY_TYPE, target_file_size_bytes=target), storage)
    expected = [row for table in tables for row in table.to_pylist()]
    assert str(read(storage, files, EVERY_TYPE).to_pylist()) == str(expected)
    assert sum(file.record_count for file in files) == len(expected)


def test_files_of_older_schemas_get_the_current_one(storage):
    first = schema_of(column(1, "id", INT), column(9, "dropped", STRING))
    second = schema_of(column(1, "number", LONG))
    pieces = (
        *old_files(storage, first, [table_of(first, [{"id": 1, "dropped": "x"}])]),
        *old_files(storage, second, [table_of(second, [{"number": 2}])]),
        *old_files(storage, EVENTS, [events(3, 4)]),
    )
    files = rewrite(task_of(pieces, EVENTS), storage)
    assert read(storage, files, EVENTS)["id"].to_pylist() == [1, 2, 3]
    assert read(storage, files, EVENTS)["kind"].to_pylist() == [None, None, "k0"]


def test_only_the_row_groups_of_a_piece_are_read(storage):
    (piece,) = old_files(storage, EVENTS, [events(0, 4)], row_group_bytes=1)
    part = FilePiece(location=piece.location, record_count=1, size_bytes=1, row_groups=(1, 3))
    files = rewrite(task_of((part,), EVENTS), storage)
    assert read(storage, files, EVENTS)["id"].to_pylist() == [1, 3]


def test_files_are_named_and_placed_as_iceberg_does(storage):
    spec = build_spec(EVENTS, [("day", "identity", None), ("kind", "identity", None)], spec_id=4)
    pieces = old_files(storage, EVENTS, [events(0, 10)], row_group_bytes=1)
    task = task_of(
        pieces, EVENTS, spec, (15706, "a/b"), operation_id="b9c1", partition_id=7, task_attempt_id=23,
        target_file_size_bytes=1, sort_order_id=None,
    )  # fmt: skip
    files = rewrite(task, storage)
    directory = "memory:/t/data/day=2013-01-01/kind=a%2Fb"
    assert [f.file_path for f in files[:2]] == [
        f"{directory}/00007-23-b9c1-00001.parquet",
        f"{directory}/00007-23-b9c1-00002.parquet",
    ]
    assert {(f.spec_id, f.partition, f.sort_order_id) for f in files} == {(4, (15706, "a/b"), None)}


def test_a_column_that_only_the_partition_knows_is_written_into_the_file(storage):
    without = schema_of(column(1, "id", LONG))
    spec = build_spec(EVENTS, [("day", "identity", None), ("kind", "truncate[1]", None)])
    pieces = old_files(storage, without, [table_of(without, [{"id": 1}])])
    files = rewrite(task_of(pieces, EVENTS, spec, (3, "k")), storage)
    assert read(storage, files, EVENTS).equals(table_of(EVENTS, [{"id": 1, "day": 3}]))


def test_properties_of_the_table_reach_the_files(storage):
    pieces = old_files(storage, EVENTS, [events(0, 10)])
    (file,) = rewrite(task_of(pieces, EVENTS, properties={"write.parquet.compression-codec": "snappy"}), storage)
    assert pq.ParquetFile(storage.open(file.file_path)).metadata.row_group(0).column(0).compression == "SNAPPY"
    with pytest.raises(UsageError, match="compression-codec"):
        rewrite(task_of(pieces, EVENTS, properties={"write.parquet.compression-codec": "lzo"}), storage)


def test_a_file_with_other_rows_than_its_manifest_says_stops_the_task_and_leaves_nothing(storage):
    good, bad = old_files(storage, EVENTS, [events(0, 1000), events(1000, 1005)], row_group_bytes=100)
    wrong = FilePiece(location=bad.location, record_count=6, size_bytes=bad.size_bytes)
    with pytest.raises(InvalidTableError, match=r"old-1\.parquet' has 5 rows where its manifest says 6"):
        rewrite(task_of((good, wrong), EVENTS, target_file_size_bytes=1000), storage)
    assert new_locations(storage) == []


def test_a_missing_file_stops_the_task_and_leaves_nothing(tmp_path):
    storage = open_storage({})
    memory = MemoryStorage()
    (piece,) = old_files(memory, EVENTS, [events(0, 2000)], row_group_bytes=100)
    storage.create(f"{tmp_path}/here.parquet", memory.read(piece.location))
    here = FilePiece(location=f"{tmp_path}/here.parquet", record_count=2000, size_bytes=1)
    gone = FilePiece(location=f"{tmp_path}/gone.parquet", record_count=1, size_bytes=1)
    task = task_of((here, gone), EVENTS, data_location=f"{tmp_path}/new", target_file_size_bytes=1000)
    with pytest.raises(MissingFileError, match=r"gone\.parquet"):
        rewrite(task, storage)
    assert list((tmp_path / "new").iterdir()) == []


def test_nothing_to_read_makes_no_file(storage):
    assert rewrite(task_of((), EVENTS), storage) == ()


@pytest.mark.parametrize("kinds", [("low", "low"), ("low", "high"), ("high", "low"), ("none", "low"), ("low", "none")])
def test_it_does_not_matter_how_the_strings_of_the_files_were_encoded(storage, kinds):
    def table(kind, start):
        text = {"low": lambda i: "ab"[i % 2], "high": lambda i: f"{i}-{i * 7919}", "none": lambda i: None}[kind]
        return table_of(EVENTS, [{"id": i, "kind": text(i), "day": 1} for i in range(start, start + 500)])

    tables = [table(kind, 500 * i) for i, kind in enumerate(kinds)]
    files = rewrite(task_of(old_files(storage, EVENTS, tables), EVENTS), storage)
    assert read(storage, files, EVENTS).equals(pa.concat_tables(tables))


def test_repeating_strings_are_handed_over_as_dictionaries(storage):
    tables = [events(i, i + 500, kind=f"file {i} ") for i in range(0, 2000, 500)]
    (file,) = rewrite(task_of(old_files(storage, EVENTS, tables), EVENTS), storage)
    chunk = pq.ParquetFile(storage.open(file.file_path)).metadata.row_group(0).column(1)
    assert chunk.has_dictionary_page
    assert chunk.total_uncompressed_size < 2_000 * 2
    assert read(storage, [file], EVENTS).equals(pa.concat_tables(tables))


def test_a_task_uses_one_thread_of_arrow(storage):
    rewrite(task_of((), EVENTS), storage)
    assert (pa.cpu_count(), pa.io_thread_count()) == (1, 1)


def test_a_task_can_be_sent_to_an_executor(storage):
    spec = build_spec(EVENTS, [("kind", "bucket[4]", None)])
    task = task_of(old_files(storage, EVENTS, [events(0, 3)]), EVENTS, spec, (3,))
    sent = pickle.loads(pickle.dumps(task))
    assert sent == task
    (file,) = rewrite(sent, storage)
    assert pickle.loads(pickle.dumps(file)) == file
