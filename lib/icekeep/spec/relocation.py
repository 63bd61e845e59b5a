"""A table's metadata under another prefix: every absolute path in it, and nothing else, is changed.

Paths are compared as texts, as the format itself compares them: a position delete reaches the data file whose path is equal
to its own in each character. Manifests and manifest lists keep their Avro schema and codec, so that fields of later versions
and what is inherited stay as they are. Equal input gives equal bytes.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fastavro
import msgspec
from msgspec.structs import replace

from icekeep.errors import InvalidTableError
from icekeep.spec.avro import (
    AvroContainer,
    encode_record,
    packer,
    read_header,
    read_records,
    sync_marker,
    without_logical_types,
)
from icekeep.spec.manifests.read import open_manifest, record_field, stored_fields, without_null
from icekeep.spec.manifests.structs import DATA_FILE_FIELD_ID, DATA_FILE_FIELDS, MANIFEST_FILE_FIELDS, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import DELETE_FILE_PATH
from icekeep.spec.snapshots import Snapshot

PATH_PROPERTIES = (
    "write.object-storage.path",
    "write.folder-storage.path",
    "write.data.path",
    "write.metadata.path",
)
"""Table properties whose values are locations."""

_IDS = {field.name: field.field_id for field in (*DATA_FILE_FIELDS, *MANIFEST_FILE_FIELDS)}


class PathChange(msgspec.Struct, frozen=True):
    """One prefix in the place of another; slashes at their ends say nothing.

    >>> change = PathChange("s3://a/wh/t", "s3://b/copy/", others=("s3a://a/wh/t",))
    >>> change.path("s3://a/wh/t/data/f.parquet"), change.path("s3a://a/wh/t/f"), change.holds("s3://a/wh/t2/f")
    ('s3://b/copy/data/f.parquet', 's3://b/copy/f', False)

    Attributes:
        others: spellings of the source prefix that paths may begin with too.
    """

    source: str
    target: str
    others: tuple[str, ...] = ()

    @property
    def starts(self) -> tuple[str, ...]:
        """What the paths begin with that are changed, slash included."""
        return tuple(dict.fromkeys(one.rstrip("/") + "/" for one in (self.source, *self.others)))

    def below(self, path: str) -> str | None:
        """What follows the source prefix; empty for the prefix itself, `None` for what is elsewhere or climbs out of it."""
        for start in self.starts:
            if path.startswith(start):
                rest = path[len(start) :]
                return None if ".." in rest.split("/") else rest
            if path.rstrip("/") == start[:-1]:
                return ""
        return None

    def holds(self, path: str) -> bool:
        """Whether a path is the source prefix, or lies below it."""
        return self.below(path) is not None

    def path(self, path: str) -> str:
        """The path under the target prefix; raises `InvalidTableError` for one that is not under the source prefix."""
        below = self.below(path)
        if below is None:
            raise InvalidTableError(f"path {path!r} is not under the prefix {self.source!r}", location=path)
        return f"{self.target.rstrip('/')}/{below}" if below else self.target

    def bound(self, bound: bytes) -> bytes | None:
        """A lower or upper bound of paths; `None` for one that does not tell on which side the changed paths are.

        All paths begin with one spelling of the prefix, so that what follows it decides their order, before and after.
        """
        for start in self.starts:
            if bound.startswith(start.encode()):
                return f"{self.target.rstrip('/')}/".encode() + bound[len(start.encode()) :]
        return None


def paths_in_metadata(metadata: TableMetadata) -> Iterator[tuple[str, str]]:
    """The locations that a metadata file names, each with what it is for people; without those of its log."""
    yield "the table's location", metadata.location
    for snapshot in metadata.snapshots:
        if snapshot.manifest_list is not None:
            yield "manifest list", snapshot.manifest_list
        for location in snapshot.manifests or ():
            yield "manifest", location
    for file in metadata.statistics:
        yield "statistics file", file.statistics_path
    for partition_file in metadata.partition_statistics:
        yield "partition statistics file", partition_file.statistics_path
    for key in PATH_PROPERTIES:
        if key in metadata.properties:
            yield f"table property {key}", metadata.properties[key]


def relocated_metadata(metadata: TableMetadata, change: PathChange) -> TableMetadata:
    """The metadata with its locations changed, its log's among them; raises what `PathChange.path` raises."""

    def snapshot(one: Snapshot) -> Snapshot:
        return replace(
            one,
            manifest_list=None if one.manifest_list is None else change.path(one.manifest_list),
            manifests=None if one.manifests is None else tuple(map(change.path, one.manifests)),
        )

    properties = {
        key: change.path(value) if key in PATH_PROPERTIES else value for key, value in metadata.properties.items()
    }
    return replace(
        metadata,
        location=change.path(metadata.location),
        snapshots=tuple(map(snapshot, metadata.snapshots)),
        metadata_log=tuple(replace(one, metadata_file=change.path(one.metadata_file)) for one in metadata.metadata_log),
        statistics=tuple(replace(one, statistics_path=change.path(one.statistics_path)) for one in metadata.statistics),
        partition_statistics=tuple(
            replace(one, statistics_path=change.path(one.statistics_path)) for one in metadata.partition_statistics
        ),
        properties=properties,
    )


