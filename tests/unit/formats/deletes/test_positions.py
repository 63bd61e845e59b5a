"""What one task makes of delete files: positions in order, each once, and none that reaches nothing."""

import io
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.commit.changes.deletes import NamedFile
from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.deletes import rewrite as rewrite_positions
from icekeep.formats.deletes.read import read_all_position_deletes, write_position_deletes
from icekeep.formats.deletes.rewrite import DeleteSource, DeletesTask, LiveFile, rewrite_deletes
from icekeep.formats.puffin import read_deletion_vector
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.reach import path_digest
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, Schema
from icekeep.spec.types import StructType
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import COLUMNS, data_file

FORMATS = ("PARQUET", "ORC", "AVRO")
Pairs = list[tuple[str, int]]


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


def source(
    storage: MemoryStorage, pairs: Any, number: int = 5, file_format: str = "PARQUET", **more: Any
) -> DeleteSource:
    location = f"memory://lake/deletes-{len(storage.files)}"
    return DeleteSource(write_position_deletes(storage, location, file_format, pairs, spec_id=0, **more), number)


def task(*sources: DeleteSource, live: dict[str, LiveFile] | None = None, **options: Any) -> DeletesTask:
    """A task over data files `a`, `b`, `c` of number 1."""
    options = {
        "makes_vectors": False,
        "granularity": "partition",
        "target_file_size_bytes": 1 << 26,
        "schema": COLUMNS,
        "spec_id": 0,
        "partition": (),
        "directory": "",
        "table_location": "memory://lake/t",
        "properties": {},
        "operation_id": "run",
        **options,
    }
    return DeletesTask(sources=sources, live=live or {name: LiveFile(1) for name in "abc"}, **options)


def held(storage: MemoryStorage, files: Any) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for file in files:
        for path, positions in (read_all_position_deletes(storage, file, 1 << 30) or {}).items():
            found[path] += positions.tolist()
    return dict(found)


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("source_format", FORMATS)
def test_positions_of_all_files_are_in_order_and_each_once(storage, source_format, file_format):
    some = [("b", 4), ("a", 7), ("a", 2)], [("a", 2), ("b", 0)], [("b", 4)]
    sources = [source(storage, pairs, file_format=source_format) for pairs in some]
    outcome = rewrite_deletes(task(*sources, file_format=file_format), storage)
    (file,) = outcome.files
    assert (file.content, file.file_format, file.record_count) == (FileContent.POSITION_DELETES, file_format, 4)
    assert (file.sort_order_id, file.referenced_data_file) == (None, None)
    path_id, pos_id = DELETE_FILE_PATH.field_id, DELETE_FILE_POS.field_id
    assert (file.lower_bounds[path_id], file.upper_bounds[path_id]) == (b"a", b"b")
    assert (file.lower_bounds[pos_id], file.upper_bounds[pos_id]) == (bytes(8), (7).to_bytes(8, "little"))
    assert held(storage, outcome.files) == {"a": [2, 7], "b": [0, 4]}
    assert (outcome.read_count, outcome.dangling_count, outcome.replaced_count) == (6, 0, 0)
    if file_format == "PARQUET":
        rows = pq.read_table(storage.open(file.file_path))
        assert rows.to_pydict() == {"file_path": ["a", "a", "b", "b"], "pos": [2, 7, 0, 4]}


def test_files_for_one_data_file_each_say_which(storage):
    outcome = rewrite_deletes(
        task(source(storage, [("a", 1), ("b", 2)]), source(storage, [("c", 3), ("a", 0)]), granularity="file"), storage
    )
    assert [(file.referenced_data_file, file.record_count) for file in outcome.files] == [("a", 2), ("b", 1), ("c", 1)]
    assert len({file.file_path for file in outcome.files}) == 3


def test_a_file_of_a_partition_that_is_for_one_data_file_says_so(storage):
    (file,) = rewrite_deletes(task(source(storage, [("b", 2)]), source(storage, [("b", 1)])), storage).files
    assert file.referenced_data_file == "b"


def test_rows_of_data_files_that_are_not_live_or_too_new_are_dropped_and_said(storage):
    sources = source(storage, [("a", 1), ("gone", 1), ("gone", 2)], 5), source(storage, [("a", 2), ("b", 1)], 7)
    live = {"a": LiveFile(6), "b": LiveFile(7)}
    outcome = rewrite_deletes(task(*sources, live=live), storage)
    assert held(storage, outcome.files) == {"a": [2], "b": [1]}
    assert outcome.dangling_count == 3
    assert outcome.named == {
        path_digest("a"): NamedFile(kept_from=7, dropped_up_to=5),
        path_digest("b"): NamedFile(kept_from=7),
        path_digest("gone"): NamedFile(dropped_up_to=5),
    }


