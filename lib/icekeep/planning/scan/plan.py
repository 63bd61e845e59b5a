"""Plan a scan: the version of a table that it reads, the files that a filter needs, and the deletes that reach them.

version -> manifest list -> manifests (by partition summaries) -> entries (by partition, by bounds) -> files with deletes
"""

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.commit.live_files import totals_agree
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError, NotFoundError, UnsupportedError, UsageError, argument, table_at
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.deletes import (
    CROWDED_COUNT,
    MATCHED_DATA_COLUMNS,
    MAX_PAIRS,
    ReachingDeletes,
    crowded_count,
    reaching,
    with_deletes,
    with_deletes_in_tasks,
)
from icekeep.planning.entries import (
    EntryFilter,
    ReadBy,
    SpecFilter,
    chosen_reading,
    entries,
    entries_count,
    few_entries,
)
from icekeep.planning.manifests import MATCHED_COLUMNS, METRICS, STORED
from icekeep.planning.spark.session import LIMITS, F, SparkSource
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import manifest_may_match, project_inclusive
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import FileContent, ManifestContent, ManifestFile, total_count
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN, Snapshot
from icekeep.spec.times import Moment, format_time, moment_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class VersionArguments(TypedDict, total=False):
    """The arguments that choose what a scan reads; by default the head of `main`.

    Attributes:
        ref: a branch or tag.
        snapshot_id: any snapshot of the table.
        as_of: the snapshot that was current at this moment, or this age ago.
        start_snapshot_id: an incremental scan reads the files appended after this snapshot (exclusive),
        end_snapshot_id: up to this one (inclusive), by default up to the head of `main`; deletes are ignored.
    """

    ref: str | None
    snapshot_id: int | None
    as_of: Moment | None
    start_snapshot_id: int | None
    end_snapshot_id: int | None


VERSION_ARGUMENTS = tuple(VersionArguments.__annotations__)


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a table that a scan reads.

    Attributes:
        snapshot: `None` for a table without data.
        schema: the filter is bound to it, and rows are read with it.
        appended_by: the snapshots whose appended files an incremental scan reads; `None` for all live files.
    """

    snapshot: Snapshot | None
    schema: Schema
    appended_by: tuple[Snapshot, ...] | None = None


def chosen_version(metadata: TableMetadata, now_ms: int, **arguments: Unpack[VersionArguments]) -> Version:
    """The version that the arguments of a scan choose; an age is counted back from `now_ms`.

    A snapshot and a tag are read with the schema that was current when the snapshot was made, a branch with the table's.
    """
    given: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    for name in given:
        # A misspelt name must not read the current snapshot.
        if name not in VERSION_ARGUMENTS:
            raise UsageError(
                f"a scan has no argument {name!r}; what it reads is named by one of {', '.join(VERSION_ARGUMENTS[:-1])}"
            )
    end_id = given.pop("end_snapshot_id", None)
    if len(given) > 1:
        raise UsageError(f"{' and '.join(map(argument, given))} contradict one another; give one of them")
    if end_id is not None and "start_snapshot_id" not in given:
        raise UsageError(
            f"{argument('end_snapshot_id')} needs {argument('start_snapshot_id')}; a single snapshot is named by "
            f"{argument('snapshot_id')}"
        )
    if (start_id := given.get("start_snapshot_id")) is not None:
        end_id = None if end_id is None else _snapshot_id("end_snapshot_id", end_id)
        return _incremental(metadata, _snapshot_id("start_snapshot_id", start_id), end_id)
    return _single_version(metadata, now_ms, **given)


def _snapshot_id(name: str, given: Any) -> int:
    """Accepts numpy's integers too, as pandas gives them."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise UsageError(f"{argument(name)} is {given!r}; give the id of a snapshot, a whole number")
    return operator.index(given)


