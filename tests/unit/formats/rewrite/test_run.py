import io
import pickle
import re
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, UsageError
from icekeep.formats.arrow.projection import cast_to_schema
from icekeep.formats.deletes.read import write_equality_deletes, write_position_deletes
from icekeep.formats.options import WriteOptions
from icekeep.formats.puffin import VectorTarget, write_deletion_vectors
from icekeep.formats.reader import SourceFile, read_file
from icekeep.formats.rewrite.run import rewrite, rewrite_together, sample_task
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.sort import external as external_sort
from icekeep.formats.sort.encode import KeyRange, Ordering
from icekeep.formats.sort.external import Sorter
from icekeep.formats.sort.keys import key_ranges, sort_keys, split_points
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.collections import NO_POSITIONS, PositionSet
from icekeep.spec.partitioning import UNPARTITIONED, build_spec
from icekeep.spec.properties import data_layout
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.sorting import SortField, SortOrder
from icekeep.spec.transforms import Identity
from icekeep.spec.types import DATE, DOUBLE, INT, LONG, STRING, NestedField, StructType
from icekeep.storage.open import open_storage
from kit.cases import cases
from kit.columns import EVERY_TYPE, column, rows, schema_of, table_of
from kit.data_files import options_for, read_files, write_files
from kit.storage import MemoryStorage
from kit.tables import COLUMNS

pytestmark = pytest.mark.slow

EVENTS = schema_of(column(1, "id", LONG), column(2, "kind", STRING), column(3, "day", DATE))


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
    """A task whose pieces and new files are of one partition, unless `specs` says more."""
    given = {"target_file_size_bytes": 2**29, "properties": {}, "table_location": "memory:/t", "operation_id": "op"}
    given |= {"specs": {spec.spec_id: spec}, "spec_id": spec.spec_id}
    pieces = tuple(replace(piece, spec_id=spec.spec_id, partition=partition) for piece in pieces)
    return RewriteTask(pieces=pieces, schema=schema, **{**given, **facts})


def rewritten(storage, *args, **facts):
    """The new files of a task."""
    return rewrite(task_of(*args, **facts), storage).files


