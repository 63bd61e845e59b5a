"""How the rows of each group reach their new files: what may be copied is told by footers, which are read here.

Few files are looked at by threads of the driver, many in Spark tasks; what comes back is small either way.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import msgspec

from icekeep.errors import UnsupportedError
from icekeep.formats.rewrite.stitching import (
    MAX_ROW_GROUPS,
    MAX_STITCHED_FOOTER_BYTES,
    STITCH_FLOOR_BYTES,
    NotStitchable,
    Stitchable,
    StitchRules,
    examine,
)
from icekeep.formats.write_options import write_options
from icekeep.maintenance.compaction.estimate import RewriteMethod
from icekeep.maintenance.compaction.options import StitchChoice
from icekeep.maintenance.compaction.plan import FileGroup, GroupFiles, RewritePlan, group_files
from icekeep.maintenance.compaction.tasks import GroupContext, ordering_of, rewrite_tasks_count, whole_pieces
from icekeep.maintenance.groups.file_sizes import FileSizes, expected_output_files
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.planning.spark.workers import Workers
from icekeep.spec.bins import cut_evenly, packed
from icekeep.storage.base import Storage
from icekeep.storage.many import REQUESTS_AT_ONCE

MAX_RANGES = 8
"""In a local session a group above so many times the budget is shuffled: until then it is cheaper to read it so often."""

MAX_RUNS = 2
"""On a cluster a task that has a group to itself puts so many ordered runs of the budget on disk; more goes to several tasks."""

FOOTERS_A_TASK = 500

ARROW_GROWTH = 7
"""How much larger rows are in memory than in a compressed file: numbers and short strings."""


class GroupMethod(msgspec.Struct, frozen=True, kw_only=True):
    """How a group is rewritten.

    Attributes:
        method: of most of its bytes.
        stitched: the files that are put together byte for byte, by their positions in `GroupFiles.files`; each of these
            sets becomes one file.
        stitched_bytes: of these files.
        reason: why the others are not, the reason of most of them; empty where nobody would ask.
        tasks_count: how many tasks rewrite the group, where these need nothing of each other.
    """

    method: RewriteMethod
    stitched: tuple[tuple[int, ...], ...] = ()
    stitched_bytes: int = 0
    reason: str = ""
    tasks_count: int = 1

    @property
    def stitched_files_count(self) -> int:
        """How many files are put together."""
        return sum(map(len, self.stitched))


class _Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to look at groups; goes to the tasks."""

    context: GroupContext
    rules: StitchRules
    sizes: FileSizes
    choice: StitchChoice
    storage: Storage


def choose_methods(
    plan: RewritePlan,
    context: GroupContext,
    sizes: FileSizes,
    choice: StitchChoice,
    storage: Storage,
    workers: Workers,
) -> dict[int, GroupMethod]:
    """Decide for each group of a plan, by its number.

    Args:
        choice: the option `stitch`: `auto` copies what may be and is worth it, `always` all files or fails, `never` none.

    Raises:
        UnsupportedError: `always`, and a file cannot be copied.
        InvalidTableError, MissingFileError: a footer cannot be read.
    """
    methods = {}
    open_groups = []
    for group in plan.groups:
        if ordering_of(group, context) is not None:
            shuffles = _is_shuffled(group, context.budget_bytes, workers)
            methods[group.number] = GroupMethod(method=RewriteMethod.SHUFFLE if shuffles else RewriteMethod.SORT)
        elif not group.has_files:
            methods[group.number] = GroupMethod(
                method=RewriteMethod.REENCODE, reason="not looked at in a preview of so many files"
            )
        else:
            open_groups.append(group)
    properties, metadata = context.metadata.properties, context.metadata
    floor_bytes = STITCH_FLOOR_BYTES if choice == "auto" else 1
    examination = _Examination(
        context=context,
        rules=StitchRules(schema=metadata.schema, options=write_options(properties), floor_bytes=floor_bytes),
        sizes=sizes,
        choice=choice,
        storage=storage,
    )
    return methods | _examined(open_groups, examination, workers)


def _is_shuffled(group: FileGroup, budget_bytes: int, workers: Workers) -> bool:
    """Whether rows of a group that are to be ordered go through Spark's shuffle; a task orders `budget_bytes` at a time."""
    most = MAX_RANGES if workers.is_local else MAX_RUNS
    return workers.spark is not None and group.bytes * ARROW_GROWTH > most * budget_bytes


