"""What table metadata leads to: the one place that says so, for all jobs that delete or restore. Fails closed.

    by name             manifest lists, manifests, statistics, metadata files and their log, the version hint
    by its manifests    live data and delete files, which may be more than a driver holds

Of what is retained everything must be read whole, or nothing is deleted: a manifest that is missed there turns into deleted
data. Nothing is left out by partition, spec, sequence number, age or snapshot. What only expired snapshots lead to, and cannot
be read, stays instead. A proof is made once, and the table goes on: before each call that deletes there is a last look, since
snapshots come back (`restore`, a rollback, another catalog), files are adopted, and tables are registered again.

Files that must stay are compared by their paths alone, in a loose spelling (`path_keys`): one store has many names (a NameNode
and its service, `wasb` and `abfs`), and a file that stays under another of them must not go under this one. So in doubt a file is
in the set: two files that have the same path in two stores stay for each other's sake, as do two whose hashes are equal by
chance. By which scheme and authority a file is in the set decides nothing, but code that keeps a file because of another
spelling has to be able to say which. Which files go is decided by exact keys (`location_keys`), never by such a set.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.catalog.base import Table
from icekeep.catalog.metadata_files import HINT, unknown_names
from icekeep.errors import InvalidTableError, NotFoundError, SafetyError, table_at
from icekeep.maintenance.delete.locations import table_locations
from icekeep.planning.decoder import chosen_decoder
from icekeep.planning.entries import DecodeTask, EntryFilter, SpecFilter, decode, in_threads
from icekeep.planning.manifest_lists import listed_manifests
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.manifests.structs import FileContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import is_true
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage, head_many
from icekeep.storage.location_keys import ANY_PREFIX, Keys, LinkedFiles, Locations, loose_keys, path_keys
from icekeep.storage.locations import checksum_location, has_checksum_files, is_location, parse_location


class FileKind(StrEnum):
    """Kinds of garbage, in the order in which they are deleted: what others name goes before what names it."""

    DATA = "data file"
    POSITION_DELETES = "position delete file"
    EQUALITY_DELETES = "equality delete file"
    ORPHAN = "orphan file"
    STATISTICS = "statistics file"
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest list"
    METADATA = "metadata file"
    CHECKSUM = "checksum file"
    OWN = "file below .icekeep"

    @property
    def is_content(self) -> bool:
        """Whether manifests name such files: only of these a table may have more than a driver can hold."""
        return self in (FileKind.DATA, FileKind.POSITION_DELETES, FileKind.EQUALITY_DELETES, FileKind.ORPHAN)


CONTENT_KINDS: Mapping[FileContent, FileKind] = {
    FileContent.DATA: FileKind.DATA,
    FileContent.POSITION_DELETES: FileKind.POSITION_DELETES,
    FileContent.EQUALITY_DELETES: FileKind.EQUALITY_DELETES,
}

GARBAGE = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("location", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64()),
    ]
)
"""A file that may go: what it is, its location as metadata or the store spell it, its length where that is known."""


class GarbageFile(msgspec.Struct, frozen=True):
    """The same as a value."""

    kind: FileKind
    location: str
    size_bytes: int | None = None


class FilesOfKind(msgspec.Struct, frozen=True, kw_only=True):
    """How many files of one kind there are, and their bytes as far as they are known."""

    kind: FileKind
    files_count: int
    bytes: int


def garbage_table(files: Iterable[GarbageFile]) -> pa.Table:
    """Files as rows of `GARBAGE`."""
    rows = [(str(f.kind), f.location, f.size_bytes) for f in files]
    columns = zip(*rows, strict=True) if rows else [(), (), ()]
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, GARBAGE, strict=True)], schema=GARBAGE
    )


_CHECKSUM_BEGIN = b"crc\0"
"""What checksum files of Hadoop begin with, and no file that metadata names; others of such names are left alone."""


def with_checksums(files: pa.Table, storage: Storage) -> pa.Table:
    """Some files, rows of `GARBAGE`, and the checksum files that Hadoop wrote beside them on disks of this machine."""
    beside = [checksum_location(at) for at in files["location"].to_pylist() if has_checksum_files(at)]
    rows = []
    for found in filter(None, head_many(beside, storage)):
        with storage.open(found.location) as stream:
            if stream.read(len(_CHECKSUM_BEGIN)) == _CHECKSUM_BEGIN:
                rows.append(GarbageFile(FileKind.CHECKSUM, found.location, found.size_bytes))
    return pa.concat_tables([files.select(GARBAGE.names).cast(GARBAGE), garbage_table(rows)]) if rows else files


def by_kind(files: pa.Table) -> tuple[FilesOfKind, ...]:
    """The files of each kind that there is, in the order of kinds."""
    totals = files.group_by("kind").aggregate([("size_bytes", "sum"), ("location", "count")]).to_pylist()
    rows = {row["kind"]: row for row in totals}
    return tuple(
        FilesOfKind(
            kind=kind,
            files_count=rows[kind]["location_count"],
            bytes=rows[kind]["size_bytes_sum"] or 0,
        )
        for kind in FileKind
        if kind in rows
    )


def added(*several: Iterable[FilesOfKind]) -> tuple[FilesOfKind, ...]:
    """The sum of some counts, kind by kind."""
    counts = dict.fromkeys(FileKind, 0)
    sizes = dict.fromkeys(FileKind, 0)
    for some in several:
        for one in some:
            counts[one.kind] += one.files_count
            sizes[one.kind] += one.bytes
    return tuple(FilesOfKind(kind=k, files_count=counts[k], bytes=sizes[k]) for k in FileKind if counts[k])


Mask: TypeAlias = NDArray[np.bool_]

_EXAMPLES = 10


class PathSet(msgspec.Struct, frozen=True):
    """Path keys, each once, ascending: eight bytes a file. It can be pickled."""

    keys: Keys

    @classmethod
    def of(cls, locations: Locations | Sequence[str]) -> "PathSet":
        """The files at some locations; raises as `location_keys`."""
        return cls.of_keys(_path_keys(locations))

    @classmethod
    def of_keys(cls, *several: Keys) -> "PathSet":
        """The files that have some path keys, in any order."""
        return cls(np.unique(np.concatenate([_NO_KEYS, *several])))

    def mask(self, locations: Locations | Sequence[str]) -> Mask:
        """Which of some locations are in the set; raises as `location_keys`."""
        return self.mask_of_keys(_path_keys(locations))

    def mask_of_keys(self, keys: Keys) -> Mask:
        """Which of some path keys are in the set."""
        return among(keys, self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __or__(self, other: "PathSet") -> "PathSet":
        return PathSet(np.union1d(self.keys, other.keys))

    def __and__(self, other: "PathSet") -> "PathSet":
        return PathSet(np.intersect1d(self.keys, other.keys, assume_unique=True))

    def __le__(self, other: "PathSet") -> bool:
        return bool(other.mask_of_keys(self.keys).all())


def union(several: Iterable[PathSet]) -> PathSet:
    """All files of some sets."""
    return PathSet.of_keys(*(one.keys for one in several))


class PathsOfPrefix(NamedTuple):
    """Path keys of files that are named by one scheme and authority, and the location of one of them."""

    prefix_key: int
    path_keys: Keys
    example: str


def paths_by_prefix(locations: Locations) -> list[PathsOfPrefix]:
    """Some files by how they are named; raises as `location_keys`."""
    keys, prefixes = loose_keys(locations)
    if not len(keys):
        return []
    if (prefixes == prefixes[0]).all():
        return [PathsOfPrefix(int(prefixes[0]), keys, locations[0].as_py())]
    rows = {int(prefix): np.flatnonzero(prefixes == prefix) for prefix in np.unique(prefixes)}
    return [PathsOfPrefix(prefix, keys[own], locations[int(own[0])].as_py()) for prefix, own in rows.items()]


class OtherSpelling(msgspec.Struct, frozen=True):
    """A location, and another of the same path that is in a set."""

    location: str
    kept: str


class OtherSpellings(msgspec.Struct, frozen=True):
    """Files that a set has by other schemes or authorities only: their path keys, and the first of them as they are spelled."""

    keys: Keys
    examples: tuple[OtherSpelling, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def __or__(self, other: "OtherSpellings") -> "OtherSpellings":
        if not other or not self:
            return self or other
        return OtherSpellings(np.union1d(self.keys, other.keys), (*self.examples, *other.examples)[:_EXAMPLES])


class SpelledPaths(msgspec.Struct, frozen=True):
    """A set of files that knows by which schemes and authorities it has each.

    Attributes:
        by_prefix: by prefix key; most sets have one.
        examples: for each prefix key a location that has it.
    """

    by_prefix: Mapping[int, PathSet]
    examples: Mapping[int, str]

    @classmethod
    def of(cls, several: Iterable[PathsOfPrefix]) -> "SpelledPaths":
        """The files of all."""
        keys: dict[int, list[Keys]] = {}
        examples: dict[int, str] = {}
        for prefix, some, example in several:
            keys.setdefault(prefix, []).append(some)
            examples.setdefault(prefix, example)
        return cls({prefix: PathSet.of_keys(*some) for prefix, some in keys.items()}, examples)

    @property
    def paths(self) -> PathSet:
        """The files alone."""
        several = [*self.by_prefix.values()]
        return several[0] if len(several) == 1 else union(several)

    def split_by_spelling(self, locations: Locations, keys: Keys) -> tuple[Mask, OtherSpellings]:
        """Which of some files are in the set, and those of them that it has by other schemes or authorities only.

        Args:
            keys: the path keys of the locations.
        """
        masks = {prefix: paths.mask_of_keys(keys) for prefix, paths in self.by_prefix.items()}
        is_in = np.logical_or.reduce([np.zeros(len(keys), np.bool_), *masks.values()])
        unsure = is_in.copy()
        for prefix, mask in masks.items():
            # What begins with the same letters has the same prefix: so it is with all files of most tables.
            if prefix != ANY_PREFIX:
                head = self.examples[prefix].removesuffix(parse_location(self.examples[prefix]).path)
                mask = mask & np.asarray(pc.starts_with(locations, f"{head}/").to_numpy(zero_copy_only=False))
            unsure[mask] = False
        rows = np.flatnonzero(unsure)
        return is_in, self._other_spellings(locations.take(pa.array(rows))) if len(rows) else NO_SPELLINGS

    def _other_spellings(self, locations: Locations) -> OtherSpellings:
        """Those of some files, which are in the set, that it has by other schemes or authorities only."""
        keys, prefixes = loose_keys(locations)
        is_same = prefixes == ANY_PREFIX
        for prefix, paths in self.by_prefix.items():
            is_same |= (prefixes == prefix) & paths.mask_of_keys(keys)
        rows, examples = np.flatnonzero(~is_same), []
        for row in rows[:_EXAMPLES].tolist():
            location = locations[row].as_py()
            kept = next(
                prefix for prefix, paths in self.by_prefix.items() if paths.mask_of_keys(keys[row : row + 1]).all()
            )
            examples.append(OtherSpelling(location, spelled_like(self.examples[kept], location)))
        return OtherSpellings(np.unique(keys[rows]), tuple(examples))


def spelled_like(example: str, location: str) -> str:
    """The path of a location, under the scheme and authority of another."""
    scheme, authority, _ = parse_location(example)
    return f"{scheme}://{authority}{parse_location(location).path}"


def among(keys: Keys, ascending: Keys) -> Mask:
    """Which keys are among some that ascend."""
    if not len(ascending):
        return np.zeros(len(keys), np.bool_)
    places = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    return np.asarray(ascending[places] == keys)


def _path_keys(locations: Locations | Sequence[str]) -> Keys:
    if isinstance(locations, pa.Array | pa.ChunkedArray):
        return path_keys(locations)
    return path_keys(pa.array(locations, pa.string()))


_NO_KEYS = np.empty(0, np.int64)
NO_PATHS = PathSet(_NO_KEYS)
NO_SPELLINGS = OtherSpellings(_NO_KEYS)


_ListName: TypeAlias = str | tuple[str, ...]

_NOTHING_DELETED = "nothing is deleted"
_PATHS = frozenset({"file_path"})


class ReachableLists(msgspec.Struct, frozen=True):
    """Manifest lists that were read, and `location_keys` of the manifests that they name, which show what came since.

    A snapshot that has no list stands here with the manifests that it names itself. `metadata_files` are those of the log
    that were read as well.
    """

    lists: frozenset[_ListName] = frozenset()
    manifest_keys: Keys = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    metadata_files: frozenset[str] = frozenset()


NOTHING_SEEN = ReachableLists()


class Reached(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What some snapshots of a table, and its metadata, lead to.

    Attributes:
        metadata: with the partition specs of the manifests.
        manifests: each once; their live entries are reached too.
        named: all else, and the manifests themselves, rows of `GARBAGE`.
        roots: directories of files that may go: what is named through a symbolic link, and lies there, has the name too that it
            has below them.
        seen: what was read for it, and before it.
        untotalled_count: snapshots whose summaries do not say how many files they have, so that nothing proves their
            manifest lists whole but the store's word.
        unreadable: manifest lists of expired snapshots that could not be read.
    """

    metadata: TableMetadata
    storage: Storage
    manifests: tuple[ManifestFile, ...]
    named: pa.Table = GARBAGE.empty_table()
    roots: tuple[str, ...] = ()
    seen: ReachableLists = NOTHING_SEEN
    untotalled_count: int = 0
    unreadable: tuple[str, ...] = ()

    @cached_property
    def named_paths(self) -> SpelledPaths:
        """The files that are reached by name."""
        return SpelledPaths.of(_all_names(self.named["location"], LinkedFiles(self.roots)))

    def decode_task(self, columns: frozenset[str] = _PATHS) -> DecodeTask:
        """The work of reading all live entries; columns are names of `planning.manifests.ENTRIES`."""
        spec_ids = {m.partition_spec_id for m in self.manifests}
        wanted = EntryFilter(specs={number: SpecFilter(self.metadata.partition_type(number)) for number in spec_ids})
        decoder, _ = chosen_decoder()
        return DecodeTask(
            manifests=self.manifests, wanted=wanted, columns=columns, storage=self.storage, decoder=decoder
        )


