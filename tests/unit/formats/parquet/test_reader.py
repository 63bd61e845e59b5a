import io
from collections import Counter
from contextlib import contextmanager
from itertools import count
from uuid import UUID as UUIDValue

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, InvalidTableError, MissingFileError, UnavailableError, UnsupportedError
from icekeep.formats import writer as rolling_writer
from icekeep.formats.arrow.projection import KEPT_DICTIONARY
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.base import count_nans
from icekeep.formats.options import write_options
from icekeep.formats.parquet.metrics import file_metrics
from icekeep.formats.parquet.reader import ParquetReader, repeating_strings
from icekeep.formats.reader import FileColumns, SourceFile, read_file
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.properties import metrics_modes
from icekeep.spec.types import INT, LONG, STRING, UUID, ListType, MapType, StructType
from icekeep.storage.open import open_storage
from kit.cases import cases
from kit.columns import EVERY_TYPE, column, empty_table, parquet_bytes, parquet_file, rows, schema_of, table_of
from kit.data_files import options_for, read_files, read_tables, write_files
from kit.storage import MemoryStorage

pytestmark = pytest.mark.slow

NUMBERS = schema_of(column(1, "n", LONG))
WORDS = schema_of(column(1, "n", LONG), column(2, "s", STRING))


@pytest.fixture
def storage():
    return MemoryStorage()


def numbered(directory="memory:/t"):
    numbers = count(1)
    return lambda: f"{directory}/{next(numbers):03d}.parquet"


def footer(storage, file):
    return pq.ParquetFile(storage.open(file.file_path)).metadata


def scrambled(row_count, start=0):
    """Rows of numbers that hardly compress."""
    return pa.Table.from_arrays(
        [pa.array([(i * 0x9E3779B97F4A7C15) % 2**63 for i in range(start, start + row_count)])],
        schema=arrow_schema(NUMBERS),
    )


def test_a_data_file_says_what_was_written(storage):
    table = table_of(WORDS, [{"n": 1, "s": "a"}, {"n": 2, "s": None}])
    (file,) = write_files(storage, WORDS, [table], spec_id=3, partition=("x", None), sort_order_id=2)
    metrics = file_metrics(footer(storage, file), WORDS, metrics_modes({}, WORDS), count_nans(table, WORDS))
    assert (file.file_path, file.file_format, file.content) == ("memory:/t/001.parquet", "PARQUET", FileContent.DATA)
    assert (file.spec_id, file.partition, file.sort_order_id) == (3, ("x", None), 2)
    assert file.file_size_in_bytes == storage.head(file.file_path).size_bytes
    assert file.record_count == 2
    assert (file.column_sizes, file.value_counts) == (metrics.column_sizes, metrics.value_counts)
    assert (file.null_value_counts, file.nan_value_counts) == ({1: 0, 2: 1}, {})
    assert (file.lower_bounds, file.upper_bounds) == (metrics.lower_bounds, metrics.upper_bounds)
    assert file.split_offsets == (4,)


@cases(30)
@given(st.lists(rows(EVERY_TYPE), max_size=3))
def test_rows_of_every_type_come_back_in_their_order(parts):
    storage = MemoryStorage()
    tables = [table_of(EVERY_TYPE, part) for part in parts]
    files = write_files(storage, EVERY_TYPE, tables)
    expected = [row for table in tables for row in table.to_pylist()]
    assert len(files) == (1 if expected else 0)
    assert str(read_files(storage, files, EVERY_TYPE).to_pylist()) == str(expected)


def test_no_rows_make_no_file(storage):
    assert write_files(storage, NUMBERS, []) == ()
    assert write_files(storage, NUMBERS, [empty_table(NUMBERS)]) == ()
    assert storage.files == {}


