"""What lies below a directory: listed on the driver in threads for few files, in Spark tasks for many, or read from a list.

A listing is complete before any metadata is read, and stays as it is from then on: by then there are files in it that the
metadata, which was read in between, does not name. So what tasks have listed is kept in Parquet below `.icekeep/runs/<run>/` for
as long as the run needs it, and never listed again. What Spark itself keeps (`localCheckpoint`, `persist`) goes with the executor
that holds it, or is made again; these files outlive executors, and hold none back that could be released. Tasks write and read
them through our own storage, as Spark's file systems may not know the credentials of the store. What a killed run has left
`rewrite.alive.sweep_runs` removes.

Left out are hidden names, which engines keep for themselves while they work. As for Iceberg a name is hidden that begins with `_`
or `.`, unless it is a directory of a partition whose field has such a name, under any spec that the table has had. The metadata
of a table that was dropped and kept is not hidden: its files are not orphans. Left out as well are files that plans of other runs
name and that lie where they belong: an expiration with a grace leaves its files in their places, so that its snapshots can come
back; what cannot be moved to the trash waits as well; and `restore` moves files back before the commit that names them.

A list that somebody else made is a view or table that Spark knows, an S3 inventory, or files of either. It names `file_path` and
`last_modified`, and `size` if it likes; an inventory `bucket`, `key`, `size` and `last_modified_date`. Of a list nothing is taken
that does not lie below the location, by whole names of directories.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote_plus, unquote_plus

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from icekeep.catalog.base import Table
from icekeep.catalog.filesystem import MOVED_ASIDE
from icekeep.errors import InvalidTableError, MissingFileError, SafetyError, UsageError, argument, first_line
from icekeep.events import Listener
from icekeep.maintenance.delete.kept import part_paths, plans_with_files_in_place
from icekeep.maintenance.delete.locations import DeletableLocations
from icekeep.maintenance.delete.plan_file import DeletionPlan, PlanPart, read_plan
from icekeep.maintenance.delete.reachable import PathSet, union
from icekeep.maintenance.orphans import JOB
from icekeep.maintenance.rewrite.alive import Heartbeat
from icekeep.maintenance.rewrite.run import run_name
from icekeep.planning.spark.jobs import described, in_spark
from icekeep.planning.spark.rows import arrow_table
from icekeep.planning.spark.session import F, SparkSource, from_arrow_schema, limits_of, started, task_context
from icekeep.planning.spark.tasks import all_results, attempt_id, dataframe_from_tasks, run_over_partitions
from icekeep.planning.spark.workers import LISTED_FILES, SHUFFLED_KEYS, tasks_count
from icekeep.spec.collections import balanced, each_once, packed
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.properties import OWN_DIRECTORY, own_directory
from icekeep.storage.base import REQUESTS_AT_ONCE, ListingShare, Storage, answer_each
from icekeep.storage.location_keys import Spelling, loose_keys
from icekeep.storage.locations import canonical, parse_location, requests_at_once

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SCHEME_AND_AUTHORITY = r"^[A-Za-z][A-Za-z0-9+.\-]*:(?://[^/]*)?"
_HIDDEN = r"(?:^|/)[_.]"


class HiddenNames(msgspec.Struct, frozen=True):
    """The rule for one listed directory; can be pickled.

    `pattern` finds the beginnings of directories that look hidden and are partitions, empty where there are none.
    """

    root_length: int
    pattern: str

    def mask(self, locations: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
        """Which of some locations below the directory are hidden, or are directories and no files."""
        is_dropped = pc.match_substring_regex(locations, MOVED_ASIDE)
        paths = pc.replace_substring_regex(locations, _SCHEME_AND_AUTHORITY, "")
        paths = pc.replace_substring_regex(paths, "/+", "/")
        below = pc.utf8_slice_codeunits(paths, start=self.root_length)
        plain = pc.replace_substring_regex(below, self.pattern, r"\1=") if self.pattern else below
        own = pc.match_substring_regex(below, rf"(?:^|/){re.escape(OWN_DIRECTORY)}(?:/|$)")
        hidden = pc.or_(
            pc.and_not(pc.or_(pc.match_substring_regex(plain, _HIDDEN), own), is_dropped), pc.ends_with(paths, "/")
        )
        return np.asarray(hidden.to_numpy(zero_copy_only=False) if isinstance(hidden, pa.Array) else hidden.to_numpy())


def hidden_names(root: str, specs: Iterable[PartitionSpec]) -> HiddenNames:
    """The rule for files below a directory.

    Args:
        specs: all that the table has had: files of older ones are live as well.
    """
    path = parse_location(canonical(root)).path
    names = {field.name for spec in specs for field in spec.fields if field.name.startswith(("_", "."))}
    # Writers encode names for their paths, as Java does (`spec.partitioning.partition_path`).
    spelled = sorted(names | {quote_plus(name, safe="*").replace("~", "%7E") for name in names})
    # RE2 knows fewer escapes than Python's `re` makes.
    literal = ["".join(c if c.isalnum() or c in "_" else f"\\x{{{ord(c):x}}}" for c in name) for name in spelled]
    pattern = rf"(^|/)(?:{'|'.join(literal)})=" if literal else ""
    return HiddenNames(len(path.rstrip("/")) + 1, pattern)


_GROUP_ROWS = 100_000
Look = Callable[[pa.RecordBatch], tuple[pa.RecordBatch, Mapping[str, int]]]
"""Says which rows of a batch are kept, and what is counted of it."""


class KeptRows(msgspec.Struct, frozen=True):
    """Rows that are kept, and what was counted while they were written."""

    parts: tuple["_Part", ...]
    schema: pa.Schema
    storage: Storage
    counts: Counter[str]

    @property
    def rows_count(self) -> int:
        """How many rows are kept."""
        return sum(part.rows_count for part in self.parts)

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """The rows in Spark, read by tasks whenever they are wanted."""
        bins_count = min(len(self.parts), tasks_count(spark, self.rows_count, LISTED_FILES))
        bins = balanced(self.parts, lambda part: part.rows_count, bins_count)
        return dataframe_from_tasks(spark, bins, partial(_read, self.storage), self.schema)

    def table(self) -> pa.Table:
        """The rows in this process."""
        return pa.Table.from_batches([*_read(self.storage, self.parts)], self.schema)


class _Part(msgspec.Struct, frozen=True):
    location: str
    rows_count: int
    counts: Counter[str]


class _Writing(msgspec.Struct, frozen=True):
    prefix: str
    schema: pa.Schema
    storage: Storage
    look: Look | None


class RowKeeper:
    """Keeps rows for one run; until it is asked to, it writes nothing."""

    def __init__(self, table: Table, listener: Listener) -> None:
        self._table, self._listener = table, listener
        self._run = ExitStack()
        self._directory = ""

    @property
    def directory_name(self) -> str:
        """What is in the name of each file that is kept, and of no other."""
        directory = self._directory or self._begun()
        return f"/{directory.rpartition('/')[2]}/"

    def keep(self, rows: "DataFrame", schema: pa.Schema, name: str, step: str, look: Look | None = None) -> KeptRows:
        """Have rows made, once, and keep them.

        Args:
            name: of the files.
            step: what Spark's pages say that the tasks do.
            look: a function of a module.

        Raises:
            IcekeepError: a task failed.
        """
        storage = self._table.storage
        prefix = f"{self._directory or self._begun()}/{name}"
        parts = all_results(run_over_partitions(rows, _write, _Writing(prefix, schema, storage, look), step=step))
        counts = sum((part.counts for part in parts), Counter[str]())
        return KeptRows(tuple(part for part in parts if part.rows_count), schema, storage, counts)

    def close(self) -> None:
        """Remove what was kept, and what attempts have left that died."""
        with self._run:
            if self._directory:
                storage = self._table.storage
                # What cannot be removed now ages, and a later run sweeps it.
                with suppress(Exception):
                    storage.delete_many([file.location for file in storage.list(self._directory)])

    def _begun(self) -> str:
        run_id = run_name(self._table)
        self._run.enter_context(Heartbeat(self._table, run_id, JOB.name, self._table.runtime, self._listener))
        self._directory = own_directory(self._table.metadata, f"runs/{run_id}")
        return self._directory


@contextmanager
def keeping_rows(table: Table, listener: Listener) -> Iterator[RowKeeper]:
    """What keeps rows while the block lasts."""
    keeper = RowKeeper(table, listener)
    try:
        yield keeper
    finally:
        keeper.close()


def _write(batches: Iterable[pa.RecordBatch], writing: _Writing) -> _Part:
    """Write the rows of one partition; each attempt names its file by itself, and that of the one that won is returned."""
    context = task_context()
    number = 0 if context is None else context.partitionId()
    location = f"{writing.prefix}-{number:05d}-{attempt_id()}.parquet"
    counts: Counter[str] = Counter()
    rows_count = 0
    with ExitStack() as stack:
        file: pq.ParquetWriter | None = None
        # A row group each.
        groups = packed(_looked_at(batches, writing, counts), (lambda batch: batch.num_rows, _GROUP_ROWS))
        for group in map(pa.Table.from_batches, groups):
            if file is None:
                stream = stack.enter_context(writing.storage.write(location))
                file = stack.enter_context(pq.ParquetWriter(stream, writing.schema, compression="zstd"))
            file.write_table(group)
            rows_count += group.num_rows
    return _Part(location, rows_count, counts)


def _looked_at(batches: Iterable[pa.RecordBatch], writing: _Writing, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        kept, counted = (batch, {}) if writing.look is None else writing.look(batch)
        counts.update(counted)
        if kept.num_rows:
            # Nullability is that of the schema here, not as Spark has worked it out.
            yield pa.record_batch(kept.columns, schema=writing.schema)


def _read(storage: Storage, parts: Sequence[_Part]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        with storage.open(part.location) as stream, pq.ParquetFile(stream) as file:
            yield from file.iter_batches()


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


class LocationListing(msgspec.Struct, frozen=True, kw_only=True):
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
) -> LocationListing:
    """List the files below a directory, whole.

    Args:
        keeper: keeps what tasks list.
        expected_count: about how many files there are; where few turn out to be many, it begins again in tasks.

    Raises:
        UnavailableError, UsageError: a part could not be listed.
    """
    limit = limits_of(spark).listed_files_count
    if expected_count <= limit:
        threads = requests_at_once([root])
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


def kept_listing(rows: "DataFrame", limit: int, keeper: RowKeeper) -> LocationListing:
    """Work out a listing once, rows of `LISTED`, and keep it; up to a limit its rows come to the driver."""
    kept = keeper.keep(rows, LISTED, "listed", "listing files", _shown)
    return LocationListing(
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


def _listed_here(task: _ListTask, max_rows: int, threads: int) -> LocationListing | None:
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
    return LocationListing(files=files, files_count=files.num_rows, hidden_count=sum(count for _, count in batches))


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
    infos_left = iter(files if task.own is None else (file for file in files if task.own not in file.location))
    while infos := [*islice(infos_left, _BATCH_ROWS)]:
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


_FORMATS = {".parquet": "parquet", ".orc": "orc", ".csv": "csv", ".csv.gz": "csv"}
_PLAIN_KEYS = (".parquet", ".orc")
"""Inventories in these formats have keys as they are, in others percent-encoded."""

_FILES = pa.schema([("location", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64())])
_WANTED = (
    "give the columns file_path (string) and last_modified (timestamp), or those of an S3 inventory: bucket, key, size and "
    "last_modified_date"
)


class _Sieve(msgspec.Struct, frozen=True):
    below: DeletableLocations
    hidden: HiddenNames
    spelling: Spelling
    percent_encoded: bool

    def sift(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of `LISTED` below the location; the counts of hidden files and, as a negative number, of those elsewhere."""
        hidden_count = outside_count = 0
        for batch in batches:
            files = batch
            if self.percent_encoded:
                locations = pa.array([unquote_plus(text) for text in files["location"].to_pylist()], pa.string())
                files = files.set_column(0, _FILES.field(0), locations)
            inside = files.filter(pa.array(self.below.mask(files["location"]), pa.bool_()))
            shown = inside.filter(pc.invert(pa.array(self.hidden.mask(inside["location"]), pa.bool_())))
            outside_count += files.num_rows - inside.num_rows
            hidden_count += inside.num_rows - shown.num_rows
            yield keyed_rows(shown["location"], shown["size_bytes"], shown["modified_ms"], self.spelling)
        yield counting_row(hidden_count)
        if outside_count:
            yield counting_row(-outside_count)


