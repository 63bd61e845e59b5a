"""The job `rewrite_manifests`: metadata that plans fast.

manifest list -> which manifests -> records of their entries -> sorted and cut -> new manifests -> `RewriteManifests`;
planned again where others changed what is replaced

The run pins no snapshot: what it replaces are manifests that the head of the branch lists. Others can delete one of them only
after a commit no longer lists it, and then there is nothing to be committed here either. A tag would save no work, and cost a
job that is mostly over in seconds two commits.
"""

import logging
from collections.abc import Sequence
from functools import partial

import msgspec

from icekeep.catalog.base import Table, log_context
from icekeep.commit.attempt import RemovedDeletes, removed_deletes
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.file_sets import entry_digest
from icekeep.errors import IcekeepError
from icekeep.events import Listener, StepFinished, StepStarted, Warned
from icekeep.formats.deletes.read import hold_own_path
from icekeep.maintenance.jobs import JobResult, or_warned, takes
from icekeep.maintenance.manifests import JOB
from icekeep.maintenance.manifests.candidates import (
    ManifestCandidates,
    candidates,
    cost_of,
    exact_lines,
    report_none_chosen,
)
from icekeep.maintenance.manifests.execute import (
    FilterGain,
    GroupGain,
    RewrittenManifests,
    discard,
    filter_gains,
    group_gain,
    rewritten,
)
from icekeep.maintenance.manifests.rules import RewriteManifestsRequest, RewriteRules, checked_rules
from icekeep.maintenance.plans import ExactPlan
from icekeep.maintenance.preconditions import of_manifests, saved_removals
from icekeep.maintenance.rewrite.alive import sweep_runs
from icekeep.maintenance.rewrite.run import RewriteRun, retry_with_replan, run_name, undoing
from icekeep.rendered import Rendered
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.values import value_from_bytes
from icekeep.spelling import counted, counted_doing


class RewriteManifestsResult(JobResult, frozen=True, kw_only=True):
    """How many manifests were replaced by how many; sizes in bytes.

    Attributes:
        entries_count: live files whose entries were written.
        left_alone_manifests_count: as `RewriteManifestsPlan` has it.
        removed_delete_files_count: dangling ones, where `remove-dangling-deletes` asks for them.
        swept_files_count: files left by runs that died, which were removed from `.icekeep/`.
        groups: by partition spec and content.
        workload: by filter.
    """

    work = ("rewritten_manifests_count", "removed_delete_files_count")

    status: str = "done"
    rewritten_manifests_count: int = 0
    added_manifests_count: int = 0
    rewritten_bytes_count: int = 0
    added_bytes_count: int = 0
    entries_count: int = 0
    left_alone_manifests_count: int = 0
    removed_delete_files_count: int = 0
    swept_files_count: int = 0
    groups: tuple[GroupGain, ...] = ()
    workload: tuple[FilterGain, ...] = ()
    elapsed_ms: int = 0
    run_id: str | None = None


_LOG = logging.getLogger(__name__)


def _rewrite(
    table: Table, request: RewriteManifestsRequest, rules: RewriteRules, number: int
) -> RewriteManifestsResult:
    """Rewrite the manifests that are worth it, as the run's plan of a number; raises what the job raises."""
    spark, listener = request.spark, request.listener
    chosen = candidates(table, rules, spark, table.runtime.now_ms())
    left_alone = sum(group.left_alone_count for group in chosen.groups)
    if left_alone:
        listener.on(
            Warned(
                f"{counted_doing(left_alone, 'manifests', 'have')} fields that are not known and "
                f"{'is left as it is' if left_alone == 1 else 'are left as they are'}"
            )
        )
    report_none_chosen(chosen, listener)
    result = RewriteManifestsResult(left_alone_manifests_count=left_alone)
    if not chosen.replaced and not rules.options.remove_dangling_deletes:
        return result
    run_id = run_name(table, number)
    _LOG.info(
        "%s: run %s on snapshot %s: %d manifests in %d groups, target %d bytes",
        table.name,
        run_id,
        chosen.snapshot_id,
        len(chosen.replaced),
        len(chosen.groups),
        chosen.target_bytes,
        extra=log_context(table),
    )
    with RewriteRun(table, "rewrite_manifests", run_id, listener) as run:
        listener.on(StepStarted("rewriting manifests", len(chosen.replaced), "manifests"))
        done = rewritten(table, chosen, spark, run_id, run.written)
        added = tuple(manifest for one in done for manifest in one.added)
        undo = partial(discard, done, run.written)
        with undoing(undo):
            note = f"{counted(len(chosen.replaced), 'manifests')} -> {len(added):,}"
            listener.on(StepFinished("rewriting manifests", note))
            gains, workload = _gains(table, rules, chosen, done, listener)
            only_dangling = None
            if rules.saved is not None:
                only_dangling = frozenset(entry_digest(e) for one in _dangling(table, rules) for e in one.entries)
            change = msgspec.structs.replace(
                _dropping(rules.branch),
                replaced=tuple(chosen.replaced),
                added=added,
                drop_dangling_deletes=rules.options.remove_dangling_deletes,
                only_dangling=only_dangling,
                format_version=table.metadata.format_version,
            )
        landed = run.commit(change, [manifest.manifest_path for manifest in added], undo)
    counts = {name: int(landed.summary.get(key, "0")) for name, key in _SUMMED.items()}
    return msgspec.structs.replace(
        result,
        rewritten_bytes_count=sum(m.manifest_length for m in chosen.replaced),
        added_bytes_count=sum(m.manifest_length for m in added),
        groups=gains,
        workload=workload,
        **counts,
    )


