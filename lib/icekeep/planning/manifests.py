"""The manifests of a snapshot, and which of them a filter needs. Rows of a manifest list; the driver holds these."""

from collections.abc import Sequence

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.manifests import StorageManifestReader
from icekeep.planning.decode import SpecFilter
from icekeep.spec.filters.evaluators import manifest_may_match
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.projections import project_inclusive
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot


class ManifestSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Manifests to open, and how many a filter let us skip."""

    opened: tuple[ManifestFile, ...]
    skipped_count: int
    specs: dict[int, SpecFilter]


def snapshot_manifests(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    """The manifests that have live files; none for a table without a snapshot."""
    if snapshot is None:
        return []
    return [m for m in StorageManifestReader(table.storage).manifests(snapshot) if m.may_have_live_files]


def delete_manifests(manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
    """Those that track live delete files."""
    return [m for m in manifests if m.content is ManifestContent.DELETES]


def select_manifests(metadata: TableMetadata, manifests: Sequence[ManifestFile], rows: Expression) -> ManifestSelection:
    """The data manifests that may hold a file with a row of the filter, by their partition summaries.

    Args:
        rows: a filter over rows, bound to the current schema. It is projected through each manifest's own spec.
    """
    data = [m for m in manifests if m.content is ManifestContent.DATA]
    specs = {spec_id: _spec_filter(metadata, spec_id, rows) for spec_id in {m.partition_spec_id for m in data}}
    opened = tuple(
        m
        for m in data
        if m.partitions is None
        or manifest_may_match(
            specs[m.partition_spec_id].matches, specs[m.partition_spec_id].partition.fields, m.partitions
        )
    )
    return ManifestSelection(opened=opened, skipped_count=len(data) - len(opened), specs=specs)


def _spec_filter(metadata: TableMetadata, spec_id: int, rows: Expression) -> SpecFilter:
    partition = metadata.partition_type(spec_id)
    if rows is ALWAYS_TRUE:
        return SpecFilter(partition)
    return SpecFilter(partition, project_inclusive(rows, metadata.specs_by_id[spec_id], metadata.schema))
