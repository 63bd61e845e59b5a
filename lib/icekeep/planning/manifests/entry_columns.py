"""Batches of records as a manifest stores them -> batches of entries: `spec.manifests.decode` for whole columns.

Only what is plainly right is accepted. Everything else is left to that module, which knows what to say about it.
"""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.planning.manifests.avro_decoder import Layout, NotReadError, flat_schema
from icekeep.planning.manifests.entry_schema import STORED
from icekeep.planning.manifests.partition_columns import partition_of_stored
from icekeep.spec.manifests.decode import record_field, stored_fields
from icekeep.spec.manifests.structs import (
    DATA_FILE_FIELD_ID,
    DATA_FILE_FIELDS,
    ENTRY_FIELDS,
    PARTITION_FIELD_ID,
    FileContent,
    ManifestContent,
    ManifestFile,
    Status,
)
from icekeep.spec.types import StructType

_REQUIRED = ("status", "file_path", "file_format", "record_count", "file_size_in_bytes")
_STATUSES = [int(status) for status in Status]
_CONTENTS = [int(content) for content in FileContent]
_MAX_LONG = (1 << 63) - 1


class StoredColumns:
    """What depends on the Avro schema of manifests, on their partition type and on the columns that are wanted."""

    def __init__(self, schema_json: bytes, partition: StructType, wanted: Collection[str]) -> None:
        """Prepare for manifests with a schema, given as JSON; `wanted` are names of `STORED`, and "partition".

        Raises:
            NotReadError: records of this schema need a closer look.
        """
        try:
            self._prepare(msgspec.json.decode(schema_json), partition, wanted)
        except (KeyError, TypeError, ValueError) as error:
            raise NotReadError(str(error)) from error

    def _prepare(self, schema: Any, partition: StructType, wanted: Collection[str]) -> None:
        data_file, file_schema = record_field(schema, DATA_FILE_FIELD_ID)
        _, partition_schema = record_field(file_schema, PARTITION_FIELD_ID)
        stored_partition = stored_fields(partition_schema)
        if any(field.field_id not in stored_partition for field in partition.fields):
            raise NotReadError("it lacks a partition field")
        self._partition = partition
        self._partition_names = [stored_partition[f.field_id]["name"] for f in partition.fields]
        self._has_partition = "partition" in wanted
        # Beside what is wanted, what tells whether an entry is right.
        self._wanted = {*wanted, *_REQUIRED, "content", "sequence_number"}
        needed = self._wanted if self._partition_names else self._wanted - {"partition"}
        flat, entry, file = flat_schema(schema, data_file)
        known = [(f, stored_fields(schema), entry) for f in ENTRY_FIELDS]
        known += [(f, stored_fields(file_schema), file) for f in DATA_FILE_FIELDS]
        self._names = {
            f.name: names[stored[f.field_id]["name"]]
            for f, stored, names in known
            if f.field_id in stored and f.name in needed
        }
        self.layout = Layout(flat, tuple(self._names.values()))

    def of(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The wanted columns as entries store them, and those that must be there; raises `NotReadError`."""
        stored = {name: batch[flat_name] for name, flat_name in self._names.items()}
        columns = {
            field.name: _column(stored.get(field.name), field, batch.num_rows)
            for field in STORED
            if field.name in self._wanted
        }
        for name in _REQUIRED:
            if columns[name].null_count:
                raise NotReadError(f"an entry lacks {name!r}")
        columns["content"] = pc.fill_null(columns["content"], 0)
        if self._has_partition:
            raw = stored.get("partition")
            if raw is not None and raw.null_count:
                raise NotReadError("an entry has no partition")
            columns["partition"] = partition_of_stored(raw, self._partition_names, self._partition, batch.num_rows)
        return columns


class StoredEntries:
    """Makes entries of what manifests of one schema, spec and content store, with what they leave to be inherited."""

    def __init__(self, columns: StoredColumns, manifests: Sequence[ManifestFile], wanted: pa.Schema) -> None:
        """Prepare for the batches of some manifests, in their order; `wanted` are the columns to make."""
        self._columns_of, self._manifests, self._schema = columns, manifests, wanted
        self._next_row_ids = [manifest.first_row_id for manifest in manifests]
        self._counts = np.zeros((len(manifests), len(Status)), dtype=np.int64)

    def of(self, batch: pa.RecordBatch, lengths: Sequence[int]) -> pa.RecordBatch:
        """The wanted columns of the entries that are stored as `batch`, `lengths` of them in each of the manifests.

        Raises:
            NotReadError: something about them needs a closer look.
        """
        try:
            columns = self._columns(batch, lengths)
            return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise NotReadError(str(error)) from error

    def _columns(self, batch: pa.RecordBatch, lengths: Sequence[int]) -> dict[str, pa.Array]:
        columns = self._columns_of.of(batch)
        manifest_numbers = np.repeat(np.arange(len(lengths)), lengths)
        status = columns["status"].to_numpy()
        self._check_kinds(manifest_numbers, status, columns["content"].to_numpy())
        self._inherit(columns, pa.array(manifest_numbers), pa.array(status == Status.ADDED))
        if "first_row_id" in columns:
            columns["first_row_id"] = self._row_ids(columns, status != Status.DELETED, lengths)
        if "manifest_path" in self._schema.names:
            columns["manifest_path"] = self._of_manifests(pa.array(manifest_numbers), "manifest_path", pa.string())
        return columns

    def _of_manifests(self, manifest_numbers: pa.Array, name: str, type_: pa.DataType) -> pa.Array:
        """For each entry what the row of its manifest says."""
        return pa.array([getattr(manifest, name) for manifest in self._manifests], type_).take(manifest_numbers)

    def _check_kinds(self, manifest_numbers: np.ndarray, status: np.ndarray, content: np.ndarray) -> None:
        if not np.isin(status, _STATUSES).all() or not np.isin(content, _CONTENTS).all():
            raise NotReadError("an entry has a status or content that the spec does not know")
        if ((content == FileContent.DATA) != (self._manifests[0].content is ManifestContent.DATA)).any():
            raise NotReadError("a file is not of the kind that the manifest tracks")
        counted = np.bincount(manifest_numbers * len(Status) + status, minlength=self._counts.size)
        self._counts += counted.reshape(self._counts.shape)

    def _inherit(self, columns: dict[str, pa.Array], manifest_numbers: pa.Array, is_added: pa.Array) -> None:
        """Fill in what entries leave null (spec, "Sequence Number Inheritance")."""
        number = self._of_manifests(manifest_numbers, "sequence_number", pa.int64())
        inherits = pc.or_(is_added, pc.equal(number, 0))
        unnumbered = pc.and_not(pc.is_null(columns["sequence_number"]), inherits)
        if pc.any(unnumbered).as_py():
            raise NotReadError("an entry that is not added has no sequence number")
        columns["sequence_number"] = pc.coalesce(columns["sequence_number"], number)
        if "snapshot_id" in columns:
            added_by = self._of_manifests(manifest_numbers, "added_snapshot_id", pa.int64())
            columns["snapshot_id"] = pc.coalesce(columns["snapshot_id"], added_by)
        if "file_sequence_number" in columns:
            inherited = pc.if_else(inherits, number, pa.scalar(None, pa.int64()))
            columns["file_sequence_number"] = pc.coalesce(columns["file_sequence_number"], inherited)

    def _row_ids(self, columns: dict[str, pa.Array], is_live: np.ndarray, lengths: Sequence[int]) -> pa.Array:
        """First row ids as `row_lineage.RowIdInheritance` gives them, manifest by manifest."""
        stored = columns["first_row_id"]
        if self._manifests[0].content is not ManifestContent.DATA:
            return pa.nulls(len(stored), pa.int64())
        records, parts, start = columns["record_count"].to_numpy(), [], 0
        for number, length in enumerate(lengths):
            end = start + length
            parts.append(self._row_ids_of(number, stored.slice(start, length), is_live[start:end], records[start:end]))
            start = end
        return pa.concat_arrays(parts)

    def _row_ids_of(self, number: int, stored: pa.Array, is_live: np.ndarray, records: np.ndarray) -> pa.Array:
        next_id = self._next_row_ids[number]
        if next_id is None:
            return pa.nulls(len(stored), pa.int64())
        inherits = is_live & stored.is_null().to_numpy(zero_copy_only=False)
        rows = np.where(inherits, records, 0)
        if len(rows) and (rows.min() < 0 or int(rows.max()) * len(rows) + next_id > _MAX_LONG):
            raise NotReadError("row ids may be out of range")
        after = next_id + np.cumsum(rows)
        self._next_row_ids[number] = int(after[-1]) if len(rows) else next_id
        return pc.if_else(pa.array(inherits), pa.array(after - rows), stored)

    def check_counts(self) -> None:
        """See, after the last entry, that there were as many as the manifest list says; raises as `of`."""
        for manifest, counts in zip(self._manifests, self._counts.tolist(), strict=True):
            recorded = {
                Status.ADDED: manifest.added_files_count,
                Status.EXISTING: manifest.existing_files_count,
                Status.DELETED: manifest.deleted_files_count,
            }
            if any(count not in (None, counts[status]) for status, count in recorded.items()):
                raise NotReadError("it holds other counts of entries than its manifest list says")


def _column(raw: pa.Array | None, field: pa.Field, length: int) -> pa.Array:
    if raw is None:
        return pa.nulls(length, field.type)
    if pa.types.is_map(field.type):
        return _map(raw, field.type)
    if pa.types.is_integer(field.type) and not pa.types.is_integer(raw.type):
        raise NotReadError(f"field {field.name!r} is stored as {raw.type}")
    return raw.cast(field.type)


def _map(pairs: pa.ListArray, type_: pa.MapType) -> pa.MapArray:
    """A list of pairs seen as a map: both are laid out alike."""
    records = pairs.values
    keys, values = (records.field(i).cast(part) for i, part in enumerate((type_.key_type, type_.item_type)))
    if records.null_count or keys.null_count or values.null_count:
        raise NotReadError("a map has a key or a value that is null")
    _require_different(keys.to_numpy(), pairs.offsets.to_numpy())
    entries = pa.StructArray.from_arrays([keys, values], fields=[type_.key_field, type_.item_field])
    return pa.Array.from_buffers(
        type_, len(pairs), pairs.buffers()[:2], null_count=pairs.null_count, offset=pairs.offset, children=[entries]
    )


def _require_different(keys: np.ndarray, offsets: np.ndarray) -> None:
    """See that no map has a key twice; writers mostly keep them in order."""
    rises = np.diff(keys) > 0
    starts = offsets[(offsets > 0) & (offsets < len(keys))]
    rises[starts - 1] = True
    if rises.all():
        return
    rows = np.searchsorted(offsets, np.arange(len(keys)), side="right")
    pairs = (rows.astype(np.int64) << 32) + keys
    if len(np.unique(pairs)) < len(pairs):
        raise NotReadError("a map has a key twice")
