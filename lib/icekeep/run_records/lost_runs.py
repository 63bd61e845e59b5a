"""Runs that died, and so could append themselves to the Iceberg table of runs: the next run of many does it for them."""

import msgspec

from icekeep.catalog.base import Catalog, Identifier
from icekeep.run_records.iceberg_table import append_runs
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import UNFINISHED, RunFilter, RunRecord


def append_with_lost(catalog: Catalog, identifier: Identifier, record: RunRecord, records: RunRecords | None) -> None:
    """Append an ended run as `append_runs` does; a run over many tables takes along those that died, with all their parts.

    A run that died has no end in the record of runs until then; from then on it is when it was last seen, and the run is still
    shown as unfinished. Where this process dies between the two it is appended twice.

    Raises:
        IcekeepError: as `append_runs`, or the record of runs is out of reach.
    """
    if records is None or record.table:
        append_runs(catalog, identifier, record, records)
        return
    now_ms = record.seen_ms
    dead = _dead(records, now_ms)
    append_runs(
        catalog, identifier, record, records, lost=[one for run in dead for one in _with_parts(run, records, now_ms)]
    )
    for run in dead:
        records.end(msgspec.structs.replace(run, ended_ms=run.seen_ms))


def _dead(records: RunRecords, now_ms: int) -> list[RunRecord]:
    """Runs that died and that nobody has appended; none that are a part of another."""
    found = records.select(RunFilter(status=UNFINISHED), now_ms)
    return [one for one in found if one.parent_id is None and one.ended_ms is None]


def _with_parts(run: RunRecord, records: RunRecords, now_ms: int) -> list[RunRecord]:
    parts = records.select(RunFilter(parent_id=run.run_id), now_ms)
    return [msgspec.structs.replace(one, status=one.status_at(now_ms)) for one in (run, *parts)]
