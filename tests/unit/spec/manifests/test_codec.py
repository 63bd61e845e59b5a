"""Manifests and manifest lists both ways: what is written is read, and what was damaged is refused."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.spec.avro import read_header
from icekeep.spec.manifests.read import read_manifest_list
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.types import StructType
from kit.cases import cases
from kit.manifests import (
    DAY,
    LIST,
    added,
    blocks,
    data_file,
    deleted,
    existing,
    read_entries,
    resized,
    with_schema,
    write_list,
    write_manifest,
)
from kit.strategies import decimal_types, fixed_types
from kit.table_strategies import data_files, json_values, manifest_entries, manifest_files, partition_types

pytestmark = pytest.mark.slow

CODECS = st.sampled_from(["gzip", "uncompressed"])
ENTRIES = (
    added(data_file(lower_bounds={1: b"a"}, value_counts={1: 10}, split_offsets=(4,))),
    existing(data_file("file:/b.parquet", partition=(None,))),
    deleted(data_file("file:/c.parquet", key_metadata=b"k")),
)


def draw_entries(data: st.DataObject, partition: StructType) -> list[ManifestEntry]:
    return data.draw(st.lists(manifest_entries(partition), max_size=3))


@given(st.data())
def test_entries_of_any_partition_type_are_written_and_read_back(data: st.DataObject):
    partition = data.draw(partition_types())
    entries = draw_entries(data, partition)
    read = read_entries(*write_manifest(entries, partition, codec=data.draw(CODECS)), partition)
    # NaN is not equal to itself, but it looks the same.
    assert repr(read) == repr(entries)


@given(st.data())
@cases(30)
def test_partitions_of_decimals_and_fixed_values_of_every_size_come_back(data: st.DataObject):
    partition = data.draw(partition_types(decimal_types() | fixed_types()))
    entries = draw_entries(data, partition)
    assert read_entries(*write_manifest(entries, partition), partition) == entries


@given(st.data())
@cases(30)
def test_delete_files_are_written_and_read_back(data: st.DataObject):
    file = msgspec.structs.replace(
        data.draw(data_files(DAY)),
        content=data.draw(st.sampled_from([1, 2])),
        equality_ids=data.draw(st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)),
        referenced_data_file=data.draw(st.none() | st.just("file:/a.parquet")),
    )
    entry = existing(file)
    assert read_entries(*write_manifest([entry], content=ManifestContent.DELETES)) == [entry]


@given(st.lists(manifest_files(), max_size=4), CODECS)
def test_a_manifest_list_is_written_and_read_back(manifests: list[ManifestFile], codec: str):
    assert read_manifest_list(write_list(manifests, codec=codec), LIST) == manifests


@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_a_manifest_list_that_was_cut_short_is_refused_wherever_no_block_ends(codec: str):
    manifests = [msgspec.structs.replace(write_manifest(ENTRIES)[1], manifest_path=f"m{i}") for i in range(5)]
    data = write_list(manifests, codec=codec)
    (block,) = blocks(data)
    for length in range(len(data)):
        if length != len(data) - len(block):
            with pytest.raises(InvalidTableError):
                read_manifest_list(data[:length], LIST)


def changed_bytes(data: st.DataObject, original: bytes) -> bytes:
    """A few bytes overwritten, taken out or put in, most of them behind the header."""
    changed = bytearray(original)
    first = data.draw(st.sampled_from([0, len(original) - sum(map(len, blocks(original)))]))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(first, len(changed)))
        end = min(len(changed), start + data.draw(st.integers(0, 3)))
        changed[start:end] = data.draw(st.binary(max_size=3))
    return bytes(changed)


def changed_schema(data: st.DataObject, original: bytes) -> bytes:
    """The Avro schema with one or two values in it replaced or taken away."""

    def change(schema: Any) -> Any:
        for _ in range(data.draw(st.integers(1, 2))):
            holder, key = data.draw(st.sampled_from(list(_places(schema))))
            if isinstance(holder, dict) and data.draw(st.booleans()):
                del holder[key]
            else:
                holder[key] = data.draw(_ODD_SCHEMAS)
        return schema

    return with_schema(original, change)


_ODD_SCHEMAS = json_values() | st.sampled_from(["int", "string", "record", "r2", "null", ["null", "long"], {}, [], 999])
CHANGES = pytest.mark.parametrize("change", [changed_bytes, changed_schema])


@CHANGES
@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_a_changed_manifest_is_read_or_refused_by_an_error_of_ours(change: Any, codec: str):
    original, row = write_manifest(ENTRIES, codec=codec)
    outcomes = set()

    @given(st.data())
    @cases(150, least=60)
    def check(data: st.DataObject) -> None:
        changed = change(data, original)
        try:
            entries = read_entries(changed, resized(row, changed))
        except InvalidTableError as error:
            outcomes.add(error.message.count("\n"))
        else:
            assert len(entries) == len(ENTRIES)

    check()
    assert outcomes == {0}


@CHANGES
@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_a_changed_manifest_list_is_read_or_refused_by_an_error_of_ours(change: Any, codec: str):
    _, row = write_manifest(ENTRIES)
    original = write_list([row, row], codec=codec)
    outcomes = set()

    @given(st.data())
    @cases(150, least=60)
    def check(data: st.DataObject) -> None:
        changed = change(data, original)
        try:
            manifests = read_manifest_list(changed, LIST)
        except InvalidTableError as error:
            outcomes.add(error.message.count("\n"))
        else:
            # Nothing in the list says how many it holds: where all blocks are gone, nothing is left to notice it.
            assert len(manifests) == 2 or len(changed) == read_header(changed, LIST).length_bytes

    check()
    assert outcomes == {0}


def _places(value: Any) -> Any:
    """Every value in a schema, as what holds it and its key there."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, item in items:
        yield value, key
        yield from _places(item)
