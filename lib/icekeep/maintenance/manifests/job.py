"""The job `rewrite_manifests`: metadata that plans fast.

manifest list -> which manifests -> records of their entries -> sorted and cut -> new manifests -> `RewriteManifests`;
planned anew where others changed what is replaced
"""

import msgspec

from icekeep.catalog.base import Table
from icekeep.maintenance.manifests.plan import RewriteManifestsPlan, plan_rewrite_manifests
from icekeep.maintenance.manifests.result import RewriteManifestsResult
from icekeep.maintenance.manifests.rewriting import rewrite_once
from icekeep.maintenance.manifests.rules import RewriteManifestsRequest, check_arguments, checked_rules
from icekeep.maintenance.planning_anew import plan_till_done
from icekeep.maintenance.requests import takes
from icekeep.maintenance.runs.left_behind import sweep_runs
from icekeep.maintenance.runs.names import run_name

__all__ = [
    "RewriteManifestsPlan",
    "RewriteManifestsResult",
    "check_arguments",
    "plan_rewrite_manifests",
    "rewrite_manifests",
]


@takes(RewriteManifestsRequest)
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
        where: a filter over manifests (`matching.COLUMNS`); Iceberg's `rewriteIf`.
        workload: filters over the table whose columns say what to cluster by, in place of `sort_by`; a list, or text with
            semicolons.
        use_caching: as Iceberg's; entries are read once here.
        branch: whose manifests are rewritten, and where that is committed; no other branch moves.
        options: `options.RewriteManifestsOptions`.
        given: a plan that was written before (`apply_plan` reads it): exactly that is done, or nothing.
        snapshot_properties: keys and values of your own for the summaries of the new snapshots; none that others write.

    Raises:
        NotFoundError: the table has no such spec, branch, partition field or column.
        ExpressionError: `where` or a filter of the workload is none.
        UsageError: the branch is a tag; `sort_by` is empty, or given beside a workload.
        UnsupportedError: the table is encrypted.
        ConflictError: others kept changing what was to be replaced, however often it was planned again
            (`commit.retry.num-retries`).
        SafetyError: the table was dropped and made again meanwhile, or what was given does not hold any more.
        OutcomeUnknownError: the commit may or may not have landed.
    """

    def rewritten(now: Table, number: int) -> RewriteManifestsResult:
        rules = checked_rules(now.metadata, request)
        return rewrite_once(now, rules, request.spark, request.listener, number)

    listener, only_once, swept_count = request.listener, request.given is not None, 0
    # Arguments that do not hold are refused before anything is removed.
    checked_rules(table.metadata, request)
    if not only_once:
        swept_count = sweep_runs(table, table.runtime, keep=run_name(table), listener=listener)
    result = plan_till_done(table, rewritten, what=lambda: "manifests", listener=listener, only_once=only_once)
    return msgspec.structs.replace(result, swept_files_count=swept_count)
