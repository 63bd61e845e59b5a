import hashlib
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from icekeep.errors import IcekeepBug, IcekeepError, InvalidTableError
from icekeep.formats.options import ParquetOptions
from icekeep.formats.parquet.footer import CODECS, read_footer
from icekeep.formats.parquet.pages import PageExaminer
from icekeep.formats.parquet.thrift import BINARY, LIST, STRUCT, list_bytes, struct_bytes
from icekeep.formats.rewrite import copy_pages
from icekeep.formats.rewrite.copy_pages import PagesFile, Shape, rewrite_by_pages
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import metrics_modes
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.types import BOOLEAN, DATE, DOUBLE, INT, LONG, STRING, TIMESTAMPTZ, decimal
from kit.cases import cases, for_each
from kit.columns import EVERY_TYPE, column, parquet_bytes, rows, schema_of, table_of
from kit.spliced import check_file, encoded, metrics_of, piece_of, spliced, stored, task_for, with_edits, without_floors
from kit.storage import MemoryStorage

FLAT = schema_of(
    column(1, "id", LONG, required=True), column(2, "n", INT), column(3, "s", STRING), column(4, "day", DATE),
    column(5, "price", decimal(15, 2)), column(6, "wide", decimal(30, 4)), column(7, "at", TIMESTAMPTZ),
    column(8, "kind", STRING), column(9, "x", DOUBLE), column(10, "flag", BOOLEAN),
)  # fmt: skip
SPLICEABLE = {1, 2, 3, 4, 5, 6, 7, 8}
PLAIN = {"compression": "zstd", "use_dictionary": False, "write_page_index": True, "write_page_checksum": True}


@pytest.fixture
def storage():
    return MemoryStorage()


def flat_rows(start, count):
    return table_of(
        FLAT,
        [
            {
                "id": n,
                "n": n * 7919 % 1009 - 500 if n % 5 else None,
                "s": f"text {n * 104_729 % 100_003}" if n % 7 else None,
                "day": n // 3,
                "price": None if n < 40 else (n - 100) * 3,
                "wide": n * 10**20 * (-1) ** n,
                "at": n * 1_000_003,
                "kind": "ab"[n % 2],
                "x": float("nan") if n % 11 == 0 else n / 3,
                "flag": n % 3 == 0,
            }
            for n in range(start, start + count)
        ],
    )


def put_parts(storage, sizes, schema=FLAT, rows_of=flat_rows, **options):
    pieces, start = [], 0
    for size in sizes:
        data = parquet_bytes(rows_of(start, size), **{**PLAIN, **options})
        pieces.append(piece_of(storage, f"memory:/old/{len(storage.files)}.parquet", data))
        start += size
    return pieces


def check_same(storage, pieces, schema, **facts):
    """Spliced and encoded alike; returns the spliced files, and what was moved."""
    files, moved = spliced(storage, pieces, schema, **facts)
    others = encoded(storage, pieces, schema, **facts)
    assert str(stored(storage, files).to_pylist()) == str(stored(storage, others).to_pylist())
    if [len(file.split_offsets) for file in files] == [len(file.split_offsets) for file in others] == [1]:
        assert metrics_of(files) == metrics_of(others)
    if moved:
        assert all(check_file(storage, file) for file in files)
    return files, moved


def test_plain_columns_are_moved_and_file_equals_encoded(storage):
    """Columns without a dictionary are moved, and the file is described as if it were encoded."""
    pieces = put_parts(storage, [100, 1, 250], max_rows_per_page=40)
    (file,), moved = check_same(storage, pieces, FLAT)
    assert moved == SPLICEABLE
    theirs, ours = (
        pq.ParquetFile(io.BytesIO(storage.read(f.file_path)))
        for f in (encoded(storage, pieces, FLAT, "memory:/e")[0], file)
    )
    assert ours.schema.equals(theirs.schema)
    assert ours.schema_arrow.equals(theirs.schema_arrow, check_metadata=True)
    assert (ours.metadata.created_by, ours.metadata.format_version) == (
        theirs.metadata.created_by,
        theirs.metadata.format_version,
    )
    for position in range(len(FLAT.fields)):
        a, b = (f.metadata.row_group(0).column(position) for f in (ours, theirs))
        assert a.statistics.to_dict() == b.statistics.to_dict()
        assert a.has_column_index
        assert a.has_offset_index
        assert (a.path_in_schema, a.physical_type, a.compression) == (b.path_in_schema, b.physical_type, b.compression)


