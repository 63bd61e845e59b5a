"""What one task makes of delete files: positions in order, each once, and none that reaches nothing."""

import io
import struct
from collections import Counter, defaultdict
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.commit.changes.deletes import NamedFile
from icekeep.commit.file_sets import entry_digest
from icekeep.errors import IcekeepBug, InvalidTableError, MissingFileError, UnsupportedError, UsageError
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.deletes import apply as equality_match
from icekeep.formats.deletes import apply as merge_on_read
from icekeep.formats.deletes import rewrite as equality_to_positions
from icekeep.formats.deletes import rewrite as rewrite_positions
from icekeep.formats.deletes.apply import LivePiece
from icekeep.formats.deletes.read import (
    DeleteCache,
    read_all_position_deletes,
    write_equality_deletes,
    write_position_deletes,
)
from icekeep.formats.deletes.rewrite import (
    ConversionTask,
    DeleteSource,
    DeletesTask,
    LiveFile,
    ReachedFile,
    convert,
    equality_positions,
    rewrite_deletes,
)
from icekeep.formats.puffin import VectorTarget, read_deletion_vector, write_deletion_vectors
from icekeep.formats.reader import SourceFile
from icekeep.spec.manifests.structs import FileContent, ManifestEntry, Status
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED, build_spec
from icekeep.spec.reach import path_digest
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, Schema
from icekeep.spec.types import DOUBLE, FLOAT, LONG, STRING, NestedField, StructType
from kit.cases import cases, for_each
from kit.columns import column, schema_of, table_of
from kit.data_files import options_for, write_files
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import COLUMNS, data_file

FORMATS = ("PARQUET", "ORC", "AVRO")


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


def test_rows_of_removed_or_newer_files_are_dropped(storage):
    """Rows of data files that are gone, or newer than the delete, are dropped and reported."""
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


def test_vectors_hold_all_positions_in_one_puffin_file(storage):
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


def test_unreadable_input_fails_task_and_leaves_no_files(storage):
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
def test_rewrite_deletes_exactly_the_same_rows(some, data, makes_vectors, granularity, rows):
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
def test_range_task_reads_only_its_row_groups(storage):
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


NAN = float("nan")
INNER = StructType((column(4, "x", DOUBLE), column(5, "label", STRING)))
ANIMALS = schema_of(
    column(1, "id", LONG), column(2, "kind", STRING), column(3, "inner", INNER), column(6, "ratio", FLOAT)
)
KEYS = ((1,), (2,), (4,), (6,), (1, 2), (2, 4), (2, 5, 6))
"""By which deletes compare: fields of structs among them."""

_ROW = st.fixed_dictionaries(
    {
        "id": st.sampled_from([None, 0, 1, 2**40]),
        "kind": st.sampled_from([None, "", "a", "ä"]),
        "inner": st.none()
        | st.fixed_dictionaries(
            {"x": st.sampled_from([None, 0.0, -0.0, NAN]), "label": st.sampled_from([None, "a", ""])}
        ),
        "ratio": st.sampled_from([None, 0.5, NAN]),
    }
)
_FILES = st.lists(st.tuples(st.lists(_ROW, max_size=12), st.sampled_from(FORMATS)), min_size=1, max_size=4)
_DELETES = st.lists(
    st.tuples(st.sampled_from(KEYS), st.lists(_ROW, min_size=1, max_size=4), st.sampled_from(FORMATS)), max_size=4
)


def key_of(row: dict[str, Any], ids: tuple[int, ...]) -> tuple[Any, ...]:
    inner = row["inner"] or {"x": None, "label": None}
    values = {1: row["id"], 2: row["kind"], 4: inner["x"], 5: inner["label"], 6: row["ratio"]}
    return tuple(_bits(values[field_id]) for field_id in ids)


