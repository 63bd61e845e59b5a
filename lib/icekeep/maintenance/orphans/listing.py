"""Listing what lies below a directory: on the driver in threads for few files, in Spark tasks for many.

A listing is complete before any metadata is read, and stays as it is from then on: what tasks have listed is kept in storage
(`kept_rows.py`), and never listed again. Each row carries the keys by which it is compared.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.maintenance.orphans.hidden import HiddenNames
from icekeep.maintenance.orphans.kept_rows import RowKeeper
from icekeep.planning.spark.rows import arrow_table
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import dataframe_from_tasks
from icekeep.planning.spark.workers import LISTED_FILES, tasks_count
from icekeep.spec.collections import balanced, each_once
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.base import FileInfo, ListingShare, Storage
from icekeep.storage.location_keys import Spelling, loose_keys
from icekeep.storage.locations import parse_location
from icekeep.storage.many import LOCAL_REQUESTS_AT_ONCE, REQUESTS_AT_ONCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rows: TypeAlias = "pa.Table | DataFrame"
"""Few rows as a table that the driver holds, many where Spark has them."""

LISTED = pa.schema(
    [
        pa.field("location", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("modified_ms", pa.int64()),
        pa.field("path_key", pa.int64()),
        pa.field("prefix_key", pa.int64()),
    ]
)
"""A file that was found. Tasks add rows without a location: `size_bytes` counts hidden files, as a negative number files that
lie elsewhere."""

_BATCH_ROWS = 10_000
_SHARES_A_SLOT = 8


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        files: rows of `LISTED`, hidden ones left out.
        outside_count: files of a given list that lie elsewhere.
    """

    files: Rows
    files_count: int
    hidden_count: int = 0
    outside_count: int = 0


class _ListTask(msgspec.Struct, frozen=True):
    """What to list; `own` is in the names of what this run itself keeps meanwhile, which is no file of the table's."""

    shares: tuple[ListingShare, ...]
    hidden: HiddenNames
    spelling: Spelling
    storage: Storage
    own: str | None = None


def list_files(
    storage: Storage,
    spark: SparkSource,
    root: str,
    hidden: HiddenNames,
    spelling: Spelling,
    keeper: RowKeeper,
    *,
    expected_count: int,
) -> Listing:
    """List the files below a directory, whole.

    Args:
        keeper: keeps what tasks list.
        expected_count: about how many files there are; where few turn out to be many, it begins again in tasks.

    Raises:
        UnavailableError, UsageError: a part could not be listed.
    """
    limit = limits_of(spark).listed_files_count
    if expected_count <= limit:
        threads = LOCAL_REQUESTS_AT_ONCE if parse_location(root).scheme == "file" else REQUESTS_AT_ONCE
        shares = storage.shares(root, threads)
        found = _listed_here(_ListTask(tuple(shares), hidden, spelling, storage), limit, threads)
        if found is not None:
            return found
    session = started(spark)
    # More than the limit, by how much is not known: a table has more files than its newest snapshot leads to.
    bins_count = tasks_count(session, max(expected_count, 2 * limit), LISTED_FILES, a_slot=_SHARES_A_SLOT)
    bins = balanced(storage.shares(root, bins_count), each_once, bins_count)
    tasks = [_ListTask(tuple(some), hidden, spelling, storage, keeper.directory_name) for some in bins]
    return kept_listing(dataframe_from_tasks(session, tasks, _list_in_task, LISTED), limit, keeper)


def kept_listing(rows: "DataFrame", limit: int, keeper: RowKeeper) -> Listing:
    """Work out a listing once, rows of `LISTED`, and keep it; up to a limit its rows come to the driver."""
    kept = keeper.keep(rows, LISTED, "listed", "listing files", _shown)
    return Listing(
        files=kept.table() if kept.rows_count <= limit else kept.frame(rows.sparkSession),
        files_count=kept.rows_count,
        hidden_count=kept.counts["hidden"],
        outside_count=kept.counts["outside"],
    )


