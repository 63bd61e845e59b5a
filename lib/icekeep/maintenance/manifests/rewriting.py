"""One round of the job: choose, write, commit; what was written for nothing is removed.

The run beats, as every run does. It holds no tag on the snapshot that it reads: what it replaces are manifests that the head
of the branch lists. Others can delete one of them only after a commit that lists it no more, and then there is nothing to be
committed here either, tag or not. So the tag would save no work, and cost a job that is mostly over in seconds two commits.
"""

import logging
from collections.abc import Sequence
from functools import partial

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.log_context import log_context
from icekeep.commit.attempt import Change
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.conflicts import Removed, removed_deletes
from icekeep.commit.file_sets import entry_digest
from icekeep.commit.retry import commit
from icekeep.errors import IcekeepError, OutcomeUnknownError
from icekeep.events import Listener, StepFinished, StepStarted, Warned
from icekeep.formats.deletes.read import hold_own_path
from icekeep.maintenance.exact_plans import held_removals
from icekeep.maintenance.figures import or_warned
from icekeep.maintenance.manifests.candidates import ManifestCandidates, candidates, tell_of_none
from icekeep.maintenance.manifests.execute import RewrittenManifests, discard, rewritten
from icekeep.maintenance.manifests.gains import filter_gains, group_gain, largest, listed_after, measured_ms
from icekeep.maintenance.manifests.result import RewriteManifestsResult
from icekeep.maintenance.manifests.rules import RewriteRules
from icekeep.maintenance.runs.heartbeat import Heartbeat, beating
from icekeep.maintenance.runs.names import run_name
from icekeep.maintenance.runs.written_files import WrittenFiles, written_files
from icekeep.planning.spark.session import SparkSource
from icekeep.spelling import counted, counted_doing

_LOG = logging.getLogger(__name__)


def rewrite_once(
    table: Table, rules: RewriteRules, spark: SparkSource, listener: Listener, number: int = 1
) -> RewriteManifestsResult:
    """Rewrite what is worth it of the table as it is given, by the plan of a number; raises what the job raises.

    Raises:
        ConflictError: others changed what was to be replaced; nothing is left.
    """
    runtime = table.runtime
    chosen = candidates(table, rules, spark, runtime.now_ms())
    left_alone = sum(group.left_alone_count for group in chosen.groups)
    if left_alone:
        listener.on(
            Warned(
                f"{counted_doing(left_alone, 'manifests', 'have')} fields that are not known and "
                f"{'is left as it is' if left_alone == 1 else 'are left as they are'}"
            )
        )
    tell_of_none(chosen, listener)
    if not chosen.replaced and not rules.options.remove_dangling_deletes:
        return RewriteManifestsResult(left_alone_manifests_count=left_alone)
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
    with (
        beating(table, run_id, "rewrite_manifests", runtime, listener) as heartbeat,
        written_files(table, run_id, listener) as written,
    ):
        return _rewritten(table, rules, chosen, spark, listener, heartbeat, written)


def _rewritten(
    table: Table,
    rules: RewriteRules,
    chosen: ManifestCandidates,
    spark: SparkSource,
    listener: Listener,
    heartbeat: Heartbeat,
    written: WrittenFiles,
) -> RewriteManifestsResult:
    left_alone = sum(group.left_alone_count for group in chosen.groups)
    listener.on(StepStarted("rewriting manifests", len(chosen.replaced), "manifests"))
    done = rewritten(table, chosen, spark, heartbeat.run_id, written)
    added = [manifest for one in done for manifest in one.added]
    try:
        listener.on(
            StepFinished("rewriting manifests", f"{counted(len(chosen.replaced), 'manifests')} -> {len(added):,}")
        )
        times = or_warned(
            "how long planning takes",
            lambda: _planning_times(table, rules, done, spark),
            (None, None),
            listener,
        )
        gains = or_warned("what the groups gain", lambda: tuple(group_gain(table, one) for one in done), (), listener)
        workload = or_warned(
            "what the workload gains",
            lambda: filter_gains(table, rules, chosen.listed, done, table.runtime.now_ms()),
            (),
            listener,
        )
        change = _change(table, chosen, rules, done, heartbeat)
    except BaseException:
        discard(done, written)
        raise
    try:
        landed = commit(table, change, runtime=table.runtime, listener=listener, undo=partial(discard, done, written))
    except OutcomeUnknownError:
        raise
    except IcekeepError:
        # Only an error of ours proves that nothing landed.
        discard(done, written)
        raise
    written.settle(manifest.manifest_path for manifest in added)
    return RewriteManifestsResult(
        rewritten_manifests_count=int(landed.summary.get("manifests-replaced", "0")),
        added_manifests_count=int(landed.summary.get("manifests-created", "0")),
        rewritten_bytes_count=sum(m.manifest_length for m in chosen.replaced),
        added_bytes_count=sum(m.manifest_length for m in added),
        entries_count=int(landed.summary.get("entries-processed", "0")),
        left_alone_manifests_count=left_alone,
        removed_delete_files_count=int(landed.summary.get("removed-delete-files", "0")),
        planning_time_before_ms=times[0],
        planning_time_after_ms=times[1],
        groups=gains,
        workload=workload,
    )


def _planning_times(
    table: Table, rules: RewriteRules, done: Sequence[RewrittenManifests], spark: SparkSource
) -> tuple[int | None, int | None]:
    """Of a filter on one partition, with the old manifests and with the new ones."""
    one = largest(done)
    if not rules.options.measure_planning or one is None:
        return None, None
    before_ms, after_ms = (
        measured_ms(table, one, manifests, spark, table.runtime) for manifests in (one.group.listed, listed_after(one))
    )
    return before_ms, after_ms


def dangling_of(table: Table, rules: RewriteRules) -> list[Removed]:
    """The delete files that a rewrite by these rules takes out of a table as it is; nothing is written.

    Raises:
        SafetyError: the plan that was given names one that is not among them.
    """
    if not rules.options.remove_dangling_deletes:
        return []
    found = removed_deletes(lambda: _dropping(rules.branch), table, rules.branch)
    if rules.given is None:
        return found
    entries = [entry for one in found for entry in one.entries]
    held = {entry_digest(entry) for entry in held_removals(rules.given, entries, table.metadata)}
    left = [Removed(one.manifest, tuple(e for e in one.entries if entry_digest(e) in held)) for one in found]
    return [one for one in left if one.entries]


def _dropping(branch: str) -> RewriteManifests:
    """A rewrite of no manifests that takes out the delete files which reach nothing."""
    return RewriteManifests(replaced=(), added=(), drop_dangling_deletes=True, proof=hold_own_path, branch=branch)


def _change(
    table: Table,
    chosen: ManifestCandidates,
    rules: RewriteRules,
    done: Sequence[RewrittenManifests],
    heartbeat: Heartbeat,
) -> Change:
    only = None
    if rules.given is not None:
        only = frozenset(entry_digest(entry) for one in dangling_of(table, rules) for entry in one.entries)
    change = msgspec.structs.replace(
        _dropping(rules.branch),
        replaced=tuple(chosen.replaced),
        added=tuple(manifest for one in done for manifest in one.added),
        drop_dangling_deletes=rules.options.remove_dangling_deletes,
        only_dangling=only,
        format_version=table.metadata.format_version,
    )
    return heartbeat.looking(change, [manifest.manifest_path for manifest in change.added])
