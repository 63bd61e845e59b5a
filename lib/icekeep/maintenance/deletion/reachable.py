"""What table metadata leads to: the one place that says so, for whoever deletes or brings back. Fails closed.

    by name             manifest lists, manifests, statistics, metadata files and their log, the version hint
    by its manifests    live data and delete files, which may be more than a driver holds

Of what is retained everything must be read whole, or nothing is deleted: a manifest that is missed there turns into deleted
data. Nothing is left out by partition, spec, sequence number, age or snapshot. What only expired snapshots lead to, and cannot
be read, stays instead.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.catalog.unknown_keys import unknown_names
from icekeep.catalog.version_files import HINT
from icekeep.errors import InvalidTableError, SafetyError
from icekeep.maintenance.deletion.file_kinds import GARBAGE, FileKind
from icekeep.maintenance.deletion.path_set import PathsOfPrefix, SpelledPaths, paths_by_prefix
from icekeep.maintenance.deletion.territory import table_roots
from icekeep.planning.decoder import chosen_decoder
from icekeep.planning.entries import DecodeTask, EntryFilter, SpecFilter, decode, in_threads
from icekeep.planning.manifest_lists import listed_manifests
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage
from icekeep.storage.local.linked_files import LinkedFiles
from icekeep.storage.location_keys import Keys, Locations
from icekeep.storage.locations import is_location

_ListName: TypeAlias = str | tuple[str, ...]

_NOTHING_DELETED = "nothing is deleted"
_PATHS = frozenset({"file_path"})


class Seen(msgspec.Struct, frozen=True):
    """Manifest lists that were read, and `location_keys` of the manifests that they name: by these is told what came since.

    A snapshot that has no list stands here with the manifests that it names itself. `metadata_files` are those of the log
    that were read as well.
    """

    lists: frozenset[_ListName] = frozenset()
    manifest_keys: Keys = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    metadata_files: frozenset[str] = frozenset()


NOTHING_SEEN = Seen()


class Reached(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What some snapshots of a table, and its metadata, lead to.

    Attributes:
        metadata: with the partition specs of the manifests.
        manifests: each once; their live entries are reached too.
        named: all else, and the manifests themselves, rows of `file_kinds.GARBAGE`.
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
    seen: Seen = NOTHING_SEEN
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


def read_reached(  # noqa: PLR0913 - what a run was told
    metadata: TableMetadata,
    metadata_location: str,
    storage: Storage,
    spark: SparkSource,
    *,
    trust_manifest_list: bool,
    since: Seen = NOTHING_SEEN,
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
    names = [_list_name(snapshot) for snapshot in metadata.snapshots]
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
        roots=tuple(dict.fromkeys((*table_roots(metadata), *roots))),
        seen=Seen(since.lists.union(names), np.union1d(since.manifest_keys, listed.keys), since.metadata_files),
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
    retained: Seen = NOTHING_SEEN,
) -> Reached:
    """What snapshots lead to that are gone, or go; of a list that cannot be read it is told, and it stays.

    Args:
        metadata: with the partition specs of all their manifests.
        statistics: files that may go with them (`statistics_files`).
        metadata_files: that may go with them.
        retained: what is retained: a manifest of that is left out.

    Raises:
        SafetyError: the store has no answer that could be told.
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
    """All kinds of files but those that manifests lead to, rows of `file_kinds.GARBAGE`."""
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
    with fails_closed(stays):
        work = partial(_live_paths, reached.roots)
        read = [some for share in in_threads(reached.decode_task(), work) for some in share]
        return SpelledPaths.of([*_all_names(reached.named["location"], LinkedFiles(reached.roots)), *read])


@contextmanager
def fails_closed(stays: str = _NOTHING_DELETED) -> Iterator[None]:
    """What cannot be read whole among what is retained ends the run; what may pass by itself stays the error that it is.

    Args:
        stays: what is not done for want of the proof.
    """
    try:
        yield
    except InvalidTableError as error:
        raise SafetyError(f"{stays}, since not everything can be read: {error.message}", **error.facts) from error


def _list_name(snapshot: Snapshot) -> _ListName:
    return snapshot.manifest_list or snapshot.manifests or ()


def _rows(kind: FileKind, locations: Iterable[str], sizes: Iterable[int] | None = None) -> pa.Table:
    names = pa.array(locations, pa.string())
    lengths = pa.nulls(len(names), pa.int64()) if sizes is None else pa.array(sizes, pa.int64())
    return pa.table([pa.repeat(pa.scalar(str(kind), pa.string()), len(names)), names, lengths], schema=GARBAGE)


def _live_paths(roots: tuple[str, ...], task: DecodeTask) -> list[PathsOfPrefix]:
    links = LinkedFiles(roots)
    return [some for decoded in decode(task) for some in _all_names(decoded.entries["file_path"], links)]


def _all_names(locations: Locations, links: LinkedFiles) -> list[PathsOfPrefix]:
    """Files by how they are named, and by how they are named without links."""
    return [*paths_by_prefix(locations), *paths_by_prefix(links.respelled(locations))]
