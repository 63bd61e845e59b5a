"""Plans a run: files of a scan -> those of one key side by side -> groups, on the driver or in Spark tasks.

Few files are packed on the driver. Many are brought together by key in Spark, packed where they are, and what files a group
has is put into storage by the task that packed it: the driver gets a row of sums for each group.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.commit.manifest_writer import refuse_unknown_transforms
from icekeep.decoding import from_msgpack
from icekeep.errors import NotFoundError, UnsupportedError
from icekeep.formats.options import write_options
from icekeep.maintenance.compact.candidates import RANGE, ManyPlannedFiles, few_planned_files, planned_candidates
from icekeep.maintenance.compact.grouping import (
    Cut,
    FileTotals,
    GroupRules,
    PlannedFile,
    PlannedGroup,
    group_of,
    groups_of_columns,
    groups_of_key,
    groups_of_ranges,
)
from icekeep.maintenance.compact.key_ranges import KEY, key_ranges, note_of, path_of, with_range_numbers
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.order import Strategy, key_space, snapshots_in_order
from icekeep.maintenance.compact.plan import (
    CandidateColumns,
    FileGroup,
    LeftAlone,
    RewritePlan,
    pack_group_files,
    packed_group,
)
from icekeep.maintenance.rewrite.options import file_sizes, in_job_order
from icekeep.planning.entries import DecodedEntries, EntryFilter, SpecFilter, folded
from icekeep.planning.scan.plan import Scan, delete_manifests
from icekeep.planning.spark.rows import collected
from icekeep.planning.spark.session import F, SparkSource, from_arrow_schema
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Files: TypeAlias = "CandidateColumns | list[PlannedFile] | DataFrame"
"""Few files here, as objects for an order, or the rows of many."""

_PACKED = pa.schema([("group", pa.binary()), ("totals", pa.binary())])

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
        directory: of this plan alone, where tasks put the files of groups where files are many, for `plan.group_files`; the
            caller removes `plan.plan_locations` in the end. With `IN_PLAN` the plan has them, with `None`, for a preview, they
            are kept nowhere.

    Raises:
        OptionError, NotFoundError: an option does not go with the table or with another option.
        UnsupportedError: a file is encrypted, or `output-spec-id` names a spec with a transform that is not known.
        InvalidTableError, MissingFileError: manifests cannot be read whole.
    """
    metadata, rules = scan.table.metadata, group_rules(scan, spark, strategy, options)
    paths = None if only is None else pa.table({"file_path": pa.array(sorted(only), pa.string())})
    files: _Files = planned_candidates(scan, spark, rules, paths)
    notes: tuple[str, ...] = ()
    if isinstance(files, CandidateColumns):
        if strategy.ordering is not None or not files.are_regular:
            files = [*few_planned_files(files, rules.space)]
    else:
        ranges = key_ranges(scan, spark, rules)
        files = with_range_numbers(files, rules, ranges)
        notes = tuple(note_of(key, found, metadata, rules) for key, found in ranges.items())
    packer = BinPacker(rules=rules, storage=scan.table.storage, directory=directory)
    groups, left, totals = chosen_groups(files, packer, metadata)
    in_order = in_job_order(groups, options.rewrite_job_order, attrgetter("bytes"), attrgetter("files_count"))
    depth = totals.depth_sum / totals.depth_files_count if totals.depth_files_count else None
    return msgspec.structs.replace(
        plan_of(in_order, scan, rules, branch),
        candidate_files_count=totals.candidate_files_count,
        left_alone=left,
        overlap_depth_before=depth,
        notes=notes,
    )


def plan_of(groups: Sequence[FileGroup], scan: Scan, rules: GroupRules, branch: str) -> RewritePlan:
    """Some groups, in the order of execution, as the plan of a run."""
    snapshot = scan.version.snapshot
    files_count = sum(group.files_count for group in groups)
    return RewritePlan(
        branch=branch,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        sequence_number=0 if snapshot is None else snapshot.sequence_number,
        schema_id=scan.table.metadata.current_schema_id,
        strategy=rules.strategy.text,
        target_file_size_bytes=rules.sizes.target_bytes,
        candidate_files_count=files_count,
        rewritten_data_files_count=files_count,
        rewritten_bytes_count=sum(group.bytes for group in groups),
        expected_files_count=sum(group.expected_files_count for group in groups),
        groups=tuple(groups),
    )


def group_rules(scan: Scan, spark: SparkSource, strategy: Strategy, options: RewriteDataFilesOptions) -> GroupRules:
    """What groups of the files of a scan are made by; raises as `plan`."""
    metadata = scan.table.metadata
    return GroupRules(
        sizes=file_sizes(options, write_options(metadata.properties).target_file_size_bytes),
        options=options,
        strategy=strategy,
        space=None if strategy.ordering is None else key_space(strategy.ordering, metadata),
        in_order=snapshots_in_order(strategy, metadata),
        output_specs=_output_specs(scan, spark, options.output_spec_id),
    )