_SUMMED = {
    "rewritten_manifests_count": "manifests-replaced",
    "added_manifests_count": "manifests-created",
    "entries_count": "entries-processed",
    "removed_delete_files_count": "removed-delete-files",
}
"""Counts of the result that the summary of the new snapshot has, by the field."""


def _gains(
    table: Table,
    rules: RewriteRules,
    chosen: ManifestCandidates,
    done: Sequence[RewrittenManifests],
    listener: Listener,
) -> tuple[tuple[GroupGain, ...], tuple[FilterGain, ...]]:
    """What groups and filters of the workload gain: figures alone, which keep the job from nothing."""
    now_ms = table.runtime.now_ms()
    groups = or_warned("what the groups gain", lambda: tuple(group_gain(table, one) for one in done), (), listener)
    return groups, or_warned(
        "what the workload gains", lambda: filter_gains(table, rules, chosen.listed, done, now_ms), (), listener
    )


def _dangling(table: Table, rules: RewriteRules) -> list[RemovedDeletes]:
    """The delete files that a rewrite by these rules takes out of a table as it is; nothing is written."""
    if not rules.options.remove_dangling_deletes:
        return []
    found = removed_deletes(lambda: _dropping(rules.branch), table, rules.branch)
    if rules.saved is None:
        return found
    entries = [entry for one in found for entry in one.entries]
    held = {entry_digest(entry) for entry in saved_removals(rules.saved, entries, table.metadata)}
    left = [RemovedDeletes(one.manifest, tuple(e for e in one.entries if entry_digest(e) in held)) for one in found]
    return [one for one in left if one.entries]


def _dropping(branch: str) -> RewriteManifests:
    """A rewrite of no manifests that takes out the delete files which reach nothing."""
    return RewriteManifests(replaced=(), added=(), drop_dangling_deletes=True, proof=hold_own_path, branch=branch)


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
    return _foreseen(table, request)


