"""Results for people, as tables: the same values as in JSON, under the same names where they go to a pipe or a file.

On a terminal of any width there are labels, units, no zeros, no broken words, and colour where it means something. A table that
is too wide gives up width first: names are cut in the middle, sentences are wrapped between words. Then it gives up columns, the
least important first, and says which.
"""

import textwrap
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, Literal, TextIO, cast

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from icekeep.errors import printable
from icekeep.operations.console.looks import DEFAULT_LOOK, Color, OutputStyle
from icekeep.operations.console.values import (
    MAX_ROWS,
    columns_of,
    format_value,
    label,
    shown_name,
    shown_value,
    split_values,
)
from icekeep.rendered import Details

_GAP = "  "
_ELLIPSIS = "…"
_MIN_NAME = 16
_MIN_TEXT = 24
_MAX_LINES = 3
"""A sentence in a table has no more."""

_NEXT = "next"
"""What to do next, which stands below all else."""

_LEAST_IMPORTANT = (
    *(
        "requests",
        "requests_count",
        "core_s",
        "read_bytes",
        "written_bytes",
        "manifests",
        "snapshots",
        "deleted",
        "cost",
    ),
    *(
        "since_snapshot_id",
        "parent_id",
        "parent_snapshot_id",
        "location",
        "run",
        "run_id",
        "policy",
        "estimate",
        "only_snapshots",
        "only_bytes",
        "size_bytes",
    ),
)
"""Columns in the order in which they are given up; then those that are farthest to the right, but for these:"""

_KEPT = frozenset(
    {"table", "name", "score", "status", "job", "to_do", "faults", "fault_id", "faults_count", "why", "bytes"}
)
_GREEN, _YELLOW, _RED = "green", "yellow", "red"
_STATUSES = {
    **dict.fromkeys(("done", "ok", "repaired", "restored"), _GREEN),
    **dict.fromkeys(("partial", "postponed", "left", "interrupted", "not-tried", "due"), _YELLOW),
    **dict.fromkeys(("failed", "wrong", "unknown", "conflict", "refused"), _RED),
}


COLOR_SYSTEMS: Mapping[Color, Mapping[str, Any]] = {
    "auto": {},
    "always": {"force_terminal": True},
    "never": {"no_color": True},
}


_FOR_FILES = 100_000
"""How wide tables may be that are written to a pipe or a file."""


def print_tables(title: str, values: Mapping[str, Any], stream: TextIO, look: OutputStyle = DEFAULT_LOOK) -> None:
    """Show plain values to people: single ones as a list of names and values, lists of rows as tables.

    On a terminal they fit its width ; elsewhere nothing is left out, cut or coloured, and names are those of JSON.
    What the stream's encoding does not have is escaped.
    """
    encoded = cast("TextIO", _Encoded(stream, stream.encoding))
    console = Console(file=encoded, highlight=False, markup=False, emoji=False, **COLOR_SYSTEMS[look.color])
    if console.is_terminal:
        _print_on_terminal(console, title, values, look)
        return
    # Rich fills each line up to the width of its table; a file wants no blanks at the ends of lines.
    buffer = StringIO()
    encoded = cast("TextIO", _Encoded(buffer, stream.encoding))
    _print(
        Console(file=encoded, highlight=False, markup=False, emoji=False, width=_FOR_FILES, no_color=True),
        title,
        values,
    )
    stream.writelines(line.rstrip() + "\n" for line in buffer.getvalue().splitlines())


class _Encoded:
    """A stream to which what an encoding does not have is written escaped."""

    def __init__(self, stream: TextIO, encoding: str | None) -> None:
        self._stream, self.encoding = stream, encoding or "utf-8"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        return self._stream.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))


def _print(console: Console, title: str, values: Mapping[str, Any]) -> None:
    console.print(Text(printable(title), style="bold"))
    single, rows = split_values(values)
    if single:
        console.print(_lines_of(single))
    for name, items in rows.items():
        console.print()
        console.print(Text(printable(f"{name} ({len(items):,})"), style="bold"))
        if isinstance(items[0], Mapping):
            _print_rows(console, items)
        else:
            console.print(Text("\n".join(printable(str(item)) for item in items[:MAX_ROWS])), soft_wrap=True)
        if len(items) > MAX_ROWS:
            console.print(Text(f"... and {len(items) - MAX_ROWS:,} more; --output json has them all"))


