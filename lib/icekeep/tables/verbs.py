"""Create a table, append to it, change its definition, and choose its current snapshot, for users who have no other engine."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

import pyarrow as pa

from icekeep.catalog.base import Catalog, Identifier, Table, as_identifier
from icekeep.commit.changes.definitions import ChangeStatistics, UpdateSchema, UpdateSortOrder, UpdateSpec, UpgradeTable
from icekeep.commit.changes.files import AppendFiles, CherryPick
from icekeep.commit.changes.snapshots import RollbackToSnapshot, SetCurrentSnapshot
from icekeep.commit.retry import commit
from icekeep.commit.summary import STAGED_WAP_ID
from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    NotFoundError,
    OutcomeUnknownError,
    UnsupportedError,
    UsageError,
    argument,
    shown_command,
)
from icekeep.formats.arrow.projection import cast_to_schema
from icekeep.formats.arrow.schema import iceberg_schema
from icekeep.formats.evaluate import split_by_partition
from icekeep.formats.options import FileNames, WriteOptions, attempt_name, write_options
from icekeep.formats.writer import DataFileWriter
from icekeep.planning.commit_readers import MergingManifestReader, SparkManifestReader
from icekeep.planning.spark.session import LIMITS, Engine, Limits
from icekeep.spec.evolution import PartitionChange, SchemaChange
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import SUPPORTED_FORMAT_VERSION, is_ancestor, new_table_metadata, newest_ancestor_before
from icekeep.spec.partitioning import build_spec, partition_path
from icekeep.spec.schema import Schema, assign_fresh_ids, check_format_version
from icekeep.spec.snapshots import MAIN
from icekeep.spec.sorting import SortKey
from icekeep.spec.times import Moment, format_time, moment_ms
from icekeep.tables.refs import head_of, head_to_commit_to

T = TypeVar("T")


def new_files(
    table: Table, rows: pa.Table, options: WriteOptions, new_location: Callable[[str], str]
) -> Iterator[DataFile]:
    """Write rows as data files of the current schema and spec, split by partition, and yield each finished file.

    Args:
        rows: in columns with the names of the table's.
        new_location: makes the location of a file from the path of its partition.

    Raises what `cast_to_schema`, `split_by_partition` and `stored_schema` raise.
    """
    metadata = table.metadata
    for partition, part in split_by_partition(cast_to_schema(rows, metadata.schema), metadata.spec, metadata.schema):
        path = partition_path(metadata.spec, metadata.schema, partition)
        with DataFileWriter(
            table.storage,
            metadata.schema,
            options,
            partial(new_location, path),
            spec_id=metadata.default_spec_id,
            partition=partition,
        ) as writer:
            writer.write(part)
            yield from writer.close()


def append(
    table: Table,
    rows: pa.Table | Iterable[pa.Table],
    *,
    branch: str = MAIN,
    summary: Mapping[str, str] | None = None,
) -> Table:
    """Write rows as data files and commit them as one snapshot; returns the table after it.

    Each of several tables gets data files of its own. Columns are matched by name; a missing one takes its
    `write-default`. The files are in the format that the table property `write.format.default` names.

    Args:
        rows: of columns with the names of the table's.
        branch: where to commit; one that is not there is not made (`create_branch` does that).
        summary: entries for the snapshot's summary.

    Raises:
        NotFoundError: there is no such branch; nothing was written.
        UsageError: the columns do not fit the table's, a required one is null, or missing and without a default, a property
            of the table has a value that it cannot take, or `branch` is a tag.
        UnsupportedError: a column's type or the table's partition spec cannot be written, or code of another engine says
            where its data files go.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    metadata = table.metadata
    head_to_commit_to(metadata, branch)
    options = write_options(metadata.properties, metadata.schema, metadata.sort_order)
    operation = str(table.runtime.new_uuid())
    files: list[DataFile] = []

    def discard() -> None:
        table.storage.delete_many([file.file_path for file in files])

    try:
        for number, part in enumerate([rows] if isinstance(rows, pa.Table) else rows):
            names = FileNames(attempt_name(operation, number), metadata.location, metadata.properties)
            for file in new_files(table, part, options, partial(names.location, options.file_suffix)):
                files.append(file)
    except BaseException:
        discard()
        raise
    try:
        change = AppendFiles(files=tuple(files), branch=branch, summary=summary or {})
        return commit(table, change, reader=MergingManifestReader(table.storage), undo=discard).table
    except OutcomeUnknownError:
        raise
    except IcekeepError:
        # Only an error of ours proves that nothing was committed: an interrupt may come after the commit.
        discard()
        raise