def read_reached(  # noqa: PLR0913 - what a run was asked for
    metadata: TableMetadata,
    metadata_location: str,
    storage: Storage,
    spark: SparkSource,
    *,
    trust_manifest_list: bool,
    since: ReachableLists = NOTHING_SEEN,
    stays: str = _NOTHING_DELETED,
    roots: Sequence[str] = (),
) -> Reached:
    """Read the manifest lists of all snapshots, each proved to be whole, and name whatever else is retained.

    Args:
        trust_manifest_list: believe a manifest list although the snapshot's summary counts other files.
        since: what was read before, and is left out of the manifests.
        stays: what is not done where something cannot be read.
        roots: directories of files that may go (`Territory.roots`), beside those where the table says that its files are.

    Raises:
        SafetyError: a list is not whole; nothing may be deleted.
    """
    names: list[_ListName] = [one.manifest_list or one.manifests or () for one in metadata.snapshots]
    newer = [snapshot for snapshot, name in zip(metadata.snapshots, names, strict=True) if name not in since.lists]
    with fails_closed(stays):
        listed = listed_manifests(
            storage, spark, newer, check=True, trust=trust_manifest_list, without=since.manifest_keys
        )
    logged = [entry.metadata_file for entry in metadata.metadata_log]
    hints = (
        f"{metadata.location.rstrip('/')}/metadata/{HINT}",
        f"{metadata_location.rpartition('/')[0]}/{HINT}",
    )
    # What is no location leads to no file, as in `left_the_log`.
    metadata_files = filter(is_location, (metadata_location, *logged, *hints, *unknown_names(metadata)))
    return Reached(
        metadata=metadata,
        storage=storage,
        manifests=listed.manifests,
        named=named_files(statistics_files(metadata), metadata.snapshots, listed.manifests, metadata_files),
        roots=tuple(dict.fromkeys((*table_locations(metadata), *roots))),
        seen=ReachableLists(
            since.lists.union(names), np.union1d(since.manifest_keys, listed.keys), since.metadata_files
        ),
        untotalled_count=listed.untotalled_count,
    )


