"""The job `rewrite_manifests`: metadata that plans fast.

manifests -> plan (which, how many) -> entries clustered by partition -> new manifests -> `RewriteManifests`
"""

from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.changes.rewrite_manifests import RewriteManifests
from icekeep.commit.retry import commit
from icekeep.errors import IcekeepError, OutcomeUnknownError
from icekeep.events import SILENT, Listener, StepFinished, StepStarted, Warned
from icekeep.maintenance.manifests.execute import discard, rewritten_manifests
from icekeep.maintenance.manifests.plan import RewriteManifestsPlan, plan_rewrite_manifests
from icekeep.maintenance.manifests.result import RewriteManifestsResult, result
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.snapshots import MAIN

__all__ = ["RewriteManifestsPlan", "RewriteManifestsResult", "plan_rewrite_manifests", "rewrite_manifests"]


def rewrite_manifests(
    table: Table,
    spark: SparkSession,
    *,
    spec_id: int | None = None,
    branch: str = MAIN,
    listener: Listener = SILENT,
    runtime: Runtime = SYSTEM,
) -> RewriteManifestsResult:
    """Cluster the entries of a spec's data manifests by partition into manifests of the target size.

    The table's files do not change. Nothing is committed where there is nothing to gain.

    Args:
        spec_id: the partition spec whose manifests are rewritten; the default spec if null.
        branch: whose manifests are rewritten, and where that is committed; no other branch moves.

    Raises:
        NotFoundError: the table has no such spec or branch.
        UsageError: the branch is a tag.
        UnsupportedError: the table is of a kind that cannot be rewritten yet.
        ConflictError: another writer changed a manifest that was to be replaced.
        OutcomeUnknownError: the commit may or may not have landed.
    """
    plan = plan_rewrite_manifests(table, spark, spec_id=spec_id, branch=branch)
    if plan.left_alone_manifests_count:
        left = f"{plan.left_alone_manifests_count} manifests have fields that are not known and are left as they are"
        listener.on(Warned(left))
    if not plan.manifests:
        return result(plan, ())
    listener.on(StepStarted("rewriting manifests", plan.manifests_count, "manifests"))
    added = rewritten_manifests(plan, table, spark) if plan.entries_count else ()
    listener.on(StepFinished("rewriting manifests", f"{plan.manifests_count} manifests -> {len(added)}"))
    version = table.metadata.format_version
    change = RewriteManifests(replaced=plan.manifests, added=added, format_version=version, branch=branch)
    try:
        commit(table, change, runtime=runtime, listener=listener)
    except OutcomeUnknownError:
        raise
    except IcekeepError:
        # Only an error of ours proves that nothing landed.
        discard(table, added)
        raise
    return result(plan, added)
