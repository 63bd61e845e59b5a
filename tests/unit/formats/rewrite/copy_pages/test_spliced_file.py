import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import asdict, replace

from icekeep.errors import IcekeepBug
from icekeep.formats.options import ParquetOptions
from icekeep.formats.parquet.footer import CODECS, read_footer
from icekeep.formats.parquet.pages import PageExaminer
from icekeep.formats.rewrite.copy_pages import PagesFile, Shape
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import metrics_modes
from icekeep.spec.types import DOUBLE, LONG, STRING
from kit.columns import column, parquet_bytes, schema_of, table_of
from kit.spliced import check_file
from kit.storage import MemoryStorage

SCHEMA = schema_of(
    column(1, "id", LONG, required=True), column(2, "n", LONG), column(3, "s", STRING), column(4, "x", DOUBLE)
)
NEW = "memory:/new.parquet"
PLAIN = {"compression": "zstd", "use_dictionary": False, "write_page_index": True}


def rows(first, count):
    numbers = range(first, first + count)
    return table_of(SCHEMA, [{"id": n, "n": n if n % 4 else None, "s": f"text {n}", "x": n / 2} for n in numbers])


class Parts:
    """What a spliced file is made of."""

    def __init__(self):
        self.storage = MemoryStorage()
        empty = parquet_bytes(rows(0, 0), **PLAIN)
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
        tables = [rows(first + sum(sizes[:n]), size) for n, size in enumerate(sizes)]
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
def test_columns_stand_in_the_order_of_the_schema_whether_they_are_moved_or_encoded(parts, moved):
    parts.add(0, [30, 50], moved)
    data, metrics = parts.finished()
    file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
    assert file.read().equals(rows(0, 80))
    assert file.schema_arrow.names == [field.name for field in SCHEMA.fields]
    assert (metrics.record_count, metrics.split_offsets) == (80, (4,))


def test_each_row_group_may_have_other_columns_moved(parts):
    parts.add(0, [30], {1, 2, 3})
    parts.add(30, [25, 25], {2})
    parts.add(80, [7], set())
    data, metrics = parts.finished()
    file = pq.ParquetFile(io.BytesIO(data))
    assert file.num_row_groups == 3
    assert file.read().equals(rows(0, 87))
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


def test_bloom_filters_come_behind_the_row_group_that_they_are_of(parts):
    wanted = {"bloom_filter_options": {name: {"ndv": 100, "fpp": 0.01} for name in ("n", "s")}}
    ends = []
    for first in (0, 60):
        parts.add(first, [60], {1}, **wanted)
        ends.append(parts.file.written_bytes)
    data, _ = parts.finished()
    for number, end in enumerate(ends):
        source, _ = parts.encoded(rows(60 * number, 60), {1}, f"again-{number}", **wanted)
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


def test_pages_that_are_moved_have_the_rows_of_the_columns_that_are_encoded(parts):
    source = parquet_bytes(rows(0, 30), **PLAIN)
    data, footer = parts.encoded(rows(0, 31), {1}, "one-more")
    with pytest.raises(IcekeepBug, match="has 31 rows, a column has 30"):
        parts.file.add(data, footer, {1: parts.chunks(source, 1)}, {})


def test_a_row_group_has_every_column_once(parts):
    source = parquet_bytes(rows(0, 30), **PLAIN)
    data, footer = parts.encoded(rows(0, 30), set(), "all")
    with pytest.raises(IcekeepBug, match="not the columns of its schema"):
        parts.file.add(data, footer, {1: parts.chunks(source, 1)}, {})


def test_columns_whose_bounds_are_not_known_have_no_statistics_and_no_column_index(parts):
    source = parquet_bytes(rows(0, 30), **PLAIN)
    ((data, chunk),) = parts.chunks(source, 2)
    encoded, footer = parts.encoded(rows(0, 30), {2}, "encoded")
    parts.file.add(encoded, footer, {2: [(data, replace(chunk, bounds=None))]}, {})
    data, metrics = parts.finished()
    described = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(1)
    assert (described.statistics, described.has_column_index, described.has_offset_index) == (None, False, True)
    assert 2 not in metrics.lower_bounds
    assert pq.ParquetFile(io.BytesIO(data)).read().equals(rows(0, 30))


def test_a_file_that_is_given_up_is_not_there(parts):
    parts.add(0, [30], {1})
    parts.file.abandon(ValueError("no more"))
    assert parts.storage.head(NEW) is None
