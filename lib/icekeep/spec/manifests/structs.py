"""Manifest lists, manifests, their entries and the files that these track (spec, "Manifests", "Manifest Lists").

The structs; the schemas of both kinds of Avro file, as tables of fields with the format versions that have them; and what is
computed over the files of a manifest in order, row ids and partition summaries.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any
from uuid import UUID

import msgspec

from icekeep.errors import IcekeepBug
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    FLOATING_TYPES,
    INT,
    LONG,
    STRING,
    ListType,
    MapType,
    NestedField,
    StructType,
    Type,
)
from icekeep.spec.values import java_order, value_to_bytes


class Status(IntEnum):
    """Field 0 of `manifest_entry`."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


class FileContent(IntEnum):
    """Field 134 of `data_file`."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


class ManifestContent(IntEnum):
    """Field 517 of `manifest_file`."""

    DATA = 0
    DELETES = 1


COUNTS = {
    Status.ADDED: ("added_files_count", "added_rows_count"),
    Status.EXISTING: ("existing_files_count", "existing_rows_count"),
    Status.DELETED: ("deleted_files_count", "deleted_rows_count"),
}
"""The fields of `manifest_file` that count files and rows, by the status of the entries."""


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file, delete file or deletion vector (spec, "Data File Fields").

    `spec_id` is the partition spec of the manifest that holds the file, and `partition` has the values of that spec's
    fields in their order. Maps go from field id to a count, a size or a bound's bytes.
    """

    file_path: str
    file_format: str
    spec_id: int
    record_count: int
    file_size_in_bytes: int
    partition: tuple[Any, ...] = ()
    content: FileContent = FileContent.DATA
    column_sizes: Mapping[int, int] | None = None
    value_counts: Mapping[int, int] | None = None
    null_value_counts: Mapping[int, int] | None = None
    nan_value_counts: Mapping[int, int] | None = None
    lower_bounds: Mapping[int, bytes] | None = None
    upper_bounds: Mapping[int, bytes] | None = None
    key_metadata: bytes | None = None
    split_offsets: tuple[int, ...] | None = None
    equality_ids: tuple[int, ...] | None = None
    sort_order_id: int | None = None
    first_row_id: int | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None

    @property
    def own_bytes(self) -> int:
        return own_bytes(self.file_size_in_bytes, self.content_size_in_bytes)


def own_bytes(file_size_in_bytes: int, content_size_in_bytes: int | None) -> int:
    """The size of a file, or of the blob of a deletion vector, whose Puffin file may hold others."""
    return file_size_in_bytes if content_size_in_bytes is None else content_size_in_bytes


class ManifestEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Spec, "Manifest Entry Fields"; null ids and numbers are inherited from the manifest when read."""

    status: Status
    data_file: DataFile
    snapshot_id: int | None = None
    sequence_number: int | None = None
    file_sequence_number: int | None = None

    @property
    def is_live(self) -> bool:
        """Whether the file belongs to the snapshot."""
        return self.status is not Status.DELETED


class FieldSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Spec, `field_summary`; bounds are in the single-value serialization, null if all values are null or NaN."""

    contains_null: bool
    contains_nan: bool | None = None
    lower_bound: bytes | None = None
    upper_bound: bytes | None = None


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a manifest list; in version 1 counts may be null, which means that there may be some.

    Both sequence numbers of an uncommitted manifest are null: they are assigned when the list is written.
    """

    manifest_path: str
    manifest_length: int
    partition_spec_id: int
    added_snapshot_id: int | None
    content: ManifestContent = ManifestContent.DATA
    sequence_number: int | None = None
    min_sequence_number: int | None = None
    added_files_count: int | None = None
    existing_files_count: int | None = None
    deleted_files_count: int | None = None
    added_rows_count: int | None = None
    existing_rows_count: int | None = None
    deleted_rows_count: int | None = None
    partitions: tuple[FieldSummary, ...] | None = None
    key_metadata: bytes | None = None
    first_row_id: int | None = None

    @property
    def live_files_count(self) -> int | None:
        """Added and existing entries; null if the list does not count them."""
        if self.added_files_count is None or self.existing_files_count is None:
            return None
        return self.added_files_count + self.existing_files_count

    @property
    def may_have_live_files(self) -> bool:
        return self.live_files_count != 0

    @property
    def entries_count(self) -> int | None:
        """All entries, deleted ones too; null if the list does not count them."""
        return total_count((self.added_files_count, self.existing_files_count, self.deleted_files_count))


def total_count(counts: Iterable[int | None]) -> int | None:
    """The sum of counts; `None` if one is missing, as in a list of version 1."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


