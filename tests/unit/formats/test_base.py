"""Metrics of columns held against plain counts, properties of the table, and the memory of a task.

Metrics from Parquet's footers are in `parquet/test_writer`.
"""

import io
import json
import math
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import UnsupportedError, UsageError
from icekeep.formats import base as column_metrics
from icekeep.formats.arrow.projection import KEPT_DICTIONARY
from icekeep.formats.base import MetricsCollector, count_nans
from icekeep.formats.machine import (
    BATCH_BYTES,
    COMFORTABLE_BYTES,
    LIMITED_POOL,
    POOL_VARIABLE,
    PartSize,
    TaskMemory,
    peak_memory_bytes,
    processors_count,
    task_memory_bytes,
)
from icekeep.formats.options import AvroOptions, OrcOptions, ParquetColumns, ParquetOptions, WriteOptions, write_options
from icekeep.formats.parquet.reader import ParquetReader
from icekeep.formats.reader import SourceFile, read_file
from icekeep.spec.properties import COUNTS, DEFAULT, FULL, NONE, metrics_modes
from icekeep.spec.sorting import SortField, SortOrder
from icekeep.spec.transforms import Identity
from icekeep.spec.types import (
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    MIB,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NS,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
)
from icekeep.spec.values import value_from_bytes, value_to_bytes
from kit.cases import cases, for_each
from kit.columns import EVERY_TYPE, column, empty_table, parquet_bytes, rows, schema_of, table_of
from kit.lake import Lake
from kit.shell import ROOT
from kit.storage import MemoryStorage


def collected(schema, *parts, modes=None):
    collector = MetricsCollector(schema, metrics_modes({}, schema) if modes is None else modes)
    for part in parts:
        collector.add(table_of(schema, part))
    return collector.metrics()


@pytest.mark.slow
@cases(60)
@given(st.lists(rows(EVERY_TYPE), min_size=1, max_size=3))
def test_counts_and_bounds_are_those_of_all_the_values(parts):
    metrics = collected(EVERY_TYPE, *parts)
    data = [row for part in parts for row in part]
    fields = [(f, [row[f.name] for row in data]) for f in EVERY_TYPE.fields if isinstance(f.type, PrimitiveType)]
    point = EVERY_TYPE.field("point").type
    fields += [(f, [row["point"] and row["point"][f.name] for row in data]) for f in point.fields]
    assert metrics.record_count == len(data)
    assert metrics.value_counts == {f.field_id: len(data) for f, _ in fields}
    for field, values in fields:
        id_, known = field.field_id, [v for v in values if v is not None]
        numbers = [v for v in known if not (isinstance(v, float) and math.isnan(v))]
        assert metrics.null_value_counts[id_] == values.count(None)
        if field.type in (FLOAT, DOUBLE):
            assert metrics.nan_value_counts[id_] == len(known) - len(numbers)
        assert (id_ in metrics.lower_bounds) == bool(numbers)
        if numbers:
            assert value_from_bytes(field.type, metrics.lower_bounds[id_]) <= min(numbers)
        if id_ in metrics.upper_bounds:
            assert value_from_bytes(field.type, metrics.upper_bounds[id_]) >= max(numbers)
        if numbers and field.type.name not in ("string", "binary", "float", "double"):
            bounds = metrics.lower_bounds[id_], metrics.upper_bounds[id_]
            assert bounds == tuple(value_to_bytes(field.type, v) for v in (min(numbers), max(numbers)))


def test_nan_is_counted_and_never_a_bound():
    schema = schema_of(column(1, "x", DOUBLE))
    metrics = collected(schema, [{"x": math.nan}], [{"x": 1.5}, {"x": math.nan}, {"x": None}])
    assert (metrics.nan_value_counts, metrics.null_value_counts) == ({1: 2}, {1: 1})
    assert metrics.lower_bounds == metrics.upper_bounds == {1: value_to_bytes(DOUBLE, 1.5)}
    assert collected(schema, [{"x": math.nan}]).lower_bounds == {}


def test_infinities_are_bounds():
    metrics = collected(schema_of(column(1, "x", FLOAT)), [{"x": math.inf}, {"x": -math.inf}])
    assert (metrics.lower_bounds[1], metrics.upper_bounds[1]) == (
        value_to_bytes(FLOAT, -math.inf),
        value_to_bytes(FLOAT, math.inf),
    )


