"""What the command `demo` does: a playground is made, its tables looked at as `report` looks at them, and commands proposed."""

import shlex
import subprocess
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from icekeep.errors import UsageError
from icekeep.events import SILENT, Listener, Warned
from icekeep.operations.commands.report import report_over
from icekeep.operations.configuration.file import config_words
from icekeep.operations.console.output import write_at_once
from icekeep.operations.loading import configured_catalogs
from icekeep.playground.job import CATALOG, NAMESPACE, make_playground
from icekeep.playground.states import STATES, State
from icekeep.reports.page.page import report_page
from icekeep.reports.values import ReportResult

REPORT = "report.html"


class DemoTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a playground.

    Attributes:
        table: `catalog.namespace.name`.
        what: is wrong with it and how that came, in one line.
        score: 0 to 100 (healthy), as `report` tells it; `None` where that cannot read the table.
        why: what takes points from the score, the most first, or why the table cannot be read.
        commands: that look at it or mend it, in the order in which they should run; those of `report`, and others that help.
    """

    table: str
    what: str
    score: float | None
    why: tuple[str, ...]
    commands: tuple[str, ...]


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """A playground as it was when it was made.

    Attributes:
        directory: where it is.
        config: its configuration, which each of the commands names.
        report: the report as a page; `None` where the packages for that are not installed.
        is_opened: whether a browser was asked to show the page.
        catalog: what the configuration calls it.
    """

    directory: str
    config: str
    report: str | None
    is_opened: bool
    catalog: str
    tables_count: int
    tables: tuple[DemoTable, ...]


def demo(*, directory: str, opens: bool = False, listener: Listener = SILENT) -> DemoResult:
    """Make a playground in a directory, and look at it.

    Args:
        directory: must be empty, or not there.
        opens: whether a browser is asked to show the report, without waiting for it.

    Raises:
        UsageError: the directory is something else, or cannot be written.
    """
    where = Path(directory).absolute()
    config = make_playground(where, STATES, listener=listener)
    found = report_over(
        lambda: configured_catalogs(str(config)), CATALOG, None, match="**", histories=True, listener=listener
    )
    page = _written_page(found, where, listener)
    return DemoResult(
        directory=str(where),
        config=str(config),
        report=None if page is None else str(page),
        is_opened=opens and page is not None and _opened(page, listener),
        catalog=CATALOG,
        tables_count=len(STATES),
        tables=tuple(_told(state, found, config) for state in STATES),
    )


def demo_shown(result: DemoResult) -> Mapping[str, Any]:
    """What is printed for people: each table with its state, and then the commands, table by table."""
    return {
        "report": result.report,
        "tables": [
            {
                "table": one.table,
                "score": "-" if one.score is None else f"{one.score:.0f}",
                "what is wrong": one.what,
            }
            for one in result.tables
        ],
        "commands": [command for one in result.tables for command in one.commands],
        "all at once": [_command(words, result.config) for words in ("report", "maintain --dry-run")],
    }


def _told(state: State, found: ReportResult, config: Path) -> DemoTable:
    name = f"{CATALOG}.{NAMESPACE}.{state.name}"
    more = tuple(_command(f"{words} --table {name}", str(config)) for words in state.more)
    health = next((one for one in found.tables if one.table == name), None)
    if health is None:
        unread = next((one for one in found.not_read if one.name == name), None)
        why = () if unread is None else (f"{unread.kind}: {unread.reason}",)
        return DemoTable(table=name, what=state.what, score=None, why=why, commands=more)
    return DemoTable(
        table=name,
        what=state.what,
        score=health.score,
        why=tuple(f"{part.name} (-{part.lost:.0f}): {part.reason}" for part in health.score_parts),
        commands=(*more, *(job.command for job in health.to_do)),
    )


def _command(words: str, config: str) -> str:
    return f"icekeep {words} {shlex.join(config_words(config))}"


def _written_page(found: ReportResult, directory: Path, listener: Listener) -> Path | None:
    """The report as a page beside the tables; without the packages that draw it the tables are worth having too."""
    page = directory / REPORT
    try:
        write_at_once(str(page), report_page(found), "report")
    except UsageError as error:
        listener.on(Warned(f"the report is not written: {error.message}"))
        return None
    return page


def _opened(page: Path, listener: Listener) -> bool:
    """Ask for a browser, in a process that nobody waits for: one without windows would take the terminal, and keep it."""
    try:
        webbrowser.get()
    except webbrowser.Error:
        listener.on(Warned(f"there is no browser that could show {str(page)!r}"))
        return False
    nowhere = subprocess.DEVNULL
    words = [sys.executable, "-m", "webbrowser", page.as_uri()]
    subprocess.Popen(words, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
    return True
