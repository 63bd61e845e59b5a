"""Which listed files metadata leads to: compared by their paths alone, in a loose spelling, so that doubt keeps a file.

A path that metadata has under another scheme or authority is the same file for all that can be known here: it is kept, and
the operator is asked.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icekeep.maintenance.deletion.territory import Territory
from icekeep.maintenance.orphans.listing import LISTED, Rows, arrow_rows
from icekeep.maintenance.orphans.options import Spelling
from icekeep.maintenance.orphans.reaching import Reached
from icekeep.planning.entries.decode import Decoded, DecodeTask, decode
from icekeep.planning.entries.read import Fold, folded, shares
from icekeep.planning.spark.source import SparkSource, started
from icekeep.planning.spark.tasks import arrow_dataframe, collected, dataframe_from_tasks, parallelism
from icekeep.storage.location_keys import ANY_PREFIX, Keys, loose_keys
from icekeep.storage.locations import parse_location

NAMED_CONFLICTS = 10

R = TypeVar("R", bound=Fold)

_KEYS = pa.schema([("path_key", pa.int64()), ("prefix_key", pa.int64())])


class Conflict(msgspec.Struct, frozen=True):
    """A file that is listed under one scheme and authority, and that metadata has under another."""

    listed: str
    metadata: str


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the listed files.

    Attributes:
        unnamed: those that no metadata leads to, rows of `LISTED`.
        mismatched_count: those that it leads to under other schemes or authorities only; they are kept.
        conflicts: the first of these.
    """

    unnamed: Rows
    unnamed_count: int
    named_count: int
    mismatched_count: int = 0
    conflicts: tuple[Conflict, ...] = ()


def compare(files: Rows, reached: Reached, spelling: Spelling, spark: SparkSource) -> Compared:
    """Sort listed files by whether metadata leads to them.

    Args:
        files: rows of `LISTED`, with other columns or without.

    Raises:
        InvalidTableError: a manifest is not whole.
    """
    if isinstance(files, pa.Table):
        return _compared_here(files, reached, spelling, spark)
    return _compared_in_tasks(files, reached, spelling, spark)


def any_below(root: str, reached: Reached, spark: SparkSource) -> bool:
    """Whether metadata leads to any file below a directory."""
    below = Territory(roots=(root,))
    if below.mask(reached.names).any():
        return True
    return _folded(reached, spark, partial(_BelowFold, below)).found


def _folded(reached: Reached, spark: SparkSource, new: Callable[[], R]) -> R:
    return folded(reached.storage, spark, reached.manifests, reached.wanted, reached.columns, new)


class _BelowFold:
    def __init__(self, below: Territory) -> None:
        self._below = below
        self.found = False

    def add(self, decoded: Decoded) -> None:
        self.found = self.found or bool(self._below.mask(decoded.entries["file_path"]).any())

    def merge(self, other: "_BelowFold") -> None:
        self.found = self.found or other.found


class _NamedFold:
    """Which of some paths entries name, for each scheme and authority that they do it by."""

    def __init__(self, paths: Keys, spelling: Spelling) -> None:
        self._paths, self._spelling = paths, spelling
        self.by_prefix: dict[int, NDArray[np.bool_]] = {}
        self.examples: dict[int, str] = {}

    def add(self, decoded: Decoded) -> None:
        self.take(decoded.entries["file_path"])

    def take(self, locations: pa.Array) -> None:
        path_keys, prefix_keys = loose_keys(locations, self._spelling.schemes, self._spelling.authorities)
        places = np.searchsorted(self._paths, path_keys)
        places[places == len(self._paths)] = 0
        hit = np.flatnonzero(self._paths[places] == path_keys) if len(self._paths) else np.empty(0, np.int64)
        for prefix in np.unique(prefix_keys[hit]).tolist():
            own = hit[prefix_keys[hit] == prefix]
            self._mask(prefix)[places[own]] = True
            self.examples.setdefault(prefix, locations[int(own[0])].as_py())

    def merge(self, other: "_NamedFold") -> None:
        for prefix, mask in other.by_prefix.items():
            self._mask(prefix)[mask] = True
        self.examples = other.examples | self.examples

    def _mask(self, prefix: int) -> NDArray[np.bool_]:
        return self.by_prefix.setdefault(prefix, np.zeros(len(self._paths), bool))


