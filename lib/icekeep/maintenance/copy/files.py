"""What a copy of a table consists of: its files by kind, which of them hold paths, and which are at the target already.

    metadata -> manifest lists of its snapshots -> manifests -> live files

Of an increment the target has what the snapshots of the earlier copy led to. How long a manifest or a delete file is there, which
new metadata has to say, is asked of the target; what cannot be found there belongs to the increment.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.metadata_files import unknown_names
from icekeep.errors import IcekeepError, SafetyError, UnsupportedError, UsageError, argument
from icekeep.formats.puffin import FILE_FORMAT
from icekeep.planning.entries import DecodedEntries, EntryFilter, SpecFilter, entries_schema, folded
from icekeep.planning.manifest_lists import listed_manifests
from icekeep.planning.spark.session import SparkSource
from icekeep.rendered import Rendered
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.relocation import PathChange, paths_in_metadata
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage, head_many
from icekeep.storage.locations import canonical, is_location, is_under, spellings

_NAMED_COUNT = 3
"""Of the files that are not under the source prefix, as many are named."""


class CopiedKind(StrEnum):
    """What a copied file is."""

    DATA = "data file"
    EQUALITY_DELETES = "equality delete file"
    POSITION_DELETES = "position delete file"
    VECTORS = "deletion vectors"
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest list"
    STATISTICS = "statistics file"
    PARTITION_STATISTICS = "partition statistics file"
    METADATA = "metadata file"


PLAIN = pa.schema([("path", pa.string()), ("kind", pa.string()), ("size_bytes", pa.int64())])
"""Columns of files that are copied as they are."""


class CopiedFilesOfKind(Rendered, frozen=True, kw_only=True):
    """The files of one kind that a copy consists of; `bytes` as they are at the source."""

    kind: str
    files_count: int
    bytes: int


class EarlierCopy(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the table that the target has a copy of.

    Attributes:
        snapshot_ids: of all its snapshots.
        last_sequence_number: 0 in version 1, which has none.
        statistics: paths of its statistics files, below the prefix.
        metadata: by which its files can be read, with the snapshots whose lists are there; `None` where nothing was copied.
        storage: from which they are read.
        prefix: of the paths in it, as the source of the change.
    """

    snapshot_ids: frozenset[int] = frozenset()
    last_sequence_number: int = 0
    statistics: frozenset[str] = frozenset()
    metadata: TableMetadata | None = None
    storage: Storage | None = None
    prefix: PathChange = PathChange("", "")

    @classmethod
    def at_source(cls, start: TableMetadata, end: TableMetadata, change: PathChange, storage: Storage) -> "EarlierCopy":
        """By the metadata of an earlier version of the source, of which snapshots may have expired until `end`.

        Statistics are taken for new, as Iceberg's procedure does.
        """
        left = tuple(one for one in start.snapshots if one.snapshot_id in end.snapshots_by_id)
        return cls(
            snapshot_ids=frozenset(start.snapshots_by_id),
            last_sequence_number=start.last_sequence_number,
            metadata=msgspec.structs.replace(start, snapshots=left),
            storage=storage,
            prefix=change,
        )

    @classmethod
    def at_target(cls, copy: TableMetadata, change: PathChange, storage: Storage) -> "EarlierCopy":
        """By the metadata of the copy itself."""
        back = PathChange(change.target, change.source)
        return cls(
            snapshot_ids=frozenset(copy.snapshots_by_id),
            last_sequence_number=copy.last_sequence_number,
            statistics=frozenset(back.below(path) or "" for path, _, _ in statistics_of(copy)),
            metadata=copy,
            storage=storage,
            prefix=back,
        )

    def may_have(self, manifest: ManifestFile) -> bool:
        """Whether a manifest is old enough to be at the target: snapshots that have expired, and come back, leave a doubt."""
        number = manifest.sequence_number or 0
        return manifest.added_snapshot_id in self.snapshot_ids or 0 < number <= self.last_sequence_number

    def lacks(self, files: pa.Table, change: PathChange, spark: SparkSource) -> pa.ChunkedArray:
        """Of each file whether the target has no copy of it.

        What a snapshot of the earlier copy added is there. Of others, whose snapshot had expired, the earlier copy is asked.
        """
        known = pc.is_in(files["snapshot_id"], pa.array(sorted(self.snapshot_ids), pa.int64()))
        if self.metadata is None or self.storage is None or not pc.any(pc.invert(known)).as_py():
            return pc.invert(known)
        numbers = pc.fill_null(files["file_sequence_number"], 0)
        is_older = pc.less_equal(numbers, self.last_sequence_number)
        if pc.any(pc.and_(pc.invert(known), is_older)).as_py():
            manifests = listed_manifests(self.storage, spark, self.metadata.snapshots, check=False).manifests
            there = _below(_live_files(self.metadata, manifests, self.storage, spark)["file_path"], self.prefix)
            known = pc.or_(known, pc.is_in(_below(files["file_path"], change), there.combine_chunks()))
        return pc.invert(known)


