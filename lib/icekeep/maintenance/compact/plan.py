"""What will be rewritten, as values: groups of files, and the plan of a run. Printable; the files themselves are packed away.

A group is one unit of failure and of partial progress; it becomes one or more tasks, each about one new file. The driver
holds groups, a row of sums each: what files they have is a compressed text, which lies in storage where there are many.

What a run does with the rows of the files it rewrites: leave their order as it is, or put them in one.

The arguments are those of Iceberg's procedure: `strategy` is `binpack` or `sort`, and `sort_order` is the order of a sort,
a z-order and Hilbert's curve among them; without it a sort takes the table's order, and with it alone a sort is meant.

Which partition spec the new files of a run have.

Files are moved to the table's default spec, or to the one of the option `output-spec-id`. Without the option they stay in
their own spec, and in their partition, where moving them is not safe or not possible: equality deletes of their spec are
live, which another writer may add to while files move out of their reach; or the default spec has a transform that is not
known, so that no partition of it can be made.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.commit.manifest_writer import refuse_unknown_transforms
from icekeep.decoding import from_msgpack
from icekeep.errors import (
    IcekeepBug,
    InvalidTableError,
    NotFoundError,
    OptionError,
    UnsupportedError,
    UsageError,
    argument,
)
from icekeep.formats.sort.encode import Curve, Ordering
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.planning.entries import DecodedEntries, EntryFilter, SpecFilter, folded
from icekeep.planning.scan.plan import Scan, delete_manifests
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.collections import NO_POSITIONS, PositionSet, packed_positions, unpacked_positions
from icekeep.spec.manifests.structs import FileContent, own_bytes
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN
from icekeep.spec.sorting import UNSORTED, CurveKeys, SortField, SortKey, SortOrder, build_sort_order, parse_sort_order
from icekeep.spec.transforms import Identity, UnknownTransform
from icekeep.spec.types import MAX_INT
from icekeep.storage.base import Storage

_CODEC = "zstd"


class GroupFile(msgspec.Struct, frozen=True, kw_only=True):
    """A live data file as it was read.

    Attributes:
        partition: its tuple as bytes (`PartitionCodec`).
        deleted_count: how many of its rows are deleted as far as entries say: an estimate (`candidates`).
        deletes: positions in `GroupFiles.deletes` of the delete files that reach it.
    """

    file_path: str
    file_format: str
    spec_id: int
    partition: bytes
    record_count: int
    file_size_in_bytes: int
    snapshot_id: int | None
    sequence_number: int
    file_sequence_number: int | None
    manifest_path: str
    split_offsets: tuple[int, ...] | None = None
    first_row_id: int | None = None
    sort_order_id: int | None = None
    deleted_count: int = 0
    deletes: PositionSet = NO_POSITIONS

    @property
    def live_bytes(self) -> int:
        """About how many bytes its live rows take; all of them where the entry does not say how many rows there are."""
        if self.deleted_count <= 0:
            return self.file_size_in_bytes
        return self.file_size_in_bytes * (self.record_count - self.deleted_count) // self.record_count


class GroupDelete(msgspec.Struct, frozen=True, kw_only=True):
    """A live delete file as it was read: the fields of `planning.manifests.REACHING_DELETES`."""

    content: int
    file_path: str
    file_format: str
    spec_id: int
    partition: bytes
    sequence_number: int
    record_count: int
    file_size_in_bytes: int
    equality_ids: tuple[int, ...] | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None
    key_metadata: bytes | None = None

    @property
    def bytes_to_read(self) -> int:
        """What reading it takes, as `own_bytes` says."""
        return own_bytes(self.file_size_in_bytes, self.content_size_in_bytes)


class GroupFiles(msgspec.Struct, frozen=True):
    """The files of one group, and the delete files that reach any of them, each once.

    Planning puts them in an order in which what reaches a file is a few stretches (`group_deletes`).
    """

    files: tuple[GroupFile, ...]
    deletes: tuple[GroupDelete, ...] = ()


_Packed = bytes


class FileGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are rewritten together: of one spec and partition, or of one spec where they move to another.

    Attributes:
        number: from 0, in the order of planning.
        partition: where the files are, as a path for people (`day=2013-01-05`); empty where they are in none or in several.
        spec_id: of the files.
        output_spec_id: of the new files.
        bytes: of the files.
        delete_files_count: those that reach any of the files, each once; `delete_bytes` is what reading them takes.
        expected_files_count: how many files the group becomes, unless some are copied byte for byte (`methods`); none where all
            of its rows are deleted.
        packed: the files (`pack_group_files`), or `None` where `location` says where that lies.
    """

    number: int
    partition: str
    spec_id: int
    output_spec_id: int
    files_count: int
    bytes: int
    record_count: int
    delete_files_count: int = 0
    delete_bytes: int = 0
    expected_files_count: int
    packed: _Packed | None = None
    location: str | None = None

    @property
    def is_moved(self) -> bool:
        """Whether the new files are of another spec than the old ones."""
        return self.spec_id != self.output_spec_id

    @property
    def has_files(self) -> bool:
        """Whether `group_files` knows its files; in a preview of very many there are sums only."""
        return self.packed is not None or self.location is not None


