"""Which of some files metadata leads to: of few by a fold over its entries, of many by their keys in Spark.

A file counts as reached where something has its path, in whatever store (`path_set`); by which scheme and authority it is
named is kept beside that.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.maintenance.deletion.path_set import Mask
from icekeep.maintenance.deletion.reachable import Reached
from icekeep.planning.entries import DecodedEntries, DecodeTask, Reading, decode, folded, shares
from icekeep.planning.spark.rows import arrow_dataframe
from icekeep.planning.spark.session import SparkSource
from icekeep.planning.spark.tasks import dataframe_from_tasks
from icekeep.storage.local.linked_files import LinkedFiles
from icekeep.storage.location_keys import AS_SPELLED, Keys, Locations, Spelling, loose_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS = pa.schema(
    [pa.field("path_key", pa.int64(), nullable=False), pa.field("prefix_key", pa.int64(), nullable=False)]
)


class ReachedPaths:
    """Which of some paths metadata leads to, for each scheme and authority that it does it by.

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
        self._take(locations)
        self._take(self._links.respelled(locations))

    def _take(self, locations: Locations) -> None:
        path_keys, prefix_keys = loose_keys(locations, self._spelling)
        places = np.searchsorted(self._paths, path_keys)
        places[places == len(self._paths)] = 0
        hit = np.flatnonzero(self._paths[places] == path_keys) if len(self._paths) else np.empty(0, np.int64)
        for prefix in np.unique(prefix_keys[hit]).tolist():
            own = hit[prefix_keys[hit] == prefix]
            self._of(prefix)[places[own]] = True
            self.examples.setdefault(prefix, locations[int(own[0])].as_py())

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
    """Hold few paths against all that is reached, be that as much as it may.

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
