"""The partitions of a manifest's live entries, against the summaries in the manifest list."""

import math
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.planning.partition_columns import distinct_partitions
from icekeep.spec.manifests.structs import FieldSummary
from icekeep.spec.types import StructType, Type
from icekeep.spec.values import value_from_bytes


class Partitions:
    """Takes partition tuples, and keeps of each field what a summary must hold."""

    def __init__(self, partition: StructType) -> None:
        self._partition = partition
        self._fields = [_Field() for _ in partition.fields]

    def add(self, partitions: pa.StructArray) -> None:
        """Take in the partitions of some live entries."""
        if not self._fields:
            return
        tuples, _ = distinct_partitions(partitions)
        for values in tuples:
            for field, value in zip(self._fields, values, strict=True):
                field.add(value)

    def against(self, summaries: tuple[FieldSummary, ...] | None) -> Iterator[str]:
        """What is wrong in the summaries of a list; none at all are not wrong."""
        if summaries is None:
            return
        if len(summaries) != len(self._fields):
            yield f"it has {len(summaries)} partition summaries, its spec {len(self._fields)} fields"
            return
        for found, summary, field in zip(self._fields, summaries, self._partition.fields, strict=True):
            for problem in found.against(summary, field.type):
                yield f"partition field {field.name!r}: {problem}"


class _Field:
    def __init__(self) -> None:
        self._has_null = self._has_nan = False
        self._least: Any = None
        self._greatest: Any = None

    def add(self, value: Any) -> None:
        if value is None:
            self._has_null = True
        elif isinstance(value, float) and math.isnan(value):
            self._has_nan = True
        elif isinstance(value, UUID):
            # Engines order UUIDs in two ways; only what both agree on could be judged.
            return
        elif self._least is None:
            self._least = self._greatest = value
        else:
            self._least, self._greatest = min(self._least, value), max(self._greatest, value)

    def against(self, summary: FieldSummary, type_: Type) -> Iterator[str]:
        if self._has_null and not summary.contains_null:
            yield "contains_null is false, and a partition is null"
        if self._has_nan and summary.contains_nan is False:
            yield "contains_nan is false, and a partition is NaN"
        try:
            lower, upper = (
                None if bound is None else value_from_bytes(type_, bound)
                for bound in (summary.lower_bound, summary.upper_bound)
            )
        except InvalidTableError as error:
            yield f"its bounds cannot be read ({error.message})"
            return
        except UnsupportedError:
            return
        if self._least is None:
            return
        if lower is None or upper is None:
            yield "it has no bounds, and partitions that are not null"
        elif _is_nan(lower) or _is_nan(upper):
            # Old writers took a NaN for a bound, and readers prune nothing by it.
            return
        elif lower > self._least or upper < self._greatest:
            yield f"its bounds are {lower!r} and {upper!r}, the partitions {self._least!r} to {self._greatest!r}"


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
