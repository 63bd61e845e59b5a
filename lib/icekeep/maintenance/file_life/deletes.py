"""The delete files that readers of a version apply to one data file, and the vectors that a Puffin file holds."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.commit.summary import made_by
from icekeep.errors import IcekeepBug
from icekeep.maintenance.deletion.file_kinds import CONTENT_KINDS
from icekeep.maintenance.file_life.result import HeldVector, ReachingDelete
from icekeep.planning.deletes import EVERY_PAIR, Reaching, reaching
from icekeep.planning.entries import (
    DecodedEntries,
    EntryFilter,
    delete_manifests,
    entries_schema,
    folded,
    select_manifests,
    snapshot_manifests,
)
from icekeep.planning.manifests import MATCHED_COLUMNS
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.snapshots import Snapshot

SHOWN_COUNT = 1_000

_COLUMNS = MATCHED_COLUMNS | {"snapshot_id"}
_VECTOR = "deletion vector"


class _OfFile:
    """A `Fold` that keeps the few delete files that reach one data file."""

    def __init__(self, data: pa.Table, specs: Mapping[int, PartitionSpec]) -> None:
        self._data, self._specs = data, specs
        self.rows = entries_schema(_COLUMNS).empty_table()

    def add(self, decoded: DecodedEntries) -> None:
        rows = pa.Table.from_batches([decoded.entries])
        found = self.reaching(rows)
        keys = {*_keys(found.deletes.take(pa.array(found.of_row(0), pa.int64())))}
        mask = pa.array([key in keys for key in _keys(rows)], pa.bool_())
        self.rows = pa.concat_tables([self.rows, rows.filter(mask)])

    def merge(self, other: "_OfFile") -> None:
        self.rows = pa.concat_tables([self.rows, other.rows])

    def reaching(self, deletes: pa.Table) -> Reaching:
        """What of some delete files reaches the data file."""
        found = reaching(self._data, deletes, self._specs, EVERY_PAIR)
        if found is None:
            raise IcekeepBug("too many delete files reach one data file to be told")
        return found


def deletes_reaching(data: pa.Table, table: Table, snapshot: Snapshot, spark: SparkSource) -> list[ReachingDelete]:
    """What readers of a snapshot apply to a data file, in the order of a plan.

    Args:
        data: the entry of the file, a row of `planning.manifests.ENTRIES`.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read, or deletes contradict one another.
    """
    metadata = table.metadata
    manifests = delete_manifests(snapshot_manifests(table, snapshot))
    selected = select_manifests(metadata, metadata.schema, manifests, ALWAYS_TRUE)
    new = partial(_OfFile, data, metadata.specs_by_id)
    found = folded(table.storage, spark, selected.opened, EntryFilter(specs=selected.specs), _COLUMNS, new)
    reached = found.reaching(found.rows)
    added_by = dict(zip(_keys(found.rows), found.rows["snapshot_id"].to_pylist(), strict=True))
    rows = reached.deletes.take(pa.array(reached.of_row(0), pa.int64())).to_pylist()
    return [_told(row, added_by[row["file_path"], row["content_offset"]], metadata) for row in rows]


def vectors_of(entries: pa.Table) -> list[HeldVector]:
    """What live entries say of the vectors of a Puffin file, in the file's order."""
    names = ["record_count", "content_offset", "content_size_in_bytes", "referenced_data_file"]
    rows = entries.select(names).group_by(names).aggregate([]).sort_by("content_offset").to_pylist()
    return [
        HeldVector(
            record_count=row["record_count"],
            offset_bytes=row["content_offset"],
            blob_bytes=row["content_size_in_bytes"],
            referenced_data_file=row["referenced_data_file"],
        )
        for row in rows
    ]


def is_puffin(content: int, file_format: str) -> bool:
    """Whether an entry is of a deletion vector."""
    return content == FileContent.POSITION_DELETES and file_format.lower() == "puffin"


def _keys(deletes: pa.Table) -> list[tuple[str, int | None]]:
    """What tells delete files apart, the vectors of one Puffin file too."""
    return [*zip(deletes["file_path"].to_pylist(), deletes["content_offset"].to_pylist(), strict=True)]


def _told(row: Mapping[str, Any], snapshot_id: int | None, metadata: TableMetadata) -> ReachingDelete:
    snapshot = None if snapshot_id is None else metadata.snapshots_by_id.get(snapshot_id)
    content, file_format = row["content"], row["file_format"]
    return ReachingDelete(
        kind=_VECTOR if is_puffin(content, file_format) else str(CONTENT_KINDS[FileContent(content)]),
        record_count=row["record_count"],
        sequence_number=row["sequence_number"],
        snapshot_id=snapshot_id,
        timestamp_ms=None if snapshot is None else snapshot.timestamp_ms,
        made_by=None if snapshot is None else made_by(snapshot.summary),
        file_path=row["file_path"],
    )