def test_the_bytes_of_pages_are_those_of_the_source(storage):
    pieces = put_parts(storage, [300, 300])
    (file,), _ = spliced(storage, pieces, FLAT)
    data = storage.read(file.file_path)
    for piece in pieces:
        source = storage.read(piece.location)
        chunk = pq.ParquetFile(io.BytesIO(source)).metadata.row_group(0).column(2)
        start = chunk.data_page_offset
        assert source[start : start + chunk.total_compressed_size] in data


def test_one_column_at_least_is_encoded_so_that_rows_are_counted(storage):
    schema = schema_of(column(1, "a", LONG), column(2, "s", STRING))
    numbers = lambda start, count: table_of(schema, [{"a": n, "s": f"{n} {n}"} for n in range(start, start + count)])  # noqa: E731
    _, moved = check_same(storage, put_parts(storage, [50, 70], schema, numbers), schema)
    assert len(moved) == 1


def test_columns_with_a_dictionary_in_one_file_are_encoded(storage):
    pieces = put_parts(storage, [100]) + put_parts(storage, [100], use_dictionary=["s", "day"])
    _, moved = check_same(storage, pieces, FLAT)
    assert moved == SPLICEABLE - {3, 4}


def test_pages_of_another_codec_are_not_moved(storage):
    assert check_same(storage, put_parts(storage, [100], compression="snappy"), FLAT)[1] == set()
    properties = {"write.parquet.compression-codec": "snappy"}
    again = MemoryStorage()
    assert (
        check_same(again, put_parts(again, [100], compression="snappy"), FLAT, properties=properties)[1] == SPLICEABLE
    )


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "brotli", "uncompressed"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_of_each_codec_and_version_are_moved(storage, codec, version):
    name = codec.replace("uncompressed", "none")
    pieces = put_parts(storage, [90, 60], compression=name, data_page_version=version, max_rows_per_page=25)
    properties = {"write.parquet.compression-codec": codec}
    assert check_same(storage, pieces, FLAT, properties=properties)[1] == SPLICEABLE


def test_pages_of_both_versions_are_not_put_into_one_chunk(storage):
    pieces = put_parts(storage, [90]) + put_parts(storage, [90], data_page_version="2.0")
    _, moved = check_same(storage, pieces, FLAT)
    assert moved == set()


def test_encodings_without_a_dictionary_are_moved_side_by_side(storage):
    encodings = {
        "id": "DELTA_BINARY_PACKED", "s": "DELTA_BYTE_ARRAY", "kind": "DELTA_LENGTH_BYTE_ARRAY", "at": "BYTE_STREAM_SPLIT",
    }  # fmt: skip
    pieces = put_parts(storage, [90]) + put_parts(storage, [90], column_encoding=encodings)
    assert check_same(storage, pieces, FLAT)[1] == SPLICEABLE


def test_column_with_other_nullability_is_encoded(storage):
    optional = replace(FLAT, fields=(replace(FLAT.fields[0], required=False), *FLAT.fields[1:]))
    pieces = put_parts(storage, [100])
    assert check_same(storage, pieces, optional)[1] == SPLICEABLE - {1}


def test_columns_go_by_id_and_not_by_name_or_place(storage):
    renamed = schema_of(*(replace(field, name=f"new_{field.name}") for field in reversed(FLAT.fields)))
    files, moved = check_same(storage, put_parts(storage, [100, 20]), renamed)
    assert moved == SPLICEABLE
    assert stored(storage, files).column_names == [field.name for field in renamed.fields]