def test_a_column_of_nulls_has_counts_and_no_bounds():
    metrics = collected(schema_of(column(1, "x", INT)), [{"x": None}] * 3)
    assert (metrics.value_counts, metrics.null_value_counts) == ({1: 3}, {1: 3})
    assert (metrics.lower_bounds, metrics.upper_bounds) == ({}, {})


def test_modes_decide_what_is_kept():
    schema = schema_of(*(column(i, f"c{i}", STRING) for i in range(1, 5)))
    modes = {1: NONE, 2: COUNTS, 3: FULL}
    metrics = collected(schema, [{f"c{i}": "x" * 100 for i in range(1, 5)}], modes=modes)
    assert metrics.value_counts == {2: 1, 3: 1}
    assert metrics.null_value_counts == {2: 0, 3: 0}
    assert metrics.lower_bounds == metrics.upper_bounds == {3: b"x" * 100}


def test_fields_of_lists_and_maps_have_no_metrics():
    schema = schema_of(
        column(1, "l", ListType(element_id=2, element=StructType((column(3, "x", INT),)))),
        column(4, "m", MapType(key_id=5, key=STRING, value_id=6, value=INT)),
    )
    metrics = collected(schema, [{"l": [{"x": 1}], "m": [("a", 1)]}])
    assert metrics.value_counts == metrics.null_value_counts == metrics.lower_bounds == {}


def test_microseconds_and_nanoseconds_are_whole_numbers():
    schema = schema_of(column(1, "a", TIMESTAMP), column(2, "b", TIMESTAMP_NS))
    metrics = collected(schema, [{"a": 5, "b": 7}, {"a": -5, "b": -7}])
    assert metrics.lower_bounds == {1: value_to_bytes(TIMESTAMP, -5), 2: value_to_bytes(TIMESTAMP_NS, -7)}


def test_encoded_strings_are_counted_as_what_they_are():
    schema = schema_of(column(1, "s", STRING))
    array = pa.chunked_array([pa.array(["b", None, "a"]).dictionary_encode()]).cast(KEPT_DICTIONARY)
    collector = MetricsCollector(schema, metrics_modes({}, schema))
    collector.add(pa.table({"s": array}))
    metrics = collector.metrics(split_offsets=(3,))
    assert (metrics.lower_bounds, metrics.upper_bounds, metrics.null_value_counts) == ({1: b"a"}, {1: b"b"}, {1: 1})
    assert (metrics.split_offsets, metrics.column_sizes) == ((3,), None)


def test_nans_are_counted_in_live_structs_only():
    """NaN counts skip lists and values below a null struct."""
    schema = schema_of(
        column(1, "s", StructType((column(2, "x", FLOAT), column(3, "t", StructType((column(4, "y", DOUBLE),)))))),
        column(5, "l", ListType(element_id=6, element=DOUBLE)),
        column(7, "i", INT),
    )
    data = [
        {"s": {"x": math.nan, "t": {"y": math.nan}}, "l": [math.nan], "i": 1},
        {"s": {"x": 1.0, "t": None}, "l": None, "i": 1},
    ]
    assert count_nans(table_of(schema, data), schema) == {2: 1, 4: 1}
    hidden = pa.StructArray.from_arrays([pa.array([math.nan, math.nan])], names=["x"], mask=pa.array([True, False]))
    assert count_nans(pa.table({"s": hidden}), schema_of(column(1, "s", StructType((column(2, "x", DOUBLE),))))) == {
        2: 1
    }
    assert count_nans(empty_table(schema), schema) == {2: 0, 4: 0}


