"""Manifest lists as columns: the rows are those that `spec.manifests.decode.read_manifest_list` reads, or it is asked."""

import io
from collections.abc import Callable
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from icekeep.errors import InvalidTableError
from icekeep.planning.decoder import NotReadError
from icekeep.planning.manifest_lists import UNKNOWN, ListedRows, StoredLists, rows_of
from icekeep.spec.avro import avro_schema, read_header
from icekeep.spec.manifests.read import read_manifest_list
from icekeep.spec.manifests.structs import FieldSummary, ManifestContent, ManifestFile, manifest_file_type
from kit.cases import cases, for_each
from kit.foreign_files import write_list_with_pyiceberg, write_with_pyiceberg
from kit.manifests import (
    DAY,
    LIST,
    SNAPSHOT_ID,
    added,
    blocks,
    deleted,
    existing,
    field_of,
    recounted,
    with_schema,
    write_list,
    write_manifest,
)
from kit.table_strategies import manifest_files


def stored(*lists: bytes) -> ListedRows:
    headers = [read_header(data, LIST) for data in lists]
    return StoredLists(headers[0].metadata["avro.schema"]).read([*zip(lists, headers, strict=True)])


def made(rows: ListedRows) -> list[ManifestFile]:
    return rows.made(np.arange(len(rows.paths)))


def columns(rows: ListedRows) -> list[list[Any]]:
    arrays = (rows.lengths, rows.contents, rows.live_counts)
    return [rows.paths.to_pylist(), *(array.tolist() for array in arrays)]


def row(**changes: Any) -> ManifestFile:
    _, known = write_manifest([])
    summaries = (FieldSummary(contains_null=True, contains_nan=False, lower_bound=b"a", upper_bound=b"\xff"),)
    return replace(known, **{"partitions": summaries, **changes})


@given(
    st.lists(st.lists(manifest_files(), max_size=3), min_size=1, max_size=3), st.sampled_from([1, 2, 3]), st.booleans()
)
@cases(80)
def test_rows_are_those_of_each_list_in_order(lists: list[list[ManifestFile]], version: int, is_packed: bool) -> None:
    codec = "gzip" if is_packed else "uncompressed"
    written = [write_list(some, format_version=version, codec=codec) for some in lists]
    expected = [read_manifest_list(data, LIST) for data in written]
    flat = [manifest for some in expected for manifest in some]
    if not flat:
        return
    rows = stored(*written)
    assert made(rows) == flat
    assert columns(rows) == columns(rows_of(flat))
    assert rows.list_numbers.tolist() == [number for number, some in enumerate(expected) for _ in some]


def test_single_rows_are_made_in_the_order_that_is_asked_for() -> None:
    known = [row(manifest_path=f"/m{number}", added_files_count=number, first_row_id=number) for number in range(5)]
    rows = stored(write_list(known, format_version=3))
    assert rows.made(np.array([3, 0])) == [known[3], known[0]]
    assert rows.made(np.array([], np.int64)) == []


@for_each("version", [1, 2])
@for_each("codec", ["deflate", "null"])
def test_lists_of_pyiceberg_are_read(version: int, codec: str) -> None:
    entries = [added(snapshot_id=SNAPSHOT_ID), existing(), deleted(snapshot_id=3)]
    manifests = [write_with_pyiceberg(f"/m{number}", entries, DAY, version=version)[1] for number in range(3)]
    written = write_list_with_pyiceberg(LIST, manifests, version=version, codec=codec)
    assert made(stored(written)) == read_manifest_list(written, LIST)
    assert stored(written).live_counts.tolist() == [2, 2, 2]


def rename(schema: Any) -> Any:
    for number, field in enumerate(schema["fields"]):
        field["name"] = f"n{number}"
    summary = field_of(schema, 507)["type"][1]["items"]["fields"]
    for number, field in enumerate(summary):
        field["name"] = f"s{number}"
    return schema


def test_fields_are_found_by_id() -> None:
    written = with_schema(write_list([row(), row(partitions=None)]), rename)
    assert made(stored(written)) == read_manifest_list(written, LIST)


def unknown(*field_ids: int) -> Callable[[Any], Any]:
    def change(schema: Any) -> Any:
        for field_id in field_ids:
            field_of(schema, field_id)["field-id"] = 900 + field_id
        return schema

    return change


def test_what_a_list_need_not_say_is_not_known() -> None:
    written = with_schema(write_list([row()]), unknown(517, 515, 516, 504, 512, 507, 519))
    rows = stored(written)
    [manifest] = made(rows)
    assert [manifest] == read_manifest_list(written, LIST)
    assert rows.live_counts.tolist() == [UNKNOWN]
    assert (manifest.content, manifest.sequence_number) == (ManifestContent.DATA, 0)


def swap(one: int, other: int) -> Callable[[Any], Any]:
    def change(schema: Any) -> Any:
        first, second = field_of(schema, one), field_of(schema, other)
        first["field-id"], second["field-id"] = other, one
        return schema

    return change


@for_each(
    "change",
    [
        unknown(500),
        unknown(501),
        unknown(502),
        unknown(503),
        unknown(509),
        swap(500, 501),
        swap(502, 517),
        swap(509, 510),
    ],
)
def test_what_is_wrong_is_left_to_who_knows_what_to_say(change: Callable[[Any], Any]) -> None:
    written = with_schema(write_list([row(partition_spec_id=4)]), change)
    with pytest.raises(NotReadError):
        made(stored(written))
    with pytest.raises(InvalidTableError):
        read_manifest_list(written, LIST)


def nullable(manifest: ManifestFile, **changes: Any) -> bytes:
    """A list of one row in which any field may be null, and is where `changes` say so."""
    schema = avro_schema(manifest_file_type(2), "manifest_file")
    for field in schema["fields"]:
        kind = field["type"]
        field["type"] = kind if isinstance(kind, list) else ["null", kind]
    summaries = field_of(schema, 507)["type"][1]
    summaries["items"] = ["null", summaries["items"]]
    out = io.BytesIO()
    fastavro.writer(
        out, schema, [{**asdict(manifest), "content": int(manifest.content), "partitions": None, **changes}]
    )
    return out.getvalue()


@for_each("name", ["manifest_path", "manifest_length", "partition_spec_id", "added_snapshot_id"])
def test_what_each_row_must_have_may_not_be_null(name: str) -> None:
    written = nullable(row(), **{name: None})
    with pytest.raises(NotReadError):
        stored(written)
    with pytest.raises(InvalidTableError, match=f"lacks '{name}'"):
        read_manifest_list(written, LIST)


@for_each("name", ["content", "sequence_number", "min_sequence_number", "added_files_count"])
def test_other_nulls_are_read_as_version_1_means_them(name: str) -> None:
    written = nullable(row(), **{name: None})
    assert made(stored(written)) == read_manifest_list(written, LIST) != [row()]


def test_a_summary_that_is_null_is_left_to_who_knows_what_to_say() -> None:
    written = nullable(row(), partitions=[None])
    with pytest.raises(NotReadError):
        made(stored(written))
    with pytest.raises(InvalidTableError):
        read_manifest_list(written, LIST)


@pytest.mark.parametrize("change", [-1, 1])
def test_counts_of_blocks_must_hold(change: int) -> None:
    written = write_list([row(), row()])
    [block] = blocks(written)
    with pytest.raises(NotReadError):
        stored(written.replace(block, recounted(block, change)))


def test_a_list_must_end_on_its_sync_marker() -> None:
    written = write_list([row()])
    for end in range(len(written) - 40, len(written)):
        with pytest.raises(NotReadError):
            stored(written[:end])