def test_columns_of_another_type_are_encoded(storage):
    wider = {2: LONG, 5: decimal(17, 2)}
    promoted = schema_of(*(replace(field, type=wider.get(field.field_id, field.type)) for field in FLAT.fields))
    assert check_same(storage, put_parts(storage, [100, 20]), promoted)[1] == SPLICEABLE - set(wider)


def test_a_column_that_a_file_lacks_is_encoded(storage):
    more = schema_of(*FLAT.fields, column(20, "new", LONG))
    pieces = put_parts(storage, [100])
    pieces += put_parts(storage, [50], rows_of=lambda a, n: flat_rows(a, n).select(["id", "n"]))
    assert check_same(storage, pieces, more)[1] == {1, 2}


def test_columns_with_wanted_bloom_filter_are_encoded(storage):
    properties = {
        "write.parquet.bloom-filter-enabled.column.s": "true",
        "write.parquet.stats-enabled.column.day": "false",
    }
    (file,), moved = check_same(storage, put_parts(storage, [100, 20]), FLAT, properties=properties)
    assert moved == SPLICEABLE - {3}
    group = pq.ParquetFile(io.BytesIO(storage.read(file.file_path))).metadata.row_group(0)
    assert group.column(2).bloom_filter_offset
    assert group.column(3).statistics is None
    assert not group.column(3).has_column_index


def test_columns_without_statistics_are_encoded(storage):
    pieces = put_parts(storage, [100, 20], write_statistics=["id", "s"])
    assert check_same(storage, pieces, FLAT)[1] == {1, 3}


def test_pages_without_column_index_are_moved(storage):
    pieces = put_parts(storage, [100, 20], write_page_index=False, max_rows_per_page=30)
    (file,), moved = check_same(storage, pieces, FLAT)
    assert moved == SPLICEABLE
    chunk = pq.ParquetFile(io.BytesIO(storage.read(file.file_path))).metadata.row_group(0).column(0)
    assert (chunk.has_column_index, chunk.has_offset_index) == (False, True)


def test_single_page_chunk_gets_column_index(storage):
    pieces = put_parts(storage, [100, 20], write_page_index=False)
    (file,), _ = check_same(storage, pieces, FLAT)
    chunk = pq.ParquetFile(io.BytesIO(storage.read(file.file_path))).metadata.row_group(0).column(0)
    assert chunk.has_column_index


