import pytest

from icekeep.errors import UsageError
from icekeep.formats.write_options import WriteOptions, write_options


def test_properties_that_are_not_set_mean_icebergs_defaults():
    assert write_options({"owner": "me"}) == WriteOptions(
        target_file_size_bytes=536870912,
        row_group_size_bytes=134217728,
        page_size_bytes=1048576,
        dictionary_size_bytes=2097152,
        compression="zstd",
        compression_level=3,
    )


def test_table_properties_are_read():
    properties = {
        "write.target-file-size-bytes": "1000",
        "write.parquet.row-group-size-bytes": "100",
        "write.parquet.page-size-bytes": "10",
        "write.parquet.dict-size-bytes": "5",
        "write.parquet.compression-codec": "GZIP",
        "write.parquet.compression-level": "7",
    }
    options = write_options(properties)
    assert options == WriteOptions(
        target_file_size_bytes=1000,
        row_group_size_bytes=100,
        page_size_bytes=10,
        dictionary_size_bytes=5,
        compression="gzip",
        compression_level=7,
    )
    assert write_options(properties, target_file_size_bytes=5).target_file_size_bytes == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("write.parquet.compression-codec", "lzo"),
        ("write.parquet.compression-level", "fast"),
        ("write.parquet.row-group-size-bytes", "128 MB"),
        ("write.parquet.page-size-bytes", "0"),
        ("write.parquet.dict-size-bytes", "-1"),
        ("write.target-file-size-bytes", ""),
    ],
)
def test_a_property_that_cannot_be_is_refused_with_its_name(key, value):
    with pytest.raises(UsageError, match=f"table property '{key}' is '{value}'"):
        write_options({key: value})


def test_a_level_that_the_codec_does_not_have_is_refused():
    with pytest.raises(UsageError, match=r"compression-level' is '77', no level of gzip"):
        write_options({"write.parquet.compression-codec": "gzip", "write.parquet.compression-level": "77"})
