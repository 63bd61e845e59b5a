"""What is fuzzed: each target spoils a sound input and says whether the library took it or refused it, rightly.

Refused means an error of icekeep's, in one line. Taken means that a second, independent look agrees: what was read says
what the input says. Anything else (another exception, a wrong answer) raises `AssertionError` or escapes.
"""

import copy
import gzip
import io
import json
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any, NamedTuple

import fastavro
import msgspec
from pyroaring import BitMap64

from icekeep.catalog.base import parse_identifier, validate_table_identifier
from icekeep.errors import ExpressionError, IcekeepError, InvalidTableError, NotFoundError, UnsupportedError, UsageError
from icekeep.formats.puffin import (
    VectorTarget,
    read_deletion_vector,
    read_puffin_footer,
    read_range,
    write_deletion_vectors,
)
from icekeep.spec.avro import read_header
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.parsing import format_expression, parse_where
from icekeep.spec.manifests.read import inspect_manifest, read_manifest, read_manifest_list
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestFile
from icekeep.spec.metadata import format_metadata, metadata_to_json, parse_metadata
from icekeep.spec.partitioning import spec_from_json, spec_to_json
from icekeep.spec.schema import name_mapping_to_json, parse_name_mapping, schema_from_json
from icekeep.spec.sorting import sort_order_from_json, sort_order_to_json
from icekeep.spec.types import parse_type, type_from_json, type_to_json
from icekeep.spec.updates import SetProperties, apply_updates
from icekeep.spec.values import value_from_bytes, value_from_json, value_to_bytes, value_to_json
from icekeep.storage.locations import canonical
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
from kit.metadata import full_document
from kit.storage import MemoryStorage

REFUSALS = (InvalidTableError, UnsupportedError)
USER_REFUSALS = (*REFUSALS, UsageError, NotFoundError)


_DERIVED = {"schema", "partition-spec", "next-row-id", "last-sequence-number", "default-spec-id", "current-schema-id",
            "default-sort-order-id"}  # fmt: skip
"""Keys that mean nothing in some versions, or without a list that they point into, and are left out or derived there."""


def taken(read: Callable[[], object], refusals: tuple[type[IcekeepError], ...] = REFUSALS) -> Any:
    """What `read` returns, or null where it refuses with one line; any other error escapes."""
    try:
        return read()
    except refusals as error:
        refusal = error
    assert "\n" not in refusal.message, refusal.message
    return None


