"""Data files of all snapshots that are looked at, each read once: here for few bytes, else in Spark tasks."""

from icekeep.maintenance.checking.content.known import known_of
from icekeep.maintenance.checking.content.meeting import bytes_of, entries_here, judge_here, judge_in_tasks
from icekeep.maintenance.checking.subject import Listed, Subject
from icekeep.planning.entries import entries_count
from icekeep.planning.spark.session import limits_of
from icekeep.spec.manifests.structs import ManifestContent


def check_data_files(subject: Subject, listed: Listed) -> None:
    """Read every live data file, and tell where rows are not what metadata says of them.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    manifests = [
        (number, manifest)
        for number, manifest in enumerate(listed.manifests)
        if manifest.content is ManifestContent.DATA and manifest.may_have_live_files
    ]
    if not manifests:
        return
    known, limits = known_of(subject, listed), limits_of(subject.spark)
    if entries_count(manifest for _, manifest in manifests) <= limits.footers_count:
        entries = entries_here(manifests, known)
        if entries is None:
            return
        if bytes_of(entries) <= limits.submitted_rewrite_bytes:
            subject.tally.merge(judge_here(entries, known))
            return
    subject.tally.merge(judge_in_tasks(manifests, known, subject.spark))
