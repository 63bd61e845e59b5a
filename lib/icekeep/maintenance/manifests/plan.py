"""What a rewrite of manifests would do, for `--dry-run`: all entries are looked at, and nothing is written."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError
from icekeep.maintenance.deciding import of_manifests
from icekeep.maintenance.exact_plans import ExactPlan
from icekeep.maintenance.figures import or_warned
from icekeep.maintenance.manifests.candidates import ManifestCandidates, candidates, tell_of_none
from icekeep.maintenance.manifests.execute import RewrittenManifests, foreseen
from icekeep.maintenance.manifests.gains import (
    FilterGain,
    GroupGain,
    entries_count,
    filter_gains,
    group_gain,
    largest,
    measured_ms,
)
from icekeep.maintenance.manifests.given_manifests import PlannedRun, cost_of, exact_lines
from icekeep.maintenance.manifests.rewriting import dangling_of
from icekeep.maintenance.manifests.rules import RewriteManifestsRequest, RewriteRules, checked_rules
from icekeep.maintenance.requests import takes
from icekeep.maintenance.runs.left_behind import sweep_runs
from icekeep.planning.spark.session import SparkSource
from icekeep.rendered import Rendered
from icekeep.runtime import Runtime
from icekeep.spec.manifests.structs import ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.values import value_from_bytes


class PlannedManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest that is rewritten, or one that comes of it, which has no path yet.

    `partitions` says from where to where each partition field reaches in it.
    """

    manifest_path: str | None
    spec_id: int
    content: str
    bytes: int
    entries_count: int | None
    partitions: str


class RewriteManifestsPlan(Rendered, frozen=True, kw_only=True):
    """What would be done to the manifests of `snapshot_id`, the head of `branch`; none if there is nothing to gain.

    Attributes:
        rewritten_manifests_count: manifests that are rewritten, and those that hold no live file and are left out.
        rewritten_bytes_count: the size of these, without those from which only delete files are taken out.
        entries_count: live files whose entries are written.
        added_manifests_count: what comes of them.
        left_alone_manifests_count: that would be rewritten, if rewriting did not lose what is not known of them: fields, or
            the values of a partition transform.
        removed_delete_files_count: of those that reach no live data file; `None` where they are not asked for.
        removed_delete_bytes_count: the size of these, of vectors that of their blobs.
        planning_time_before_ms, planning_time_after_ms: of a filter on one partition, now, as measured, and afterwards as the
            bytes that it opens let expect; `None` where `measure-planning` does not ask for it.
        swept_files_count: files left by runs that died, which would be removed from `.icekeep/`.
        groups: by partition spec and content.
        workload: by filter.
    """

    branch: str = MAIN
    snapshot_id: int | None
    target_size_bytes: int
    rewritten_manifests_count: int = 0
    rewritten_bytes_count: int = 0
    entries_count: int = 0
    added_manifests_count: int = 0
    left_alone_manifests_count: int = 0
    removed_delete_files_count: int | None = None
    removed_delete_bytes_count: int | None = None
    swept_files_count: int = 0
    planning_time_before_ms: int | None = None
    planning_time_after_ms: int | None = None
    groups: tuple[GroupGain, ...] = ()
    workload: tuple[FilterGain, ...] = ()
    rewritten_manifests: tuple[PlannedManifest, ...] = ()
    added_manifests: tuple[PlannedManifest, ...] = ()


@takes(RewriteManifestsRequest)
def plan_rewrite_manifests(table: Table, request: RewriteManifestsRequest) -> RewriteManifestsPlan:
    """Say what `rewrite_manifests` would do with these arguments; raises what it raises before it commits."""
    return _foreseen(table, request).shown


@takes(RewriteManifestsRequest, "rewrite_manifests")
def exact_rewrite_manifests(table: Table, request: RewriteManifestsRequest) -> ExactPlan:
    """What `rewrite_manifests` would do with these arguments, with all manifests; raises as it does, and writes nothing."""
    shown, chosen, removed = _foreseen(table, request)
    runs = [
        PlannedRun(group.spec_id, group.content, run.manifests, run.expected_count)
        for group in chosen.groups
        for run in group.runs
    ]
    empty = [manifest for group in chosen.groups for manifest in group.empty]
    return ExactPlan(
        shown=shown,
        branch=request.branch,
        snapshot_id=chosen.snapshot_id,
        lines=exact_lines(runs, empty, removed),
        decided_by=of_manifests(table.metadata),
        cost=cost_of(runs),
    )


class _Foreseen(NamedTuple):
    """A plan, and what it is made of; `removed` are the delete files that go, by their entries."""

    shown: RewriteManifestsPlan
    chosen: ManifestCandidates
    removed: list[ManifestEntry]


