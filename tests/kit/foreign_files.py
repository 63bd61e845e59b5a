"""Files in memory for PyIceberg, and manifests and manifest lists that it reads and writes there; data files on disk."""

import io
import json
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyiceberg.manifest as foreign
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, write_file
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.partitioning import PartitionSpec as ForeignSpec
from pyiceberg.schema import Schema as ForeignSchema
from pyiceberg.table import FileScanTask, WriteTask
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record

from icekeep.spec.manifests.structs import (
    DataFile,
    FieldSummary,
    FileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Status,
)
from icekeep.spec.partitioning import spec_to_json
from icekeep.spec.schema import Schema, schema_to_json
from icekeep.spec.types import StructType
from kit.columns import pyiceberg_schema
from kit.manifests import SNAPSHOT_ID, spec_and_schema

_FILE_FIELDS = ("file_path", "record_count", "file_size_in_bytes", "key_metadata", "sort_order_id")
_MAPS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
_LISTS = ("split_offsets", "equality_ids")
_MANIFEST_FIELDS = (
    "manifest_path", "manifest_length", "partition_spec_id", "added_snapshot_id", "sequence_number",
    "min_sequence_number", "added_files_count", "existing_files_count", "deleted_files_count", "added_rows_count",
    "existing_rows_count", "deleted_rows_count", "key_metadata",
)  # fmt: skip
_SUMMARY_FIELDS = ("contains_null", "contains_nan", "lower_bound", "upper_bound")


