"""How long it takes to plan a filter on one partition: what clustered manifests are for."""

from collections.abc import Sequence
from typing import Any

from icekeep.planning.entries import EntryFilter, SpecFilter, folded, may_hold_matches
from icekeep.planning.scan.plan import COLUMNS, ScanTotals
from icekeep.planning.spark.session import SparkSource
from icekeep.runtime import Runtime
from icekeep.spec.filters.expressions import BoundPredicate, Expression, Operation, conjunction
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.types import NestedField, StructType
from icekeep.storage.base import Storage

_TRIES = 2


def planning_time_ms(
    manifests: Sequence[ManifestFile],
    spec_id: int,
    partition: StructType,
    values: Sequence[Any],
    storage: Storage,
    spark: SparkSource,
    runtime: Runtime,
) -> int:
    """Plan a filter on one partition tuple, the better of two tries: the first one warms up what the second one needs.

    Raises:
        InvalidTableError, MissingFileError: a manifest cannot be read whole.
    """
    pairs = zip(partition.fields, values, strict=True)
    matches = conjunction(_is(field, value) for field, value in pairs)
    spec = SpecFilter(partition, matches)
    wanted = EntryFilter(specs={spec_id: spec})
    took = []
    for _ in range(_TRIES):
        began_ms = runtime.monotonic_ms()
        opened = [manifest for manifest in manifests if may_hold_matches(manifest, spec)]
        folded(storage, spark, opened, wanted, COLUMNS, ScanTotals)
        took.append(runtime.monotonic_ms() - began_ms)
    return min(took)


def _is(field: NestedField, value: Any) -> Expression:
    if value is None:
        return BoundPredicate(Operation.IS_NULL, field)
    if value != value:
        return BoundPredicate(Operation.IS_NAN, field)
    return BoundPredicate(Operation.EQ, field, (value,))
