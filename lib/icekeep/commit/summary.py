"""The counters of a snapshot's summary (spec, Appendix F "Optional Snapshot Summary Fields").

Counts of what was added and removed are written where they are not zero. Totals are the parent's plus the difference;
where the parent has none, or they would fall below zero, none are written, since a wrong total is worse than none.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from icekeep.errors import InvalidTableError
from icekeep.spec.applicability import PartitionKey, is_deletion_vector, partition_key
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestFile

COMMIT_ID = "icekeep.commit-id"
"""Names the commit that made a snapshot, so that its writer can recognise it after a lost answer."""

TOTALS = {
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}


FILE_TOTALS = {ManifestContent.DATA: "total-data-files", ManifestContent.DELETES: "total-delete-files"}
"""The totals that a manifest list can be held against: nothing else shows that it was cut between two blocks."""

_KINDS = {ManifestContent.DATA: "data files", ManifestContent.DELETES: "delete files"}


def check_file_total(
    where: str, content: ManifestContent, listed: int, recorded: str, snapshot_id: int, *, otherwise: str = ""
) -> None:
    """Hold the live files that a manifest list leads to against the total in a snapshot's summary.

    Args:
        where: what leads to them, to begin a sentence with.
        listed: by the counts of the list.
        recorded: by the summary.
        otherwise: what else can be done, to end the sentence with.

    Raises:
        InvalidTableError: they differ.
    """
    if recorded != str(listed):
        raise InvalidTableError(
            f"{where} leads to {listed} {_KINDS[content]}, but snapshot {snapshot_id} says {FILE_TOTALS[content]} {recorded}; "
            "run `icekeep check --table NAME`: `icekeep repair --table NAME --fault 204` corrects wrong counts in the list, "
            "`--fault 215` corrects a wrong total, and a list that was cut short needs a rollback"
            f"{otherwise}",
            snapshot_id=snapshot_id,
        )


def live_counts(rows: Iterable[ManifestFile]) -> dict[ManifestContent, int | None]:
    """The live files that rows of a manifest list lead to; `None` where a row does not say how many."""
    counts: dict[ManifestContent, int | None] = dict.fromkeys(FILE_TOTALS, 0)
    for row in rows:
        before, more = counts[row.content], row.live_files_count
        counts[row.content] = None if before is None or more is None else before + more
    return counts


def totals_of(files: Iterable[DataFile]) -> Counter[str]:
    """The totals of a snapshot whose live files are these."""
    totals = Counter(dict.fromkeys(TOTALS, 0))
    for file in files:
        totals["total-files-size"] += file.file_size_in_bytes
        if file.content is FileContent.DATA:
            totals["total-data-files"] += 1
            totals["total-records"] += file.record_count
            continue
        kind = "equality" if file.content is FileContent.EQUALITY_DELETES else "position"
        totals["total-delete-files"] += 1
        totals[f"total-{kind}-deletes"] += file.record_count
    return totals


class SummaryBuilder:
    """Counts files as they are added and removed; `extra` is written as it is, where it claims no key of ours."""

    def __init__(self, extra: Mapping[str, str] | None = None) -> None:
        self._extra = dict(extra or {})
        self._counts: Counter[str] = Counter()
        self._partitions: set[PartitionKey] = set()
        self._corrections: Counter[str] = Counter()
        self._anew: Mapping[str, int] | None = None

    def add(self, file: DataFile) -> None:
        """Count a file that the snapshot adds."""
        if file.content is FileContent.DATA:
            self._counts["added-data-files"] += 1
            self._counts["added-records"] += file.record_count
        else:
            self._count_deletes("added", file)
        self._counts["added-files-size"] += file.file_size_in_bytes
        self._partitions.add(partition_key(file))

    def remove(self, file: DataFile) -> None:
        """Count a file that the snapshot removes."""
        if file.content is FileContent.DATA:
            self._counts["deleted-data-files"] += 1
            self._counts["deleted-records"] += file.record_count
        else:
            self._count_deletes("removed", file)
        self._counts["removed-files-size"] += file.file_size_in_bytes
        self._partitions.add(partition_key(file))

    def correct(self, before: DataFile, after: DataFile | None) -> None:
        """Have totals count a file as it is described now, which is neither added nor removed; `None`: not once more."""
        self._corrections.update(totals_of(() if after is None else [after]))
        self._corrections.subtract(totals_of([before]))

    def count_anew(self, totals: Mapping[str, int]) -> None:
        """Have totals say this, whatever those of the parent are."""
        self._anew = totals

    def absorb(self, other: "SummaryBuilder") -> None:
        """Count what another one has counted, as well."""
        self._counts.update(other._counts)
        self._corrections.update(other._corrections)
        self._partitions |= other._partitions

    def build(self, operation: str, parent: Mapping[str, str] | None, commit_uuid: str) -> dict[str, str]:
        """The summary of a snapshot whose parent on the branch has the summary `parent`; `None`: there is no parent."""
        out = {**self._extra, "operation": operation, COMMIT_ID: commit_uuid}
        out.update({key: str(count) for key, count in self._counts.items() if count})
        if self._partitions:
            out["changed-partition-count"] = str(len(self._partitions))
        for total, (added, removed) in TOTALS.items():
            if self._anew is not None:
                after = self._anew[total]
            else:
                before = "0" if parent is None else parent.get(total, "")
                if not before.isdecimal():
                    continue
                after = int(before) + self._counts[added] - self._counts[removed] + self._corrections[total]
            if after >= 0:
                out[total] = str(after)
        return out

    def _count_deletes(self, verb: str, file: DataFile) -> None:
        self._counts[f"{verb}-delete-files"] += 1
        if file.content is FileContent.EQUALITY_DELETES:
            self._counts[f"{verb}-equality-delete-files"] += 1
            self._counts[f"{verb}-equality-deletes"] += file.record_count
        else:
            kind = "dvs" if is_deletion_vector(file) else "position-delete-files"
            self._counts[f"{verb}-{kind}"] += 1
            self._counts[f"{verb}-position-deletes"] += file.record_count