def test_nothing_left_makes_no_file(storage):
    for makes_vectors in (False, True):
        some = source(storage, [("gone", 1)])
        before = set(storage.files)
        assert rewrite_deletes(task(some, makes_vectors=makes_vectors), storage).files == ()
        assert set(storage.files) == before


def test_a_task_takes_the_rows_of_its_paths(storage):
    some = source(storage, [(path, 1) for path in "abc"])
    whole = task(some)
    taken = [
        rewrite_deletes(replace(whole, first_path=first, end_path=end, partition_id=n), storage)
        for n, (first, end) in enumerate([(None, "b"), ("b", "c"), ("c", None)])
    ]
    assert [held(storage, outcome.files) for outcome in taken] == [{"a": [1]}, {"b": [1]}, {"c": [1]}]
    assert [outcome.read_count for outcome in taken] == [1, 1, 1]
    assert [set(outcome.named) for outcome in taken] == [{path_digest(path)} for path in "abc"]


def test_vectors_hold_all_positions_of_their_data_files_in_one_puffin_file(storage):
    sources = source(storage, [("a", 1), ("b", 2)]), source(storage, [("a", 5), ("b", 2), ("c", 9)])
    live = {"a": LiveFile(1), "b": LiveFile(1), "c": LiveFile(1, has_vector=True)}
    outcome = rewrite_deletes(task(*sources, live=live, makes_vectors=True), storage)
    assert [file.referenced_data_file for file in outcome.files] == ["a", "b"]
    assert len({file.file_path for file in outcome.files}) == 1
    assert [read_deletion_vector(storage, file) for file in outcome.files] == [BitMap64([1, 5]), BitMap64([2])]
    assert (outcome.replaced_count, outcome.dangling_count) == (1, 0)
    assert outcome.named[path_digest("c")] == NamedFile(has_vector=True)


def test_files_end_at_the_target_size(storage):
    some = source(storage, [("a", n * n * 7919 % 1_000_003) for n in range(50_000)])
    options = {"target_file_size_bytes": 20_000, "properties": {"write.delete.parquet.compression-codec": "snappy"}}
    outcome = rewrite_deletes(task(some, **options), storage)
    assert len(outcome.files) > 2
    whole = read_all_position_deletes(storage, some.file, 1 << 30)["a"].tolist()
    assert held(storage, outcome.files)["a"] == whole
    with storage.open(outcome.files[0].file_path) as stream:
        assert pq.ParquetFile(stream).metadata.row_group(0).column(1).compression == "SNAPPY"


def test_values_are_kept_once_and_go_before_the_bare_position(storage):
    kept = StructType(tuple(replace(field, required=False) for field in COLUMNS.fields[:2]))

    def valued(*rows):
        columns = [[row[n] for row in rows] for n in range(3)]
        return pa.table(columns, names=["file_path", "pos", "row"])

    one = source(storage, valued(("b", 1, {"id": 11, "kind": None}), ("a", 3, {"id": 3, "kind": "x"})), row_type=kept)
    two = source(storage, valued(("a", 3, {"id": 3, "kind": "x"}), ("gone", 3, {"id": 4, "kind": "y"})), row_type=kept)
    bare = source(storage, [("a", 3), ("a", 4), ("b", 1)])
    outcome = rewrite_deletes(task(one, two, bare), storage)
    plain, values = (pq.read_table(storage.open(file.file_path)) for file in outcome.files)
    assert plain.to_pydict() == {"file_path": ["a"], "pos": [4]}
    assert values.select(["file_path", "pos"]).to_pydict() == {"file_path": ["a", "b"], "pos": [3, 1]}
    # A column that the file did not have is null.
    assert values["row"].to_pylist() == [{"id": 3, "kind": "x", "score": None}, {"id": 11, "kind": None, "score": None}]
    assert not values.schema.field("row").nullable
    by_file = rewrite_deletes(task(one, two, bare, granularity="file", partition_id=1), storage)
    assert [file.referenced_data_file for file in by_file.files] == ["a", "a", "b"]


def test_a_damaged_or_missing_file_fails_the_task_and_leaves_none(storage):
    some = source(storage, [("a", 1)]), source(storage, [("b", 1)])
    whole = task(*some)
    location = some[1].file.file_path
    kept = storage.files.pop(location)
    before = set(storage.files)
    with pytest.raises(MissingFileError):
        rewrite_deletes(whole, storage)
    storage.files[location] = (kept[0][:-20], kept[1])
    with pytest.raises(InvalidTableError):
        rewrite_deletes(whole, storage)
    assert set(storage.files) == before | {location}
    with pytest.raises(UnsupportedError, match="encrypted"):
        rewrite_deletes(task(replace(some[0], file=replace(some[0].file, key_metadata=b"k"))), storage)


