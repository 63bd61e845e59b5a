"""The manifests of a snapshot, and which of them a filter needs. Rows of a manifest list; the driver holds these."""

from collections.abc import Iterable, Sequence

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.live_files import check_totals
from icekeep.commit.manifests import StorageManifestReader
from icekeep.errors import InvalidTableError
from icekeep.planning.entries.decode import SpecFilter
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import manifest_may_match
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.filters.projections import project_inclusive
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot


class ManifestSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Manifests to open, those that a filter let us skip, and what is asked of the partitions of each spec."""

    opened: tuple[ManifestFile, ...] = ()
    skipped: tuple[ManifestFile, ...] = ()
    specs: dict[int, SpecFilter] = {}


def snapshot_manifests(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    """The manifests of a snapshot that have live files; none for a table without a snapshot.

    Those that the list calls empty are among them where the totals of the summary do not agree: whoever reads them sees
    whether the list is right.
    """
    if snapshot is None:
        return []
    rows = StorageManifestReader(table.storage).manifests(snapshot)
    try:
        agree = check_totals(rows, snapshot)
    except InvalidTableError:
        agree = False
    return [row for row in rows if row.may_have_live_files] if agree else rows


def data_manifests(manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
    """Those that track data files."""
    return [m for m in manifests if m.content is ManifestContent.DATA]


def delete_manifests(manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
    """Those that track delete files."""
    return [m for m in manifests if m.content is ManifestContent.DELETES]


def select_manifests(
    metadata: TableMetadata, schema: Schema, manifests: Sequence[ManifestFile], rows: Expression
) -> ManifestSelection:
    """The manifests that may hold a file for a filter, by their partition summaries.

    Args:
        schema: of the scan.
        rows: a filter over rows, bound to it. It is projected through each manifest's own spec.
    """
    specs = {
        spec_id: _spec_filter(metadata, schema, spec_id, rows) for spec_id in {m.partition_spec_id for m in manifests}
    }
    opened: list[ManifestFile] = []
    skipped: list[ManifestFile] = []
    for manifest in manifests:
        spec = specs[manifest.partition_spec_id]
        (opened if may_hold_matches(manifest, spec) else skipped).append(manifest)
    return ManifestSelection(opened=tuple(opened), skipped=tuple(skipped), specs=specs)


def may_hold_matches(manifest: ManifestFile, spec: SpecFilter) -> bool:
    """Whether a manifest of a spec may hold a file that a filter over its partitions matches, by the summaries."""
    return manifest.partitions is None or manifest_may_match(spec.matches, spec.partition.fields, manifest.partitions)


def _spec_filter(metadata: TableMetadata, schema: Schema, spec_id: int, rows: Expression) -> SpecFilter:
    partition = metadata.partition_type(spec_id)
    if rows is ALWAYS_TRUE:
        return SpecFilter(partition)
    return SpecFilter(partition, project_inclusive(rows, metadata.specs_by_id[spec_id], schema))


def bound_filter(where: str | Expression, metadata: TableMetadata, schema: Schema, moment_ms: int) -> Expression:
    """A filter given as text or as an expression, bound to a schema of the table.

    Args:
        moment_ms: what `now` in the text is, in epoch milliseconds.

    Raises:
        ExpressionError, NotFoundError: the filter does not fit the schema.
    """
    expression = parse_where(where, moment_ms) if isinstance(where, str) else where
    return bind(expression, schema, metadata.partition_specs)
