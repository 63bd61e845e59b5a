"""Results as people read them, where tables of the values alone would not do.

In a history changes are signed, `+3 -1`, and what did not change is left out: `-` is no change, `?` is not known. Machines get
each number by itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from icekeep.errors import shortened, shown_command
from icekeep.fleet.choosing import NAMED_FROM
from icekeep.fleet.values import IDLE, DueList, JobStatus, MaintainResult, MatchedTables
from icekeep.maintenance.check.faults import MAX_EXAMPLES, Gap
from icekeep.maintenance.check.job import CheckResult, FaultsFound
from icekeep.maintenance.history import CommitEntry, CommitHistoryResult
from icekeep.maintenance.repair.job import RepairResult
from icekeep.maintenance.repair.plan import RepairedFault, RepairPlan
from icekeep.maintenance.repair.planner import CONTENT, REPAIRED
from icekeep.operations.runbooks import ending_of
from icekeep.spec.snapshots import MAIN
from icekeep.spec.times import about_span, format_moment, format_time
from icekeep.spec.types import DAY_MS, SECOND_MS, format_bytes

_EXAMPLES = 5
"""Of each class; `--output json` has more."""


def check_shown(result: CheckResult, table: str | None = None) -> Mapping[str, Any]:
    """The values and rows that are printed of a check; without the name of the table not what to do next."""
    shown: dict[str, Any] = {
        "is_deep": result.is_deep,
        "snapshots_count": result.snapshots_count,
        "manifests_count": result.manifests_count,
        "entries_count": result.entries_count,
        "faults_count": result.faults_count,
        "not_checked_count": result.not_checked_count,
        "elapsed_ms": result.elapsed_ms,
    }
    for name, found in (("faults", result.faults), ("notices", result.notices)):
        if found:
            shown[name] = [_row(one) for one in found]
            shown[f"where_{name}_are"] = [line for one in found for line in _places(one)]
            shown[f"what_{name}_do"] = [line for one in found for line in _meaning(one)]
    everything = (*result.faults, *result.notices)
    numbers = sorted({one.fault_id for one in everything if not one.is_only_older} & REPAIRED)
    if table is not None and any(one.is_only_older for one in everything):
        shown["to_check"] = [
            shown_command("check", "--table", table, *(["--deep"] if result.is_deep else []), "--ref", MAIN)
        ]
    if numbers and table is not None:
        shown["to_mend"] = [
            shown_command("repair", "--table", table, "--fault", ",".join(map(str, numbers)), "--dry-run")
        ]
    if result.sound_metadata:
        shown["sound_metadata"] = [
            f"{one.metadata_location} of {format_time(one.timestamp_ms)}" for one in result.sound_metadata
        ]
    if result.not_checked:
        more = result.not_checked_count - len(result.not_checked)
        shown["not_checked"] = [*_gaps(result.not_checked), *([f"... and {more:,} more"] if more > 0 else [])]
    return shown


def _row(one: FaultsFound) -> dict[str, Any]:
    since = "" if one.since_timestamp_ms is None else format_moment(one.since_timestamp_ms)
    return {
        "fault_id": one.fault_id,
        "name": one.name,
        "faults_count": one.faults_count,
        "since_snapshot_id": one.since_snapshot_id,
        "since": since,
        "made_by": None if one.made_by is None else one.made_by.partition(",")[0],
    }


def _places(one: FaultsFound) -> Iterable[str]:
    # All that was asked for is printed.
    shown = one.examples if len(one.examples) > MAX_EXAMPLES else one.examples[:_EXAMPLES]
    for example in shown:
        yield f"{one.fault_id} {example.where}: {example.detail}"
    more = one.faults_count - len(shown)
    if more:
        yield f"{one.fault_id} ... and {more:,} more"


def _meaning(one: FaultsFound) -> Sequence[str]:
    return f"{one.fault_id} readers: {one.readers}", f"{one.fault_id} what to do: {one.mend}"


def _gaps(gaps: Sequence[Gap]) -> Sequence[str]:
    return [f"{gap.what}: {gap.why}" for gap in gaps]


_UNKNOWN = "?"
_FIGURES = (
    *("data_files", "records", "delete_files"),
    *("since", "other", "bytes", "files", "in_all", "deletes", "manifests", "metadata"),
)
_UNITS = (("d", DAY_MS), ("h", 3600 * SECOND_MS), ("min", 60 * SECOND_MS))


def history_shown(result: CommitHistoryResult) -> Mapping[str, Any]:
    shown: dict[str, Any] = {
        "of": "all snapshots" if result.ref is None else result.ref,
        "older_commits": result.left_out_count,
        "metadata_files_since": result.metadata_files_after_count,
    }
    shown["commits"] = _aligned([_change(entry, has_refs=result.ref is None) for entry in result.commits])
    shown["after_each"] = _aligned([_after(entry) for entry in result.commits if not entry.is_expired])
    if any(entry.note for entry in result.commits):
        shown["notes"] = [{"snapshot_id": e.snapshot_id, "note": e.note} for e in result.commits if e.note is not None]
    if result.not_read:
        shown["not_read"] = list(result.not_read)
    return shown


def _change(entry: CommitEntry, *, has_refs: bool) -> dict[str, Any]:
    """Who did what when. Of an expired commit nothing else is known than when it was."""
    row: dict[str, Any] = {
        "snapshot_id": entry.snapshot_id,
        "committed_at": format_moment(entry.timestamp_ms),
        "operation": "expired" if entry.is_expired else entry.operation,
        "made_by": _maker(entry),
    }
    if has_refs:
        row["refs"] = ", ".join(entry.refs)
    added, removed = entry.added, entry.removed
    known = not entry.is_expired
    row["data_files"] = _signed(added.data_files_count, removed.data_files_count) if known else "-"
    row["records"] = _signed(added.record_count, removed.record_count) if known else "-"
    row["delete_files"] = _signed(added.delete_files_count, removed.delete_files_count) if known else "-"
    return row


def _maker(entry: CommitEntry) -> str | None:
    """The engine, or our job: what they call the run itself is long, and stands in the JSON."""
    if entry.job is not None:
        return f"icekeep {entry.job}"
    return None if entry.made_by is None else entry.made_by.partition(",")[0]


def _after(entry: CommitEntry) -> dict[str, Any]:
    """How many bytes it took, and what there is in all after it."""
    manifests = entry.manifests
    return {
        "snapshot_id": entry.snapshot_id,
        "since": "-" if entry.since_previous_ms is None else _span(entry.since_previous_ms),
        "other": _count(entry.metadata_files_between_count),
        "bytes": _signed(entry.added.bytes, entry.removed.bytes, format_bytes),
        "files": _count(entry.after.data_files_count),
        "in_all": _size(entry.after.bytes),
        "deletes": _count(entry.after.delete_files_count),
        "manifests": f"{_count(manifests.manifests_count)} ({_signed(manifests.created_count, manifests.replaced_count)})",
        "metadata": _size(manifests.metadata_bytes),
    }


def _aligned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with figures, and their names, to the right."""
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in _FIGURES if rows and name in rows[0]}
    return [
        {
            name.rjust(widths.get(name, 0)): value.rjust(widths[name]) if name in widths else value
            for name, value in row.items()
        }
        for row in rows
    ]


