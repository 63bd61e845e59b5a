"""The rows of a table as the specification says they are, read by JSON, fastavro and PyArrow alone.

It believes no count, no bound, no summary and no size: every manifest that the list of the current snapshot names is read, each
live entry counts, and deletes apply by sequence number, partition and content alone ("Scan Planning"). For tables whose files are
all Parquet, and vectors. `naive_scan` reads every table by the library's own readers, and knows no equality deletes.
"""

import datetime
import io
import json
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icekeep.spec.metadata import unpacked

Record = dict[str, Any]
_PATH, _POSITION = 2147483546, 2147483545
_DELETED = 2
_EPOCH = datetime.date(1970, 1, 1)


class UnreadableError(Exception):
    """A reader that keeps to the specification cannot read the table."""


class Entry(NamedTuple):
    """A live entry with what it inherits.

    Attributes:
        place: the partition and its spec.
    """

    file: Record
    content: int
    sequence_number: int
    spec_id: int
    place: str


def plain_rows(read: Callable[[str], bytes], metadata_location: str) -> Counter[str]:
    """Each row of the current snapshot as a text that follows from the values by the ids of columns.

    Args:
        read: a file's bytes by its location.

    Raises:
        UnreadableError: a file is not there, damaged, or says what the specification does not allow.
    """
    try:
        return _rows(read, metadata_location)
    except Exception as error:
        # Whatever it is that such a reader stumbles over.
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


def _rows(read: Callable[[str], bytes], metadata_location: str) -> Counter[str]:
    document = json.loads(unpacked(read(metadata_location)))
    schema = next(s for s in document["schemas"] if s["schema-id"] == document["current-schema-id"])
    # Those of older schemas too: equality deletes may compare by a column that was dropped.
    fields = {field["id"]: field for one in (*document["schemas"], schema) for field in one["fields"]}
    entries = list(_live(read, document))
    vectors, positions, equality = _deletes(read, document, entries)
    found = Counter[str]()
    for entry in entries:
        if entry.content != 0:
            continue
        path = entry.file["file_path"]
        columns = _columns(read(path), document)
        count = max(map(len, columns.values()), default=entry.file["record_count"])
        gone = set()
        vector = vectors.get(path)
        if vector is not None and vector[0] >= entry.sequence_number:
            gone = vector[1]
        else:
            for number, place, deleted in positions.get(path, ()):
                if number >= entry.sequence_number and place == entry.place:
                    gone |= deleted
        keys = [
            (ids, values)
            for number, place, ids, values in equality
            if number > entry.sequence_number and place in (None, entry.place)
        ]
        asked = {*(field["id"] for field in schema["fields"]), *(id_ for ids, _ in keys for id_ in ids)}
        read_as = {id_: columns.get(id_) or [_default(fields[id_], entry, document)] * count for id_ in asked}
        for row in range(count):
            if row in gone:
                continue
            if any(tuple(_text(read_as[id_][row]) for id_ in ids) in values for ids, values in keys):
                continue
            found[repr([_text(read_as[field["id"]][row]) for field in schema["fields"]])] += 1
    return found


def _live(read: Callable[[str], bytes], document: Record) -> Iterator[Entry]:
    current = document.get("current-snapshot-id")
    snapshot = next((s for s in document.get("snapshots", ()) if s["snapshot-id"] == current), None)
    if snapshot is None:
        if current not in (None, -1):
            raise ValueError(f"no snapshot {current}")
        return
    for row in fastavro.reader(io.BytesIO(read(snapshot["manifest-list"]))):
        assert isinstance(row, dict)
        for entry in fastavro.reader(io.BytesIO(read(row["manifest_path"]))):
            assert isinstance(entry, dict)
            if entry["status"] == _DELETED:
                continue
            number = entry.get("sequence_number")
            if number is None:
                if entry["status"] == 0 and document["format-version"] > 1 and row.get("sequence_number"):
                    raise ValueError("an existing entry has no sequence number")
                number = row.get("sequence_number") or 0
            spec_id = row["partition_spec_id"]
            if all(spec["spec-id"] != spec_id for spec in document["partition-specs"]):
                raise ValueError(f"no spec {spec_id}")
            file = entry["data_file"]
            # In the order of the spec's fields: names in a manifest are those that they had when it was written.
            place = repr((spec_id, [_text(value) for value in file["partition"].values()]))
            yield Entry(file, file.get("content") or 0, number, spec_id, place)


