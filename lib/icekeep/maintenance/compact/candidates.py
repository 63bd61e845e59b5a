"""What a scan plans -> files with the reasons to rewrite each: few on the driver, many as a DataFrame.

Two reasons are those of a file by itself. Its size; and its deletes: `delete-file-threshold` or more of them reach the file, and
one at least; or `delete-ratio-threshold` or more of its rows are deleted by vectors and delete files that are for this file
alone, as they or their path bounds say (`reach.own_path`): where bounds are wrong, a file is rewritten that need not be, or is
not. Deletes of positions that are older than the file cannot name it and are not counted, so that what was rewritten to get rid
of them is not rewritten again. Deleted rows are those that the same vectors and delete files delete.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.maintenance.compact.grouping import GroupRules, PlannedFile
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.order import ColumnFacts, Ends, KeySpace, ends_of
from icekeep.maintenance.compact.plan import CandidateColumns, GroupDelete, GroupFile, group_delete, sort_numbers
from icekeep.maintenance.rewrite.options import FileSizes
from icekeep.planning.deletes import EVERY_PAIR, ReachingDeletes
from icekeep.planning.scan.plan import (
    FewFiles,
    Scan,
    few_files,
    planned_files,
    planned_files_with_deletes,
    refuse_encrypted_file,
)
from icekeep.planning.spark.rows import arrow_dataframe
from icekeep.planning.spark.session import F, SparkSource, limits_of, started
from icekeep.spec.collections import NO_POSITIONS, Part, PositionSet, narrowed
from icekeep.spec.manifests.structs import FileContent

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HAS_BAD_SIZE = "has_bad_size"
HAS_MANY_DELETES = "has_many_deletes"
DELETED_COUNT = "deleted_count"
RANGE = "range_number"
"""Columns of planned files besides those of their entries."""

METRICS = ("lower_bounds", "upper_bounds", "null_value_counts", "nan_value_counts")
_FILE_COLUMNS = tuple(name for name in GroupFile.__struct_fields__ if name not in ("deletes", DELETED_COUNT))
_ROWS_AT_ONCE = 50


def planned_candidates(
    scan: Scan, spark: SparkSource, rules: GroupRules, only: pa.Table | None = None
) -> "CandidateColumns | DataFrame":
    """The files that may be rewritten: for binpack those that have a reason, else all.

    Args:
        only: the files that may be, by `file_path`; with a column `RANGE` of the groups of a saved plan, whose order they get.
            Many files have its other columns, too.

    Returns:
        Few files, or of many the rows that `ManyPlannedFiles` reads.

    Raises:
        UnsupportedError: of few files, one of them, or of their deletes, is encrypted.
    """
    limits, deletes = limits_of(spark), bool(scan.deletes.opened)
    # An order makes an object of each file.
    limit = limits.entries_count if rules.strategy.ordering is not None else limits.matched_entries_count
    few = few_files(scan, limit, file_columns(rules.space), deletes=deletes, max_pairs=EVERY_PAIR)
    if few is not None:
        return few_candidates(few, rules, only)
    files = (planned_files_with_deletes if deletes else planned_files)(scan, spark, file_columns(rules.space))
    if only is not None:
        files = files.join(F.broadcast(arrow_dataframe(started(spark), only)), "file_path")
    known = _with_reasons(with_key_metrics(files, rules.space), rules.sizes, rules.options)
    if rules.strategy.ordering is not None or rules.options.rewrite_all:
        return known
    return known.where(F.col(HAS_BAD_SIZE) | F.col(HAS_MANY_DELETES))


def file_columns(space: KeySpace | None) -> tuple[str, ...]:
    """The columns of data files' entries that planning reads."""
    return (*_FILE_COLUMNS, "key_metadata", *(() if space is None else METRICS))


