"""Plan a scan: which files a filter needs, and which deletes reach them.

version -> manifest list -> manifests (by partition summaries) -> entries (by partition, by bounds) -> files with deletes
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.commit.live_files import check_totals
from icekeep.planning.deletes.delete_index import MAX_PAIRS, Reaching, reaching
from icekeep.planning.deletes.delete_join import with_deletes
from icekeep.planning.deletes.delete_tasks import CROWDED_COUNT, crowd_of, with_deletes_in_tasks
from icekeep.planning.entries.decode import EntryFilter
from icekeep.planning.entries.read import ReadBy, chosen_reading, entries, entries_count, few_entries
from icekeep.planning.entries.select_manifests import (
    ManifestSelection,
    bound_filter,
    data_manifests,
    delete_manifests,
    select_manifests,
    snapshot_manifests,
)
from icekeep.planning.manifests.entry_schema import MATCHED_COLUMNS, METRICS, STORED
from icekeep.planning.refusals import refuse_encrypted
from icekeep.planning.scan.versions import Version, VersionArguments, chosen_version
from icekeep.planning.spark.lazily import F
from icekeep.planning.spark.limits import LIMITS, Limits
from icekeep.planning.spark.source import SparkSource
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import FileContent, ManifestFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MATCHED = frozenset({"file_path", "spec_id", "partition", "sequence_number"})

FILE_COLUMNS = frozenset({"manifest_path", "spec_id", "partition", *STORED.names}) - {
    *METRICS.names,
    *("equality_ids", "referenced_data_file", "content_offset", "content_size_in_bytes"),
}
"""What a plan says of each data file unless its caller asks for other columns."""


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be read of a table; the manifest list has been read, and no manifest.

    Attributes:
        rows: the filter, bound to the version's schema.
        listed: all manifests with live files that the version has, see `snapshot_manifests`.
        data: data manifests by whether the filter needs them.
        deletes: delete manifests by whether their deletes may reach a file of `data`.
    """

    table: Table
    version: Version
    rows: Expression
    listed: tuple[ManifestFile, ...]
    data: ManifestSelection
    deletes: ManifestSelection

    @property
    def wanted(self) -> EntryFilter:
        """Which entries of the opened data manifests the scan needs."""
        appended_by = self.version.appended_by
        added_by = None if appended_by is None else frozenset(s.snapshot_id for s in appended_by)
        return EntryFilter(specs=self.data.specs, rows=self.rows, added_by=added_by)


def open_scan(
    table: Table,
    *,
    where: str | Expression = ALWAYS_TRUE,
    for_commit: bool = False,
    **version: Unpack[VersionArguments],
) -> Scan:
    """Choose the version, read its manifest list and choose the manifests; needs no Spark.

    Deletes of a partition reach only files of that partition, so the filter's projection says of them what it says of data.
    What the list says of sequence numbers keeps no delete manifest closed: where it is wrong, deleted rows would come back.

    Args:
        where: a filter over the table's columns, as text or as an unbound expression.
        for_commit: for what is going to be committed: the list is held against the totals of its snapshot, and partition
            summaries, which may be wrong too, keep no delete manifest closed.
        version: see `VersionArguments`.

    Raises:
        ExpressionError, NotFoundError, UsageError: the filter or the version does not fit the table.
        UnsupportedError: the table is encrypted.
        InvalidTableError, MissingFileError: the manifest list cannot be read, or is not whole by those totals.
    """
    metadata = table.metadata
    refuse_encrypted(metadata, "scan planning")
    chosen = chosen_version(metadata, table.runtime.now_ms(), **version)
    rows = bound_filter(where, metadata, chosen.schema, table.runtime.now_ms())
    listed = _listed(table, chosen)
    data = select_manifests(metadata, chosen.schema, data_manifests(listed), rows)
    deletes = select_manifests(metadata, chosen.schema, delete_manifests(listed), rows)
    if for_commit:
        if chosen.snapshot is not None:
            check_totals(listed, chosen.snapshot)
        deletes = msgspec.structs.replace(deletes, opened=deletes.opened + deletes.skipped, skipped=())
    return Scan(table=table, version=chosen, rows=rows, listed=tuple(listed), data=data, deletes=deletes)


class FewFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The data files that a scan needs, held by the driver, with the columns that were asked for; and what reaches each.

    `reaching` is `None` where nobody asked for it.
    """

    files: pa.Table
    reaching: Reaching | None

    def rows(self) -> list[dict[str, Any]]:
        """A row for each file; with what reaches it as `deletes`, rows that files share, if anybody asked for it."""
        rows: list[dict[str, Any]] = self.files.to_pylist()
        if self.reaching is not None:
            deletes = self.reaching.deletes.to_pylist()
            for number, row in enumerate(rows):
                row["deletes"] = [deletes[position] for position in self.reaching.of_row(number)]
        return rows


def few_files(
    scan: Scan,
    limits: Limits = LIMITS,
    columns: Iterable[str] = FILE_COLUMNS,
    *,
    deletes: bool = True,
    max_pairs: int = MAX_PAIRS,
) -> FewFiles | None:
    """The plan without Spark, where files are few; `None` where they are many, or many deletes reach many of them.

    Args:
        limits: how many entries, deletes among them, are few.
        columns: of `entry_schema.ENTRIES`.
        deletes: whether to look at them.
        max_pairs: as for `reaching`; for one who asks `FewFiles.rows` no more than by default.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: as `planned_files_with_deletes`, at once.
    """
    storage, manifests = scan.table.storage, scan.deletes.opened if deletes else ()
    reading = chosen_reading([*scan.data.opened, *manifests], limits.entries_count)
    if reading.by is not ReadBy.DRIVER:
        return None
    columns = frozenset(columns)
    wanted = columns | _MATCHED if deletes else columns
    files = few_entries(storage, scan.data.opened, scan.wanted, wanted, reading.decoder)
    if not deletes:
        return FewFiles(files=files, reaching=None)
    of_deletes = EntryFilter(specs=scan.deletes.specs)
    found = reaching(
        files,
        few_entries(storage, manifests, of_deletes, MATCHED_COLUMNS, reading.decoder),
        scan.table.metadata.specs_by_id,
        max_pairs,
    )
    asked = files.select([name for name in files.column_names if name in columns])
    return None if found is None else FewFiles(files=asked, reaching=found)


def planned_files(scan: Scan, spark: SparkSource, columns: Iterable[str] = FILE_COLUMNS) -> "DataFrame":
    """The data files that the scan needs, with the columns of `ENTRIES` that are asked for; deletes are not looked at.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read whole; at once, or when Spark runs.
    """
    return entries(scan.table.storage, spark, scan.data.opened, scan.wanted, columns)


def planned_files_with_deletes(scan: Scan, spark: SparkSource, columns: Iterable[str] = FILE_COLUMNS) -> "DataFrame":
    """The same with a column `deletes`: what a reader must apply to each file, as `entry_schema.REACHING_DELETES`.

    Raises:
        InvalidTableError: as `planned_files`; or deletes contradict one another or the data, when Spark runs.
    """
    files = planned_files(scan, spark, columns)
    wanted = EntryFilter(specs=scan.deletes.specs)
    return matched_with_deletes(
        files, scan.table, spark, scan.deletes.opened, wanted, data_count=entries_count(scan.data.opened)
    )


def matched_with_deletes(
    files: "DataFrame",
    table: Table,
    spark: SparkSource,
    manifests: Sequence[ManifestFile],
    wanted: EntryFilter,
    *,
    data_count: int,
    only_positions: bool = False,
) -> "DataFrame":
    """Data files, about `data_count`, with what of the delete files of some manifests a reader must apply to each.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: as `planned_files_with_deletes`.
    """
    storage, specs = table.storage, table.metadata.specs_by_id
    deletes = entries(storage, spark, manifests, wanted, MATCHED_COLUMNS)
    if only_positions:
        deletes = deletes.where(F.col("content") == int(FileContent.POSITION_DELETES))
    counts = [m.live_files_count for m in manifests]
    known_count = None if None in counts else sum(count or 0 for count in counts)
    if known_count is None or known_count > CROWDED_COUNT:
        crowd = crowd_of(storage, spark, manifests, wanted)
        if crowd.is_crowded:
            return with_deletes_in_tasks(files, deletes, specs, data_count=data_count, shared_count=crowd.shared_count)
    return with_deletes(files, deletes, specs, deletes_count=known_count)


def _listed(table: Table, version: Version) -> list[ManifestFile]:
    if version.appended_by is None:
        return snapshot_manifests(table, version.snapshot)
    # A file that was appended and then moved to another manifest, or deleted, is still in the manifest of its own commit.
    return [
        manifest
        for snapshot in version.appended_by
        for manifest in data_manifests(snapshot_manifests(table, snapshot))
        if manifest.added_snapshot_id == snapshot.snapshot_id
    ]