def list_given(
    name: str,
    storage: Storage,
    spark: SparkSource,
    root: str,
    hidden: HiddenNames,
    spelling: Spelling,
    keeper: RowKeeper,
) -> LocationListing:
    """The files of a list that lie below a location, hidden ones left out as in a listing of our own.

    Args:
        name: of a view or table, or the location of Parquet, ORC or CSV files.
        keeper: keeps the files.

    Raises:
        UsageError: there is no such list, or it has other columns.
    """
    session = started(spark)
    rows, suffix = _opened(name, storage, session)
    columns = {column.lower() for column in rows.columns}
    if {"file_path", "last_modified"} <= columns:
        files, is_inventory = _plain_list(name, rows, is_text=suffix.startswith(".csv")), False
    elif {"bucket", "key", "last_modified_date"} <= columns:
        files, is_inventory = _inventory(rows, columns), True
    else:
        raise UsageError(
            f"{argument('file_list_view')} {name!r} has the columns {', '.join(rows.columns)}; {_WANTED}",
            file_list_view=name,
        )
    names = [suffix] if suffix else rows.inputFiles() if is_inventory else []
    is_plain = bool(names) and all(name.lower().endswith(_PLAIN_KEYS) for name in names)
    is_encoded = is_inventory and not is_plain
    sieve = _Sieve(DeletableLocations(roots=(root,)), hidden, spelling, is_encoded)
    with _readable(name):
        sifted = files.mapInArrow(partial(_sift, sieve), from_arrow_schema(LISTED))
        return kept_listing(sifted, limits_of(spark).listed_files_count, keeper)