def test_files_and_row_groups_approach_target_sizes(storage):
    options = options_for(target_file_size_bytes=100_000, row_group_size_bytes=30_000)
    tables = [scrambled(3_000, start) for start in range(0, 60_000, 3_000)]
    files = write_files(storage, NUMBERS, tables, options)
    assert len(files) > 3
    assert read_files(storage, files, NUMBERS).equals(pa.concat_tables(tables))
    for file in files[:-1]:
        assert 90_000 < file.file_size_in_bytes < 115_000
    for file in files[1:-1]:
        groups = [footer(storage, file).row_group(i).num_rows for i in range(footer(storage, file).num_row_groups)]
        assert 3 <= len(groups) <= 5
        assert min(groups) > max(groups) / 2
        assert len(file.split_offsets) == len(groups)


def test_one_large_table_is_spread_over_files(storage):
    table = scrambled(50_000)
    files = write_files(storage, NUMBERS, [table], options_for(target_file_size_bytes=100_000))
    assert len(files) > 3
    assert sum(file.record_count for file in files) == 50_000
    assert read_files(storage, files, NUMBERS).equals(table)


def test_small_tables_share_a_row_group(storage):
    (file,) = write_files(storage, NUMBERS, [scrambled(10, start) for start in range(0, 1000, 10)])
    assert footer(storage, file).num_row_groups == 1


def test_a_row_group_has_a_limit_of_rows(storage, monkeypatch):
    monkeypatch.setattr(rolling_writer, "ROW_GROUP_ROWS", 1000)
    table = pa.Table.from_arrays([pa.array(range(1005))], schema=arrow_schema(NUMBERS))
    (file,) = write_files(storage, NUMBERS, [table])
    metadata = footer(storage, file)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [1000, 5]


def row_group_sizes(storage, file):
    """What row groups take in a file, compressed."""
    metadata = footer(storage, file)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return [sum(group.column(n).total_compressed_size for n in range(group.num_columns)) for group in groups]


def random_rows(row_count, text):
    numbers = np.random.default_rng(7).integers(0, 2**62, row_count)
    columns = [pa.array(numbers), pa.repeat(text, row_count)]
    return pa.Table.from_arrays(columns, schema=arrow_schema(WORDS))


@pytest.mark.parametrize("text", ["", "x" * 200])
@pytest.mark.parametrize("table_rows", [50_000, 2_000_000])
def test_row_group_size_property_is_size_in_file(storage, text, table_rows):
    """Whatever it takes in memory, however many rows it has, and the first one, too."""
    size_bytes = 6 * 2**20
    rows = random_rows(2_000_000, text)
    tables = [rows.slice(start, table_rows) for start in range(0, rows.num_rows, table_rows)]
    options = options_for(row_group_size_bytes=size_bytes, target_file_size_bytes=2**40)
    (file,) = write_files(storage, WORDS, tables, options)
    *sizes, last = row_group_sizes(storage, file)
    assert len(sizes) == 2
    assert all(0.85 * size_bytes < size < 1.15 * size_bytes for size in sizes)
    assert last < 1.15 * size_bytes


def test_narrow_rows_are_not_cut_by_their_number(storage):
    """A row group of a million rows of 8 bytes was too small to be copied later."""
    rows = random_rows(3_000_000, "")
    (file,) = write_files(storage, WORDS, [rows.slice(start, 100_000) for start in range(0, 3_000_000, 100_000)])
    (size_bytes,) = row_group_sizes(storage, file)
    assert size_bytes > 20 * 2**20


def test_the_first_file_of_a_writer_is_cut_as_the_others(storage):
    """By a guess that rows do not compress, it began with a row group of a fifth of its size."""
    rows = random_rows(1_000_000, "x" * 30)
    tables = [rows.slice(start, 20_000) for start in range(0, rows.num_rows, 20_000)]
    files = write_files(storage, WORDS, tables, options_for(target_file_size_bytes=2**21))
    sizes = [row_group_sizes(storage, file) for file in files]
    assert len(files) > 2
    assert [len(groups) for groups in sizes] == [1] * len(files)
    assert all(0.8 * 2**21 < size < 1.25 * 2**21 for (size,) in sizes[:-1])


