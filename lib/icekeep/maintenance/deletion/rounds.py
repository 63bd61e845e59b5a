"""In which order and in how many tasks the parts of a plan are carried out."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from icekeep.maintenance.deletion.plans import PlanPart
from icekeep.planning.spark.workers import small_tasks
from icekeep.runtime import Runtime
from icekeep.spec.collections import balanced, packed
from icekeep.spec.types import MINUTE_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROUND_MS = MINUTE_MS
"""How long a round of tasks is meant to last."""

_FIRST_ROUND_PARTS = 4
_TASK_FILES_PER_SECOND = 500
"""What one task deletes, where the speed of all is limited."""


def stages(parts: Sequence[PlanPart]) -> list[tuple[PlanPart, ...]]:
    """What manifests name, and then the rest."""
    content = tuple(part for part in parts if all(f.kind.is_content for f in part.files))
    others = tuple(part for part in parts if part not in content)
    return [stage for stage in (content, others) if stage]


def rounds(
    parts: tuple[PlanPart, ...], files_per_second: float | None, runtime: Runtime
) -> Iterator[Sequence[PlanPart]]:
    """Parts between two looks at the catalog: as many as are done in a while, by the limited speed or by the last round."""
    if files_per_second is not None:
        yield from packed(parts, (lambda part: part.files_count, files_per_second * _ROUND_MS / 1000))
        return
    start, count = 0, _FIRST_ROUND_PARTS
    while start < len(parts):
        some, began_ms = parts[start : start + count], runtime.monotonic_ms()
        yield some
        # Slots may have come or gone meanwhile.
        in_time = len(some) * _ROUND_MS // max(1, runtime.monotonic_ms() - began_ms)
        start, count = start + len(some), max(1, min(2 * count, in_time))


def task_bins(
    rate: float | None, parts: Sequence[PlanPart], max_concurrent_deletes: int | None, session: "SparkSession"
) -> tuple[list[list[PlanPart]], float | None]:
    """The parts of each task, and how many files a second each may do."""
    bins_count = min(len(parts), max_concurrent_deletes or len(parts))
    if rate is not None:
        # Each at its share of the speed: those that wait for a slot only make it slower.
        bins_count = min(bins_count, max(1, int(rate // _TASK_FILES_PER_SECOND)), small_tasks(session))
    bins = balanced(parts, lambda part: part.files_count, bins_count)
    return bins, None if rate is None else rate / len(bins)
