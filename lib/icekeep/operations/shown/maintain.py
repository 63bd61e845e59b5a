"""What `icekeep maintain` prints for people: what was done, and what was not and why; jobs that were not due are counted."""

from collections.abc import Mapping
from typing import Any

from icekeep.errors import shortened
from icekeep.fleet.choosing import NAMED_FROM
from icekeep.fleet.values import IDLE, DueList, Failing, JobStatus, MaintainResult
from icekeep.spec.times import about_span
from icekeep.spec.types import format_bytes

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
    told = {
        **shown,
        "looked_ms": result.looked_ms,
        "elapsed_ms": result.elapsed_ms,
        "jobs": rows,
        "failing": [f"{one.table} {one.job}: {_often(one)}{one.why}" for one in result.failing],
        "not_read": [f"{one.name}: {one.reason}" for one in result.not_read],
        **_idle(result),
        "problems": [f"{table.table}: {problem}" for table in result.tables for problem in table.problems],
        "notes": list(result.notes),
    }
    return {name: value for name, value in told.items() if value != []}


def _often(one: Failing) -> str:
    return f"failed {one.failures_in_a_row} times in a row: " if one.failures_in_a_row >= NAMED_FROM else ""


def _idle(result: MaintainResult) -> dict[str, list[dict[str, Any]]]:
    """By status the jobs that this run had no reason to begin: in a dry run all, else those that wait since they failed."""
    told = IDLE - {JobStatus.ELSEWHERE} if result.dry_run else {JobStatus.POSTPONED}
    return {
        status: [
            {"table": table.table, "job": job.job, "why": shortened(job.why, _WHY_LENGTH)}
            for table in result.tables
            for job in table.jobs
            if job.status == status
        ]
        for status in sorted(told)
    }


def figures_shown(figures: Mapping[str, int]) -> str:
    """The first numbers of a result, in a cell."""
    shown = [
        f"{name} {format_bytes(value) if 'bytes' in name else f'{value:,}'}"
        for name, value in list(figures.items())[:_MAX_FIGURES]
    ]
    return ", ".join(shown) or "-"


def _list_shown(result: DueList) -> Mapping[str, Any]:
    told = {
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
    return {name: value for name, value in told.items() if value != []}
