"""How the rows of each group reach their new files: what each task reads, and how many files it makes of that.

A group whose rows keep their order becomes as many files as `expected_output_files` says, whatever its files are like: where no
cut between files, or between the row groups of a large one, makes files that the next run leaves alone, one task makes several
files of all that lies between. What may be copied byte for byte footers tell, which are read here: of few files by threads of the
driver, of many in Spark tasks; what comes back is small either way.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, groupby, pairwise
from operator import attrgetter

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
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.sort.encode import Ordering
from icekeep.maintenance.compact.options import RewriteMethod, StitchChoice
from icekeep.maintenance.compact.plan import FileGroup, GroupFile, GroupFiles, RewritePlan, group_files, packed_group
from icekeep.maintenance.rewrite.options import (
    FileSizes,
    are_merged,
    expected_output_files,
    input_split_bytes,
    least_output_bytes,
)
from icekeep.planning.entries import delete_file_from_row
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.planning.spark.workers import Workers
from icekeep.spec.collections import cut_evenly, narrowed, packed
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import own_directory
from icekeep.storage.base import REQUESTS_AT_ONCE, Storage

_SPLITTABLE = ("PARQUET", "ORC")


class Slice(msgspec.Struct, frozen=True):
    """A file, by its position in the group, or a part of it.

    Attributes:
        size_bytes: of a part an estimate.
        live_bytes: an estimate of what its live rows take.
        split: of a part the first byte and the number of bytes: row groups or stripes that begin there.
    """

    position: int
    size_bytes: int
    live_bytes: int
    split: tuple[int, int] | None = None


class Share(msgspec.Struct, frozen=True):
    """What one task reads, and how many files it makes of it."""

    slices: tuple[Slice, ...]
    files_count: int

    @property
    def whole_files(self) -> tuple[int, ...]:
        """The positions of its files; none where it has a part of one."""
        return () if any(one.split for one in self.slices) else tuple(one.position for one in self.slices)


def shares_of(files: Sequence[GroupFile], order: Sequence[int], files_count: int, sizes: FileSizes) -> list[Share]:
    """Cut the files of a group into shares that make `files_count` files in all.

    Args:
        order: the positions of the files, in the order in which they are put together.
    """
    total = sum(files[position].live_bytes for position in order)
    split_bytes = input_split_bytes(total, sizes)
    slices = [one for position in order for one in _slices(position, files[position], split_bytes)]
    ends = [0, *accumulate(one.live_bytes for one in slices)]
    least, most = least_output_bytes(files_count, sizes), sizes.write_max_bytes
    shares = []
    start = made = 0
    for number in range(1, files_count):
        # The cut that is nearest to where this many files end.
        place = total * number / files_count
        stop = bisect_left(ends, place)
        if stop and place - ends[stop - 1] < ends[stop] - place:
            stop -= 1
        if stop <= start:
            continue
        size = (ends[stop] - ends[start]) / (number - made)
        rest = (total - ends[stop]) / (files_count - number)
        if least <= size <= most and least <= rest <= most:
            shares.append(Share(_joined(slices[start:stop], files), number - made))
            start, made = stop, number
    return [*shares, Share(_joined(slices[start:], files), files_count - made)]


def _slices(position: int, file: GroupFile, split_bytes: int) -> Iterator[Slice]:
    """A file as a whole or, where that is more than about one new file, each of its row groups or stripes."""
    size, offsets = file.file_size_in_bytes, file.split_offsets or ()
    splits = file.file_format.upper() in _SPLITTABLE and list(offsets) == sorted(set(offsets))
    if not splits or file.live_bytes <= split_bytes or len(offsets) < 2 or offsets[-1] >= size:
        yield _whole(position, file)
        return
    # The first part begins where the file does: an entry need not name the very first byte of data.
    starts = [0, *offsets[1:], size]
    lengths = [stop - start for start, stop in pairwise(starts)]
    rows_bytes = [*lengths[:-1], min(lengths[-1], max(lengths[:-1]))]
    # The footer, which belongs to all of them, follows the last one.
    ends = [0, *(size * upto // sum(rows_bytes) for upto in accumulate(rows_bytes))]
    live = [file.live_bytes * end // size for end in ends]
    for split, some, some_live in zip(zip(starts, lengths, strict=False), pairwise(ends), pairwise(live), strict=True):
        yield Slice(position, some[1] - some[0], some_live[1] - some_live[0], split)


def _joined(slices: Sequence[Slice], files: Sequence[GroupFile]) -> tuple[Slice, ...]:
    """The same with neighbours of one file put together; all parts of a file are the whole."""
    joined = []
    for position, some in groupby(slices, attrgetter("position")):
        parts = [*some]
        first, last = parts[0].split, parts[-1].split
        split = None
        if first is not None and last is not None and (first[0] > 0 or sum(last) < files[position].file_size_in_bytes):
            split = first[0], sum(last) - first[0]
        size_bytes, live_bytes = (sum(getattr(part, name) for part in parts) for name in ("size_bytes", "live_bytes"))
        joined.append(Slice(position, size_bytes, live_bytes, split))
    return tuple(joined)


class GroupContext(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks of a run have in common.

    Attributes:
        ordering: of rows within a partition; null for binpack.
        sort_order_id: what new files say of the order of their rows.
        run_id: in the names of the new files.
        budget_bytes: for the rows that one task has to order.
        moves_pages: whether tasks may move data pages of small files as they are.
        slots: how many tasks share the memory of an executor.
        is_local: whether Spark's master is a local one.
        sizes: of the new files.
        verifies: whether tasks hash the rows that go in, and read what they wrote again.
    """

    metadata: TableMetadata
    sizes: FileSizes
    ordering: Ordering | None
    sort_order_id: int
    run_id: str
    budget_bytes: int
    moves_pages: bool = True
    slots: int = 1
    is_local: bool = False
    verifies: bool = False


