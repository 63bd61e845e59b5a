"""What log lines about a table say beside their message, for `logging`'s `extra`."""

from typing import Any

from icekeep.catalog.base import Table


def log_context(table: Table, step: str | None = None) -> dict[str, Any]:
    """The table's full name, the run and the job that work on it, and the step that the line is about."""
    run = table.run
    return {
        "table": table.full_name,
        "run": None if run is None else run.run_id,
        "job": None if run is None else run.job,
        "step": step,
    }
