"""What a rewrite of manifests did: the output columns of Iceberg's `rewrite_manifests`, and ours."""

from icekeep.maintenance.job_results import JobResult
from icekeep.maintenance.manifests.gains import FilterGain, GroupGain


class RewriteManifestsResult(JobResult, frozen=True, kw_only=True):
    """How many manifests were replaced by how many; sizes in bytes.

    Attributes:
        entries_count: live files whose entries were written.
        left_alone_manifests_count: as `plan.RewriteManifestsPlan` has it.
        removed_delete_files_count: dangling ones, where `remove-dangling-deletes` asks for them.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
        planning_time_before_ms, planning_time_after_ms: of a filter on one partition, as measured; `None` where
            `measure-planning` does not ask for it.
        groups: by partition spec and content.
        workload: by filter.
    """

    work = (
        "rewritten_manifests_count",
        "removed_delete_files_count",
    )

    status: str = "done"
    rewritten_manifests_count: int = 0
    added_manifests_count: int = 0
    rewritten_bytes_count: int = 0
    added_bytes_count: int = 0
    entries_count: int = 0
    left_alone_manifests_count: int = 0
    removed_delete_files_count: int = 0
    swept_files_count: int = 0
    planning_time_before_ms: int | None = None
    planning_time_after_ms: int | None = None
    groups: tuple[GroupGain, ...] = ()
    workload: tuple[FilterGain, ...] = ()
    elapsed_ms: int = 0
    run_id: str | None = None