class LeftAlone(msgspec.Struct, frozen=True):
    """Files that a run leaves as they are though their size or their deletes ask for work, and why."""

    reason: str
    files_count: int
    bytes: int


class RewritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of the job will do, on the head of `branch`, whose snapshot and sequence number these are.

    Attributes:
        strategy: as text, such as `binpack` or `sort by day ASC NULLS FIRST`.
        candidate_files_count: how many files ask for work, whether or not they are in a group.
        overlap_depth_before: how many files a look-up by key meets, over all files (see `key_overlap`); `None` where
            nothing is sorted.
        groups: in the order of execution.
        notes: what people should know of how it was planned.
    """

    branch: str = MAIN
    snapshot_id: int | None
    sequence_number: int
    schema_id: int
    strategy: str = "binpack"
    target_file_size_bytes: int
    candidate_files_count: int
    rewritten_data_files_count: int
    rewritten_bytes_count: int
    expected_files_count: int
    left_alone: tuple[LeftAlone, ...] = ()
    overlap_depth_before: float | None = None
    groups: tuple[FileGroup, ...] = ()
    notes: tuple[str, ...] = ()


def pack_group_files(files: GroupFiles) -> bytes:
    """The files of a group as bytes: msgpack, compressed."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _CODEC) as stream:
        stream.write(msgspec.msgpack.encode(files, enc_hook=packed_positions))
    return bytes(sink.getvalue())


