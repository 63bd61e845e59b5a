"""A plan carried out: the metadata first, then one branch after the other, each by a commit of its own."""

from collections.abc import Mapping, Sequence

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt, Change
from icekeep.commit.changes.definitions import ChangeStatistics, RaiseLowCounters
from icekeep.commit.changes.repair_entries import RepairEntries
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.retry import CommitResult, commit
from icekeep.errors import ConflictError
from icekeep.events import Listener
from icekeep.formats.deletes.read import hold_own_path
from icekeep.maintenance.checking.manifest_classes import REACHING_NOTHING
from icekeep.maintenance.repairing.delete_files.merging import Merging
from icekeep.maintenance.repairing.delete_files.sorting import Sorting
from icekeep.maintenance.repairing.lists.list_mends import write_list
from icekeep.maintenance.repairing.metadata_files.metadata_mends import COUNTERS
from icekeep.maintenance.repairing.new_files import Maker, WithNewFiles
from icekeep.maintenance.repairing.older_files.copying import Copying
from icekeep.maintenance.repairing.plan import BranchWork, Mend, Planned
from icekeep.maintenance.repairing.result import RepairedBranch
from icekeep.maintenance.repairing.trash import bring_back
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import Update
from icekeep.storage.base import FileInfo


class Run:
    """One run, and what of it has landed.

    Attributes:
        branches: what was committed to each.
        mended: what has landed.
        table: as the last commit left it.
    """

    def __init__(self, table: Table, run_id: str, spark: SparkSource, listener: Listener) -> None:
        self.table, self.run_id = table, run_id
        self._spark, self._listener = spark, listener
        self.branches: list[RepairedBranch] = []
        self.mended: list[Mend] = []

    def execute(self, table: Table, planned: Planned) -> None:
        """Carry a plan out. A branch on which others are in the way hinders no other.

        Raises:
            ConflictError: what was planned for a branch does not apply any more; the others have landed.
        """
        self.table = table
        mends = planned.plan.mends
        for file in bring_back(table, planned.returns):
            self.mended += [one for one in mends if one.is_put_back and one.where == file.location]
        for new in planned.lists:
            write_list(table, new, SparkManifestReader(self._spark, table.storage))
            self.mended += [one for one in mends if one.is_put_back and one.where == new.location]
        self._metadata(table.metadata, planned, [one for one in mends if not one.branch])
        refusals = []
        for work in planned.works:
            try:
                self._branch(work, [one for one in mends if one.branch == work.branch and not one.is_put_back])
            except ConflictError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    def _metadata(self, read: TableMetadata, planned: Planned, mends: Sequence[Mend]) -> None:
        """Carry out what is changed in the metadata alone; what each commit that lands has mended is noted at once."""
        if planned.counters:
            self._commit(RaiseLowCounters(planned.counters))
            self.mended += [one for one in mends if one.fault_id in COUNTERS]
        if planned.statistics:
            change: Change = ChangeStatistics(removals=tuple(sorted(planned.statistics)))
            files = tuple(file for file in read.statistics if file.snapshot_id in planned.statistics)
            self._commit(StillNamed(change, files))
            self.mended += _of_files(mends, files)
        if planned.partition_statistics:
            change = ChangeStatistics(partition_removals=tuple(sorted(planned.partition_statistics)))
            named = tuple(
                file for file in read.partition_statistics if file.snapshot_id in planned.partition_statistics
            )
            self._commit(StillNamed(change, named))
            self.mended += _of_files(mends, named)

    def _branch(self, work: BranchWork, mends: Sequence[Mend]) -> None:
        """Carry out the work on one branch; each commit that lands is noted at once, with what it has mended."""
        summary = self._summary(work.faults)
        if work.writes_entries:
            change = RepairEntries(
                entries=tuple(work.entries[key] for key in sorted(work.entries)),
                rows=frozenset(work.rows),
                once=frozenset(work.once),
                recounts_totals=work.recounts_totals,
                format_version=work.format_version,
                branch=work.branch,
                summary=summary,
            )
            whole = WithNewFiles(change, self._makers(work))
            self._landed(work, self._commit(StillLost(whole, tuple(sorted(work.gone)), tuple(work.broken.values()))))
            self.mended += [one for one in mends if one.fault_id not in REACHING_NOTHING]
        if work.drops_dangling:
            dropping = RewriteManifests(
                replaced=(),
                added=(),
                drop_dangling_deletes=True,
                proof=hold_own_path,
                branch=work.branch,
                summary=summary,
            )
            self._landed(work, self._commit(dropping))
            self.mended += [one for one in mends if one.fault_id in REACHING_NOTHING]

    def _makers(self, work: BranchWork) -> list[Maker]:
        makers: list[Maker] = []
        if work.merges:
            makers.append(Merging(tuple(work.merges), self.run_id, self.table))
        if work.sorts:
            makers.append(Sorting(work.sorts, self.run_id, self.table))
        if work.replacements:
            makers.append(Copying(work.branch, tuple(work.replacements.values()), self.run_id, self.table))
        return makers

    def _commit(self, change: Change) -> CommitResult:
        reader = SparkManifestReader(self._spark, self.table.storage)
        landed = commit(self.table, change, reader=reader, listener=self._listener)
        self.table = landed.table
        return landed

    def _landed(self, work: BranchWork, landed: CommitResult) -> None:
        if landed.snapshot_id is None:
            return
        before = landed.base.metadata.head(work.branch)
        self.branches.append(
            RepairedBranch(
                branch=work.branch,
                previous_snapshot_id=None if before is None else before.snapshot_id,
                snapshot_id=landed.snapshot_id,
            )
        )

    def _summary(self, faults: Sequence[int] | set[int]) -> Mapping[str, str]:
        return {
            "icekeep.faults": ",".join(map(str, sorted(faults))),
        }


def _of_files(mends: Sequence[Mend], files: Sequence[StatisticsFile | PartitionStatisticsFile]) -> list[Mend]:
    """The mends by which the table names some files of statistics no more."""
    paths = {file.statistics_path for file in files}
    return [one for one in mends if one.where in paths]


class StillNamed(msgspec.Struct, frozen=True):
    """A change that applies only while the table names some files of statistics as it did when they were looked at."""

    change: Change
    files: tuple[StatisticsFile | PartitionStatisticsFile, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Raises `ConflictError` where it names one no longer: its snapshot may have another by now; else as the change."""
        named = (*base.statistics, *base.partition_statistics)
        for file in self.files:
            if file not in named:
                raise ConflictError(f"the table does not name {file.statistics_path!r} any more as it was read")
        return self.change.apply(base, attempt)


class StillLost(msgspec.Struct, frozen=True):
    """A change that applies only while some files are not there, or not readable: each attempt asks for them, last of all."""

    change: Change
    missing: tuple[str, ...] = ()
    broken: tuple[FileInfo, ...] = ()

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Raises `ConflictError` where one is there again, or another one by now; else as the change."""
        updates = self.change.apply(base, attempt)
        storage = attempt.reader.storage
        for location in self.missing if updates else ():
            if storage.head(location) is not None:
                raise ConflictError(f"file {location!r}, whose entry was to be taken out, is there again")
        for known in self.broken if updates else ():
            if storage.head(known.location) != known:
                raise ConflictError(f"file {known.location!r}, whose entry was to be taken out, has changed")
        return updates