def test_a_row_group_has_a_limit_of_memory(storage):
    text = "x" * 65536
    table = table_of(WORDS, [{"n": 1, "s": text}] * 100)
    limit_bytes = 16 * 2**20
    tables_count = limit_bytes // (100 * len(text)) + 2
    unlimited = options_for(row_group_size_bytes=2**40, target_file_size_bytes=2**40)
    options = replace(unlimited, row_group_arrow_bytes=limit_bytes)
    (file,) = write_files(storage, WORDS, [table] * tables_count, options)
    metadata = footer(storage, file)
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert len(groups) == 2
    assert groups[0] * len(text) <= limit_bytes < (groups[0] + 200) * len(text)


def test_nan_is_counted_over_all_row_groups(storage):
    schema = schema_of(column(1, "x", EVERY_TYPE.field("c5_double").type))
    table = table_of(schema, [{"x": float("nan")}, {"x": 1.0}])
    (file,) = write_files(storage, schema, [table] * 3, options_for(row_group_size_bytes=1))
    assert footer(storage, file).num_row_groups > 1
    assert file.nan_value_counts == {1: 3}


def test_an_error_in_the_block_deletes_every_file(storage):
    options = options_for(target_file_size_bytes=10_000)

    def fail():
        with DataFileWriter(storage, NUMBERS, options, numbered()) as writer:
            writer.write(scrambled(5_000))
            assert len(storage.files) > 1
            writer.close()
            raise RuntimeError("later")

    with pytest.raises(RuntimeError, match="later"):
        fail()
    assert storage.files == {}