def output_specs(metadata: TableMetadata, with_equality_deletes: Collection[int]) -> dict[int, int]:
    """The spec of the new files by the spec of the old ones.

    Files are moved to the table's default spec. They stay in their own spec, and in their partition, where moving them is not
    safe or not possible: equality deletes of their spec are live, which another writer may add to while files move out of their
    reach; or the default spec has a transform that is not known, so that no partition of it can be made.
    """
    if metadata.spec.has_unknown_transform:
        return {i: i for i in metadata.specs_by_id}
    return {i: i if i in with_equality_deletes else metadata.default_spec_id for i in metadata.specs_by_id}


def _output_specs(scan: Scan, spark: SparkSource, asked: int | None) -> dict[int, int]:
    """As `output_specs`, or all to the one of the option `output-spec-id`."""
    metadata = scan.table.metadata
    specs = metadata.specs_by_id
    if asked is not None:
        if asked not in specs:
            raise NotFoundError(f"the table has no partition spec {asked} (option output-spec-id)", spec_id=asked)
        if specs[asked].has_unknown_transform:
            raise UnsupportedError(
                f"option output-spec-id: partition spec {asked} has a transform that is not known; give another spec"
            )
        return dict.fromkeys(specs, asked)
    staying = set[int]()
    if not metadata.spec.has_unknown_transform:
        others = {manifest.partition_spec_id for manifest in scan.data.opened} - {metadata.default_spec_id}
        manifests = [one for one in delete_manifests(scan.listed) if one.partition_spec_id in others]
        if manifests:
            wanted = EntryFilter(specs={i: SpecFilter(metadata.partition_type(i)) for i in others})
            columns = {"content", "spec_id"}
            found = folded(scan.table.storage, spark, manifests, wanted, columns, EqualityDeleteSpecs)
            staying = found.spec_ids
    moved = output_specs(metadata, staying)
    refuse_unknown_transforms({moved[m.partition_spec_id] for m in scan.data.opened}, specs)
    return moved


class EqualityDeleteSpecs:
    """A `Fold`: the specs of live equality delete files."""

    def __init__(self) -> None:
        self.spec_ids: set[int] = set()

    def add(self, decoded: DecodedEntries) -> None:
        """Take in some entries."""
        contents = decoded.entries.column("content").to_numpy(zero_copy_only=False)
        spec_ids = decoded.entries.column("spec_id").to_numpy(zero_copy_only=False)
        found = spec_ids[contents == int(FileContent.EQUALITY_DELETES)]
        self.spec_ids.update(np.unique(found).tolist())

    def merge(self, other: "EqualityDeleteSpecs") -> None:
        """Take in what another has found."""
        self.spec_ids |= other.spec_ids


def chosen_groups(
    files: _Files, packer: "BinPacker", metadata: TableMetadata
) -> tuple[list[FileGroup], tuple[LeftAlone, ...], FileTotals]:
    """The groups of a run, numbered by the paths of their partitions, and what it leaves alone."""
    rules = packer.rules
    if isinstance(files, list):
        files = sorted(files, key=lambda one: (*rules.key_of(one.file), one.file.partition, one.file.file_path))
    if isinstance(files, list | CandidateColumns):
        groups, totals = packer.packed(files)
    else:
        by_key = files.repartition("spec_id", KEY, RANGE)
        groups, totals = packer.packed(by_key.sortWithinPartitions("spec_id", KEY, RANGE, "partition", "file_path"))
    # By the paths of their partitions, so that two runs over the same files do the same.
    groups.sort(
        key=lambda one: (path_of_group(one, metadata), one.group.spec_id, one.partition, one.range_number, one.position)
    )
    kept = _first_groups(groups, files, packer)
    numbered = [
        msgspec.structs.replace(one.group, number=number, partition=path_of_group(one, metadata))
        for number, one in enumerate(kept)
    ]
    beyond = LeftAlone(
        BEYOND_LIMIT,
        sum(one.group.files_count for one in groups) - sum(one.group.files_count for one in kept),
        sum(one.group.bytes for one in groups) - sum(one.group.bytes for one in kept),
    )
    left = (LeftAlone(NOT_BETTER, totals.left_files_count, totals.left_bytes), beyond)
    return numbered, tuple(some for some in left if some.files_count), totals


def path_of_group(one: PlannedGroup, metadata: TableMetadata) -> str:
    """Where the files of a group are, for people; empty where they move to another spec."""
    return "" if one.group.is_moved else path_of((one.group.spec_id, one.partition), metadata)