def _compared_here(files: pa.Table, reached: Reached, spelling: Spelling, spark: SparkSource) -> Compared:
    paths, places = np.unique(files["path_key"].to_numpy(), return_inverse=True)
    fold = _folded(reached, spark, partial(_NamedFold, paths, spelling))
    fold.take(reached.names)
    listed_prefixes = files["prefix_key"].to_numpy()
    is_named = np.zeros(files.num_rows, bool)
    is_same = listed_prefixes == ANY_PREFIX
    for prefix, mask in fold.by_prefix.items():
        is_named |= mask[places]
        if prefix == ANY_PREFIX:
            is_same |= mask[places]
        else:
            is_same |= mask[places] & (listed_prefixes == prefix)
    mismatched = np.flatnonzero(is_named & ~is_same)
    named_count = int(np.count_nonzero(is_named))
    return Compared(
        unnamed=files.filter(pa.array(~is_named)),
        unnamed_count=files.num_rows - named_count,
        named_count=named_count,
        mismatched_count=len(mismatched),
        conflicts=tuple(
            _conflict(files["location"][row].as_py(), int(places[row]), fold)
            for row in mismatched[:NAMED_CONFLICTS].tolist()
        ),
    )


def _conflict(listed: str, place: int, fold: _NamedFold) -> Conflict:
    """A listed path as metadata has it: of names only one is kept for each scheme and authority."""
    example = next(fold.examples[prefix] for prefix, mask in fold.by_prefix.items() if mask[place])
    scheme, authority, _ = parse_location(example)
    return Conflict(listed, f"{scheme}://{authority}{parse_location(listed).path}")


def _compared_in_tasks(files: DataFrame, reached: Reached, spelling: Spelling, spark: SparkSource) -> Compared:
    session = started(spark)
    bins_count = 2 * parallelism(session)
    work = [_KeysTask(share, spelling) for share in shares(reached.decode_task, session)]
    names = pa.table([*map(pa.array, loose_keys(reached.names, spelling.schemes, spelling.authorities))], schema=_KEYS)
    keys = dataframe_from_tasks(session, work, _read_keys, _KEYS).localCheckpoint(eager=False)
    # Worked out before any shuffle, so that what a task says of its manifest arrives as the error that it is.
    collected(keys.agg(F.count("path_key")))
    keys = keys.union(arrow_dataframe(session, names))
    # A path that is named by more than two prefixes is named by one between the least and the greatest: no conflict then.
    named = (
        keys.repartition(bins_count, "path_key")
        .groupBy("path_key")
        .agg(F.min("prefix_key").alias("least"), F.max("prefix_key").alias("greatest"))
    )
    joined = files.repartition(bins_count, "path_key").join(named, on="path_key", how="left")
    left = joined.where(F.col("least").isNull() | ~_is_same()).select(*files.columns, "least").localCheckpoint()
    is_unnamed = F.col("least").isNull()
    [counts] = collected(left.agg(F.count(F.when(is_unnamed, True)).alias("u"), F.count("least").alias("m")))
    conflicts: tuple[Conflict, ...] = ()
    if counts["m"]:
        some = arrow_rows(left.where(~is_unnamed).limit(NAMED_CONFLICTS), LISTED)
        conflicts = _compared_here(some, reached, spelling, spark).conflicts
    return Compared(
        unnamed=left.where(is_unnamed).select(*files.columns),
        unnamed_count=counts["u"],
        named_count=files.count() - counts["u"],
        mismatched_count=counts["m"],
        conflicts=conflicts,
    )


def _is_same() -> Column:
    """Whether metadata names a row by its own scheme and authority."""
    any_prefix = F.lit(ANY_PREFIX)
    own, least, greatest = F.col("prefix_key"), F.col("least"), F.col("greatest")
    return (own == any_prefix) | (least == any_prefix) | (greatest == any_prefix) | own.between(least, greatest)


class _KeysTask(msgspec.Struct, frozen=True):
    decode: DecodeTask
    spelling: Spelling


def _read_keys(task: _KeysTask) -> Iterator[pa.RecordBatch]:
    for decoded in decode(task.decode):
        keys = loose_keys(decoded.entries["file_path"], task.spelling.schemes, task.spelling.authorities)
        yield pa.record_batch([pa.array(some, pa.int64()) for some in keys], schema=_KEYS)