class MemoryFileIO(FileIO):
    """PyIceberg's door to files that are bytes in a dictionary."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        super().__init__({})
        self.files = {} if files is None else files

    def new_input(self, location: str) -> InputFile:
        return _File(location, self.files)

    def new_output(self, location: str) -> OutputFile:
        return _File(location, self.files)

    def delete(self, location: Any) -> None:
        del self.files[location]


def read_with_pyiceberg(files: dict[str, bytes], list_location: str) -> list[tuple[ManifestFile, list[ManifestEntry]]]:
    """The manifests of a list and their entries, as PyIceberg understands them, in our structs."""
    file_io = MemoryFileIO(files)
    manifests = foreign.read_manifest_list(file_io.new_input(list_location))
    return [(our_manifest(m), our_entries(m.fetch_manifest_entry(file_io, discard_deleted=False))) for m in manifests]


def read_list_with_pyiceberg(files: dict[str, bytes], location: str) -> list[ManifestFile]:
    """The manifests of a list alone."""
    return [our_manifest(m) for m in foreign.read_manifest_list(MemoryFileIO(files).new_input(location))]


def write_with_pyiceberg(
    location: str, entries: Sequence[ManifestEntry], partition: StructType, *, version: Any = 2, codec: str = "deflate"
) -> tuple[bytes, foreign.ManifestFile]:
    """A manifest of `SNAPSHOT_ID` that PyIceberg has written, and what it says of it."""
    spec, schema = spec_and_schema(partition)
    their_schema = ForeignSchema.model_validate_json(json.dumps(schema_to_json(schema)))
    their_spec = ForeignSpec.model_validate_json(json.dumps(spec_to_json(spec)))
    file_io = MemoryFileIO()
    output = file_io.new_output(location)
    with foreign.write_manifest(version, their_spec, their_schema, output, SNAPSHOT_ID, codec) as writer:
        for entry in entries:
            writer.add_entry(_their_entry(entry))
    return file_io.files[location], writer.to_manifest_file()


def write_list_with_pyiceberg(
    location: str, manifests: list[foreign.ManifestFile], *, version: Any = 2, codec: str = "deflate"
) -> bytes:
    """The manifest list of `SNAPSHOT_ID` at sequence number 5 that PyIceberg has written."""
    file_io = MemoryFileIO()
    output = file_io.new_output(location)
    with foreign.write_manifest_list(version, output, SNAPSHOT_ID, 3, 5, codec) as writer:
        writer.add_manifests(manifests)
    return file_io.files[location]


def our_manifest(manifest: foreign.ManifestFile) -> ManifestFile:
    summaries = manifest.partitions
    return ManifestFile(
        **{name: getattr(manifest, name) for name in _MANIFEST_FIELDS},
        content=ManifestContent(manifest.content),
        partitions=None
        if summaries is None
        else tuple(FieldSummary(**{name: getattr(s, name) for name in _SUMMARY_FIELDS}) for s in summaries),
    )


def our_entries(entries: Iterable[foreign.ManifestEntry]) -> list[ManifestEntry]:
    return [
        ManifestEntry(
            status=Status(entry.status),
            data_file=_our_file(entry.data_file),
            snapshot_id=entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
        )
        for entry in entries
    ]


def _our_file(file: foreign.DataFile) -> DataFile:
    return DataFile(
        **{name: getattr(file, name) for name in _FILE_FIELDS},
        **{name: None if (v := getattr(file, name)) is None else dict(v) for name in _MAPS},
        **{name: None if (v := getattr(file, name)) is None else tuple(v) for name in _LISTS},
        file_format=file.file_format.value,
        content=FileContent(file.content),
        partition=tuple(file.partition[i] for i in range(len(file.partition))),
        spec_id=file.spec_id,
    )


def _their_entry(entry: ManifestEntry) -> foreign.ManifestEntry:
    file = entry.data_file
    lists = {name: None if (v := getattr(file, name)) is None else list(v) for name in _LISTS}
    theirs = foreign.DataFile.from_args(
        **{name: getattr(file, name) for name in (*_FILE_FIELDS, *_MAPS)},
        **lists,
        file_format=foreign.FileFormat(file.file_format),
        content=foreign.DataFileContent(file.content),
        partition=Record(*file.partition),
    )
    return foreign.ManifestEntry.from_args(
        status=foreign.ManifestEntryStatus(entry.status),
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=theirs,
    )


def read_data_with_pyiceberg(
    files: Iterable[DataFile], schema: Schema, location: str, deletes: Sequence[DataFile] = ()
) -> pa.Table:
    """The rows of data files on disk as PyIceberg reads them into a schema, less what position delete files remove."""
    scan = ArrowScan(_their_metadata(schema, location), PyArrowFileIO(), pyiceberg_schema(schema), AlwaysTrue())
    theirs = {_their_file(delete) for delete in deletes}
    return scan.to_table([FileScanTask(_their_file(file), theirs) for file in files])


def _their_file(file: DataFile) -> foreign.DataFile:
    theirs = foreign.DataFile.from_args(
        content=foreign.DataFileContent(file.content),
        file_path=file.file_path,
        file_format=foreign.FileFormat(file.file_format),
        partition=Record(),
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
    )
    theirs.spec_id = 0
    return theirs


def write_data_with_pyiceberg(table: pa.Table, schema: Schema, location: str, **properties: str) -> foreign.DataFile:
    """A Parquet file on disk that PyIceberg writes of rows in the columns of a schema."""
    task = WriteTask(
        write_uuid=UUID(int=1), task_id=0, record_batches=table.to_batches(), schema=pyiceberg_schema(schema)
    )
    (file,) = write_file(PyArrowFileIO(), _their_metadata(schema, location, **properties), iter([task]))
    return file


def _their_metadata(schema: Schema, location: str, **properties: str) -> TableMetadata:
    properties = {"format-version": "2", **properties}
    return new_table_metadata(
        pyiceberg_schema(schema), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, location, properties
    )


class _File(InputFile, OutputFile):
    def __init__(self, location: str, files: dict[str, bytes]) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        return len(self._files[self._location])

    def exists(self) -> bool:
        return self._location in self._files

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._files[self._location])

    def to_input_file(self) -> InputFile:
        return self

    def create(self, overwrite: bool = False) -> Any:
        return _Stream(self._location, self._files)


class _Stream(io.BytesIO):
    def __init__(self, location: str, files: dict[str, bytes]) -> None:
        super().__init__()
        self._location, self._files = location, files

    def close(self) -> None:
        if not self.closed:
            self._files[self._location] = self.getvalue()
        super().close()
