"""Filters over manifests: which of them a job rewrites, by what the manifest list says (`rewriteIf` of Iceberg). Pure.

The language is that of `where` over rows; the columns are those of `COLUMNS`. A null matches no comparison.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from icekeep.errors import ExpressionError, NotFoundError
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import row_matches
from icekeep.spec.filters.expressions import AlwaysTrue, Expression
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.types import INT, LONG, STRING, TIMESTAMPTZ, NestedField, PrimitiveType

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
