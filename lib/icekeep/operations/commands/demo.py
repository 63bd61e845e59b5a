"""What the command `demo` does: a playground is made, its tables looked at as `report` looks at them, and commands proposed."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from icekeep.errors import UsageError, commands_reading
from icekeep.events import SILENT, Listener, Warned
from icekeep.health.values import TableHealth
from icekeep.operations.commands.report import open_in_browser, report_over
from icekeep.operations.configuration.file import config_words
from icekeep.operations.console.output import write_at_once
from icekeep.operations.loading import configured_catalogs
from icekeep.playground.job import CATALOG, NAMESPACE, new_playground
from icekeep.playground.place import REPORT
from icekeep.playground.states import STATES, PlaygroundState
from icekeep.reports.page.page import report_page
from icekeep.reports.values import ReportResult


class DemoTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a playground.

    Attributes:
        table: `catalog.namespace.name`.
        what: what is wrong with it, and how that came, in one line.
        score: 0 to 100 (healthy), as `report` shows it; `None` where that cannot read the table.
        why: what takes points from the score, the most first, or why the table cannot be read.
        commands: commands that inspect or fix it, in the order in which they should run: those that `report` proposes, and
            others that help.
    """

    table: str
    what: str
    score: float | None
    why: tuple[str, ...]
    commands: tuple[str, ...]


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """A playground as it was when it was made.

    Attributes:
        directory: the path of the playground.
        config: the path of its configuration, which each of the commands names.
        report: the path of the report as a page; `None` where the packages for that are not installed.
        is_opened: whether a browser was asked to show the page.
        catalog: the name of the catalog in the configuration.
        tables_count: how many tables were made.
        tables: the tables, in the order in which they were made.
        try_first: commands to try first: a compaction, and the rollback that undoes it; empty where no table asks for one.
    """

    directory: str
    config: str
    report: str | None
    is_opened: bool
    catalog: str
    tables_count: int
    tables: tuple[DemoTable, ...]
    try_first: tuple[str, ...]


def demo(*, directory: str, in_browser: bool = False, listener: Listener = SILENT) -> DemoResult:
    """Make a playground in a directory, and look at it.

    Args:
        directory: must be empty, or not there.
        in_browser: whether a browser is asked to show the report, without waiting for it.
    """
    where = Path(directory).absolute()
    with (
        new_playground(where, STATES, listener=listener) as config,
        commands_reading(config_words(str(config))),
    ):
        found = report_over(
            lambda: configured_catalogs(str(config)), CATALOG, None, match="**", histories=True, listener=listener
        )
        page = _written_page(found, where, listener)
        return DemoResult(
            directory=str(where),
            config=str(config),
            report=None if page is None else str(page),
            is_opened=in_browser and page is not None and open_in_browser(page, listener),
            catalog=CATALOG,
            tables_count=len(STATES),
            tables=tuple(_told(state, found, config) for state in STATES),
            try_first=_first_to_try(found, config),
        )


def demo_shown(result: DemoResult) -> Mapping[str, Any]:
    """What is printed for people: each table with its state, then the commands, table by table, and last those to try first."""
    first = {"try this first, and undo it": result.try_first} if result.try_first else {}
    return {
        "report": result.report,
        "tables": [
            {"table": one.table, "score": "-" if one.score is None else f"{one.score:.0f}", "what is wrong": one.what}
            for one in result.tables
        ],
        "commands": [command for one in result.tables for command in one.commands],
        "all at once": [_command(words, result.config) for words in ("report", "maintain --dry-run")],
        **first,
    }


def _told(state: PlaygroundState, found: ReportResult, config: Path) -> DemoTable:
    name, health = _found_in(found, state)
    extra = tuple(_command(f"{words} --table {name}", str(config)) for words in state.extra_commands)
    if health is None:
        unread = next((one for one in found.not_read if one.name == name), None)
        why = () if unread is None else (f"{unread.kind}: {unread.reason}",)
        return DemoTable(table=name, what=state.what, score=None, why=why, commands=extra)
    return DemoTable(
        table=name,
        what=state.what,
        score=health.score,
        why=tuple(f"{part.name} (-{part.lost:.0f}): {part.reason}" for part in health.score_parts),
        commands=tuple(dict.fromkeys((*extra, *(job.command for job in health.to_do)))),
    )


def _found_in(found: ReportResult, state: PlaygroundState) -> tuple[str, TableHealth | None]:
    """The name of a table, and its health; `None` where the report could not read it."""
    name = f"{CATALOG}.{NAMESPACE}.{state.name}"
    return name, next((one for one in found.tables if one.table == name), None)


def _first_to_try(found: ReportResult, config: Path) -> tuple[str, ...]:
    """The compaction of the first table that asks for one, and what makes the snapshot before it the current one again."""
    for health in filter(None, (_found_in(found, state)[1] for state in STATES)):
        command = next((job.command for job in health.to_do if job.job == "compact"), None)
        if command is not None:
            return command, _command(f"rollback --snapshot-id {health.snapshot_id} --table {health.table}", str(config))
    return ()


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