class CountedCalls:
    """Arrow's functions; the names of those that are called are kept."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __getattr__(self, name: str):
        self.names.append(name)
        return getattr(pc, name)


def test_only_floats_cost_anything_where_nans_are_counted(monkeypatch):
    # Arrow takes time for all children of a struct when it is asked for one: 10,000 of them took minutes.
    fields = [column(n, f"f{n}", LONG) for n in range(2, 500)]
    of_longs = schema_of(column(1, "s", StructType(tuple(fields))))
    with_one = schema_of(column(1, "s", StructType((*fields, column(500, "x", DOUBLE)))))
    called = CountedCalls()
    monkeypatch.setattr(column_metrics, "pc", called)
    assert count_nans(empty_table(of_longs), of_longs) == {}
    assert called.names == []
    assert count_nans(empty_table(with_one), with_one) == {500: 0}
    assert sorted(called.names) == ["is_nan", "sum"]


def test_children_of_a_struct_are_taken_out_of_it_at_once(monkeypatch):
    schema = schema_of(column(1, "s", StructType(tuple(column(n, f"f{n}", LONG) for n in range(2, 100)))))
    called = CountedCalls()
    monkeypatch.setattr(column_metrics, "pc", called)
    metrics = collected(schema, [{"s": None}])
    assert metrics.null_value_counts == dict.fromkeys(range(2, 100), 1)
    assert {*called.names} == {"min_max"}


def test_properties_that_are_not_set_mean_icebergs_defaults():
    assert write_options({"owner": "me"}) == WriteOptions(
        target_file_size_bytes=536870912,
        encoding=ParquetOptions(
            row_group_size_bytes=134217728,
            page_size_bytes=1048576,
            page_rows=20000,
            page_version="1.0",
            dictionary_size_bytes=2097152,
            compression="zstd",
            compression_level=3,
            columns=ParquetColumns(bloom_filter_max_bytes=1048576, default_dictionary=True),
        ),
    )


def test_properties_of_single_columns_of_parquet_are_read():
    properties = {
        "write.parquet.bloom-filter-enabled.column.a": "true",
        "write.parquet.bloom-filter-enabled.column.point.x": "FALSE",
        "write.parquet.bloom-filter-fpp.column.a": "0.1",
        "write.parquet.bloom-filter-ndv.column.a": "100",
        "write.parquet.bloom-filter-max-bytes": "1024",
        "write.parquet.stats-enabled.column.b": "false",
        "write.parquet.dict-encoding-enabled.column.c": "false",
        "parquet.enable.dictionary": "false",
    }
    assert write_options(properties).encoding.columns == ParquetColumns(
        bloom_filters={"a": True, "point.x": False},
        bloom_filter_fpp={"a": 0.1},
        bloom_filter_ndv={"a": 100},
        bloom_filter_max_bytes=1024,
        statistics={"b": False},
        dictionaries={"c": False},
        default_dictionary=False,
    )


def test_table_properties_are_read():
    properties = {
        "write.target-file-size-bytes": "1000",
        "write.parquet.row-group-size-bytes": "100",
        "write.parquet.page-size-bytes": "10",
        "write.parquet.dict-size-bytes": "5",
        "write.parquet.compression-codec": "GZIP",
        "write.parquet.compression-level": "7",
        "write.parquet.page-row-limit": "50",
        "write.parquet.page-version": "V2",
    }
    options = write_options(properties)
    assert options == WriteOptions(
        target_file_size_bytes=1000,
        encoding=ParquetOptions(
            row_group_size_bytes=100,
            page_size_bytes=10,
            page_rows=50,
            page_version="2.0",
            dictionary_size_bytes=5,
            compression="gzip",
            compression_level=7,
        ),
    )
    assert write_options(properties, target_file_size_bytes=5).target_file_size_bytes == 5


@for_each(
    ("key", "value"),
    [
        ("write.parquet.compression-codec", "lzo"),
        ("write.parquet.compression-level", "fast"),
        ("write.parquet.row-group-size-bytes", "128 MB"),
        ("write.parquet.page-size-bytes", "0"),
        ("write.parquet.dict-size-bytes", "-1"),
        ("write.parquet.page-row-limit", "0"),
        ("write.parquet.page-version", "v3"),
        ("write.parquet.bloom-filter-max-bytes", "1 MB"),
        ("write.parquet.bloom-filter-enabled.column.a", "yes"),
        ("write.parquet.bloom-filter-fpp.column.a", "1"),
        ("write.parquet.bloom-filter-fpp.column.a", "0"),
        ("write.parquet.bloom-filter-fpp.column.a", "few"),
        ("write.parquet.bloom-filter-ndv.column.a", "0"),
        ("write.parquet.stats-enabled.column.a", ""),
        ("write.parquet.dict-encoding-enabled.column.a", "1"),
        ("parquet.enable.dictionary", "on"),
        ("write.target-file-size-bytes", ""),
    ],
)
def test_a_property_that_cannot_be_is_refused_with_its_name(key, value):
    with pytest.raises(UsageError, match=f"table property '{key}' is '{value}'"):
        write_options({key: value})


FORMATS = [
    ({}, ParquetOptions(), "PARQUET", ".parquet"),
    ({"write.format.default": "ORC"}, OrcOptions(), "ORC", ".orc"),
    ({"write.format.default": "avro"}, AvroOptions(), "AVRO", ".avro"),
]


@pytest.mark.parametrize(("properties", "encoding", "file_format", "suffix"), FORMATS)
def test_a_property_chooses_the_format(properties, encoding, file_format, suffix):
    options = write_options(properties)
    assert (options.encoding, options.file_format, options.file_suffix) == (encoding, file_format, suffix)


def test_properties_of_orc_are_read():
    properties = {
        "write.format.default": "orc",
        "write.orc.stripe-size-bytes": "1000",
        "write.orc.compression-codec": "ZSTD",
        "write.orc.compression-strategy": "compression",
        "write.orc.vectorized.batch-size": "100",
        "write.orc.bloom.filter.columns": "a, point.x,",
        "write.orc.bloom.filter.fpp": "0.01",
    }
    assert write_options(properties).encoding == OrcOptions(
        stripe_size_bytes=1000,
        batch_rows=100,
        compression="zstd",
        compression_strategy="compression",
        bloom_filter_columns=("a", "point.x"),
        bloom_filter_fpp=0.01,
    )
    assert OrcOptions() == OrcOptions(
        stripe_size_bytes=67108864,
        batch_rows=1024,
        compression="zlib",
        compression_strategy="speed",
        bloom_filter_columns=(),
        bloom_filter_fpp=0.05,
    )


def test_properties_of_avro_are_read():
    properties = {
        "write.format.default": "avro",
        "write.avro.compression-codec": "zstd",
        "write.avro.compression-level": "5",
    }
    assert write_options(properties).encoding == AvroOptions(codec="zstandard", level=5)
    properties["write.avro.compression-codec"] = "snappy"
    assert write_options(properties).encoding == AvroOptions(codec="snappy")


def test_properties_of_other_formats_are_passed_over():
    assert write_options({"write.orc.compression-codec": "nonsense"}).encoding == ParquetOptions()
    assert write_options({"write.format.default": "orc", "write.parquet.page-size-bytes": "x"}).encoding == OrcOptions()


@for_each(
    ("file_format", "key", "value"),
    [
        ("vortex", "write.format.default", "vortex"),
        ("orc", "write.orc.compression-codec", "lzo"),
        ("orc", "write.orc.compression-strategy", "best"),
        ("orc", "write.orc.stripe-size-bytes", "0"),
        ("orc", "write.orc.vectorized.batch-size", "0"),
        ("orc", "write.orc.bloom.filter.fpp", "1.5"),
        ("avro", "write.avro.compression-codec", "deflate"),
        ("avro", "write.avro.compression-level", "10"),
        ("avro", "write.avro.compression-level", "fast"),
    ],
)
def test_bad_property_of_other_format_is_refused(file_format, key, value):
    with pytest.raises(UsageError, match=f"table property '{key}' is '{value}'; set "):
        write_options({"write.format.default": file_format, key: value})


def test_metrics_modes_are_read_where_the_schema_is_known():
    schema = schema_of(column(1, "a", INT), column(2, "b", INT))
    properties = {"write.metadata.metrics.default": "none", "write.metadata.metrics.column.b": "full"}
    assert write_options(properties).metrics_modes is None
    assert write_options(properties, schema).metrics_modes == {1: NONE, 2: FULL}
    order = SortOrder(order_id=1, fields=(SortField(source_id=1, transform=Identity()),))
    assert write_options(properties, schema, order).metrics_modes == {1: DEFAULT, 2: FULL}


def test_a_level_that_the_codec_does_not_have_is_refused():
    with pytest.raises(UsageError, match=r"compression-level' is '77'; set a whole number, -1 to 9$"):
        write_options({"write.parquet.compression-codec": "gzip", "write.parquet.compression-level": "77"})


GIB = 1024 * MIB


def part_of(row_count, size_bytes, held_bytes=0):
    return PartSize(number=3, row_count=row_count, size_bytes=size_bytes, held_bytes=held_bytes)


def test_a_row_group_that_fits_well_is_read_whole():
    assert TaskMemory(8 * GIB).batch_rows(part_of(1000, COMFORTABLE_BYTES)) is None
    assert TaskMemory(400 * MIB).batch_rows(part_of(1000, 100 * MIB)) is None
    assert TaskMemory(GIB).batch_rows(part_of(0, 0)) is None


def test_large_row_group_is_read_in_batches_by_memory():
    assert TaskMemory(8 * GIB).batch_rows(part_of(2**20, GIB)) == BATCH_BYTES // 1024
    # Half is for reading, of which a quarter is a batch: it is there twice, beside what else is held.
    assert TaskMemory(400 * MIB).batch_rows(part_of(2**20, GIB)) == 50 * MIB // 1024
    assert TaskMemory(8 * GIB).batch_rows(part_of(10, 10 * BATCH_BYTES)) == 1


def test_row_group_beyond_memory_is_refused_with_advice():
    with pytest.raises(UnsupportedError) as error:
        TaskMemory(400 * MIB).batch_rows(part_of(10, 2 * GIB, held_bytes=MIB))
    needed = MIB + 2 * -(-2 * GIB // 10)
    assert error.value.message == (
        f"row group 3 takes {2 * GIB} bytes and reading it in batches {needed}, where a task may read {200 * MIB} at a time; "
        "give the tasks more with 'spark.executor.memoryOverhead' or 'spark.executor.pyspark.memory', or let fewer share an "
        "executor with 'spark.executor.cores'"
    )
    # What is held beside the batches counts as well.
    with pytest.raises(UnsupportedError, match="row group 3"):
        TaskMemory(400 * MIB).batch_rows(part_of(2**20, GIB, held_bytes=101 * MIB))


def test_on_one_machine_the_advice_is_about_that_machine():
    """There is no executor whose settings would change anything."""
    with pytest.raises(UnsupportedError) as error:
        TaskMemory(400 * MIB, is_local=True).batch_rows(part_of(10, 2 * GIB))
    assert error.value.message.endswith(
        "; give this machine, or its container, more memory, or run fewer tasks on it: a smaller N in master 'local[N]'"
    )
    assert "executor" not in error.value.message


def test_write_buffer_is_a_quarter_of_memory():
    assert TaskMemory(GIB).row_group_bytes == 256 * MIB
    assert TaskMemory(0).row_group_bytes == 4 * MIB


def system(root, groups=(), **files):
    """A machine's directories, with the limits of control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("\n".join(groups))
    (root / "proc/self/status").write_text("VmSize:\t 2048 kB\nVmHWM:\t 512 kB\n")
    for path, text in files.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