@pytest.mark.slow
def test_files_end_at_the_target_and_row_groups_at_their_limit(storage):
    pieces = put_parts(storage, [500] * 12)
    one = sum(piece.size_bytes for piece in pieces) // 12
    properties = {"write.parquet.row-group-size-bytes": str(5 * one // 2)}
    files, moved = check_same(storage, pieces, FLAT, target_file_size_bytes=6 * one, properties=properties)
    assert moved == SPLICEABLE
    assert len(files) == 2
    assert all(2 <= len(file.split_offsets) <= 4 for file in files)


def test_lineage_is_written_beside_columns_that_are_moved(storage):
    first, second = put_parts(storage, [100, 20])
    pieces = (
        replace(first, first_row_id=1000, data_sequence_number=5),
        replace(second, first_row_id=50, data_sequence_number=6),
    )
    (file,), moved = check_same(storage, pieces, FLAT)
    assert moved == SPLICEABLE
    table = stored(storage, [file])
    assert table[ROW_ID.name].to_pylist() == [*range(1000, 1100), *range(50, 70)]
    assert table[LAST_UPDATED_SEQUENCE_NUMBER.name].to_pylist() == [5] * 100 + [6] * 20


def test_empty_files_and_empty_row_groups_add_nothing(storage):
    pieces = put_parts(storage, [0, 100, 0, 20])
    (file,), moved = check_same(storage, pieces, FLAT)
    assert (file.record_count, moved) == (120, SPLICEABLE)
    assert spliced(storage, put_parts(storage, [0]), FLAT, "memory:/none")[0] == ()


def test_page_moving_is_skipped_where_it_cannot_pay(storage):
    """Splits, deletes, other formats, large files and few movable bytes are left to the decoder."""
    few = put_parts(storage, [100, 20])
    assert rewrite_by_pages(task_for(few, FLAT), storage) is None
    with without_floors():
        for changed in (
            replace(few[0], split=(0, 4)),
            replace(few[0], deletes=(0,)),
            replace(few[0], file_format="ORC"),
            replace(few[0], size_bytes=2**30),
        ):
            assert rewrite_by_pages(task_for([changed], FLAT), storage) is None
        assert rewrite_by_pages(replace(task_for(few, FLAT), moves_pages=False), storage) is None
        assert rewrite_by_pages(task_for(few, FLAT, properties={"write.format.default": "orc"}), storage) is None
        assert rewrite_by_pages(task_for([], FLAT), storage) is None


@for_each(
    "options", [{"use_dictionary": True}, {"max_rows_per_page": 20, "write_batch_size": 20}, {"compression": "snappy"}]
)
def test_a_footer_alone_says_where_moving_pages_cannot_pay(storage, monkeypatch, options):
    pieces = put_parts(storage, [3000], schema_of(*FLAT.fields[2:4]), texts, **options)
    monkeypatch.setattr(copy_pages, "PageExaminer", None)
    assert rewrite_by_pages(task_for(pieces, schema_of(*FLAT.fields[2:4])), storage) is None


def texts(start, count):
    rows = [{"s": hashlib.sha256(b"%d" % n).hexdigest(), "day": n} for n in range(start, start + count)]
    return table_of(schema_of(*FLAT.fields[2:4]), rows)


def test_footer_with_wrong_page_counts_is_decoded(storage):
    schema = schema_of(*FLAT.fields[2:4])
    (good,) = put_parts(storage, [3000], schema, texts)
    assert rewrite_by_pages(task_for([good], schema), storage) is not None
    counts = list_bytes(STRUCT, [struct_bytes([(1, BINARY, b"\1x")])])
    data = with_edits(storage.read(good.location), meta={13: (LIST, counts)})
    storage.create("memory:/old/wrong.parquet", data)
    wrong = replace(good, location="memory:/old/wrong.parquet", size_bytes=len(data))
    assert rewrite_by_pages(task_for([wrong], schema), storage) is None


@pytest.mark.slow
def test_it_is_done_by_itself_where_much_is_moved(storage):
    numbers = np.random.default_rng(7)
    schema = schema_of(column(1, "id", LONG, required=True), column(2, "s", STRING))
    wide = lambda start, count: table_of(  # noqa: E731
        schema, [{"id": n, "s": numbers.bytes(50).hex()} for n in range(start, start + count)]
    )
    outcome = rewrite_by_pages(task_for(put_parts(storage, [2000] * 3, schema, wide), schema), storage)
    assert outcome is not None
    assert (outcome.read_count, outcome.live_count, outcome.files[0].record_count) == (6000, 6000, 6000)


def test_whatever_fails_leaves_no_file(storage):
    good, bad = put_parts(storage, [200, 100])
    wrong = replace(bad, record_count=101)
    with pytest.raises(InvalidTableError, match="has 100 rows where its manifest says 101"):
        spliced(storage, (good, wrong), FLAT, target_file_size_bytes=1)
    assert all("/old/" in key for key in storage.files)


# Damage


def test_a_page_whose_checksum_is_wrong_is_an_error(storage):
    (piece,) = put_parts(storage, [200])
    data = bytearray(storage.read(piece.location))
    chunk = pq.ParquetFile(io.BytesIO(bytes(data))).metadata.row_group(0).column(2)
    data[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    bad = piece_of(storage, "memory:/old/bad.parquet", bytes(data))
    with pytest.raises(InvalidTableError, match=r"bad\.parquet"):
        spliced(storage, [bad], FLAT)
    assert not [key for key in storage.files if "/spliced" in key]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_damaged_pages_never_yield_other_rows(version):
    """Bits of page heads and indexes change at random; checksums protect what pages hold."""
    storage = MemoryStorage()
    (piece,) = put_parts(storage, [200], data_page_version=version, max_rows_per_page=60)
    good = storage.read(piece.location)
    expected = str(pq.ParquetFile(io.BytesIO(good)).read().to_pylist())
    metadata = pq.ParquetFile(io.BytesIO(good)).metadata
    heads = [metadata.row_group(0).column(n).data_page_offset for n in range(8)]
    footer_start = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    numbers = np.random.default_rng(11)
    accepted = refused = 0
    messages = set()
    for n in range(250):
        data = bytearray(good)
        place = heads[n % 8] + int(numbers.integers(28)) if n % 2 else footer_start - 1 - int(numbers.integers(400))
        data[place] ^= 1 << int(numbers.integers(8))
        location = f"memory:/bad/{n}.parquet"
        storage.create(location, bytes(data))
        bad = replace(piece, location=location)
        try:
            files, _ = spliced(storage, [bad], FLAT, f"memory:/s{n}")
        except IcekeepError as error:
            messages.add(error.message)
            refused += 1
            continue
        accepted += 1
        ours = str(stored(storage, files).to_pylist())
        if ours != expected:
            # Then the file says so: whoever decodes all of it finds the same.
            assert ours == str(stored(storage, encoded(storage, [bad], FLAT, f"memory:/e{n}")).to_pylist()), place
    assert not any("\n" in message for message in messages)
    assert accepted > 20
    assert refused > 20


@pytest.mark.slow
def test_any_damaged_footer_is_examined_without_error(storage):
    (piece,) = put_parts(storage, [200], max_rows_per_page=60)
    good = storage.read(piece.location)
    examiner = PageExaminer(FLAT, ParquetOptions(), pq.ParquetFile(io.BytesIO(good)))
    assert set(examiner.examine(good, 200).chunks) == SPLICEABLE
    length = int.from_bytes(good[-8:-4], "little")
    numbers = np.random.default_rng(5)
    found = set()
    for _ in range(1500):
        data = bytearray(good)
        for _ in range(int(numbers.integers(1, 4))):
            data[len(good) - 1 - int(numbers.integers(length + 8))] ^= 1 << int(numbers.integers(8))
        found.add(len(examiner.examine(bytes(data), 200).chunks))
    assert {0, len(SPLICEABLE) - 1, len(SPLICEABLE)} <= found


# Any files

OPTIONS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["zstd", "zstd", "zstd", "snappy"]),
        "use_dictionary": st.sampled_from([False, False, True, ["c10_string", "c2_int"]]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "write_page_index": st.booleans(),
        "max_rows_per_page": st.sampled_from([1, 3, 20_000]),
        "write_statistics": st.sampled_from([True, True, ["c10_string", "c3_long", "key"]]),
        "row_group_rows": st.sampled_from([2, 5, None]),
    }
)


@pytest.mark.slow
@cases(40)
@given(
    st.lists(st.tuples(rows(EVERY_TYPE, 9), OPTIONS), min_size=1, max_size=4),
    st.sampled_from([1, 5_000, 2**29]),
    st.sampled_from([1, 2**27]),
)
def test_spliced_files_equal_an_encoded_rewrite(parts, target, row_group_bytes):
    storage = MemoryStorage()
    pieces = [
        piece_of(storage, f"memory:/old/{n}.parquet", parquet_bytes(table_of(EVERY_TYPE, data), **options))
        for n, (data, options) in enumerate(parts)
    ]
    properties = {"write.parquet.row-group-size-bytes": str(row_group_bytes)}
    check_same(storage, pieces, EVERY_TYPE, target_file_size_bytes=target, properties=properties)


@pytest.mark.slow
@cases(25)
@given(st.lists(rows(EVERY_TYPE, 12), min_size=1, max_size=4), st.sampled_from([1, 4, 20_000]))
def test_every_type_that_can_be_moved_is_moved_with_its_bounds(parts, page_rows):
    storage = MemoryStorage()
    pieces = [
        piece_of(
            storage,
            f"memory:/old/{n}.parquet",
            parquet_bytes(table_of(EVERY_TYPE, data), **PLAIN, max_rows_per_page=page_rows),
        )
        for n, data in enumerate(parts)
    ]
    _, moved = check_same(storage, pieces, EVERY_TYPE)
    assert {2, 3, 6, 7, 8, 9, 20} <= moved


SCHEMA = schema_of(
    column(1, "id", LONG, required=True), column(2, "n", LONG), column(3, "s", STRING), column(4, "x", DOUBLE)
)
NEW = "memory:/new.parquet"


def numbered_rows(first, count):
    numbers = range(first, first + count)
    return table_of(SCHEMA, [{"id": n, "n": n if n % 4 else None, "s": f"text {n}", "x": n / 2} for n in numbers])


class Parts:
    """What a spliced file is made of."""

    def __init__(self):
        self.storage = MemoryStorage()
        empty = parquet_bytes(numbered_rows(0, 0), **PLAIN)
        self.examiner = PageExaminer(SCHEMA, ParquetOptions(), pq.ParquetFile(io.BytesIO(empty)))
        shape = Shape(
            self.footer("memory:/empty", empty),
            self.examiner.columns,
            CODECS["zstd"],
            SCHEMA,
            metrics_modes({}, SCHEMA),
        )
        self.file = PagesFile(self.storage, NEW, shape)

    def footer(self, location, data):
        self.storage.create(location, data)
        return read_footer(self.storage, location, len(data))

    def chunks(self, data, id_):
        row_count = pq.ParquetFile(io.BytesIO(data)).metadata.num_rows
        return [(data, chunk) for chunk in self.examiner.examine(data, row_count).chunks[id_]]

    def encoded(self, table, moved, name, **options):
        """The columns that are not moved as a file of one row group."""
        names = [field.name for field in SCHEMA.fields if field.field_id not in moved]
        data = parquet_bytes(table.select(names), **{**PLAIN, **options})
        return data, self.footer(f"memory:/{name}", data)

    def add(self, first, sizes, moved, nan_counts=(), **options):
        tables = [numbered_rows(first + sum(sizes[:n]), size) for n, size in enumerate(sizes)]
        sources = [parquet_bytes(table, **PLAIN, max_rows_per_page=20) for table in tables]
        chunks = {id_: [pair for data in sources for pair in self.chunks(data, id_)] for id_ in moved}
        data, footer = self.encoded(pa.concat_tables(tables), moved, f"encoded-{first}", **options)
        self.file.add(data, footer, chunks, dict(nan_counts))

    def finished(self):
        size_bytes, metrics = self.file.finish()
        data = self.storage.read(NEW)
        assert size_bytes == len(data) == self.file.written_bytes
        return data, metrics


@pytest.fixture
def parts():
    return Parts()


@pytest.mark.parametrize("moved", [{1, 2, 3}, {2}, {1, 3}])
def test_columns_keep_schema_order(parts, moved):
    parts.add(0, [30, 50], moved)
    data, metrics = parts.finished()
    file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
    assert file.read().equals(numbered_rows(0, 80))
    assert file.schema_arrow.names == [field.name for field in SCHEMA.fields]
    assert (metrics.record_count, metrics.split_offsets) == (80, (4,))


def test_each_row_group_may_have_other_columns_moved(parts):
    parts.add(0, [30], {1, 2, 3})
    parts.add(30, [25, 25], {2})
    parts.add(80, [7], set())
    data, metrics = parts.finished()
    file = pq.ParquetFile(io.BytesIO(data))
    assert file.num_row_groups == 3
    assert file.read().equals(numbered_rows(0, 87))
    assert len(metrics.split_offsets) == 3
    assert metrics.value_counts == dict.fromkeys(range(1, 5), 87)
    assert metrics.null_value_counts[2] == 22


def test_nans_are_those_of_all_row_groups(parts):
    parts.add(0, [30], {1}, nan_counts={4: 2})
    parts.add(30, [30], {1}, nan_counts={4: 3})
    assert parts.finished()[1].nan_value_counts == {4: 5}


def test_what_the_footer_and_the_indexes_say_is_so(parts):
    parts.add(0, [30, 50, 1], {1, 2})
    parts.add(81, [40], {3})
    data, metrics = parts.finished()
    facts = {"file_path": NEW, "file_format": "PARQUET", "spec_id": 0, "partition": (), "file_size_in_bytes": len(data)}
    assert check_file(parts.storage, DataFile(**facts, **asdict(metrics))) > 10


def test_bloom_filters_follow_their_row_group(parts):
    wanted = {"bloom_filter_options": {name: {"ndv": 100, "fpp": 0.01} for name in ("n", "s")}}
    ends = []
    for first in (0, 60):
        parts.add(first, [60], {1}, **wanted)
        ends.append(parts.file.written_bytes)
    data, _ = parts.finished()
    for number, end in enumerate(ends):
        source, _ = parts.encoded(numbered_rows(60 * number, 60), {1}, f"again-{number}", **wanted)
        theirs = pq.ParquetFile(io.BytesIO(source)).metadata.row_group(0)
        ours = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(number)
        for position in (1, 2):
            assert bloom_filter(data, ours.column(position)) == bloom_filter(source, theirs.column(position - 1))
        assert ours.column(2).bloom_filter_offset + ours.column(2).bloom_filter_length == end
        assert (
            ours.column(1).bloom_filter_offset + ours.column(1).bloom_filter_length
            == ours.column(2).bloom_filter_offset
        )


def bloom_filter(data, chunk):
    assert chunk.bloom_filter_length > 0
    return data[chunk.bloom_filter_offset :][: chunk.bloom_filter_length]


def test_row_counts_of_moved_and_encoded_columns_must_match(parts):
    source = parquet_bytes(numbered_rows(0, 30), **PLAIN)
    data, footer = parts.encoded(numbered_rows(0, 31), {1}, "one-more")
    with pytest.raises(IcekeepBug, match="has 31 rows, a column has 30"):
        parts.file.add(data, footer, {1: parts.chunks(source, 1)}, {})


def test_a_row_group_has_every_column_once(parts):
    source = parquet_bytes(numbered_rows(0, 30), **PLAIN)
    data, footer = parts.encoded(numbered_rows(0, 30), set(), "all")
    with pytest.raises(IcekeepBug, match="not the columns of its schema"):
        parts.file.add(data, footer, {1: parts.chunks(source, 1)}, {})


def test_unknown_bounds_leave_out_statistics(parts):
    source = parquet_bytes(numbered_rows(0, 30), **PLAIN)
    ((data, chunk),) = parts.chunks(source, 2)
    encoded, footer = parts.encoded(numbered_rows(0, 30), {2}, "encoded")
    parts.file.add(encoded, footer, {2: [(data, replace(chunk, bounds=None))]}, {})
    data, metrics = parts.finished()
    described = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(1)
    assert (described.statistics, described.has_column_index, described.has_offset_index) == (None, False, True)
    assert 2 not in metrics.lower_bounds
    assert pq.ParquetFile(io.BytesIO(data)).read().equals(numbered_rows(0, 30))


def test_a_file_that_is_given_up_is_not_there(parts):
    parts.add(0, [30], {1})
    parts.file.abandon(ValueError("no more"))
    assert parts.storage.head(NEW) is None
