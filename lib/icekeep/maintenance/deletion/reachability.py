"""What retained metadata leads to, and what nothing leads to any more. Fails closed.

Garbage is set difference by path: what expired snapshots lead to, less everything that any retained snapshot leads to. Never
by age, never by what an entry says of being deleted, never pruned on the retained side by partition, spec, sequence number
or snapshot. Whatever is retained must be read whole, or there is no garbage at all: a manifest that is missed on that side
turns into deleted data. What only expired snapshots lead to, and cannot be read, stays instead.

What is retained is compared by its path alone, in a loose spelling: one store has many names (a NameNode and its service,
`wasb` and `abfs`), and a file that is retained under another of them must not go under this one. Two files that have the same
path in two stores are kept for each other's sake, as are two whose hashes are equal by chance.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from icekeep.errors import IcekeepError, InvalidTableError, SafetyError
from icekeep.maintenance.deletion.garbage import CONTENT_KINDS, GARBAGE, FileKind, GarbageFile, garbage_table
from icekeep.planning.entries.decode import DecodeTask, EntryFilter, SpecFilter, decode
from icekeep.planning.entries.read import ReadingPlace, chosen_reading, in_threads, manifest_chunks, shares
from icekeep.planning.manifests.lists import listed_manifests
from icekeep.planning.manifests.reader import chosen_decoder
from icekeep.planning.spark.source import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import arrow_dataframe, collected, dataframe_from_tasks, parallelism
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import location_keys, path_keys

Keys: TypeAlias = NDArray[np.int64]

UNREADABLE = "unreadable"
"""In place of a kind: the row is of a manifest that could not be read, and not of garbage."""

FILES = pa.schema(
    [pa.field("key", pa.int64(), nullable=False), pa.field("path_key", pa.int64(), nullable=False), *GARBAGE]
)
"""Rows of `garbage.GARBAGE`, with the key that is the same for one file only and the one that what is retained is compared by."""

_KEY_COLUMNS = frozenset({"file_path"})
_FILE_COLUMNS = frozenset({"content", "file_path", "file_size_in_bytes"})
_KEYS = pa.schema([pa.field("path_key", pa.int64(), nullable=False)])


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """All that a table's metadata leads to, but for the entries of its manifests.

    Attributes:
        manifest_keys: of its manifests, for each file a key of its own.
        names: path keys of its manifests, manifest lists, statistics and metadata files.
        untotalled_count: snapshots whose summaries do not say how many files they have, so that nothing proves their
            manifest lists whole but the store's word.
    """

    metadata: TableMetadata
    manifests: tuple[ManifestFile, ...]
    manifest_keys: Keys
    names: Keys
    untotalled_count: int = 0


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """What may be garbage: the live entries of some manifests, and files that are known by name.

    Attributes:
        metadata: with the partition specs of the manifests.
        unreadable: manifest lists of expired snapshots that could not be read; what they lead to stays.
    """

    metadata: TableMetadata
    manifests: tuple[ManifestFile, ...]
    files: pa.Table
    unreadable: tuple[str, ...] = ()


class Garbage(msgspec.Struct, frozen=True, kw_only=True):
    """What nothing leads to: only `garbage_of` and `still_garbage` make it.

    Attributes:
        content: rows of `garbage.GARBAGE`, among them some of `UNREADABLE`; few as a table, many lazily. Null for none.
        named: manifests, manifest lists, statistics and metadata files.
        unreadable: files of expired snapshots that could not be read.
    """

    content: pa.Table | DataFrame | None
    named: pa.Table
    unreadable: tuple[str, ...] = ()
    untotalled_count: int = 0


def read_retained(
    metadata: TableMetadata, metadata_location: str, storage: Storage, spark: SparkSource, *, trust_totals: bool
) -> Retained:
    """Read the manifest lists of all snapshots, each proved to be whole.

    Args:
        trust_totals: believe a manifest list although the snapshot's summary counts other files.

    Raises:
        SafetyError: one of them is not; nothing may be deleted.
    """
    try:
        listed = listed_manifests(storage, spark, metadata.snapshots, check=True, trust=trust_totals)
    except IcekeepError as error:
        raise unproved(error) from error
    names = [s.manifest_list for s in metadata.snapshots if s.manifest_list]
    names += statistics_files(metadata)
    names += [metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    return Retained(
        metadata=metadata,
        manifests=listed.manifests,
        manifest_keys=listed.keys,
        names=np.unique(path_keys_of([*names, *(manifest.manifest_path for manifest in listed.manifests)])),
        untotalled_count=listed.untotalled_count,
    )


def candidates_of(
    before: TableMetadata, retained: Retained, old_metadata: Iterable[str], storage: Storage, spark: SparkSource
) -> Candidates:
    """What snapshots that are in `before` and no longer retained lead to, and no retained snapshot by the same manifest.

    Args:
        old_metadata: metadata files that may go with them.

    Raises:
        SafetyError: the store is out of reach.
    """
    gone = [s for s in before.snapshots if s.snapshot_id not in retained.metadata.snapshots_by_id]
    try:
        listed = listed_manifests(storage, spark, gone, check=False, without=retained.manifest_keys)
    except IcekeepError as error:
        raise unproved(error) from error
    files = [
        *(GarbageFile(FileKind.STATISTICS, location, size) for location, size in statistics_files(before).items()),
        *(GarbageFile(FileKind.MANIFEST, m.manifest_path, m.manifest_length) for m in listed.manifests),
        *(
            GarbageFile(FileKind.MANIFEST_LIST, s.manifest_list)
            for s in gone
            if s.manifest_list and s.manifest_list not in listed.unreadable
        ),
        *(GarbageFile(FileKind.METADATA, location) for location in old_metadata),
    ]
    return Candidates(
        metadata=before, manifests=listed.manifests, files=garbage_table(files), unreadable=listed.unreadable
    )


def garbage_of(candidates: Candidates, retained: Retained, storage: Storage, spark: SparkSource) -> Garbage:
    """Prove which candidates nothing retained leads to; some of it is proved only when `content` is worked out.

    Where every manifest of the expired snapshots is still listed by a retained one, so is every file, and no manifest is
    opened: the only short cut.

    Raises:
        SafetyError: something that is retained could not be read whole; nothing may be deleted.
    """
    named = _without_keys(candidates.files, retained.names)
    if not candidates.manifests:
        return Garbage(
            content=None,
            named=named,
            unreadable=candidates.unreadable,
            untotalled_count=retained.untotalled_count,
        )
    own = _content_task(candidates.metadata, candidates.manifests, storage, _FILE_COLUMNS)
    theirs = _content_task(retained.metadata, retained.manifests, storage, _KEY_COLUMNS)
    together = (*candidates.manifests, *retained.manifests)
    try:
        content: pa.Table | DataFrame | None = None
        if _are_few(together, spark):
            content = _read_here(
                own, np.unique(_live_keys(theirs, retained.names)), limits_of(spark).garbage_files_count
            )
        if content is None:
            content = _differing_in_tasks(_in_tasks(own, spark), theirs, retained.names, spark)
    except IcekeepError as error:
        raise unproved(error) from error
    return Garbage(
        content=content,
        named=named,
        unreadable=candidates.unreadable,
        untotalled_count=retained.untotalled_count,
    )


def still_garbage(
    files: pa.Table | DataFrame, retained: Retained, storage: Storage, spark: SparkSource
) -> pa.Table | DataFrame:
    """Those of some files, rows of `garbage.GARBAGE`, that nothing retained leads to, by a mark of all that is retained.

    Raises:
        SafetyError: something that is retained could not be read whole; nothing may be deleted.
    """
    theirs = _content_task(retained.metadata, retained.manifests, storage, _KEY_COLUMNS)
    try:
        if isinstance(files, pa.Table) and _are_few(retained.manifests, spark):
            return _without_keys(files, _live_keys(theirs, retained.names))
        rows = arrow_dataframe(started(spark), files) if isinstance(files, pa.Table) else files
        keyed_rows = rows.mapInArrow(_keyed, from_arrow_schema(FILES))
        left = _differing_in_tasks(keyed_rows, theirs, retained.names, spark)
        return _held(left) if isinstance(files, pa.Table) else left
    except IcekeepError as error:
        raise unproved(error) from error


def _are_few(manifests: Sequence[ManifestFile], spark: SparkSource) -> bool:
    """Whether the driver does it by itself."""
    return chosen_reading(manifests, limits_of(spark).reachable_entries_count).place is ReadingPlace.DRIVER


def _held(rows: DataFrame) -> pa.Table:
    return garbage_table(
        GarbageFile(FileKind(row["kind"]), row["location"], row["size_bytes"]) for row in collected(rows)
    )


def statistics_files(metadata: TableMetadata) -> dict[str, int]:
    """Statistics files and partition statistics files as they are spelled, with their sizes in bytes."""
    sizes = {file.statistics_path: file.file_size_in_bytes for file in metadata.statistics}
    sizes.update((file.statistics_path, file.file_size_in_bytes) for file in metadata.partition_statistics)
    return sizes


def unproved(error: IcekeepError, stays: str = "nothing is deleted") -> IcekeepError:
    """An error of the proof; what may pass by itself stays what it is.

    Args:
        stays: what is not done for want of the proof.
    """
    if not isinstance(error, InvalidTableError):
        return error
    return SafetyError(f"{stays}, since not everything can be read: {error.message}", **error.facts)


def path_keys_of(locations: Sequence[str]) -> Keys:
    """What is retained by name is compared by these."""
    return path_keys(pa.array(locations, pa.string()))


def _without_keys(files: pa.Table, retained: Keys) -> pa.Table:
    """Files of other path keys, each once."""
    _, first = np.unique(location_keys(files["location"]), return_index=True)
    each = files.take(pa.array(np.sort(first)))
    is_retained = np.isin(path_keys(each["location"]), retained)
    return each.filter(pa.array(~is_retained)).select(GARBAGE.names)


def live_path_keys(metadata: TableMetadata, manifests: Sequence[ManifestFile], storage: Storage, *, stays: str) -> Keys:
    """Path keys of the live entries of some manifests.

    Raises:
        SafetyError: one of the manifests could not be read whole, so that what `stays` says is not done.
    """
    try:
        return _live_keys(_content_task(metadata, manifests, storage, _KEY_COLUMNS), np.empty(0, np.int64))
    except IcekeepError as error:
        raise unproved(error, stays) from error


def _content_task(
    metadata: TableMetadata, manifests: Sequence[ManifestFile], storage: Storage, columns: frozenset[str]
) -> DecodeTask:
    spec_ids = {m.partition_spec_id for m in manifests}
    wanted = EntryFilter(specs={spec_id: SpecFilter(metadata.partition_type(spec_id)) for spec_id in spec_ids})
    decoder = chosen_decoder()[0]
    return DecodeTask(manifests=tuple(manifests), wanted=wanted, columns=columns, storage=storage, decoder=decoder)


def _in_tasks(task: DecodeTask, spark: SparkSource) -> DataFrame:
    return dataframe_from_tasks(started(spark), shares(task, started(spark)), _read_distinct, FILES)


def _differing_in_tasks(rows: DataFrame, theirs: DecodeTask, names: Keys, spark: SparkSource) -> DataFrame:
    """The rows of keys that are not retained, one of each key."""
    session = started(spark)
    live = dataframe_from_tasks(session, shares(theirs, session), _read_keys, _KEYS)
    live = live.union(arrow_dataframe(session, pa.table([pa.array(names)], schema=_KEYS)))
    bins_count = 2 * parallelism(session)
    # Files of one key have one path key: by that alone all of them are in one place.
    own = rows.repartition(bins_count, "path_key").dropDuplicates(["path_key", "key"])
    return own.join(live.repartition(bins_count, "path_key"), on="path_key", how="left_anti").select(*GARBAGE.names)


def _read_here(task: DecodeTask, live: Keys, limit: int) -> pa.Table | None:
    """The files of a task whose path keys are not among the sorted `live`, each once; `None` where they are more than a limit.

    They are decoded in threads of this process.
    """
    found = in_threads(task, lambda share: [*_unseen(share, live)])
    left: list[pa.RecordBatch] = []
    seen, count = np.empty(0, np.int64), 0
    for batches in found:
        for batch in batches:
            fresh, seen = _without_seen(batch, seen)
            left.append(fresh)
            count += fresh.num_rows
            if count > limit:
                return None
    return pa.Table.from_batches(left, FILES).select(GARBAGE.names)


def _read_distinct(task: DecodeTask) -> Iterator[pa.RecordBatch]:
    """The files of a task, each once: in a long history most manifests of a table name most of its files."""
    return _unseen(task, np.empty(0, np.int64))


def _unseen(task: DecodeTask, live: Keys) -> Iterator[pa.RecordBatch]:
    """The files of a task whose path keys are not among the sorted `live`, each once."""
    seen = np.empty(0, np.int64)
    for batch in _read_files(task):
        fresh, seen = _without_seen(batch, seen)
        left = fresh.filter(pa.array(~_among(fresh["path_key"].to_numpy(), live)))
        if left.num_rows:
            yield left


def _without_seen(batch: pa.RecordBatch, seen: Keys) -> tuple[pa.RecordBatch, Keys]:
    """The rows whose keys are not among some sorted ones, each once; and these with theirs."""
    keys = batch["key"].to_numpy()
    values, first = np.unique(keys, return_index=True)
    is_new = ~_among(values, seen)
    if not is_new.any():
        return batch.slice(0, 0), seen
    rows = batch.take(pa.array(np.sort(first[is_new])))
    return rows, np.sort(np.concatenate([seen, values[is_new]]), kind="stable")


def _among(keys: Keys, live: Keys) -> NDArray[np.bool_]:
    """Which keys are among some sorted ones."""
    if not len(live):
        return np.zeros(len(keys), np.bool_)
    places = np.minimum(np.searchsorted(live, keys), len(live) - 1)
    return np.asarray(live[places] == keys)


def _live_keys(task: DecodeTask, names: Keys) -> Keys:
    """Path keys of all files of a task, and `names`."""
    found = in_threads(task, lambda share: [batch["path_key"].to_numpy() for batch in _read_keys(share)])
    return np.concatenate([names, *(keys for some in found for keys in some)])


def _read_keys(task: DecodeTask) -> Iterator[pa.RecordBatch]:
    for decoded in decode(task):
        keys = path_keys(decoded.entries["file_path"])
        yield pa.record_batch([pa.array(keys, pa.int64())], schema=_KEYS)


def _read_files(task: DecodeTask) -> Iterator[pa.RecordBatch]:
    """The live entries of a task's manifests as files; a manifest that cannot be read whole gives a row that names it."""
    for manifests in manifest_chunks(task.manifests):
        some = msgspec.structs.replace(task, manifests=manifests)
        try:
            yield from [_as_files(decoded.entries) for decoded in decode(some)]
        except InvalidTableError:
            for manifest in manifests:
                yield from _read_one(msgspec.structs.replace(some, manifests=(manifest,)))


