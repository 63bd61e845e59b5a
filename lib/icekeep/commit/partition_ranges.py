"""Which partitions the files of a manifest may have, by its row of the manifest list alone."""

from collections.abc import Sequence
from typing import Any

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.bounds import are_crossed
from icekeep.spec.manifests.structs import FieldSummary, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.types import DOUBLE, FLOAT, OPAQUE, UUID, NestedField, PrimitiveType
from icekeep.spec.values import value_from_bytes


class PartitionRanges:
    """The partitions that the summaries of a manifest leave possible; all where it has none."""

    def __init__(self, manifest: ManifestFile, base: TableMetadata) -> None:
        self._ranges: list[_Range] = []
        if manifest.partitions is not None:
            fields = base.partition_type(manifest.partition_spec_id).fields
            self._ranges = [_Range(f, summary) for f, summary in zip(fields, manifest.partitions, strict=False)]

    @property
    def first_bounds(self) -> tuple[Any, Any]:
        """The least and the greatest value of the first partition field that may be there; `None` where it is not known."""
        return (self._ranges[0].lower, self._ranges[0].upper) if self._ranges else (None, None)

    def may_hold(self, values: Sequence[Any]) -> bool:
        """Whether a file of the partition with these values may be there."""
        return all(one.may_hold(value) for one, value in zip(self._ranges, values, strict=False))


class _Range:
    """The values that a field summary leaves possible: all where it does not tell, or not in an order that writers share."""

    def __init__(self, field: NestedField, summary: FieldSummary) -> None:
        self.may_hold_null = summary.contains_null
        is_ordered = isinstance(field.type, PrimitiveType) and field.type not in (FLOAT, DOUBLE, UUID, OPAQUE)
        is_bounded = summary.lower_bound is not None or summary.upper_bound is not None
        # Both bounds are null where all values are; where they cannot be, the summary tells nothing.
        self.may_hold_values = is_bounded or not is_ordered or not summary.contains_null
        self.lower = _decoded(field, summary.lower_bound) if is_ordered else None
        self.upper = _decoded(field, summary.upper_bound) if is_ordered else None
        if are_crossed(self.lower, self.upper):
            self.lower = self.upper = None

    def may_hold(self, value: Any) -> bool:
        if value is None:
            return self.may_hold_null
        above = self.lower is None or bool(self.lower <= value)
        return self.may_hold_values and above and (self.upper is None or bool(value <= self.upper))


def _decoded(field: NestedField, bound: bytes | None) -> Any:
    if bound is None:
        return None
    try:
        return value_from_bytes(field.type, bound)
    except (InvalidTableError, UnsupportedError):
        return None
