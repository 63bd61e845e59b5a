"""The output columns of Iceberg's `rewrite_data_files`, and what an operator wants to know besides."""

import msgspec

from icekeep.maintenance.compaction.estimate import Estimate
from icekeep.maintenance.job_results import JobResult


class RewriteDataFilesResult(JobResult, frozen=True, kw_only=True):
    """What a run did; sizes in bytes.

    Attributes:
        status: `partial` when some groups were committed and some were not.
        failed_data_files_count: of the groups that no commit replaced.
        removed_delete_files_count: that the commits took out of the table: those of one replaced file alone, those that
            became too old, and with `remove-dangling-deletes` all that reach no file any more.
        deleted_records_count: rows that deletes had marked, and that are in no file now.
        stitched_data_files_count: how many of the added files were put together from whole row groups.
        carried_delete_files_count: that were added for positions which others deleted while their files were rewritten.
        planned_anew_files_count: of the groups that could not be committed as they were rewritten, and were planned again.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
        overlap_depth_before, overlap_depth_after: how many files a point of the first sort key lies in, on average over
            the partitions that were looked at; `None` for binpack.
        estimated: what the plan had said; `elapsed_ms` and `cpu_ms` are what it took, the latter of all tasks together.
        peak_task_bytes: the most memory that the Python process of a task had.
    """

    work = (
        "rewritten_data_files_count",
        "removed_delete_files_count",
    )

    status: str = "done"
    rewritten_data_files_count: int = 0
    added_data_files_count: int = 0
    rewritten_bytes_count: int = 0
    failed_data_files_count: int = 0
    removed_delete_files_count: int = 0
    added_bytes_count: int = 0
    commits_count: int = 0
    failed_commits_count: int = 0
    deleted_records_count: int = 0
    stitched_data_files_count: int = 0
    carried_delete_files_count: int = 0
    planned_anew_files_count: int = 0
    swept_files_count: int = 0
    overlap_depth_before: float | None = None
    overlap_depth_after: float | None = None
    estimated: Estimate = Estimate()
    elapsed_ms: int = 0
    run_id: str | None = None
    cpu_ms: int = 0
    peak_task_bytes: int = 0

    def followed_by(self, later: "RewriteDataFilesResult") -> "RewriteDataFilesResult":
        """Both as one run; the later one's files were among those that the first had to leave out."""
        summed = {
            name: getattr(self, name) + getattr(later, name)
            for name in self.__struct_fields__
            if name.endswith(("_count", "cpu_ms"))
        }
        return msgspec.structs.replace(
            self,
            **summed,
            status="partial" if "partial" in (self.status, later.status) else "done",
            peak_task_bytes=max(self.peak_task_bytes, later.peak_task_bytes),
            overlap_depth_after=later.overlap_depth_after,
        )