def ordering_of(group: FileGroup, context: GroupContext) -> Ordering | None:
    """How the rows of a group are ordered: where they move to another spec, by its partitions first."""
    if not group.is_moved:
        return context.ordering
    ordering = Ordering() if context.ordering is None else context.ordering
    return msgspec.structs.replace(ordering, partition_by=context.metadata.specs_by_id[group.output_spec_id])


def group_task(
    group: FileGroup, files: GroupFiles, context: GroupContext, share: Share | None = None, number: int = 0
) -> RewriteTask:
    """The task for a share of a group whose rows stay in their order, or one that reads all of its files."""
    metadata = context.metadata
    if share is None:
        # Rows that move go to partitions which are not known yet.
        files_count = None if group.is_moved else max(1, group.expected_files_count)
        pieces = file_pieces(files, metadata)
    else:
        files_count, pieces = share.files_count, file_pieces(files, metadata, share.slices)
    deletes, positions = narrowed(files.deletes, [piece.deletes for piece in pieces])
    decoded = PartitionCodecs(metadata.partition_types).decode
    return RewriteTask(
        pieces=tuple(msgspec.structs.replace(p, deletes=some) for p, some in zip(pieces, positions, strict=True)),
        delete_files=tuple(
            delete_file_from_row(msgspec.structs.asdict(one), decoded(one.spec_id, one.partition)) for one in deletes
        ),
        schema=metadata.schema,
        table_schemas=metadata.schemas,
        specs=metadata.specs_by_id,
        spec_id=group.output_spec_id,
        table_location=metadata.location,
        properties=metadata.properties,
        # How many files there are to be is known: one ends by its size only before it would be too large.
        target_file_size_bytes=context.sizes.write_max_bytes if files_count is None else context.sizes.max_bytes,
        files_count=files_count,
        sort_order=metadata.sort_order,
        sort_order_id=context.sort_order_id,
        ordering=ordering_of(group, context),
        budget_bytes=context.budget_bytes,
        moves_pages=context.moves_pages,
        slots=context.slots,
        is_local=context.is_local,
        operation_id=f"{context.run_id}-{group.number}",
        partition_id=number,
        verifies=context.verifies,
        moves_directory=own_directory(metadata, f"runs/{context.run_id}"),
    )


