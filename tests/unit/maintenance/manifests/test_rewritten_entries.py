"""Generated entries of any partition type and with any metrics, in manifests of any version and codec: none is changed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.types import StructType
from icekeep.tables.verbs import upgrade_format_version
from kit.manifests import spec_and_schema
from kit.memory_catalog import MemoryCatalog
from kit.rewritten_manifests import counts, our_live_entries, reload, rewrite
from kit.strategies import data_files, partition_types
from kit.tables import EVENTS, add, manifests_of

CODECS = ("gzip", "uncompressed", "zstd", "snappy")


@st.composite
def batches(draw: st.DrawFn) -> tuple[StructType, list[list[DataFile]]]:
    """A partition type and the files of some commits; every path is there once."""
    partition = draw(partition_types())
    drawn = draw(st.lists(st.lists(data_files(partition), min_size=1, max_size=4), min_size=2, max_size=4))
    named = [
        [
            replace(file, file_path=f"memory://lake/{place}/{number}", record_count=file.record_count % 1000)
            for number, file in enumerate(batch)
        ]
        for place, batch in enumerate(drawn)
    ]
    return partition, named


def table_of(partition: StructType, version: int, codec: str) -> Table:
    catalog = MemoryCatalog()
    catalog.create_namespace(EVENTS[:-1])
    spec, schema = spec_and_schema(partition)
    properties = {"write.manifest.compression-codec": codec, "commit.manifest-merge.enabled": "false"}
    metadata = new_table_metadata(
        schema=schema,
        spec=spec,
        location=catalog.default_location(EVENTS),
        table_uuid=str(catalog.runtime.new_uuid()),
        now_ms=catalog.runtime.now_ms(),
        properties=properties,
        format_version=version,
    )
    return catalog.create(EVENTS, metadata)


@pytest.mark.slow
@given(batches(), st.integers(1, 3), st.booleans(), st.sampled_from(CODECS))
def test_every_field_of_every_entry_is_kept(
    drawn: tuple[StructType, list[list[DataFile]]], version: int, is_upgraded: bool, codec: str
) -> None:
    partition, files = drawn
    table = table_of(partition, version, codec)
    for batch in files[:-1]:
        table = add(table, *batch)
    if is_upgraded and version < 3:
        table = upgrade_format_version(table, version + 1)
    table = add(table, *files[-1])
    before = our_live_entries(table)
    assert before.total() == sum(map(len, files))
    assert counts(rewrite(table)) == (len(files), 1)
    after = reload(table)
    assert our_live_entries(after) == before
    assert len(manifests_of(after)) == 1
    assert counts(rewrite(after)) == (0, 0)