def test_an_error_while_writing_deletes_the_unfinished_file_too(tmp_path):
    storage = open_storage({})
    locations = iter([f"{tmp_path}/1.parquet", f"{tmp_path}/2.parquet"])
    options = options_for(target_file_size_bytes=10_000, row_group_size_bytes=3_000)

    def fail():
        with DataFileWriter(storage, NUMBERS, options, lambda: next(locations)) as writer:
            writer.write(scrambled(1_800))
            assert len(list(tmp_path.iterdir())) == 2
            writer.write(scrambled(5_000))

    with pytest.raises(StopIteration):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_even_begin_leaves_nothing(tmp_path):
    options = options_for(compression="none at all")
    with pytest.raises(Exception, match="none at all"):
        write_files(open_storage({}), NUMBERS, [scrambled(5)], options, directory=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


class UntidyStorage(MemoryStorage):
    """Fails once more when a file that was being written is given up."""

    @contextmanager
    def write(self, location):
        try:
            yield io.BytesIO()
        except RuntimeError as error:
            raise UnavailableError("the store is gone") from error


def test_the_first_error_is_the_one_that_is_told():
    def fail():
        with DataFileWriter(UntidyStorage(), NUMBERS, options_for(row_group_size_bytes=1), numbered()) as writer:
            writer.write(scrambled(5))
            raise RuntimeError("first")

    with pytest.raises(RuntimeError, match="first"):
        fail()


def test_a_block_that_ends_without_close_leaves_nothing(tmp_path):
    with DataFileWriter(
        open_storage({}), NUMBERS, options_for(row_group_size_bytes=1), numbered(str(tmp_path))
    ) as writer:
        writer.write(scrambled(1000))
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_location_that_is_taken_is_not_overwritten(storage):
    storage.create("memory:/t/001.parquet", b"mine")
    with pytest.raises(FileExistsError):
        write_files(storage, NUMBERS, [scrambled(1)])
    assert storage.read("memory:/t/001.parquet") == b"mine"


def test_data_with_other_columns_is_a_bug_of_the_caller(storage):
    with pytest.raises(IcekeepBug, match=r"\['n', 's'\], the schema has \['n'\]"):
        write_files(storage, NUMBERS, [table_of(WORDS, [{"n": 1}])])


def test_field_ids_are_the_schemas_even_if_the_data_has_none(storage):
    (file,) = write_files(storage, WORDS, [pa.table({"n": [1], "s": ["a"]})])
    assert read_files(storage, [file], WORDS).to_pylist() == [{"n": 1, "s": "a"}]


def test_dictionaries_and_plain_strings_mix(storage):
    plain = table_of(WORDS, [{"n": 1, "s": "a"}, {"n": 2, "s": None}])
    kept = plain.set_column(1, plain.schema.field(1).with_type(KEPT_DICTIONARY), plain["s"].dictionary_encode())
    for tables in ([plain, kept], [kept, plain], [kept, kept]):
        memory = MemoryStorage()
        files = write_files(memory, WORDS, tables)
        assert read_files(memory, files, WORDS).equals(pa.concat_tables([plain, plain]))


def test_dictionaries_of_many_tables_become_one(storage):
    tables = []
    for start in range(0, 50, 5):
        table = table_of(WORDS, [{"n": i, "s": f"word {i % 30}"} for i in range(start, start + 5)] * 100)
        kept = table["s"].dictionary_encode()
        tables.append(table.set_column(1, table.schema.field(1).with_type(KEPT_DICTIONARY), kept))
    (file,) = write_files(storage, WORDS, tables)
    chunk = footer(storage, file).row_group(0).column(1)
    assert chunk.has_dictionary_page
    assert chunk.total_uncompressed_size < 5_000 * 2


def test_only_columns_whose_values_repeat_get_a_dictionary(storage):
    schema = schema_of(
        column(1, "unique", LONG),
        column(2, "kind", STRING),
        column(3, "l", ListType(element_id=4, element=INT)),
        column(5, "m", MapType(key_id=6, key=STRING, value_id=7, value=StructType((column(8, "x", INT),)))),
        column(9, "s", StructType((column(10, "t", STRING),))),
        column(11, "u", UUID),
        column(12, "same", UUID),
    )
    data = [
        {
            "unique": i, "kind": "ab"[i % 2], "l": [i % 2], "m": [("k", {"x": 1})], "s": {"t": "z"},
            "u": UUIDValue(int=i), "same": UUIDValue(int=i % 3),
        }
        for i in range(1000)
    ]  # fmt: skip
    (file,) = write_files(storage, schema, [table_of(schema, data)])
    assert {c.path_in_schema: c.has_dictionary_page for c in _chunks(footer(storage, file))} == {
        "unique": False,
        "kind": True,
        "l.list.element": True,
        "m.key_value.key": True,
        "m.key_value.value.x": True,
        "s.t": True,
        "u": False,
        "same": True,
    }


def test_columns_of_every_type_can_be_sampled(storage):
    (file,) = write_files(storage, EVERY_TYPE, [table_of(EVERY_TYPE, [{"key": 1}] * 3)])
    assert file.record_count == 3


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "brotli", "lz4", "uncompressed"])
def test_a_codec_is_the_files(storage, codec):
    options = write_options({"write.parquet.compression-codec": codec, "write.parquet.compression-level": "5"})
    (file,) = write_files(storage, NUMBERS, [scrambled(5)], options)
    assert footer(storage, file).row_group(0).column(0).compression == codec.upper()


def test_decimals_are_whole_numbers_in_the_file(storage):
    (file,) = write_files(storage, EVERY_TYPE, [table_of(EVERY_TYPE, [{"key": 1}])])
    types = {c.path_in_schema: c.physical_type for c in _chunks(footer(storage, file))}
    found = [types[name] for name in ("c14_decimal", "c15_decimal", "c16_decimal")]
    assert found == ["INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"]


def _chunks(metadata):
    return [metadata.row_group(0).column(i) for i in range(metadata.num_columns)]


def test_files_carry_statistics_a_page_index_and_no_arrow_schema(storage):
    (file,) = write_files(storage, WORDS, [table_of(WORDS, [{"n": 1, "s": "a"}])])
    metadata = footer(storage, file)
    chunk = metadata.row_group(0).column(0)
    assert (chunk.is_stats_set, chunk.has_offset_index, chunk.has_column_index) == (True, True, True)
    assert metadata.metadata is None
    assert metadata.format_version == "2.6"