def create_table(
    catalog: Catalog,
    identifier: str | Identifier,
    schema: Schema | pa.Schema,
    *,
    partition_by: Iterable[tuple[str, str] | tuple[str, str, str]] = (),
    location: str | None = None,
    properties: Mapping[str, str] | None = None,
    format_version: int = 2,
) -> Table:
    """Create an empty table; its namespace must exist.

    Args:
        identifier: the table's name in the catalog, as `db.events` or its parts.
        schema: the columns; they get new field ids.
        partition_by: a column, a transform such as `month` or `bucket[16]`, and perhaps a name, for each partition field.
        location: where the table's files go; below the catalog's warehouse if `None`.
        properties: the table's, by Iceberg's names.
        format_version: 1, 2 or 3.

    Raises:
        UsageError: the table exists already, `partition_by` does not fit the schema, or there is no such format version.
        NotFoundError: the catalog has no such namespace, or the schema no such column.
        UnsupportedError: a column's type or default has no place in a table of that version.
        InvalidTableError: the columns make no schema, such as two of one name.
    """
    identifier = as_identifier(identifier)
    columns = assign_fresh_ids(schema if isinstance(schema, Schema) else iceberg_schema(schema))
    if not 1 <= format_version <= SUPPORTED_FORMAT_VERSION:
        raise UsageError(f"there is no format version {format_version}; give 1 to {SUPPORTED_FORMAT_VERSION}")
    try:
        check_format_version(columns, format_version)
    except InvalidTableError as error:
        raise UnsupportedError(error.message, **error.facts) from error
    spec = build_spec(columns, [(*field, None)[:3] for field in partition_by])
    metadata = new_table_metadata(
        schema=columns,
        spec=spec,
        location=location or catalog.default_location(identifier),
        table_uuid=str(catalog.runtime.new_uuid()),
        now_ms=catalog.runtime.now_ms(),
        properties=properties,
        format_version=format_version,
    )
    return catalog.create(identifier, metadata)


def _several(name: str, given: Iterable[T]) -> tuple[T, ...]:
    """All that an argument has; raises `UsageError` for one alone, in the place of several."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"{argument(name)} is {given!r}; give a list: [{given!r}]")
    return tuple(given)


def update_schema(table: Table, changes: Iterable[SchemaChange]) -> Table:
    """Apply changes to the current schema, in order, and commit them as one; returns the table after it.

        update_schema(table, [AddColumn("note", "string"), RenameColumn("ts", "at"), MoveFirst("at")])

    No data file changes. If another writer commits meanwhile, the changes are applied to the schema that is there then.

    Raises:
        UsageError: the spec, the table's format version, partition spec or sort order do not allow a change.
        NotFoundError: a column is not there.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    return commit(table, UpdateSchema(_several("changes", changes))).table


def update_sort_order(table: Table, keys: Iterable[SortKey | str]) -> Table:
    """Replace the default sort order and commit; returns the table after it. Without keys the table is not sorted.

        update_sort_order(table, ["country", SortKey("ts", "day", "desc")])

    Only files that are written or sorted from now on are in this order.

    Args:
        keys: what to sort by, the first one first; a text is a column in its own order, nulls first.

    Raises:
        UsageError: a transform does not take its column, or is unknown.
        NotFoundError: a column is not there.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    change = UpdateSortOrder(tuple(SortKey(key) if isinstance(key, str) else key for key in _several("keys", keys)))
    return commit(table, change).table


def update_spec(table: Table, changes: Iterable[PartitionChange]) -> Table:
    """Apply changes to the default partition spec, in order, and commit them as one; returns the table after it.

        update_spec(table, [RemovePartitionField("ts_month"), AddPartitionField("ts", "day", name="day")])

    Only new files are partitioned so; others keep the spec that they were written with until they are rewritten.

    Raises:
        UsageError: a change does not fit the schema or the other fields.
        NotFoundError: a column or a partition field is not there.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    return commit(table, UpdateSpec(_several("changes", changes))).table


def upgrade_format_version(table: Table, format_version: int) -> Table:
    """Give a table a newer format version and commit; returns the table after it. There is no way back.

    No file changes: readers of the new version read what was written by the old one. Readers that know only the old
    version cannot open the table any more.

    Raises:
        UsageError: the version is older than the table's, or newer than the newest that is known.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    return commit(table, UpgradeTable(format_version, str(table.runtime.new_uuid()))).table


def drop_statistics(table: Table, snapshot_id: int | None = None) -> Table:
    """Drop a snapshot's statistics and partition statistics and commit; returns the table after it.

    No file is deleted: what the metadata no longer names is found by `remove_orphan_files`. Where there are no statistics
    nothing is committed.

    Args:
        snapshot_id: whose statistics go; by default those of the current snapshot of `table`.

    Raises:
        NotFoundError: the table has no such snapshot, or none at all.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    chosen = table.metadata.current_snapshot_id if snapshot_id is None else snapshot_id
    if chosen is None:
        raise NotFoundError(f"table {table.name!r} has no snapshot that could have statistics")
    ids = (table.metadata.snapshot(chosen).snapshot_id,)
    return commit(table, ChangeStatistics(removals=ids, partition_removals=ids)).table


