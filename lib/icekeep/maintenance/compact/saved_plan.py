"""A plan that was written before -> its groups again, as the table has their files now, or a refusal.

Each file must be live still, with the same delete files that reach it: then the plan is that of today, and carried out like one
that was just made. What others added beside these files does not matter, nor that the rows of a table which was upgraded to
version 3 were given their first ids.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple

import msgspec
import pyarrow as pa

from icekeep.formats.options import write_options
from icekeep.maintenance.compact.candidates import STRETCH, few_planned_files, file_columns, many_planned_files
from icekeep.maintenance.compact.grouping import GroupRules, PlannedGroup, group_of
from icekeep.maintenance.compact.method import GroupMethod
from icekeep.maintenance.compact.options import CompactionEstimate, RewriteDataFilesOptions
from icekeep.maintenance.compact.plan import (
    FileGroup,
    GroupDelete,
    GroupFile,
    GroupFiles,
    RewritePlan,
    Strategy,
    group_files,
    output_specs,
    snapshots_in_order,
)
from icekeep.maintenance.compact.planner import IN_PLAN, PackTask, held, packed_in_tasks, path_of_group
from icekeep.maintenance.rewrite.options import file_sizes
from icekeep.maintenance.saved_plans import (
    APPLY,
    EQUALITY_DELETES,
    GROUP,
    POSITION_DELETES,
    REMOVE,
    REWRITE,
    VECTOR,
    GivenPlan,
    PlanCost,
    PlanLine,
    already,
    delete_file_line,
    hold_decided,
    landed,
    moved,
    of_data_files,
    some_of,
)
from icekeep.planning.deletes import EVERY_PAIR
from icekeep.planning.scan.plan import Scan, few_files, planned_files, planned_files_with_deletes
from icekeep.planning.spark.rows import arrow_dataframe, record_batches
from icekeep.planning.spark.session import F, SparkSource, limits_of, started
from icekeep.spec.collections import stretches
from icekeep.spec.manifests.structs import ManifestEntry
from icekeep.spelling import counted, counted_doing
from icekeep.storage.base import Storage

FILE = "data file"
_OUTPUT_SPEC = "output_spec_id"

_PLACE = "place"
_ROWS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False),
        pa.field(STRETCH, pa.int32(), nullable=False),
        pa.field(_PLACE, pa.int32(), nullable=False),
    ]
)
_DIGEST_BYTES = 16
_MODULUS = 1 << (8 * _DIGEST_BYTES)


def exact_lines(
    plan: RewritePlan, methods: Mapping[int, GroupMethod], removed: Iterable[ManifestEntry], storage: Storage
) -> Iterator[PlanLine]:
    """All that a plan does: each group with its files and the delete files that are applied to them, then what is taken out.

    Args:
        removed: the delete files that the commits take out.
    """
    for group in plan.groups:
        yield _group_line(group, methods[group.number])
        files = group_files(group, storage)
        for delete in files.deletes:
            yield _delete_line(delete, group.number)
        for file, state in zip(files.files, states_of(files), strict=True):
            yield PlanLine(
                do=REWRITE,
                kind=FILE,
                name=file.file_path,
                group=group.number,
                size_bytes=file.file_size_in_bytes,
                record_count=file.record_count,
                state=state,
            )
    for entry in removed:
        yield delete_file_line(entry, REMOVE)


def cost_of(estimated: CompactionEstimate) -> PlanCost:
    """What a plan will take."""
    return PlanCost(
        read_bytes=estimated.read_bytes,
        written_bytes=estimated.written_bytes,
        requests_count=estimated.requests_count,
        cpu_ms=estimated.cpu_ms,
    )


def states_of(files: GroupFiles) -> list[str]:
    """For each file of a group a hash of it and of the delete files that reach it, in whatever order these are.

    The first row id is part of it: a file that was put there again by another commit has another one.
    """
    sums = [*accumulate((_delete_digest(one) for one in files.deletes), initial=0)]
    return [_state(file, sums) for file in files.files]


def plan_given(
    scan: Scan,
    spark: SparkSource,
    strategy: Strategy,
    options: RewriteDataFilesOptions,
    given: GivenPlan,
    directory: str | None,
) -> RewritePlan:
    """The groups of a plan that was given, of the files as the scan has them.

    Groups that an earlier run of the same plan has committed are left out.

    Args:
        directory: as for `planner.plan`.

    Raises:
        SafetyError: a file is gone, or other deletes reach it, or a group would be of another partition spec.
        AlreadyApplied: nothing is left.
        InvalidTableError, MissingFileError, UnsupportedError, OptionError, NotFoundError: as `planner.plan`.
    """
    metadata = scan.table.metadata
    sizes = file_sizes(options, write_options(metadata.properties).target_file_size_bytes)
    rules = GroupRules(
        sizes=sizes,
        options=msgspec.structs.replace(options, rewrite_all=True),
        strategy=strategy,
        in_order=snapshots_in_order(strategy, metadata),
        output_specs=output_specs(scan, spark, options),
    )
    found = {one.stretch: one for one in _groups(scan, spark, rules, given, directory)}
    groups = {
        number: msgspec.structs.replace(one.group, number=number, partition=path_of_group(one, metadata))
        for number, one in found.items()
    }
    order = _held_order(groups, given, scan)
    hold_decided(given, metadata, of_data_files(metadata))
    ordered = tuple(groups[number] for number in order)
    snapshot = scan.version.snapshot
    return RewritePlan(
        branch=given.branch,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        sequence_number=0 if snapshot is None else snapshot.sequence_number,
        schema_id=metadata.current_schema_id,
        strategy=strategy.text,
        target_file_size_bytes=sizes.target_bytes,
        candidate_files_count=sum(group.files_count for group in ordered),
        rewritten_data_files_count=sum(group.files_count for group in ordered),
        rewritten_bytes_count=sum(group.bytes for group in ordered),
        expected_files_count=sum(group.expected_files_count for group in ordered),
        groups=ordered,
    )


def _groups(
    scan: Scan, spark: SparkSource, rules: GroupRules, given: GivenPlan, directory: str | None
) -> Iterable[PlannedGroup]:
    columns = file_columns(None)
    deletes = bool(scan.deletes.opened)
    few = few_files(scan, limits_of(spark), columns, deletes=deletes, max_pairs=EVERY_PAIR)
    rows = _rows(given)
    if few is not None:
        places = {path: (group, place) for path, group, place in rows}
        by_group = defaultdict(list)
        for one in few_planned_files(few, rules, only=places.keys()):
            group, place = places[one.file.file_path]
            by_group[group].append((place, msgspec.structs.replace(one, stretch=group)))
        in_order = ([one for _, one in sorted(some, key=lambda pair: pair[0])] for some in by_group.values())
        return [held(group_of(some, 0, rules)) for some in in_order]
    plan_files = planned_files_with_deletes if deletes else planned_files
    named = pa.Table.from_batches(record_batches(rows, _ROWS), _ROWS)
    files = many_planned_files(plan_files(scan, spark, columns), rules)
    own = files.join(F.broadcast(arrow_dataframe(started(spark), named)), "file_path")
    # Also what is only looked at is held against the plan.
    task = PackTask(rules=rules, storage=scan.table.storage, directory=directory or IN_PLAN, as_given=True)
    return packed_in_tasks(own.repartition(STRETCH).sortWithinPartitions(STRETCH, _PLACE), task)[0]


def _rows(given: GivenPlan) -> Iterator[tuple[str, int, int]]:
    for place, line in enumerate(given.lines()):
        if line.kind == FILE and line.group is not None:
            yield line.name, line.group, place


class _GivenGroup(NamedTuple):
    """A group as the plan has it: its line, and the states of its files by path."""

    line: PlanLine
    states: dict[str, str]


def _given_groups(given: GivenPlan) -> Iterator[_GivenGroup]:
    """One after the other: of a large plan no more is held."""
    current: _GivenGroup | None = None
    for line in given.lines():
        if line.kind == GROUP:
            if current is not None:
                yield current
            current = _GivenGroup(line, {})
        elif line.kind == FILE and current is not None:
            current.states[line.name] = line.state
    if current is not None:
        yield current


def _held_order(groups: Mapping[int, FileGroup], given: GivenPlan, scan: Scan) -> list[int]:
    """The numbers of the groups that are to be done, in the order of the plan; each is held against it."""
    metadata, storage = scan.table.metadata, scan.table.storage
    has_landed = bool(landed(given, metadata))
    order: list[int] = []
    gone: list[str] = []
    changed: list[str] = []
    others: list[str] = []
    for one in _given_groups(given):
        assert one.line.group is not None
        group = groups.get(one.line.group)
        if group is None and has_landed:
            continue
        now = {} if group is None else _states_now(group, storage)
        gone += [path for path in one.states if path not in now]
        changed += [path for path, state in one.states.items() if path in now and state not in now[path]]
        if group is not None and group.output_spec_id != one.line.says.get(_OUTPUT_SPEC):
            others.append(f"files of group {one.line.group} would be of partition spec {group.output_spec_id}")
        order.append(one.line.group)
    problems = (
        [f"{counted(len(gone), 'files')} to rewrite {'is' if len(gone) == 1 else 'are'} gone, such as {some_of(gone)}"]
        if gone
        else []
    )
    if changed:
        problems.append(
            f"{counted_doing(len(changed), 'files', 'have')} other deletes now, or were added again, such as "
            f"{some_of(changed)}"
        )
    if not problems and others:
        problems.append(f"{others[0]} by the table's properties as they are now")
    if problems:
        raise moved(given, metadata, "; ".join(problems), gone_count=len(gone), changed_count=len(changed))
    if has_landed and not order:
        raise already(given, metadata)
    return order


def _states_now(group: FileGroup, storage: Storage) -> dict[str, tuple[str, str]]:
    """Of each file its state, and what that was before its rows had ids, which the first commit in version 3 gives."""
    files = group_files(group, storage)
    without_ids = (msgspec.structs.replace(file, first_row_id=None) for file in files.files)
    before = states_of(GroupFiles(tuple(without_ids), files.deletes))
    paths = (file.file_path for file in files.files)
    return dict(zip(paths, zip(states_of(files), before, strict=True), strict=True))


def _group_line(group: FileGroup, method: GroupMethod) -> PlanLine:
    return PlanLine(
        do=REWRITE,
        kind=GROUP,
        group=group.number,
        size_bytes=group.bytes,
        record_count=group.record_count,
        says={
            "partition": group.partition,
            "spec_id": group.spec_id,
            _OUTPUT_SPEC: group.output_spec_id,
            "files_count": group.files_count,
            "delete_files_count": group.delete_files_count,
            "expected_files_count": method.files_count,
            "method": str(method.method),
        },
    )


def _delete_line(delete: GroupDelete, number: int) -> PlanLine:
    kind = EQUALITY_DELETES if delete.equality_ids else POSITION_DELETES
    if delete.content_offset is not None:
        kind = VECTOR
    return PlanLine(
        do=APPLY,
        kind=kind,
        name=delete.file_path,
        group=number,
        size_bytes=delete.bytes_to_read,
        record_count=delete.record_count,
    )


def _state(file: GroupFile, sums: Sequence[int]) -> str:
    reaching = sum(sums[stop] - sums[start] for start, stop in stretches(file.deletes)) % _MODULUS
    facts = (
        file.file_path,
        file.spec_id,
        file.partition,
        file.record_count,
        file.file_size_in_bytes,
        file.sequence_number,
        file.first_row_id,
        len(file.deletes),
    )
    return blake2b(
        repr(facts).encode() + reaching.to_bytes(_DIGEST_BYTES, "big"), digest_size=_DIGEST_BYTES
    ).hexdigest()


def _delete_digest(delete: GroupDelete) -> int:
    facts = (delete.file_path, delete.content_offset, delete.content, delete.sequence_number)
    return int.from_bytes(blake2b(repr(facts).encode(), digest_size=_DIGEST_BYTES).digest(), "big")
