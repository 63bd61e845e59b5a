"""A partition with more files than one task can plan: it is cut into stretches, each of which is planned by itself.

Files are cut where they lie in the order: by the lower end of their keys, on a curve by that of its first column, and without
an order by their paths. A sample says where, so that all stretches have about as many. How files of two stretches overlap
nobody looks at: what is sorted once lies in one of them, and a run after that finds little that reaches over.

Plans a run: files of a scan -> those of one key side by side -> groups, on the driver or in Spark tasks.

Few files are packed on the driver. Many are brought together by key in Spark, packed where they are, and what files a group
has is put into storage by the task that packed it: the driver gets a row of sums for each group.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.decoding import from_msgpack
from icekeep.formats.options import write_options
from icekeep.maintenance.compact.candidates import (
    METRICS,
    STRETCH,
    ManyPlannedFiles,
    ends_of_row,
    few_planned_files,
    file_columns,
    many_planned_files,
    with_key_metrics,
)
from icekeep.maintenance.compact.grouping import (
    Cut,
    FileTally,
    GroupRules,
    PlannedFile,
    PlannedGroup,
    group_of,
    groups_of_key,
    key_space,
)
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.plan import (
    FileGroup,
    LeftAlone,
    RewritePlan,
    Strategy,
    output_specs,
    pack_group_files,
    snapshots_in_order,
)
from icekeep.maintenance.rewrite.options import file_sizes, in_job_order
from icekeep.planning.deletes import EVERY_PAIR
from icekeep.planning.entries import entries_count
from icekeep.planning.scan.plan import Scan, few_files, planned_files, planned_files_with_deletes
from icekeep.planning.spark.rows import arrow_dataframe, collected
from icekeep.planning.spark.session import F, SparkSource, from_arrow_schema, limits_of, started, with_field
from icekeep.planning.spark.tasks import prepare_worker
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = "group_partition"

PLANNED_FILES_COUNT = 500_000
"""A task plans so many files of one partition: an order needs all of them, and some 1.5 kB are held of each."""

_SAMPLE_COUNT = 10_000
_PLACES = pa.schema([("spec_id", pa.int32()), (KEY, pa.binary()), ("place", pa.binary())])

Key = tuple[int, bytes]
"""As `GroupRules.key_of`."""

Place = tuple[tuple[bytes, ...], str]
"""Where a file lies: the lower end of its keys, and its path, since many may have equal keys."""


class Cuts(msgspec.Struct, frozen=True):
    """Where files of one key are cut: the place of the first file of each stretch but the first; and how many files these are."""

    files_count: int
    points: tuple[Place, ...]


def group_key(rules: GroupRules) -> "Column":
    """The second half of `GroupRules.key_of` as a column."""
    moved = [spec_id for spec_id in rules.output_specs if rules.is_moved(spec_id)]
    return F.when(F.col("spec_id").isin(moved), F.lit(bytearray())).otherwise(F.col("partition")).alias(KEY)


def cuts_of(scan: Scan, spark: SparkSource, rules: GroupRules) -> dict[Key, Cuts]:
    """The keys with more files than a task plans, and where these are cut; few files are not looked at.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: manifests cannot be read whole.
    """
    crowded = _crowded(scan, spark, rules)
    if not crowded:
        return {}
    columns = ("file_path", "record_count", "spec_id", "partition", *(() if rules.space is None else METRICS))
    files = with_key_metrics(planned_files(scan, spark, columns), rules.space).select("*", group_key(rules))
    sample: dict[Key, list[Place]] = defaultdict(list)
    sampled = files.mapInArrow(partial(_sampled, rules, crowded), from_arrow_schema(_PLACES))
    for row in collected(sampled, "cutting partitions with many files"):
        sample[row["spec_id"], bytes(row[KEY])].append(from_msgpack(bytes(row["place"]), Place))
    return {key: Cuts(n, _points(sample[key], -(-n // PLANNED_FILES_COUNT))) for key, n in crowded.items()}


def _crowded(scan: Scan, spark: SparkSource, rules: GroupRules) -> dict[Key, int]:
    """The keys with more files than a task plans, and how many these are.

    Where all files of a spec have one key the manifest list tells. Else entries are counted, for an order alone: without one
    a task holds no more than a group at a time.
    """
    metadata, by_spec = scan.table.metadata, Counter[int]()
    for manifest in scan.data.opened:
        by_spec[manifest.partition_spec_id] += entries_count([manifest])
    found: dict[Key, int] = {}
    asked = []
    for spec_id, count in by_spec.items():
        if count <= PLANNED_FILES_COUNT:
            continue
        if rules.is_moved(spec_id):
            found[spec_id, b""] = count
        elif metadata.specs_by_id[spec_id].is_unpartitioned:
            found[spec_id, PartitionCodec(metadata.partition_type(spec_id)).encode(())] = count
        elif rules.strategy.ordering is not None:
            asked.append(spec_id)
    if asked:
        keys = planned_files(scan, spark, ("spec_id", "partition")).where(F.col("spec_id").isin(asked))
        counts = keys.groupBy("spec_id", "partition").count().where(F.col("count") > PLANNED_FILES_COUNT)
        rows = collected(counts, "counting the files of partitions")
        found |= {(row["spec_id"], bytes(row["partition"])): row["count"] for row in rows}
    return found


def _points(places: list[Place], count: int) -> tuple[Place, ...]:
    """What cuts some places into about so many stretches of as many."""
    if not places:
        # A filter leaves none of them.
        return ()
    places.sort()
    return tuple(sorted({places[len(places) * number // count] for number in range(1, count)}))


def _sampled(
    rules: GroupRules, crowded: Mapping[Key, int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for batch in batches:
        rows = _every(batch, crowded)
        places = [msgspec.msgpack.encode(_place(row, rules)) for row in rows]
        columns = [pa.array(values) for values in zip(*((row["spec_id"], row[KEY]) for row in rows), strict=True)]
        if rows:
            yield pa.RecordBatch.from_arrays([*columns, pa.array(places)], schema=_PLACES)


def _every(batch: pa.RecordBatch, crowded: Mapping[Key, int]) -> list[dict[str, Any]]:
    """Rows of a sample: of each key every so-manieth, and of each batch one at least."""
    rows: list[dict[str, Any]] = []
    for (spec_id, key), count in crowded.items():
        own = pc.and_(pc.equal(batch["spec_id"], spec_id), pc.equal(batch[KEY], key))
        numbers = np.flatnonzero(own.to_numpy(zero_copy_only=False))[:: max(1, count // _SAMPLE_COUNT)]
        rows += batch.take(pa.array(numbers)).to_pylist()
    return rows


def with_stretches(files: "DataFrame", rules: GroupRules, cuts: Mapping[Key, Cuts]) -> "DataFrame":
    """Rows of `many_planned_files` with their keys, and with the number of the stretch that each is in."""
    keyed = files.select("*", group_key(rules))
    if not cuts:
        return keyed.withColumn(STRETCH, F.lit(0))
    return keyed.mapInArrow(partial(_numbered, rules, cuts), with_field(keyed.schema, STRETCH, pa.int32()))


def _numbered(
    rules: GroupRules, cuts: Mapping[Key, Cuts], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for batch in batches:
        rows = batch.drop_columns(["deletes"]) if "deletes" in batch.schema.names else batch
        numbers = pa.array([_stretch(row, rules, cuts) for row in rows.to_pylist()], pa.int32())
        yield batch.append_column(pa.field(STRETCH, pa.int32(), nullable=False), numbers)


def _stretch(row: Mapping[str, Any], rules: GroupRules, cuts: Mapping[Key, Cuts]) -> int:
    found = cuts.get((row["spec_id"], row[KEY]))
    return 0 if found is None else bisect_right(found.points, _place(row, rules))


def _place(row: Mapping[str, Any], rules: GroupRules) -> Place:
    if rules.space is None:
        return (), row["file_path"]
    lower, _ = ends_of_row(row, rules.space)
    return lower[:1] if rules.space.is_curve else lower, row["file_path"]


def notes_of(cuts: Mapping[Key, Cuts], names: Sequence[str], what: str) -> tuple[str, ...]:
    """What people are told: a line for each key, whose names these are; `what` says what ranges are of."""
    return tuple(
        f"{name} has {one.files_count:,} data files, more than the {PLANNED_FILES_COUNT:,} that one task plans: they are "
        f"planned as {len(one.points) + 1} ranges of {what}, each by itself; nothing is to be done, but finer partitions would "
        "be planned faster"
        for name, one in zip(names, cuts.values(), strict=True)
    )


_PACKED = pa.schema([("group", pa.binary()), ("tally", pa.binary())])

IN_PLAN = "in the plan"
"""In place of a directory: the files of groups come to the driver with the plan, packed."""

NOT_BETTER = "in no group whose result would be better"
BEYOND_LIMIT = "beyond max-files-to-rewrite"


def plan(
    scan: Scan,
    spark: SparkSource,
    strategy: Strategy,
    options: RewriteDataFilesOptions,
    *,
    branch: str = MAIN,
    only: Collection[str] | None = None,
    directory: str | None = None,
) -> RewritePlan:
    """Say what a run does with the files of a scan.

    Args:
        branch: whose head the scan reads.
        only: paths of the files that may be rewritten; `None` for all.
        directory: of this plan alone, where tasks put the files of groups where files are many, for `plan.group_files`;
            whoever gave it removes `plan.plan_locations` in the end. With `IN_PLAN` the plan has them, with `None`, for a
            preview, they are kept nowhere.

    Raises:
        OptionError, NotFoundError: an option does not go with the table or with another option.
        UnsupportedError: a file is encrypted, or `output-spec-id` names a spec with a transform that is not known.
        InvalidTableError, MissingFileError: manifests cannot be read whole.
    """
    metadata = scan.table.metadata
    sizes = file_sizes(options, write_options(metadata.properties).target_file_size_bytes)
    rules = GroupRules(
        sizes=sizes,
        options=options,
        strategy=strategy,
        space=None if strategy.ordering is None else key_space(strategy.ordering, metadata),
        in_order=snapshots_in_order(strategy, metadata),
        output_specs=output_specs(scan, spark, options),
    )
    packer = _packer(scan, spark, rules, directory, only=only)
    groups, left, tally = chosen_groups(packer, rules, metadata)
    snapshot = scan.version.snapshot
    return RewritePlan(
        branch=branch,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        sequence_number=0 if snapshot is None else snapshot.sequence_number,
        schema_id=metadata.current_schema_id,
        strategy=strategy.text,
        target_file_size_bytes=sizes.target_bytes,
        candidate_files_count=tally.candidate_files_count,
        rewritten_data_files_count=sum(group.files_count for group in groups),
        rewritten_bytes_count=sum(group.bytes for group in groups),
        expected_files_count=sum(group.expected_files_count for group in groups),
        left_alone=left,
        overlap_depth_before=_mean_depth(tally),
        groups=tuple(in_job_order(groups, options.rewrite_job_order, attrgetter("bytes"), attrgetter("files_count"))),
        notes=packer.notes,
    )


def chosen_groups(
    packer: "Packer", rules: GroupRules, metadata: TableMetadata
) -> tuple[list[FileGroup], tuple[LeftAlone, ...], FileTally]:
    """The groups of a run, numbered by the paths of their partitions, and what it leaves alone."""
    groups, tally = packer.groups()
    kept, beyond = _at_most(_in_plan_order(groups, metadata), rules, packer)
    numbered = [
        msgspec.structs.replace(one.group, number=number, partition=path_of_group(one, metadata))
        for number, one in enumerate(kept)
    ]
    left = (LeftAlone(NOT_BETTER, tally.left_files_count, tally.left_bytes), beyond)
    return numbered, tuple(some for some in left if some.files_count), tally


def _mean_depth(tally: FileTally) -> float | None:
    return tally.depth_sum / tally.depth_files_count if tally.depth_files_count else None


def _in_plan_order(groups: Iterable[PlannedGroup], metadata: TableMetadata) -> list[PlannedGroup]:
    """By the paths of their partitions, so that two runs over the same files do the same."""
    return sorted(
        groups,
        key=lambda one: (path_of_group(one, metadata), one.group.spec_id, one.partition, one.stretch, one.position),
    )


def path_of_group(one: PlannedGroup, metadata: TableMetadata) -> str:
    """Where the files of a group are, for people; empty where they move to another spec."""
    return "" if one.group.is_moved else _path_of((one.group.spec_id, one.partition), metadata)


def _path_of(key: Key, metadata: TableMetadata) -> str:
    spec_id, partition = key
    return metadata.partition_path(spec_id, PartitionCodec(metadata.partition_type(spec_id)).decode(partition))


def _at_most(groups: list[PlannedGroup], rules: GroupRules, packer: "Packer") -> tuple[list[PlannedGroup], LeftAlone]:
    """The first groups up to `max-files-to-rewrite` files in all, the last one cut to what is left; and the rest."""
    left = rules.options.max_files_to_rewrite
    kept: list[PlannedGroup] = []
    if left is None:
        return groups, LeftAlone(BEYOND_LIMIT, 0, 0)
    for one in groups:
        if left <= 0:
            break
        if one.group.files_count > left:
            kept += packer.cut(one, Cut(one.position, left))
            break
        kept.append(one)
        left -= one.group.files_count
    packer.forget(groups, kept)
    count = sum(one.group.files_count for one in groups) - sum(one.group.files_count for one in kept)
    size = sum(one.group.bytes for one in groups) - sum(one.group.bytes for one in kept)
    return kept, LeftAlone(BEYOND_LIMIT, count, size)


class Packer(Protocol):
    """Makes groups of planned files.

    Attributes:
        notes: what people should know of how it does that.
    """

    notes: tuple[str, ...]

    def groups(self) -> tuple[list[PlannedGroup], FileTally]:
        """All groups, and what was found on the way to them."""

    def cut(self, group: PlannedGroup, cut: Cut) -> list[PlannedGroup]:
        """A part of one of them, unless that is not worth a rewrite."""

    def forget(self, groups: Iterable[PlannedGroup], kept: Iterable[PlannedGroup]) -> None:
        """Take back what was put into storage for groups that are not kept."""


class DriverPacker:
    """Few files: they are held here."""

    notes: tuple[str, ...] = ()

    def __init__(self, files: Iterable[PlannedFile], rules: GroupRules) -> None:
        self._rules = rules
        self._files = sorted(files, key=lambda one: (*rules.key_of(one.file), one.file.partition, one.file.file_path))

    def groups(self) -> tuple[list[PlannedGroup], FileTally]:
        tally = FileTally()
        return [held(group) for group in _groups(self._files, self._rules, tally)], tally

    def cut(self, group: PlannedGroup, cut: Cut) -> list[PlannedGroup]:
        key = (group.group.spec_id, group.partition)
        files = [one for one in self._files if self._rules.key_of(one.file) == key]
        return [held(some) for some in groups_of_key(files, self._rules, FileTally(), cut)]

    def forget(self, groups: Iterable[PlannedGroup], kept: Iterable[PlannedGroup]) -> None:
        """Nothing of them is in storage."""


def held(one: PlannedGroup) -> PlannedGroup:
    """A group that has its files with it."""
    assert one.files is not None
    group = msgspec.structs.replace(one.group, packed=pack_group_files(one.files))
    return msgspec.structs.replace(one, group=group, files=None)


class _TasksPacker:
    """Many files: they are packed in Spark tasks, each all files of its keys, or of stretches of them."""

    def __init__(self, files: "DataFrame", task: "PackTask", notes: tuple[str, ...]) -> None:
        self._files, self._task, self.notes = files, task, notes

    def groups(self) -> tuple[list[PlannedGroup], FileTally]:
        by_key = self._files.repartition("spec_id", KEY, STRETCH)
        return packed_in_tasks(
            by_key.sortWithinPartitions("spec_id", KEY, STRETCH, "partition", "file_path"), self._task
        )

    def cut(self, group: PlannedGroup, cut: Cut) -> list[PlannedGroup]:
        files = self._files.where((F.col("spec_id") == group.group.spec_id) & (F.col(STRETCH) == group.stretch))
        if not group.group.is_moved:
            files = files.where(F.col("partition") == F.lit(bytearray(group.partition)))
        in_order = files.repartition(1).sortWithinPartitions("partition", "file_path")
        return packed_in_tasks(in_order, msgspec.structs.replace(self._task, cut=cut))[0]

    def forget(self, groups: Iterable[PlannedGroup], kept: Iterable[PlannedGroup]) -> None:
        needed = {one.group.location for one in kept}
        locations = {one.group.location for one in groups if one.group.location not in needed}
        self._task.storage.delete_many([location for location in locations if location is not None])


class PackTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a task needs that packs; `directory` as for `plan`. `as_given`: the files of a stretch are a group, in their order."""

    rules: GroupRules
    storage: Storage
    directory: str | None
    cut: Cut | None = None
    as_given: bool = False

    def stored(self, one: PlannedGroup) -> PlannedGroup:
        """The group without its files, which are put where a second attempt at the task would put them too."""
        assert one.files is not None
        group = one.group
        if self.directory == IN_PLAN:
            return held(one)
        if self.directory is not None:
            digest = blake2b(one.partition, digest_size=16).hexdigest()
            part = "" if self.cut is None else f"-{self.cut.files_count}"
            number = f"{one.stretch}-{one.position}"
            location = f"{self.directory}/group-{group.spec_id}-{digest}-{number}{part}.msgpack.zst"
            # An attempt that came before this one made it of the same files.
            with suppress(FileExistsError):
                self.storage.create(location, pack_group_files(one.files))
            group = msgspec.structs.replace(group, location=location)
        return msgspec.structs.replace(one, group=group, files=None)


