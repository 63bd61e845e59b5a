"""What `icekeep report` prints for people: a line a table, or of one table all that fits a screen."""

from collections.abc import Mapping
from typing import Any

from icekeep.health.values import JobAdvice, TableHealth
from icekeep.rendered import Details
from icekeep.reports.since import figure_changed
from icekeep.reports.values import ReportResult, ReportSince, TableChange, TableFigures
from icekeep.spec.times import format_time
from icekeep.spelling import counted

_BAR = 30
_WITH_REASONS = 3
"""Of more tables than these a terminal shows no reasons, unless asked to."""


def report_shown(report: ReportResult) -> Mapping[str, Any]:
    """The values and rows that are printed of a report."""
    shown: dict[str, Any] = {
        "tables_count": report.tables_count,
        "requests_count": report.requests_count,
        "read_bytes": report.read_bytes,
        "elapsed_ms": report.elapsed_ms,
    }
    if report.not_read:
        shown["not_read"] = [f"{one.name}: {one.reason}{_faults(one.faults)}" for one in report.not_read]
    if report.since is not None:
        shown |= _since(report.since)
    if len(report.tables) == 1 and not report.not_read:
        return {**shown, **health_shown(report.tables[0], report.currency)}
    if report.tables:
        shown["tables"] = [_row(one) for one in report.tables]
        several = list if len(report.tables) <= _WITH_REASONS else Details
        shown["why"] = several(line for one in report.tables for line in _reasons(one))
        shown["to_do"] = several(
            {"table": one.table, **_job(job, report.currency)} for one in report.tables for job in one.to_do
        )
        shown["next"] = _next(report)
    return {name: value for name, value in shown.items() if value != []}


def _since(since: ReportSince) -> dict[str, Any]:
    changed = since.changed
    counts = f"{len(changed):,} of {counted(len(since.tables), 'tables')} changed"
    rows = {"changes": [_change(one) for one in changed]} if changed else {}
    return {"since": f"{format_time(since.timestamp_ms)}: {counts}", **rows}


def _change(one: TableChange) -> dict[str, Any]:
    figures = {name: figure_changed(one, name) for name in TableFigures.__struct_fields__}
    return {"table": one.table, "state": one.state.replace("_", " "), **figures}


def _row(one: TableHealth) -> dict[str, Any]:
    return {
        "table": one.table,
        "score": f"{one.score:.0f}",
        "bytes": one.data.data_files_bytes,
        "data_files": one.data.data_files_count,
        "small": one.data.small_files_together_count,
        "delete_files": one.deletes.files_count,
        "deleted": f"{one.deletes.deleted_ratio:.1%}",
        "manifests": one.metadata.manifests_count,
        "snapshots": one.snapshots.snapshots_count,
        "faults": one.faults_count,
        "to_do": ", ".join(job.job for job in one.to_do),
    }


def _next(report: ReportResult) -> str:
    worst = next((one for one in report.tables if one.to_do), None)
    if worst is None:
        return "nothing"
    return f"`icekeep report --table {worst.table}` says why, and what each job would do"


def _reasons(one: TableHealth) -> list[str]:
    return [f"{one.table} {part.name} (-{part.lost:.0f}): {part.reason}" for part in one.score_parts]


def _job(job: JobAdvice, currency: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "job": job.job,
        "why": job.reason,
        "brings": job.gain,
        "read_bytes": job.read_bytes,
        "written_bytes": job.written_bytes,
        "requests": job.requests_count,
        "core_s": "< 0.1" if 0 < job.cpu_ms < 100 else f"{job.cpu_ms / 1000:,.1f}",
    }
    if currency is not None and job.cost is not None:
        told["cost"] = f"{job.cost:,.4f} {currency}"
    return told


def _has_work(job: JobAdvice) -> bool | str:
    return job.has_work if job.done_by is None else f"{job.done_by} does it"


def health_shown(one: TableHealth, currency: str | None = None) -> Mapping[str, Any]:
    """The values and rows that are printed of one table; without a currency no job has a cost."""
    shown: dict[str, Any] = {"table": one.table, "score": f"{one.score:.1f} of 100", "location": one.location}
    for part in ("snapshots", "metadata", "data", "deletes", "partitions"):
        values = getattr(one, part)
        shown[part] = {name: getattr(values, name) for name in values.__struct_fields__ if name != "histogram"}
    for part in ("growth", "own_files"):
        values = getattr(one, part)
        if values is not None:
            shown[part] = {name: getattr(values, name) for name in values.__struct_fields__}
    shown["why"] = [f"{part.name} (-{part.lost:.0f}): {part.reason}" for part in one.score_parts]
    shown["sizes_of_data_files"] = _bars(one)
    shown["faults"] = [f"{f.fault_id} {f.name}: {f.faults_count:,}" for f in one.faults]
    shown["refs"] = [
        {
            "ref": ref.ref,
            "type": ref.type,
            "snapshots": ref.snapshots_count,
            "only_snapshots": ref.only_snapshots_count,
            "bytes": ref.bytes,
            "only_bytes": ref.only_bytes,
        }
        for ref in one.refs
    ]
    shown["jobs"] = [{**_job(job, currency), "has_work": _has_work(job)} for job in one.jobs]
    shown["last_maintenance"] = [
        {"job": seen.job, "when": format_time(seen.timestamp_ms), "made_by": seen.made_by}
        for seen in one.last_maintenance
    ]
    shown["streams"] = [
        {"writer": seen.writer, "snapshots": seen.snapshots_count, "last": format_time(seen.timestamp_ms)}
        for seen in one.streams
    ]
    shown["not_measured"] = list(one.not_measured)
    return {name: value for name, value in shown.items() if value not in ([], {})}


def _bars(one: TableHealth) -> list[dict[str, Any]]:
    most = max((bucket.files_count for bucket in one.data.histogram), default=1)
    return [
        {
            "from_bytes": bucket.least_bytes,
            "files": bucket.files_count,
            "": "#" * max(1, round(_BAR * bucket.files_count / most)),
        }
        for bucket in one.data.histogram
    ]


def _faults(faults: tuple[Any, ...]) -> str:
    told = ", ".join(f"{one.fault_id} {one.name}" for one in faults)
    return f" (faults: {told}; `icekeep check` tells more)" if told else ""
