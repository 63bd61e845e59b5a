"""The position deletes of a branch -> groups that are worth a rewrite, and those that go as they are. Pure but for reading.

In format version 2 these are Iceberg's groups, but for those that would come out as they went in: where each new file is for
one data file, a file that is alone for its data file stays. In version 3 all position delete files become vectors. A saved plan
names its groups instead, or is refused where the table has changed.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from icekeep.commit.file_sets import Digest, ReadFile, entry_digest
from icekeep.commit.manifest_writer import refuse_unknown_transforms
from icekeep.formats.deletes.rewrite import Granularity, delete_granularity
from icekeep.maintenance.compact.options import RATES_BYTES_A_SECOND, RewriteMethod
from icekeep.maintenance.deletes.equality_plan import ConvertEqualityDeletesPlan
from icekeep.maintenance.deletes.live_rows import (
    Candidate,
    LivePart,
    Partition,
    PositionDeletes,
    packed_parts,
    position_deletes,
)
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions, delete_file_sizes
from icekeep.maintenance.plans import GROUP, REMOVE, REWRITE, PlanCost, PlanLine, SavedPlan
from icekeep.maintenance.preconditions import (
    already_applied,
    check_decided,
    delete_file_line,
    first_of,
    landed,
    moved,
    of_delete_files,
)
from icekeep.maintenance.rewrite.options import FileSizes, expected_output_files, in_job_order
from icekeep.planning.scan.plan import Scan
from icekeep.planning.spark.session import SparkSource
from icekeep.rendered import Rendered
from icekeep.spec.collections import packed
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spelling import counted_doing


class DeleteGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Position delete files of one partition that are rewritten together; one unit of failure and of partial progress.

    Attributes:
        partition: its directory, for people and for the locations of new files.
        files: in the order of the paths that they name.
        live: the live data files that they may name; those of the partition are shared by its groups.
        tasks_count: how many tasks share the paths.
        seems_dangling: both bounds of each file are one path, of which there is no live data file that it reaches: where its rows
            show that this is so, nothing is written in its place.
    """

    number: int
    spec_id: int
    partition: str
    files: tuple[ReadFile, ...]
    live: tuple[LivePart, ...]
    tasks_count: int
    seems_dangling: bool = False

    @property
    def files_count(self) -> int:
        return len(self.files)

    @property
    def bytes(self) -> int:
        return sum(read.entry.data_file.file_size_in_bytes for read in self.files)

    @property
    def record_count(self) -> int:
        return sum(read.entry.data_file.record_count for read in self.files)

    @property
    def digests(self) -> frozenset[Digest]:
        """Equal for a group of the same files, as they were read."""
        return frozenset(entry_digest(read.entry) for read in self.files)


class DeletesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does with the position deletes of a branch.

    Attributes:
        snapshot_id: that was planned on; `None` for a branch without one.
        candidate_files_count: position delete files that ask to be rewritten, each by itself.
        dangling: delete files and vectors that reach no live data file, and need not be read to know it.
    """

    branch: str = MAIN
    snapshot_id: int | None = None
    target_file_size_bytes: int
    candidate_files_count: int = 0
    groups: tuple[DeleteGroup, ...] = ()
    dangling: tuple[ReadFile, ...] = ()

    @property
    def has_stored(self) -> bool:
        """Whether planning has put anything into storage."""
        return any(part.location is not None for group in self.groups for part in group.live)


class DeleteGroupPreview(msgspec.Struct, frozen=True, kw_only=True):
    """One group; sizes in bytes."""

    partition: str
    files_count: int
    bytes: int
    record_count: int


class RewritePositionDeletesPlan(Rendered, frozen=True, kw_only=True):
    """What a run with the same arguments would do now; see `DeletesPlan` for the fields of that name.

    Attributes:
        becomes: `vectors` or `position delete files`.
        removed_dangling_bytes_count: of vectors those of their blobs.
        swept_files_count: files left by runs that died, which would be removed from `.icekeep/`.
        conversion: of equality deletes; `None` where it was not asked for.
    """

    branch: str
    snapshot_id: int | None
    becomes: str
    target_file_size_bytes: int
    candidate_files_count: int
    rewritten_delete_files_count: int
    rewritten_bytes_count: int
    removed_dangling_delete_files_count: int
    removed_dangling_bytes_count: int
    groups: tuple[DeleteGroupPreview, ...]
    swept_files_count: int = 0
    conversion: ConvertEqualityDeletesPlan | None = None


def becomes_of(format_version: int) -> str:
    """What position delete files of a format version become."""
    return "vectors" if format_version > 2 else "position delete files"


def preview(plan: DeletesPlan, format_version: int) -> RewritePositionDeletesPlan:
    """A plan for people; what seems to be dangling counts as that."""
    groups = [group for group in plan.groups if not group.seems_dangling]
    dangling = [read for group in plan.groups if group.seems_dangling for read in group.files]
    dangling += plan.dangling
    return RewritePositionDeletesPlan(
        branch=plan.branch,
        snapshot_id=plan.snapshot_id,
        becomes=becomes_of(format_version),
        target_file_size_bytes=plan.target_file_size_bytes,
        candidate_files_count=plan.candidate_files_count,
        rewritten_delete_files_count=sum(group.files_count for group in groups),
        rewritten_bytes_count=sum(group.bytes for group in groups),
        removed_dangling_delete_files_count=len(dangling),
        removed_dangling_bytes_count=sum(read.entry.data_file.own_bytes for read in dangling),
        groups=tuple(
            DeleteGroupPreview(
                partition=group.partition,
                files_count=group.files_count,
                bytes=group.bytes,
                record_count=group.record_count,
            )
            for group in groups
        ),
    )


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
    """What a plan takes: each file is read and written once, at the rate of files that are encoded again."""
    size = sum(group.bytes for group in plan.groups)
    count = sum(group.files_count for group in plan.groups)
    return PlanCost(
        read_bytes=size,
        written_bytes=size,
        requests_count=2 * count,
        cpu_ms=size * 1000 // RATES_BYTES_A_SECOND[RewriteMethod.REENCODE],
    )


def saved_deletes(
    deletes: PositionDeletes, saved: SavedPlan, metadata: TableMetadata, becomes: str
) -> tuple[list[tuple[Partition, list[Candidate]]], tuple[ReadFile, ...]]:
    """The groups and the dangling files of a saved plan, without what an earlier run of it has committed.

    Raises:
        SafetyError: a file of it is gone, or is not what it was; or other files would come of it.
        AlreadyApplied: nothing is left.
    """
    found = {_state(one.read): (partition, one) for partition, some in deletes.by_partition.items() for one in some}
    dangling = {_state(read): read for read in deletes.dangling}
    has_landed = bool(landed(saved, metadata))
    lines = [*saved.lines()]
    by_group: dict[int, list[PlanLine]] = defaultdict(list)
    for line in lines:
        if line.group is not None and line.kind != GROUP:
            by_group[line.group].append(line)
    groups = [one for one in by_group.values() if not (has_landed and all(line.state not in found for line in one))]
    removed = [line for line in lines if line.do == REMOVE]
    if has_landed and not any(line.state in dangling for line in removed):
        # They go with the first commit.
        removed = []
    gone = [line.name for group in groups for line in group if line.state not in found]
    gone += [line.name for line in removed if line.state not in dangling]
    if gone:
        before = "it was" if len(gone) == 1 else "they were"
        problem = (
            f"{counted_doing(len(gone), 'delete files', 'are')} gone, or not what {before}, such as {first_of(gone)}"
        )
        raise moved(saved, metadata, problem, gone_count=len(gone))
    if any(len({found[line.state][0] for line in group}) > 1 for group in groups):
        raise moved(saved, metadata, "delete files of several partitions would become one")
    others = {line.says.get("becomes") for line in lines if line.kind == GROUP} - {becomes}
    if others:
        raise moved(saved, metadata, f"the delete files would become {becomes} now")
    if has_landed and not groups and not removed:
        raise already_applied(saved, metadata)
    check_decided(saved, metadata, of_delete_files(metadata))
    chosen = [(found[group[0].state][0], [found[line.state][1] for line in group]) for group in groups]
    return chosen, tuple(dangling[line.state] for line in removed)


def _state(read: ReadFile) -> str:
    return entry_digest(read.entry).hex()


_FRAME_BYTES = 2048
"""What a delete file takes beside its rows: of a small one that is nearly all."""

_POSITION_BYTES = 16
"""The most that a position takes in a file that holds nothing else."""

_FILES_A_TASK = 500
"""Tasks that need not make one file each share the paths so that each reads about this number of files."""

_BEYOND = "\U0010ffff"


class DeleteGroupRules(msgspec.Struct, frozen=True, kw_only=True):
    """What groups are made by; `makes_vectors` in format version 3."""

    options: RewritePositionDeletesOptions
    sizes: FileSizes
    granularity: Granularity
    makes_vectors: bool


def plan(
    scan: Scan,
    spark: SparkSource,
    options: RewritePositionDeletesOptions,
    *,
    branch: str,
    directory: str | None = None,
    saved: SavedPlan | None = None,
) -> DeletesPlan:
    """Say what a run does with the position deletes of a scan of a branch.

    Args:
        directory: of this run alone, where tasks put the live data files if these are many; the caller
            removes what is in it in the end. With `None`, for a preview, that is kept nowhere.
        saved: a saved plan: its groups, in place of those that would be chosen.
    """
    metadata, snapshot = scan.table.metadata, scan.version.snapshot
    rules = group_rules(metadata, options)
    planned = DeletesPlan(
        branch=branch,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        target_file_size_bytes=rules.sizes.target_bytes,
    )
    if snapshot is None:
        return planned
    deletes = position_deletes(scan, spark, directory)
    wanted, dangling = groups_of(deletes, rules), deletes.dangling
    if saved is not None:
        wanted, dangling = saved_deletes(deletes, saved, metadata, becomes_of(metadata.format_version))
    refuse_unknown_transforms({spec_id for (spec_id, _), _ in wanted}, metadata.specs_by_id)
    asking = [
        one
        for some in deletes.by_partition.values()
        for one in (*_asking(some, rules), *(one for one in some if one.is_idle))
    ]
    groups = tuple(
        DeleteGroup(
            number=number,
            spec_id=partition[0],
            partition=metadata.partition_path(partition[0], files[0].file.partition),
            files=tuple(one.read for one in files),
            live=_live_files(partition, files, deletes),
            tasks_count=tasks_count(files, rules),
            seems_dangling=all(one.seems_dangling for one in files),
        )
        for number, (partition, files) in enumerate(wanted)
    )
    return msgspec.structs.replace(
        planned,
        candidate_files_count=len({one.file.file_path for one in asking}),
        groups=groups,
        dangling=dangling,
    )


def group_rules(metadata: TableMetadata, options: RewritePositionDeletesOptions) -> DeleteGroupRules:
    """What groups of a table are made by; raises as `plan` does."""
    return DeleteGroupRules(
        options=options,
        sizes=delete_file_sizes(options, metadata.properties),
        granularity=delete_granularity(metadata.properties),
        makes_vectors=metadata.format_version > 2,
    )


def groups_of(deletes: PositionDeletes, rules: DeleteGroupRules) -> list[tuple[Partition, list[Candidate]]]:
    """The files of each group, in the order that options ask for; those that seem to be dangling go by themselves.

    But not where files become vectors: if bounds are wrong, two groups would make a vector of one data file each.
    """
    groups: list[tuple[Partition, list[Candidate]]] = []
    for partition, files in deletes.by_partition.items():
        if rules.makes_vectors:
            groups += [(partition, some) for some in _bins(list(files), rules)]
            continue
        idle, others = [one for one in files if one.is_idle], [one for one in files if not one.is_idle]
        for seems_dangling in (True, False):
            some_idle = [one for one in idle if one.seems_dangling is seems_dangling]
            groups += [(partition, some) for some in _bins(some_idle, rules)]
        groups += [(partition, some) for some in _bins(_asking(others, rules), rules) if _is_worth_it(some, rules)]
    return in_job_order(
        groups, rules.options.rewrite_job_order, lambda group: _bytes_of(group[1]), lambda group: len(group[1])
    )


def content_bytes(file: DataFile) -> int:
    """About how many bytes of a file its rows take: what it adds to a larger one."""
    rows_bytes = max(file.file_size_in_bytes - _FRAME_BYTES, _POSITION_BYTES * file.record_count)
    return min(file.file_size_in_bytes, rows_bytes)


def tasks_count(files: Sequence[Candidate], rules: DeleteGroupRules) -> int:
    """How many tasks share the paths of a group: about one a file of the target size, more where files are small anyway."""
    for_size = expected_output_files(_content(files), rules.sizes)
    if rules.makes_vectors or rules.granularity == "file":
        return max(for_size, -(-len(files) // _FILES_A_TASK))
    return for_size


def _asking(files: Sequence[Candidate], rules: DeleteGroupRules) -> list[Candidate]:
    """The files that ask to be rewritten, each by itself."""
    if rules.makes_vectors or rules.options.rewrite_all:
        return list(files)
    large = [one for one in files if one.file.file_size_in_bytes > rules.sizes.max_bytes]
    small = [one for one in files if one.file.file_size_in_bytes < rules.sizes.min_bytes]
    if rules.granularity == "file":
        small = _with_others(small)
    return [*large, *small]


def _with_others(files: list[Candidate]) -> list[Candidate]:
    """Without those that are for one data file which no other may be for: they would come out as they went in."""
    # Positions with values of the deleted rows and those without are not put into one file.
    alone = Counter((one.lower, one.has_values) for one in files if one.is_of_one_file)
    others = _Ranges(one for one in files if not one.is_of_one_file)
    return [
        one
        for one in files
        if not one.is_of_one_file or alone[one.lower, one.has_values] > 1 or others.may_name(one.lower or "")
    ]


class _Ranges:
    """The paths that some delete files may name, as ranges that do not meet, in order."""

    def __init__(self, files: Iterable[Candidate]) -> None:
        self._firsts: list[str] = []
        self._lasts: list[str] = []
        for one in sorted(files, key=_first_path):
            first, last = _first_path(one), _BEYOND
            if one.upper is not None:
                # Some writers cut the bound and forget to increment it.
                last = one.upper if one.is_of_one_file else one.upper + _BEYOND
            if self._lasts and first <= self._lasts[-1]:
                self._lasts[-1] = max(last, self._lasts[-1])
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    def may_name(self, path: str) -> bool:
        place = bisect_right(self._firsts, path) - 1
        return place >= 0 and path <= self._lasts[place]


def _first_path(one: Candidate) -> str:
    return one.lower or ""


def _bins(files: list[Candidate], rules: DeleteGroupRules) -> Iterator[list[Candidate]]:
    """Neighbours by path; for vectors, files that may be for one data file are in one bin, since it gets one vector."""
    ordered = sorted(files, key=lambda one: (_first_path(one), one.file.file_path))
    items = [[one] for one in ordered]
    if rules.makes_vectors and any(one.lower is None or one.lower != one.upper for one in ordered):
        # What bounds say of which data files these are for may be wrong.
        items = [ordered]
    elif rules.makes_vectors:
        items = [list(some) for _, some in groupby(ordered, key=_first_path)]
    max_bytes, max_files = rules.options.max_file_group_size_bytes, rules.options.max_file_group_input_files
    for some in packed(items, (_bytes_of, max_bytes), (len, max_files)):
        yield [one for item in some for one in item]


def _is_worth_it(files: Sequence[Candidate], rules: DeleteGroupRules) -> bool:
    if rules.makes_vectors or rules.options.rewrite_all:
        return True
    total = _bytes_of(files)
    if total > rules.sizes.max_bytes and any(f.file.file_size_in_bytes > rules.sizes.max_bytes for f in files):
        return True
    is_many = len(files) > 1 and (len(files) >= rules.options.min_input_files or total > rules.sizes.target_bytes)
    return is_many and expected_output_files(_content(files), rules.sizes) < len(files)


def _content(files: Iterable[Candidate]) -> int:
    return sum(content_bytes(one.file) for one in files)


def _bytes_of(files: Iterable[Candidate]) -> int:
    return sum(one.file.file_size_in_bytes for one in files)


def _live_files(partition: Partition, files: Sequence[Candidate], deletes: PositionDeletes) -> tuple[LivePart, ...]:
    """The data files that some delete files of a partition may name."""
    named = {one.file.referenced_data_file for one in files}
    if None in named:
        return deletes.live[partition]
    return tuple(packed_parts({path: deletes.named[path] for path in filter(None, named)}))
