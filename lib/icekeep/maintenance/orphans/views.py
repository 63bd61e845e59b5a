"""Lists of files that somebody else made: a view or table that Spark knows, an S3 inventory, or files of either.

A list names `file_path` and `last_modified`, and `size` if it likes; an inventory `bucket`, `key`, `size` and
`last_modified_date`. Of a list nothing is taken that does not lie below the location, by whole names of directories.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import UsageError, argument, first_line
from icekeep.maintenance.deletion.territory import Territory
from icekeep.maintenance.orphans.hidden import HiddenNames
from icekeep.maintenance.orphans.kept_rows import RowKeeper
from icekeep.maintenance.orphans.listing import (
    LISTED,
    Listing,
    counting_row,
    kept_listing,
    keyed_rows,
)
from icekeep.planning.spark.jobs import described, in_spark
from icekeep.planning.spark.session import F, SparkSource, from_arrow_schema, limits_of, started
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Spelling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FORMATS = {".parquet": "parquet", ".orc": "orc", ".csv": "csv", ".csv.gz": "csv"}
_PLAIN_KEYS = (".parquet", ".orc")
"""Inventories in these formats have keys as they are, in others percent-encoded."""

_FILES = pa.schema([("location", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64())])
_WANTED = (
    "give the columns file_path (string) and last_modified (timestamp), or those of an S3 inventory: bucket, key, size and "
    "last_modified_date"
)


class _Sieve(msgspec.Struct, frozen=True):
    below: Territory
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
) -> Listing:
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
    is_encoded = is_inventory and not _is_plain(suffix, rows)
    sieve = _Sieve(Territory(roots=(root,)), hidden, spelling, is_encoded)
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


def _is_plain(suffix: str, rows: "DataFrame") -> bool:
    names = [suffix] if suffix else rows.inputFiles()
    return bool(names) and all(name.lower().endswith(_PLAIN_KEYS) for name in names)
