"""Statistics files that metadata names (304): whether they are there, with the size that it says."""

from icekeep.catalog.base import Table
from icekeep.errors import NotFoundError
from icekeep.maintenance.checking.entries.judging import MOVED_ON
from icekeep.maintenance.checking.entries.listing import look_up
from icekeep.maintenance.checking.faults import Fault
from icekeep.maintenance.checking.file_classes import STATISTICS_FILE_MISSING
from icekeep.maintenance.checking.subject import Subject
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile

_Named = tuple[str, StatisticsFile | PartitionStatisticsFile]


def check_statistics(subject: Subject) -> None:
    """Look up the statistics of the snapshots that are looked at, and those of snapshots that are not there.

    Raises:
        TryAgainError: the store or the catalog is out of reach.
    """
    metadata, tally = subject.table.metadata, subject.tally
    others = {one.snapshot_id for one in metadata.snapshots} - {one.snapshot_id for one in subject.snapshots}
    named = [(kind, file) for kind, file in _named(metadata) if file.snapshot_id not in others]
    infos = look_up([file.statistics_path for _, file in named], subject.table.storage)
    is_missing = any(info is None for info in infos)
    still = {file.statistics_path for _, file in _named_now(subject.table)} if is_missing else set()
    for (kind, file), info in zip(named, infos, strict=True):
        path, recorded = file.statistics_path, file.file_size_in_bytes
        if isinstance(info, str):
            tally.gap(f"statistics file {path!r}", info)
        elif info is None and path not in still:
            tally.gap(f"statistics file {path!r}", MOVED_ON)
        elif info is None or info.size_bytes != recorded:
            found = None if info is None else info.size_bytes
            detail = (
                "there is no such file" if found is None else f"it has {found} bytes where metadata says {recorded}"
            )
            facts = {"kind": kind, "file_path": path, "recorded": recorded, "found": found}
            tally.add(
                Fault(
                    number=STATISTICS_FILE_MISSING,
                    where=path,
                    detail=detail,
                    snapshot_id=file.snapshot_id,
                    facts={**facts, "snapshots_count": 1},
                )
            )


def _named(metadata: TableMetadata) -> list[_Named]:
    """All statistics files, each with the name of the list that it is in."""
    statistics: list[_Named] = [("statistics", file) for file in metadata.statistics]
    return [*statistics, *(("partition-statistics", file) for file in metadata.partition_statistics)]


def _named_now(table: Table) -> list[_Named]:
    try:
        return _named(table.refresh().metadata)
    except NotFoundError:
        return []