MACHINE = resource.getpagesize() * int(os.sysconf("SC_PHYS_PAGES"))


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ([], {}, MACHINE),
        (["0::/pod/executor"], {"pod/executor/memory.max": "1000000\n"}, 1_000_000),
        (["0::/pod/executor"], {"pod/executor/memory.max": "max\n", "pod/memory.max": "700000"}, 700_000),
        # Seen from within a container its own group is the root.
        (["0::/somewhere/else"], {"memory.max": "600000"}, 600_000),
        (["0::/../../x"], {"memory.max": "600000"}, 600_000),
        (["4:cpu:/c", "7:memory:/c"], {"memory/c/memory.limit_in_bytes": "500000"}, 500_000),
        (["7:hugetlb,memory:/"], {"memory/memory.limit_in_bytes": "500000"}, 500_000),
        (["7:memory:/"], {"memory/memory.limit_in_bytes": "9223372036854771712"}, MACHINE),
        (["0::/"], {"memory.max": "max"}, MACHINE),
    ],
)
def test_a_task_has_its_share_of_the_least_limit(tmp_path, monkeypatch, groups, files, limit):
    # The shell of whoever runs this may have set one.
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    root = system(tmp_path, groups, **files)
    assert task_memory_bytes(1, root) == limit
    assert task_memory_bytes(4, root) == limit // 4