def _shown(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
    """The files among rows of `LISTED`, and what the other rows count."""
    is_file = rows["location"].is_valid()
    if is_file.true_count == rows.num_rows:
        return rows, {}
    left_out = rows["size_bytes"].filter(pc.invert(is_file)).to_pylist()
    hidden, outside = (sum(max(sign * count, 0) for count in left_out) for sign in (1, -1))
    return rows.filter(is_file), {"hidden": hidden, "outside": outside}


def arrow_rows(rows: "DataFrame", schema: pa.Schema) -> pa.Table:
    """Few rows that Spark holds, brought to the driver."""
    return arrow_table(rows.select(*schema.names)).cast(schema)


def expected_files_count(metadata: TableMetadata) -> int:
    """About how many files a table has, by what its current snapshot says of itself."""
    snapshot = metadata.current_snapshot
    summary = {} if snapshot is None else snapshot.summary or {}
    totals = [summary.get(name, "0") for name in ("total-data-files", "total-delete-files")]
    return sum(int(total) for total in totals if total.isdecimal()) + len(metadata.snapshots)


def keyed_rows(locations: pa.Array, sizes: pa.Array, modified_ms: pa.Array, spelling: Spelling) -> pa.RecordBatch:
    """Rows of `LISTED`."""
    path_keys, prefix_keys = loose_keys(locations, spelling)
    columns = [locations, sizes, modified_ms, pa.array(path_keys, pa.int64()), pa.array(prefix_keys, pa.int64())]
    return pa.record_batch(columns, schema=LISTED)


def counting_row(left_out: int) -> pa.RecordBatch:
    """The row that says how many files a task has left out."""
    return pa.RecordBatch.from_pylist([{"size_bytes": left_out}], schema=LISTED)


def _listed_here(task: _ListTask, max_rows: int, threads: int) -> Listing | None:
    """List in threads of this process; `None` where there is more than it should hold."""
    full, seen = Event(), [0]

    def listed(share: ListingShare) -> list[tuple[pa.RecordBatch, int]]:
        found = []
        for batch in _list_share(share, task):
            seen[0] += batch[0].num_rows
            if seen[0] > max_rows or full.is_set():
                full.set()
                return []
            found.append(batch)
        return found

    with ThreadPoolExecutor(min(threads, max(1, len(task.shares)))) as pool:
        batches = [batch for some in pool.map(listed, task.shares) for batch in some]
    files = pa.Table.from_batches([batch for batch, _ in batches], LISTED)
    if full.is_set() or files.num_rows > max_rows:
        return None
    return Listing(files=files, files_count=files.num_rows, hidden_count=sum(count for _, count in batches))


def _list_in_task(task: _ListTask) -> Iterator[pa.RecordBatch]:
    hidden_count = 0
    for share in task.shares:
        for batch, count in _list_share(share, task):
            hidden_count += count
            yield batch
    yield counting_row(hidden_count)


def _list_share(share: ListingShare, task: _ListTask) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The files of a share that are not hidden, and how many are."""
    files = task.storage.list_share(share)
    for infos in _batches(files if task.own is None else (file for file in files if task.own not in file.location)):
        locations = pa.array([info.location for info in infos], pa.string())
        is_hidden = pa.array(task.hidden.mask(locations), pa.bool_())
        shown = pc.invert(is_hidden)
        yield (
            keyed_rows(
                locations.filter(shown),
                pa.array([info.size_bytes for info in infos], pa.int64()).filter(shown),
                pa.array([info.modified_ms for info in infos], pa.int64()).filter(shown),
                task.spelling,
            ),
            is_hidden.true_count,
        )


def _batches(infos: Iterable[FileInfo]) -> Iterator[Sequence[FileInfo]]:
    infos = iter(infos)
    while batch := [*islice(infos, _BATCH_ROWS)]:
        yield batch
