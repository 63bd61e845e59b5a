"""Which data files ask to be rewritten, each by itself: planned files in, few or a DataFrame of many, and the reasons out.

What a scan plans -> files with the reasons to rewrite them: few on the driver, many as a DataFrame.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import UnsupportedError
from icekeep.maintenance.compact.grouping import ColumnFacts, Ends, GroupRules, KeySpace, PlannedFile, ends_of
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.plan import GroupDelete, GroupFile
from icekeep.maintenance.rewrite.options import FileSizes
from icekeep.planning.deletes import ReachingDeletes
from icekeep.planning.scan.plan import FewFiles, refuse_encrypted_file
from icekeep.planning.spark.session import F
from icekeep.spec.collections import Part, PositionSet, narrowed
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


def _counts_of_runs(reaching: ReachingDeletes, since: NDArray[np.int64]) -> NDArray[np.int64]:
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


def _by_row(reaching: ReachingDeletes, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sums of what runs have."""
    before = np.cumsum(np.concatenate([[0], values]))
    return before[reaching.offsets[1:]] - before[reaching.offsets[:-1]]


def _are_of_positions(reaching: ReachingDeletes) -> NDArray[np.bool_]:
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


STRETCH = "stretch"
_FILE_COLUMNS = tuple(name for name in GroupFile.__struct_fields__ if name not in ("deletes", DELETED_COUNT))
_ROWS_AT_ONCE = 50
METRICS = ("lower_bounds", "upper_bounds", "null_value_counts", "nan_value_counts")


def file_columns(space: KeySpace | None) -> tuple[str, ...]:
    """What is asked of the entries of data files."""
    return (*_FILE_COLUMNS, "key_metadata", *(() if space is None else METRICS))


def few_planned_files(few: FewFiles, rules: GroupRules, only: Collection[str] | None = None) -> Iterator[PlannedFile]:
    """The files that may be rewritten: for binpack those that have a reason, else all.

    Args:
        only: paths of the files that may be rewritten; `None` for all.

    Raises:
        UnsupportedError: one of them, or of their deletes, is encrypted.
    """
    reasons = reasons_of_few(few, rules.sizes, rules.options)
    may_go = np.ones(few.files.num_rows, np.bool_)
    if rules.strategy.ordering is None and not rules.options.rewrite_all:
        may_go = reasons[HAS_BAD_SIZE] | reasons[HAS_MANY_DELETES]
    if only is not None:
        may_go &= pc.is_in(few.files["file_path"], value_set=pa.array(sorted(only), pa.string())).to_numpy()
    chosen = np.flatnonzero(may_go)
    files = _narrowed_table(few.files, rules.space).take(pa.array(chosen))
    for name, values in reasons.items():
        files = files.append_column(name, pa.array(values[chosen]))
    rows = zip(files.to_pylist(), _planned_files_deletes_of_few(few, chosen.tolist()), strict=True)
    yield from (_planned_file(row, deletes, rules.space) for row, deletes in rows)


def _planned_files_deletes_of_few(few: FewFiles, chosen: Sequence[int]) -> Iterator[Sequence[GroupDelete]]:
    """What reaches some of the files: parts of one list, which has what reaches any of them."""
    reaching = few.reaching
    if reaching is None:
        return repeat((), len(chosen))
    used, parts = narrowed(range(reaching.deletes.num_rows), [*map(reaching.positions_of_row, chosen)])
    deletes = [*map(_delete, reaching.deletes.take(pa.array(used, pa.int64())).to_pylist())]
    return (Part(deletes, positions) for positions in parts)


def many_planned_files(files: "DataFrame", rules: GroupRules) -> "DataFrame":
    """The same as a DataFrame of `planned_files`, whose rows are for `ManyPlannedFiles`."""
    known = with_reasons(with_key_metrics(files, rules.space), rules.sizes, rules.options)
    if rules.strategy.ordering is not None:
        return known
    return candidates(known, rewrite_all=rules.options.rewrite_all)


