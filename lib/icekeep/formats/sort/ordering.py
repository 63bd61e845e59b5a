"""How the rows of new files are ordered: by a sort order, or along a curve through several columns."""

from typing import Literal

import msgspec

from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.sorting import SortField
from icekeep.spec.units import MAX_INT

CurveKind = Literal["zorder", "hilbert"]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A space-filling curve: rows that are near each other on it are near each other in every one of its columns.

    Attributes:
        kind: `zorder` interleaves the columns' bits, `hilbert` never jumps.
        column_ids: field ids of its columns, one at least.
        var_length_contribution: the bytes that a string or binary column gives (option `var-length-contribution`).
        max_output_bytes: the most bytes of a z-value (option `max-output-size`).
    """

    kind: CurveKind
    column_ids: tuple[int, ...]
    var_length_contribution: int = 8
    max_output_bytes: int = MAX_INT


class Ordering(msgspec.Struct, frozen=True, kw_only=True):
    """The order of rows: partitions of `partition_by` one after the other, within one by `fields` or along `curve`.

    Attributes:
        partition_by: the spec by which rows shall lie together; null where all rows are of one partition.
        fields: the keys of a sort order, whose columns are of the schema that is written.
        curve: in place of `fields`.
    """

    partition_by: PartitionSpec | None = None
    fields: tuple[SortField, ...] = ()
    curve: Curve | None = None


class KeyRange(msgspec.Struct, frozen=True, kw_only=True):
    """The rows whose keys are `lower` or greater and less than `upper`; null is no limit."""

    lower: bytes | None = None
    upper: bytes | None = None
