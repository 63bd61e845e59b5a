"""Filters over manifests: which of them a job rewrites, by what the manifest list says (`rewriteIf` of Iceberg). Pure.

The language is that of `where` over rows; the columns are those of `COLUMNS`. A null matches no comparison.

How long it takes to plan a filter on one partition: what clustered manifests are for.

The filters that a table is read with, as an order to sort its manifests by, and what they open. Pure.

What a rewrite of manifests is asked for: arguments of Iceberg's `rewrite_manifests`, and ours.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from icekeep.errors import ExpressionError, NotFoundError, UsageError, argument
from icekeep.maintenance.jobs import CommittingRequest, takes
from icekeep.maintenance.manifests.options import RewriteManifestsOptions
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.saved_plans import GivenPlan
from icekeep.planning.entries import EntryFilter, SpecFilter, folded
from icekeep.planning.scan.plan import (
    bound_filter,
    data_manifests,
    may_hold_matches,
    refuse_encrypted,
    select_manifests,
)
from icekeep.planning.scan.report import TOTALLED_COLUMNS as COLUMNS_of_plan
from icekeep.planning.scan.report import ScanTotals
from icekeep.planning.spark.session import SparkSource
from icekeep.planning.transcode import PartitionPart, SortPart, sort_parts
from icekeep.runtime import Runtime
from icekeep.settings import ALL, is_all
from icekeep.spec.filters.binding import bind, is_comparable
from icekeep.spec.filters.evaluators import project_inclusive, row_matches
from icekeep.spec.filters.expressions import (
    ALWAYS_TRUE,
    AlwaysTrue,
    And,
    BoundPredicate,
    Expression,
    Operation,
    Or,
    conjunction,
)
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN
from icekeep.spec.transforms import Void
from icekeep.spec.types import INT, LONG, STRING, TIMESTAMPTZ, NestedField, PrimitiveType, StructType
from icekeep.storage.base import Storage

_MICROS_PER_MS = 1000


class _Column(msgspec.Struct, frozen=True):
    type: PrimitiveType
    value: Callable[[ManifestFile, TableMetadata], Any]
    required: bool = False


def _said(name: str, type_: PrimitiveType, *, required: bool = False) -> _Column:
    return _Column(type_, lambda manifest, _: getattr(manifest, name), required)


def _added_at(manifest: ManifestFile, metadata: TableMetadata) -> int | None:
    if manifest.added_snapshot_id is None:
        return None
    snapshot = metadata.snapshots_by_id.get(manifest.added_snapshot_id)
    return None if snapshot is None else snapshot.timestamp_ms * _MICROS_PER_MS


_COLUMNS = {
    "manifest_path": _said("manifest_path", STRING, required=True),
    "manifest_length": _said("manifest_length", LONG, required=True),
    "partition_spec_id": _said("partition_spec_id", INT, required=True),
    "content": _Column(STRING, lambda manifest, _: manifest.content.name.lower(), required=True),
    "sequence_number": _said("sequence_number", LONG),
    "min_sequence_number": _said("min_sequence_number", LONG),
    "added_snapshot_id": _said("added_snapshot_id", LONG),
    "added_at": _Column(TIMESTAMPTZ, _added_at),
    "added_files_count": _said("added_files_count", INT),
    "existing_files_count": _said("existing_files_count", INT),
    "deleted_files_count": _said("deleted_files_count", INT),
    "live_files_count": _said("live_files_count", INT),
    "added_rows_count": _said("added_rows_count", LONG),
    "existing_rows_count": _said("existing_rows_count", LONG),
    "deleted_rows_count": _said("deleted_rows_count", LONG),
}
_SCHEMA = Schema(
    fields=tuple(
        NestedField(field_id=field_id, name=name, type=column.type, required=column.required)
        for field_id, (name, column) in enumerate(_COLUMNS.items(), start=1)
    )
)

COLUMNS = tuple(_COLUMNS)
"""What a filter over manifests may name.