def _signed(added: int | None, removed: int | None, form: Any = "{:,}".format) -> str:
    """What came and what went.

    >>> _signed(3, 0), _signed(1095, 12), _signed(0, 0), _signed(2, None)
    ('+3', '+1,095 -12', '-', '+2 -?')
    """
    parts: Iterable[tuple[str, int | None]] = (("+", added), ("-", removed))
    shown = [f"{sign}{_UNKNOWN if count is None else form(count)}" for sign, count in parts if count != 0]
    return _UNKNOWN if added is removed is None else " ".join(shown) or "-"


def _count(count: int | None) -> str:
    return _UNKNOWN if count is None else f"{count:,}"


def _size(size: int | None) -> str:
    return _UNKNOWN if size is None else format_bytes(size)


def _span(span_ms: int) -> str:
    """About how long, in the largest unit that it has one of.

    >>> _span(450), _span(5_400_000), _span(86_400_000)
    ('0.5 s', '1.5 h', '1.0 d')
    """
    unit, unit_ms = next((some for some in _UNITS if abs(span_ms) >= some[1]), ("s", SECOND_MS))
    return f"{span_ms / unit_ms:,.1f} {unit}"


_MAX_FIGURES = 4
_WHY_LENGTH = 120
"""An error may be long; `icekeep runs --run` has it all."""


def maintain_shown(result: MaintainResult | DueList) -> Mapping[str, Any]:
    """The values and rows that are printed of a run, or of a list of what is due."""
    if isinstance(result, DueList):
        return _list_shown(result)
    shown: dict[str, Any] = {
        name: getattr(result, name)
        for name in result.__struct_fields__
        if name.endswith("_count") and (getattr(result, name) or name in ("tables_count", "due_jobs_count"))
    }
    rows = [
        {
            "table": table.table,
            "job": job.job,
            "status": job.status,
            "took": about_span(job.elapsed_ms) if job.elapsed_ms else "-",
            "estimate": f"{about_span(job.estimate_ms)}, {format_bytes(job.estimate_bytes)}",
            "why": shortened(job.why, _WHY_LENGTH),
            "requests": job.requests_count,
            "figures": figures_shown(job.figures),
        }
        for table in result.tables
        for job in table.jobs
        if job.status not in IDLE or job.status == JobStatus.ELSEWHERE
    ]
    values = {
        **shown,
        "looked_ms": result.looked_ms,
        "elapsed_ms": result.elapsed_ms,
        "jobs": rows,
        "failing": [
            f"{one.table} {one.job}: "
            + (f"failed {one.failures_in_a_row} times in a row: " if one.failures_in_a_row >= NAMED_FROM else "")
            + one.why
            for one in result.failing
        ],
        "not_read": [f"{one.name}: {one.reason}" for one in result.not_read],
        **_idle(result),
        "problems": [f"{table.table}: {problem}" for table in result.tables for problem in table.problems],
        "notes": list(result.notes),
    }
    return {name: value for name, value in values.items() if value != []}


