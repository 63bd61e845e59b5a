"""What a scan plans -> files with the reasons to rewrite them: few on the driver, many as a DataFrame."""

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icekeep.errors import UnsupportedError
from icekeep.maintenance.compaction.candidates import (
    HAS_BAD_SIZE,
    HAS_MANY_DELETES,
    candidates,
    reasons_of_few,
    with_reasons,
)
from icekeep.maintenance.compaction.grouping import GroupRules, PlannedFile
from icekeep.maintenance.compaction.key_ranges import ColumnFacts, KeySpace, ends_of
from icekeep.maintenance.compaction.plan import GroupDelete, GroupFile
from icekeep.planning.scan import FewFiles, refuse_encrypted_file

_FILE_COLUMNS = tuple(name for name in GroupFile.__struct_fields__ if name != "deletes")
_METRICS = ("lower_bounds", "upper_bounds", "null_value_counts", "nan_value_counts")


def file_columns(space: KeySpace | None) -> tuple[str, ...]:
    """What is asked of the entries of data files."""
    return (*_FILE_COLUMNS, "key_metadata", *(() if space is None else _METRICS))


def few_planned_files(few: FewFiles, rules: GroupRules, only: Collection[str] | None = None) -> Iterator[PlannedFile]:
    """The files that may be rewritten: for binpack those that have a reason, else all.

    Args:
        only: paths of the files that may be rewritten; null for all.

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
    reaching = few.reaching
    deletes = [] if reaching is None else reaching.deletes.to_pylist()

    @cache
    def delete(position: int) -> GroupDelete:
        return _delete(deletes[position])

    for number, row in zip(chosen.tolist(), files.to_pylist(), strict=True):
        positions = [] if reaching is None else reaching.of_row(number)
        yield _planned_file(row, tuple(map(delete, positions)), rules.space)


def many_planned_files(files: DataFrame, rules: GroupRules) -> DataFrame:
    """The same as a DataFrame of `planned_files`, whose rows are for `planned_file`."""
    known = with_reasons(_narrowed(files, rules.space), rules.sizes, rules.options)
    if rules.strategy.ordering is not None:
        return known
    return candidates(known, rewrite_all=rules.options.rewrite_all)


def planned_file(row: Mapping[str, Any], space: KeySpace | None) -> PlannedFile:
    """A row of `many_planned_files`; raises `UnsupportedError` if the file or one of its deletes is encrypted."""
    return _planned_file(row, tuple(_delete(delete) for delete in row.get("deletes") or ()), space)


def _planned_file(row: Mapping[str, Any], deletes: tuple[GroupDelete, ...], space: KeySpace | None) -> PlannedFile:
    refuse_encrypted_file(row)
    offsets = row["split_offsets"]
    values = {name: row[name] for name in _FILE_COLUMNS}
    values |= {"partition": bytes(row["partition"]), "split_offsets": None if offsets is None else tuple(offsets)}
    ends = None
    if space is not None:
        facts = [_facts(row, field_id) for field_id in space.field_ids]
        ends = ends_of(space, facts, row["record_count"])
    return PlannedFile(
        file=GroupFile(**values),
        deletes=deletes,
        has_bad_size=row[HAS_BAD_SIZE],
        has_many_deletes=row[HAS_MANY_DELETES],
        ends=ends,
    )


def _narrowed(files: DataFrame, space: KeySpace | None) -> DataFrame:
    """Of the metrics only those of the order's columns, each in a column of its own: rows that are sorted stay small."""
    if space is None:
        return files
    known = [F.col(name).getItem(field_id).alias(column) for name, field_id, column in _metric_columns(space)]
    return files.select(*(F.col(name) for name in files.columns if name not in _METRICS), *known)


def _narrowed_table(files: pa.Table, space: KeySpace | None) -> pa.Table:
    """The same of a table."""
    if space is None:
        return files
    narrowed = files.drop_columns([*_METRICS])
    for name, field_id, column in _metric_columns(space):
        found = pc.map_lookup(files[name], pa.scalar(field_id, pa.int32()), "first")
        narrowed = narrowed.append_column(column, found)
    return narrowed


def _metric_columns(space: KeySpace) -> list[tuple[str, int, str]]:
    return [(name, field_id, _metric(name, field_id)) for field_id in space.field_ids for name in _METRICS]


def _metric(name: str, field_id: int) -> str:
    return f"{name}_{field_id}"


def _facts(row: Mapping[str, Any], field_id: int) -> ColumnFacts:
    lower, upper, null_count, nan_count = (row[_metric(name, field_id)] for name in _METRICS)
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
