"""Set and remove the statistics files of snapshots (spec, "Table Statistics", "Partition Statistics").

A snapshot has one file of each kind. Files are neither written nor deleted here; one that is no longer named is garbage.
"""

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.spec.attachment_updates import (
    RemovePartitionStatistics,
    RemoveStatistics,
    SetPartitionStatistics,
    SetStatistics,
)
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import Update


class ChangeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics files to set, each in place of the one that its snapshot has, and snapshots to have none.

    A snapshot that is not there any more is a `NotFoundError` for a file, and fine for a removal.
    """

    updates: tuple[StatisticsFile, ...] = ()
    removals: tuple[int, ...] = ()

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        _check_snapshots(base, self.updates)
        held = {file.snapshot_id for file in base.statistics}
        new = (SetStatistics(file) for file in self.updates if file not in base.statistics)
        gone = (RemoveStatistics(snapshot_id) for snapshot_id in self.removals if snapshot_id in held)
        return (*new, *gone)


class ChangePartitionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Partition statistics files to set and to remove, by the rules of `ChangeStatistics`."""

    updates: tuple[PartitionStatisticsFile, ...] = ()
    removals: tuple[int, ...] = ()

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        _check_snapshots(base, self.updates)
        held = {file.snapshot_id for file in base.partition_statistics}
        new = (SetPartitionStatistics(file) for file in self.updates if file not in base.partition_statistics)
        gone = (RemovePartitionStatistics(snapshot_id) for snapshot_id in self.removals if snapshot_id in held)
        return (*new, *gone)


class DropStatistics(msgspec.Struct, frozen=True):
    """The statistics of both kinds of a snapshot to go; where there are none, that is fine."""

    snapshot_id: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        removals = (self.snapshot_id,)
        of_both = (ChangeStatistics(removals=removals), ChangePartitionStatistics(removals=removals))
        return tuple(update for change in of_both for update in change.apply(base, attempt))


def _check_snapshots(base: TableMetadata, files: tuple[StatisticsFile | PartitionStatisticsFile, ...]) -> None:
    for file in files:
        base.snapshot(file.snapshot_id)