def _deletes(read: Callable[[str], bytes], document: Record, entries: list[Entry]) -> tuple[Any, Any, Any]:
    """Vectors by data file; positions by data file; and equality deletes, whose place is null where they are for all."""
    unpartitioned = {
        spec["spec-id"]
        for spec in document["partition-specs"]
        if all(field["transform"] == "void" for field in spec["fields"])
    }
    vectors: dict[str, tuple[int, set[int]]] = {}
    positions: dict[str, list[tuple[int, str, set[int]]]] = defaultdict(list)
    equality = []
    for entry in entries:
        if entry.content == 0:
            continue
        data = read(entry.file["file_path"])
        if entry.content == 2:
            ids = tuple(entry.file["equality_ids"])
            columns = _columns(data, document)
            rows = {tuple(map(_text, row)) for row in zip(*(columns[id_] for id_ in ids), strict=True)}
            place = None if entry.spec_id in unpartitioned else entry.place
            equality.append((entry.sequence_number, place, ids, rows))
        elif str(entry.file["file_format"]).lower() == "puffin":
            path = entry.file["referenced_data_file"]
            if path in vectors:
                raise ValueError("two vectors for a file")
            vectors[path] = entry.sequence_number, _vector(data, entry.file)
        else:
            columns = _columns(data, document)
            by_path: dict[str, set[int]] = defaultdict(set)
            for path, position in zip(columns[_PATH], columns[_POSITION], strict=True):
                by_path[path].add(position)
            for path, deleted in by_path.items():
                # Its rows of other paths apply to nothing, as the spec has it in "Scan Planning".
                if entry.file.get("referenced_data_file") in (None, path):
                    positions[path].append((entry.sequence_number, entry.place, deleted))
    return vectors, positions, equality


def _vector(data: bytes, file: Record) -> set[int]:
    """The positions of a blob `deletion-vector-v1`: its length, a magic, and a bitmap for each of the high 32 bits."""
    start = file["content_offset"]
    length, magic = struct.unpack(">I4s", data[start : start + 8])
    if magic != b"\xd1\xd3\x39\x64":
        raise ValueError("no vector")
    return set(BitMap64.deserialize(data[start + 8 : start + 4 + length]))


def _columns(data: bytes, document: Record) -> Mapping[int, list[Any]]:
    """The values of each column by field id; a column without an id has that of the name mapping."""
    return _columns_by_mapping(data, document["properties"].get("schema.name-mapping.default", "[]"))


# A table is read before and after a job, which leaves most of its files as they are.
@lru_cache(1024)
def _columns_by_mapping(data: bytes, mapping_text: str) -> Mapping[int, list[Any]]:
    mapping = json.loads(mapping_text)
    by_name = {name: field.get("field-id") for field in mapping for name in field["names"]}
    table = pq.ParquetFile(io.BytesIO(data)).read()
    found: dict[int, list[Any]] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        id_ = (field.metadata or {}).get(b"PARQUET:field_id")
        number = by_name.get(field.name) if id_ is None else int(id_)
        if number is not None:
            if pa.types.is_temporal(column.type):
                column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
            found[number] = column.to_pylist()
    return found


def _default(field: Record, entry: Entry, document: Record) -> Any:
    """What a column is of which a file has nothing: the value of the identity partition, or the initial default."""
    spec = next(spec for spec in document["partition-specs"] if spec["spec-id"] == entry.spec_id)
    for part, value in zip(spec["fields"], entry.file["partition"].values(), strict=True):
        if part["source-id"] == field["id"] and part["transform"] == "identity":
            return value
    return field.get("initial-default")


def _text(value: Any) -> str:
    """NaN equals NaN, -0.0 is not 0.0; a float is the double that it is."""
    return repr((value - _EPOCH).days if isinstance(value, datetime.date) else value)
