"""How the rows of each group reach their new files: what may be copied is told by footers, which are read here.

Few files are looked at by threads of the driver, many in Spark tasks; what comes back is small either way.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from icekeep.errors import UnsupportedError
from icekeep.formats.options import write_options
from icekeep.formats.rewrite.copy_row_groups import (
    MAX_ROW_GROUPS,
    MAX_STITCHED_FOOTER_BYTES,
    STITCH_FLOOR_BYTES,
    NotStitchable,
    Stitchable,
    StitchRules,
    examine,
)
from icekeep.maintenance.compaction.estimate import RewriteMethod
from icekeep.maintenance.compaction.options import StitchChoice
from icekeep.maintenance.compaction.plan import FileGroup, GroupFiles, RewritePlan, group_files
from icekeep.maintenance.compaction.shares import Share, Slice, shares_of
from icekeep.maintenance.compaction.tasks import GroupContext, ordering_of, whole_pieces
from icekeep.maintenance.groups.file_sizes import FileSizes, are_merged, expected_output_files
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.planning.spark.workers import Workers
from icekeep.spec.collections import cut_evenly, packed
from icekeep.storage.base import Storage
from icekeep.storage.many import REQUESTS_AT_ONCE

MAX_RANGES = 8
"""In a local session a group above so many times the budget is shuffled: until then threads put some of it on disk."""

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
        files_count: how many files come of it.
    """

    method: RewriteMethod
    stitched: tuple[tuple[int, ...], ...] = ()
    stitched_bytes: int = 0
    reason: str = ""
    tasks_count: int = 1
    files_count: int

    @property
    def stitched_files_count(self) -> int:
        """How many files are put together."""
        return sum(map(len, self.stitched))