def relocated_manifest_list(data: bytes, location: str, change: PathChange, lengths: Mapping[str, int]) -> bytes:
    """A manifest list with the paths of its manifests changed.

    Args:
        lengths: how long each manifest is under its changed path, by the path that it has.
    """
    header = read_header(data, location)
    fields = stored_fields(header.schema)
    path, length = fields[_IDS["manifest_path"]]["name"], fields[_IDS["manifest_length"]]["name"]

    def changed(record: dict[str, Any]) -> None:
        record[length] = lengths[record[path]]
        record[path] = change.path(record[path])

    return _with_records_changed(data, location, change, changed)


def relocated_manifest(
    data: bytes, manifest: ManifestFile, change: PathChange, named: PathChange, sizes: Mapping[str, int]
) -> bytes:
    """A manifest with the paths of its files changed, the data files of deletes and the bounds of their paths among them.

    An entry of a deleted file that lies elsewhere stays as it is.

    Args:
        named: of the data files that deletes name: a delete that reaches no file, since it spells the path otherwise, must not
            reach one then.
        sizes: in bytes, of the position delete files that are written again, by the paths that they have. What their entries say
            of the layout of the file goes: `column_sizes` and `split_offsets`.
    """
    avro, _ = open_manifest(data, manifest)
    file_name, file_schema = record_field(avro.schema, DATA_FILE_FIELD_ID)
    fields = stored_fields(file_schema)
    names = {name: str(fields[id_]["name"]) for name, id_ in _IDS.items() if id_ in fields}
    pairs = {
        names[name]: _names_of_pairs(fields[_IDS[name]]) for name in ("lower_bounds", "upper_bounds") if name in names
    }
    path, size = names["file_path"], names["file_size_in_bytes"]
    layout = [names[name] for name in ("column_sizes", "split_offsets") if name in names]
    referenced, offset = names.get("referenced_data_file"), names.get("content_offset")

    def changed(record: dict[str, Any]) -> None:
        file = record[file_name]
        before = file[path]
        if change.holds(before):
            file[path] = change.path(before)
        if referenced is not None and file[referenced] is not None and named.holds(file[referenced]):
            file[referenced] = named.path(file[referenced])
        for bounds, (key, value) in pairs.items():
            if file[bounds] is not None:
                file[bounds] = [*_changed_bounds(file[bounds], key, value, named)]
        if before in sizes:
            file[size] = sizes[before]
            if offset is None or file[offset] is None:
                file.update(dict.fromkeys(layout))

    return _with_records_changed(data, manifest.manifest_path, change, changed)


def same_records(one: bytes, other: bytes, location: str) -> bool:
    """Whether two Avro files hold equal records under equal schemas, however they are packed."""
    headers = read_header(one, location), read_header(other, location)
    if headers[0].schema != headers[1].schema:
        return False
    return [*read_records(one, headers[0], location)] == [*read_records(other, headers[1], location)]


def _names_of_pairs(field: Any) -> tuple[str, str]:
    key, value = without_null(field["type"])["items"]["fields"]
    return key["name"], value["name"]


def _changed_bounds(pairs: list[dict[str, Any]], key: str, value: str, change: PathChange) -> Iterator[dict[str, Any]]:
    for pair in pairs:
        if pair[key] != DELETE_FILE_PATH.field_id:
            yield pair
        elif (bound := change.bound(pair[value])) is not None:
            yield {**pair, value: bound}


def _with_records_changed(
    data: bytes, location: str, change: PathChange, changed: Callable[[dict[str, Any]], None]
) -> bytes:
    """The same Avro file with its records changed in place."""
    header = read_header(data, location)
    parsed = fastavro.parse_schema(without_logical_types(header.schema))
    pack = packer(header.metadata.get("avro.codec", b"null").decode())
    out = AvroContainer(header.metadata, sync_marker(change.path(location).encode()), pack)
    for record in read_records(data, header, location):
        changed(record)
        out.add(encode_record(parsed, record))
    return out.finish()
