"""Histories of rows that Iceberg Java carries out by its own writers; columns and partition fields are changed by icekeep."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from icekeep.catalog.base import Table
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.partitioning import build_spec
from icekeep.spec.schema import Schema
from kit.java import IcebergJava
from kit.java_row_deletes import JavaTable
from kit.java_values import to_wire
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.row_model import Place

_NUMBERS = count(1)


class ByJava:
    """An interpreter of histories (`row_histories.Interpreter`). What Java cannot do is said here alone."""

    def __init__(self, lake: Lake, java: IcebergJava) -> None:
        self.lake, self.name = lake, f"generated{next(_NUMBERS)}"
        self.java_table = JavaTable(java, f"local.db.{self.name}")
        self._compared: set[int] = set()

    @property
    def table(self) -> Table:
        return self.lake.catalog.load(("db", self.name))

    def holds(self, value: Any, file_format: str) -> bool:
        """Not -0.0 in ORC: Java's reader takes the two zeros of a batch for the first."""
        return file_format != "ORC" or not isinstance(value, float) or repr(value) != "-0.0"

    def deletes(self, keys: Sequence[Sequence[Any]], file_format: str) -> bool:
        """Not by NaN and another value at once: where the other is out of a data file's bounds, Java skips the delete."""
        columns = [{repr(value) for value in column if value is not None} for column in zip(*keys, strict=True)]
        is_held = all(self.holds(value, file_format) for key in keys for value in key)
        return is_held and not any("nan" in column and len(column) > 1 for column in columns)

    @property
    def finds_rows(self) -> bool:
        return not self.compares_lost_columns

    @property
    def compares_lost_columns(self) -> bool:
        """Whether rows were deleted by columns that are no longer there: Java's Spark reads that, its own reader does not."""
        return bool(self._compared - self.table.metadata.schema.fields_by_id.keys())

    @property
    def adds_defaults(self) -> bool:
        """Not where there are ORC files, which lack the column: there Java reads no defaults."""
        files = [entry.data_file for entry in live_entries(self.table)]
        return not any(file.file_format.upper() == "ORC" and file.content is FileContent.DATA for file in files)

    def create(self, schema: Schema, partition_by: Sequence[tuple[str, str]], version: int) -> None:
        spec = build_spec(schema, [(name, transform, None) for name, transform in partition_by])
        self.java_table.create(schema, spec, version)

    def append(self, rows: Sequence[Mapping[str, Any]], file_format: str) -> None:
        self._next(file_format).append(rows, files=2)

    def delete_positions(self, ids: Iterable[int], file_format: str, scope: str, *, is_referenced: bool) -> None:
        table = self._next(file_format)
        if self.table.metadata.format_version == 3:
            table.delta(table.vectors(*ids))
        else:
            table.delta(table.positions(*ids, scope=scope, referenced=is_referenced))

    def delete_equal(
        self,
        names: Sequence[str],
        keys: Sequence[Sequence[Any]],
        place: Place,
        file_format: str,
        added: Sequence[Mapping[str, Any]],
    ) -> None:
        metadata, table = self.table.metadata, self._next(file_format)
        self._compared |= {metadata.schema.field(name).field_id for name in names}
        types = metadata.partition_type(place.spec_id).fields
        partition = [to_wire(field.type, value) for field, value in zip(types, place.partition, strict=True)]
        parts = [table.adding(added)] if added else []
        table.delta(*parts, table.equality(names, *keys, spec_id=place.spec_id, partition=partition))

    def rows(self) -> Counter[str]:
        return self.java_table.rows_of_spark() if self.compares_lost_columns else self.java_table.rows()

    def _next(self, file_format: str) -> JavaTable:
        """The table, set to write the next files in a format."""
        self.java_table.file_format = file_format.lower()
        return self.java_table
