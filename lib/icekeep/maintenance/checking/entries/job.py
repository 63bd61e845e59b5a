"""The entries of all manifests of a table, and the files that they name."""

from msgspec.structs import replace
from pyroaring import BitMap

from icekeep.errors import NotFoundError
from icekeep.maintenance.checking.entries.comparing import compare, is_for_tasks
from icekeep.maintenance.checking.entries.dangling import check_dangling
from icekeep.maintenance.checking.entries.judging import Judge
from icekeep.maintenance.checking.entries.looking import look_closer
from icekeep.maintenance.checking.entries.meeting import Meeting
from icekeep.maintenance.checking.entries.statistics import check_statistics
from icekeep.maintenance.checking.file_classes import DATA_FILE_MISSING, DELETE_FILE_MISSING, FILE_SIZE_WRONG
from icekeep.maintenance.checking.subject import Listed, Subject
from icekeep.planning.spark.session import limits_of

_OF_STORAGE = (DATA_FILE_MISSING, FILE_SIZE_WRONG, DELETE_FILE_MISSING)


def check_entries(subject: Subject, listed: Listed) -> None:
    """Tell files that are live twice, missing, of another size or of two kinds, and delete files that reach nothing.

    Raises:
        TryAgainError: the store, the catalog or Spark is out of reach.
    """
    check_files(subject, listed)
    check_dangling(subject, listed)
    check_statistics(subject)


def check_files(subject: Subject, listed: Listed) -> None:
    """Tell files that are live twice, missing, of another size or of two kinds; raises as `check_entries`."""
    table, spark, tally = subject.table, subject.spark, subject.tally
    meeting = Meeting.of(subject.snapshots, listed)
    manifests = [
        (number, manifest)
        for number, manifest in enumerate(listed.manifests)
        if manifest.may_have_live_files and meeting.snapshots_of[number]
    ]
    if not manifests:
        return
    in_tasks = is_for_tasks(table, manifests, spark)
    suspects = compare(table, manifests, meeting, spark, tally, in_tasks=in_tasks)
    if not suspects.rows_count:
        return
    judge = Judge(
        meeting=meeting,
        manifest_paths=tuple(manifest.manifest_path for manifest in listed.manifests),
        partitions={
            number: table.metadata.partition_type(number)
            for number in {manifest.partition_spec_id for _, manifest in manifests}
        },
        storage=table.storage,
        unseen=suspects.unseen,
        gone=BitMap(),
        whole=tally.whole,
    )
    in_tasks = in_tasks or suspects.rows_count > limits_of(spark).entries_count
    while True:
        found = look_closer(table, manifests, suspects, judge, spark, in_tasks=in_tasks)
        # A file goes after the commit that expired its snapshots: what was missing is held against the table of now.
        gone = _gone(subject, meeting) if any(number in found.counts for number in _OF_STORAGE) else judge.gone
        if gone <= judge.gone:
            break
        judge = replace(judge, gone=gone | judge.gone)
    tally.merge(found)


def _gone(subject: Subject, meeting: Meeting) -> BitMap:
    """The positions of snapshots that were expired since the table was loaded."""
    if not subject.is_current:
        return BitMap()
    try:
        now = {snapshot.snapshot_id for snapshot in subject.table.refresh().metadata.snapshots}
    except NotFoundError:
        now = set()
    return BitMap(position for position, one in enumerate(meeting.snapshot_ids) if one not in now)