def read_expired(
    metadata: TableMetadata,
    snapshots: Sequence[Snapshot],
    storage: Storage,
    spark: SparkSource,
    *,
    statistics: Mapping[str, int],
    metadata_files: Iterable[str],
    retained: ReachableLists = NOTHING_SEEN,
) -> Reached:
    """What snapshots lead to that are gone, or go; a list that cannot be read is named, and stays.

    Args:
        metadata: with the partition specs of all their manifests.
        statistics: files that may go with them (`statistics_files`).
        metadata_files: that may go with them.
        retained: its manifests are left out.

    Raises:
        SafetyError: the store gives no answer.
    """
    with fails_closed():
        listed = listed_manifests(storage, spark, snapshots, check=False, without=retained.manifest_keys)
    readable = [snapshot for snapshot in snapshots if snapshot.manifest_list not in listed.unreadable]
    return Reached(
        metadata=metadata,
        storage=storage,
        manifests=listed.manifests,
        named=named_files(statistics, readable, listed.manifests, metadata_files),
        unreadable=listed.unreadable,
    )


def named_files(
    statistics: Mapping[str, int],
    snapshots: Iterable[Snapshot],
    manifests: Iterable[ManifestFile],
    metadata_files: Iterable[str],
) -> pa.Table:
    """All kinds of files but those that manifests lead to, rows of `GARBAGE`."""
    sizes = {manifest.manifest_path: manifest.manifest_length for manifest in manifests}
    lists = dict.fromkeys(snapshot.manifest_list for snapshot in snapshots if snapshot.manifest_list)
    return pa.concat_tables(
        [
            _rows(FileKind.STATISTICS, statistics, statistics.values()),
            _rows(FileKind.MANIFEST, sizes, sizes.values()),
            _rows(FileKind.MANIFEST_LIST, lists),
            _rows(FileKind.METADATA, dict.fromkeys(metadata_files)),
        ]
    )