def test_positions_below_zero_are_refused(storage):
    rows = pa.table({"file_path": ["a"], "pos": [-1]})
    ids = {"file_path": b"2147483546", "pos": b"2147483545"}
    fields = [
        pa.field(f.name, f.type, nullable=False, metadata={b"PARQUET:field_id": ids[f.name]}) for f in rows.schema
    ]
    with storage.write("memory://lake/bad") as stream:
        pq.write_table(rows.cast(pa.schema(fields)), stream)
    file = replace(source(storage, [("a", 1)]).file, file_path="memory://lake/bad")
    with pytest.raises(InvalidTableError, match="below 0"):
        rewrite_deletes(task(DeleteSource(file, 5)), storage)


PAIRS = st.lists(st.tuples(st.sampled_from("abcdx"), st.integers(0, 9)), min_size=1, max_size=12)


@pytest.mark.slow
@given(
    st.lists(st.tuples(PAIRS, st.integers(1, 5)), min_size=1, max_size=5),
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(1, 5), st.booleans())),
    st.booleans(),
    st.sampled_from(["file", "partition"]),
    st.sampled_from([1, 3, 65_536]),
)
def test_what_is_deleted_in_each_data_file_stays_deleted_and_nothing_else(some, data, makes_vectors, granularity, rows):
    storage = MemoryStorage()
    sources = [source(storage, pairs, number) for pairs, number in some]
    live = {path: LiveFile(number, has_vector) for path, (number, has_vector) in data.items()}
    live = live or {"z": LiveFile(1)}
    expected = defaultdict(set)
    for pairs, number in some:
        for path, position in pairs:
            if path in live and live[path].sequence_number <= number and not live[path].has_vector:
                expected[path].add(position)
    options = {"makes_vectors": makes_vectors, "granularity": granularity}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite_positions, "BATCH_ROWS", rows)
        outcome = rewrite_deletes(task(*sources, live=live, **options), storage)
    if makes_vectors:
        found = {file.referenced_data_file: [*read_deletion_vector(storage, file)] for file in outcome.files}
    else:
        found = held(storage, outcome.files)
        assert granularity == "partition" or all(file.referenced_data_file for file in outcome.files)
    assert found == {path: sorted(positions) for path, positions in expected.items()}
    newest = max(number for _, number in some)
    for path, file in live.items():
        became = outcome.named.get(path_digest(path))
        if became is not None:
            assert became.problem(file.sequence_number, has_vector=file.has_vector, makes_vectors=makes_vectors) is None
            assert became.kept_from is None or became.kept_from <= newest


@pytest.mark.slow
def test_a_task_of_a_range_of_paths_reads_the_row_groups_of_its_range(storage):
    """N ranges read every delete file N times."""
    paths = [f"memory://lake/{n:03d}-{'x' * 200}" for n in range(100)]
    numbers = np.random.default_rng(5).integers(0, 2**40, 100 * 500)
    columns = [pa.array([path for path in paths for _ in range(500)]), pa.array(numbers)]
    path, position = arrow_schema(Schema(fields=(DELETE_FILE_PATH, DELETE_FILE_POS)))
    with storage.write("memory://lake/deletes") as stream:
        table = pa.Table.from_arrays(columns, schema=pa.schema([path, position]))
        pq.write_table(table, stream, row_group_size=5000, compression="none", use_dictionary=False)
    file = replace(data_file("", 50_000), content=FileContent.POSITION_DELETES, file_path="memory://lake/deletes")
    live = {path: LiveFile(1) for path in paths}
    read: list[int] = []
    counting = HookedStorage(storage)
    counting.open = lambda location: _Counting(storage.read(location), read)
    whole = task(DeleteSource(file, 5), live=live, makes_vectors=True)
    parts = [(None, paths[20]), (paths[20], paths[60]), (paths[60], None)]
    done, shares = [], []
    for first, end in parts:
        read.clear()
        done.append(rewrite_deletes(replace(whole, first_path=first, end_path=end, partition_id=len(done)), counting))
        shares.append(sum(read) / len(storage.read(file.file_path)))
    assert sum(outcome.read_count for outcome in done) == 50_000
    assert [len(outcome.named) for outcome in done] == [20, 40, 40]
    assert all(share < wanted for share, wanted in zip(shares, (0.3, 0.5, 0.5), strict=True))


class _Counting(io.BytesIO):
    """A stream that counts what is read of it."""

    def __init__(self, data: bytes, read: list[int]) -> None:
        super().__init__(data)
        self._read = read

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self._read.append(len(data))
        return data
