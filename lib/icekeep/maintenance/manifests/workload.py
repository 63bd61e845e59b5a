"""The filters that a table is read with, as an order to sort its manifests by, and what they open. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence

from icekeep.planning.entries import bound_filter, data_manifests, select_manifests
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import (
    ALWAYS_TRUE,
    And,
    BoundPredicate,
    Expression,
    Operation,
    Or,
)
from icekeep.spec.filters.literals import is_comparable
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.filters.projections import project_inclusive
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Void

_ANY_MOMENT_MS = 0
"""`now` in a filter: which columns it names does not hang on it."""

_BOUNDING = frozenset(
    {
        Operation.LT,
        Operation.LT_EQ,
        Operation.GT,
        Operation.GT_EQ,
        Operation.EQ,
        Operation.IN,
        Operation.IS_NULL,
        Operation.IS_NAN,
        Operation.STARTS_WITH,
    }
)
"""What keeps a filter within a part of a column's values; `!=` and its like leave almost all of them."""


def sort_by_of_workload(filters: Sequence[str | Expression], schema: Schema, spec: PartitionSpec) -> tuple[str, ...]:
    """The columns that filters bound, those of the most filters first, as names to sort manifests by.

    A column that partition fields help to filter becomes those fields, in the order of the spec; another stays a column,
    to be sorted by its lower bounds. The other partition fields follow, so that manifests stay clustered by partition.
    Of OR a column counts that every side bounds.

    Args:
        filters: over the table's columns, as text or as unbound expressions.
        schema: the table's current one.
        spec: of the manifests that are to be sorted.

    Raises:
        ExpressionError, NotFoundError: a filter does not fit the schema.
    """
    counts: Counter[int] = Counter()
    predicates: list[BoundPredicate] = []
    for where in filters:
        expression = parse_where(where, _ANY_MOMENT_MS) if isinstance(where, str) else where
        bound = bind(expression, schema, [spec])
        counts.update(list(_bounded(bound)))
        predicates += _bounding(bound)
    # Of a Counter, ties are in the order of first appearance.
    names = [name for field_id, _ in counts.most_common() for name in _names(field_id, predicates, schema, spec)]
    rest = (field.name for field in spec.fields if not isinstance(field.transform, Void))
    return tuple(dict.fromkeys((*names, *rest)))


def manifests_opened(
    filters: Sequence[str | Expression], manifests: Sequence[ManifestFile], metadata: TableMetadata, now_ms: int
) -> list[int]:
    """How many data manifests a scan with each of the filters opens, of those that may have live files.

    Args:
        filters: over the table's columns, as text or as unbound expressions.
        now_ms: what `now` in their text is, in epoch milliseconds.

    Raises:
        ExpressionError, NotFoundError: a filter does not fit the current schema.
    """
    listed = [manifest for manifest in data_manifests(manifests) if manifest.may_have_live_files]
    counts = []
    for where in filters:
        rows = bound_filter(where, metadata, metadata.schema, now_ms)
        counts.append(len(select_manifests(metadata, metadata.schema, listed, rows).opened))
    return counts


def _bounded(bound: Expression) -> dict[int, None]:
    """The ids of the columns that a filter bounds, each once, in the order of first appearance."""
    match bound:
        case BoundPredicate():
            return dict.fromkeys(predicate.field.field_id for predicate in _bounding(bound))
        case And(left=left, right=right):
            return _bounded(left) | _bounded(right)
        case Or(left=left, right=right):
            also = _bounded(right)
            return {field_id: None for field_id in _bounded(left) if field_id in also}
    return {}


def _bounding(bound: Expression) -> Iterator[BoundPredicate]:
    match bound:
        case BoundPredicate(operation=operation, field=field):
            if operation in _BOUNDING and is_comparable(field.type):
                yield bound
        case And(left=left, right=right) | Or(left=left, right=right):
            yield from _bounding(left)
            yield from _bounding(right)


def _names(field_id: int, predicates: Sequence[BoundPredicate], schema: Schema, spec: PartitionSpec) -> list[str]:
    """The partition fields that narrow one of the predicates on a column, else the column itself."""
    asked = [predicate for predicate in predicates if predicate.field.field_id == field_id]
    fields = [field for field in spec.fields if field.source_id == field_id]
    narrowing = [
        field.name
        for field in fields
        if any(_narrows(PartitionSpec(spec_id=spec.spec_id, fields=(field,)), p, schema) for p in asked)
    ]
    return narrowing or [schema.names_by_id[field_id]]


def _narrows(spec: PartitionSpec, predicate: BoundPredicate, schema: Schema) -> bool:
    return project_inclusive(predicate, spec, schema) != ALWAYS_TRUE
