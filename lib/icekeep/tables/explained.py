"""What `explain` of a scan's DataFrame prints: what was planned of the table, and below that Spark's own plan.

Spark sees tasks that hand rows over, and nothing of manifests, files and deletes.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from icekeep.planning.scan.report import DeletesInUse, PlanScanResult
from icekeep.spec.units import format_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def explaining(rows: "DataFrame", name: str, plan: Callable[[], PlanScanResult]) -> "DataFrame":
    """The same DataFrame, whose `explain` prints the plan of the scan first; what is made of it has Spark's alone.

    Args:
        name: of the table.
        plan: makes the plan; called each time that somebody asks.
    """
    of_spark = rows.explain

    def explain(extended: bool | str | None = None, mode: str | None = None) -> None:
        """Print what the scan reads of the table, and then Spark's plan, as `DataFrame.explain` does."""
        sys.stdout.write(plan_text(name, plan()))
        of_spark(extended, mode)

    # The frame itself and no class of ours: whoever asks for its type gets Spark's.
    shown: Any = rows
    shown.explain = explain
    return rows


def plan_text(name: str, plan: PlanScanResult) -> str:
    """What a scan reads and what pruning has saved, as a few lines for people."""
    of = "" if plan.total_data_files_count is None else f" of {plan.total_data_files_count:,}"
    opened = plan.opened_manifests_count + plan.opened_delete_manifests_count
    snapshot = "no snapshot" if plan.snapshot_id is None else f"snapshot {plan.snapshot_id}"
    lines = [
        f"== icekeep: scan of {name}, {snapshot} ==",
        f"manifests    {opened:,} of {plan.manifests_count:,} opened",
        f"data files   {plan.data_files_count:,}{of} read, {format_bytes(plan.data_files_bytes)}, "
        f"up to {plan.record_count:,} rows",
        f"             left out: {_with_manifests(plan)}{plan.pruned_by_partition_count:,} by their partition, "
        f"{plan.pruned_by_metrics_count:,} by bounds of their columns",
        f"deletes      {_deletes(plan.deletes)}",
        f"planned by   {plan.reading}",
    ]
    return "\n".join(lines) + "\n\n"


def _with_manifests(plan: PlanScanResult) -> str:
    if plan.total_data_files_count is None:
        return ""
    return f"{plan.total_data_files_count - plan.opened_data_files_count:,} with their manifests, "


def _deletes(deletes: DeletesInUse) -> str:
    kinds = (
        (deletes.deletion_vectors_count, "deletion vectors"),
        (deletes.position_delete_files_count, "position delete files"),
        (deletes.equality_delete_files_count, "equality delete files"),
    )
    return ", ".join(f"{count:,} {kind}" for count, kind in kinds if count) or "none"