def _foreseen(table: Table, request: RewriteManifestsRequest) -> _Foreseen:
    rules = checked_rules(table.metadata, request)
    runtime = table.runtime
    now_ms = runtime.now_ms()
    chosen = candidates(table, rules, request.spark, now_ms)
    tell_of_none(chosen, request.listener)
    done = foreseen(table, chosen, request.spark)
    # Figures alone, which keep the job from nothing either.
    told = partial(or_warned, listener=request.listener)
    gains = told("what the groups gain", lambda: tuple(group_gain(table, one) for one in done), ())
    before_ms, after_ms = told(
        "how long planning takes",
        lambda: _planning_times(table, rules, done, gains, request.spark, runtime),
        (None, None),
    )
    workload = told("what the workload gains", lambda: filter_gains(table, rules, chosen.listed, done, now_ms), ())
    drops = rules.options.remove_dangling_deletes
    dangling = dangling_of(table, rules)
    removed = [entry for one in dangling for entry in one.entries]
    chosen_paths = {manifest.manifest_path for manifest in chosen.replaced}
    # Manifests of no group from which delete files are taken out: each is written again by itself.
    others = [one for one in dangling if one.manifest.manifest_path not in chosen_paths]
    others_entries_count = sum(one.manifest.live_files_count or 0 for one in others)
    swept_count = 0
    if request.given is None:
        swept_count = sweep_runs(table, runtime, keep="", listener=request.listener, is_plan=True)
    shown = RewriteManifestsPlan(
        branch=request.branch,
        snapshot_id=chosen.snapshot_id,
        target_size_bytes=chosen.target_bytes,
        rewritten_manifests_count=len(chosen.replaced) + len(others),
        rewritten_bytes_count=sum(m.manifest_length for m in chosen.replaced),
        entries_count=sum(entries_count(one) for one in done) + others_entries_count - len(removed),
        added_manifests_count=sum(len(one.added) for one in done) + len(others),
        left_alone_manifests_count=sum(group.left_alone_count for group in chosen.groups),
        removed_delete_files_count=len(removed) if drops else None,
        removed_delete_bytes_count=sum(entry.data_file.own_bytes for entry in removed) if drops else None,
        swept_files_count=swept_count,
        planning_time_before_ms=before_ms,
        planning_time_after_ms=after_ms,
        groups=gains,
        workload=workload,
        rewritten_manifests=tuple(_shown(manifest, table.metadata) for manifest in chosen.replaced),
        added_manifests=tuple(_shown(manifest, table.metadata) for one in done for manifest in one.added),
    )
    return _Foreseen(shown, chosen, removed)


def _planning_times(
    table: Table,
    rules: RewriteRules,
    done: Sequence[RewrittenManifests],
    gains: Sequence[GroupGain],
    spark: SparkSource,
    runtime: Runtime,
) -> tuple[int | None, int | None]:
    one = largest(done)
    if not rules.options.measure_planning or one is None:
        return None, None
    now_ms = measured_ms(table, one, one.group.listed, spark, runtime)
    gain = gains[done.index(one)] if gains else None
    if now_ms is None or gain is None or not gain.mean_opened_before_bytes:
        return now_ms, None
    return now_ms, round(now_ms * gain.mean_opened_after_bytes / gain.mean_opened_before_bytes)


def _shown(manifest: ManifestFile, metadata: TableMetadata) -> PlannedManifest:
    return PlannedManifest(
        manifest_path=manifest.manifest_path or None,
        spec_id=manifest.partition_spec_id,
        content=manifest.content.name.lower(),
        bytes=manifest.manifest_length,
        entries_count=manifest.live_files_count,
        partitions=_reach(manifest, metadata),
    )


def _reach(manifest: ManifestFile, metadata: TableMetadata) -> str:
    """`day=2013-01-05..2013-02-01`, of each partition field; empty where the list does not say it."""
    fields = metadata.partition_type(manifest.partition_spec_id).fields
    summaries = manifest.partitions or ()
    if len(summaries) != len(fields):
        return ""
    ends = []
    for name in ("lower_bound", "upper_bound"):
        bounds = [getattr(summary, name) for summary in summaries]
        pairs = zip(fields, bounds, strict=True)
        try:
            values = [None if bound is None else value_from_bytes(field.type, bound) for field, bound in pairs]
        except IcekeepError:
            return ""
        ends.append(metadata.partition_path(manifest.partition_spec_id, values).split("/"))
    return ", ".join(
        low if low == high else f"{low}..{high.partition('=')[2]}" for low, high in zip(*ends, strict=True)
    )