class ManyPlannedFiles:
    """Makes planned files of rows of `many_planned_files`, those of one task; their delete files are parts of one list."""

    def __init__(self, space: KeySpace | None) -> None:
        self._space = space
        self._deletes: list[GroupDelete] = []
        self._places: dict[tuple[str, int | None], int] = {}

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[PlannedFile]:
        """The files of batches, few of which are taken apart at a time: a row may have a thousand delete files.

        Raises:
            UnsupportedError: a file or one of its deletes is encrypted.
        """
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                yield from self._of_few(batch.slice(start, _ROWS_AT_ONCE))

    def _of_few(self, batch: pa.RecordBatch) -> Iterator[PlannedFile]:
        if "deletes" not in batch.schema.names:
            return (_planned_file(row, (), self._space) for row in batch.to_pylist())
        column = batch.column("deletes")
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_pylist()
        places = iter(self._places_of(column.flatten()))
        rows = zip(batch.drop_columns(["deletes"]).to_pylist(), lengths, strict=True)
        return (
            _planned_file(row, Part(self._deletes, PositionSet(islice(places, length))), self._space)
            for row, length in rows
        )

    def _places_of(self, deletes: pa.StructArray) -> list[int]:
        """Where each stands in the list, to which those are added that it has not yet."""
        names = [*zip(*(deletes.field(name).to_pylist() for name in ("file_path", "content_offset")), strict=True)]
        new = {name: position for position, name in enumerate(names) if name not in self._places}
        if new:
            self._places |= zip(new, range(len(self._deletes), len(self._deletes) + len(new)), strict=True)
            self._deletes += map(_delete, deletes.take(pa.array(new.values(), pa.int64())).to_pylist())
        return [self._places[name] for name in names]


def _planned_file(row: Mapping[str, Any], deletes: Sequence[GroupDelete], space: KeySpace | None) -> PlannedFile:
    refuse_encrypted_file(row)
    offsets = row["split_offsets"]
    values = {name: row[name] for name in (*_FILE_COLUMNS, DELETED_COUNT)}
    values |= {"partition": bytes(row["partition"]), "split_offsets": None if offsets is None else tuple(offsets)}
    return PlannedFile(
        file=GroupFile(**values),
        deletes=deletes,
        has_bad_size=row[HAS_BAD_SIZE],
        has_many_deletes=row[HAS_MANY_DELETES],
        ends=None if space is None else ends_of_row(row, space),
        stretch=row.get(STRETCH, 0),
    )


def ends_of_row(row: Mapping[str, Any], space: KeySpace) -> Ends:
    """What a file holds of the keys, by a row of `with_key_metrics`."""
    return ends_of(space, [_facts(row, field_id) for field_id in space.field_ids], row["record_count"])


def with_key_metrics(files: "DataFrame", space: KeySpace | None) -> "DataFrame":
    """Of the metrics only those of the order's columns, each in a column of its own: rows that are sorted stay small."""
    if space is None:
        return files
    known = [F.col(name).getItem(field_id).alias(column) for name, field_id, column in _metric_columns(space)]
    return files.select(*(F.col(name) for name in files.columns if name not in METRICS), *known)


def _narrowed_table(files: pa.Table, space: KeySpace | None) -> pa.Table:
    """The same of a table."""
    if space is None:
        return files
    narrowed = files.drop_columns([*METRICS])
    for name, field_id, column in _metric_columns(space):
        found = pc.map_lookup(files[name], pa.scalar(field_id, pa.int32()), "first")
        narrowed = narrowed.append_column(column, found)
    return narrowed


def _metric_columns(space: KeySpace) -> list[tuple[str, int, str]]:
    return [(name, field_id, _metric(name, field_id)) for field_id in space.field_ids for name in METRICS]


def _metric(name: str, field_id: int) -> str:
    return f"{name}_{field_id}"


def _facts(row: Mapping[str, Any], field_id: int) -> ColumnFacts:
    lower, upper, null_count, nan_count = (row[_metric(name, field_id)] for name in METRICS)
    return ColumnFacts(
        None if lower is None else bytes(lower), None if upper is None else bytes(upper), null_count, nan_count
    )


def _delete(row: Mapping[str, Any]) -> GroupDelete:
    values = {name: row[name] for name in GroupDelete.__struct_fields__}
    if values["key_metadata"] is not None:
        raise UnsupportedError(f"delete file {values['file_path']!r} is encrypted, which is not supported yet")
    ids = values["equality_ids"]
    values |= {"partition": bytes(values["partition"]), "equality_ids": None if ids is None else tuple(ids)}
    return GroupDelete(**values)
