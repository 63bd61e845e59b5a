"""Ended runs in an Iceberg table, which any engine can query."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.errors import NotFoundError, UsageError
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RUNNING, RunFilter, RunRecord
from icekeep.tables.verbs import append, create_table

_TIME = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("parent_id", pa.string()),
        pa.field("job", pa.string(), nullable=False),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("policy", pa.string()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("exit_status", pa.int32()),
        pa.field("error_kind", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("started_at", _TIME, nullable=False),
        pa.field("ended_at", _TIME),
        pa.field("host", pa.string()),
        pa.field("version", pa.string()),
        pa.field("arguments", pa.string()),
        pa.field("app_id", pa.string()),
        pa.field("snapshot_id_before", pa.int64()),
        pa.field("snapshot_id_after", pa.int64()),
        pa.field("metadata_location_before", pa.string()),
        pa.field("metadata_location_after", pa.string()),
        pa.field("result", pa.string()),
    ]
)
"""`arguments` and `result` are JSON."""

_PARTITION_BY = (("started_at", "month"),)

_PATIENCE = {
    "commit.retry.num-retries": "1000",
    "commit.retry.min-wait-ms": "50",
    "commit.retry.max-wait-ms": "250",
    "commit.retry.total-timeout-ms": "15000",
}
"""Of these commits, whatever the table says: many runs append to one table at once, as the tasks of a scheduler do, so that
conflicts are many and short; but no run waits for longer than some seconds to be written down.
"""


def append_runs(
    catalog: Catalog,
    identifier: Identifier,
    record: RunRecord,
    records: RunRecords | None,
    *,
    lost: Iterable[RunRecord] = (),
) -> None:
    """Append an ended run, and all that are a part of it as `records` have them, in one commit; the table is made if need be.

    Args:
        lost: are appended with it.

    Raises:
        IcekeepError: the table cannot be made, or is none for runs, or the commit did not land.
    """
    parts = [] if records is None else records.select(RunFilter(parent_id=record.run_id), record.seen_ms)
    rows = rows_of([record, *(one for one in parts if one.status != RUNNING), *lost])
    table = _loaded_or_made(catalog, identifier)
    append(_with_patience(table), rows)


def rows_of(records: Iterable[RunRecord]) -> pa.Table:
    """Runs as rows of `COLUMNS`."""
    return pa.Table.from_pylist([_row(one) for one in records], COLUMNS)


def _loaded_or_made(catalog: Catalog, identifier: Identifier) -> Table:
    try:
        return catalog.load(identifier)
    except NotFoundError:
        catalog.create_namespace(identifier[:-1], exists_ok=True)
    try:
        return create_table(catalog, identifier, COLUMNS, partition_by=_PARTITION_BY)
    except UsageError:
        # Another run has made it just now.
        return catalog.load(identifier)


def _with_patience(table: Table) -> Table:
    """The table, for commits that are tried as `_PATIENCE` says; they go by the properties of the table that they are given."""
    metadata = msgspec.structs.replace(table.metadata, properties={**table.metadata.properties, **_PATIENCE})
    return msgspec.structs.replace(table, metadata=metadata)


def _row(record: RunRecord) -> dict[str, object]:
    row = msgspec.structs.asdict(record)
    told: dict[str, object] = {name: row[name] for name in COLUMNS.names if name in row}
    json = {name: msgspec.json.encode(row[name]).decode() for name in ("arguments", "result") if row[name] is not None}
    ended_at = None if record.ended_ms is None else _time(record.ended_ms)
    return {**told, "table_name": record.table, "started_at": _time(record.started_ms), "ended_at": ended_at, **json}


def _time(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)
