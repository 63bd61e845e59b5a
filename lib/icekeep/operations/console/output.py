"""Results as one JSON object for machines or as tables for people.

Both show the same document: the values of a job's frozen result or plan under their own names.
"""

import codecs
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, cast

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from icekeep.errors import UsageError, printable
from icekeep.operations.console.looks import DEFAULT_LOOK, OutputStyle
from icekeep.operations.console.terminal import COLOR_SYSTEMS, print_on_terminal
from icekeep.operations.console.values import MAX_ROWS, columns_of, format_value, shown_name, split_values
from icekeep.runtime import SYSTEM

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_WIDE = 100_000


def format_json(document: Mapping[str, Any], encoding: str | None = None) -> str:
    """The document on one line.

    Args:
        encoding: of where it goes. In another one than UTF-8, as where text has what no encoding has (a file's name that is no
            UTF-8), characters beyond ASCII are escaped: what reads JSON takes it for UTF-8.
    """
    text = json.dumps(document, ensure_ascii=False)
    try:
        text.encode("ascii" if encoding is not None and not _is_utf8(encoding) else "utf-8")
    except UnicodeEncodeError:
        return json.dumps(document)
    return text


def write_result_file(path: str, document: Mapping[str, Any]) -> None:
    """Write the document to a file at once; raises `UsageError` where it cannot be written."""
    write_at_once(path, format_json(document) + "\n", "result file")


def write_at_once(path: str, text: str, what: str) -> None:
    """Write a file so that a reader sees the whole of it or what was there before.

    Args:
        what: it is, as an error says.
    """
    with written_at_once(path, what) as stream:
        stream.write(text.encode())


@contextmanager
def written_at_once(path: str, what: str, *, is_new: bool = False) -> Iterator[BinaryIO]:
    """A stream into a file that is there, as a whole, when the block has ended well; else it is as it was.

    No link is followed: one that has the file's name is replaced, and nobody can guess where to put one beforehand.

    Args:
        what: it is, as an error says.
        is_new: the name must be free, also when the block has ended: what came there meanwhile stays.

    Raises:
        UsageError: the file cannot be written, or its name is taken.
    """
    target = Path(path)
    # Processes of two containers that share a directory may have one number.
    partial = target.with_name(f".{target.name}.{SYSTEM.new_uuid()}.tmp")
    try:
        with open(os.open(partial, _NEW, 0o666), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if is_new:
            _take_name(partial, target)
        else:
            partial.replace(target)
    except FileExistsError as error:
        raise _taken(path, what) from error
    except OSError as error:
        raise UsageError(f"cannot write {what} {path!r}: {(error.strerror or '').lower()}", path=path) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def require_directory(path: str, what: str = "result file") -> None:
    """Refuse a file that could not be written later; raises `UsageError`."""
    directory = Path(path).absolute().parent
    if Path(path).is_dir():
        reason = "it is a directory"
    elif not directory.is_dir():
        reason = f"there is no directory {str(directory)!r}"
    elif not os.access(directory, os.W_OK):
        reason = f"no permission to write in {str(directory)!r}"
    else:
        return
    raise UsageError(
        f"cannot write {what} {path!r}: {reason}; give a file in a directory that can be written", path=path
    )


def require_new_file(path: str, what: str) -> None:
    """Refuse a file that could not be written later, or that is there already; raises `UsageError`."""
    require_directory(path, what)
    if os.path.lexists(path):
        raise _taken(path, what)


def _taken(path: str, what: str) -> UsageError:
    return UsageError(f"{what} {path!r} is there already; name another file, or delete it first", path=path)


def _take_name(partial: Path, target: Path) -> None:
    """Give a file its name, if that is free."""
    try:
        target.hardlink_to(partial)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links: the name is taken by an empty file, and that is replaced.
        os.close(os.open(target, _NEW, 0o666))
        partial.replace(target)


def print_tables(title: str, values: Mapping[str, Any], stream: TextIO, look: OutputStyle = DEFAULT_LOOK) -> None:
    """Show plain values to people: single ones as a list of names and values, lists of rows as tables.

    On a terminal they fit its width (`terminal.py`); elsewhere nothing is left out, cut or coloured, and names are those of JSON.
    What the stream's encoding does not have is escaped.
    """
    encoded = cast("TextIO", _Encoded(stream, stream.encoding))
    console = Console(file=encoded, highlight=False, markup=False, emoji=False, **COLOR_SYSTEMS[look.color])
    if console.is_terminal:
        print_on_terminal(console, title, values, look)
        return
    # Rich fills each line up to the width of its table; a file wants no blanks at the ends of lines.
    buffer = StringIO()
    encoded = cast("TextIO", _Encoded(buffer, stream.encoding))
    _print(Console(file=encoded, highlight=False, markup=False, emoji=False, width=_WIDE, no_color=True), title, values)
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


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "utf-8"


def write_text(text: str, stream: TextIO) -> None:
    """Write a text that is a document of its own, as a page or figures are: in UTF-8, which it says it is, in any locale."""
    raw = getattr(stream, "buffer", None)
    if raw is None or _is_utf8(stream.encoding):
        stream.write(text)
        return
    stream.flush()
    raw.write(text.encode())


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
