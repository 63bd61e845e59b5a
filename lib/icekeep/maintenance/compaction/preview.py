"""What `--dry-run` shows: the groups of a plan and how their rows would reach their new files, without the files."""

import msgspec

from icekeep.maintenance.compaction.estimate import Estimate, RewriteMethod
from icekeep.maintenance.compaction.methods import GroupMethod
from icekeep.maintenance.compaction.plan import FileGroup, LeftAlone, RewritePlan


class GroupPreview(msgspec.Struct, frozen=True, kw_only=True):
    """One group; sizes in bytes.

    Attributes:
        way: how most of its rows go.
        stitched_files_count: of its files, those whose row groups are copied byte for byte.
        reason: why the others are not, as far as that needs an answer.
    """

    partition: str
    files_count: int
    bytes: int
    record_count: int
    delete_files_count: int
    expected_files_count: int
    method: RewriteMethod
    stitched_files_count: int
    reason: str


class CompactionPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a run with the same arguments would do now; see `RewritePlan` for the fields of that name."""

    branch: str
    snapshot_id: int | None
    strategy: str
    target_file_size_bytes: int
    candidate_files_count: int
    files_to_rewrite_count: int
    bytes_to_rewrite: int
    delete_files_to_apply_count: int
    expected_files_count: int
    stitched_files_count: int
    reencoded_files_count: int
    overlap_depth_before: float | None
    estimated: Estimate
    left_alone: tuple[LeftAlone, ...]
    groups: tuple[GroupPreview, ...]


def preview(plan: RewritePlan, methods: dict[int, GroupMethod], estimated: Estimate) -> CompactionPreview:
    """A plan for people; `methods` by the number of the group."""
    groups = tuple(_group(group, methods[group.number]) for group in plan.groups)
    stitched_count = sum(group.stitched_files_count for group in groups)
    return CompactionPreview(
        branch=plan.branch,
        snapshot_id=plan.snapshot_id,
        strategy=plan.strategy,
        target_file_size_bytes=plan.target_file_size_bytes,
        candidate_files_count=plan.candidate_files_count,
        files_to_rewrite_count=plan.files_to_rewrite_count,
        bytes_to_rewrite=plan.bytes_to_rewrite,
        delete_files_to_apply_count=sum(group.delete_files_count for group in groups),
        expected_files_count=plan.expected_files_count,
        stitched_files_count=stitched_count,
        reencoded_files_count=plan.files_to_rewrite_count - stitched_count,
        overlap_depth_before=plan.overlap_depth_before,
        estimated=estimated,
        left_alone=plan.left_alone,
        groups=groups,
    )


def _group(group: FileGroup, method: GroupMethod) -> GroupPreview:
    return GroupPreview(
        partition=group.partition,
        files_count=group.files_count,
        bytes=group.bytes,
        record_count=group.record_count,
        delete_files_count=group.delete_files_count,
        expected_files_count=group.expected_files_count,
        method=method.method,
        stitched_files_count=method.stitched_files_count,
        reason=method.reason,
    )