class _Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to look at groups; goes to the tasks."""

    context: GroupContext
    rules: StitchRules
    choice: StitchChoice
    min_input_files: int
    storage: Storage


def choose_methods(
    plan: RewritePlan,
    context: GroupContext,
    choice: StitchChoice,
    min_input_files: int,
    storage: Storage,
    workers: Workers,
) -> dict[int, GroupMethod]:
    """Decide for each group of a plan, by its number.

    Args:
        choice: the option `stitch`: `auto` copies what may be and is worth it, `always` all files or fails, `never` none.
        min_input_files: the option: how many small files the next run puts together.

    Raises:
        UnsupportedError: `always`, and a file cannot be copied.
        InvalidTableError, MissingFileError: a footer cannot be read.
    """
    methods = {}
    open_groups = []
    for group in plan.groups:
        files_count = group.expected_files_count
        if ordering_of(group, context) is not None:
            shuffles = _is_shuffled(group, context.budget_bytes, workers)
            method = RewriteMethod.SHUFFLE if shuffles else RewriteMethod.SORT
            methods[group.number] = GroupMethod(method=method, files_count=files_count)
        elif not group.has_files:
            methods[group.number] = GroupMethod(
                method=RewriteMethod.REENCODE,
                reason="not looked at in a preview of so many files",
                files_count=files_count,
            )
        else:
            open_groups.append(group)
    properties, metadata = context.metadata.properties, context.metadata
    floor_bytes = STITCH_FLOOR_BYTES if choice == "auto" else 1
    examination = _Examination(
        context=context,
        rules=StitchRules(schema=metadata.schema, options=write_options(properties), floor_bytes=floor_bytes),
        choice=choice,
        min_input_files=min_input_files,
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


def shares_of_group(files: GroupFiles, stitched: Collection[tuple[int, ...]], sizes: FileSizes) -> list[Share]:
    """What each task reads of a group whose rows stay in their order, and how many files it makes of it.

    Args:
        stitched: as in `GroupMethod`; these come last.
    """
    copied = {position for some in stitched for position in some}
    left = [position for position in range(len(files.files)) if position not in copied]
    left_bytes = sum(files.files[position].live_bytes for position in left)
    encoded = shares_of(files.files, left, expected_output_files(left_bytes, sizes), sizes) if left else []
    return encoded + [Share(tuple(_whole(position, files) for position in some), 1) for some in stitched]


def _whole(position: int, files: GroupFiles) -> Slice:
    file = files.files[position]
    return Slice(position, file.file_size_in_bytes, file.live_bytes)


def _method_of(group: FileGroup, examination: _Examination, pool: ThreadPoolExecutor) -> GroupMethod:
    sizes, choice = examination.context.sizes, examination.choice
    files = group_files(group, examination.storage)
    stitched: list[tuple[int, ...]] = []
    if choice == "never":
        reason = "option stitch is never"
    else:
        look = partial(examine, rules=examination.rules, storage=examination.storage)
        found = [*pool.map(look, whole_pieces(files, examination.context.metadata))]
        if choice == "always":
            _require_stitchable(files, found)
            stitched = [some for alike in _alike(found) for some in _cut_to_size(alike, files, found, sizes)]
        else:
            stitched = _worth_copying(files, found, examination)
        reasons = Counter(one.reason for one in found if isinstance(one, NotStitchable))
        if not reasons and sum(map(len, stitched)) < len(found):
            reasons["no other files of the group have the same layout and make one of a good size with them"] += 1
        reason = reasons.most_common(1)[0][0] if reasons else ""
    stitched_bytes = sum(files.files[position].file_size_in_bytes for some in stitched for position in some)
    shares = shares_of_group(files, stitched, sizes)
    return GroupMethod(
        method=RewriteMethod.STITCH if 2 * stitched_bytes > group.bytes else RewriteMethod.REENCODE,
        stitched=tuple(stitched),
        stitched_bytes=stitched_bytes,
        reason=reason,
        tasks_count=len(shares),
        files_count=sum(share.files_count for share in shares) if group.expected_files_count else 0,
    )


def _worth_copying(
    files: GroupFiles, found: Sequence[Stitchable | NotStitchable], examination: _Examination
) -> list[tuple[int, ...]]:
    """Files of one layout in sets of about the target size.

    Small ones are kept only as long as the next run would leave all small files alone that come of the group.
    """
    sizes = examination.context.sizes

    def size_of(positions: Iterable[int]) -> int:
        return sum(files.files[position].live_bytes for position in positions)

    sets = []
    for alike in _alike(found):
        shares = shares_of(files.files, alike, expected_output_files(size_of(alike), sizes), sizes)
        sets += [share.whole_files for share in shares if share.files_count == 1]
    sets = [some for some in sets if len(some) > 1 and _go_together(some, found)]
    small = [size for some in sets if (size := size_of(some)) < sizes.min_bytes]
    left_bytes = size_of(range(len(found))) - sum(map(size_of, sets))
    if left_bytes:
        left_count = expected_output_files(left_bytes, sizes)
        small += [left_bytes // left_count] * left_count if left_bytes < left_count * sizes.min_bytes else []
    if not are_merged(len(small), sum(small), examination.min_input_files, sizes):
        return sets
    return [some for some in sets if size_of(some) >= sizes.min_bytes]


def _require_stitchable(files: GroupFiles, found: Sequence[Stitchable | NotStitchable]) -> None:
    for file, one in zip(files.files, found, strict=True):
        if isinstance(one, NotStitchable):
            raise UnsupportedError(
                f"data file {file.file_path!r} cannot be stitched: {one.reason}; give option stitch=auto",
                location=file.file_path,
            )


def _alike(found: Sequence[Stitchable | NotStitchable]) -> list[list[int]]:
    """The positions of files that may be put together byte for byte with each other."""
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for position, one in enumerate(found):
        if isinstance(one, Stitchable):
            by_key[one.key].append(position)
    return [*by_key.values()]


def _go_together(positions: Sequence[int], found: Sequence[Stitchable | NotStitchable]) -> bool:
    """Whether files may be put into one, byte for byte."""
    some = [found[position] for position in positions]
    parts = [one for one in some if isinstance(one, Stitchable)]
    return (
        len(parts) == len(some)
        and len({one.key for one in parts}) == 1
        and sum(one.row_groups_count for one in parts) <= MAX_ROW_GROUPS
        and sum(one.footer_bytes for one in parts) <= MAX_STITCHED_FOOTER_BYTES
    )


def _cut_to_size(
    positions: Sequence[int], files: GroupFiles, found: Sequence[Stitchable | NotStitchable], sizes: FileSizes
) -> list[tuple[int, ...]]:
    """Neighbours of one layout as whole files in as many sets as a rewrite would make files, of about one size."""

    def size_of(position: int) -> int:
        return files.files[position].file_size_in_bytes

    def of(name: str) -> Callable[[int], int]:
        return lambda position: getattr(found[position], name)

    sets = cut_evenly(
        positions,
        size_of,
        expected_output_files(sum(map(size_of, positions)), sizes),
        (size_of, sizes.max_bytes),
        (of("row_groups_count"), MAX_ROW_GROUPS),
        (of("footer_bytes"), MAX_STITCHED_FOOTER_BYTES),
    )
    return [*map(tuple, sets)]