def _sift(sieve: _Sieve, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return sieve.sift(batches)


def _opened(name: str, storage: Storage, session: "SparkSession") -> "tuple[DataFrame, str]":
    """The rows of a list, and the suffix of its files where it is a location."""
    suffix = _suffix(name, storage) if "/" in name else ""
    with _readable(name):
        if not suffix:
            return session.table(name), ""
        # Spark looks into the files for their columns, in a job.
        with described("opening the list of files"):
            reader = session.read.format(_FORMATS[suffix]).options(header=True)
            return in_spark(session, lambda: reader.load(name)), suffix


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """What Spark says of a list that it cannot read, in one line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise UsageError(
            f"{argument('file_list_view')} {name!r} cannot be read: {first_line(error)}; name a view or table that this "
            "Spark session knows, or the location of Parquet, ORC or CSV files",
            file_list_view=name,
        ) from error


def _suffix(location: str, storage: Storage) -> str:
    """The ending of a file's name, or of the first file's in a directory, that says what it holds."""
    names = [location, *(info.location for info, _ in zip(storage.list(location), range(100), strict=False))]
    for name in names:
        for suffix in _FORMATS:
            if name.lower().endswith(suffix):
                return suffix
    raise UsageError(
        f"{argument('file_list_view')} {location!r} has no file whose name ends in {', '.join(_FORMATS)}; {_WANTED}",
        file_list_view=location,
    )


def _plain_list(name: str, rows: "DataFrame", *, is_text: bool) -> "DataFrame":
    types = {field.name.lower(): field.dataType.simpleString() for field in rows.schema}
    wanted = {"file_path": ("string",), "last_modified": ("timestamp", "string") if is_text else ("timestamp",)}
    for column, allowed in wanted.items():
        if types[column] not in allowed:
            zone = (
                ", which has no time zone: write it with one, such as UTC" if types[column] == "timestamp_ntz" else ""
            )
            raise UsageError(
                f"{argument('file_list_view')} {name!r} has a column {column} of type {types[column]}{zone}; {_WANTED}",
                file_list_view=name,
            )
    size = _tried("size", "bigint") if "size" in types else F.lit(None).cast("bigint")
    return _files(F.col("file_path"), size, "last_modified", rows)


def _inventory(rows: "DataFrame", columns: set[str]) -> "DataFrame":
    """The current versions of an inventory's objects."""
    if "is_latest" in columns:
        rows = rows.where(F.coalesce(_tried("is_latest", "boolean"), F.lit(True)))
    if "is_delete_marker" in columns:
        rows = rows.where(~F.coalesce(_tried("is_delete_marker", "boolean"), F.lit(False)))
    location = F.concat(F.lit("s3://"), F.col("bucket"), F.lit("/"), F.col("key"))
    size = _tried("size", "bigint") if "size" in columns else F.lit(None).cast("bigint")
    return _files(location, size, "last_modified_date", rows)


def _files(location: "Column", size: "Column", modified: str, rows: "DataFrame") -> "DataFrame":
    """Rows of the three columns, `modified` by its name; what is no moment stays null, and is never old enough."""
    return rows.where(location.isNotNull()).select(
        location.alias("location"),
        size.alias("size_bytes"),
        F.unix_millis(_tried(modified, "timestamp")).alias("modified_ms"),
    )


def _tried(column: str, type_: str) -> "Column":
    """A column as another type, null where a value is none of it: in SQL, since Spark 3.5's `Column` has no `try_cast`."""
    return F.expr(f"try_cast({column} AS {type_})")


_KEYS = pa.schema([pa.field("path_key", pa.int64(), nullable=False)])


def without_planned(
    files: Rows, files_count: int, table: Table, spark: SparkSource, keeper: RowKeeper
) -> tuple[Rows, int]:
    """Listed files without those that a plan of another run names, and how many these are.

    Args:
        files: rows of `LISTED`; there are `files_count`.
        keeper: keeps what tasks find.

    Raises:
        SafetyError: a plan cannot be read, so that it is not known what it names.
    """
    if not files_count:
        return files, 0
    parts = [part for plan in _plans(table) for part in plan.parts]
    planned_count = sum(part.files_count for part in parts)
    if isinstance(files, pa.Table) and planned_count <= limits_of(spark).plan_files_count:
        several = answer_each(
            lambda part: _waiting_read(part, table.storage), parts, lambda part: part.location, REQUESTS_AT_ONCE
        )
        return _without(files, union(several))
    session = started(spark)
    if isinstance(files, pa.Table):
        # Few listed files and long plans: the tasks tell which of the few they name.
        wanted = PathSet.of_keys(files["path_key"].to_numpy())
        tasks = [(part, table.storage, wanted) for part in parts]
        named = arrow_table(dataframe_from_tasks(session, tasks, _read_wanted, _KEYS), "reading other plans")[
            "path_key"
        ]
        return _without(files, PathSet.of_keys(named.to_numpy()))
    if not parts:
        return files, 0
    bins_count = tasks_count(session, files_count + planned_count, SHUFFLED_KEYS, a_slot=2)
    keys_of_plans = dataframe_from_tasks(session, [(part, table.storage, None) for part in parts], _read_wanted, _KEYS)
    left = files.repartition(bins_count, "path_key").join(
        keys_of_plans.repartition(bins_count, "path_key"), on="path_key", how="left_anti"
    )
    kept = keeper.keep(left.select(*LISTED.names), LISTED, "free", "leaving out files that other plans name")
    return kept.frame(session), files_count - kept.rows_count


def _without(files: pa.Table, waiting: PathSet) -> tuple[pa.Table, int]:
    is_waiting = waiting.mask_of_keys(files["path_key"].to_numpy())
    return files.filter(pa.array(~is_waiting, pa.bool_())), int(np.count_nonzero(is_waiting))


def _plans(table: Table) -> Iterator[DeletionPlan]:
    """The plans whose files may lie in their places; fails closed where one cannot be read."""
    for directory in plans_with_files_in_place(table):
        try:
            yield read_plan(directory, table.storage)
        except MissingFileError:
            # Its run has just finished it.
            continue
        except InvalidTableError as error:
            raise SafetyError(
                f"{error.message}; files that it names would look like orphans, so nothing is deleted; look at it, and "
                f"remove {directory!r} if nobody needs it",
                location=directory,
            ) from error


def _waiting_read(part: PlanPart, storage: Storage) -> PathSet:
    try:
        # Of a part that is gone the files are gone as well, or metadata leads to them.
        return part_paths(part, storage)
    except InvalidTableError as error:
        raise SafetyError(
            f"{error.message}; files that it names would look like orphans, so nothing is deleted"
        ) from error


def _read_wanted(task: tuple[PlanPart, Storage, PathSet | None]) -> Iterator[pa.RecordBatch]:
    part, storage, wanted = task
    found = _waiting_read(part, storage)
    named = found if wanted is None else found & wanted
    yield pa.record_batch([pa.array(named.keys, pa.int64())], schema=_KEYS)