def test_row_groups_are_read_in_requested_order(storage):
    (file,) = write_files(
        storage, NUMBERS, [scrambled(1), scrambled(2, 1), scrambled(3, 3)], options_for(row_group_size_bytes=1)
    )
    everything = read_tables(storage, file.file_path, NUMBERS)
    assert [t.num_rows for t in everything] == [1] * 6
    some = read_tables(storage, file.file_path, NUMBERS, 4, 0)
    assert [t.to_pylist() for t in some] == [everything[4].to_pylist(), everything[0].to_pylist()]


def test_reading_projects_by_field_id(storage):
    (file,) = write_files(storage, WORDS, [table_of(WORDS, [{"n": 1, "s": "a"}])])
    schema = schema_of(column(3, "new", INT), column(2, "word", STRING), column(4, "kind", STRING))
    (table,) = read_tables(storage, file.file_path, schema, constants={4: "k"})
    assert table.to_pylist() == [{"new": None, "word": "a", "kind": "k"}]


def test_damage_in_a_column_that_is_not_needed_does_no_harm(storage):
    (file,) = write_files(storage, WORDS, [table_of(WORDS, [{"n": i, "s": "a"} for i in range(1000)])])
    data = bytearray(storage.read(file.file_path))
    data[10:100] = b"\xff" * 90
    storage.create("memory:/t/bad.parquet", bytes(data))
    (table,) = read_tables(storage, "memory:/t/bad.parquet", schema_of(column(2, "s", STRING)))
    assert table["s"].to_pylist() == ["a"] * 1000
    with pytest.raises(InvalidTableError, match="damaged"):
        read_tables(storage, "memory:/t/bad.parquet", WORDS)


def test_dictionaries_are_kept_where_they_are_asked_for(storage):
    (file,) = write_files(storage, WORDS, [table_of(WORDS, [{"n": i, "s": "ab"[i % 2]} for i in range(10)])])
    (plain,) = read_tables(storage, file.file_path, WORDS)
    (kept,) = read_file(storage, SourceFile(location=file.file_path), FileColumns(WORDS, kept_dictionaries={1, 2}))
    assert plain.schema.field("s").type == pa.string()
    assert kept.schema.types == [pa.int64(), KEPT_DICTIONARY]
    assert kept.to_pydict() == plain.to_pydict()


def test_strings_that_repeat_are_found_in_the_footer(storage):
    names = ("few", "many", "none", "mixed", "off")
    schema = schema_of(column(1, "n", LONG), *(column(i, name, STRING) for i, name in enumerate(names, start=2)))
    data = [
        {"n": 1, "few": f"{i % 5}", "many": f"word {i}", "mixed": f"{i if i < 500 else 1}", "off": None}
        for i in range(1000)
    ]
    written = parquet_bytes(table_of(schema, data), row_group_rows=500, use_dictionary=["n", *names[:-1]])
    storage.create("memory:/t/a.parquet", written)
    assert repeating_strings(storage, "memory:/t/a.parquet") == {2, 4}


def test_repeating_strings_of_a_bad_file_are_its_error(storage):
    with pytest.raises(MissingFileError):
        repeating_strings(storage, "memory:/t/none.parquet")
    storage.create("memory:/t/bad.parquet", b"")
    with pytest.raises(InvalidTableError, match="damaged"):
        repeating_strings(storage, "memory:/t/bad.parquet")


def test_a_missing_file_is_named(storage):
    with pytest.raises(MissingFileError, match=r"memory:/t/none\.parquet"):
        read_tables(storage, "memory:/t/none.parquet", NUMBERS)


