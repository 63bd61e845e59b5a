"""Mends of the table's metadata: counters that are too low, statistics of what is not there."""

from collections.abc import Collection

import msgspec

from icekeep.catalog.base import Table
from icekeep.maintenance.checking.classes import CLASSES
from icekeep.maintenance.checking.faults import Fault
from icekeep.maintenance.checking.file_classes import STATISTICS_FILE_MISSING
from icekeep.maintenance.checking.metadata_classes import NEXT_ROW_ID_TOO_LOW
from icekeep.maintenance.repairing.plan import Mend
from icekeep.maintenance.repairing.reasons import NOT_FOUND, CannotMendError
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import low_counters

COUNTERS = {108: "last_column_id", 109: "last_partition_id", NEXT_ROW_ID_TOO_LOW: "next_row_id"}
_STATISTICS = frozenset((124, STATISTICS_FILE_MISSING))
METADATA = frozenset(COUNTERS) | _STATISTICS


class MetadataWork(msgspec.Struct):
    """What is changed in the metadata alone; as `Planned` has it."""

    counters: set[str] = set()
    statistics: set[int] = set()
    partition_statistics: set[int] = set()


def mend_metadata(table: Table, fault: Fault, work: MetadataWork) -> Mend:
    """Plan what is to be changed; raises `CannotMendError` where nothing can be, or need not be."""
    action = _counter(table, fault, work) if fault.number in COUNTERS else _statistics(table, fault, work)
    return Mend(fault_id=fault.number, name=CLASSES[fault.number].name, branch="", where=fault.where, action=action)


def why_no_snapshots(table: Table, numbers: Collection[int]) -> str | None:
    """Why no snapshot may be added once these kinds of faults are mended; `None` where one may.

    Each takes its row ids from the counter: where that is too low they are those of other rows.
    """
    is_low = any(one.name == COUNTERS[NEXT_ROW_ID_TOO_LOW] for one in low_counters(table.metadata))
    if not is_low or (NEXT_ROW_ID_TOO_LOW in numbers and table.catalog.compares_metadata):
        return None
    return f"next-row-id is too low, and a new snapshot would give out row ids twice: mend fault {NEXT_ROW_ID_TOO_LOW} first"


def _counter(table: Table, fault: Fault, work: MetadataWork) -> str:
    name = COUNTERS[fault.number]
    least = {one.name: one.least for one in low_counters(table.metadata)}.get(name)
    if least is None:
        raise CannotMendError(NOT_FOUND)
    if not table.catalog.compares_metadata:
        raise CannotMendError(f"catalog {table.catalog.name!r} applies its own updates, and none raises {_shown(name)}")
    work.counters.add(name)
    return f"{_shown(name)} {least} in place of {getattr(table.metadata, name)}"


def _statistics(table: Table, fault: Fault, work: MetadataWork) -> str:
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
        raise CannotMendError(NOT_FOUND)
    if fault.number == STATISTICS_FILE_MISSING:
        info = table.storage.head(found.statistics_path)
        if info is not None and info.size_bytes == found.file_size_in_bytes:
            raise CannotMendError(NOT_FOUND)
    (work.partition_statistics if is_partition else work.statistics).add(found.snapshot_id)
    return f"snapshot {found.snapshot_id} has no {fault.facts['kind']} any more; planners go without"


def _shown(name: str) -> str:
    return name.replace("_", "-")