def _bits(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "nan" if value != value else struct.pack(">d", value)


class Table:
    """Data files and delete files in a store."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.numbers = 0

    def data(self, rows, file_format="PARQUET", schema=ANIMALS, deletes=()):
        self.numbers += 1
        directory = f"memory:/t/{self.numbers}"
        if not rows:
            # What has no rows makes no file: one row stands for it, and its entry is never read past it.
            rows = [dict.fromkeys(field.name for field in schema.fields)]
        options = options_for(file_format)
        (file,) = write_files(self.storage, schema, [table_of(schema, rows)], options, directory)
        source = SourceFile(location=file.file_path, file_format=file_format)
        return LivePiece(source=source, deletes=list(deletes), record_count=file.record_count)

    def equality(self, ids, rows, file_format="PARQUET", schema=ANIMALS):
        self.numbers += 1
        return write_equality_deletes(
            self.storage,
            f"memory:/t/deletes-{self.numbers}",
            file_format,
            table_of(schema, rows),
            ids,
            schema,
            spec_id=0,
        )

    def positions(self, pieces, schemas=(ANIMALS,), storage=None, **options):
        found = equality_positions(storage or self.storage, pieces, schemas, **options)
        return [positions.tolist() for positions in found]


@pytest.mark.slow
@given(_FILES, _DELETES, st.data())
@cases(60)
def test_positions_are_those_of_the_rows_that_equal_a_delete(files, deletes, data):
    """Null equals null, NaN equals NaN, 0.0 is not -0.0; whatever pieces the rows are read in, and deletes pass by in."""
    table = Table()
    written = [table.equality(ids, rows, file_format) for ids, rows, file_format in deletes]
    pieces, expected = [], []
    for rows, file_format in files:
        reaching = data.draw(st.sets(st.integers(0, max(0, len(deletes) - 1)))) if deletes else set()
        rows = rows or [{"id": None, "kind": None, "inner": None, "ratio": None}]
        pieces.append(table.data(rows, file_format, deletes=[written[n] for n in sorted(reaching)]))
        gone = {(deletes[n][0], key_of(row, deletes[n][0])) for n in reaching for row in deletes[n][1]}
        expected.append([n for n, row in enumerate(rows) if any((ids, key_of(row, ids)) in gone for ids in KEYS)])
    piece_rows, batch_rows = data.draw(st.sampled_from([1, 3, 1000])), data.draw(st.sampled_from([1, 2, 1000]))
    with (
        mock.patch.object(merge_on_read, "PIECE_ROWS", piece_rows),
        mock.patch.object(equality_match, "BATCH_ROWS", batch_rows),
    ):
        assert table.positions(pieces) == expected


def test_conversion_compares_dropped_promoted_added_columns():
    table = Table()
    older = replace(schema_of(column(1, "id", LONG), column(2, "ratio", FLOAT), column(3, "kind", STRING)), schema_id=0)
    added = NestedField(field_id=4, name="origin", type=STRING, initial_default="here")
    now = replace(schema_of(column(1, "id", LONG), column(2, "ratio", DOUBLE), added), schema_id=1)
    rows = [{"id": n, "ratio": n / 4, "kind": "ab"[n % 2]} for n in range(6)]
    by_dropped = table.equality([3], [{"id": None, "ratio": None, "kind": "b"}], schema=older)
    by_promoted = table.equality([2], [{"id": None, "ratio": 0.5, "origin": None}], schema=now)
    by_default = table.equality([1, 4], [{"id": 4, "ratio": None, "origin": "here"}], schema=now)
    piece = table.data(rows, schema=older, deletes=[by_dropped, by_promoted, by_default])
    for schemas in ([older, now], [now, older]):
        assert table.positions([piece], schemas) == [[1, 2, 3, 4, 5]]


def test_only_the_columns_that_are_compared_are_looked_at():
    """The others may be broken."""
    table = Table()
    wide = schema_of(column(1, "id", LONG), column(2, "text", STRING))
    rows = [{"id": n, "text": f"text {n}"} for n in range(2000)]
    piece = table.data(rows, schema=wide)
    data = bytearray(table.storage.read(piece.source.location))
    text = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(1)
    start = text.dictionary_page_offset or text.data_page_offset
    data[start : start + text.total_compressed_size] = bytes(text.total_compressed_size)
    table.storage.delete_many([piece.source.location])
    table.storage.create(piece.source.location, bytes(data))
    by_id, by_text = (table.equality([n], [{"id": 7, "text": "text 7"}], schema=wide) for n in (1, 2))
    assert table.positions([replace(piece, deletes=[by_id])], [wide]) == [[7]]
    with pytest.raises(InvalidTableError):
        table.positions([replace(piece, deletes=[by_text])], [wide])


def test_a_delete_file_is_read_once_for_files_that_share_it():
    table = Table()
    rows = [{"id": n, "kind": "a", "inner": None, "ratio": None} for n in range(4)]
    delete = table.equality([1], [rows[2]])
    pieces = [table.data(rows, deletes=[delete]) for _ in range(5)]
    opened = Counter()
    storage = HookedStorage(table.storage, before=lambda operation, location: opened.update([location]))
    assert table.positions(pieces, storage=storage, cache=DeleteCache()) == [[2]] * 5
    assert opened == {delete.file_path: 1} | {piece.source.location: 1 for piece in pieces}


@for_each("place", [0, 1, 2])
@for_each("wrong", [-1, 1])
def test_a_file_that_has_not_the_rows_of_its_entry_is_refused(place, wrong):
    table = Table()
    rows = [{"id": n, "kind": "a", "inner": None, "ratio": None} for n in range(4)]
    delete = table.equality([1], [rows[2]])
    pieces = [table.data(rows, deletes=[delete]) for _ in range(3)]
    pieces[place] = replace(pieces[place], record_count=4 + wrong)
    with pytest.raises(InvalidTableError, match=f"has 4 rows where its manifest says {4 + wrong}"):
        table.positions(pieces)


def test_parts_of_files_have_no_positions():
    table = Table()
    piece = table.data([{"id": 1, "kind": "a", "inner": None, "ratio": None}])
    for wrong in (replace(piece, record_count=None), replace(piece, split=(0, 10))):
        with pytest.raises(IcekeepBug, match="in a part of data file"):
            table.positions([wrong])


SCHEMA = schema_of(column(1, "id", LONG), column(2, "kind", STRING))
BY_KIND = build_spec(SCHEMA, [("kind", "identity", None)])


class Share:
    """Data files of ten rows each, ids 0 to 9, and what reaches them."""

    def __init__(self, version=2, spec=UNPARTITIONED, **properties):
        self.storage = MemoryStorage()
        named = {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
        self.metadata = new_table_metadata(
            schema=SCHEMA,
            spec=spec,
            location="memory:/t",
            table_uuid="u",
            now_ms=0,
            properties=named,
            format_version=version,
        )
        self.schema, self.files, self.deletes, self.positions = self.metadata.schema, [], [], []
        self.before = None

    def data(self, *position_deletes, partition=(), rows=10, first=0):
        number = len(self.files)
        values = [{"id": n, "kind": partition[0] if partition else "a"} for n in range(rows)]
        (file,) = write_files(
            self.storage,
            self.schema,
            [table_of(self.schema, values)],
            directory=f"memory:/t/data/{number}",
            partition=partition,
        )
        entry = ManifestEntry(status=Status.EXISTING, sequence_number=1, data_file=file)
        self.files.append(ReachedFile(entry=entry, reach=((0, first),), position_deletes=position_deletes))
        return file

    def equality(self, *ids):
        rows = table_of(self.schema, [{"id": n, "kind": None} for n in ids])
        location = f"memory:/t/deletes-{len(self.deletes)}"
        self.deletes.append(
            write_equality_deletes(self.storage, location, "PARQUET", rows, [1], self.schema, spec_id=0)
        )

    def _known(self, file):
        self.positions.append(ManifestEntry(status=Status.EXISTING, sequence_number=1, data_file=file))
        return len(self.positions) - 1

    def vector(self, file, *positions):
        target = VectorTarget(location=file.file_path, spec_id=0, partition=file.partition)
        location = f"memory:/t/vector-{len(self.positions)}"
        (written,) = write_deletion_vectors(self.storage, location, [(target, BitMap64(positions))])
        return self._known(written)

    def old_positions(self, *pairs):
        location = f"memory:/t/old-{len(self.positions)}"
        return self._known(write_position_deletes(self.storage, location, "PARQUET", pairs, spec_id=0))

    def task(self, **facts):
        facts = {"operation_id": "run", "metadata": self.metadata, **facts}
        return ConversionTask(
            files=tuple(self.files),
            equality_deletes=(tuple(self.deletes),),
            position_deletes=tuple(self.positions),
            **facts,
        )

    def convert(self, **facts):
        self.before = set(self.storage.files)
        return convert(self.task(**facts), self.storage)

    def reach(self, number, *positions):
        self.files[number] = replace(self.files[number], position_deletes=positions)


def found(share, outcome):
    """The deleted positions of each data file by what was written."""
    by_path = {}
    for file in outcome.added:
        if file.content_offset is None:
            for path, positions in read_all_position_deletes(share.storage, file, 2**20).items():
                by_path.setdefault(path, []).extend(positions.tolist())
        else:
            by_path[file.referenced_data_file] = list(read_deletion_vector(share.storage, file))
    return by_path


def test_each_data_file_gets_a_position_delete_file_of_its_own():
    share = Share(spec=BY_KIND)
    a, b, c = (share.data(partition=(kind,)) for kind in "xxy")
    share.equality(3, 7)
    share.equality(99)
    outcome = share.convert(partition_id=4, task_attempt_id=9)
    assert found(share, outcome) == {file.file_path: [3, 7] for file in (a, b, c)}
    assert [(f.referenced_data_file, f.partition, f.spec_id) for f in outcome.added] == [
        (file.file_path, file.partition, 0) for file in (a, b, c)
    ]
    assert [f.file_path for f in outcome.added] == [
        f"memory:/t/data/kind={kind}/00004-9-run-0000{n}-deletes.parquet" for n, kind in enumerate("xxy", start=1)
    ]
    assert {f.content for f in outcome.added} == {FileContent.POSITION_DELETES}
    assert [one.entry for one in outcome.named] == [file.entry for file in share.files]
    assert set(outcome.data_files) == {entry_digest(file.entry) for file in share.files}
    assert (outcome.positions_count, outcome.read_count, outcome.replaced) == (6, 30, ())


@pytest.mark.parametrize("version", [2, 3])
def test_file_without_matching_rows_gets_no_delete_file(version):
    """A data file without a matching row gets no delete file, and still counts as converted."""
    share = Share(version)
    share.data()
    b = share.data(rows=4)
    share.equality(5)
    share.files = share.files[::-1]
    outcome = share.convert()
    assert b.file_path not in found(share, outcome)
    assert (len(outcome.data_files), len(outcome.named), len(outcome.added)) == (2, 1, 1)


def test_partition_granularity_makes_one_delete_file():
    share = Share(spec=BY_KIND)
    a, b, c = (share.data(partition=(kind,)) for kind in "xxy")
    share.equality(3, 7)
    outcome = share.convert(granularity="partition")
    assert [(f.referenced_data_file, f.partition, f.record_count) for f in outcome.added] == [
        (None, ("x",), 4),
        (c.file_path, ("y",), 2),
    ]
    assert found(share, outcome) == {file.file_path: [3, 7] for file in (a, b, c)}


def test_delete_files_of_partitions_end_where_they_are_large(monkeypatch):
    monkeypatch.setattr(equality_to_positions, "POSITIONS_A_FILE", 5)
    share = Share()
    files = [share.data() for _ in range(5)]
    share.equality(3, 7)
    outcome = share.convert(granularity="partition")
    assert [file.record_count for file in outcome.added] == [4, 4, 2]
    assert found(share, outcome) == {file.file_path: [3, 7] for file in files}


@pytest.mark.parametrize("file_format", ["PARQUET", "ORC", "AVRO"])
def test_position_delete_files_have_the_format_that_is_asked_for(file_format):
    share = Share()
    file = share.data()
    share.equality(3)
    outcome = share.convert(delete_format=file_format)
    assert (outcome.added[0].file_format, found(share, outcome)) == (file_format, {file.file_path: [3]})


def test_v2_rewrites_already_deleted_positions():
    """Nothing rests on other deletes, which may go."""
    share = Share()
    file = share.data()
    share.equality(3, 4)
    share.reach(0, share.old_positions((file.file_path, 3)))
    outcome = share.convert()
    assert found(share, outcome) == {file.file_path: [3, 4]}
    assert (outcome.replaced, outcome.named[0].position_deletes) == ((), ())


def test_a_vector_has_all_positions_that_are_deleted():
    share = Share(3)
    a, b = share.data(), share.data()
    share.equality(3, 4)
    share.reach(0, share.vector(a, 0, 3))
    share.reach(1, share.old_positions((b.file_path, 9)), share.old_positions((a.file_path, 1), (b.file_path, 8)))
    outcome = share.convert()
    assert found(share, outcome) == {a.file_path: [0, 3, 4], b.file_path: [3, 4, 8, 9]}
    assert {file.file_path for file in outcome.added} == {"memory:/t/data/00000-0-run-00001-deletes.puffin"}
    # What names other data files too stays.
    assert outcome.replaced == tuple(share.positions[:2])
    assert [one.position_deletes for one in outcome.named] == [(share.positions[0],), tuple(share.positions[1:])]
    assert outcome.positions_count == 4


def test_complete_vector_is_kept_and_must_stay():
    """A vector that already has all positions is not rewritten, and must still be live at the commit."""
    share = Share(3)
    a, b = share.data(), share.data()
    share.equality(3, 4)
    share.reach(0, share.vector(a, 0, 3, 4))
    share.reach(1, share.vector(b, 3))
    outcome = share.convert()
    assert found(share, outcome) == {b.file_path: [3, 4]}
    assert [len(one.position_deletes) for one in outcome.named] == [1, 1]
    assert outcome.replaced == (share.positions[1],)


def test_vectors_are_dealt_out_to_files(monkeypatch):
    monkeypatch.setattr(equality_to_positions, "VECTORS_A_FILE", 2)
    share = Share(3)
    files = [share.data() for _ in range(5)]
    share.equality(3)
    outcome = share.convert()
    assert found(share, outcome) == {file.file_path: [3] for file in files}
    places = [file.file_path[-22:] for file in outcome.added]
    assert [places.count(place) for place in dict.fromkeys(places)] == [2, 2, 1]


def test_deletes_reach_a_data_file_from_a_place_on():
    share = Share()
    files = [share.data(first=first) for first in (0, 1, 2)]
    share.equality(1)
    share.equality(2)
    outcome = share.convert()
    assert found(share, outcome) == {files[0].file_path: [1, 2], files[1].file_path: [2]}


@pytest.mark.parametrize("version", [2, 3])
def test_a_task_that_fails_leaves_nothing(version, monkeypatch):
    monkeypatch.setattr(equality_to_positions, "VECTORS_A_FILE", 1)
    # Rows of several files are looked through together, unless something else reaches them.
    share = Share(version)
    share.data()
    broken = share.data(first=1)
    share.equality(2)
    share.equality(3)
    share.storage.delete_many([broken.file_path])
    with pytest.raises(MissingFileError):
        share.convert()
    assert set(share.storage.files) == share.before


def test_a_wrong_property_of_the_writer_is_said():
    share = Share(write__delete__parquet__compression_codec="none at all")
    share.data()
    share.equality(3)
    with pytest.raises(UsageError):
        share.convert()
    assert set(share.storage.files) == share.before


@given(
    st.sampled_from([2, 3]),
    st.lists(st.tuples(st.integers(1, 12), st.sets(st.integers(0, 12), max_size=3)), min_size=1, max_size=4),
    st.lists(st.sets(st.integers(0, 12), min_size=1, max_size=3), min_size=1, max_size=3),
    st.sampled_from(["file", "partition"]),
)
@cases(40)
def test_the_rows_that_are_left_are_the_same(version, files, deletes, granularity):
    share = Share(version)
    for rows, _ in files:
        share.data(rows=rows)
    for ids in deletes:
        share.equality(*ids)
    for number, (_, known) in enumerate(files):
        if known and version == 3:
            share.reach(number, share.vector(share.files[number].entry.data_file, *known))
    outcome = share.convert(granularity=granularity)
    written, replaced = found(share, outcome), {entry.data_file.file_path for entry in outcome.replaced}
    gone = set().union(*deletes)
    for number, (rows, known) in enumerate(files):
        file = share.files[number].entry.data_file
        of_vector = [share.positions[n].data_file.file_path for n in share.files[number].position_deletes]
        kept = known if of_vector and of_vector[0] not in replaced else set()
        before = gone | known if version == 3 else gone
        after = set(written.get(file.file_path, ())) | kept
        assert {n for n in range(rows) if n in before} == {n for n in range(rows) if n in after}