def test_a_system_that_tells_nothing_has_its_memory(tmp_path):
    assert task_memory_bytes(2, tmp_path / "none") == MACHINE // 2
    assert peak_memory_bytes(tmp_path / "none") > MIB


def test_the_peak_is_the_one_that_the_system_tells(tmp_path):
    assert peak_memory_bytes(system(tmp_path)) == 512 * 1024


ROWS = schema_of(column(1, "id", LONG), column(2, "word", STRING))


def test_largest_row_group_is_measured_in_memory():
    table = pa.table({"id": pa.array([1] * 100_000), "word": ["a"] * 100_000})
    reader = ParquetReader(io.BytesIO(parquet_bytes(table, row_group_rows=60_000)))
    part = reader.largest_part()
    assert (part.number, part.row_count) == (0, 60_000)
    assert part.size_bytes == 60_000 * (8 + 4)
    assert 0 < part.held_bytes < 10_000
    assert ParquetReader(io.BytesIO(parquet_bytes(table.slice(0, 0)))).largest_part().row_count == 0


def test_of_a_row_group_only_the_columns_that_are_read_count():
    """A scan of one narrow column does not need the memory of the others."""
    struct = pa.array([{"x": n, "y": "t" * 50} for n in range(1000)])
    table = pa.table({"id": pa.array([1] * 1000), "s": struct, "u": ["u" * 90] * 1000})
    reader = ParquetReader(io.BytesIO(parquet_bytes(table, row_group_rows=600, use_dictionary=False)))
    assert reader.largest_part(["id"]).size_bytes < 600 * 9
    whole, some = reader.largest_part(), reader.largest_part(["u"])
    assert 600 * 90 < some.size_bytes < 600 * 100 < whole.size_bytes
    assert reader.largest_part(["id", "s", "u"]) == whole
    assert reader.largest_part(["id"]).held_bytes < whole.held_bytes
    assert reader.largest_part([]).size_bytes == 0