def unpack_group_files(packed: bytes) -> GroupFiles:
    """The files of a group from their bytes; raises `InvalidTableError` if they are broken."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), _CODEC) as stream:
            return from_msgpack(stream.read(), GroupFiles, unpacked_positions)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidTableError(f"cannot read the files of a group: {error}; plan anew") from error


def group_files(group: FileGroup, storage: Storage) -> GroupFiles:
    """The files of a group, from the plan or from where planning has put them.

    Raises:
        InvalidTableError, MissingFileError: they cannot be read back.
    """
    if group.packed is not None:
        return unpack_group_files(group.packed)
    if group.location is None:
        raise IcekeepBug(f"the files of group {group.number} are kept nowhere; a preview of so many has sums only")
    return unpack_group_files(storage.read(group.location))


def plan_locations(plan: RewritePlan) -> list[str]:
    """What planning has put in storage, for whoever removes it when the run is over."""
    return [group.location for group in plan.groups if group.location is not None]


BINPACK = "binpack"
SORT = "sort"

ORDER_KEY = "icekeep.order"
"""In the summary of a snapshot: along which curve its new files were written, which no field of a file could say."""

_BY_ANY_ORDER = ("compression-factor", "shuffle-partitions-per-file")
_BY_ZORDER = ("var-length-contribution", "max-output-size")


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """How the rows of new files are ordered, and what that takes.

    Attributes:
        text: for people, such as `binpack`, `sort by day ASC NULLS FIRST` or `zorder(a, b)`.
        ordering: of the rows of one partition; null leaves them as they are.
        sort_order_id: what new files say: the id of the table's order that this is, else 0. Where it is not 0, a file that
            says something else is not in this order.
        compression_factor: new bytes for one of the old ones, as the user expects them.
        shuffle_partitions_per_file: into how many parts the rows of one new file are shuffled.
        warnings: what the user should know before it runs.
    """

    text: str
    ordering: Ordering | None = None
    sort_order_id: int = UNSORTED.order_id
    compression_factor: float = 1.0
    shuffle_partitions_per_file: int = 1
    warnings: tuple[str, ...] = ()


def chosen_strategy(
    strategy: str | None, sort_order: str | None, metadata: TableMetadata, options: RewriteDataFilesOptions
) -> Strategy:
    """Work out what the arguments ask for; the columns are those of the current schema.

    Raises:
        UsageError, NotFoundError: the arguments contradict each other, the order cannot be read, or it does not fit the
            table.
        OptionError: an option belongs to another strategy.
        UnsupportedError: the table's order has a transform that is not known.
    """
    name = (strategy or (BINPACK if sort_order is None else SORT)).lower()
    if name not in (BINPACK, SORT):
        raise UsageError(f"there is no strategy {strategy!r}; give {BINPACK} or {SORT}", strategy=strategy)
    if name == BINPACK:
        if sort_order is not None:
            raise UsageError(
                f"strategy {BINPACK} takes no sort order ({sort_order!r}); give strategy {SORT}", strategy=strategy
            )
        _refuse(options, (*_BY_ANY_ORDER, *_BY_ZORDER), f"a strategy of {SORT}")
        return Strategy(text=BINPACK)
    if sort_order is None:
        found = _by_table_order(metadata)
    elif isinstance(keys := parse_sort_order(sort_order), CurveKeys):
        found = _along_curve(keys, metadata, options)
    else:
        found = _by_keys(keys, metadata)
    if found.ordering is None or found.ordering.curve is None or found.ordering.curve.kind != "zorder":
        _refuse(options, _BY_ZORDER, "a sort order such as zorder(a, b)")
    return msgspec.structs.replace(
        found,
        compression_factor=options.compression_factor or 1.0,
        shuffle_partitions_per_file=options.shuffle_partitions_per_file or 1,
    )


def order_mark(strategy: Strategy) -> str | None:
    """What the summary of a snapshot says under `ORDER_KEY` whose files were written along a curve; else `None`."""
    curve = None if strategy.ordering is None else strategy.ordering.curve
    if curve is None:
        return None
    ids = ",".join(map(str, curve.column_ids))
    return f"{curve.kind}({ids})/{curve.var_length_contribution}/{curve.max_output_bytes}"


def order_summary(strategy: Strategy) -> dict[str, str]:
    """What a run adds to the summaries of its snapshots."""
    mark = order_mark(strategy)
    return {} if mark is None else {ORDER_KEY: mark}


def snapshots_in_order(strategy: Strategy, metadata: TableMetadata) -> frozenset[int]:
    """The snapshots that say that their files were written along the very curve of a strategy."""
    mark = order_mark(strategy)
    if mark is None:
        return frozenset()
    return frozenset(s.snapshot_id for s in metadata.snapshots if (s.summary or {}).get(ORDER_KEY) == mark)


def _by_table_order(metadata: TableMetadata) -> Strategy:
    order = metadata.sort_order
    if not order.fields:
        raise UsageError(f"the table at {metadata.location!r} has no sort order; give one as {argument('sort_order')}")
    for field in order.fields:
        if isinstance(field.transform, UnknownTransform):
            raise UnsupportedError(
                f"sort order {order.order_id} has the transform {str(field.transform)!r}, which is not known; give another "
                f"one as {argument('sort_order')}"
            )
    return Strategy(
        text=_sort_text(order.fields, metadata.schema),
        ordering=Ordering(fields=order.fields),
        sort_order_id=order.order_id,
    )


def _by_keys(keys: Sequence[SortKey], metadata: TableMetadata) -> Strategy:
    fields = build_sort_order(metadata.schema, keys).fields
    text = _sort_text(fields, metadata.schema)
    order_id = next((order.order_id for order in metadata.sort_orders if _is_same(order, fields)), UNSORTED.order_id)
    unknown = f"{text}: that is none of the table's sort orders, so the new files will not say that they are sorted"
    return Strategy(
        text=text,
        ordering=Ordering(fields=fields),
        sort_order_id=order_id,
        warnings=() if order_id else (unknown,),
    )


def _along_curve(keys: CurveKeys, metadata: TableMetadata, options: RewriteDataFilesOptions) -> Strategy:
    fields = build_sort_order(metadata.schema, keys.columns).fields
    constant = {field.source_id for field in metadata.spec.fields if isinstance(field.transform, Identity)}
    warnings = tuple(
        f"{keys.kind}: column {name!r} is left out, since it has one value in each partition"
        for name, field in zip(keys.columns, fields, strict=True)
        if field.source_id in constant
    )
    ids = tuple(dict.fromkeys(field.source_id for field in fields if field.source_id not in constant))
    if not ids:
        raise UsageError(f"all columns of the {keys.kind} have one value in each partition; name others")
    text = f"{keys.kind}({', '.join(metadata.schema.names_by_id[i] for i in ids)})"
    curve = Curve(
        kind=keys.kind,
        column_ids=ids,
        var_length_contribution=options.var_length_contribution or 8,
        max_output_bytes=options.max_output_size or MAX_INT,
    )
    return Strategy(text=text, ordering=Ordering(curve=curve), warnings=warnings)


def _is_same(order: SortOrder, fields: Sequence[SortField]) -> bool:
    return [_facts(field) for field in order.fields] == [_facts(field) for field in fields]


def _facts(field: SortField) -> tuple[int, str, str, str]:
    return field.source_id, str(field.transform), field.direction, field.null_order


def _sort_text(fields: Sequence[SortField], schema: Schema) -> str:
    return "sort by " + ", ".join(_field_text(field, schema) for field in fields)


def _field_text(field: SortField, schema: Schema) -> str:
    name = schema.names_by_id[field.source_id]
    term = name if isinstance(field.transform, Identity) else f"{field.transform}({name})"
    return f"{term} {field.direction.upper()} {field.null_order.replace('-', ' ').upper()}"


def _refuse(options: RewriteDataFilesOptions, names: Sequence[str], needed: str) -> None:
    for name in names:
        given = getattr(options, name.replace("-", "_"))
        if given is not None:
            raise OptionError(name, given=given, expected=f"it together with {needed}, or leave it out")


def output_specs(scan: Scan, spark: SparkSource, options: RewriteDataFilesOptions) -> dict[int, int]:
    """The spec of the new files by the spec of the old ones.

    Raises:
        NotFoundError: the table has no spec of that id.
        UnsupportedError: files would be written in a spec that has a transform which is not known.
        InvalidTableError, MissingFileError: a delete manifest cannot be read.
    """
    metadata = scan.table.metadata
    asked = options.output_spec_id
    if asked is not None:
        _refuse_unfit(metadata, asked)
        return dict.fromkeys(metadata.specs_by_id, asked)
    staying = set(metadata.specs_by_id)
    if not metadata.spec.has_unknown_transform:
        others = {manifest.partition_spec_id for manifest in scan.data.opened} - {metadata.default_spec_id}
        staying = _with_equality_deletes(scan, spark, others) if others else set()
    found = {i: i if i in staying else metadata.default_spec_id for i in metadata.specs_by_id}
    refuse_unknown_transforms({found[m.partition_spec_id] for m in scan.data.opened}, metadata.specs_by_id)
    return found


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


def _with_equality_deletes(scan: Scan, spark: SparkSource, spec_ids: set[int]) -> set[int]:
    """Those of some specs that live equality deletes belong to, anywhere in the snapshot."""
    metadata = scan.table.metadata
    manifests = [m for m in delete_manifests(scan.listed) if m.partition_spec_id in spec_ids]
    if not manifests:
        return set()
    wanted = EntryFilter(specs={i: SpecFilter(metadata.partition_type(i)) for i in spec_ids})
    columns = {"content", "spec_id"}
    return folded(scan.table.storage, spark, manifests, wanted, columns, EqualityDeleteSpecs).spec_ids


def _refuse_unfit(metadata: TableMetadata, spec_id: int) -> None:
    spec = metadata.specs_by_id.get(spec_id)
    if spec is None:
        raise NotFoundError(f"the table has no partition spec {spec_id} (option output-spec-id)", spec_id=spec_id)
    if spec.has_unknown_transform:
        raise UnsupportedError(
            f"option output-spec-id: partition spec {spec_id} has a transform that is not known; give another spec"
        )
