"""Histories of rows that PyIceberg carries out by its own writers; columns and partition fields are changed by icekeep.

It deletes rows by writing files anew, and writes Parquet alone, in format versions 1 and 2.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from pyiceberg.expressions import In
from pyiceberg.partitioning import PartitionSpec as ForeignSpec

from icekeep.catalog.base import Table
from icekeep.spec.partitioning import build_spec, spec_to_json
from icekeep.spec.schema import Schema
from kit.columns import pyiceberg_schema, table_of
from kit.lake import Lake
from kit.row_model import Place
from kit.row_texts import row_texts

_NUMBERS = count(1)


class ByPyIceberg:
    """An interpreter of histories (`row_histories.Interpreter`), of those without equality deletes."""

    finds_rows = True
    adds_defaults = False

    def __init__(self, lake: Lake) -> None:
        self.lake, self.name = lake, f"pyiceberg{next(_NUMBERS)}"
        self._catalog = lake.foreign_catalog()

    @property
    def table(self) -> Table:
        return self.lake.catalog.load(("db", self.name))

    def holds(self, value: Any, file_format: str) -> bool:
        """Not NaN: where that is a partition, PyIceberg does not find the rows that it is to write there."""
        return value == value

    def deletes(self, keys: Sequence[Sequence[Any]], file_format: str) -> bool:
        return False

    def create(self, schema: Schema, partition_by: Sequence[tuple[str, str]], version: int) -> None:
        spec = build_spec(schema, [(name, transform, None) for name, transform in partition_by])
        self._catalog.create_table(
            ("db", self.name),
            pyiceberg_schema(schema),
            partition_spec=ForeignSpec.model_validate_json(json.dumps(spec_to_json(spec))),
            properties={"format-version": str(version)},
        )

    def append(self, rows: Sequence[Mapping[str, Any]], file_format: str) -> None:
        schema = self.table.metadata.schema
        self._theirs.append(table_of(schema, list(map(dict, rows))))

    def delete_positions(self, ids: Iterable[int], file_format: str, scope: str, *, is_referenced: bool) -> None:
        self._theirs.delete(In("id", {*ids}))

    def delete_equal(
        self,
        names: Sequence[str],
        keys: Sequence[Sequence[Any]],
        place: Place,
        file_format: str,
        added: Sequence[Mapping[str, Any]],
    ) -> None:
        raise NotImplementedError("PyIceberg writes no equality deletes")

    def rows(self) -> Counter[str]:
        return row_texts(self.table.metadata.schema, self._theirs.scan().to_arrow().to_pylist())

    @property
    def _theirs(self) -> Any:
        return self._catalog.load_table(("db", self.name))
