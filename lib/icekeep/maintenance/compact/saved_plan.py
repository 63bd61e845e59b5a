"""A compaction as the lines of a plan file, and a saved plan -> its groups again, as the table has their files now, or a refusal.

Each file must be live still, with the same delete files that reach it: then the plan is that of today, and carried out like one
that was just made. What others added beside these files does not matter, nor that the rows of a table which was upgraded to
version 3 were given their first ids.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import accumulate

import msgspec
import pyarrow as pa

from icekeep.maintenance.compact.candidates import RANGE, few_planned_files, planned_candidates
from icekeep.maintenance.compact.method import GroupMethod
from icekeep.maintenance.compact.options import CompactionEstimate, RewriteDataFilesOptions
from icekeep.maintenance.compact.order import Strategy
from icekeep.maintenance.compact.plan import CandidateColumns, FileGroup, GroupFiles, RewritePlan, group_files
from icekeep.maintenance.compact.planner import IN_PLAN, BinPacker, group_rules, path_of_group, plan_of
from icekeep.maintenance.plans import (
    APPLY,
    EQUALITY_DELETES,
    GROUP,
    POSITION_DELETES,
    REMOVE,
    REWRITE,
    VECTOR,
    PlanCost,
    PlanLine,
    SavedPlan,
)
from icekeep.maintenance.preconditions import (
    already_applied,
    check_decided,
    delete_file_line,
    first_of,
    landed,
    moved,
    of_data_files,
)
from icekeep.planning.scan.plan import Scan
from icekeep.planning.spark.rows import record_batches
from icekeep.planning.spark.session import SparkSource
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
        pa.field(RANGE, pa.int32(), nullable=False),
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
        method = methods[group.number]
        yield PlanLine(
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
        files = group_files(group, storage)
        for delete in files.deletes:
            kind = EQUALITY_DELETES if delete.equality_ids else POSITION_DELETES
            yield PlanLine(
                do=APPLY,
                kind=kind if delete.content_offset is None else VECTOR,
                name=delete.file_path,
                group=group.number,
                size_bytes=delete.bytes_to_read,
                record_count=delete.record_count,
            )
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
    digests = (
        int.from_bytes(_digest((one.file_path, one.content_offset, one.content, one.sequence_number)), "big")
        for one in files.deletes
    )
    sums = [*accumulate(digests, initial=0)]
    states = []
    for file in files.files:
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
        states.append(_digest(facts, reaching.to_bytes(_DIGEST_BYTES, "big")).hex())
    return states


def _digest(facts: tuple[object, ...], more: bytes = b"") -> bytes:
    return blake2b(repr(facts).encode() + more, digest_size=_DIGEST_BYTES).digest()


def plan_saved(
    scan: Scan,
    spark: SparkSource,
    strategy: Strategy,
    options: RewriteDataFilesOptions,
    saved: SavedPlan,
    directory: str | None,
) -> RewritePlan:
    """The groups of a saved plan, of the files as the scan has them.

    Groups that an earlier run of the same plan has committed are left out.

    Args:
        directory: as for `planner.plan`.

    Raises:
        SafetyError: a file is gone, or other deletes reach it, or a group would be of another partition spec.
        AlreadyApplied: nothing is left.
        InvalidTableError, MissingFileError, UnsupportedError, OptionError, NotFoundError: as `planner.plan`.
    """
    metadata = scan.table.metadata
    rules = group_rules(scan, spark, strategy, msgspec.structs.replace(options, rewrite_all=True))
    # How files overlap is not asked again.
    rules = msgspec.structs.replace(rules, space=None)
    rows = (
        (line.name, line.group, place)
        for place, line in enumerate(saved.lines())
        if line.kind == FILE and line.group is not None
    )
    named = pa.Table.from_batches(record_batches(rows, _ROWS), _ROWS)
    files = planned_candidates(scan, spark, rules, named)
    # Files that are only looked at are compared with the plan, too.
    packer = BinPacker(rules=rules, storage=scan.table.storage, directory=directory or IN_PLAN, is_of_saved_plan=True)
    packed = (
        packer.packed(files if files.are_regular else [*few_planned_files(files, None)])
        if isinstance(files, CandidateColumns)
        else packer.packed(files.repartition(RANGE).sortWithinPartitions(RANGE, _PLACE))
    )
    groups = {
        one.range_number: msgspec.structs.replace(
            one.group, number=one.range_number, partition=path_of_group(one, metadata)
        )
        for one in packed[0]
    }
    order = _checked_order(groups, saved, scan)
    check_decided(saved, metadata, of_data_files(metadata))
    return plan_of([groups[number] for number in order], scan, rules, saved.head.branch)


def _saved_groups(saved: SavedPlan) -> Iterator[tuple[PlanLine, dict[str, str]]]:
    """The line of each group, and the states of its files by path; of a large plan no more is held."""
    current: PlanLine | None = None
    states: dict[str, str] = {}
    for line in saved.lines():
        if line.kind == GROUP:
            if current is not None:
                yield current, states
            current, states = line, {}
        elif line.kind == FILE:
            states[line.name] = line.state
    if current is not None:
        yield current, states


def _checked_order(groups: Mapping[int, FileGroup], saved: SavedPlan, scan: Scan) -> list[int]:
    """The numbers of the groups that are to be done, in the order of the plan; each is held against it."""
    metadata, storage = scan.table.metadata, scan.table.storage
    has_landed = bool(landed(saved, metadata))
    order: list[int] = []
    gone: list[str] = []
    changed: list[str] = []
    others: list[str] = []
    for line, states in _saved_groups(saved):
        assert line.group is not None
        group = groups.get(line.group)
        if group is None and has_landed:
            continue
        now = {} if group is None else _states_now(group, storage)
        gone += [path for path in states if path not in now]
        changed += [path for path, state in states.items() if path in now and state not in now[path]]
        if group is not None and group.output_spec_id != line.says.get(_OUTPUT_SPEC):
            others.append(f"files of group {line.group} would be of partition spec {group.output_spec_id}")
        order.append(line.group)
    problems = []
    if gone:
        are = "is" if len(gone) == 1 else "are"
        problems.append(f"{counted(len(gone), 'files')} to rewrite {are} gone, such as {first_of(gone)}")
    if changed:
        problems.append(
            f"{counted_doing(len(changed), 'files', 'have')} other deletes now, or were added again, such as "
            f"{first_of(changed)}"
        )
    if not problems and others:
        problems.append(f"{others[0]} by the table's properties as they are now")
    if problems:
        raise moved(saved, metadata, "; ".join(problems), gone_count=len(gone), changed_count=len(changed))
    if has_landed and not order:
        raise already_applied(saved, metadata)
    return order


def _states_now(group: FileGroup, storage: Storage) -> dict[str, tuple[str, str]]:
    """Of each file its state, and what that was before its rows had ids, which the first commit in version 3 gives."""
    files = group_files(group, storage)
    without_ids = (msgspec.structs.replace(file, first_row_id=None) for file in files.files)
    before = states_of(GroupFiles(tuple(without_ids), files.deletes))
    paths = (file.file_path for file in files.files)
    return dict(zip(paths, zip(states_of(files), before, strict=True), strict=True))