def statistics_files(metadata: TableMetadata) -> dict[str, int]:
    """Statistics files and partition statistics files as they are spelled, with their sizes in bytes."""
    sizes = {file.statistics_path: file.file_size_in_bytes for file in metadata.statistics}
    sizes.update((file.statistics_path, file.file_size_in_bytes) for file in metadata.partition_statistics)
    return sizes


def reached_paths(reached: Reached, *, stays: str = _NOTHING_DELETED) -> SpelledPaths:
    """All that is reached, by name and by the live entries of the manifests, which are read in threads of this process.

    Raises:
        SafetyError: one of the manifests could not be read whole, so that what `stays` says is not done.
    """
    links = LinkedFiles(reached.roots)

    def live_paths(task: DecodeTask) -> list[PathsOfPrefix]:
        return [some for decoded in decode(task) for some in _all_names(decoded.entries["file_path"], links)]

    with fails_closed(stays):
        read = [some for share in in_threads(reached.decode_task(), live_paths) for some in share]
        return SpelledPaths.of([*_all_names(reached.named["location"], links), *read])


@contextmanager
def fails_closed(stays: str = _NOTHING_DELETED) -> Iterator[None]:
    """End the run where something retained cannot be read whole; errors that may pass by themselves stay as they are.

    Args:
        stays: what is not done for want of the proof.
    """
    try:
        yield
    except InvalidTableError as error:
        raise SafetyError(f"{stays}, since not everything can be read: {error.message}", **error.facts) from error


