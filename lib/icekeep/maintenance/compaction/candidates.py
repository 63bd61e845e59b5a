"""Which data files ask to be rewritten, each by itself: planned files in, few or a DataFrame of many, and the reasons out."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.maintenance.compaction.options import RewriteDataFilesOptions
from icekeep.maintenance.groups.file_sizes import FileSizes
from icekeep.planning.deletes import Reaching
from icekeep.planning.scan.plan import FewFiles
from icekeep.planning.spark.session import F
from icekeep.spec.manifests.structs import FileContent

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HAS_BAD_SIZE = "has_bad_size"
HAS_MANY_DELETES = "has_many_deletes"
DELETED_COUNT = "deleted_count"


def with_reasons(files: "DataFrame", sizes: FileSizes, options: RewriteDataFilesOptions) -> "DataFrame":
    """The files with three more columns: whether the size asks for a rewrite, whether deletes do, and how many rows are deleted.

    Deletes ask for it where `delete-file-threshold` or more of them reach the file, and one at least; or where
    `delete-ratio-threshold` or more of its rows are deleted by vectors and delete files that are for this file alone, as they
    or their path bounds say (`reach.own_path`): where bounds are wrong, a file is rewritten that need not be, or is not.
    Deletes of positions that are older than the file cannot name it and are not counted, so that what was rewritten to
    get rid of them is not rewritten again. Deleted rows are those that the same vectors and delete files delete.

    Args:
        files: of `planning.scan`; without a column `deletes` no file has any.
    """
    size = F.col("file_size_in_bytes")
    bad_size = (size < sizes.min_bytes) | (size > sizes.max_bytes)
    many_deletes, deleted = F.lit(False), F.lit(0).cast("long")
    if "deletes" in files.columns:
        files = files.withColumn(DELETED_COUNT, _deleted_count())
        many_deletes, deleted = _many_deletes(options), F.col(DELETED_COUNT)
    known = [name for name in files.columns if name != DELETED_COUNT]
    return files.select(
        *known, bad_size.alias(HAS_BAD_SIZE), many_deletes.alias(HAS_MANY_DELETES), deleted.alias(DELETED_COUNT)
    )


def reasons_of_few(few: FewFiles, sizes: FileSizes, options: RewriteDataFilesOptions) -> dict[str, NDArray[Any]]:
    """The same of few files: the values of each of the three columns."""
    size = few.files["file_size_in_bytes"].to_numpy()
    bad_size = (size < sizes.min_bytes) | (size > sizes.max_bytes)
    many_deletes, deleted = _deletes_of_few(few, options)
    return {HAS_BAD_SIZE: bad_size, HAS_MANY_DELETES: many_deletes, DELETED_COUNT: deleted}


def candidates(files: "DataFrame", *, rewrite_all: bool) -> "DataFrame":
    """Those of the files that have a reason; all of them with `rewrite-all`."""
    return files if rewrite_all else files.where(F.col(HAS_BAD_SIZE) | F.col(HAS_MANY_DELETES))


def _many_deletes(options: RewriteDataFilesOptions) -> "Column":
    count = F.size(F.filter("deletes", _may_apply))
    deleted = F.col(DELETED_COUNT)
    # Multiplied rather than divided: a file may have no rows.
    too_many = (deleted > 0) & (deleted >= F.col("record_count") * options.delete_ratio_threshold)
    return (count >= options.delete_file_threshold) | too_many


def _deleted_count() -> "Column":
    own = F.filter("deletes", lambda delete: _is_of_positions(delete) & _is_own(delete))
    deleted = F.aggregate(own, F.lit(0).cast("long"), lambda total, delete: total + delete.record_count)
    return F.least(deleted, F.col("record_count"))


def _deletes_of_few(few: FewFiles, options: RewriteDataFilesOptions) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    records: NDArray[np.int64] = few.files["record_count"].to_numpy()
    reaching = few.reaching
    if reaching is None or not reaching.deletes.num_rows:
        return np.zeros(len(records), np.bool_), np.zeros(len(records), np.int64)
    counts = _counts_of_runs(reaching, pc.fill_null(few.files["file_sequence_number"], 0).to_numpy())
    enough = _by_row(reaching, counts) >= options.delete_file_threshold
    deleted = np.minimum(reaching.own_record_counts(few.files["file_path"]), records)
    return enough | ((deleted > 0) & (deleted >= records * options.delete_ratio_threshold)), deleted


def _counts_of_runs(reaching: Reaching, since: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many members of each run may apply: of those of positions the ones from a number on, which the row has."""
    starts, stops = reaching.starts.astype(np.int64), reaching.stops.astype(np.int64)
    numbers = reaching.deletes["sequence_number"].to_numpy()
    distinct = np.unique(numbers)
    # Members of a list are in the order of their numbers, so that all are in the order of both.
    places = reaching.lists.astype(np.int64) * (len(distinct) + 1) + np.searchsorted(distinct, numbers)
    asked = reaching.lists[starts].astype(np.int64) * (len(distinct) + 1)
    asked += np.searchsorted(distinct, since[reaching.rows])
    firsts = np.clip(np.searchsorted(places, asked), starts, stops)
    return np.where(_are_of_positions(reaching)[starts], stops - firsts, stops - starts)


def _by_row(reaching: Reaching, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sums of what runs have."""
    before = np.cumsum(np.concatenate([[0], values]))
    return before[reaching.offsets[1:]] - before[reaching.offsets[:-1]]


def _are_of_positions(reaching: Reaching) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = reaching.deletes["content"].to_numpy() == FileContent.POSITION_DELETES
    return found


def _may_apply(delete: "Column") -> "Column":
    since = F.coalesce(F.col("file_sequence_number"), F.lit(0))
    return ~_is_of_positions(delete) | (delete.sequence_number >= since)


def _is_own(delete: "Column") -> "Column":
    own_path = F.coalesce(delete.referenced_data_file.cast("binary"), delete.sole_path)
    return own_path == F.col("file_path").cast("binary")


def _is_of_positions(delete: "Column") -> "Column":
    return delete.content == int(FileContent.POSITION_DELETES)
