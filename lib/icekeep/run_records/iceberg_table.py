"""Ended runs in an Iceberg table, which any engine can query.

A run that died cannot append itself: the next run over many tables does it.
"""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.errors import IcekeepError, NotFoundError, UsageError
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunFilter, RunRecord
from icekeep.runs import RUNNING, UNFINISHED
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


def append_with_lost(catalog: Catalog, identifier: Identifier, record: RunRecord, records: RunRecords | None) -> None:
    """Append an ended run as `append_runs` does; a run over many tables takes along those that died, with all their parts.

    A run that died has no end in the record of runs until then; from then on it is when it was last seen, and the run is still
    shown as unfinished. That is noted before it is appended, and only of a run that was not heard of since it was read: none
    that lives loses its end, and no other run appends it as well. Where this process dies between the two it is not appended.

    Raises:
        IcekeepError: as `append_runs`, or the record of runs is out of reach.
    """
    if records is None or record.table:
        append_runs(catalog, identifier, record, records)
        return
    now_ms = record.seen_ms
    dead: list[RunRecord] = []
    try:
        for run in _dead(records, now_ms):
            if records.mark_dead(run):
                dead.append(run)
        lost = [one for run in dead for one in _with_parts(run, records, now_ms)]
        append_runs(catalog, identifier, record, records, lost=lost)
    except BaseException:
        # Why it failed is what is raised, whatever becomes of this.
        with suppress(IcekeepError):
            for run in dead:
                records.unmark_dead(run)
        raise


def _dead(records: RunRecords, now_ms: int) -> list[RunRecord]:
    """Runs that died for certain and that nobody has appended; none that are a part of another."""
    found = records.select(RunFilter(status=UNFINISHED), now_ms)
    return [one for one in found if one.parent_id is None and one.ended_ms is None and one.is_surely_dead(now_ms)]


def _with_parts(run: RunRecord, records: RunRecords, now_ms: int) -> list[RunRecord]:
    parts = records.select(RunFilter(parent_id=run.run_id), now_ms)
    return [msgspec.structs.replace(one, status=one.status_at(now_ms)) for one in (run, *parts)]
