"""Spoilt manifests, manifest lists and Puffin files."""

import io
from functools import cache
from random import Random
from typing import Any

import fastavro
import msgspec
from pyroaring import BitMap64

from fuzz.judging import taken
from fuzz.mutations import mutate_bytes, mutate_json
from icekeep.formats.puffin import (
    VectorTarget,
    read_deletion_vector,
    read_puffin_footer,
    read_range,
    write_deletion_vectors,
)
from icekeep.spec.avro import read_header
from icekeep.spec.manifests.read import inspect_manifest, read_manifest, read_manifest_list
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestFile
from kit.manifests import (
    DAY,
    LIST,
    MANIFEST,
    UNPARTITIONED,
    added,
    data_file,
    deleted,
    existing,
    resized,
    with_metadata,
    with_schema,
    write_list,
    write_manifest,
)
from kit.storage import MemoryStorage


@cache
def manifests() -> list[tuple[bytes, ManifestFile, Any]]:
    """Sound manifests: versions, codecs, partitioned and not, one of several blocks."""
    metrics = {"lower_bounds": {1: b"\1\0\0\0"}, "value_counts": {1: 10}, "split_offsets": (4, 100)}
    files = [data_file(f"file:/w/{i}.parquet", record_count=i, **metrics) for i in range(1, 5)]
    found = []
    for version in (1, 2, 3):
        for codec in ("gzip", "uncompressed"):
            entries = [added(files[0]), existing(files[1]), deleted(files[2]), added(files[3])]
            found.append((*write_manifest(entries, codec=codec, format_version=version), DAY))
    plain = [added(data_file(f"file:/w/{i}.parquet", partition=())) for i in range(800)]
    found.append((*write_manifest(plain, UNPARTITIONED), UNPARTITIONED))
    return found


def manifest_bytes(rng: Random) -> bool:
    data, row, partition = rng.choice(manifests())
    data = mutate_bytes(data, rng, rng.choice([1, 1, 2]))
    return _manifest_agrees(data, resized(row, data), partition)


def manifest_schemas(rng: Random) -> bool:
    data, row, partition = rng.choice(manifests()[:6])
    times = rng.choice([1, 1, 2])
    data = with_schema(data, lambda schema: mutate_json(schema, rng, times))
    return _manifest_agrees(data, resized(row, data), partition)


def manifest_headers(rng: Random) -> bool:
    data, row, partition = rng.choice(manifests()[:6])
    key = rng.choice(["schema", "partition-spec", "partition-spec-id", "format-version", "content", "avro.codec"])
    value = read_header(data, "").metadata.get(key, b"data")
    data = with_metadata(data, {key: rng.choice([None, mutate_bytes(value, rng, 1)])})
    inspected = taken(lambda: inspect_manifest(data, MANIFEST))
    if inspected is not None:
        assert inspected.manifest_length == len(data)
    return _manifest_agrees(data, resized(row, data), partition)


def _manifest_agrees(data: bytes, row: ManifestFile, partition: Any) -> bool:
    entries = taken(lambda: list(read_manifest(data, row, partition)[1]))
    if entries is None:
        return False
    # Read once more, without us.
    theirs = list(fastavro.reader(io.BytesIO(data)))
    assert len(entries) == len(theirs)
    entry_names = _names_by_id(read_header(data, "").schema)
    file_names = _names_by_id(next(f["type"] for f in read_header(data, "").schema["fields"] if f["field-id"] == 2))
    for ours, record in zip(entries, theirs, strict=True):
        assert record[entry_names[0]] == ours.status
        file = record[entry_names[2]]
        for field_id, value in {
            100: ours.data_file.file_path,
            103: ours.data_file.record_count,
            104: ours.data_file.file_size_in_bytes,
            132: None if ours.data_file.split_offsets is None else list(ours.data_file.split_offsets),
        }.items():
            assert value == (file[file_names[field_id]] if field_id in file_names else None)
    return True


def _names_by_id(record: Any) -> dict[int, str]:
    record = record[-1] if isinstance(record, list) else record
    return {field["field-id"]: field["name"] for field in record["fields"]}


@cache
def manifest_lists() -> list[bytes]:
    rows = [row for _, row, _ in manifests()]
    deletes = msgspec.structs.replace(rows[3], content=ManifestContent.DELETES, manifest_path="file:/w/d.avro")
    return [
        write_list([*rows, deletes], format_version=version, codec=codec, first_row_id=0)
        for version in (1, 2, 3)
        for codec in ("gzip", "uncompressed")
    ]


def manifest_list_bytes(rng: Random) -> bool:
    return _list_agrees(mutate_bytes(rng.choice(manifest_lists()), rng, rng.choice([1, 1, 2])))


def manifest_list_schemas(rng: Random) -> bool:
    return _list_agrees(with_schema(rng.choice(manifest_lists()), lambda schema: mutate_json(schema, rng, 1)))


def _list_agrees(data: bytes) -> bool:
    rows = taken(lambda: read_manifest_list(data, LIST))
    if rows is None:
        return False
    theirs = list(fastavro.reader(io.BytesIO(data)))
    assert len(rows) == len(theirs)
    names = _names_by_id(read_header(data, "").schema)
    for ours, record in zip(rows, theirs, strict=True):
        for field_id, name in ((500, "manifest_path"), (501, "manifest_length"), (504, "added_files_count")):
            assert getattr(ours, name) == (record[names[field_id]] if field_id in names else None)
    return True


_PUFFIN = "memory://lake/dv.puffin"


@cache
def puffin() -> tuple[bytes, tuple[DataFile, ...]]:
    storage = MemoryStorage()
    target = VectorTarget(location="memory://lake/a.parquet", spec_id=0)
    files = write_deletion_vectors(storage, _PUFFIN, [(target, BitMap64([0, 5, 2**33]))])
    return storage.read(_PUFFIN), files


def puffin_bytes(rng: Random) -> bool:
    sound, (file,) = puffin()
    storage = MemoryStorage()
    storage.create(_PUFFIN, mutate_bytes(sound, rng, rng.choice([1, 1, 2])))
    footer = taken(lambda: read_puffin_footer(storage, _PUFFIN))
    if footer is not None:
        for blob in footer.blobs:
            taken(lambda blob=blob: read_range(storage, _PUFFIN, blob.offset, blob.length))
    positions = taken(lambda: read_deletion_vector(storage, file))
    assert positions is None or set(positions) == {0, 5, 2**33}
    return positions is not None