NOTHING_COPIED = EarlierCopy()


class CopiedTable(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy, or an increment of one, consists of; all paths are those of the source.

    Attributes:
        metadata: of the source, at which the copy ends.
        snapshots: whose manifest lists are rewritten.
        manifests: that are rewritten.
        lengths: in bytes, of other manifests, which the target has.
        named: of the data files that deletes name, all of which spell the prefix in one way.
        deletes: position delete files and files of vectors, each once, that are rewritten; described as far as that needs.
        deletes_count: of these, with each vector counted by itself.
        sizes: in bytes, of other such files, which the target has.
        plain: what is copied as it is: columns `path`, `kind`, `size_bytes`; each path once.
    """

    metadata: TableMetadata
    change: PathChange
    snapshots: tuple[Snapshot, ...]
    manifests: tuple[ManifestFile, ...]
    lengths: Mapping[str, int]
    named: PathChange
    deletes: tuple[DataFile, ...]
    deletes_count: int
    sizes: Mapping[str, int]
    plain: pa.Table

    def with_more(self, files: Iterable[tuple[str, CopiedKind, int]]) -> "CopiedTable":
        """The same with other files that are copied as they are: path, kind and size."""
        return msgspec.structs.replace(self, plain=pa.concat_tables([self.plain, _plain(files)]))

    def kinds(self, storage: Storage) -> tuple[CopiedFilesOfKind, ...]:
        """Files and bytes by kind, without metadata files; how long manifest lists are is asked of the source."""
        lists = [one.manifest_list for one in self.snapshots if one.manifest_list is not None]
        sizes: dict[str, list[int]] = {
            CopiedKind.MANIFEST: [one.manifest_length for one in self.manifests],
            CopiedKind.MANIFEST_LIST: [0 if info is None else info.size_bytes for info in head_many(lists, storage)],
        }
        for file in self.deletes:
            sizes.setdefault(kind_of_deletes(file.file_format), []).append(file.file_size_in_bytes)
        counted = {kind: (len(some), sum(some)) for kind, some in sizes.items() if some}
        for one in self.plain.group_by("kind").aggregate([("path", "count"), ("size_bytes", "sum")]).to_pylist():
            counted[one["kind"]] = one["path_count"], one["size_bytes_sum"]
        order = [kind.value for kind in CopiedKind]
        return tuple(
            CopiedFilesOfKind(kind=str(kind), files_count=files_count, bytes=size)
            for kind, (files_count, size) in sorted(counted.items(), key=lambda item: order.index(item[0]))
        )


def survey(
    metadata: TableMetadata,
    storage: Storage,
    spark: SparkSource,
    change: PathChange,
    earlier: EarlierCopy,
    target: Storage,
) -> CopiedTable:
    """Find out what a copy consists of; nothing is written.

    Args:
        target: is asked for what it has of an earlier copy.

    Raises:
        SafetyError: files of the table are not under the source prefix.
        UnsupportedError: the table is encrypted, or unknown keys of its metadata name files.
        InvalidTableError, MissingFileError: metadata cannot be read whole.
    """
    _refuse_unknown(metadata)
    refuse_outside(paths_in_metadata(metadata), change)
    snapshots = tuple(one for one in metadata.snapshots if one.snapshot_id not in earlier.snapshot_ids)
    listed = listed_manifests(storage, spark, snapshots, check=True, trust=True).manifests
    refuse_outside((("manifest", one.manifest_path) for one in listed), change)
    older = [one.manifest_path for one in listed if earlier.may_have(one)]
    lengths = _sizes_at_target(older, change, target)
    manifests = tuple(one for one in listed if one.manifest_path not in lengths)
    files = _live_files(metadata, manifests, storage, spark)
    _refuse_files(files, change)
    is_position, is_new = _are_position_deletes(files), earlier.lacks(files, change, spark)
    positions = files.filter(is_position)
    older = _distinct(files.filter(pc.and_(is_position, pc.invert(is_new))))["file_path"].to_pylist()
    sizes = _sizes_at_target(older, change, target)
    rewritten = positions.filter(pc.invert(pc.is_in(positions["file_path"], pa.array([*sizes], pa.string()))))
    return CopiedTable(
        metadata=metadata,
        change=change,
        snapshots=snapshots,
        manifests=manifests,
        lengths=lengths,
        named=_named(files, change),
        deletes=tuple(map(_delete_file, _distinct(rewritten).to_pylist())),
        deletes_count=rewritten.group_by(["file_path", "content_offset"]).aggregate([]).num_rows,
        sizes=sizes,
        plain=_plain_files(_distinct(files.filter(pc.and_(pc.invert(is_position), is_new))), metadata, earlier, change),
    )


def kind_of_deletes(file_format: str) -> CopiedKind:
    """The kind of a file of position deletes or vectors."""
    return CopiedKind.VECTORS if file_format.upper() == FILE_FORMAT else CopiedKind.POSITION_DELETES


def statistics_of(metadata: TableMetadata) -> Iterator[tuple[str, CopiedKind, int]]:
    """Path, kind and size in bytes of the statistics files that metadata names."""
    for file in metadata.statistics:
        yield file.statistics_path, CopiedKind.STATISTICS, file.file_size_in_bytes
    for partition_file in metadata.partition_statistics:
        yield partition_file.statistics_path, CopiedKind.PARTITION_STATISTICS, partition_file.file_size_in_bytes


def change_of(source_prefix: str, target_prefix: str) -> PathChange:
    """The change of one prefix to another, whichever way paths spell the store of the first.

    Raises `UsageError` where a prefix is no location, or one of the two lies in the other.
    """
    for name, prefix in (("source_prefix", source_prefix), ("target_prefix", target_prefix)):
        if not prefix or not is_location(prefix):
            raise UsageError(f"{argument(name)} {prefix!r} is no location; give it as SCHEME://PATH or /PATH")
    change = PathChange(source_prefix, target_prefix, others=spellings(source_prefix)[1:])
    source, target = canonical(change.source), canonical(change.target)
    if source == target or is_under(target, source) or is_under(source, target):
        raise UsageError(
            f"source prefix {change.source!r} and target prefix {change.target!r} lie in each other, so that files of the one "
            "could not be distinguished from those of the other; give a target outside of the source"
        )
    return change


def refuse_outside(named: Iterable[tuple[str, str]], change: PathChange) -> None:
    """Raise `SafetyError` where locations, each with what it is, are not under the source prefix."""
    if outside := [(what, path) for what, path in named if not change.holds(path)]:
        raise _outside([f"{what} {path!r}" for what, path in outside[:_NAMED_COUNT]], len(outside), change)


def _outside(named: list[str], count: int, change: PathChange) -> SafetyError:
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return SafetyError(
        f"not all files of the table are under the source prefix {change.source!r}: {', '.join(named)}{more}; paths are compared "
        f"letter by letter; give a {argument('source_prefix')} that all of them begin with, or rewrite those files first",
        locations=named,
    )


def _refuse_unknown(metadata: TableMetadata) -> None:
    if metadata.is_encrypted:
        raise UnsupportedError("the table is encrypted, and its files cannot be rewritten for another place")
    if unknown := unknown_names(metadata):
        location, key = next(iter(unknown.items()))
        raise UnsupportedError(
            f"key {key!r} of the table's metadata, which is not known, names {location!r}: what is in that file cannot be "
            "rewritten for another place",
            location=location,
        )


_COLUMNS = (
    "snapshot_id",
    "file_sequence_number",
    "content",
    "file_path",
    "file_format",
    "record_count",
    "file_size_in_bytes",
    "content_offset",
    "key_metadata",
)


class _LiveFiles:
    """A fold: live entries in the columns that a copy needs."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def add(self, decoded: DecodedEntries) -> None:
        self.batches.append(decoded.entries)

    def merge(self, other: "_LiveFiles") -> None:
        self.batches += other.batches


def _live_files(
    metadata: TableMetadata, manifests: Sequence[ManifestFile], storage: Storage, spark: SparkSource
) -> pa.Table:
    specs = {
        spec_id: SpecFilter(metadata.partition_type(spec_id)) for spec_id in {m.partition_spec_id for m in manifests}
    }
    batches = folded(storage, spark, manifests, EntryFilter(specs=specs), {*_COLUMNS}, _LiveFiles).batches
    return pa.Table.from_batches(batches, entries_schema(frozenset(_COLUMNS)))


def _refuse_files(files: pa.Table, change: PathChange) -> None:
    """Raise where files are encrypted, or not under the source prefix."""
    if files["key_metadata"].null_count < files.num_rows:
        encrypted = files.filter(pc.is_valid(files["key_metadata"]))["file_path"][0].as_py()
        raise UnsupportedError(f"file {encrypted!r} is encrypted, which cannot be copied", location=encrypted)
    paths = files["file_path"]
    below = pc.match_substring_regex(paths, _pattern(change.starts))
    climbs = pc.match_substring_regex(paths, r"/\.\.(/|$)")
    outside = paths.filter(pc.or_(pc.invert(below), climbs)).unique()
    if len(outside):
        named = [f"file {path!r}" for path in outside[:_NAMED_COUNT].to_pylist()]
        raise _outside(named, len(outside), change)


def _named(files: pa.Table, change: PathChange) -> PathChange:
    """The change of the paths of data files in deletes, which reach those that they spell alike.

    Raises `SafetyError` where data files spell the prefix in several ways: a delete that spells it otherwise than its data file,
    and so does not reach it, would reach the copy.
    """
    paths = files.filter(pc.equal(files["content"], int(FileContent.DATA)))["file_path"]
    used = [one for one in change.starts if pc.any(pc.starts_with(paths, one)).as_py()]
    has_deletes = pc.any(pc.not_equal(files["content"], int(FileContent.DATA))).as_py()
    if len(used) > 1 and has_deletes:
        raise SafetyError(
            f"data files of the table spell its prefix in several ways, {used[0]!r} and {used[1]!r}, and it has deletes, which "
            "are matched by the spelling of paths; compact the table first, so that it has no deletes",
            locations=used,
        )
    return PathChange(used[0], change.target) if len(used) == 1 else change


def _pattern(starts: Iterable[str]) -> str:
    return f"^(?:{'|'.join(map(re.escape, starts))})"


def _below(paths: pa.ChunkedArray, change: PathChange) -> pa.ChunkedArray:
    """What follows the prefix in paths."""
    return pc.replace_substring_regex(paths, _pattern(change.starts), "")


def _are_position_deletes(files: pa.Table) -> pa.ChunkedArray:
    return pc.equal(files["content"], int(FileContent.POSITION_DELETES))


def _distinct(files: pa.Table) -> pa.Table:
    """Each path once: many manifests may list a file, and many entries be of one file of vectors."""
    numbered = pa.table({"path": files["file_path"], "row": pa.array(range(files.num_rows), pa.int64())})
    first = numbered.group_by("path").aggregate([("row", "min")])["row_min"]
    return files.take(first.combine_chunks().sort())


def _delete_file(row: Mapping[str, Any]) -> DataFile:
    return DataFile(
        content=FileContent.POSITION_DELETES,
        file_path=row["file_path"],
        file_format=row["file_format"],
        spec_id=0,
        record_count=row["record_count"],
        file_size_in_bytes=row["file_size_in_bytes"],
    )


def _plain_files(files: pa.Table, metadata: TableMetadata, earlier: EarlierCopy, change: PathChange) -> pa.Table:
    is_data = pc.equal(files["content"], int(FileContent.DATA))
    kinds = pc.if_else(is_data, CopiedKind.DATA.value, CopiedKind.EQUALITY_DELETES.value)
    table = pa.table([files["file_path"], kinds, files["file_size_in_bytes"]], schema=PLAIN)
    more = [one for one in dict.fromkeys(statistics_of(metadata)) if change.below(one[0]) not in earlier.statistics]
    return pa.concat_tables([table, _plain(more)])


def _plain(files: Iterable[tuple[str, CopiedKind, int]]) -> pa.Table:
    rows = [{"path": path, "kind": kind.value, "size_bytes": size} for path, kind, size in files]
    return pa.Table.from_pylist(rows, PLAIN)


def _sizes_at_target(paths: Sequence[str], change: PathChange, target: Storage) -> dict[str, int]:
    """How long files are under their changed paths, by the paths that they have; those that cannot be seen there are left out."""
    try:
        found = head_many([change.path(path) for path in paths], target)
    except IcekeepError:
        return {}
    return {path: info.size_bytes for path, info in zip(paths, found, strict=True) if info is not None}