def damaged_files():
    good = write_files(memory := MemoryStorage(), NUMBERS, [scrambled(1000)])[0]
    data = memory.read(good.file_path)
    middle = data[: len(data) // 3] + b"\xff" * 64 + data[len(data) // 3 + 64 :]
    return {"empty": b"", "text": b"no parquet at all, but long enough", "cut": data[:-20], "overwritten": middle}


@pytest.mark.parametrize("kind", ["empty", "text", "cut", "overwritten"])
def test_a_damaged_file_is_an_invalid_table_and_named(storage, kind):
    storage.create("memory:/t/bad.parquet", damaged_files()[kind])
    with pytest.raises(InvalidTableError, match=r"'memory:/t/bad\.parquet' is damaged") as caught:
        read_tables(storage, "memory:/t/bad.parquet", NUMBERS)
    assert caught.value.facts["location"] == "memory:/t/bad.parquet"


def test_a_file_that_does_not_fit_the_schema_is_named(storage):
    (file,) = write_files(storage, WORDS, [table_of(WORDS, [{"n": 1, "s": "a"}])])
    message = r"data file 'memory:/t/001\.parquet': column 'n' holds 'string'"
    with pytest.raises(InvalidTableError, match=message) as caught:
        read_tables(storage, file.file_path, schema_of(column(2, "n", LONG)))
    assert (caught.value.facts["location"], caught.value.facts["column"]) == (file.file_path, "n")
    storage.create("memory:/t/foreign.parquet", _without_ids())
    with pytest.raises(UnsupportedError, match=r"data file 'memory:/t/foreign\.parquet': .* no field ids"):
        read_tables(storage, "memory:/t/foreign.parquet", NUMBERS)


def _without_ids():
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1]}), sink)
    return sink.getvalue().to_pybytes()


def test_a_row_group_that_is_not_there_is_an_invalid_table(storage):
    (file,) = write_files(storage, NUMBERS, [scrambled(1)])
    with pytest.raises(InvalidTableError, match="there is no row group 1, only 1"):
        read_tables(storage, file.file_path, NUMBERS, 0, 1)


def test_every_column_of_a_wide_table_is_written_once(storage):
    schema = schema_of(*(column(i, f"c{i}", INT) for i in range(1, 301)))
    (file,) = write_files(storage, schema, [table_of(schema, [{f"c{i}": i for i in range(1, 301)}])])
    names = Counter(parquet_file(read_files(storage, [file], schema)).schema.names)
    assert len(names) == 300
    assert set(names.values()) == {1}


# How a file is read


class Counting(io.BytesIO):
    """A stream that is no local file, and tells what was read of it."""

    def __init__(self, data, read, fails_at=None):
        super().__init__(data)
        self._read, self._fails_at = read, fails_at

    def read(self, size=-1):
        data = super().read(size)
        self._read.append(len(data))
        if self._fails_at is not None and len(self._read) > self._fails_at:
            raise UnavailableError("the store is out of reach")
        return data


def wide_file(row_count):
    table = pa.table({f"c{i}": pa.array(range(i, row_count + i)) for i in range(20)})
    schema = schema_of(*(column(i + 1, f"c{i}", LONG) for i in range(20)))
    return schema, parquet_bytes(table.cast(arrow_schema(schema)), row_group_rows=row_count // 2, use_dictionary=False)


def test_a_small_file_is_read_at_once():
    schema, data = wide_file(100)
    read = []
    reader = ParquetReader(Counting(data, read))
    tables = [table for _, table in reader.tables([field.name for field in schema.fields], None, [], None)]
    assert read == [len(data)]
    assert [table.num_rows for table in tables] == [50, 50]


def test_remote_row_group_takes_one_read():
    """One request fetches the wanted columns of a row group, and nothing else."""
    schema, data = wide_file(40_000)
    names, read = [field.name for field in schema.fields], []
    reader = ParquetReader(Counting(data, read))
    footer_reads = len(read)
    (table,) = (table for _, table in reader.tables(names, [1], [], None))
    assert table["c3"].to_pylist() == list(range(20_003, 40_003))
    assert len(read) == footer_reads + 1
    del read[:]
    list(reader.tables(["c2"], [0], [], None))
    assert sum(read) < len(data) / 20


def test_what_a_store_says_when_it_is_out_of_reach_is_the_error():
    _, data = wide_file(40_000)
    for fails_at in range(4):
        with pytest.raises(UnavailableError, match="the store is out of reach"):
            for _ in ParquetReader(Counting(data, [], fails_at)).tables(["c1", "c5"], None, [], None):
                pass