class VersionedField(msgspec.Struct, frozen=True):
    """A field of a manifest or manifest list and the format versions that write it, and that require it."""

    field_id: int
    name: str
    type: Type
    since: int = 1
    until: int = 3
    required_since: int | None = None


def _map(key_id: int, value_id: int, value: Type) -> MapType:
    return MapType(key_id=key_id, key=INT, value_id=value_id, value=value, value_required=True)


def _list(element_id: int, element: Type) -> ListType:
    return ListType(element_id=element_id, element=element, element_required=True)


PARTITION_FIELD_ID = 102
DATA_FILE_FIELD_ID = 2

DATA_FILE_FIELDS = (
    VersionedField(134, "content", INT, since=2, required_since=2),
    VersionedField(100, "file_path", STRING, required_since=1),
    VersionedField(101, "file_format", STRING, required_since=1),
    VersionedField(PARTITION_FIELD_ID, "partition", StructType(()), required_since=1),
    VersionedField(103, "record_count", LONG, required_since=1),
    VersionedField(104, "file_size_in_bytes", LONG, required_since=1),
    VersionedField(105, "block_size_in_bytes", LONG, until=1, required_since=1),
    VersionedField(106, "file_ordinal", INT, until=0),
    VersionedField(107, "sort_columns", _list(112, INT), until=0),
    VersionedField(108, "column_sizes", _map(117, 118, LONG)),
    VersionedField(109, "value_counts", _map(119, 120, LONG)),
    VersionedField(110, "null_value_counts", _map(121, 122, LONG)),
    VersionedField(137, "nan_value_counts", _map(138, 139, LONG)),
    VersionedField(111, "distinct_counts", _map(123, 124, LONG), until=0),
    VersionedField(125, "lower_bounds", _map(126, 127, BINARY)),
    VersionedField(128, "upper_bounds", _map(129, 130, BINARY)),
    VersionedField(131, "key_metadata", BINARY),
    VersionedField(132, "split_offsets", _list(133, LONG)),
    VersionedField(135, "equality_ids", _list(136, INT), since=2),
    VersionedField(140, "sort_order_id", INT),
    VersionedField(142, "first_row_id", LONG, since=3),
    VersionedField(143, "referenced_data_file", STRING, since=2),
    VersionedField(144, "content_offset", LONG, since=3),
    VersionedField(145, "content_size_in_bytes", LONG, since=3),
)
"""Fields of `data_file` (spec, "Data File Fields"); those with `until=0` are never written."""

ENTRY_FIELDS = (
    VersionedField(0, "status", INT, required_since=1),
    VersionedField(1, "snapshot_id", LONG),
    VersionedField(3, "sequence_number", LONG, since=2),
    VersionedField(4, "file_sequence_number", LONG, since=2),
    VersionedField(DATA_FILE_FIELD_ID, "data_file", StructType(()), required_since=1),
)
"""Fields of `manifest_entry` (spec, "Manifest Entry Fields")."""

_SUMMARY_TYPE = StructType(
    (
        NestedField(field_id=509, name="contains_null", type=BOOLEAN, required=True),
        NestedField(field_id=518, name="contains_nan", type=BOOLEAN),
        NestedField(field_id=510, name="lower_bound", type=BINARY),
        NestedField(field_id=511, name="upper_bound", type=BINARY),
    )
)

MANIFEST_FILE_FIELDS = (
    VersionedField(500, "manifest_path", STRING, required_since=1),
    VersionedField(501, "manifest_length", LONG, required_since=1),
    VersionedField(502, "partition_spec_id", INT, required_since=1),
    VersionedField(517, "content", INT, since=2, required_since=2),
    VersionedField(515, "sequence_number", LONG, since=2, required_since=2),
    VersionedField(516, "min_sequence_number", LONG, since=2, required_since=2),
    VersionedField(503, "added_snapshot_id", LONG, required_since=1),
    VersionedField(504, "added_files_count", INT, required_since=2),
    VersionedField(505, "existing_files_count", INT, required_since=2),
    VersionedField(506, "deleted_files_count", INT, required_since=2),
    VersionedField(512, "added_rows_count", LONG, required_since=2),
    VersionedField(513, "existing_rows_count", LONG, required_since=2),
    VersionedField(514, "deleted_rows_count", LONG, required_since=2),
    VersionedField(507, "partitions", ListType(element_id=508, element=_SUMMARY_TYPE, element_required=True)),
    VersionedField(519, "key_metadata", BINARY),
    VersionedField(520, "first_row_id", LONG, since=3),
)
"""Fields of `manifest_file` (spec, "Manifest Lists")."""


