"""The output columns of Iceberg's `rewrite_position_delete_files`, and what an operator wants to know besides."""

import msgspec

from icekeep.maintenance.equality_deletes.result import ConvertEqualityDeletesResult
from icekeep.maintenance.job_results import JobResult


class RewritePositionDeletesResult(JobResult, frozen=True, kw_only=True):
    """What a run did; sizes in bytes, of a deletion vector those of its blob.

    Attributes:
        status: `partial` when some groups were committed and some were not.
        rewritten_delete_files_count: whose rows are in the added ones now.
        added_delete_files_count: delete files, or vectors, each counted.
        failed_delete_files_count: of the groups that no commit replaced.
        removed_dangling_delete_files_count: that reached no data file and were removed whole, including deletion vectors; they
            are not among the rewritten ones.
        removed_dangling_bytes_count: the size of these.
        removed_dangling_positions_count: rows of rewritten files that were dropped, since their data file is not live, or
            too new for the delete file.
        replaced_positions_count: rows of rewritten files that were dropped since a deletion vector stands for them.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
        conversion: what became of equality deletes; `None` where it was not asked for.
    """

    work = (
        "rewritten_delete_files_count",
        "removed_dangling_delete_files_count",
        "conversion",
    )

    status: str = "done"
    rewritten_delete_files_count: int = 0
    added_delete_files_count: int = 0
    rewritten_bytes_count: int = 0
    added_bytes_count: int = 0
    failed_delete_files_count: int = 0
    removed_dangling_delete_files_count: int = 0
    removed_dangling_bytes_count: int = 0
    removed_dangling_positions_count: int = 0
    replaced_positions_count: int = 0
    swept_files_count: int = 0
    commits_count: int = 0
    failed_commits_count: int = 0
    elapsed_ms: int = 0
    run_id: str | None = None
    conversion: ConvertEqualityDeletesResult | None = None

    def followed_by(self, later: "RewritePositionDeletesResult") -> "RewritePositionDeletesResult":
        """The counts of both together."""
        names = [name for name in self.__struct_fields__ if name.endswith("_count")]
        return msgspec.structs.replace(self, **{name: getattr(self, name) + getattr(later, name) for name in names})