def _rows(kind: FileKind, locations: Iterable[str], sizes: Iterable[int] | None = None) -> pa.Table:
    names = pa.array(locations, pa.string())
    lengths = pa.nulls(len(names), pa.int64()) if sizes is None else pa.array(sizes, pa.int64())
    return pa.table([pa.repeat(pa.scalar(str(kind), pa.string()), len(names)), names, lengths], schema=GARBAGE)


def _all_names(locations: Locations, links: LinkedFiles) -> list[PathsOfPrefix]:
    """Files by how they are named, and by how they are named without links."""
    return [*paths_by_prefix(locations), *paths_by_prefix(links.respelled(locations))]


_STAYS = "what was not deleted yet stays"


def is_gc_enabled(metadata: TableMetadata) -> bool:
    """Whether the property `gc.enabled` lets files of a table be deleted; a misspelt one does not."""
    return is_true(metadata.properties, "gc.enabled", True)


def refuse_if_gc_is_disabled(table: Table) -> None:
    """Raise `SafetyError` where only the catalog may delete files, or `gc.enabled` is false: others may need them."""
    metadata, collector = table.metadata, table.catalog.garbage_collector
    if collector is not None:
        raise SafetyError(
            f"catalog {table.catalog.name!r} has a garbage collector of its own: what the metadata of {table.name!r} does not "
            f"show may need its files, so nothing is expired or deleted; run {collector}, and leave gc.enabled as it is"
        )
    if not is_gc_enabled(metadata):
        raise SafetyError(
            f"{table_at(metadata.location)} has gc.enabled={metadata.properties['gc.enabled']}: "
            "its files may belong to other tables too, so nothing is expired or deleted; if they do not, set it to true"
        )


