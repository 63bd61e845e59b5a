"""What a job with `--match` prints for people: a line for each table, what went wrong on which, and how many there were."""

from collections.abc import Mapping
from typing import Any

from icekeep.fleet.values import MatchedTables
from icekeep.operations.runbooks import ending_of
from icekeep.operations.shown.maintain import figures_shown
from icekeep.spec.times import about_span


def matching_shown(result: MatchedTables) -> Mapping[str, Any]:
    """The rows and values that are printed."""
    told = {
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
    return {name: value for name, value in told.items() if value != []}
