"""Fixes of the table's metadata alone: counters that are too low, statistics of missing snapshots or files."""

from collections.abc import Collection, Mapping

import msgspec

from icekeep.catalog.base import Table
from icekeep.maintenance.check.faults import Fault, FaultId
from icekeep.maintenance.repair.plan import NOT_FOUND, CannotRepairError, Fix
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import low_counters

COUNTERS: Mapping[int, str] = {
    FaultId.LAST_COLUMN_ID_TOO_LOW: "last_column_id",
    FaultId.LAST_PARTITION_ID_TOO_LOW: "last_partition_id",
    FaultId.NEXT_ROW_ID_TOO_LOW: "next_row_id",
}
IN_METADATA = frozenset((*COUNTERS, FaultId.STATISTICS_OF_MISSING_SNAPSHOT, FaultId.STATISTICS_FILE_MISSING))


class MetadataWork(msgspec.Struct):
    """What is changed in the metadata alone; as `Planned` has it."""

    counters: set[str] = set()
    statistics: set[int] = set()
    partition_statistics: set[int] = set()


def fix_metadata(table: Table, fault: Fault, work: MetadataWork) -> list[Fix]:
    """Plan what is to be changed; raises `CannotRepairError` where nothing can or need be changed."""
    if fault.number not in COUNTERS:
        return [_fix_statistics(table, fault, work)]
    name = COUNTERS[fault.number]
    least = low_counters(table.metadata).get(name)
    shown = name.replace("_", "-")
    if least is None:
        raise CannotRepairError(NOT_FOUND)
    if not table.catalog.compares_metadata:
        raise CannotRepairError(f"catalog {table.catalog.name!r} applies its own updates, and none raises {shown}")
    work.counters.add(name)
    return [Fix(action=f"{shown} {least} in place of {getattr(table.metadata, name)}")]


def _fix_statistics(table: Table, fault: Fault, work: MetadataWork) -> Fix:
    """The entries of one kind of one snapshot go, which is what an update can say."""
    metadata = table.metadata
    is_partition = "partition" in str(fault.facts["kind"])
    files: tuple[StatisticsFile | PartitionStatisticsFile, ...] = (
        metadata.partition_statistics if is_partition else metadata.statistics
    )
    path = fault.facts.get("statistics_path", fault.facts.get("file_path"))
    # Several snapshots may name one file.
    snapshot_id = fault.facts.get("snapshot_id", fault.snapshot_id)
    found = next((one for one in files if (one.snapshot_id, one.statistics_path) == (snapshot_id, path)), None)
    if found is None:
        raise CannotRepairError(NOT_FOUND)
    if fault.number == FaultId.STATISTICS_FILE_MISSING:
        info = table.storage.head(found.statistics_path)
        if info is not None and info.size_bytes == found.file_size_in_bytes:
            raise CannotRepairError(NOT_FOUND)
    (work.partition_statistics if is_partition else work.statistics).add(found.snapshot_id)
    return Fix(action=f"snapshot {found.snapshot_id} has no {fault.facts['kind']} any more; planners go without")


def why_no_snapshots(table: Table, numbers: Collection[int]) -> str | None:
    """Why no snapshot may be added once these kinds of faults are fixed; `None` where one may.

    Each takes its row ids from the counter: where that is too low they are those of other rows.
    """
    number = FaultId.NEXT_ROW_ID_TOO_LOW
    is_low = COUNTERS[number] in low_counters(table.metadata)
    if not is_low or (number in numbers and table.catalog.compares_metadata):
        return None
    return f"next-row-id is too low, and a new snapshot would give out row ids twice: repair fault {number} first"
