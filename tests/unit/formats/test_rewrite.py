import io
import pickle
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, UsageError
from icekeep.formats.rewrite import FilePiece, RewriteTask, rewrite
from icekeep.formats.writing import DataFileWriter
from icekeep.spec.partitioning import UNPARTITIONED, build_spec
from icekeep.spec.sorting import SortField, SortOrder
from icekeep.spec.transforms import Identity
from icekeep.spec.types import DATE, INT, LONG, STRING, NestedField, StructType
from icekeep.storage.open import open_storage
from kit.columns import EVERY_TYPE, column, rows, schema_of, table_of
from kit.data_files import options_for, read_files, write_files
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
        options = options_for(row_group_size_bytes=row_group_bytes)
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


def new_locations(storage):
    return [key for key in storage.files if "/old-" not in key]


def test_many_small_files_become_one_with_the_same_rows_in_order(storage):
    pieces = old_files(storage, EVENTS, [events(i, i + 5) for i in range(0, 50, 5)])
    (file,) = rewrite(task_of(pieces, EVENTS), storage)
    assert file.record_count == 50
    assert read_files(storage, [file], EVENTS).equals(events(0, 50))
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
    assert str(read_files(storage, files, EVERY_TYPE).to_pylist()) == str(expected)
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
    assert read_files(storage, files, EVENTS)["id"].to_pylist() == [1, 2, 3]
    assert read_files(storage, files, EVENTS)["kind"].to_pylist() == [None, None, "k0"]


def foreign_parquet(table):
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


@pytest.mark.parametrize("new_format", ["parquet", "orc", "avro"])
def test_files_of_all_formats_and_schemas_and_without_ids_become_one_of_the_tables_format(storage, new_format):
    old = schema_of(column(3, "day", DATE), column(1, "number", INT))
    pieces = []
    for number, file_format in enumerate(["PARQUET", "ORC", "AVRO"]):
        for schema, row in ((old, {"number": number, "day": 1}), (EVENTS, {"id": number + 10, "kind": "k", "day": 2})):
            options = options_for(file_format)
            directory = f"memory:/t/data/old-{number}-{len(pieces)}"
            (file,) = write_files(storage, schema, [table_of(schema, [row])], options, directory=directory)
            # Formats are written in any case.
            piece = FilePiece(location=file.file_path, file_format=file_format.title(), record_count=1, size_bytes=1)
            pieces.append(piece)
    storage.create("memory:/t/data/old-hive", foreign_parquet(pa.table({"ID": [99], "what": ["w"], "else": [1.5]})))
    pieces.append(FilePiece(location="memory:/t/data/old-hive", record_count=1, size_bytes=1))
    mapping = '[{"names": ["ID", "id"], "field-id": 1}, {"names": ["what"], "field-id": 2}]'
    properties = {"write.format.default": new_format, "schema.name-mapping.default": mapping}
    (file,) = rewrite(task_of(tuple(pieces), EVENTS, properties=properties), storage)
    assert (file.file_format, file.file_path.rpartition(".")[2]) == (new_format.upper(), new_format)
    rows_ = [
        (row["id"], row["kind"], row["day"] and row["day"].day)
        for row in read_files(storage, [file], EVENTS).to_pylist()
    ]
    assert rows_ == [
        (0, None, 2), (10, "k", 3), (1, None, 2), (11, "k", 3), (2, None, 2), (12, "k", 3), (99, "w", None),
    ]  # fmt: skip


def test_a_file_without_ids_and_a_table_without_a_mapping_stop_the_task(storage):
    storage.create("memory:/t/data/old-hive", foreign_parquet(pa.table({"id": [99]})))
    piece = FilePiece(location="memory:/t/data/old-hive", record_count=1, size_bytes=1)
    with pytest.raises(UnsupportedError, match=r"old-hive': it has no field ids and the table has no name mapping"):
        rewrite(task_of((piece,), EVENTS), storage)
    with pytest.raises(InvalidTableError, match="is not JSON"):
        rewrite(task_of((piece,), EVENTS, properties={"schema.name-mapping.default": "x"}), storage)
    assert new_locations(storage) == []