def _read_one(task: DecodeTask) -> list[pa.RecordBatch]:
    try:
        return [_as_files(decoded.entries) for decoded in decode(task)]
    except InvalidTableError:
        location = task.manifests[0].manifest_path
        own = pa.array([location], pa.string())
        columns = [location_keys(own), path_keys(own), [UNREADABLE], [location], [None]]
        return [pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, FILES, strict=True)], schema=FILES)]


def _as_files(entries: pa.RecordBatch) -> pa.RecordBatch:
    paths = entries["file_path"]
    content = entries["content"]
    codes = pa.array([int(c) for c in CONTENT_KINDS], content.type)
    kinds = pa.array([str(k) for k in CONTENT_KINDS.values()], pa.string())
    return pa.record_batch(
        [
            pa.array(location_keys(paths), pa.int64()),
            pa.array(path_keys(paths), pa.int64()),
            kinds.take(pc.index_in(content, codes)),
            paths,
            entries["file_size_in_bytes"],
        ],
        schema=FILES,
    )


def _keyed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = {
            "key": pa.array(location_keys(batch["location"]), pa.int64()),
            "path_key": pa.array(path_keys(batch["location"]), pa.int64()),
        }
        columns |= {name: batch[name] for name in GARBAGE.names}
        yield pa.record_batch([columns[name] for name in FILES.names], schema=FILES)