def file_pieces(files: GroupFiles, metadata: TableMetadata, slices: Sequence[Slice] | None = None) -> list[FilePiece]:
    """What a task reads: parts of the files of a group, or all of them whole and in their order."""
    partitions = PartitionCodecs(metadata.partition_types)
    wanted = [_whole(position, file) for position, file in enumerate(files.files)] if slices is None else slices
    pieces = []
    for one in wanted:
        file = files.files[one.position]
        part_rows = None if one.split is None else file.record_count * one.size_bytes // file.file_size_in_bytes
        rows = file.record_count if part_rows is None else part_rows
        pieces.append(
            FilePiece(
                location=file.file_path,
                file_format=file.file_format,
                record_count=file.record_count,
                size_bytes=one.size_bytes,
                split=one.split,
                part_rows=part_rows,
                deleted_count=file.deleted_count * rows // max(1, file.record_count),
                spec_id=file.spec_id,
                partition=partitions.decode(file.spec_id, file.partition),
                first_row_id=file.first_row_id,
                data_sequence_number=file.sequence_number,
                deletes=file.deletes,
            )
        )
    return pieces


MAX_RANGES = 8
"""In a local session a group above this many times the budget is shuffled: until then threads put some of it on disk."""

MAX_RUNS = 2
"""On a cluster a task with a group to itself puts this many ordered runs of the budget on disk; more goes to several tasks."""

FOOTERS_A_TASK = 500

NEVER = "option stitch is never"
NOT_LOOKED_AT = "not looked at in a preview of this many files"

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
    groups: list[FileGroup] = []
    files_count = 0
    # Rows that are to be ordered go through Spark's shuffle where a task, which orders `budget_bytes` at a time, has too many.
    most_bytes = (MAX_RANGES if workers.is_local else MAX_RUNS) * context.budget_bytes
    for group in plan.groups:
        if ordering_of(group, context) is not None:
            shuffles = (workers.spark is not None or workers.would_start) and group.bytes * ARROW_GROWTH > most_bytes
            method, reason = RewriteMethod.SHUFFLE if shuffles else RewriteMethod.SORT, ""
        elif not group.has_files:
            method, reason = RewriteMethod.REENCODE, NOT_LOOKED_AT
        elif group.held is not None and choice == "never":
            method, reason = RewriteMethod.REENCODE, NEVER
        elif (
            workers.would_start
            and choice != "always"
            and files_count + group.files_count > workers.limits.footers_count
        ):
            method, reason = RewriteMethod.REENCODE, NOT_LOOKED_AT
        else:
            groups.append(group)
            files_count += group.files_count
            continue
        methods[group.number] = GroupMethod(method=method, reason=reason, files_count=group.expected_files_count)
    examination = _Examination(
        context=context,
        rules=StitchRules(
            schema=context.metadata.schema,
            options=write_options(context.metadata.properties),
            floor_bytes=STITCH_FLOOR_BYTES if choice == "auto" else 1,
        ),
        choice=choice,
        min_input_files=min_input_files,
        storage=storage,
    )
    if workers.spark is None or files_count <= workers.limits.footers_count:
        return methods | _methods_of(groups, examination, threads=REQUESTS_AT_ONCE)
    bins = [*packed(map(packed_group, groups), (lambda group: group.files_count, FOOTERS_A_TASK))]
    step = "looking at footers of data files"
    for part in all_results(run_tasks(workers.spark, bins, _methods_of, examination, step=step)):
        methods |= part
    return methods


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
    copies = [Share(tuple(_whole(position, files.files[position]) for position in some), 1) for some in stitched]
    return encoded + copies


def _whole(position: int, file: GroupFile) -> Slice:
    return Slice(position, file.file_size_in_bytes, file.live_bytes)


