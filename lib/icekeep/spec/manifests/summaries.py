"""Summaries of partition fields over the files of one manifest (spec, "Manifest Lists", `field_summary`)."""

import math
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from icekeep.spec.manifests.structs import FieldSummary
from icekeep.spec.ordering import java_order
from icekeep.spec.types import Type
from icekeep.spec.values import value_to_bytes


class PartitionSummarizer:
    """Takes partition tuples one by one and gives a summary of each field."""

    def __init__(self, types: Sequence[Type]) -> None:
        self._fields = [_FieldSummarizer(t) for t in types]

    def add(self, values: tuple[Any, ...]) -> None:
        for field, value in zip(self._fields, values, strict=True):
            field.add(value)

    def summaries(self) -> tuple[FieldSummary, ...]:
        return tuple(field.summary() for field in self._fields)


class _FieldSummarizer:
    def __init__(self, type_: Type) -> None:
        self._type = type_
        self._is_float = str(type_) in ("float", "double")
        self._contains_null = self._contains_nan = False
        self._lower: Any = None
        self._upper: Any = None

    def add(self, value: Any) -> None:
        if value is None:
            self._contains_null = True
        elif self._is_float and math.isnan(value):
            self._contains_nan = True
        elif self._lower is None:
            self._lower = self._upper = value
        else:
            key = self._order(value)
            if key < self._order(self._lower):
                self._lower = value
            elif key > self._order(self._upper):
                self._upper = value

    def summary(self) -> FieldSummary:
        bounds = [None if b is None else value_to_bytes(self._type, b) for b in (self._lower, self._upper)]
        return FieldSummary(
            contains_null=self._contains_null,
            contains_nan=self._contains_nan if self._is_float else None,
            lower_bound=bounds[0],
            upper_bound=bounds[1],
        )

    def _order(self, value: Any) -> Any:
        # -0.0 sorts below 0.0: a bound must not hide it (spec, "Manifest Lists", note 2).
        if self._is_float:
            return value, math.copysign(1.0, value)
        # Java's readers would skip files if UUIDs were bounded by their bytes.
        return java_order(value) if isinstance(value, UUID) else value
