"""A plan that was written before -> its groups of delete files again, as the table has them now, or a refusal."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from icekeep.commit.file_sets import ReadFile, entry_digest
from icekeep.maintenance.compaction.estimate import RATES_BYTES_A_SECOND, RewriteMethod
from icekeep.maintenance.deciding import hold_decided, of_delete_files
from icekeep.maintenance.exact_plans import (
    GROUP,
    REMOVE,
    REWRITE,
    GivenPlan,
    PlanCost,
    PlanLine,
    already,
    delete_file_line,
    landed,
    moved,
    some_of,
)
from icekeep.maintenance.position_deletes.candidates import Candidate, PositionDeletes
from icekeep.maintenance.position_deletes.live_data import Partition
from icekeep.maintenance.position_deletes.plan import DeletesPlan
from icekeep.spec.metadata import TableMetadata
from icekeep.spelling import counted_doing


def exact_lines(plan: DeletesPlan, becomes: str) -> Iterator[PlanLine]:
    """All that a plan does: each group with its delete files, then those that reach nothing.

    Args:
        becomes: what comes of the groups.
    """
    for group in plan.groups:
        yield PlanLine(
            do=REWRITE,
            kind=GROUP,
            group=group.number,
            size_bytes=group.bytes,
            record_count=group.record_count,
            says={"partition": group.partition, "spec_id": group.spec_id, "becomes": becomes},
        )
        for read in group.files:
            yield delete_file_line(read.entry, REWRITE, group.number)
    for read in plan.dangling:
        yield delete_file_line(read.entry, REMOVE)


def cost_of(plan: DeletesPlan) -> PlanCost:
    """What a plan takes: each file is read and written once, at the rate of files that are encoded anew."""
    size = sum(group.bytes for group in plan.groups)
    count = sum(group.files_count for group in plan.groups)
    return PlanCost(
        read_bytes=size,
        written_bytes=size,
        requests_count=2 * count,
        cpu_ms=size * 1000 // RATES_BYTES_A_SECOND[RewriteMethod.REENCODE],
    )


class GivenDeletes(NamedTuple):
    """The groups and the dangling files of a plan that are to be done still."""

    groups: list[tuple[Partition, list[Candidate]]]
    dangling: tuple[ReadFile, ...]


def given_deletes(deletes: PositionDeletes, given: GivenPlan, metadata: TableMetadata, becomes: str) -> GivenDeletes:
    """What a plan that was given says of the live deletes; groups that an earlier run of it has committed are left out.

    Raises:
        SafetyError: a file of it is gone, or is not what it was; or other files would come of it.
        AlreadyApplied: nothing is left.
    """
    found = {_state(one.read): (partition, one) for partition, some in deletes.by_partition.items() for one in some}
    dangling = {_state(read): read for read in deletes.dangling}
    has_landed = bool(landed(given, metadata))
    lines = [*given.lines()]
    groups = [one for one in _by_group(lines) if not (has_landed and _is_gone(one, found))]
    removed = [line for line in lines if line.do == REMOVE]
    if has_landed and not any(line.state in dangling for line in removed):
        # They go with the first commit.
        removed = []
    gone = [line.name for group in groups for line in group if line.state not in found]
    gone += [line.name for line in removed if line.state not in dangling]
    if gone:
        before = "it was" if len(gone) == 1 else "they were"
        problem = (
            f"{counted_doing(len(gone), 'delete files', 'are')} gone, or not what {before}, such as {some_of(gone)}"
        )
        raise moved(given, metadata, problem, gone_count=len(gone))
    if any(len({found[line.state][0] for line in group}) > 1 for group in groups):
        raise moved(given, metadata, "delete files of several partitions would become one")
    others = {line.says.get("becomes") for line in lines if line.kind == GROUP} - {becomes}
    if others:
        raise moved(given, metadata, f"the delete files would become {becomes} by now")
    if has_landed and not groups and not removed:
        raise already(given, metadata)
    hold_decided(given, metadata, of_delete_files(metadata))
    chosen = [(found[group[0].state][0], [found[line.state][1] for line in group]) for group in groups]
    return GivenDeletes(chosen, tuple(dangling[line.state] for line in removed))


def _is_gone(group: Sequence[PlanLine], found: Iterable[str]) -> bool:
    return all(line.state not in found for line in group)


def _by_group(lines: Iterable[PlanLine]) -> list[list[PlanLine]]:
    groups: dict[int, list[PlanLine]] = {}
    for line in lines:
        if line.group is not None and line.kind != GROUP:
            groups.setdefault(line.group, []).append(line)
    return [*groups.values()]


def _state(read: ReadFile) -> str:
    return entry_digest(read.entry).hex()
