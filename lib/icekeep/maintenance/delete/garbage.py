"""What nothing leads to any more, and which of some files metadata leads to. Fails closed.

Garbage is set difference by path: what expired snapshots lead to, less everything that any retained snapshot leads to
(`reachable`). Never by age, never by what an entry says of being deleted. What only expired snapshots lead to, and cannot be
read, stays.

Few files are compared by a fold over the entries of metadata, many by their keys in Spark. A file counts as reached where
something has its path, in whatever store; by which scheme and authority it is named is kept beside that.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError
from icekeep.events import Listener, Warned
from icekeep.maintenance.delete.reachable import (
    CONTENT_KINDS,
    GARBAGE,
    NO_SPELLINGS,
    Mask,
    OtherSpellings,
    Reached,
    SpelledPaths,
    among,
    fails_closed,
    reached_paths,
)
from icekeep.planning.entries import (
    DecodedEntries,
    DecodeTask,
    ReadBy,
    Reading,
    chosen_reading,
    decode,
    entries_count,
    folded,
    in_threads,
    manifest_chunks,
    shares,
)
from icekeep.planning.spark.rows import arrow_dataframe
from icekeep.planning.spark.session import F, SparkSource, from_arrow_schema, limits_of, started
from icekeep.planning.spark.tasks import dataframe_from_tasks
from icekeep.planning.spark.workers import SHUFFLED_KEYS, tasks_count
from icekeep.spelling import counted
from icekeep.storage.location_keys import (
    AS_SPELLED,
    Keys,
    LinkedFiles,
    Locations,
    Spelling,
    location_keys,
    loose_keys,
    path_keys,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS = pa.schema(
    [pa.field("path_key", pa.int64(), nullable=False), pa.field("prefix_key", pa.int64(), nullable=False)]
)


class ReachedPaths:
    """Which of some paths metadata leads to, under each scheme and authority.

    Attributes:
        by_prefix: for each prefix key a mask of the paths.
        examples: for each prefix key a location that has it.
    """

    def __init__(self, paths: Keys, spelling: Spelling, roots: tuple[str, ...] = ()) -> None:
        """Begin with paths of which nothing is known.

        Args:
            paths: path keys, which ascend.
            roots: as `Reached` has them.
        """
        self._paths, self._spelling, self._links = paths, spelling, LinkedFiles(roots)
        self.by_prefix: dict[int, NDArray[np.bool_]] = {}
        self.examples: dict[int, str] = {}

    @property
    def mask(self) -> Mask:
        """Which of the paths are reached, by whatever prefix."""
        return np.logical_or.reduce([np.zeros(len(self._paths), np.bool_), *self.by_prefix.values()])

    def add(self, decoded: DecodedEntries) -> None:
        self.take(decoded.entries["file_path"])

    def take(self, locations: Locations) -> None:
        """Take in files that are reached, by their other names too: more than one name of a file may be asked for."""
        for names in (locations, self._links.respelled(locations)):
            path_keys, prefix_keys = loose_keys(names, self._spelling)
            places = np.searchsorted(self._paths, path_keys)
            places[places == len(self._paths)] = 0
            hit = np.flatnonzero(self._paths[places] == path_keys) if len(self._paths) else np.empty(0, np.int64)
            for prefix in np.unique(prefix_keys[hit]).tolist():
                own = hit[prefix_keys[hit] == prefix]
                self._of(prefix)[places[own]] = True
                self.examples.setdefault(prefix, names[int(own[0])].as_py())

    def merge(self, other: "ReachedPaths") -> None:
        for prefix, mask in other.by_prefix.items():
            self._of(prefix)[mask] = True
        self.examples = other.examples | self.examples

    def _of(self, prefix: int) -> Mask:
        return self.by_prefix.setdefault(prefix, np.zeros(len(self._paths), np.bool_))


def held_against(
    paths: Keys,
    reached: Reached,
    spark: SparkSource,
    spelling: Spelling = AS_SPELLED,
    reading: Reading | None = None,
) -> ReachedPaths:
    """Which of few paths are reached, however many files are reached in all.

    Args:
        paths: path keys, each once, which ascend.
        reading: as `planning.entries.read.folded`.

    Raises:
        InvalidTableError: a manifest is not whole.
    """
    task = reached.decode_task()
    fold = partial(ReachedPaths, paths, spelling, reached.roots)
    found = folded(task.storage, spark, task.manifests, task.wanted, task.columns, fold, reading)
    found.take(reached.named["location"])
    return found


def reached_keys(reached: Reached, spark: "SparkSession", spelling: Spelling | None = None) -> "DataFrame":
    """The path keys of all that is reached, read by tasks when they are wanted.

    Args:
        spelling: the prefix keys are wanted as well.
    """
    tasks = [_KeysTask(share, spelling, reached.roots) for share in shares(reached.decode_task(), spark)]
    links = LinkedFiles(reached.roots)
    named = pa.Table.from_batches(
        [keys for chunk in reached.named["location"].chunks for keys in _keys_of(chunk, spelling, links)],
        _schema(spelling),
    )
    read = dataframe_from_tasks(spark, tasks, _read_keys, _schema(spelling))
    return read.union(arrow_dataframe(spark, named))


class _KeysTask(msgspec.Struct, frozen=True):
    decode: DecodeTask
    spelling: Spelling | None
    roots: tuple[str, ...]


def _read_keys(task: _KeysTask) -> Iterator[pa.RecordBatch]:
    links = LinkedFiles(task.roots)
    for decoded in decode(task.decode):
        yield from _keys_of(decoded.entries["file_path"], task.spelling, links)


def _schema(spelling: Spelling | None) -> pa.Schema:
    return pa.schema([_KEYS.field("path_key")]) if spelling is None else _KEYS


def _keys_of(locations: Locations, spelling: Spelling | None, links: LinkedFiles) -> Iterator[pa.RecordBatch]:
    """The keys of files, and of those of them that have another name."""
    schema = _schema(spelling)
    for some in (locations, links.respelled(locations)):
        if len(some):
            keys = loose_keys(some, spelling or AS_SPELLED)[: len(schema)]
            yield pa.record_batch([pa.array(column, pa.int64()) for column in keys], schema=schema)


UNREADABLE = "unreadable"
"""In place of a kind: the row is of a manifest that could not be read, and not of garbage."""

FILES = pa.schema(
    [pa.field("key", pa.int64(), nullable=False), pa.field("path_key", pa.int64(), nullable=False), *GARBAGE]
)
"""Rows of `GARBAGE`, with the key of one file only, and the one that what is retained is compared by."""

_FILE_COLUMNS = frozenset({"content", "file_path", "file_size_in_bytes"})


class Garbage(msgspec.Struct, frozen=True, kw_only=True):
    """What nothing leads to: only `garbage_of` makes it.

    Attributes:
        content: rows of `GARBAGE`, among them some of `UNREADABLE`; few as a table, many lazily. `None` for none.
        named: manifests, manifest lists, statistics and metadata files.
        unreadable: files of expired snapshots that could not be read.
        kept: files that stay since something retained has their paths in another store; none are known of `content` that is lazy.
    """

    content: "pa.Table | DataFrame | None"
    named: pa.Table
    unreadable: tuple[str, ...] = ()
    untotalled_count: int = 0
    kept: OtherSpellings = NO_SPELLINGS


def garbage_of(expired: Reached, retained: Reached | None, spark: SparkSource) -> Garbage:
    """Prove to which files of what is expired nothing retained leads; some is proved only when `content` is worked out.

    Where every manifest of the expired snapshots is still listed by a retained one, so is every file, and no manifest is
    opened: the only short cut.

    Args:
        retained: `None` where nothing is.

    Raises:
        SafetyError: something that is retained could not be read whole; nothing may be deleted.
    """
    with fails_closed():
        named, kept = _named(expired, retained)
    content, kept_content = _content(expired, retained, spark) if expired.manifests else (None, NO_SPELLINGS)
    return Garbage(
        content=content,
        named=named,
        unreadable=expired.unreadable,
        untotalled_count=0 if retained is None else retained.untotalled_count,
        kept=kept | kept_content,
    )


def warn_of_kept(garbage: Garbage, listener: Listener) -> None:
    """Say which files are kept for the sake of another spelling."""
    if not garbage.kept:
        return
    first = garbage.kept.examples[0]
    listener.on(
        Warned(
            f"{counted(len(garbage.kept), 'files')} of what expires {'stays' if len(garbage.kept) == 1 else 'stay'}, since "
            "what is retained has their paths under another scheme or "
            f"authority: {first.location!r} and {first.kept!r} among them; if each pair is one file nothing is to be done; if "
            "they are files of two stores, delete the first of each by hand"
        )
    )


def is_garbage(files: pa.Table, retained: Reached, spark: SparkSource) -> Mask:
    """Whether nothing retained leads to each of some files, rows of `GARBAGE`.

    Raises:
        SafetyError: something that is retained could not be read whole; nothing may be deleted.
    """
    with fails_closed():
        paths, places = np.unique(path_keys(files["location"]), return_inverse=True)
        reading = chosen_reading(retained.manifests, limits_of(spark).reachable_entries_count)
        stays = held_against(paths, retained, spark, reading=reading).mask
        return ~stays[places]


def marked_garbage(files: "DataFrame", files_count: int, retained: Reached, spark: SparkSource) -> "DataFrame":
    """Many files, rows of `GARBAGE`, with a column `is_garbage`: whether nothing retained leads to them; lazy.

    Args:
        files_count: about how many there are.

    Raises:
        InvalidTableError: (when rows are computed) a manifest is not whole.
    """
    session = started(spark)
    parts_count = _shuffle_partitions(files_count, retained, session)
    own = files.mapInArrow(_keyed, from_arrow_schema(FILES)).repartition(parts_count, "path_key")
    stays = reached_keys(retained, session).repartition(parts_count, "path_key").dropDuplicates(["path_key"])
    joined = own.join(stays.withColumn("stays", F.lit(True)), on="path_key", how="left")
    return joined.select(*GARBAGE.names, F.col("stays").isNull().alias("is_garbage"))


def _shuffle_partitions(files_count: int, retained: Reached | None, session: "SparkSession") -> int:
    """For files, and for the keys that they are held against."""
    keys_count = 0 if retained is None else entries_count(retained.manifests)
    return tasks_count(session, files_count + keys_count, SHUFFLED_KEYS, a_slot=2)


def _named(expired: Reached, retained: Reached | None) -> tuple[pa.Table, OtherSpellings]:
    _, first = np.unique(location_keys(expired.named["location"]), return_index=True)
    named = expired.named.take(pa.array(np.sort(first)))
    if retained is None:
        return named, NO_SPELLINGS
    locations = named["location"].combine_chunks()
    is_kept, kept = retained.named_paths.split_by_spelling(locations, path_keys(locations))
    return named.filter(pa.array(~is_kept, pa.bool_())), kept


def _content(
    expired: Reached, retained: Reached | None, spark: SparkSource
) -> "tuple[pa.Table | DataFrame, OtherSpellings]":
    together = (*expired.manifests, *(() if retained is None else retained.manifests))
    with fails_closed():
        own = expired.decode_task(_FILE_COLUMNS)
        if chosen_reading(together, limits_of(spark).reachable_entries_count).by is ReadBy.DRIVER:
            stays = SpelledPaths.of([]) if retained is None else reached_paths(retained)
            found = _read_here(own, stays, limits_of(spark).garbage_files_count)
            if found is not None:
                return found
        session = started(spark)
        rows = dataframe_from_tasks(session, shares(own, session), _read_distinct, FILES)
        return _differing_in_tasks(rows, expired, retained, session), NO_SPELLINGS


def _differing_in_tasks(
    rows: "DataFrame", expired: Reached, retained: Reached | None, session: "SparkSession"
) -> "DataFrame":
    """The rows to which nothing retained leads, one of each key; they are of what is expired.

    By Spark's join, which spills to disk: `_read_here` holds the paths of all that stays in memory.
    """
    parts_count = _shuffle_partitions(entries_count(expired.manifests), retained, session)
    # Files of one key have one path key: by that alone all of them are in one place.
    own = rows.repartition(parts_count, "path_key").dropDuplicates(["path_key", "key"])
    if retained is not None:
        stays = reached_keys(retained, session).repartition(parts_count, "path_key")
        own = own.join(stays, on="path_key", how="left_anti")
    return own.select(*GARBAGE.names)


def _read_here(task: DecodeTask, stays: SpelledPaths, limit: int) -> tuple[pa.Table, OtherSpellings] | None:
    """The files of a task that are not among those that stay, each once, and those that are by another spelling only.

    They are decoded in threads of this process; `None` where they are more than a limit.
    """
    left: list[pa.RecordBatch] = []
    seen, count, kept = np.empty(0, np.int64), 0, NO_SPELLINGS
    for batches, spellings in in_threads(task, lambda share: _split_by_spelling(share, stays)):
        kept |= spellings
        for batch in batches:
            fresh, seen = _without_seen(batch, seen)
            left.append(fresh)
            count += fresh.num_rows
            if count > limit:
                return None
    return pa.Table.from_batches(left, FILES).select(GARBAGE.names), kept


def _split_by_spelling(task: DecodeTask, stays: SpelledPaths) -> tuple[list[pa.RecordBatch], OtherSpellings]:
    left: list[pa.RecordBatch] = []
    kept = NO_SPELLINGS
    for files in _read_distinct(task):
        is_kept, others = stays.split_by_spelling(files["location"], files["path_key"].to_numpy())
        kept |= others
        left.append(files.filter(pa.array(~is_kept, pa.bool_())))
    return left, kept


def _read_distinct(task: DecodeTask) -> Iterator[pa.RecordBatch]:
    """The files of a task, each once: in a long history most manifests of a table name most of its files."""
    seen = np.empty(0, np.int64)
    for batch in _read_files(task):
        fresh, seen = _without_seen(batch, seen)
        if fresh.num_rows:
            yield fresh


def _without_seen(batch: pa.RecordBatch, seen: Keys) -> tuple[pa.RecordBatch, Keys]:
    """The rows whose keys are not among some sorted ones, each once; and these with theirs."""
    keys = batch["key"].to_numpy()
    values, first = np.unique(keys, return_index=True)
    is_new = ~among(values, seen)
    if not is_new.any():
        return batch.slice(0, 0), seen
    rows = batch.take(pa.array(np.sort(first[is_new])))
    return rows, np.sort(np.concatenate([seen, values[is_new]]), kind="stable")


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
