"""What `--dry-run` shows: the groups of a plan and how their rows would reach their new files, without the files."""

from collections.abc import Sequence

import msgspec

from icekeep.maintenance.compaction.estimate import Estimate, RewriteMethod
from icekeep.maintenance.compaction.methods import GroupMethod
from icekeep.maintenance.compaction.plan import FileGroup, LeftAlone, RewritePlan
from icekeep.rendered import Rendered
from icekeep.spec.manifests.structs import ManifestEntry


class GroupPreview(msgspec.Struct, frozen=True, kw_only=True):
    """One group; sizes in bytes.

    Attributes:
        method: how most of its rows go.
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


class RewriteDataFilesPlan(Rendered, frozen=True, kw_only=True):
    """What a run with the same arguments would do now, under the names of its result.

    Attributes:
        applied_delete_files_count: those that reach any of the files.
        removed_delete_files_count: delete files that the commits would take out of the table as it is; `None` where only the
            commits can show it: rows move to another partition spec, or the plan has too many files.
        removed_delete_bytes_count: the size of these, of vectors that of their blobs.
        swept_files_count: files left by runs that died, which would be removed from `.icekeep/`.
        stitched_data_files_count: how many of the added files would be put together from whole row groups.
        reencoded_data_files_count: of the files, those whose rows are decoded and encoded again.
    """

    branch: str
    snapshot_id: int | None
    strategy: str
    target_file_size_bytes: int
    candidate_files_count: int
    rewritten_data_files_count: int
    rewritten_bytes_count: int
    applied_delete_files_count: int
    removed_delete_files_count: int | None
    removed_delete_bytes_count: int | None
    added_data_files_count: int
    stitched_data_files_count: int
    reencoded_data_files_count: int
    overlap_depth_before: float | None
    estimated: Estimate
    left_alone: tuple[LeftAlone, ...]
    groups: tuple[GroupPreview, ...]
    swept_files_count: int = 0


def preview(
    plan: RewritePlan,
    methods: dict[int, GroupMethod],
    removed: Sequence[ManifestEntry] | None,
    estimated: Estimate,
) -> RewriteDataFilesPlan:
    """A plan for people; `methods` by the number of the group, `removed` as `foreseen_removals` says."""
    groups = tuple(_group(group, methods[group.number]) for group in plan.groups)
    return RewriteDataFilesPlan(
        branch=plan.branch,
        snapshot_id=plan.snapshot_id,
        strategy=plan.strategy,
        target_file_size_bytes=plan.target_file_size_bytes,
        candidate_files_count=plan.candidate_files_count,
        rewritten_data_files_count=plan.rewritten_data_files_count,
        rewritten_bytes_count=plan.rewritten_bytes_count,
        applied_delete_files_count=sum(group.delete_files_count for group in groups),
        removed_delete_files_count=None if removed is None else len(removed),
        removed_delete_bytes_count=None if removed is None else sum(entry.data_file.own_bytes for entry in removed),
        added_data_files_count=sum(group.expected_files_count for group in groups),
        stitched_data_files_count=sum(len(methods[group.number].stitched) for group in plan.groups),
        reencoded_data_files_count=sum(group.files_count - group.stitched_files_count for group in groups),
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
        expected_files_count=method.files_count,
        method=method.method,
        stitched_files_count=method.stitched_files_count,
        reason=method.reason,
    )