def _with_reasons(files: "DataFrame", sizes: FileSizes, options: RewriteDataFilesOptions) -> "DataFrame":
    """The files with three more columns; without a column `deletes` no file has any.

    As expressions of Spark, and not by `reasons_of_few` in a task: most files ask for nothing, and are left out before a row of
    theirs is shuffled or crosses to Python.
    """
    size, records = F.col("file_size_in_bytes"), F.col("record_count")
    bad_size = (size < sizes.min_bytes) | (size > sizes.max_bytes)
    if "deletes" not in files.columns:
        none, no_rows = F.lit(False).alias(HAS_MANY_DELETES), F.lit(0).cast("long").alias(DELETED_COUNT)
        return files.select("*", bad_size.alias(HAS_BAD_SIZE), none, no_rows)
    since, path = F.coalesce(F.col("file_sequence_number"), F.lit(0)), F.col("file_path").cast("binary")

    def may_apply(delete: "Column") -> "Column":
        return (delete.content != int(FileContent.POSITION_DELETES)) | (delete.sequence_number >= since)

    def is_own(delete: "Column") -> "Column":
        own_path = F.coalesce(delete.referenced_data_file.cast("binary"), delete.sole_path)
        return (delete.content == int(FileContent.POSITION_DELETES)) & (own_path == path)

    own = F.filter("deletes", is_own)
    total = F.aggregate(own, F.lit(0).cast("long"), lambda total, delete: total + delete.record_count)
    deleted, known = F.col(DELETED_COUNT), files.columns
    # Multiplied rather than divided: a file may have no rows.
    too_many = (deleted > 0) & (deleted >= records * options.delete_ratio_threshold)
    many = (F.size(F.filter("deletes", may_apply)) >= options.delete_file_threshold) | too_many
    files = files.withColumn(DELETED_COUNT, F.least(total, records))
    return files.select(*known, bad_size.alias(HAS_BAD_SIZE), many.alias(HAS_MANY_DELETES), deleted)


def reasons_of_few(few: FewFiles, sizes: FileSizes, options: RewriteDataFilesOptions) -> dict[str, NDArray[Any]]:
    """The same of few files: the values of each of the three columns."""
    size, records = few.files["file_size_in_bytes"].to_numpy(), few.files["record_count"].to_numpy()
    many, deleted = np.zeros(len(records), np.bool_), np.zeros(len(records), np.int64)
    reaching = few.reaching
    if reaching is not None and reaching.deletes.num_rows:
        counts = _counts_of_runs(reaching, pc.fill_null(few.files["file_sequence_number"], 0).to_numpy())
        before = np.cumsum(np.concatenate([[0], counts]))
        deletes_counts = before[reaching.offsets[1:]] - before[reaching.offsets[:-1]]
        deleted = np.minimum(reaching.own_record_counts(few.files["file_path"]), records)
        too_many = (deleted > 0) & (deleted >= records * options.delete_ratio_threshold)
        many = (deletes_counts >= options.delete_file_threshold) | too_many
    bad_size = (size < sizes.min_bytes) | (size > sizes.max_bytes)
    return {HAS_BAD_SIZE: bad_size, HAS_MANY_DELETES: many, DELETED_COUNT: deleted}


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
    are_of_positions = reaching.deletes["content"].to_numpy() == FileContent.POSITION_DELETES
    return np.where(are_of_positions[starts], stops - firsts, stops - starts)


def few_candidates(few: FewFiles, rules: GroupRules, only: pa.Table | None = None) -> CandidateColumns:
    """As `planned_candidates`, of few files, in the order in which they are packed."""
    reasons = reasons_of_few(few, rules.sizes, rules.options)
    may_go = np.ones(few.files.num_rows, np.bool_)
    if rules.strategy.ordering is None and not rules.options.rewrite_all:
        may_go = reasons[HAS_BAD_SIZE] | reasons[HAS_MANY_DELETES]
    places = np.empty(0, np.int64)
    if only is not None:
        # Where a saved plan names a file twice, the last one counts.
        found = pc.index_in(few.files["file_path"], value_set=only["file_path"].combine_chunks()[::-1])
        may_go &= found.is_valid().to_numpy()
        places = len(only) - 1 - pc.fill_null(found, 0).to_numpy().astype(np.int64)
    chosen = np.flatnonzero(may_go)
    _refuse_encrypted(few, chosen)
    is_saved = only is not None and RANGE in only.column_names
    chosen = chosen[np.argsort(places[chosen], kind="stable") if is_saved else _order(few.files, chosen)]
    files, space = few.files.take(pa.array(chosen)), rules.space
    if space is not None:
        for name, field_id, column in _metric_columns(space):
            found = pc.map_lookup(files[name], pa.scalar(field_id, pa.int32()), "first")
            files = files.append_column(column, found)
        files = files.drop_columns([*METRICS])
    for name, values in reasons.items():
        files = files.append_column(name, pa.array(values[chosen]))
    ranges = only[RANGE].to_numpy()[places[chosen]] if only is not None and is_saved else None
    return CandidateColumns(files, chosen, few.reaching, ranges)


