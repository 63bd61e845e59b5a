"""What new delete files of a table are like: where they lie, their format, and how many data files one is for.

Table properties `write.delete.format.default`, `write.delete.granularity`.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Literal

from icekeep.formats.puffin.deletion_vectors import FILE_FORMAT as PUFFIN
from icekeep.formats.write_options import write_options
from icekeep.spec.layout import data_layout
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import partition_path
from icekeep.spec.table_properties import choice

Granularity = Literal["file", "partition"]
"""Whether a position delete file is for one data file or for all of a partition."""

_FORMATS = {name.lower(): name for name in ("PARQUET", "ORC", "AVRO")}
_GRANULARITIES: Mapping[str, Granularity] = {"file": "file", "partition": "partition"}


def delete_format(properties: Mapping[str, str]) -> str:
    """The format of new position and equality delete files: `PARQUET`, `ORC` or `AVRO`; that of data files by default.

    Raises:
        PropertyError: a table property names another one.
    """
    if (key := "write.delete.format.default") not in properties:
        return write_options(properties).file_format
    return choice(properties, key, properties[key], _FORMATS)


def delete_granularity(properties: Mapping[str, str]) -> Granularity:
    """What new position delete files are for: single data files where the table does not say, as in Iceberg's Spark writers.

    Raises:
        PropertyError: the table property names something else.
    """
    return choice(properties, "write.delete.granularity", "file", _GRANULARITIES)


class DeleteFileNames:
    """Locations of new delete files, where the table's data files go, named as Iceberg's writers name theirs."""

    def __init__(
        self, metadata: TableMetadata, operation_id: str, partition_id: int = 0, task_attempt_id: int = 0
    ) -> None:
        """Args:
        operation_id: that no other run has, such as a UUID.
        partition_id, task_attempt_id: of the task that writes, where several do.
        """
        self._metadata = metadata
        self._layout = data_layout(metadata.location, metadata.properties)
        self._names: Iterator[str] = (
            f"{partition_id:05d}-{task_attempt_id}-{operation_id}-{number:05d}-deletes" for number in count(1)
        )

    def location(self, spec_id: int, partition: tuple[Any, ...], file_format: str) -> str:
        """The location of the next file; that of vectors of several partitions is in none (`location_of_vectors`)."""
        metadata = self._metadata
        directory = partition_path(metadata.specs_by_id[spec_id], metadata.schema, partition)
        return self._layout.location(f"{next(self._names)}.{file_format.lower()}", directory)

    def location_of_vectors(self) -> str:
        """The location of the next Puffin file; its vectors may be for files of any partition."""
        return self._layout.location(f"{next(self._names)}.{PUFFIN.lower()}")
