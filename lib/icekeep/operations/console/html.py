"""Results and plans as HTML, for notebooks: the values, rows and units that the command line prints for people."""

from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from typing import Any

from icekeep.errors import printable
from icekeep.operations.console.values import MAX_ROWS, columns_of, format_value, plain_values, shown_name, split_values
from icekeep.operations.jobs import resolve

_LINES_SHOWN = 15
"""More lines and rows than these are folded away until somebody clicks."""

FOR_PEOPLE: Mapping[str, str] = {
    "ApplyResult": "icekeep.operations.commands.applying:applied_shown",
    "CheckResult": "icekeep.operations.shown.check:check_shown",
    "CommitHistoryResult": "icekeep.operations.shown.history:history_shown",
    "MaintainResult": "icekeep.operations.shown.maintain:maintain_shown",
    "PolicyExplanation": "icekeep.operations.commands.policy_explanation:explanation_shown",
    "RepairPlan": "icekeep.operations.shown.repair:repair_shown",
    "RepairResult": "icekeep.operations.shown.repair:repair_shown",
    "ReportResult": "icekeep.reports.values:report_shown",
    "TableHealth": "icekeep.reports.values:health_shown",
}
"""Where the function is that makes what people see of a value, by the value's class; all others are shown as they are."""


PICTURES: Mapping[str, str] = {"FileLayout": "icekeep.reports.layout_picture:one_picture"}
"""The same of values that are better looked at."""


def html_of(value: Any) -> str:
    """A result or a plan as small tables: single values first, then rows."""
    name = type(value).__name__
    if name in PICTURES:
        picture: str = resolve(PICTURES[name])(value)._repr_html_()
        return f"<div><b>{_visible(name)}</b><br>{picture}</div>"
    shows: Callable[[Any], Mapping[str, Any]] = resolve(FOR_PEOPLE[name]) if name in FOR_PEOPLE else plain_values
    single, rows = split_values(shows(value))
    parts = [f"<b>{_visible(name)}</b>"]
    if single:
        parts.append(_table((), [(shown_name(key), format_value(key, one)) for key, one in single.items()]))
    parts += (_folded(key, items) for key, items in rows.items())
    return f"<div>{''.join(parts)}</div>"


def _folded(name: str, items: Sequence[Any]) -> str:
    shown = items[:MAX_ROWS]
    content = _rows(shown) if isinstance(shown[0], Mapping) else _lines(shown)
    more = len(items) - len(shown)
    if more:
        content += f"<p>... and {more:,} more</p>"
    is_open = " open" if len(items) <= _LINES_SHOWN else ""
    return f"<details{is_open}><summary>{_visible(name)} ({len(items):,})</summary>{content}</details>"


def _rows(items: Sequence[Mapping[str, Any]]) -> str:
    columns = columns_of(items)
    numbers = {column for column, are_numbers in columns.items() if are_numbers}
    cells = [[format_value(column, item.get(column)) for column in columns] for item in items]
    return _table([*columns], cells, numbers)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> str:
    head = "".join(f"<th>{_visible(shown_name(column))}</th>" for column in columns)
    sides = ["right" if column in numbers else "left" for column in columns] or ["left", "left"]
    body = "".join(
        "<tr>" + "".join(_cell(text, side) for text, side in zip(row, sides, strict=True)) + "</tr>" for row in rows
    )
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _cell(text: str, side: str) -> str:
    style = f"text-align: {side}{'; white-space: nowrap' if side == 'right' else ''}"
    return f'<td style="{style}">{_visible(text)}</td>'


def _lines(items: Sequence[Any]) -> str:
    return f"<pre>{chr(10).join(_visible(str(item)) for item in items)}</pre>"


def _visible(text: str) -> str:
    """A text as the terminal shows it, as HTML."""
    return escape(printable(text))