_BEFORE_SPARK = Limits(
    commit_entries_count=LIMITS.entries_count, commit_manifests_count=10 * LIMITS.commit_manifests_count
)
"""Without a session: this many entries and manifests are read before one has started."""


def rollback_to_snapshot(table: Table, snapshot_id: int) -> Table:
    """Make an ancestor of the current snapshot current, and commit; returns the table after it.

    No file is deleted, and the snapshots that leave the history stay until they expire.

    Raises:
        UsageError: the snapshot is not an ancestor of the current one.
        NotFoundError: the table has no such snapshot.
        ConflictError: others have committed to `main` since `table` was loaded; further as `commit` raises it.
        OutcomeUnknownError: as `commit` raises it.
    """
    change = RollbackToSnapshot(snapshot_id=snapshot_id, expected_id=table.metadata.current_snapshot_id)
    return commit(table, change).table


def rollback_to_timestamp(table: Table, timestamp: Moment) -> Table:
    """Make the newest ancestor of the current snapshot that is older than a moment current, as `rollback_to_snapshot` does.

    `timestamp` is the moment, or how long ago.

    Raises:
        NotFoundError: no ancestor is older.
        ConflictError, OutcomeUnknownError: as `rollback_to_snapshot` raises them.
    """
    before_ms = moment_ms(timestamp, table.runtime.now_ms())
    snapshot = newest_ancestor_before(table.metadata, before_ms)
    if snapshot is None:
        raise NotFoundError(
            f"the history of table {table.name!r} has no snapshot that is older than {format_time(before_ms)}; "
            f"`{shown_command('history', '--table', table.full_name)}` lists its snapshots"
        )
    return rollback_to_snapshot(table, snapshot.snapshot_id)


def set_current_snapshot(table: Table, snapshot_id: int | None = None, *, ref: str | None = None) -> Table:
    """Make any snapshot of the table current, and commit; returns the table after it.

    In place of its id, `ref` is a branch or tag that names it in `table`.

    Raises:
        UsageError: both are given, or neither.
        NotFoundError: the table has no such snapshot, branch or tag.
        ConflictError: others have committed to `main` since `table` was loaded; further as `commit` raises it.
        OutcomeUnknownError: as `commit` raises it.
    """
    if (snapshot_id is None) is (ref is None):
        raise UsageError(f"give either a {argument('snapshot_id')} or a ref")
    if ref is not None:
        snapshot_id = head_of(table, ref)
    assert snapshot_id is not None
    change = SetCurrentSnapshot(snapshot_id=snapshot_id, expected_id=table.metadata.current_snapshot_id)
    return commit(table, change).table


def cherrypick_snapshot(table: Table, snapshot_id: int) -> Table:
    """Publish on `main` a snapshot that was staged, or is on a branch, and commit; returns the table after it.

    If `main` is at the snapshot's parent, the snapshot itself becomes current. Otherwise an append or a dynamic overwrite
    is made again as a new snapshot, whatever others commit meanwhile.

    Raises:
        UsageError: the snapshot or its `wap.id` was published already, it is of another kind and not next to `main`, or it
            overwrites partitions that have changed since it was written.
        NotFoundError: the table has no such snapshot.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    if is_ancestor(table.metadata, snapshot_id, of=table.metadata.current_snapshot_id):
        raise UsageError(f"cannot cherry-pick snapshot {snapshot_id}: it is in the history of main already")
    reader = SparkManifestReader(Engine(limits=_BEFORE_SPARK), table.storage)
    return commit(table, CherryPick(snapshot_id), reader=reader).table


def publish_changes(table: Table, wap_id: str) -> Table:
    """Publish the snapshot that was staged with this `wap.id`, as `cherrypick_snapshot` does.

    Raises:
        NotFoundError: no snapshot was staged with it.
        UsageError: several were, or as `cherrypick_snapshot` raises it.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    staged = [s.snapshot_id for s in table.metadata.snapshots if (s.summary or {}).get(STAGED_WAP_ID) == wap_id]
    if not staged:
        raise NotFoundError(f"table {table.name!r} has no snapshot with the {STAGED_WAP_ID} {wap_id!r}")
    if len(staged) > 1:
        raise UsageError(
            f"snapshots {', '.join(map(str, staged))} of table {table.name!r} all have the {STAGED_WAP_ID} {wap_id!r}; "
            "publish one by its id, with `icekeep ref publish --snapshot-id`"
        )
    return cherrypick_snapshot(table, staged[0])