def _examined(groups: Sequence[FileGroup], examination: _Examination, workers: Workers) -> dict[int, GroupMethod]:
    if workers.spark is None or sum(group.files_count for group in groups) <= workers.limits.footers_count:
        return _methods_of(groups, examination, threads=REQUESTS_AT_ONCE)
    bins = [*packed(groups, (lambda group: group.files_count, FOOTERS_A_TASK))]
    step = "looking at footers of data files"
    parts = all_results(run_tasks(workers.spark, bins, _methods_of, examination, step=step))
    return {number: method for part in parts for number, method in part.items()}


def _methods_of(groups: Sequence[FileGroup], examination: _Examination, threads: int = 2) -> dict[int, GroupMethod]:
    with ThreadPoolExecutor(threads) as pool:
        return {group.number: _method_of(group, examination, pool) for group in groups}


def _method_of(group: FileGroup, examination: _Examination, pool: ThreadPoolExecutor) -> GroupMethod:
    files, metadata = group_files(group, examination.storage), examination.context.metadata
    if examination.choice == "never":
        count = rewrite_tasks_count(group, files, metadata, examination.sizes)
        return GroupMethod(method=RewriteMethod.REENCODE, reason="option stitch is never", tasks_count=count)
    pieces = whole_pieces(files, metadata)
    look = partial(examine, rules=examination.rules, storage=examination.storage)
    found = [*pool.map(look, pieces)]
    if examination.choice == "always":
        _require_stitchable(files, found)
    stitched = _sets(files, found, examination)
    positions = {position for some in stitched for position in some}
    stitched_bytes = sum(files.files[position].file_size_in_bytes for position in positions)
    reasons = Counter(one.reason for one in found if isinstance(one, NotStitchable))
    if not reasons and len(positions) < len(found):
        reasons["no other file of the group has the same layout"] += 1
    left = tuple(file for position, file in enumerate(files.files) if position not in positions)
    encoded = GroupFiles(left, files.deletes)
    return GroupMethod(
        method=RewriteMethod.STITCH if 2 * stitched_bytes > group.bytes else RewriteMethod.REENCODE,
        stitched=stitched,
        stitched_bytes=stitched_bytes,
        reason=reasons.most_common(1)[0][0] if reasons else "",
        tasks_count=len(stitched) + (rewrite_tasks_count(group, encoded, metadata, examination.sizes) if left else 0),
    )


def _require_stitchable(files: GroupFiles, found: Sequence[Stitchable | NotStitchable]) -> None:
    for file, one in zip(files.files, found, strict=True):
        if isinstance(one, NotStitchable):
            raise UnsupportedError(
                f"data file {file.file_path!r} cannot be stitched: {one.reason}; give option stitch=auto",
                location=file.file_path,
            )


def _sets(
    files: GroupFiles, found: Sequence[Stitchable | NotStitchable], examination: _Examination
) -> tuple[tuple[int, ...], ...]:
    """Files with equal keys in sets of about the target size; a file alone is left to be written anew."""
    by_key: dict[bytes, list[_ToStitch]] = defaultdict(list)
    for position, (file, one) in enumerate(zip(files.files, found, strict=True)):
        if isinstance(one, Stitchable):
            counted = _ToStitch(position, file.file_size_in_bytes, one.row_groups_count, one.footer_bytes)
            by_key[one.key].append(counted)
    least = 1 if examination.choice == "always" else 2
    sets = [some for alike in by_key.values() for some in _cut_to_size(alike, examination.sizes)]
    return tuple(tuple(one.position for one in some) for some in sets if len(some) >= least)


class _ToStitch(NamedTuple):
    position: int
    size_bytes: int
    row_groups_count: int
    footer_bytes: int


def _cut_to_size(files: Sequence[_ToStitch], sizes: FileSizes) -> list[Sequence[_ToStitch]]:
    """Neighbours in as many sets as a rewrite would make files, of about one size: no small rest is left over."""
    size_of = attrgetter("size_bytes")
    return cut_evenly(
        files,
        size_of,
        expected_output_files(sum(map(size_of, files)), sizes),
        (size_of, sizes.max_bytes),
        (attrgetter("row_groups_count"), MAX_ROW_GROUPS),
        (attrgetter("footer_bytes"), MAX_STITCHED_FOOTER_BYTES),
    )
