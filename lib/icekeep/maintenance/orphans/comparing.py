"""Which listed files metadata leads to: compared by their paths alone, in a loose spelling, so that doubt keeps a file.

A path that metadata has under another scheme or authority is the same file for all that can be known here: it is kept, and
the operator is asked.
"""

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.maintenance.deletion.comparing import ReachedPaths, held_against, reached_keys
from icekeep.maintenance.deletion.path_set import spelled_like
from icekeep.maintenance.deletion.reachable import Reached
from icekeep.maintenance.deletion.territory import Territory
from icekeep.maintenance.orphans.kept_rows import RowKeeper
from icekeep.maintenance.orphans.listing import LISTED, Rows, arrow_rows
from icekeep.planning.entries import DecodedEntries, folded
from icekeep.planning.spark.session import F, SparkSource, started, to_arrow_schema
from icekeep.planning.spark.workers import SHUFFLED_KEYS, tasks_count
from icekeep.storage.location_keys import ANY_PREFIX, Spelling, loose_keys

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NAMED_MISMATCHES = 10


class Mismatch(msgspec.Struct, frozen=True):
    """A file that is listed under one scheme and authority, and that metadata has under another."""

    listed: str
    metadata: str


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the listed files.

    Attributes:
        unnamed: those that no metadata leads to, rows of `LISTED`.
        mismatched_count: those that it leads to under other schemes or authorities only; they are kept.
        mismatches: the first of these.
    """

    unnamed: Rows
    unnamed_count: int
    named_count: int
    mismatched_count: int = 0
    mismatches: tuple[Mismatch, ...] = ()


def compare(
    files: Rows, files_count: int, reached: Reached, spelling: Spelling, spark: SparkSource, keeper: RowKeeper
) -> Compared:
    """Sort listed files by whether metadata leads to them.

    Args:
        files: rows of `LISTED`, with other columns or without; there are `files_count`.
        keeper: keeps what tasks find.

    Raises:
        InvalidTableError: a manifest is not whole.
    """
    if isinstance(files, pa.Table):
        return _compared_here(files, reached, spelling, spark)
    return _compared_in_tasks(files, files_count, reached, spelling, spark, keeper)


def any_below(root: str, reached: Reached, spark: SparkSource) -> bool:
    """Whether metadata leads to any file below a directory."""
    below = Territory(roots=(root,))
    if below.mask(reached.named["location"]).any():
        return True
    task = reached.decode_task()
    fold = partial(_BelowFold, below)
    return folded(task.storage, spark, task.manifests, task.wanted, task.columns, fold).found


def listed_count(files: Rows, locations: pa.Array, spelling: Spelling) -> int:
    """How many listed files have the paths of some locations, few of them.

    Args:
        files: rows of `LISTED`.
    """
    if not len(locations):
        return 0
    keys = np.unique(loose_keys(locations, spelling)[0])
    if isinstance(files, pa.Table):
        return int(np.count_nonzero(np.isin(files["path_key"].to_numpy(), keys)))
    return arrow_rows(files.where(F.col("path_key").isin(keys.tolist())), LISTED).num_rows


class _BelowFold:
    def __init__(self, below: Territory) -> None:
        self._below = below
        self.found = False

    def add(self, decoded: DecodedEntries) -> None:
        self.found = self.found or bool(self._below.mask(decoded.entries["file_path"]).any())

    def merge(self, other: "_BelowFold") -> None:
        self.found = self.found or other.found


def _compared_here(files: pa.Table, reached: Reached, spelling: Spelling, spark: SparkSource) -> Compared:
    paths, places = np.unique(files["path_key"].to_numpy(), return_inverse=True)
    found = held_against(paths, reached, spark, spelling)
    listed_prefixes = files["prefix_key"].to_numpy()
    is_named = found.mask[places]
    is_same = listed_prefixes == ANY_PREFIX
    for prefix, mask in found.by_prefix.items():
        if prefix == ANY_PREFIX:
            is_same |= mask[places]
        else:
            is_same |= mask[places] & (listed_prefixes == prefix)
    mismatched = np.flatnonzero(is_named & ~is_same)
    named_count = int(np.count_nonzero(is_named))
    return Compared(
        unnamed=files.filter(pa.array(~is_named, pa.bool_())),
        unnamed_count=files.num_rows - named_count,
        named_count=named_count,
        mismatched_count=len(mismatched),
        mismatches=tuple(
            _mismatch(files["location"][row].as_py(), int(places[row]), found)
            for row in mismatched[:NAMED_MISMATCHES].tolist()
        ),
    )


def _mismatch(listed: str, place: int, found: ReachedPaths) -> Mismatch:
    """A listed path as metadata has it: of names only one is kept for each scheme and authority."""
    example = next(found.examples[prefix] for prefix, mask in found.by_prefix.items() if mask[place])
    return Mismatch(listed, spelled_like(example, listed))


def _compared_in_tasks(
    files: "DataFrame", files_count: int, reached: Reached, spelling: Spelling, spark: SparkSource, keeper: RowKeeper
) -> Compared:
    session = started(spark)
    # Metadata names about as many files as are listed; how many it names of its history is known when they are compared.
    bins_count = tasks_count(session, 2 * files_count, SHUFFLED_KEYS, a_slot=2)
    # A path that is named by more than two prefixes is named by one between the least and the greatest: no mismatch then.
    named = (
        reached_keys(reached, session, spelling)
        .repartition(bins_count, "path_key")
        .groupBy("path_key")
        .agg(F.min("prefix_key").alias("least"), F.max("prefix_key").alias("greatest"))
    )
    joined = files.repartition(bins_count, "path_key").join(named, on="path_key", how="left")
    left = joined.where(F.col("least").isNull() | ~_is_same()).select(*files.columns, "least")
    schema = pa.schema([*to_arrow_schema(files.schema), pa.field("least", pa.int64())])
    kept = keeper.keep(left, schema, "unnamed", "holding files against what metadata leads to", _counted)
    found, is_unnamed = kept.frame(session), F.col("least").isNull()
    mismatches: tuple[Mismatch, ...] = ()
    if kept.counts["mismatched"]:
        some = arrow_rows(found.where(~is_unnamed).limit(NAMED_MISMATCHES), LISTED)
        mismatches = _compared_here(some, reached, spelling, spark).mismatches
    return Compared(
        unnamed=found.where(is_unnamed).select(*files.columns),
        unnamed_count=kept.counts["unnamed"],
        named_count=files_count - kept.counts["unnamed"],
        mismatched_count=kept.counts["mismatched"],
        mismatches=mismatches,
    )


def _counted(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
    unnamed_count = rows["least"].null_count
    return rows, {"unnamed": unnamed_count, "mismatched": rows.num_rows - unnamed_count}


def _is_same() -> "Column":
    """Whether metadata names a row by its own scheme and authority."""
    any_prefix = F.lit(ANY_PREFIX)
    own, least, greatest = F.col("prefix_key"), F.col("least"), F.col("greatest")
    return (own == any_prefix) | (least == any_prefix) | (greatest == any_prefix) | own.between(least, greatest)