def _lines_of(values: Mapping[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(Text(printable(shown_name(name))), Text(format_value(name, value)))
    return table


def _print_rows(console: Console, items: Sequence[Any]) -> None:
    columns = columns_of(items[:MAX_ROWS])
    names = {column: printable(shown_name(column)) for column in columns}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column, are_numbers in columns.items():
        justify: Literal["left", "right"] = "right" if are_numbers else "left"
        table.add_column(Text(names[column]), justify=justify, min_width=len(names[column]))
    for item in items[:MAX_ROWS]:
        table.add_row(*(Text(format_value(column, item.get(column))) for column in columns))
    console.print(table)


def _print_on_terminal(console: Console, title: str, values: Mapping[str, Any], look: OutputStyle) -> None:
    """Show plain values to people; columns that no table has are named below what there is: the work is done by then."""
    single, rows = split_values(values)
    advice = single.pop(_NEXT, None)
    unknown = _unknown_columns(look.columns, rows)
    if unknown:
        look = msgspec.structs.replace(look, columns=tuple(name for name in look.columns if name not in unknown))
    name, _, ended = title.rpartition(": ")
    heading = Text.assemble(
        (f"{printable(name)}: " if name else "", "bold"), (printable(ended), f"bold {_color('status', ended)}")
    )
    console.print(heading, soft_wrap=True)
    shown = single if look.is_wide else {name: value for name, value in single.items() if _says_something(value)}
    _print_values(console, shown, look)
    for name, items in rows.items():
        console.print()
        if isinstance(items, Details) and not look.is_wide:
            console.print(Text(f"{label(name)} ({len(items):,}): --wide shows them", style="dim"))
            continue
        console.print(Text(f"{label(name)} ({len(items):,})", style="bold"))
        if isinstance(items[0], Mapping):
            _Rows(items[:MAX_ROWS], look, console.width).print(console)
        else:
            for item in items[:MAX_ROWS]:
                _print_wrapped(console, printable(str(item)), look)
        if len(items) > MAX_ROWS:
            console.print(Text(f"... and {len(items) - MAX_ROWS:,} more; --output json has them all"))
    if advice:
        console.print()
        _print_values(console, {_NEXT: advice}, look)
    left_out = len(single) - len(shown)
    if left_out:
        what = "value that is 0 or unknown is" if left_out == 1 else "values that are 0 or unknown are"
        console.print(Text(f"{left_out} {what} not shown; --wide shows everything", style="dim"), soft_wrap=True)
    for name, known in unknown.items():
        _print_wrapped(console, f"--columns: no table here has a column {printable(name)!r}; there are {known}", look)


def _unknown_columns(asked: Sequence[str], rows: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """The columns that are asked for and that no table has, each with those that there are."""
    columns = [
        column for items in rows.values() if isinstance(items[0], Mapping) for column in columns_of(items[:MAX_ROWS])
    ]
    known = {*columns, *map(label, columns)}
    return {name: ", ".join(dict.fromkeys(columns)) for name in asked if known and name not in known}


def _says_something(value: Any) -> bool:
    return value is False or value not in (None, "", 0, "-", [], ())


def _print_values(console: Console, values: Mapping[str, Any], look: OutputStyle) -> None:
    labels = {name: label(name) for name in values}
    width = max(map(len, labels.values()), default=0) + len(_GAP)
    for name, value in values.items():
        text = shown_value(name, value)
        room = max(_MIN_TEXT, console.width - width)
        lines = [text] if look.is_wide else _wrapped(text, room)
        for number, line in enumerate(lines):
            lead = labels[name].ljust(width) if not number else " " * width
            console.print(Text.assemble(lead, (line, _color(name, text))), soft_wrap=True)


def _print_wrapped(console: Console, text: str, look: OutputStyle) -> None:
    for number, line in enumerate([text] if look.is_wide else _wrapped(text, console.width - len(_GAP))):
        console.print(Text(f"{_GAP if number else ''}{line}"), soft_wrap=True)


class _Rows:
    """A table that fits a width."""

    def __init__(self, items: Sequence[Mapping[str, Any]], look: OutputStyle, width: int) -> None:
        are_numbers = columns_of(items)
        self._numbers = {name for name, are in are_numbers.items() if are}
        self._labels = {name: label(name) for name in are_numbers}
        self._cells = {name: [shown_value(name, item.get(name)) for item in items] for name in are_numbers}
        self._look, self._width = look, width
        self._left_out: list[str] = []
        asked = [name for name in are_numbers if name in look.columns or self._labels[name] in look.columns]
        if asked:
            self._columns = asked
        elif look.is_wide:
            self._columns = list(are_numbers)
        else:
            # What is the same nothing in all rows says nothing.
            self._columns = [
                name for name in are_numbers if any(_says_something(item.get(name)) for item in items)
            ] or list(are_numbers)
        self._widths = {name: self._natural(name) for name in self._columns}
        if not look.is_wide:
            self._fit(may_drop=not asked)

    def print(self, console: Console) -> None:
        heads = {name: self._in_lines(name, self._labels[name], is_head=True) for name in self._columns}
        self._print_row(console, heads, {}, style="dim")
        for number in range(len(self._cells[self._columns[0]])):
            cells = {name: self._cells[name][number] for name in self._columns}
            lines = {name: self._in_lines(name, cell) for name, cell in cells.items()}
            self._print_row(console, lines, {name: _color(name, cell) for name, cell in cells.items()})
        if self._left_out:
            names = ", ".join(self._labels[name] for name in self._left_out)
            for line in textwrap.wrap(f"no room for: {names}; --wide shows everything", self._width):
                console.print(Text(line, style="dim"), soft_wrap=True)

    def _print_row(
        self, console: Console, lines: Mapping[str, Sequence[str]], styles: Mapping[str, str], style: str = ""
    ) -> None:
        for number in range(max(map(len, lines.values()))):
            parts = []
            for name in self._columns:
                of_cell = lines[name]
                text = of_cell[number] if number < len(of_cell) else ""
                padded = text.rjust(self._widths[name]) if name in self._numbers else text.ljust(self._widths[name])
                parts += [(padded, styles.get(name, style) if text else ""), (_GAP, "")]
            line = Text.assemble(*parts[:-1])
            line.rstrip()
            console.print(line, soft_wrap=True)

    def _natural(self, name: str) -> int:
        return max(self._head_width(name), *map(len, self._cells[name]))

    def _head_width(self, name: str) -> int:
        """Of the longest word of its label, since a head may have several lines."""
        return max(map(len, self._labels[name].split()))

    def _least(self, name: str) -> int:
        """The least width of a column: a number is never cut, a name to some characters, a sentence to some words."""
        if name in self._numbers:
            return self._widths[name]
        is_text = any(" " in cell for cell in self._cells[name])
        return min(self._natural(name), max(_MIN_TEXT if is_text else _MIN_NAME, self._head_width(name)))

    def _fit(self, *, may_drop: bool) -> None:
        least = {name: self._least(name) for name in self._columns}
        while may_drop and len(self._columns) > 1 and self._all(least) > self._width:
            gone = self._least_important()
            self._columns.remove(gone)
            self._left_out.append(gone)
        # The widest gives first.
        while (over := self._all(self._widths) - self._width) > 0:
            wide = [name for name in self._columns if self._widths[name] > least[name]]
            if not wide:
                return
            widest = max(wide, key=lambda name: self._widths[name])
            others = [self._widths[name] for name in wide if name != widest]
            down_to = max(
                least[widest], self._widths[widest] - over, min(self._widths[widest] - 1, max(others, default=0))
            )
            self._widths[widest] = down_to

    def _all(self, widths: Mapping[str, int]) -> int:
        return sum(widths[name] for name in self._columns) + len(_GAP) * (len(self._columns) - 1)

    def _least_important(self) -> str:
        listed = [name for name in _LEAST_IMPORTANT if name in self._columns[1:]]
        others = [name for name in self._columns[1:] if name not in _KEPT]
        return (listed or others[::-1] or self._columns[::-1])[0]

    def _in_lines(self, name: str, text: str, *, is_head: bool = False) -> list[str]:
        if self._look.is_wide:
            return [text]
        return _wrapped(text, self._widths[name], len(text.split()) if is_head else _MAX_LINES)


def _wrapped(text: str, width: int, most_lines: int | None = None) -> list[str]:
    """A text in lines, wrapped between words; a word that is longer than a line is cut in the middle.

    >>> _wrapped("s3://bucket/warehouse/db/events", 16), _wrapped("five small files of one day", 12)
    (['s3://buc…/events'], ['five small', 'files of one', 'day'])
    """
    words = [_cut(word, width) for word in text.split()]
    lines = textwrap.wrap(" ".join(words), width, break_long_words=False, break_on_hyphens=False) or [""]
    if most_lines is not None and len(lines) > most_lines:
        last = lines[most_lines - 1]
        lines = [*lines[: most_lines - 1], f"{last[: width - 1].rstrip()}{_ELLIPSIS}"]
    return lines


def _cut(word: str, width: int) -> str:
    if len(word) <= width:
        return word
    end = (width - 1) // 2
    return f"{word[: width - 1 - end]}{_ELLIPSIS}{word[len(word) - end :]}"


def _color(name: str, text: str) -> str:
    """Of a score, a status and a number of faults; all else has none."""
    if name == "status":
        return _STATUSES.get(text, "")
    if name in ("faults", "faults_count"):
        return _RED if text.strip("-0") else ""
    if name == "score":
        score = text.split(maxsplit=1)[0]
        if score.replace(".", "", 1).isdigit():
            return _GREEN if float(score) >= 90 else _YELLOW if float(score) >= 70 else _RED
    return ""