def events(start, end, kind="k"):
    return table_of(EVENTS, [{"id": i, "kind": f"{kind}{i % 3}", "day": i // 10} for i in range(start, end)])


def new_locations(storage):
    return [key for key in storage.files if "/old-" not in key]


def test_many_small_files_become_one_with_the_same_rows_in_order(storage):
    pieces = old_files(storage, EVENTS, [events(i, i + 5) for i in range(0, 50, 5)])
    (file,) = rewritten(storage, pieces, EVENTS)
    assert file.record_count == 50
    assert read_files(storage, [file], EVENTS).equals(events(0, 50))
    assert pq.ParquetFile(storage.open(file.file_path)).num_row_groups == 1


@cases(15)
@given(
    st.lists(rows(EVERY_TYPE), min_size=1, max_size=4), st.sampled_from([1, 2**20]), st.sampled_from([1, 3_000, 2**29])
)
def test_rows_of_every_type_are_the_same_after_a_rewrite(parts, row_group_bytes, target):
    storage = MemoryStorage()
    tables = [table_of(EVERY_TYPE, part) for part in parts]
    pieces = old_files(storage, EVERY_TYPE, tables, row_group_bytes)
    files = rewritten(storage, pieces, EVERY_TYPE, target_file_size_bytes=target)
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
    files = rewritten(storage, pieces, EVENTS)
    assert read_files(storage, files, EVENTS)["id"].to_pylist() == [1, 2, 3]
    assert read_files(storage, files, EVENTS)["kind"].to_pylist() == [None, None, "k0"]


def foreign_parquet(table):
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


@pytest.mark.parametrize("new_format", ["parquet", "orc", "avro"])
def test_files_of_mixed_formats_and_schemas_are_combined(storage, new_format):
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
    (file,) = rewritten(storage, tuple(pieces), EVENTS, properties=properties)
    assert (file.file_format, file.file_path.rpartition(".")[2]) == (new_format.upper(), new_format)
    rows_ = [
        (row["id"], row["kind"], row["day"] and row["day"].day)
        for row in read_files(storage, [file], EVENTS).to_pylist()
    ]
    assert rows_ == [
        (0, None, 2), (10, "k", 3), (1, None, 2), (11, "k", 3), (2, None, 2), (12, "k", 3), (99, "w", None),
    ]  # fmt: skip


def test_file_without_ids_or_mapping_fails_the_task(storage):
    storage.create("memory:/t/data/old-hive", foreign_parquet(pa.table({"id": [99]})))
    piece = FilePiece(location="memory:/t/data/old-hive", record_count=1, size_bytes=1)
    with pytest.raises(UnsupportedError, match=r"old-hive': it has no field ids and the table has no name mapping"):
        rewritten(storage, (piece,), EVENTS)
    with pytest.raises(InvalidTableError, match="is not JSON"):
        rewritten(storage, (piece,), EVENTS, properties={"schema.name-mapping.default": "x"})
    assert new_locations(storage) == []


@pytest.mark.parametrize("new_format", ["parquet", "orc", "avro"])
def test_added_struct_with_required_fields_is_null_in_old_rows(storage, new_format):
    text = StructType((column(8, "y", STRING, required=True),))
    deep = StructType((column(6, "x", LONG, required=True), column(7, "t", text, required=True)))
    schema = schema_of(*EVENTS.fields, column(5, "s", deep))
    pieces = (
        *old_files(storage, EVENTS, [events(0, 2)]),
        *old_files(storage, schema, [table_of(schema, [{"id": 2, "s": {"x": 1, "t": {"y": "z"}}}])]),
    )
    files = rewritten(storage, pieces, schema, properties={"write.format.default": new_format})
    assert read_files(storage, files, schema)["s"].to_pylist() == [None, None, {"x": 1, "t": {"y": "z"}}]


def test_initial_default_is_written_into_new_file(storage):
    field = NestedField(field_id=4, name="n", type=LONG, required=True, initial_default=7, write_default=8)
    schema = schema_of(*EVENTS.fields, field)
    files = rewritten(storage, old_files(storage, EVENTS, [events(0, 2)]), schema)
    plain = schema_of(column(4, "n", LONG))
    assert read_files(storage, files, plain)["n"].to_pylist() == [7, 7]


def test_metrics_of_new_files_follow_the_tables_properties(storage):
    order = SortOrder(order_id=3, fields=(SortField(source_id=3, transform=Identity()),))
    properties = {"write.metadata.metrics.default": "none", "write.metadata.metrics.column.id": "counts"}
    (file,) = rewritten(
        storage, old_files(storage, EVENTS, [events(0, 9)]), EVENTS, properties=properties, sort_order=order
    )
    assert (file.value_counts, set(file.lower_bounds)) == ({1: 9, 3: 9}, {3})
    with pytest.raises(UsageError, match="is 'some'; set 'none'"):
        rewritten(storage, (), EVENTS, properties={"write.metadata.metrics.default": "some"})


@pytest.mark.parametrize("file_format", ["PARQUET", "ORC"])
def test_splits_that_tile_a_file_read_each_row_once_and_in_order(storage, file_format):
    small = {"PARQUET": {"row_group_size_bytes": 60_000}, "ORC": {"stripe_size_bytes": 4096}}[file_format]
    tables = [
        table_of(EVENTS, [{"id": (i * 0x9E3779B97F4A7C15) % 2**63} for i in range(s, s + 9000)]) for s in (0, 9000)
    ]
    options = options_for(file_format, **small)
    (file,) = write_files(storage, EVENTS, tables * 2, options, directory="memory:/t/data/old-split")
    whole = read_files(storage, (file,), EVENTS)["id"].to_pylist()
    found = []
    ends = [*file.split_offsets[1:], file.file_size_in_bytes]
    for number, (start, end) in enumerate(zip(file.split_offsets, ends, strict=True)):
        piece = FilePiece(
            location=file.file_path,
            file_format=file_format,
            record_count=file.record_count,
            size_bytes=end - start,
            split=(start, end - start),
        )
        outcome = rewrite(task_of((piece,), EVENTS, operation_id=f"op{number}"), storage)
        assert 0 < outcome.read_count == outcome.live_count < file.record_count
        found += read_files(storage, outcome.files, EVENTS)["id"].to_pylist()
    assert len(file.split_offsets) > 2
    assert found == whole


def test_files_are_named_and_placed_as_iceberg_does(storage):
    spec = build_spec(EVENTS, [("day", "identity", None), ("kind", "identity", None)], spec_id=4)
    pieces = old_files(storage, EVENTS, [events(0, 10)], row_group_bytes=1)
    task = task_of(
        pieces, EVENTS, spec, (15706, "a/b"), operation_id="b9c1", partition_id=7, task_attempt_id=23,
        target_file_size_bytes=1, sort_order_id=None,
    )  # fmt: skip
    files = rewrite(task, storage).files
    directory = "memory:/t/data/day=2013-01-01/kind=a%2Fb"
    assert [f.file_path for f in files[:2]] == [
        f"{directory}/00007-23-b9c1-00001.parquet",
        f"{directory}/00007-23-b9c1-00002.parquet",
    ]
    assert {(f.spec_id, f.partition, f.sort_order_id) for f in files} == {(4, (15706, "a/b"), None)}


def test_partition_only_column_is_written_into_file(storage):
    without = schema_of(column(1, "id", LONG))
    spec = build_spec(EVENTS, [("day", "identity", None), ("kind", "truncate[1]", None)])
    pieces = old_files(storage, without, [table_of(without, [{"id": 1}])])
    files = rewritten(storage, pieces, EVENTS, spec, (3, "k"))
    assert read_files(storage, files, EVENTS).equals(table_of(EVENTS, [{"id": 1, "day": 3}]))


def test_properties_of_the_table_reach_the_files(storage):
    pieces = old_files(storage, EVENTS, [events(0, 10)])
    (file,) = rewritten(storage, pieces, EVENTS, properties={"write.parquet.compression-codec": "snappy"})
    assert pq.ParquetFile(storage.open(file.file_path)).metadata.row_group(0).column(0).compression == "SNAPPY"
    with pytest.raises(UsageError, match="compression-codec"):
        rewritten(storage, pieces, EVENTS, properties={"write.parquet.compression-codec": "lzo"})


def test_row_count_mismatch_fails_and_leaves_no_files(storage):
    good, bad = old_files(storage, EVENTS, [events(0, 1000), events(1000, 1005)], row_group_bytes=100)
    wrong = FilePiece(location=bad.location, record_count=6, size_bytes=bad.size_bytes)
    with pytest.raises(InvalidTableError, match=r"old-1\.parquet' has 5 rows where its manifest says 6"):
        rewritten(storage, (good, wrong), EVENTS, target_file_size_bytes=1000)
    assert new_locations(storage) == []


def test_a_missing_file_stops_the_task_and_leaves_nothing(tmp_path):
    storage = open_storage({})
    memory = MemoryStorage()
    (piece,) = old_files(memory, EVENTS, [events(0, 2000)], row_group_bytes=100)
    storage.create(f"{tmp_path}/here.parquet", memory.read(piece.location))
    here = FilePiece(location=f"{tmp_path}/here.parquet", record_count=2000, size_bytes=1)
    gone = FilePiece(location=f"{tmp_path}/gone.parquet", record_count=1, size_bytes=1)
    task = task_of((here, gone), EVENTS, table_location=f"{tmp_path}/new", target_file_size_bytes=1000)
    with pytest.raises(MissingFileError, match=r"gone\.parquet"):
        rewrite(task, storage)
    assert list((tmp_path / "new/data").iterdir()) == []


def test_nothing_to_read_makes_no_file(storage):
    assert rewritten(storage, (), EVENTS) == ()


@pytest.mark.parametrize("kinds", [("low", "low"), ("low", "high"), ("high", "low"), ("none", "low"), ("low", "none")])
def test_source_string_encoding_does_not_matter(storage, kinds):
    def table(kind, start):
        text = {"low": lambda i: "ab"[i % 2], "high": lambda i: f"{i}-{i * 7919}", "none": lambda i: None}[kind]
        return table_of(EVENTS, [{"id": i, "kind": text(i), "day": 1} for i in range(start, start + 500)])

    tables = [table(kind, 500 * i) for i, kind in enumerate(kinds)]
    files = rewritten(storage, old_files(storage, EVENTS, tables), EVENTS)
    assert read_files(storage, files, EVENTS).equals(pa.concat_tables(tables))


def test_repeating_strings_are_handed_over_as_dictionaries(storage):
    tables = [events(i, i + 500, kind=f"file {i} ") for i in range(0, 2000, 500)]
    (file,) = rewritten(storage, old_files(storage, EVENTS, tables), EVENTS)
    chunk = pq.ParquetFile(storage.open(file.file_path)).metadata.row_group(0).column(1)
    assert chunk.has_dictionary_page
    assert chunk.total_uncompressed_size < 2_000 * 2
    assert read_files(storage, [file], EVENTS).equals(pa.concat_tables(tables))


def test_a_task_can_be_sent_to_an_executor(storage):
    spec = build_spec(EVENTS, [("kind", "bucket[4]", None)])
    field = SortField(source_id=1, transform=Identity())
    ordering = Ordering(partition_by=None, fields=(field,))
    task = task_of(old_files(storage, EVENTS, [events(0, 3)]), EVENTS, spec, (3,), ordering=ordering)
    sent = pickle.loads(pickle.dumps(task))
    assert sent == task
    (file,) = rewrite(sent, storage).files
    assert pickle.loads(pickle.dumps(file)) == file


# Deletes and lineage


def with_deletes(storage, piece, positions=(), vector=(), equal=()):
    """A piece whose rows at some positions, and those of some ids, are deleted, and the delete files."""
    deletes = []
    new = lambda: f"{piece.location}-deletes-{len(deletes)}"  # noqa: E731
    if positions:
        pairs = [(piece.location, position) for position in positions]
        deletes.append(write_position_deletes(storage, new(), "PARQUET", pairs, spec_id=0))
    if vector:
        target = VectorTarget(location=piece.location, spec_id=0)
        deletes += write_deletion_vectors(storage, new(), [(target, BitMap64(vector))])
    if equal:
        table = table_of(EVENTS, [{"id": id_} for id_ in equal])
        deletes.append(write_equality_deletes(storage, new(), "PARQUET", table, [1], EVENTS, spec_id=0))
    return deletes


def test_deleted_rows_are_dropped_and_order_is_kept(storage):
    old = old_files(storage, EVENTS, [events(i, i + 500) for i in range(0, 2500, 500)], row_group_bytes=1500)
    kinds = [
        {"positions": [0, 7, 499]},
        {"vector": [3]},
        {"equal": [1001, 1499]},
        {},
        {"positions": [1], "equal": [2002]},
    ]
    deletes = [with_deletes(storage, piece, **kind) for piece, kind in zip(old, kinds, strict=True)]
    files = [file for some in deletes for file in some]
    pieces = [
        replace(piece, deletes=PositionSet(files.index(file) for file in some))
        for piece, some in zip(old, deletes, strict=True)
    ]
    outcome = rewrite(task_of(pieces, EVENTS, delete_files=tuple(files)), storage)
    gone = {0, 7, 499, 503, 1001, 1499, 2001, 2002}
    rows_ = [row for row in events(0, 2500).to_pylist() if row["id"] not in gone]
    assert read_files(storage, outcome.files, EVENTS).to_pylist() == rows_
    assert (outcome.read_count, outcome.live_count) == (2500, 2500 - len(gone))
    assert outcome.peak_bytes > 2**20
    # The strings are still encoded by a dictionary, although rows of it were dropped.
    chunk = pq.ParquetFile(storage.open(outcome.files[0].file_path)).metadata.row_group(0).column(1)
    assert chunk.has_dictionary_page


def test_a_delete_reaches_only_the_pieces_that_name_it(storage):
    first, second = old_files(storage, EVENTS, [events(0, 5), events(0, 5)])
    deletes = tuple(with_deletes(storage, first, equal=[3]))
    files = rewritten(storage, (replace(first, deletes=PositionSet([0])), second), EVENTS, delete_files=deletes)
    assert read_files(storage, files, EVENTS)["id"].to_pylist() == [0, 1, 2, 4, 0, 1, 2, 3, 4]


def test_a_piece_without_live_rows_leaves_nothing(storage):
    (piece,) = old_files(storage, EVENTS, [events(0, 5)])
    deletes = tuple(with_deletes(storage, piece, positions=range(5)))
    outcome = rewrite(task_of((replace(piece, deletes=PositionSet([0])),), EVENTS, delete_files=deletes), storage)
    assert (outcome.files, outcome.read_count, outcome.live_count) == ((), 5, 0)


def test_deletes_may_compare_a_column_that_the_table_has_dropped(storage):
    (piece,) = old_files(storage, EVENTS, [events(0, 5)])
    deletes = tuple(with_deletes(storage, piece, equal=[2]))
    now = replace(EVENTS, schema_id=1, fields=EVENTS.fields[1:])
    reached = replace(piece, deletes=PositionSet([0]))
    files = rewritten(storage, (reached,), now, delete_files=deletes, table_schemas=(EVENTS, now))
    assert read_files(storage, files, now).num_rows == 4
    assert read_files(storage, files, EVENTS)["id"].to_pylist() == [None] * 4


LINEAGE = schema_of(*EVENTS.fields, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)


@pytest.mark.parametrize("descending", [False, True])
def test_rows_keep_their_ids_and_sequence_numbers_in_version_3(storage, descending):
    first, second = old_files(storage, EVENTS, [events(0, 4), events(4, 6)])
    deletes = tuple(with_deletes(storage, first, vector=[1]))
    pieces = (
        replace(first, first_row_id=100, data_sequence_number=7, deletes=PositionSet([0])),
        replace(second, first_row_id=50, data_sequence_number=9),
    )
    ordering = (
        Ordering(fields=(SortField(source_id=1, transform=Identity(), direction="desc"),)) if descending else None
    )
    files = rewritten(storage, pieces, EVENTS, delete_files=deletes, ordering=ordering)
    found = [
        (row["id"], row["_row_id"], row["_last_updated_sequence_number"])
        for file in files
        for table in read_file(storage, SourceFile(location=file.file_path, first_row_id=0), LINEAGE)
        for row in table.to_pylist()
    ]
    expected = [(0, 100, 7), (2, 102, 7), (3, 103, 7), (4, 50, 9), (5, 51, 9)]
    assert found == (expected[::-1] if descending else expected)
    # What was moved once keeps its ids when it is moved again.
    (again,) = (
        replace(
            first,
            location=file.file_path,
            record_count=5,
            first_row_id=1000,
            data_sequence_number=20,
            deletes=NO_POSITIONS,
        )
        for file in files
    )
    (file,) = rewritten(storage, (again,), EVENTS, operation_id="again")
    (table,) = read_file(storage, SourceFile(location=file.file_path, first_row_id=0), LINEAGE)
    assert table["_row_id"].to_pylist() == [row_id for _, row_id, _ in found]


@pytest.mark.parametrize("name", ["_row_id", "_last_updated_sequence_number"])
def test_lineage_column_name_clash_is_refused(storage, name):
    """The new file had two columns of the name, and could not be read."""
    schema = schema_of(column(1, "id", LONG), column(2, name, LONG))
    pieces = old_files(storage, schema, [table_of(schema, [{"id": 1, name: 2}])])
    before = set(storage.files)
    with pytest.raises(UnsupportedError, match=f"a column of its own named '{name}'.* rename the column"):
        rewritten(storage, [replace(pieces[0], first_row_id=0)], schema)
    assert set(storage.files) == before
    # Where rows have no lineage the name is free.
    (file,) = rewritten(storage, pieces, schema)
    assert read_files(storage, [file], schema).to_pylist() == [{"id": 1, name: 2}]


def test_rows_of_older_versions_get_no_ids(storage):
    (file,) = rewritten(storage, old_files(storage, EVENTS, [events(0, 4)]), EVENTS)
    assert len(pq.ParquetFile(storage.open(file.file_path)).schema) == 3


# Order


def by(*ids, **facts):
    return tuple(SortField(source_id=id_, transform=Identity(), **facts) for id_ in ids)


def shuffled(count_):
    return [events(i, i + 100, kind=f"file {i} ") for i in sorted(range(0, count_, 100), key=lambda i: i * 7919 % 1009)]


def test_rows_are_sorted_and_files_record_the_order(storage):
    pieces = old_files(storage, EVENTS, shuffled(2000))
    ordering = Ordering(fields=(*by(2, direction="desc"), *by(1)))
    (file,) = rewritten(storage, pieces, EVENTS, ordering=ordering, sort_order_id=5)
    expected = sorted(pa.concat_tables(shuffled(2000)).to_pylist(), key=lambda row: row["id"])
    expected.sort(key=lambda row: row["kind"], reverse=True)
    assert read_files(storage, [file], EVENTS).to_pylist() == expected
    assert file.sort_order_id == 5
    chunk = pq.ParquetFile(storage.open(file.file_path)).metadata.row_group(0).column(1)
    assert chunk.has_dictionary_page


def test_what_was_put_on_disk_is_gone_afterwards_also_on_failure(storage, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tables = shuffled(3000)
    pieces = old_files(storage, EVENTS, tables)
    facts = {"ordering": Ordering(fields=by(1)), "budget_bytes": 2**14}
    files = rewritten(storage, pieces, EVENTS, **facts)
    assert read_files(storage, files, EVENTS)["id"].to_pylist() == list(range(3000))
    assert list(tmp_path.iterdir()) == []
    broken = (*pieces, replace(pieces[0], record_count=1))
    before = set(storage.files)
    with pytest.raises(InvalidTableError):
        rewritten(storage, broken, EVENTS, operation_id="again", **facts)
    assert list(tmp_path.iterdir()) == []
    assert set(storage.files) == before


def test_tasks_with_ranges_of_keys_that_tile_share_out_the_rows(storage):
    tables = shuffled(1000)
    pieces = old_files(storage, EVENTS, tables)
    ordering = Ordering(fields=by(1))
    keys = sorted(sort_keys(pa.concat_tables(tables), ordering, EVENTS).to_pylist())
    points = (keys[300], keys[301], keys[900])
    found = []
    for number, (lower, upper) in enumerate(zip((None, *points), (*points, None), strict=True)):
        one = KeyRange(lower=lower, upper=upper)
        outcome = rewrite(task_of(pieces, EVENTS, ordering=ordering, key_range=one, partition_id=number), storage)
        assert (outcome.read_count, outcome.live_count) == (1000, 1000)
        found.append(read_files(storage, outcome.files, EVENTS)["id"].to_pylist())
    assert [len(some) for some in found] == [300, 1, 599, 100]
    assert [id_ for some in found for id_ in some] == list(range(1000))


@pytest.mark.parametrize("run_rows", [97, 10_000])
def test_ordered_rows_are_dealt_out_evenly_to_a_number_of_files(storage, monkeypatch, run_rows):
    monkeypatch.setattr(external_sort, "RUN_ROWS", run_rows)
    pieces = old_files(storage, EVENTS, shuffled(1000))
    files = rewritten(storage, pieces, EVENTS, ordering=Ordering(fields=by(1)), files_count=3)
    assert [file.record_count for file in files] == [333, 333, 334]
    assert read_files(storage, files, EVENTS)["id"].to_pylist() == list(range(1000))


# Another spec


def test_rows_move_to_partitions_of_new_spec(storage):
    old = build_spec(EVENTS, [("day", "identity", None)], spec_id=0)
    new = build_spec(EVENTS, [("kind", "identity", None), ("id", "bucket[2]", None)], spec_id=3)
    old_pieces = old_files(storage, EVENTS, shuffled(300))
    pieces = [replace(piece, spec_id=0, partition=(n,)) for n, piece in enumerate(old_pieces)]
    task = task_of((), EVENTS, specs={0: old, 3: new}, spec_id=3, ordering=Ordering(partition_by=new, fields=by(1)))
    files = rewrite(replace(task, pieces=tuple(pieces)), storage).files
    found = []
    for file in files:
        rows_ = read_files(storage, [file], EVENTS).to_pylist()
        assert [row["id"] for row in rows_] == sorted(row["id"] for row in rows_)
        bucket = new.fields[1].transform
        assert {(row["kind"], bucket.apply(LONG, row["id"])) for row in rows_} == {file.partition}
        kind = file.partition[0].replace(" ", "+")
        assert file.file_path.startswith(f"memory:/t/data/kind={kind}/id_bucket={file.partition[1]}/00000-0-op-")
        assert file.spec_id == 3
        found += rows_
    assert len(files) == len({file.partition for file in files}) == 18
    assert sorted(row["id"] for row in found) == list(range(300))


def test_moving_to_unpartitioned_spec_keeps_row_order(storage):
    old = build_spec(EVENTS, [("day", "identity", None)], spec_id=1)
    tables = shuffled(300)
    pieces = [replace(piece, spec_id=1, partition=(n,)) for n, piece in enumerate(old_files(storage, EVENTS, tables))]
    task = task_of((), EVENTS, specs={0: UNPARTITIONED, 1: old}, ordering=Ordering(partition_by=UNPARTITIONED))
    (file,) = rewrite(replace(task, pieces=tuple(pieces)), storage).files
    assert read_files(storage, [file], EVENTS).equals(pa.concat_tables(tables))
    assert (file.partition, file.spec_id) == ((), 0)


def test_nan_is_one_partition_and_zeros_are_two(storage):
    schema = schema_of(column(1, "x", DOUBLE))
    spec = build_spec(schema, [("x", "identity", None)], spec_id=2)
    nan = float("nan")
    tables = [table_of(schema, [{"x": x} for x in (nan, 0.0, -0.0, nan)]), table_of(schema, [{"x": nan}, {"x": 0.0}])]
    task = task_of((), schema, specs={0: UNPARTITIONED, 2: spec}, spec_id=2, ordering=Ordering(partition_by=spec))
    files = rewrite(replace(task, pieces=old_files(storage, schema, tables)), storage).files
    assert sorted((str(file.partition[0]), file.record_count) for file in files) == [
        ("-0.0", 1),
        ("0.0", 2),
        ("nan", 3),
    ]


def test_files_of_all_partitions_are_gone_when_a_later_one_fails(storage):
    spec = build_spec(EVENTS, [("kind", "identity", None)], spec_id=2)
    pieces = old_files(storage, EVENTS, [events(0, 30)])
    storage.create("memory:/t/data/kind=k2/00000-0-op-00003.parquet", b"another's")
    before = set(storage.files)
    task = task_of((), EVENTS, specs={0: UNPARTITIONED, 2: spec}, spec_id=2, ordering=Ordering(partition_by=spec))
    with pytest.raises(FileExistsError):
        rewrite(replace(task, pieces=pieces), storage)
    assert set(storage.files) == before


def test_files_are_spread_by_hash_where_the_table_asks_for_it(storage):
    spec = build_spec(EVENTS, [("kind", "identity", None)], spec_id=1)
    properties = {"write.object-storage.enabled": "true"}
    (file,) = rewritten(
        storage, old_files(storage, EVENTS, [events(0, 3)]), EVENTS, spec, ("k",), properties=properties
    )
    expected = data_layout("memory:/t", properties).location("00000-0-op-00001.parquet", "kind=k")
    assert file.file_path == expected
    assert re.fullmatch(r"memory:/t/data/[01]{4}/[01]{4}/[01]{4}/[01]{8}/kind=k/00000-0-op-00001\.parquet", expected)


KINDS = schema_of(column(1, "id", LONG), column(2, "kind", STRING))
ORDERING = Ordering(fields=(SortField(source_id=1, transform=Identity()),))


def kinds(ids):
    return table_of(KINDS, [{"id": int(i), "kind": f"k{i % 3}"} for i in ids])


def tables(files_count=12, rows=250):
    ids = np.random.default_rng(5).permutation(files_count * rows)
    return [kinds(ids[n * rows : (n + 1) * rows]) for n in range(files_count)]


def pieces_of(storage, some):
    numbers = count()
    found = []
    for table in some:
        with DataFileWriter(storage, KINDS, options_for(), lambda: f"memory:/t/old-{next(numbers)}.parquet") as writer:
            writer.write(table)
            (file,) = writer.close()
        found.append(
            FilePiece(location=file.file_path, record_count=file.record_count, size_bytes=file.file_size_in_bytes)
        )
    return tuple(found)


def tasks_of(pieces, ids, **facts):
    """A task for each range of ids between some."""
    points = sort_keys(kinds(ids), ORDERING, KINDS).to_pylist()
    whole = RewriteTask(
        pieces=pieces,
        schema=KINDS,
        specs={0: UNPARTITIONED},
        spec_id=0,
        table_location="memory:/t",
        properties={},
        target_file_size_bytes=2**29,
        ordering=ORDERING,
        operation_id="op",
        **facts,
    )
    return [replace(whole, key_range=one, partition_id=number) for number, one in enumerate(key_ranges(points))]


@pytest.mark.parametrize("budget_bytes", [2**30, 2**14])
@pytest.mark.parametrize("ids", [(1000,), (10, 11, 2990), (0, 5000)])
def test_joint_rewrite_equals_separate_tasks(storage, monkeypatch, ids, budget_bytes):
    """Ranges that are rewritten together give the files of separate tasks, and each row is read once."""
    monkeypatch.setattr(external_sort, "RUN_ROWS", 97)
    tasks = tasks_of(pieces_of(storage, tables()), ids, budget_bytes=budget_bytes, files_count=2)
    together = rewrite_together(tasks, storage)
    assert (together.read_count, together.live_count) == (3000, 3000)
    alone = [rewrite(replace(task, operation_id="alone"), storage).files for task in tasks]
    assert [file.record_count for file in together.files] == [file.record_count for some in alone for file in some]
    found = read_files(storage, together.files, KINDS)
    assert found["id"].to_pylist() == list(range(3000))
    assert found.equals(read_files(storage, [file for some in alone for file in some], KINDS))
    assert len({file.file_path for file in together.files}) == len(together.files)


def test_deletes_reach_the_rows_of_every_range(storage):
    pieces = pieces_of(storage, tables())
    gone = [(pieces[n].location, n) for n in (2, 5)]
    delete = write_position_deletes(storage, "memory:/t/old-delete.parquet", "PARQUET", gone, spec_id=0)
    reached = tuple(replace(piece, deletes=PositionSet([0] if n in (2, 5) else [])) for n, piece in enumerate(pieces))
    outcome = rewrite_together(tasks_of(reached, (900, 1800), delete_files=(delete,)), storage)
    assert (outcome.read_count, outcome.live_count) == (3000, 2998)
    expected = set(range(3000)) - {tables()[n]["id"][n].as_py() for n in (2, 5)}
    assert read_files(storage, outcome.files, KINDS)["id"].to_pylist() == sorted(expected)


@pytest.mark.parametrize(
    ("broken", "error"),
    [({"location": "memory:/t/none.parquet"}, MissingFileError), ({"record_count": 1}, InvalidTableError)],
)
def test_unreadable_piece_stops_all_ranges(storage, broken, error):
    pieces = pieces_of(storage, tables())
    before = set(storage.files)
    with pytest.raises(error):
        rewrite_together(tasks_of((*pieces[:3], replace(pieces[3], **broken), *pieces[4:]), (1000, 2000)), storage)
    assert set(storage.files) == before


@pytest.mark.parametrize("number", [0, 1, 2])
def test_failed_range_removes_files_of_the_others(storage, number):
    tasks = tasks_of(pieces_of(storage, tables()), (1000, 2000))
    storage.create(f"memory:/t/data/0000{number}-0-op-00001.parquet", b"another's")
    before = set(storage.files)
    with pytest.raises(FileExistsError):
        rewrite_together(tasks, storage)
    assert set(storage.files) == before


@pytest.mark.parametrize("budget_bytes", [2**30, 2**14])
def test_rows_of_several_threads_are_all_there_and_in_order(tmp_path, monkeypatch, budget_bytes):
    monkeypatch.setattr(external_sort, "RUN_ROWS", 500)
    parts = tables(files_count=60, rows=200)
    with Sorter(ORDERING, KINDS, budget_bytes, str(tmp_path)) as sorter, ThreadPoolExecutor(8) as pool:
        list(pool.map(sorter.add, parts))
        found = pa.concat_tables(sorter.sorted_rows())
        assert sorter.row_count == 12_000
        assert (sorter.spilled_count > 1) == (budget_bytes < 2**20)
    assert found["id"].to_pylist() == list(range(12_000))
    assert Counter(found["kind"].to_pylist()) == Counter(f"k{i % 3}" for i in range(12_000))


def written(storage: MemoryStorage, name: str, ids: range) -> FilePiece:
    rows = pa.table({"id": [*ids], "kind": ["k"] * len(ids), "score": [0.5] * len(ids)})
    with DataFileWriter(storage, COLUMNS, WriteOptions(), lambda: f"memory:/t/{name}") as writer:
        writer.write(cast_to_schema(rows, COLUMNS))
        [file] = writer.close()
    return FilePiece(location=file.file_path, record_count=len(ids), size_bytes=file.file_size_in_bytes)


def test_points_from_a_sample_halve_the_rows_of_all_pieces():
    storage = MemoryStorage()
    pieces = (written(storage, "a", range(300)), written(storage, "b", range(300, 400)))
    task = RewriteTask(
        pieces=pieces,
        schema=COLUMNS,
        specs={0: UNPARTITIONED},
        spec_id=0,
        table_location="memory:/t",
        properties={},
        target_file_size_bytes=1,
        ordering=Ordering(fields=(SortField(source_id=1, transform=Identity()),)),
        operation_id="o",
    )
    sample = sample_task(task, storage)
    assert (sample.row_count, sample.arrow_bytes) == (400, 400 * 8)
    [point] = split_points([sample], 2)
    assert sum(key < point for key in sample.keys) == 200
