"""Entries of data files and of delete files, as the tasks that decode manifests bring them; in files of Arrow's, no table.

What makes the number-th delete file is said by the kind: a deletion vector for each data file; deletes of positions and by values
in turn, for a partition, of whose files half are old enough; or deletes of positions in some of fifty data files whose paths are
neighbours.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from bench.tables.kept import Kept
from icekeep.planning.manifests import ENTRIES
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.schema import DELETE_FILE_PATH

TASKS = 8
_BATCH_ROWS, _NUMBERS = 10_000, 1_000
_COLUMNS = [field for field in ENTRIES if field.name not in ("column_sizes", "value_counts", "null_value_counts")]
SCHEMA = pa.schema([field for field in _COLUMNS if field.name != "nan_value_counts"])


class DeleteEntries(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How many files and delete files of a kind there are, in how many partitions; with one they are unpartitioned."""

    kind: Literal["vectors", "partitions", "bounds"]
    files: int
    partitions: int
    deletes: int

    read: ClassVar[tuple[str, ...]] = ()
    is_restored: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return f"reaching-{self.kind}-{self.deletes}-to-{self.files}-in-{self.partitions}"

    @property
    def small(self) -> "DeleteEntries":
        return replace(self, files=2000, partitions=min(10, self.partitions), deletes=2000 * self.deletes // self.files)


def make(table: Kept) -> dict[str, int]:
    """Write a file of each kind's entries for each task."""
    shape = table.shape
    delete = _DELETES[shape.kind]
    _write(table.directory / "data", lambda number: _data_file(number, shape), shape.files)
    _write(table.directory / "deletes", lambda number: delete(number, shape), shape.deletes)
    return {"files": shape.files, "deletes": shape.deletes}


def _write(directory: Path, make_row: Callable[[int], dict[str, Any]], count: int) -> None:
    directory.mkdir()
    for task in range(TASKS):
        rows = [make_row(number) for number in range(task, count, TASKS)]
        with pa.ipc.new_file(directory / f"{task}.arrow", SCHEMA) as writer:
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA), _BATCH_ROWS)


def _data_file(number: int, shape: DeleteEntries) -> dict[str, Any]:
    place, age = number % shape.partitions, number * 7 % _NUMBERS + 1
    return _file(number, FileContent.DATA, _path_of(number), place, shape, sequence_number=age)


def _path_of(number: int) -> str:
    return f"s3://bucket/warehouse/db/table/data/{number:09}-{number * 2654435761 % 2**32:08x}-00001.parquet"


def _vector(number: int, shape: DeleteEntries) -> dict[str, Any]:
    blob = {"content_offset": 4 + number % 100 * 60, "content_size_in_bytes": 56, "file_format": "puffin"}
    path = f"s3://bucket/warehouse/db/table/data/{number // 100:09}-deletes.puffin"
    place = number % shape.partitions
    blob |= {"referenced_data_file": _path_of(number), "sequence_number": _NUMBERS + 1}
    return _file(number, FileContent.POSITION_DELETES, path, place, shape, **blob)


def _of_partition(number: int, shape: DeleteEntries) -> dict[str, Any]:
    is_equality = number // shape.partitions % 2
    content = FileContent.EQUALITY_DELETES if is_equality else FileContent.POSITION_DELETES
    facts = {"sequence_number": number * 13 % _NUMBERS + 1, "equality_ids": [1, 2] if is_equality else None}
    return _file(number, content, f"{_path_of(number)}.deletes", number % shape.partitions, shape, **facts)


def _bounded(number: int, shape: DeleteEntries) -> dict[str, Any]:
    first = number * 997 % shape.files
    bounds = {
        name: [(DELETE_FILE_PATH.field_id, _path_of(at).encode())]
        for name, at in (("lower_bounds", first), ("upper_bounds", first + 49))
    }
    path, facts = f"{_path_of(number)}.deletes", {"sequence_number": _NUMBERS + 1, **bounds}
    return _file(number, FileContent.POSITION_DELETES, path, number % shape.partitions, shape, **facts)


def _file(
    number: int, content: FileContent, path: str, place: int, shape: DeleteEntries, **facts: Any
) -> dict[str, Any]:
    is_partitioned = shape.partitions > 1
    return {
        "manifest_path": "s3://bucket/warehouse/db/table/metadata/m.avro",
        "spec_id": int(is_partitioned),
        "partition": f"day-{place:05}".encode() if is_partitioned else b"",
        "status": 1,
        "snapshot_id": 1,
        "file_sequence_number": facts["sequence_number"],
        "content": int(content),
        "file_path": path,
        "file_format": "PARQUET",
        "record_count": 1000 + number % 10,
        "file_size_in_bytes": 1_000_000 + number,
        **facts,
    }


_DELETES = {"vectors": _vector, "partitions": _of_partition, "bounds": _bounded}