def _order(files: pa.Table, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order of some files by spec, partition and path."""
    own = files.select(["spec_id", "partition", "file_path"]).take(pa.array(chosen))
    by_path = pc.sort_indices(own["file_path"]).to_numpy()
    return by_path[np.lexsort((sort_numbers(own["partition"])[by_path], own["spec_id"].to_numpy()[by_path]))]


def _refuse_encrypted(few: FewFiles, chosen: NDArray[np.int64]) -> None:
    """Raise `UnsupportedError` where a file, or a delete file that reaches one, is encrypted."""
    reaching = few.reaching
    if reaching is not None:
        encrypted = np.flatnonzero(reaching.deletes["key_metadata"].is_valid().to_numpy())
        if len(encrypted):
            used = PositionSet.union(NO_POSITIONS, *map(reaching.positions_of_row, chosen.tolist()))
            for place in encrypted[[place in used for place in encrypted.tolist()]][:1].tolist():
                group_delete(reaching.deletes.slice(place, 1).to_pylist()[0])
    for number in np.flatnonzero(few.files["key_metadata"].is_valid().to_numpy()[chosen])[:1].tolist():
        refuse_encrypted_file(few.files.slice(chosen[number], 1).to_pylist()[0])


def few_planned_files(columns: CandidateColumns, space: KeySpace | None) -> Iterator[PlannedFile]:
    """Columns as objects, whose delete files are parts of one list, which has what reaches any of them."""
    reached: Iterable[Sequence[GroupDelete]] = repeat((), len(columns.rows))
    if columns.reaching is not None:
        rows = range(columns.reaching.deletes.num_rows)
        used, parts = narrowed(rows, [*map(columns.reaching.positions_of_row, columns.rows.tolist())])
        deletes = [*map(group_delete, columns.reaching.deletes.take(pa.array(used, pa.int64())).to_pylist())]
        reached = (Part(deletes, positions) for positions in parts)
    ranges = repeat(0) if columns.ranges is None else columns.ranges.tolist()
    for row, some, number in zip(columns.files.to_pylist(), reached, ranges, strict=False):
        yield _planned_file({**row, RANGE: number}, some, space)


class ManyPlannedFiles:
    """Makes planned files of rows of `planned_candidates`, those of one task; their delete files are parts of one list."""

    def __init__(self, space: KeySpace | None) -> None:
        self._space = space
        self._deletes: list[GroupDelete] = []
        self._places: dict[tuple[str, int | None], int] = {}

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[PlannedFile]:
        """The files of batches, few of which are taken apart at a time: a row may have a thousand delete files.

        Raises:
            UnsupportedError: a file or one of its deletes is encrypted.
        """
        for whole in batches:
            for start in range(0, whole.num_rows, _ROWS_AT_ONCE):
                batch = whole.slice(start, _ROWS_AT_ONCE)
                if "deletes" not in batch.schema.names:
                    yield from (_planned_file(row, (), self._space) for row in batch.to_pylist())
                    continue
                column = batch.column("deletes")
                lengths = pc.fill_null(pc.list_value_length(column), 0).to_pylist()
                places = iter(self._places_of(column.flatten()))
                for row, length in zip(batch.drop_columns(["deletes"]).to_pylist(), lengths, strict=True):
                    yield _planned_file(row, Part(self._deletes, PositionSet(islice(places, length))), self._space)

    def _places_of(self, deletes: pa.StructArray) -> list[int]:
        """The position of each in the list, which takes in those that it lacks."""
        names = [*zip(*(deletes.field(name).to_pylist() for name in ("file_path", "content_offset")), strict=True)]
        new = {name: position for position, name in enumerate(names) if name not in self._places}
        if new:
            self._places |= zip(new, range(len(self._deletes), len(self._deletes) + len(new)), strict=True)
            self._deletes += map(group_delete, deletes.take(pa.array(new.values(), pa.int64())).to_pylist())
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
        range_number=row.get(RANGE, 0),
    )


def with_key_metrics(files: "DataFrame", space: KeySpace | None) -> "DataFrame":
    """Of the metrics only those of the order's columns, each in a column of its own: rows that are sorted stay small."""
    if space is None:
        return files
    known = [F.col(name).getItem(field_id).alias(column) for name, field_id, column in _metric_columns(space)]
    return files.select(*(F.col(name) for name in files.columns if name not in METRICS), *known)


def ends_of_row(row: Mapping[str, Any], space: KeySpace) -> Ends:
    """What a file holds of the keys, by a row of `with_key_metrics`."""
    facts = []
    for column in space.columns:
        lower, upper, null_count, nan_count = (row[f"{name}_{column.field_id}"] for name in METRICS)
        lower, upper = (None if bound is None else bytes(bound) for bound in (lower, upper))
        facts.append(ColumnFacts(lower, upper, null_count, nan_count))
    return ends_of(space, facts, row["record_count"])


def _metric_columns(space: KeySpace) -> list[tuple[str, int, str]]:
    ids = [column.field_id for column in space.columns]
    return [(name, field_id, f"{name}_{field_id}") for field_id in ids for name in METRICS]
