import pytest

from icekeep.errors import UsageError
from icekeep.formats.options import AvroOptions, OrcOptions, ParquetColumns, ParquetOptions, WriteOptions, write_options
from icekeep.spec.properties import DEFAULT, FULL, NONE
from icekeep.spec.sorting import SortField, SortOrder
from icekeep.spec.transforms import Identity
from icekeep.spec.types import INT
from kit.cases import for_each
from kit.columns import column, schema_of


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
def test_a_property_of_another_format_that_cannot_be_is_refused_with_its_name(file_format, key, value):
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