@pytest.mark.parametrize("new_format", ["parquet", "orc", "avro"])
def test_a_struct_that_was_added_with_required_fields_is_null_in_old_rows(storage, new_format):
    text = StructType((column(8, "y", STRING, required=True),))
    deep = StructType((column(6, "x", LONG, required=True), column(7, "t", text, required=True)))
    schema = schema_of(*EVENTS.fields, column(5, "s", deep))
    pieces = (
        *old_files(storage, EVENTS, [events(0, 2)]),
        *old_files(storage, schema, [table_of(schema, [{"id": 2, "s": {"x": 1, "t": {"y": "z"}}}])]),
    )
    files = rewrite(task_of(pieces, schema, properties={"write.format.default": new_format}), storage)
    assert read_files(storage, files, schema)["s"].to_pylist() == [None, None, {"x": 1, "t": {"y": "z"}}]


def test_old_rows_have_the_initial_default_written_into_the_new_file(storage):
    field = NestedField(field_id=4, name="n", type=LONG, required=True, initial_default=7, write_default=8)
    schema = schema_of(*EVENTS.fields, field)
    files = rewrite(task_of(old_files(storage, EVENTS, [events(0, 2)]), schema), storage)
    plain = schema_of(column(4, "n", LONG))
    assert read_files(storage, files, plain)["n"].to_pylist() == [7, 7]


def test_metrics_of_new_files_follow_the_tables_properties(storage):
    order = SortOrder(order_id=3, fields=(SortField(source_id=3, transform=Identity()),))
    properties = {"write.metadata.metrics.default": "none", "write.metadata.metrics.column.id": "counts"}
    (file,) = rewrite(
        task_of(old_files(storage, EVENTS, [events(0, 9)]), EVENTS, properties=properties, sort_order=order), storage
    )
    assert (file.value_counts, set(file.lower_bounds)) == ({1: 9, 3: 9}, {3})
    with pytest.raises(UsageError, match="is 'some'; set none"):
        rewrite(task_of((), EVENTS, properties={"write.metadata.metrics.default": "some"}), storage)


def test_only_the_row_groups_of_a_piece_are_read(storage):
    (piece,) = old_files(storage, EVENTS, [events(0, 4)], row_group_bytes=1)
    part = FilePiece(location=piece.location, record_count=1, size_bytes=1, parts=(1, 3))
    files = rewrite(task_of((part,), EVENTS), storage)
    assert read_files(storage, files, EVENTS)["id"].to_pylist() == [1, 3]


def test_only_the_stripes_of_a_piece_are_read(storage):
    options = options_for("ORC", stripe_size_bytes=4096)
    tables = [
        table_of(EVENTS, [{"id": (i * 0x9E3779B97F4A7C15) % 2**63} for i in range(s, s + 9000)]) for s in (0, 9000)
    ]
    (file,) = write_files(storage, EVENTS, tables * 2, options, directory="memory:/t/data/old-orc")
    whole = read_files(storage, (file,), EVENTS)["id"].to_pylist()
    found = []
    for part in reversed(range(len(file.split_offsets))):
        piece = FilePiece(location=file.file_path, file_format="ORC", record_count=0, size_bytes=1, parts=(part,))
        new = rewrite(task_of((piece,), EVENTS, operation_id=f"op{part}"), storage)
        found = read_files(storage, new, EVENTS)["id"].to_pylist() + found
    assert len(file.split_offsets) > 2
    assert found == whole


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
    assert read_files(storage, files, EVENTS).equals(table_of(EVENTS, [{"id": 1, "day": 3}]))


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
    assert read_files(storage, files, EVENTS).equals(pa.concat_tables(tables))


def test_repeating_strings_are_handed_over_as_dictionaries(storage):
    tables = [events(i, i + 500, kind=f"file {i} ") for i in range(0, 2000, 500)]
    (file,) = rewrite(task_of(old_files(storage, EVENTS, tables), EVENTS), storage)
    chunk = pq.ParquetFile(storage.open(file.file_path)).metadata.row_group(0).column(1)
    assert chunk.has_dictionary_page
    assert chunk.total_uncompressed_size < 2_000 * 2
    assert read_files(storage, [file], EVENTS).equals(pa.concat_tables(tables))


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