def _foreseen(table: Table, request: RewriteManifestsRequest) -> ExactPlan:
    rules = checked_rules(table.metadata, request)
    chosen = candidates(table, rules, request.spark, table.runtime.now_ms())
    report_none_chosen(chosen, request.listener)
    done = rewritten(table, chosen, request.spark)
    gains, workload = _gains(table, rules, chosen, done, request.listener)
    drops = rules.options.remove_dangling_deletes
    dangling = _dangling(table, rules)
    removed = [entry for one in dangling for entry in one.entries]
    chosen_paths = {manifest.manifest_path for manifest in chosen.replaced}
    # Manifests of no group from which delete files are taken out: each is written again by itself.
    others = [one for one in dangling if one.manifest.manifest_path not in chosen_paths]
    others_entries_count = sum(one.manifest.live_files_count or 0 for one in others)
    swept_count = 0
    if request.saved is None:
        swept_count = sweep_runs(table, table.runtime, keep="", listener=request.listener, is_plan=True)
    shown = RewriteManifestsPlan(
        branch=request.branch,
        snapshot_id=chosen.snapshot_id,
        target_size_bytes=chosen.target_bytes,
        rewritten_manifests_count=len(chosen.replaced) + len(others),
        rewritten_bytes_count=sum(m.manifest_length for m in chosen.replaced),
        entries_count=sum(one.entries_count for one in done) + others_entries_count - len(removed),
        added_manifests_count=sum(len(one.added) for one in done) + len(others),
        left_alone_manifests_count=sum(group.left_alone_count for group in chosen.groups),
        removed_delete_files_count=len(removed) if drops else None,
        removed_delete_bytes_count=sum(entry.data_file.own_bytes for entry in removed) if drops else None,
        swept_files_count=swept_count,
        groups=gains,
        workload=workload,
        rewritten_manifests=tuple(_planned_manifest(manifest, table.metadata) for manifest in chosen.replaced),
        added_manifests=tuple(_planned_manifest(manifest, table.metadata) for one in done for manifest in one.added),
    )
    runs = [(group, run) for group in chosen.groups for run in group.runs]
    empty = [manifest for group in chosen.groups for manifest in group.empty]
    return ExactPlan(
        shown=shown,
        branch=request.branch,
        snapshot_id=chosen.snapshot_id,
        lines=exact_lines(runs, empty, removed),
        decided_by=of_manifests(table.metadata),
        cost=cost_of([run for _, run in runs]),
    )


def _planned_manifest(manifest: ManifestFile, metadata: TableMetadata) -> PlannedManifest:
    return PlannedManifest(
        manifest_path=manifest.manifest_path or None,
        spec_id=manifest.partition_spec_id,
        content=manifest.content.name.lower(),
        bytes=manifest.manifest_length,
        entries_count=manifest.live_files_count,
        partitions=_partitions_text(manifest, metadata),
    )


def _partitions_text(manifest: ManifestFile, metadata: TableMetadata) -> str:
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


@takes(RewriteManifestsRequest, asks=JOB.asks)
def rewrite_manifests(table: Table, request: RewriteManifestsRequest) -> RewriteManifestsResult:
    """Cluster the entries of manifests by partition into manifests of the target size.

    The table's files do not change. Well-sized manifests that lie across no other stay as they are, and nothing is
    committed where there is nothing to gain. Property `commit.manifest.target-size-bytes` (8 MB).

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed for
            tables of up to two million entries.
        spec_id: the partition spec whose manifests are rewritten; the default spec if `None`; "all" for every spec.
        sort_by: partition fields to cluster by, and columns, by their lower bounds; as a list, or text with commas.
            Delete files are clustered by partition fields alone. Null: all partition fields in the order of the spec.
        where: a filter over manifests (`rules.COLUMNS`); Iceberg's `rewriteIf`.
        workload: filters over the table whose columns say what to cluster by, in place of `sort_by`; a list, or text with
            semicolons.
        use_caching: as Iceberg's; entries are read once here.
        branch: whose manifests are rewritten, and where that is committed; no other branch moves.
        options: `options.RewriteManifestsOptions`.
        saved: a plan that was written before (`apply_plan` reads it): exactly that is done, or nothing.
        snapshot_properties: keys and values of your own for the summaries of the new snapshots; none that others write.

    Raises:
        NotFoundError: the table has no such spec, branch, partition field or column.
        ExpressionError: `where` or a filter of the workload is none.
        UsageError: the branch is a tag; `sort_by` is empty, or given beside a workload.
        UnsupportedError: the table is encrypted.
        ConflictError: others kept changing what was to be replaced, however often it was planned again
            (`commit.retry.num-retries`).
        SafetyError: the table was dropped and made again meanwhile, or the saved plan does not hold any more.
        OutcomeUnknownError: the commit may or may not have landed.
    """

    def rewrite(now: Table, number: int) -> RewriteManifestsResult:
        return _rewrite(now, request, checked_rules(now.metadata, request), number)

    listener, only_once, swept_count = request.listener, request.saved is not None, 0
    # Arguments that do not hold are refused before anything is removed.
    checked_rules(table.metadata, request)
    if not only_once:
        swept_count = sweep_runs(table, table.runtime, keep=run_name(table), listener=listener)
    result = retry_with_replan(table, rewrite, what=lambda: "manifests", listener=listener, only_once=only_once)
    return msgspec.structs.replace(result, swept_files_count=swept_count)
