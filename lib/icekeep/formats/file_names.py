"""Names of new files, as in Iceberg's Spark writers: `<partition_id>-<task_attempt_id>-<operation_id>-<count>`.

Two attempts at one task need different `task_attempt_id`s, and two runs different `operation_id`s, such as UUIDs: only the files
of one attempt are committed, and with equal names another could overwrite them.
"""

from collections.abc import Mapping
from itertools import count

from icekeep.spec.properties import data_layout


def attempt_name(operation_id: str, partition_id: int = 0, task_attempt_id: int = 0) -> str:
    """The start of the names of all files of an attempt at a task."""
    return f"{partition_id:05d}-{task_attempt_id}-{operation_id}"


class FileNames:
    """Locations of an attempt's new files, where the table's properties put data files."""

    def __init__(self, attempt: str, table_location: str, properties: Mapping[str, str]) -> None:
        """`attempt` is an `attempt_name`; raises as `data_layout`."""
        self._attempt, self._layout = attempt, data_layout(table_location, properties)
        self._numbers = count(1)

    def location(self, suffix: str, partition_path: str = "") -> str:
        """The location of the next file; one for several partitions has no `partition_path`."""
        return self._layout.location(f"{self._attempt}-{next(self._numbers):05d}{suffix}", partition_path)
