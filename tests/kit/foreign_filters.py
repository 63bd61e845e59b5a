"""The filters, specs and statistics of `kit.filters` as PyIceberg's, to ask it the same questions."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from pyiceberg import expressions as foreign
from pyiceberg.manifest import DataFile as ForeignDataFile
from pyiceberg.manifest import ManifestFile as ForeignManifest
from pyiceberg.manifest import PartitionFieldSummary as ForeignSummary
from pyiceberg.partitioning import PartitionSpec as ForeignSpec
from pyiceberg.schema import Schema as ForeignSchema

from icekeep.spec.filters.expressions import And, Expression, Not, Operation, Or, Predicate
from icekeep.spec.manifests.structs import DataFile, FieldSummary
from icekeep.spec.partitioning import PartitionSpec, spec_to_json
from icekeep.spec.schema import Schema, schema_to_json
from icekeep.spec.types import BINARY, fixed

_UNARY: dict[Operation, Callable[[str], Any]] = {
    Operation.IS_NULL: foreign.IsNull,
    Operation.NOT_NULL: foreign.NotNull,
    Operation.IS_NAN: foreign.IsNaN,
    Operation.NOT_NAN: foreign.NotNaN,
}
_COMPARISONS: dict[Operation, Callable[[str, Any], Any]] = {
    Operation.LT: foreign.LessThan,
    Operation.LT_EQ: foreign.LessThanOrEqual,
    Operation.GT: foreign.GreaterThan,
    Operation.GT_EQ: foreign.GreaterThanOrEqual,
    Operation.EQ: foreign.EqualTo,
    Operation.NOT_EQ: foreign.NotEqualTo,
    Operation.STARTS_WITH: foreign.StartsWith,
    Operation.NOT_STARTS_WITH: foreign.NotStartsWith,
}
_SETS: dict[Operation, Callable[[str, set[Any]], Any]] = {Operation.IN: foreign.In, Operation.NOT_IN: foreign.NotIn}


def foreign_filter(expression: Expression, schema: Schema) -> Any:
    """An unbound expression as PyIceberg's, which has literals of bytes where we have text."""
    match expression:
        case And(left=left, right=right):
            return foreign.And(foreign_filter(left, schema), foreign_filter(right, schema))
        case Or(left=left, right=right):
            return foreign.Or(foreign_filter(left, schema), foreign_filter(right, schema))
        case Not(child=child):
            return foreign.Not(foreign_filter(child, schema))
        case Predicate(operation=operation, column=column) if operation in _UNARY:
            return _UNARY[operation](column)
        case Predicate(operation=operation, column=column, literals=literals):
            if schema.field(column).type in (BINARY, fixed(2)):
                literals = tuple(map(bytes.fromhex, literals))
            if operation in _SETS:
                return _SETS[operation](column, set(literals))
            return _COMPARISONS[operation](column, literals[0])
    raise AssertionError(expression)


def foreign_schema(schema: Schema) -> ForeignSchema:
    return ForeignSchema.model_validate_json(json.dumps(schema_to_json(schema)))


def foreign_spec(spec: PartitionSpec) -> ForeignSpec:
    return ForeignSpec.model_validate_json(json.dumps(spec_to_json(spec)))


def foreign_file(metrics: DataFile) -> ForeignDataFile:
    return ForeignDataFile.from_args(
        file_path=metrics.file_path,
        record_count=metrics.record_count,
        value_counts=metrics.value_counts,
        null_value_counts=metrics.null_value_counts,
        nan_value_counts=metrics.nan_value_counts,
        lower_bounds=metrics.lower_bounds,
        upper_bounds=metrics.upper_bounds,
    )


def foreign_manifest(summaries: Sequence[FieldSummary]) -> ForeignManifest:
    return ForeignManifest.from_args(
        manifest_path="m",
        partition_spec_id=0,
        partitions=[
            ForeignSummary.from_args(
                contains_null=summary.contains_null,
                contains_nan=summary.contains_nan,
                lower_bound=summary.lower_bound,
                upper_bound=summary.upper_bound,
            )
            for summary in summaries
        ],
    )