class LastLook(Protocol):
    """Asked on the driver, as often as it takes."""

    def __call__(self) -> PathSet:
        """Files that stay: in use now, though they were not when the plan was proved, or kept by others.

        Raises:
            SafetyError: nothing more of the plan may be deleted.
        """


class TableLook:
    """Looks at a table that lives: what came into its metadata since the proof, and whether it is the same table."""

    def __init__(
        self,
        proved: Table,
        seen: ReachableLists,
        spark: SparkSource,
        *,
        trust_manifest_list: bool,
        roots: Sequence[str] = (),
    ) -> None:
        """Begin with the table as it was when everything that it retains was read.

        Args:
            seen: what was read then.
            roots: directories of files that may go (`Territory.roots`).
        """
        self._table, self._seen, self._roots = proved, seen, roots
        self._spark, self._trust_manifest_list = spark, trust_manifest_list
        self._in_use = NO_PATHS

    @property
    def table(self) -> Table:
        """The table as it was seen last."""
        return self._table

    def __call__(self) -> PathSet:
        catalog, identifier = self._table.catalog, self._table.identifier
        try:
            if catalog.find(identifier).metadata_location != self._table.metadata_location:
                self._follow(catalog.load(identifier))
        except NotFoundError as error:
            raise SafetyError(
                f"table {self._table.name!r} was dropped while its files were deleted; the others stay: {error.message}"
            ) from error
        return self._in_use

    def _follow(self, now: Table) -> None:
        metadata = now.metadata
        if metadata.table_uuid != self._table.metadata.table_uuid:
            raise SafetyError(f"{now.name!r} is another table now; {_STAYS}")
        if not is_gc_enabled(metadata):
            raise SafetyError(f"table {now.name!r} has gc.enabled=false now; {_STAYS}")
        newly = read_reached(
            metadata,
            now.metadata_location,
            now.storage,
            self._spark,
            trust_manifest_list=self._trust_manifest_list,
            since=self._seen,
            stays=_STAYS,
            roots=self._roots,
        )
        self._in_use |= reached_paths(newly, stays=_STAYS).paths
        self._table, self._seen = now, newly.seen


class DroppedLook:
    """Looks at a table that its catalog has forgotten: that it has not come back under its name."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __call__(self) -> PathSet:
        try:
            self._table.catalog.find(self._table.identifier)
        except NotFoundError:
            return NO_PATHS
        raise SafetyError(
            f"table {self._table.name!r} is in the catalog again; what was not deleted yet of the one that was purged stays"
        )
