"""Which manifests a rewrite chooses, and what it clusters by: arguments of Iceberg's `rewrite_manifests`, and icekeep's own.

`where` is a filter over manifests, by what the manifest list says (`rewriteIf` of Iceberg), in the language of filters over
rows; its columns are `COLUMNS`, and a null matches no comparison. A workload, the filters that a table is read with, becomes an
order to sort its manifests by.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from icekeep.errors import ExpressionError, NotFoundError, UsageError, argument, table_at
from icekeep.maintenance.jobs import CommittingRequest, takes
from icekeep.maintenance.manifests.options import RewriteManifestsOptions
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.plans import SavedPlan
from icekeep.planning.scan.plan import bound_filter, data_manifests, refuse_encrypted, select_manifests
from icekeep.planning.transcode import PartitionPart, SortPart, sort_parts
from icekeep.settings import ALL, is_all
from icekeep.spec.filters.binding import bind, is_comparable
from icekeep.spec.filters.evaluators import project_inclusive, row_matches
from icekeep.spec.filters.expressions import ALWAYS_TRUE, AlwaysTrue, And, BoundPredicate, Expression, Operation, Or
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN
from icekeep.spec.transforms import Void
from icekeep.spec.types import INT, LONG, STRING, TIMESTAMPTZ, NestedField, PrimitiveType

_MICROS_PER_MS = 1000


class _Column(msgspec.Struct, frozen=True):
    type: PrimitiveType
    value: Callable[[ManifestFile, TableMetadata], Any]
    required: bool = False


def _listed(name: str, type_: PrimitiveType, *, required: bool = False) -> tuple[str, _Column]:
    """A column of the manifest list itself."""
    return name, _Column(type_, lambda manifest, _: getattr(manifest, name), required)


def _added_at(manifest: ManifestFile, metadata: TableMetadata) -> int | None:
    if manifest.added_snapshot_id is None:
        return None
    snapshot = metadata.snapshots_by_id.get(manifest.added_snapshot_id)
    return None if snapshot is None else snapshot.timestamp_ms * _MICROS_PER_MS


_COLUMNS = dict(
    (
        _listed("manifest_path", STRING, required=True),
        _listed("manifest_length", LONG, required=True),
        _listed("partition_spec_id", INT, required=True),
        ("content", _Column(STRING, lambda manifest, _: manifest.content.name.lower(), required=True)),
        _listed("sequence_number", LONG),
        _listed("min_sequence_number", LONG),
        _listed("added_snapshot_id", LONG),
        ("added_at", _Column(TIMESTAMPTZ, _added_at)),
        _listed("added_files_count", INT),
        _listed("existing_files_count", INT),
        _listed("deleted_files_count", INT),
        _listed("live_files_count", INT),
        _listed("added_rows_count", LONG),
        _listed("existing_rows_count", LONG),
        _listed("deleted_rows_count", LONG),
    )
)
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
    """
    expression = parse_where(where, now_ms) if isinstance(where, str) else where
    try:
        bound = bind(expression, _SCHEMA)
    except NotFoundError as problem:
        column = problem.facts.get("column")
        raise ExpressionError(
            f"manifests have no column {column!r}; their columns are {', '.join(COLUMNS)}", column=column
        ) from problem
    if isinstance(bound, AlwaysTrue):
        return list(manifests)
    columns = [*enumerate(_COLUMNS.values(), start=1)]
    rows = ({field_id: column.value(manifest, metadata) for field_id, column in columns} for manifest in manifests)
    return [manifest for manifest, row in zip(manifests, rows, strict=True) if row_matches(bound, row)]


_ANY_MOMENT_MS = 0
"""`now` in a filter: which columns it names does not depend on it."""

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
    alone = {field.name: PartitionSpec(spec_id=spec.spec_id, fields=(field,)) for field in fields}
    narrowing = [
        name for name, one in alone.items() if any(project_inclusive(p, one, schema) != ALWAYS_TRUE for p in asked)
    ]
    return narrowing or [schema.names_by_id[field_id]]


class RewriteRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which manifests are to be rewritten, and how; `sort_by` and `workload` are not both given.

    A `saved` plan names them, in place of the rest.
    """

    spec_ids: tuple[int, ...]
    where: str | Expression
    sort_by: tuple[str, ...] | None
    workload: tuple[str, ...]
    branch: str
    options: RewriteManifestsOptions
    saved: SavedPlan | None = None

    def sort_of(self, metadata: TableMetadata, spec_id: int, content: ManifestContent) -> tuple[SortPart, ...]:
        """What the entries of a spec are clustered by; delete files by partitions alone, since bounds say nothing of them."""
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
        saved=request.saved,
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
            f"{table_at(metadata.location)} has no partition spec {number}; it has {specs}", spec_id=number
        )
    return (number,)