def _first_groups(groups: list[PlannedGroup], files: _Files, packer: "BinPacker") -> list[PlannedGroup]:
    """The first groups up to `max-files-to-rewrite` files in all, the last one cut to what is left if that is worth it."""
    left = packer.rules.options.max_files_to_rewrite
    if left is None:
        return groups
    kept: list[PlannedGroup] = []
    for one in groups:
        if left <= 0:
            break
        if one.group.files_count > left:
            cut = msgspec.structs.replace(packer, cut=Cut(one.position, left))
            kept += cut.packed(_files_of_key(one, files, packer.rules))[0]
            break
        kept.append(one)
        left -= one.group.files_count
    unneeded = {one.group.location for one in groups} - {one.group.location for one in kept}
    if locations := [location for location in unneeded if location is not None]:
        packer.storage.delete_many(locations)
    return kept


def _files_of_key(one: PlannedGroup, files: _Files, rules: GroupRules) -> _Files:
    spec_id = one.group.spec_id
    if isinstance(files, CandidateColumns):
        return files.of_key(spec_id, None if one.group.is_moved else one.partition)
    if isinstance(files, list):
        return [file for file in files if rules.key_of(file.file) == (spec_id, one.partition)]
    own = files.where((F.col("spec_id") == spec_id) & (F.col(RANGE) == one.range_number))
    if not one.group.is_moved:
        own = own.where(F.col("partition") == F.lit(bytearray(one.partition)))
    return own.repartition(1).sortWithinPartitions("partition", "file_path")


class BinPacker(msgspec.Struct, frozen=True, kw_only=True):
    """Makes groups of files that are in the order of their keys: of few here, of many in Spark tasks, to which it goes.

    Attributes:
        directory: as for `plan`; the groups of few files always have them, packed where they are for a run.
        cut: of one bin the part that becomes a group, and nothing else.
        is_of_saved_plan: the files of a range are a group, in their order, whatever it is worth.
    """

    rules: GroupRules
    storage: Storage
    directory: str | None
    cut: Cut | None = None
    is_of_saved_plan: bool = False

    def packed(self, files: _Files) -> tuple[list[PlannedGroup], FileTotals]:
        """The groups, and what was found on the way to them."""
        groups: list[PlannedGroup] = []
        totals = FileTotals()
        if isinstance(files, list):
            return [*map(_with_files, self.groups_of(files, totals))], totals
        if isinstance(files, CandidateColumns):
            found = (
                groups_of_ranges(files, self.rules)
                if self.is_of_saved_plan
                else groups_of_columns(files, self.rules, totals, self.cut)
            )
            if self.directory not in (None, IN_PLAN):
                found = [msgspec.structs.replace(one, group=packed_group(one.group)) for one in found]
            return found, totals
        packed = files.mapInArrow(partial(_packed_batches, self), from_arrow_schema(_PACKED))
        for row in collected(packed, "planning groups of files"):
            if row["group"] is not None:
                groups.append(from_msgpack(bytes(row["group"]), PlannedGroup))
            else:
                totals.add(from_msgpack(bytes(row["totals"]), FileTotals))
        return groups, totals

    def groups_of(self, files: Iterable[PlannedFile], totals: FileTotals) -> Iterator[PlannedGroup]:
        """The groups, each with its files."""
        if self.is_of_saved_plan:
            for _, some in groupby(files, attrgetter("range_number")):
                yield group_of([*some], 0, self.rules)
            return
        for _, some in groupby(files, lambda one: (self.rules.key_of(one.file), one.range_number)):
            yield from groups_of_key(some, self.rules, totals, self.cut)

    def stored(self, one: PlannedGroup) -> PlannedGroup:
        """The group without its files, which are put where a second attempt at the task would put them too."""
        if self.directory == IN_PLAN:
            return _with_files(one)
        assert one.files is not None
        group = one.group
        if self.directory is not None:
            digest = blake2b(one.partition, digest_size=16).hexdigest()
            part = "" if self.cut is None else f"-{self.cut.files_count}"
            number = f"{one.range_number}-{one.position}"
            location = f"{self.directory}/group-{group.spec_id}-{digest}-{number}{part}.msgpack.zst"
            # An attempt that came before this one made it of the same files.
            with suppress(FileExistsError):
                self.storage.create(location, pack_group_files(one.files))
            group = msgspec.structs.replace(group, location=location)
        return msgspec.structs.replace(one, group=group, files=None)


def _with_files(one: PlannedGroup) -> PlannedGroup:
    assert one.files is not None
    group = msgspec.structs.replace(one.group, packed=pack_group_files(one.files))
    return msgspec.structs.replace(one, group=group, files=None)


def _packed_batches(packer: BinPacker, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    totals = FileTotals()
    for one in packer.groups_of(ManyPlannedFiles(packer.rules.space).read(batches), totals):
        group = msgspec.msgpack.encode(packer.stored(one))
        yield pa.RecordBatch.from_pylist([{"group": group, "totals": None}], schema=_PACKED)
    row = {"group": None, "totals": msgspec.msgpack.encode(totals)}
    yield pa.RecordBatch.from_pylist([row], schema=_PACKED)