def packed_in_tasks(files: "DataFrame", task: PackTask) -> tuple[list[PlannedGroup], FileTally]:
    """The groups of files that are in the order of their keys, and what was found on the way to them."""
    rows = collected(files.mapInArrow(partial(_pack, task), from_arrow_schema(_PACKED)), "planning groups of files")
    groups, tally = [], FileTally()
    for row in rows:
        if row["group"] is not None:
            groups.append(from_msgpack(bytes(row["group"]), PlannedGroup))
        else:
            tally.add(from_msgpack(bytes(row["tally"]), FileTally))
    return groups, tally


def _pack(task: PackTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    files = ManyPlannedFiles(task.rules.space).read(batches)
    tally = FileTally()
    groups = groups_as_given(files, task.rules) if task.as_given else _groups(files, task.rules, tally, task.cut)
    for one in groups:
        yield _packed_row("group", task.stored(one))
    yield _packed_row("tally", tally)


def _packed_row(name: str, value: object) -> pa.RecordBatch:
    row = {**dict.fromkeys(_PACKED.names), name: msgspec.msgpack.encode(value)}
    return pa.RecordBatch.from_pylist([row], schema=_PACKED)


def groups_as_given(files: Iterable[PlannedFile], rules: GroupRules) -> Iterator[PlannedGroup]:
    """A group of each stretch, whatever it is worth."""
    for _, some in groupby(files, attrgetter("stretch")):
        yield group_of([*some], 0, rules)


def _groups(
    files: Iterable[PlannedFile], rules: GroupRules, tally: FileTally, cut: Cut | None = None
) -> Iterator[PlannedGroup]:
    """The groups of files that are in the order of their keys."""
    for _, some in groupby(files, lambda one: (rules.key_of(one.file), one.stretch)):
        yield from groups_of_key(some, rules, tally, cut)


def _packer(
    scan: Scan,
    spark: SparkSource,
    rules: GroupRules,
    directory: str | None,
    *,
    only: Collection[str] | None = None,
) -> Packer:
    columns = file_columns(rules.space)
    deletes = bool(scan.deletes.opened)
    few = few_files(scan, limits_of(spark), columns, deletes=deletes, max_pairs=EVERY_PAIR)
    if few is not None:
        return DriverPacker(few_planned_files(few, rules, only), rules)
    plan_files = planned_files_with_deletes if deletes else planned_files
    planned = plan_files(scan, spark, columns)
    if only is not None:
        paths = arrow_dataframe(started(spark), pa.table({"file_path": sorted(only)}))
        planned = planned.join(F.broadcast(paths), "file_path", "left_semi")
    cuts = cuts_of(scan, spark, rules)
    files = with_stretches(many_planned_files(planned, rules), rules, cuts)
    task = PackTask(rules=rules, storage=scan.table.storage, directory=directory)
    return _TasksPacker(files, task, _notes(cuts, scan.table.metadata, rules))


def _notes(cuts: Mapping[Key, Cuts], metadata: TableMetadata, rules: GroupRules) -> tuple[str, ...]:
    names = [
        "a partition spec that files move from" if rules.is_moved(key[0]) else f"partition {_path_of(key, metadata)!r}"
        for key in cuts
    ]
    return notes_of(cuts, names, "paths" if rules.space is None else "the sort order")