def assert_survives(before: Any, after: Any, path: str) -> None:
    """Whatever an accepted document says is still said after it was written again."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if value in (None, [], {}) or (not path and key in _DERIVED) or key in ("direction", "null-order"):
                continue
            if (key, value) == ("current-snapshot-id", -1) or (key == "sequence-number" and "snapshots" in path):
                continue
            if key == "source-ids" and len(value) == 1:
                assert after.get("source-id", value[0]) == value[0]
                continue
            if key in after or not _is_default(key, value):
                assert key in after, f"{path}/{key} is lost"
                assert_survives(value, after[key], f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list):
        assert len(before) == len(after), f"{path} has {len(after)} items, not {len(before)}"
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            assert_survives(one, other, f"{path}[{number}]")
    elif isinstance(before, str) and isinstance(after, str):
        assert before.replace(" ", "").lower() == after.replace(" ", "").lower(), f"{path}: {before!r} became {after!r}"
    else:
        assert before == after, f"{path}: {before!r} became {after!r}"


def _is_default(key: str, value: Any) -> bool:
    return (key, value) in (("blob-metadata", []), ("type", "struct"))


_SCALARS: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 4, 999, 1000, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 1.5, 1e308, "", "x", "main",
    "long", "int", "string", "decimal(9, 2)", "decimal(99, 2)", "fixed[4]", "fixed[-1]", "bucket[0]", "bucket[16]", "void",
    "identity", "asc", "nulls-last", "branch", "tag", "../../etc", "s3://b/t", "\x00", "é", "a.b", "{}", "list", "map", "struct",
]  # fmt: skip
_TEXT = "abcxyz0189 _-./\\'\"`()[]{}<>=!,:;%*+#@~?|&^$\n\t\x00éß漢😀"


def mutate_json(document: Any, rng: Random, times: int) -> Any:
    """A copy of a document with `times` places deleted, replaced, doubled, swapped or renamed."""
    document = copy.deepcopy(document)
    for _ in range(times):
        places = list(_places(document))
        if not places:
            break
        holder, key = rng.choice(places)
        if isinstance(holder, dict):
            _mutate_member(holder, key, rng, places)
        else:
            _mutate_item(holder, key, rng, places)
    return document


def mutate_bytes(data: bytes, rng: Random, times: int) -> bytes:
    """Bytes with bits flipped, ranges cut out, doubled or overwritten, or an end cut off."""
    out = bytearray(data)
    for _ in range(times):
        if not out:
            return bytes(rng.randbytes(rng.randrange(1, 9)))
        at, length = rng.randrange(len(out)), rng.choice([1, 1, 2, 4, 16, 64])
        match rng.randrange(6):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                del out[at : at + length]
            case 2:
                out[at:at] = out[at : at + length]
            case 3:
                out[at : at + length] = rng.randbytes(length)
            case 4:
                del out[at:]
            case _:
                out[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
    return bytes(out)


def mutate_text(text: str, rng: Random, times: int) -> str:
    """Text with characters added, taken away and moved."""
    out = list(text)
    for _ in range(times):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(4):
            case 0:
                out[at:at] = rng.choice(_TEXT) * rng.choice([1, 1, 1, 30])
            case 1:
                del out[at : at + rng.choice([1, 1, 3])]
            case 2:
                out[at:at] = out[: rng.randrange(len(out) + 1)]
            case _:
                rng.shuffle(out) if len(out) < 12 else out.reverse()
        del out[4000:]
    return "".join(out)


def json_bytes(document: Any) -> bytes:
    """A document as the bytes of a file."""
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _places(value: Any, depth: int = 0) -> Any:
    """Every member and item of a document with what holds it; the document itself is never replaced."""
    if isinstance(value, dict | list) and depth < 40:
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key], depth + 1)


def _any_value(rng: Random, places: list[tuple[Any, Any]]) -> Any:
    kind = rng.randrange(4)
    if kind == 0:
        holder, key = rng.choice(places)
        return copy.deepcopy(holder[key]) if _is_there(holder, key) else None
    if kind == 1:
        return rng.choice([[], {}, [1], [None], {"a": 1}, {"type": "list"}, [[]], "x" * 1000])
    return rng.choice(_SCALARS)


def _is_there(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _mutate_member(holder: dict[str, Any], key: str, rng: Random, places: list[tuple[Any, Any]]) -> None:
    match rng.randrange(4):
        case 0:
            del holder[key]
        case 1:
            holder[rng.choice([key.upper(), key + "s", key.replace("-", "_"), "x-new"])] = holder.pop(key)
        case _:
            holder[key] = _any_value(rng, places)


def _mutate_item(holder: list[Any], index: int, rng: Random, places: list[tuple[Any, Any]]) -> None:
    match rng.randrange(4):
        case 0:
            del holder[index]
        case 1:
            holder.insert(index, copy.deepcopy(holder[index]))
        case 2:
            holder.reverse()
        case _:
            holder[index] = _any_value(rng, places)


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


def version_1_document() -> dict[str, Any]:
    document = full_document()
    current = next(s for s in document["schemas"] if s["schema-id"] == document["current-schema-id"])
    spec = next(s for s in document["partition-specs"] if s["spec-id"] == document["default-spec-id"])
    document |= {"format-version": 1, "schema": current, "partition-spec": spec["fields"]}
    for key in ("schemas", "current-schema-id", "last-sequence-number", "sort-orders", "default-sort-order-id"):
        document.pop(key, None)
    return document


def version_3_document() -> dict[str, Any]:
    document = {**full_document(), "format-version": 3, "next-row-id": 50}
    for snapshot in document["snapshots"]:
        snapshot |= {"first-row-id": 0, "added-rows": 10}
    return document


def metadata_values(rng: Random) -> bool:
    document = rng.choice([full_document, version_1_document, version_3_document])()
    document = mutate_json(document, rng, rng.choice([1, 1, 2, 5]))
    metadata = taken(lambda: parse_metadata(json_bytes(document), "m"))
    if metadata is None:
        return False
    written = metadata_to_json(metadata)
    assert_survives(document, written, "")
    assert parse_metadata(format_metadata(metadata), "m") == metadata
    changed = taken(lambda: apply_updates(metadata, [SetProperties({"k": "v"})], now_ms=2**62))
    if changed is not None:
        assert_survives({**written, "last-updated-ms": changed.last_updated_ms}, metadata_to_json(changed), "")
    return True


def metadata_bytes(rng: Random) -> bool:
    data = json_bytes(rng.choice([full_document, version_1_document, version_3_document])())
    if rng.random() < 0.3:
        data = gzip.compress(data, 1, mtime=0)
    metadata = taken(lambda: parse_metadata(mutate_bytes(data, rng, rng.choice([1, 1, 3])), "m"))
    if metadata is None:
        return False
    assert parse_metadata(format_metadata(metadata), "m") == metadata
    return True


_TYPES = ["int", "decimal(9, 2)", "fixed[16]", "geometry(OGC:CRS84)", "geography(srid:4326, spherical)", "timestamp_ns"]
_TRANSFORMS = ["bucket[16]", "truncate[10]", "identity", "day", "void", "zorder[3]"]
_FILTERS = [
    "id = 1 AND NOT (kind IN ('a', 'b') OR price > 1.50)",
    "ts >= TIMESTAMP '2026-01-01 00:00:00' AND day < today - 7",
    "kind LIKE 'ab%' OR kind NOT LIKE 'c\\%d%' AND score IS NOT NAN",
    'price BETWEEN -1 AND 2.5 OR "odd name" = 7 OR address.city IS NULL',
]
_SCHEMA = schema_from_json(
    {
        "type": "struct",
        "fields": [
            {"id": 1, "name": "id", "required": True, "type": "long"},
            {"id": 2, "name": "kind", "required": False, "type": "string"},
            {"id": 3, "name": "price", "required": False, "type": "decimal(9, 2)"},
            {"id": 4, "name": "ts", "required": False, "type": "timestamp"},
            {"id": 5, "name": "day", "required": False, "type": "date"},
            {"id": 6, "name": "score", "required": False, "type": "double"},
            {"id": 7, "name": "odd name", "required": False, "type": "int"},
            {"id": 8, "name": "address", "required": False, "type": {
                "type": "struct", "fields": [{"id": 9, "name": "city", "required": False, "type": "string"}]
            }},
        ],
    }
)  # fmt: skip


def type_texts(rng: Random) -> bool:
    text = mutate_text(rng.choice(_TYPES), rng, rng.choice([1, 2, 4]))
    type_ = taken(lambda: parse_type(text))
    if type_ is None:
        return False
    assert parse_type(str(type_)) == type_
    return True


def nested_types(rng: Random) -> bool:
    document = mutate_json({"type": rng.choice(full_document()["schemas"]) | {"type": "struct"}}, rng, 2).get("type")
    if rng.random() < 0.02:
        for _ in range(rng.choice([50, 600, 5000])):
            document = {"type": "list", "element-id": 5, "element": document, "element-required": True}
    type_ = taken(lambda: type_from_json(document))
    if type_ is None:
        return False
    assert type_from_json(type_to_json(type_)) == type_
    return True


def specs_and_orders(rng: Random) -> bool:
    kind, read, write = rng.choice(
        [
            ("partition-specs", spec_from_json, spec_to_json),
            ("sort-orders", sort_order_from_json, sort_order_to_json),
        ]
    )
    sound = rng.choice(full_document()[kind])
    for field in sound["fields"]:
        if rng.random() < 0.3:
            field["transform"] = mutate_text(rng.choice(_TRANSFORMS), rng, 1)
    document = mutate_json({"it": sound}, rng, rng.choice([1, 2])).get("it")
    value = taken(lambda: read(document))
    if value is None:
        return False
    assert read(write(value)) == value
    assert_survives(document, write(value), "it")
    return True


def filters(rng: Random) -> bool:
    text = mutate_text(rng.choice(_FILTERS), rng, rng.choice([1, 1, 2, 4]))
    parsed = taken(lambda: parse_where(text, 1_700_000_000_000), (ExpressionError,))
    if parsed is None:
        return False
    assert parse_where(format_expression(parsed), 0) == parsed
    return taken(lambda: bind(parsed, _SCHEMA), USER_REFUSALS) is not None


def names(rng: Random) -> bool:
    text = mutate_text(rng.choice(["db.events", "a.b.c", "db"]), rng, rng.choice([1, 2, 3]))
    return taken(lambda: validate_table_identifier(parse_identifier(text)), USER_REFUSALS) is not None


def locations(rng: Random) -> bool:
    text = mutate_text(rng.choice(["s3://bucket/db/t", "file:///a/../b", "/a//b", "hdfs://nn:8020/x"]), rng, 2)
    key = taken(lambda: canonical(text))
    if key is None:
        return False
    assert canonical(key) == key
    return True


_PRIMITIVES = ["boolean", "int", "long", "float", "double", "decimal(9, 2)", "date", "time", "timestamp", "timestamptz",
               "timestamp_ns", "string", "uuid", "fixed[3]", "binary"]  # fmt: skip
_JSON = [True, 5, 1.5, "14.20", "2017-11-16", "22:31:08.123456", "2017-11-16T22:31:08.123456",
         "2017-11-16T22:31:08.123456+00:00", "iceberg", "f79c3e09-677c-4bbd-a479-3f349cb785e7", "00010203"]  # fmt: skip


def single_values(rng: Random) -> bool:
    type_ = parse_type(rng.choice(_PRIMITIVES))
    if rng.random() < 0.5:
        value = taken(lambda: value_from_bytes(type_, rng.randbytes(rng.choice([0, 1, 3, 4, 8, 16, 20]))))
        if value is None:
            return False
        again = value_from_bytes(type_, value_to_bytes(type_, value))
        assert again == value or (value != value and again != again)
        return True
    literal = rng.choice(_JSON)
    literal = mutate_text(literal, rng, 1) if isinstance(literal, str) else literal
    value = taken(lambda: value_from_json(type_, literal))
    if value is None:
        return False
    assert value_from_json(type_, value_to_json(type_, value)) == value
    return True


_MAPPING = [
    {"field-id": 1, "names": ["id", "record_id"]},
    {"field-id": 2, "names": ["data"], "fields": [{"field-id": 3, "names": ["element"], "fields": []}]},
    {"names": ["gone"]},
]


def name_mappings(rng: Random) -> bool:
    text = json_bytes(
        mutate_json({"m": _MAPPING}, rng, rng.choice([1, 2])).get("m") if rng.random() < 0.7 else _MAPPING
    )
    text = text if rng.random() < 0.7 else mutate_bytes(text, rng, 1)
    mapping = taken(lambda: parse_name_mapping(text.decode(errors="replace")), USER_REFUSALS)
    if mapping is None:
        return False
    assert parse_name_mapping(msgspec.json.encode(name_mapping_to_json(mapping)).decode()) == mapping
    return True


class Target(NamedTuple):
    """`check` spoils one input by a generator, and returns whether it was taken."""

    name: str
    check: Callable[[Random], bool]


TARGETS = tuple(
    Target(check.__name__, check)
    for check in (
        metadata_values, metadata_bytes, manifest_bytes, manifest_schemas, manifest_headers, manifest_list_bytes,
        manifest_list_schemas, type_texts, nested_types, specs_and_orders, filters, names, locations, single_values,
        name_mappings, puffin_bytes,
    )
)  # fmt: skip