def _single_version(
    metadata: TableMetadata,
    now_ms: int,
    *,
    ref: Any = MAIN,
    snapshot_id: Any | None = None,
    as_of: Moment | None = None,
) -> Version:
    if not isinstance(ref, str):
        raise UsageError(f"{argument('ref')} is {ref!r}; give the name of a branch or tag")
    if snapshot_id is not None:
        snapshot = metadata.snapshot(_snapshot_id("snapshot_id", snapshot_id))
    elif as_of is not None:
        at_ms, log = moment_ms(as_of, now_ms), metadata.snapshot_log
        entries = [entry for entry in log if entry.timestamp_ms <= at_ms]
        if not entries:
            history = f"its log begins at {format_time(log[0].timestamp_ms)}" if log else "it has no snapshot at all"
            raise NotFoundError(
                f"{table_at(metadata.location)} is not known as of {format_time(at_ms)}: {history}", as_of=at_ms
            )
        snapshot = metadata.snapshot(entries[-1].snapshot_id)
    else:
        head, named = metadata.head(ref), metadata.refs.get(ref)
        if head is None or named is None or named.is_branch:
            return Version(snapshot=head, schema=metadata.schema)
        snapshot = head
    schema_id = snapshot.schema_id
    schema = metadata.schema if schema_id is None else metadata.schemas_by_id.get(schema_id, metadata.schema)
    return Version(snapshot=snapshot, schema=schema)


def _incremental(metadata: TableMetadata, start_id: int, end_id: int | None) -> Version:
    metadata.snapshot(start_id)
    end = metadata.current_snapshot if end_id is None else metadata.snapshot(end_id)
    if end is None:
        raise NotFoundError(
            f"{table_at(metadata.location)} has no current snapshot; give {argument('end_snapshot_id')}"
        )
    between = []
    for snapshot in metadata.ancestors(end.snapshot_id):
        if snapshot.snapshot_id == start_id:
            break
        between.append(snapshot)
    else:
        raise UsageError(
            f"snapshot {start_id} is no ancestor of snapshot {end.snapshot_id}, so nothing lies between them"
        )
    appends = tuple(snapshot for snapshot in reversed(between) if snapshot.operation == "append")
    return Version(snapshot=end, schema=metadata.schema, appended_by=appends)


def refuse_encrypted(metadata: TableMetadata, job: str) -> None:
    """Raise `UnsupportedError` for an encrypted table, before anything is planned."""
    if metadata.is_encrypted:
        raise UnsupportedError(
            f"{job} refuses {table_at(metadata.location)}: it is encrypted, which is not supported yet"
        )


def refuse_encrypted_file(file: Any) -> None:
    """Raise `UnsupportedError` for an encrypted data file of a plan: a row of a DataFrame, or a dict."""
    if file["key_metadata"] is not None:
        raise UnsupportedError(f"data file {file['file_path']!r} is encrypted, which is not supported yet")


class ManifestSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Manifests to open, those that a filter skips, and the filter over the partitions of each spec."""

    opened: tuple[ManifestFile, ...] = ()
    skipped: tuple[ManifestFile, ...] = ()
    specs: dict[int, SpecFilter] = {}


def snapshot_manifests(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    """The manifests of a snapshot that have live files; none for a table without a snapshot.

    Where the list disagrees with the totals of the snapshot's summary, those that it calls empty are included: reading
    them shows whether the list is right.
    """
    if snapshot is None:
        return []
    rows = ManifestReader(table.storage).manifests(snapshot)
    try:
        agree = totals_agree(rows, snapshot)
    except InvalidTableError:
        agree = False
    return [row for row in rows if row.may_have_live_files] if agree else rows


def data_manifests(manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
    return [m for m in manifests if m.content is ManifestContent.DATA]


def delete_manifests(manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
    return [m for m in manifests if m.content is ManifestContent.DELETES]


def bound_filter(where: str | Expression, metadata: TableMetadata, schema: Schema, moment_ms: int) -> Expression:
    """A filter, as text or unbound, bound to a schema of the table; `moment_ms` is the time of `now` in the text."""
    expression = parse_where(where, moment_ms) if isinstance(where, str) else where
    return bind(expression, schema, metadata.partition_specs)


def select_manifests(
    metadata: TableMetadata, schema: Schema, manifests: Sequence[ManifestFile], where: Expression
) -> ManifestSelection:
    """Select manifests by their partition summaries: `where`, bound to `schema`, is projected through each one's own spec."""
    specs = {}
    for spec_id in {m.partition_spec_id for m in manifests}:
        partition = metadata.partition_type(spec_id)  # refuses a spec that the table lacks
        matches = where if where is ALWAYS_TRUE else project_inclusive(where, metadata.specs_by_id[spec_id], schema)
        specs[spec_id] = SpecFilter(partition, matches)
    opened: list[ManifestFile] = []
    skipped: list[ManifestFile] = []
    for manifest in manifests:
        (opened if may_hold_matches(manifest, specs[manifest.partition_spec_id]) else skipped).append(manifest)
    return ManifestSelection(opened=tuple(opened), skipped=tuple(skipped), specs=specs)