def entry_type(partition: StructType, format_version: int) -> StructType:
    data_file = _fields(DATA_FILE_FIELDS, format_version, {PARTITION_FIELD_ID: partition})
    return _fields(ENTRY_FIELDS, format_version, {DATA_FILE_FIELD_ID: data_file})


def manifest_file_type(format_version: int) -> StructType:
    return _fields(MANIFEST_FILE_FIELDS, format_version, {})


def _fields(fields: Iterable[VersionedField], version: int, types: Mapping[int, Type]) -> StructType:
    return StructType(
        tuple(
            NestedField(
                field_id=f.field_id,
                name=f.name,
                type=types.get(f.field_id, f.type),
                required=f.required_since is not None and f.required_since <= version,
            )
            for f in fields
            if f.since <= version <= f.until
        )
    )


def assign_row_ids(manifests: Iterable[ManifestFile], next_row_id: int) -> tuple[list[ManifestFile], int]:
    """Give data manifests without a `first_row_id` one; also returns the next row id (spec, "First Row ID Assignment").

    Readers give the ids to files in order, so that a retried commit need not rewrite manifests. A manifest gets ids for all
    its live rows, since any of its files may have none of its own.
    """
    numbered = []
    for manifest in manifests:
        if manifest.content is ManifestContent.DATA and manifest.first_row_id is None:
            rows = (manifest.added_rows_count, manifest.existing_rows_count)
            if rows[0] is None or rows[1] is None:
                raise IcekeepBug(f"manifest {manifest.manifest_path!r} has no row counts; row ids cannot be assigned")
            manifest = msgspec.structs.replace(manifest, first_row_id=next_row_id)
            next_row_id += rows[0] + rows[1]
        numbered.append(manifest)
    return numbered, next_row_id


class RowIdInheritance:
    """Gives the files of a manifest, in order, the `first_row_id` that they leave null (spec, "First Row ID Inheritance").

    Without one of the manifest, as before an upgrade to version 3, its files have none. Deleted entries stay as they are
    and use up no ids.
    """

    def __init__(self, manifest: ManifestFile) -> None:
        self._next = manifest.first_row_id

    def __call__(self, status: Status, file: DataFile) -> DataFile:
        if file.content is not FileContent.DATA or self._next is None:
            return file if file.first_row_id is None else msgspec.structs.replace(file, first_row_id=None)
        if status is Status.DELETED or file.first_row_id is not None:
            return file
        file = msgspec.structs.replace(file, first_row_id=self._next)
        self._next += file.record_count
        return file


class PartitionSummarizer:
    """The `field_summary` of each partition field over the tuples that are added (spec, "Manifest Lists")."""

    def __init__(self, types: Sequence[Type]) -> None:
        self._types = types
        self._has_null, self._has_nan = [False] * len(types), [False] * len(types)
        self._bounds: list[tuple[Any, Any] | None] = [None] * len(types)
        """The least and the greatest value of each field, each after its place in the order of bounds."""

    def add(self, values: tuple[Any, ...]) -> None:
        for number, (value, bounds) in enumerate(zip(values, self._bounds, strict=True)):
            if value is None:
                self._has_null[number] = True
            elif isinstance(value, float) and math.isnan(value):
                self._has_nan[number] = True
            else:
                placed: tuple[Any, Any] = (_bounds_order(value), value)
                lower, upper = bounds or (placed, placed)
                self._bounds[number] = min(lower, placed), max(upper, placed)

    def summaries(self) -> tuple[FieldSummary, ...]:
        summaries = []
        for type_, null, nan, bounds in zip(self._types, self._has_null, self._has_nan, self._bounds, strict=True):
            lower, upper = (None, None) if bounds is None else (value_to_bytes(type_, bound) for _, bound in bounds)
            summaries.append(
                FieldSummary(
                    contains_null=null,
                    contains_nan=nan if type_ in FLOATING_TYPES else None,
                    lower_bound=lower,
                    upper_bound=upper,
                )
            )
        return tuple(summaries)


def _bounds_order(value: Any) -> Any:
    # -0.0 sorts below 0.0: a bound must not hide it (spec, "Manifest Lists", note 2).
    if isinstance(value, float):
        return value, math.copysign(1.0, value)
    # Java's readers would skip files if UUIDs were bounded by their bytes.
    return java_order(value) if isinstance(value, UUID) else value
