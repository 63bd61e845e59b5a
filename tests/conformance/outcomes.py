"""Outcomes as people read them: a line a case, a column a tool; or all that is known, as JSON."""

from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Columns

from conformance.cases import CASES
from conformance.play import Outcome
from conformance.tools.tool import Tool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run: versions by tool, and all outcomes."""

    versions: Mapping[str, Mapping[str, str]]
    outcomes: tuple[Outcome, ...]

    @property
    def tools(self) -> list[str]:
        return list(self.versions)

    def cells(self) -> dict[str, list[str]]:
        """By case, what is said of each tool."""
        found = {(one.case, one.tool): one for one in self.outcomes}
        names = dict.fromkeys(one.case for one in self.outcomes)
        return {name: [cell(found.get((name, tool))) for tool in self.tools] for name in names}


def report(tools: Sequence[Tool], outcomes: Sequence[Outcome]) -> Report:
    return Report(versions={tool.name: dict(tool.versions()) for tool in tools}, outcomes=tuple(outcomes))


def cell(outcome: Outcome | None) -> str:
    """What became of a case: losses first, then what the tool did, then what of its work was thrown away."""
    if outcome is None:
        return ""
    losses = [
        f"{outcome.rows_lost:,} rows lost" if outcome.rows_lost else "",
        f"{outcome.rows_back:,} rows come back" if outcome.rows_back else "",
        *(f"{ref} lost" for ref in outcome.refs_lost),
    ]
    found = [f"**{loss}**" for loss in losses if loss]
    found.append(outcome.verdict)
    if outcome.discarded_files:
        stay = " (left on disk)" if outcome.left_files else ""
        found.append(f"discarded {_files(outcome.discarded_files)}{stay}")
    return ", ".join(found)


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def markdown(told: Report) -> str:
    """A table for a page."""
    titles = ["case", *(title(told, tool) for tool in told.tools)]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    lines += [f"| {' | '.join([f'`{name}`', *cells])} |" for name, cells in told.cells().items()]
    return "\n".join(lines) + "\n"


def title(told: Report, tool: str) -> str:
    return f"{tool}: {', '.join(f'{name} {text}' for name, text in told.versions[tool].items())}"


def print_report(told: Report, console: Console) -> None:
    """A table for a terminal; below, what each tool said where it did not do its work, and the bytes that it threw away."""
    columns = Columns()
    for name in ("case", *told.tools):
        columns.add_column(name)
    for name, cells in told.cells().items():
        columns.add_row(name, *(escape(text).replace("**", "") for text in cells))
    console.print(columns)
    for tool in told.tools:
        console.print(title(told, tool))
    for one in told.outcomes:
        said = [f"{answer.error}: {answer.message}" for answer in one.answers if answer.error]
        thrown = [f"{one.discarded_bytes:,} bytes discarded"] if one.discarded_files else []
        if details := [*one.notes, *thrown, *said]:
            console.print(escape(f"{one.tool}, {one.case} ({CASES[one.case].says}): {'; '.join(details)}"))