Those of a manifest list (spec, "Manifest Lists"), with `content` as 'data' or 'deletes'; `live_files_count`, the files
that are added or existing; and `added_at`, when the snapshot `added_snapshot_id` was made, null once it has expired.
"""


def manifests_that_match(
    where: str | Expression, manifests: Sequence[ManifestFile], metadata: TableMetadata, now_ms: int
) -> list[ManifestFile]:
    """The manifests that a filter matches, in their order: `manifest_length < 1000000 AND added_at < now - 1d`.

    Args:
        where: a filter over `COLUMNS`, as text or as an unbound expression.
        now_ms: what `now` in the text is, in epoch milliseconds.

    Raises:
        ExpressionError: the text is no filter, names a column that manifests do not have, or compares one with what it
            cannot be.
    """
    bound = _bound(where, now_ms)
    if isinstance(bound, AlwaysTrue):
        return list(manifests)
    return [manifest for manifest in manifests if row_matches(bound, _row(manifest, metadata))]


def _bound(where: str | Expression, now_ms: int) -> Expression:
    expression = parse_where(where, now_ms) if isinstance(where, str) else where
    try:
        return bind(expression, _SCHEMA)
    except NotFoundError as problem:
        column = problem.facts.get("column")
        raise ExpressionError(
            f"manifests have no column {column!r}; their columns are {', '.join(COLUMNS)}", column=column
        ) from problem


def _row(manifest: ManifestFile, metadata: TableMetadata) -> dict[int, Any]:
    values = (column.value(manifest, metadata) for column in _COLUMNS.values())
    return dict(enumerate(values, start=1))


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
        folded(storage, spark, opened, wanted, COLUMNS_of_plan, ScanTotals)
        took.append(runtime.monotonic_ms() - began_ms)
    return min(took)


def _is(field: NestedField, value: Any) -> Expression:
    if value is None:
        return BoundPredicate(Operation.IS_NULL, field)
    if value != value:
        return BoundPredicate(Operation.IS_NAN, field)
    return BoundPredicate(Operation.EQ, field, (value,))


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


class RewriteRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which manifests are to be rewritten, and how; `sort_by` and `workload` are not both given.

    A plan that was `given` says which, in place of the rest.
    """

    spec_ids: tuple[int, ...]
    where: str | Expression
    sort_by: tuple[str, ...] | None
    workload: tuple[str, ...]
    branch: str
    options: RewriteManifestsOptions
    given: GivenPlan | None = None

    def sort_of(self, metadata: TableMetadata, spec_id: int, content: ManifestContent) -> tuple[SortPart, ...]:
        """What the entries of a spec are clustered by; delete files by partitions alone, since bounds say nothing of them.

        Raises:
            NotFoundError: there is no such partition field or column, or the workload names one.
            UsageError: a name is there twice.
        """
        names: Sequence[str] | None = self.sort_by
        if self.workload:
            names = sort_by_of_workload(self.workload, metadata.schema, metadata.specs_by_id[spec_id])
        parts = sort_parts(names, metadata.partition_type(spec_id), metadata.schema)
        if content is ManifestContent.DATA:
            return parts
        named = [part for part in parts if isinstance(part, PartitionPart)]
        others = sort_parts(None, metadata.partition_type(spec_id), metadata.schema)
        return tuple(dict.fromkeys((*named, *others)))


class RewriteManifestsRequest(CommittingRequest, frozen=True, kw_only=True):
    """The arguments of `rewrite_manifests`, which says what each means."""

    spec_id: int | str | None = None
    sort_by: Sequence[str] | str | None = None
    where: str | Expression = ALWAYS_TRUE
    workload: Sequence[str] | str = ()
    use_caching: bool = False
    branch: str = MAIN
    options: Mapping[str, Any] | RewriteManifestsOptions | None = None


@takes(RewriteManifestsRequest)
def check_arguments(metadata: TableMetadata, request: RewriteManifestsRequest) -> None:
    """Hold the arguments against the table, before anything is read; raises what `checked_rules` raises."""
    checked_rules(metadata, request)


def checked_rules(metadata: TableMetadata, request: RewriteManifestsRequest) -> RewriteRules:
    """What the arguments come to for a table, before anything is read.

    Raises:
        ExpressionError: `where` or a filter of the workload is none.
        NotFoundError: the table has no such spec, partition field or column.
        OptionError: an option does not exist or takes another value.
        UnsupportedError: the table is encrypted, or values of a column to sort by have no order.
        UsageError: `sort_by` is empty, or there is a workload as well.
    """
    sort_by, workload = request.sort_by, request.workload
    refuse_encrypted(metadata, "rewrite_manifests")
    manifests_that_match(request.where, (), metadata, 0)
    names = tuple(name.strip() for name in sort_by.split(",")) if isinstance(sort_by, str) else sort_by
    if names is not None and not all(names):
        raise UsageError(
            f"{argument('sort_by')} has an empty name; name partition fields or columns, separated by commas"
        )
    filters = workload.split(";") if isinstance(workload, str) else workload
    filters = [text.strip() for text in filters if text.strip()]
    if names is not None and filters:
        raise UsageError(f"{argument('sort_by')} and workload both say what to cluster by; give one of them")
    rules = RewriteRules(
        spec_ids=_spec_ids(metadata, request.spec_id),
        where=request.where,
        sort_by=None if names is None else tuple(names),
        workload=tuple(filters),
        branch=request.branch,
        options=parse_options(RewriteManifestsOptions, request.options or {}),
        given=request.given,
    )
    for one in rules.spec_ids:
        rules.sort_of(metadata, one, ManifestContent.DATA)
    return rules


def _spec_ids(metadata: TableMetadata, spec_id: int | str | None) -> tuple[int, ...]:
    if is_all(spec_id):
        return tuple(sorted(metadata.specs_by_id))
    if spec_id is None:
        return (metadata.default_spec_id,)
    try:
        number = int(spec_id)
    except ValueError:
        raise UsageError(
            f"{argument('spec_id')} is {spec_id!r}; give the number of a partition spec, or {ALL!r}"
        ) from None
    if number not in metadata.specs_by_id:
        specs = ", ".join(map(str, sorted(metadata.specs_by_id)))
        raise NotFoundError(
            f"the table at {metadata.location!r} has no partition spec {number}; it has {specs}", spec_id=number
        )
    return (number,)