def _method_of(group: FileGroup, examination: _Examination, pool: ThreadPoolExecutor) -> GroupMethod:
    context, choice = examination.context, examination.choice
    files = group_files(group, examination.storage)
    stitched: list[tuple[int, ...]] = []
    reason = NEVER
    if choice != "never":
        look = partial(examine, rules=examination.rules, storage=examination.storage)
        found = [*pool.map(look, file_pieces(files, context.metadata))]
        copyable = {position: one for position, one in enumerate(found) if isinstance(one, Stitchable)}
        reasons = Counter[str]()
        for file, one in zip(files.files, found, strict=True):
            if isinstance(one, NotStitchable):
                reasons[one.reason] += 1
                if choice == "always":
                    raise UnsupportedError(
                        f"data file {file.file_path!r} cannot be stitched: {one.reason}; give option stitch=auto",
                        location=file.file_path,
                    )
        choose = _all_copied if choice == "always" else _worth_copying
        stitched = choose(files, copyable, examination)
        if not reasons and sum(map(len, stitched)) < len(found):
            reasons["no other files of the group have the same layout and make one of a good size with them"] += 1
        reason = reasons.most_common(1)[0][0] if reasons else ""
    stitched_bytes = sum(files.files[position].file_size_in_bytes for some in stitched for position in some)
    shares = shares_of_group(files, stitched, context.sizes)
    return GroupMethod(
        method=RewriteMethod.STITCH if 2 * stitched_bytes > group.bytes else RewriteMethod.REENCODE,
        stitched=tuple(stitched),
        stitched_bytes=stitched_bytes,
        reason=reason,
        tasks_count=len(shares),
        files_count=sum(share.files_count for share in shares) if group.expected_files_count else 0,
    )


def _worth_copying(
    files: GroupFiles, copyable: Mapping[int, Stitchable], examination: _Examination
) -> list[tuple[int, ...]]:
    """Files of one layout in sets of about the target size.

    Small ones are kept only as long as the next run would leave all small files alone that come of the group.
    """
    sizes = examination.context.sizes

    def size_of(positions: Iterable[int]) -> int:
        return sum(files.files[position].live_bytes for position in positions)

    sets = []
    for alike in _alike(copyable):
        shares = shares_of(files.files, alike, expected_output_files(size_of(alike), sizes), sizes)
        for some in (share.whole_files for share in shares if share.files_count == 1):
            row_groups_count = sum(copyable[position].row_groups_count for position in some)
            footer_bytes = sum(copyable[position].footer_bytes for position in some)
            if len(some) > 1 and row_groups_count <= MAX_ROW_GROUPS and footer_bytes <= MAX_STITCHED_FOOTER_BYTES:
                sets.append(some)
    small = [size for some in sets if (size := size_of(some)) < sizes.min_bytes]
    left_bytes = size_of(range(len(files.files))) - sum(map(size_of, sets))
    if left_bytes:
        left_count = expected_output_files(left_bytes, sizes)
        small += [left_bytes // left_count] * left_count if left_bytes < left_count * sizes.min_bytes else []
    if not are_merged(len(small), sum(small), examination.min_input_files, sizes):
        return sets
    return [some for some in sets if size_of(some) >= sizes.min_bytes]


def _all_copied(
    files: GroupFiles, copyable: Mapping[int, Stitchable], examination: _Examination
) -> list[tuple[int, ...]]:
    """Neighbours of one layout as whole files in as many sets as a rewrite would make files, of about one size."""
    sizes = examination.context.sizes
    size_of = [file.file_size_in_bytes for file in files.files].__getitem__
    sets: list[tuple[int, ...]] = []
    for alike in _alike(copyable):
        cut = cut_evenly(
            alike,
            size_of,
            expected_output_files(sum(map(size_of, alike)), sizes),
            (size_of, sizes.max_bytes),
            (lambda position: copyable[position].row_groups_count, MAX_ROW_GROUPS),
            (lambda position: copyable[position].footer_bytes, MAX_STITCHED_FOOTER_BYTES),
        )
        sets += map(tuple, cut)
    return sets


def _alike(copyable: Mapping[int, Stitchable]) -> list[list[int]]:
    """The positions of files that may be put together byte for byte with each other."""
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for position, one in copyable.items():
        by_key[one.key].append(position)
    return [*by_key.values()]
