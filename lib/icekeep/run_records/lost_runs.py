"""Runs that died, and so could append themselves to the Iceberg table of runs: the next run of many does it for them."""

from contextlib import suppress

import msgspec

from icekeep.catalog.base import Catalog, Identifier
from icekeep.errors import IcekeepError
from icekeep.run_records.iceberg_table import append_runs
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import UNFINISHED, RunFilter, RunRecord


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