def test_batches_that_a_file_is_read_in_have_its_rows_in_order():
    storage = MemoryStorage()
    table = table_of(ROWS, [{"id": i, "word": f"w{i % 5}"} for i in range(1000)])
    storage.create("memory:/t/a", parquet_bytes(table, row_group_rows=400))
    batches = list(read_file(storage, SourceFile(location="memory:/t/a"), ROWS, batch_rows=lambda reader: 150))
    assert [batch.num_rows for batch in batches] == [150, 150, 100, 150, 150, 100, 150, 50]
    assert pa.concat_tables(batches).equals(table)


# In a process that has only so much memory


SCRIPT = """
    import json, resource, sys
    from pathlib import Path
    from icekeep.formats.machine import task_memory_bytes
    from icekeep.formats.rewrite.run import rewrite
    from icekeep.formats.rewrite.task import FilePiece, RewriteTask
    from icekeep.spec.partitioning import UNPARTITIONED
    from icekeep.spec.schema import Schema
    from icekeep.spec.types import LONG, STRING, NestedField
    from icekeep.storage.open import open_storage

    directory, name, row_count, extra = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    status = Path("/proc/self/status").read_text()
    now = int(status.split("VmSize:")[1].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (now + extra, now + extra))
    column = NestedField(field_id=1, name="id", type=LONG if name != "texts" else STRING, required=False)
    piece = FilePiece(location=f"{directory}/{name}", record_count=row_count, size_bytes=Path(directory, name).stat().st_size)
    task = RewriteTask(
        pieces=(piece,), schema=Schema(fields=(column,)), specs={0: UNPARTITIONED}, spec_id=0,
        table_location=f"{directory}/new-{name}", properties={}, target_file_size_bytes=2**29, operation_id="op",
    )
    before = task_memory_bytes(1)
    try:
        outcome = rewrite(task, open_storage({}))
        print(json.dumps({"rows": sum(f.record_count for f in outcome.files), "peak": outcome.peak_bytes, "before": before}))
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}", "before": before}))
"""


def limited(directory, name, row_count, extra_bytes):
    """What a rewrite of a file says in a process that may take only so many bytes more than it has at its start."""
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(directory), name, str(row_count), str(extra_bytes)]
    environ = {**os.environ, POOL_VARIABLE: LIMITED_POOL}
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


FIELD = [pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})]


@pytest.mark.process
@pytest.mark.parametrize("row_group_rows", [2**20, pytest.param(64 * 2**20, marks=pytest.mark.nightly)])
def test_file_larger_than_memory_is_rewritten(tmp_path, row_group_rows):
    rows = pa.table([pa.array(range(2**20), pa.int64())], schema=pa.schema(FIELD))
    whole = pa.concat_tables([rows] * 64)
    assert whole.nbytes == 512 * MIB
    pq.write_table(whole, tmp_path / "numbers", row_group_size=row_group_rows, compression="none", use_dictionary=False)
    del whole
    said = limited(tmp_path, "numbers", 64 * 2**20, 300 * MIB)
    assert said["before"] <= 300 * MIB
    assert said["rows"] == 64 * 2**20


