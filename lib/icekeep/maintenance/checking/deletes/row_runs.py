"""The same of very many rows, in Spark tasks: row ids as runs, since those of neighbours mostly follow one another."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.planning.spark.rows import arrow_dataframe, collected
from icekeep.planning.spark.session import F, from_arrow_schema
from icekeep.planning.spark.tasks import prepare_worker
from icekeep.spec.schema import FILE, POS, ROW_ID
from icekeep.spec.types import MAX_LONG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Place = tuple[int, str, int]
"""A row id, a data file and the position of a row in it."""

PART_IDS = 1 << 24
"""Of so many ids all runs are in one task, which Spark sorts there."""

_IDS_TOLD, _PLACES_TOLD = 1_000, 100_000

_RUNS = pa.schema([("part", pa.int64()), ("first", pa.int64()), ("end", pa.int64())])
_IDS = pa.schema([(ROW_ID.name, pa.int64())])


def wrong_places(rows: "DataFrame", next_row_id: int) -> list[Place]:
    """Where rows are whose id another has, or whose id was never given: of each file and id the first and the last one.

    Args:
        rows: `_row_id`, `_file` and `_pos` of live rows.
        next_row_id: no id is at or above it.

    Raises:
        IcekeepError: as the tasks that read rows.
    """
    runs = rows.select(ROW_ID.name).mapInArrow(_runs, from_arrow_schema(_RUNS))
    in_order = runs.repartition("part").sortWithinPartitions("first", "end")
    wrong = in_order.mapInArrow(partial(_wrong_ids, next_row_id=next_row_id), from_arrow_schema(_IDS))
    found = {row[0] for row in collected(wrong.limit(_IDS_TOLD), "comparing row ids")}
    if not found:
        return []
    wanted = arrow_dataframe(rows.sparkSession, pa.table([pa.array(sorted(found), pa.int64())], schema=_IDS))
    files = rows.join(F.broadcast(wanted), ROW_ID.name).groupBy(ROW_ID.name, FILE.name)
    ends = files.agg(F.min(POS.name).alias("first"), F.max(POS.name).alias("last")).limit(_PLACES_TOLD)
    held = collected(ends, "finding rows by their ids")
    return [(row[ROW_ID.name], row[FILE.name], at) for row in held for at in {row["first"], row["last"]}]


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for batch in batches:
        first, end = runs_of(batch.column(0).drop_null().to_numpy())
        yield pa.record_batch([first // PART_IDS, first, end], schema=_RUNS)


def runs_of(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Runs of ids that follow one another: the first of each and the one behind its last; none goes beyond its part.

    >>> [some.tolist() for some in runs_of(np.array([4, 5, 6, 6, 2]))]
    [[4, 6, 2], [7, 7, 3]]
    """
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = (ids[1:] != ids[:-1] + 1) | (ids[1:] % PART_IDS == 0)
    starts = np.flatnonzero(is_first)
    lengths = np.diff(np.append(starts, len(ids)))
    first = ids[starts]
    # No id is above the greatest number that there is.
    return first, np.minimum(first, MAX_LONG - lengths) + lengths


def _wrong_ids(batches: Iterable[pa.RecordBatch], next_row_id: int) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for ids in wrong_ids(((batch["first"].to_numpy(), batch["end"].to_numpy()) for batch in batches), next_row_id):
        yield pa.record_batch([ids], schema=_IDS)


def wrong_ids(
    runs: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]], next_row_id: int
) -> Iterator[NDArray[np.int64]]:
    """Of runs in order, and so in whole parts: an id of each that others have as well, and of each that goes too far."""
    reach, room = -MAX_LONG - 1, _IDS_TOLD
    for first, end in runs:
        if not len(first):
            continue
        reaches = np.maximum.accumulate(np.append(reach, end))
        again = first[first < reaches[:-1]]
        high = np.maximum(first, next_row_id)[end > next_row_id]
        reach = int(reaches[-1])
        found = np.unique(np.append(again, high))[:room]
        room -= len(found)
        if len(found):
            yield found
