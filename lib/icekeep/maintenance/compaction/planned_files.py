"""What a scan plans -> files with the reasons to rewrite them: few on the driver, many as a DataFrame."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import UnsupportedError
from icekeep.maintenance.compaction.candidates import (
    DELETED_COUNT,
    HAS_BAD_SIZE,
    HAS_MANY_DELETES,
    candidates,
    reasons_of_few,
    with_reasons,
)
from icekeep.maintenance.compaction.grouping import GroupRules, PlannedFile
from icekeep.maintenance.compaction.key_ranges import ColumnFacts, Ends, KeySpace, ends_of
from icekeep.maintenance.compaction.plan import GroupDelete, GroupFile
from icekeep.planning.scan.plan import FewFiles
from icekeep.planning.spark.session import F, refuse_encrypted_file
from icekeep.spec.collections import Part, PositionSet, narrowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    rows = zip(files.to_pylist(), _deletes_of_few(few, chosen.tolist()), strict=True)
    yield from (_planned_file(row, deletes, rules.space) for row, deletes in rows)


def _deletes_of_few(few: FewFiles, chosen: Sequence[int]) -> Iterator[Sequence[GroupDelete]]:
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