@pytest.mark.nightly
@pytest.mark.process
def test_unreadable_row_group_is_refused_before_writing(tmp_path):
    text = "x" * (60 * MIB)
    field = pa.field("id", pa.string(), metadata={b"PARQUET:field_id": b"1"})
    pq.write_table(pa.table([[text, text]], schema=pa.schema([field])), tmp_path / "texts", compression="none")
    said = limited(tmp_path, "texts", 2, 200 * MIB)
    assert "UnsupportedError" in said["error"]
    assert f"data file '{tmp_path}/texts': row group 0 takes" in said["error"]
    assert not Path(tmp_path, "new-texts").exists()
    assert limited(tmp_path, "texts", 2, 4 * GIB)["rows"] == 2


OWN = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        ([], {}, 64),
        (["0::/pod"], {"pod/cpu.max": "150000 100000\n"}, 2),
        (["0::/pod/x"], {"pod/x/cpu.max": "max 100000", "pod/cpu.max": "400000 100000"}, 4),
        (["0::/elsewhere"], {"cpu.max": "50000 100000"}, 1),
        (["0::/pod"], {"pod/cpu.max": "max 100000"}, 64),
        (["0::/pod"], {"pod/cpu.max": "99900000 100000"}, 64),
        (["0::/pod"], {"pod/cpu.max": "nonsense"}, 64),
        (["4:cpu,cpuacct:/c"], {"cpu/c/cpu.cfs_quota_us": "300000", "cpu/c/cpu.cfs_period_us": "100000"}, 3),
        (["4:cpu:/c"], {"cpu/c/cpu.cfs_quota_us": "-1", "cpu/c/cpu.cfs_period_us": "100000"}, 64),
        (["4:cpu:/c"], {"cpu/c/cpu.cfs_quota_us": "300000"}, 64),
        (["4:memory:/c"], {"cpu/c/cpu.cfs_quota_us": "300000", "cpu/c/cpu.cfs_period_us": "100000"}, 64),
    ],
)
def test_a_container_has_as_many_as_it_is_given_time_of(tmp_path, monkeypatch, groups, files, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert processors_count(system(tmp_path, groups, **files)) == count


def test_without_limits_all_allowed_processors_count(tmp_path):
    assert processors_count(tmp_path / "none") == OWN


SAYS = "import pyarrow as pa; print(pa.default_memory_pool().backend_name)"
TAKEN = "from icekeep.formats.machine import choose_pool; choose_pool()"


def printed(code, *words, **environ):
    """The last line that a process prints."""
    environ["PYTHONPATH"] = str(ROOT / "lib")
    done = subprocess.run([sys.executable, "-c", code, *words], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.process
def test_arrow_allocates_in_small_pages():
    assert printed(SAYS) == "mimalloc"
    assert printed(f"{TAKEN}; {SAYS}") == "jemalloc"


@pytest.mark.process
def test_what_an_operator_has_chosen_holds():
    assert printed(f"{TAKEN}; {SAYS}", ARROW_DEFAULT_MEMORY_POOL="system") == "system"


@pytest.mark.process
def test_where_address_space_is_limited_arrow_keeps_little():
    limited = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))"
    assert printed(f"{limited}; {TAKEN}; {SAYS}") == "system"
    assert printed(f"{limited}; {TAKEN}; {SAYS}", ARROW_DEFAULT_MEMORY_POOL="jemalloc") == "jemalloc"


@pytest.mark.process
def test_an_arrow_without_that_allocator_stays_as_it_is():
    absent = "import pyarrow as pa\ndef absent(): raise NotImplementedError\npa.jemalloc_memory_pool = absent"
    assert printed(f"{absent}\n{TAKEN}; {SAYS}") == "mimalloc"


@pytest.mark.process
@pytest.mark.parametrize(
    ("call", "pool"),
    [("entry_point()", "jemalloc"), ("sys.exit(main(sys.argv[1:]))", "mimalloc")],
    ids=["own", "of-others"],
)
def test_a_command_changes_only_a_process_of_its_own(call, pool, tmp_path):
    lake = Lake(tmp_path)
    lake.filled(commits=2)
    conf = tmp_path / "icekeep.yaml"
    conf.write_text(
        f"catalogs: {{local: {{type: sql, uri: '{lake.properties['uri']}', warehouse: '{tmp_path.as_uri()}'}}}}"
    )
    imports = "import sys\nfrom icekeep.__main__ import entry_point\nfrom icekeep.cli import main"
    code = f"{imports}\ntry:\n    {call}\nfinally:\n    {SAYS}"
    words = ["compact", "--conf", str(conf), "--table", "local.db.events", "--option", "rewrite-all=true"]
    assert printed(code, *words) == pool