def _idle(result: MaintainResult) -> dict[str, list[dict[str, Any]]]:
    """By status the jobs that this run had no reason to begin: in a dry run all, else those that wait since they failed."""
    values = IDLE - {JobStatus.ELSEWHERE} if result.dry_run else {JobStatus.POSTPONED}
    return {
        status: [
            {"table": table.table, "job": job.job, "why": shortened(job.why, _WHY_LENGTH)}
            for table in result.tables
            for job in table.jobs
            if job.status == status
        ]
        for status in sorted(values)
    }


def figures_shown(figures: Mapping[str, int]) -> str:
    shown = [
        f"{name} {format_bytes(value) if 'bytes' in name else f'{value:,}'}"
        for name, value in list(figures.items())[:_MAX_FIGURES]
    ]
    return ", ".join(shown) or "-"


def _list_shown(result: DueList) -> Mapping[str, Any]:
    values = {
        "tables_count": len(result.tables),
        "due": [
            {
                "table": table.table,
                "job": job.job,
                "policy": job.policy,
                "estimate": about_span(job.estimate_ms),
                "why": job.why,
            }
            for table in result.tables
            for job in table.jobs
        ],
        "not_read": [f"{one.name}: {one.reason}" for one in result.not_read],
        "notes": list(result.notes),
    }
    return {name: value for name, value in values.items() if value != []}


def matching_shown(result: MatchedTables) -> Mapping[str, Any]:
    values = {
        "tables": [
            {
                "table": one.table,
                "status": one.status,
                "took": about_span(one.elapsed_ms) if one.elapsed_ms else "-",
                "figures": figures_shown(one.figures),
            }
            for one in result.tables
        ],
        "failed": [
            f"{one.table}: {one.error_message}{ending_of(one.error_kind or '')}"
            for one in result.tables
            if one.error_message is not None
        ],
        "not_read": [f"{one.name}: {one.reason}" for one in result.not_read],
        "tables_count": result.tables_count,
        "failed_tables_count": result.failed_tables_count,
        "elapsed_ms": result.elapsed_ms,
    }
    return {name: value for name, value in values.items() if value != []}


T = TypeVar("T")

_LINES = 50
"""Of each; `--output json` has all."""

_NOTHING = {"note": "no fault of these kinds was found"}


def repair_shown(result: RepairResult | RepairPlan, table: str | None = None) -> Mapping[str, Any]:
    """The values and rows that are printed of a repair, or of its plan; without the name of the table not what to do next."""
    if isinstance(result, RepairPlan):
        return {
            "mends_count": len(result.mends),
            **_what_stays_and_goes(result),
            **_rows("would_mend", result.mends, _mend),
            **_rows("not_mended", result.not_mended, lambda one: f"{one.fault_id} {one.where}: {one.reason}"),
        }
    return {
        "run": result.run,
        "mended_count": len(result.mended),
        **_what_stays_and_goes(result),
        "elapsed_ms": result.elapsed_ms,
        **({"branches": [*map(msgspec.structs.asdict, result.branches)]} if result.branches else {}),
        **_rows("mended", result.mended, _mend),
        **_rows("not_mended", result.not_mended, lambda one: f"{one.fault_id} {one.where}: {one.reason}"),
        **({"to_check": _checks(result, table)} if result.mended and table is not None else {}),
    }


def _checks(result: RepairResult, table: str) -> list[str]:
    """What looks whether all is right now: at the heads that were mended, as older snapshots keep their faults."""
    deep = ("--deep",) if any(one.fault_id > CONTENT for one in result.mended) else ()
    refs: list[tuple[str, ...]] = [("--ref", one.branch) for one in result.branches]
    return [shown_command("check", "--table", table, *deep, *ref) for ref in refs or [()]]


def _what_stays_and_goes(result: RepairResult | RepairPlan) -> dict[str, Any]:
    mends = result.mends if isinstance(result, RepairPlan) else result.mended
    return {
        "not_mended_count": len(result.not_mended),
        **(_NOTHING if not mends and not result.not_mended else {}),
        "lost_records_count": "not known" if result.lost_records_count is None else result.lost_records_count,
        "hash": result.hash,
    }


def _mend(one: RepairedFault) -> str:
    on = f" on branch {one.branch!r}" if one.branch else ""
    return f"{one.fault_id} {one.where}{on}: {one.action}"


def _rows(name: str, found: Sequence[T], line: Callable[[T], str]) -> Mapping[str, Any]:
    if not found:
        return {}
    more = len(found) - _LINES
    return {name: [*map(line, found[:_LINES]), *([f"... and {more:,} more"] if more > 0 else [])]}