def may_hold_matches(manifest: ManifestFile, spec: SpecFilter) -> bool:
    """Whether a manifest of the spec may hold a file whose partition matches, by its summaries."""
    return manifest.partitions is None or manifest_may_match(spec.matches, spec.partition.fields, manifest.partitions)


FILE_COLUMNS = frozenset({"manifest_path", "spec_id", "partition", *STORED.names}) - {
    *METRICS.names,
    *("equality_ids", "referenced_data_file", "content_offset", "content_size_in_bytes"),
}
"""The columns of a plan by default."""


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """A scan of which the manifest list has been read, and no manifest.

    Attributes:
        where: bound to the version's schema.
        listed: all manifests of the version with live files, see `snapshot_manifests`.
        data: data manifests, by whether the filter needs them.
        deletes: delete manifests, by whether their deletes may reach a file of `data`.
    """

    table: Table
    version: Version
    where: Expression
    listed: tuple[ManifestFile, ...]
    data: ManifestSelection
    deletes: ManifestSelection

    @property
    def wanted(self) -> EntryFilter:
        """The filter over entries of the opened data manifests."""
        appended_by = self.version.appended_by
        added_by = None if appended_by is None else frozenset(s.snapshot_id for s in appended_by)
        return EntryFilter(specs=self.data.specs, where=self.where, added_by=added_by)


def open_scan(
    table: Table,
    *,
    where: str | Expression = ALWAYS_TRUE,
    for_commit: bool = False,
    **version: Unpack[VersionArguments],
) -> Scan:
    """Choose the version, read its manifest list and select the manifests, without Spark.

    Deletes of a partition reach only files of that partition, so the filter's projection selects delete manifests as it
    does data manifests. Sequence numbers in the list skip no delete manifest: were they wrong, deleted rows would come back.

    Args:
        where: a filter over the table's columns, as text or as an unbound expression.
        for_commit: check the list against the totals of its snapshot, and skip no delete manifest by its partition
            summaries, which may be wrong too.
    """
    metadata = table.metadata
    refuse_encrypted(metadata, "scan planning")
    now_ms = table.runtime.now_ms()
    chosen = chosen_version(metadata, now_ms, **version)
    bound = bound_filter(where, metadata, chosen.schema, now_ms)
    if chosen.appended_by is None:
        listed = snapshot_manifests(table, chosen.snapshot)
    else:
        # A file that was appended and then moved to another manifest, or deleted, is still in the manifest of its own commit.
        listed = [
            manifest
            for snapshot in chosen.appended_by
            for manifest in data_manifests(snapshot_manifests(table, snapshot))
            if manifest.added_snapshot_id == snapshot.snapshot_id
        ]
    data = select_manifests(metadata, chosen.schema, data_manifests(listed), bound)
    deletes = select_manifests(metadata, chosen.schema, delete_manifests(listed), bound)
    if for_commit:
        if chosen.snapshot is not None:
            totals_agree(listed, chosen.snapshot)
        deletes = msgspec.structs.replace(deletes, opened=deletes.opened + deletes.skipped, skipped=())
    return Scan(table=table, version=chosen, where=bound, listed=tuple(listed), data=data, deletes=deletes)


class FewFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The data files that a scan needs, on the driver, and, if asked for, the deletes that reach each."""

    files: pa.Table
    reaching: ReachingDeletes | None

    def rows(self) -> list[dict[str, Any]]:
        """A row for each file, with its `deletes` if they were asked for; files share the rows of deletes."""
        rows: list[dict[str, Any]] = self.files.to_pylist()
        if self.reaching is not None:
            deletes = self.reaching.deletes.to_pylist()
            for number, row in enumerate(rows):
                row["deletes"] = [deletes[position] for position in self.reaching.of_row(number)]
        return rows


def few_files(
    scan: Scan,
    limit: int = LIMITS.entries_count,
    columns: Iterable[str] = FILE_COLUMNS,
    *,
    deletes: bool = True,
    max_pairs: int = MAX_PAIRS,
) -> FewFiles | None:
    """Plan without Spark, where files are few; `None` where they are many, or many deletes reach many of them.

    Args:
        limit: how many entries are few, one of `Limits`.
        deletes: whether to match the deletes that reach each file.
        max_pairs: as for `reaching`; not above the default if `FewFiles.rows` is to be called.
    """
    storage = scan.table.storage
    reading = chosen_reading([*scan.data.opened, *(scan.deletes.opened if deletes else ())], limit)
    if reading.by is not ReadBy.DRIVER:
        return None
    columns = frozenset(columns)
    needed = columns | MATCHED_DATA_COLUMNS if deletes else columns
    files = few_entries(
        storage, scan.data.opened, scan.wanted, needed, reading.decoder, encoded=("manifest_path", "file_format")
    )
    reached = None
    if deletes:
        reached = matched_on_driver(scan, files, reading.decoder, max_pairs)
        if reached is None:
            return None
    return FewFiles(files=files.select([name for name in files.column_names if name in columns]), reaching=reached)


def matched_on_driver(
    scan: Scan, files: pa.Table, decoder: ManifestDecoder, max_pairs: int = MAX_PAIRS
) -> ReachingDeletes | None:
    """Read the scan's delete manifests, and match them to data files, which have `MATCHED_DATA_COLUMNS`, by `reaching`."""
    table, wanted = scan.table, EntryFilter(specs=scan.deletes.specs)
    return reaching(
        files,
        few_entries(table.storage, scan.deletes.opened, wanted, MATCHED_COLUMNS, decoder),
        table.metadata.specs_by_id,
        max_pairs,
    )


def planned_files(scan: Scan, spark: SparkSource, columns: Iterable[str] = FILE_COLUMNS) -> "DataFrame":
    """The data files that the scan needs, with some columns of `ENTRIES`."""
    return entries(scan.table.storage, spark, scan.data.opened, scan.wanted, columns)


def planned_files_with_deletes(scan: Scan, spark: SparkSource, columns: Iterable[str] = FILE_COLUMNS) -> "DataFrame":
    """`planned_files` with a column `deletes`: those to apply to each file, of type `planning.manifests.REACHING_DELETES`.

    Where deletes contradict one another or the data, Spark raises `InvalidTableError` as it runs.
    """
    return matched_with_deletes(
        planned_files(scan, spark, columns),
        scan.table,
        spark,
        scan.deletes.opened,
        EntryFilter(specs=scan.deletes.specs),
        data_count=entries_count(scan.data.opened),
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
    """Data files, about `data_count`, with what of the delete files of some manifests a reader must apply to each."""
    storage, specs = table.storage, table.metadata.specs_by_id
    deletes = entries(storage, spark, manifests, wanted, MATCHED_COLUMNS)
    if only_positions:
        deletes = deletes.where(F.col("content") == int(FileContent.POSITION_DELETES))
    known_count = total_count(m.live_files_count for m in manifests)
    if known_count is None or known_count > CROWDED_COUNT:
        shared_count = crowded_count(storage, spark, manifests, wanted)
        if shared_count is not None:
            return with_deletes_in_tasks(files, deletes, specs, data_count=data_count, shared_count=shared_count)
    return with_deletes(files, deletes, specs, deletes_count=known_count)
