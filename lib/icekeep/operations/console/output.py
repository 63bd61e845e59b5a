"""Results as one JSON object for machines or as tables for people.

Both show the same document: the values of a job's frozen result or plan under their own names. A name tells the unit, so
bytes, moments and ages are shown exactly and readably. Spans are shown in seconds, and so their names without `_ms`.
"""

import codecs
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, cast

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from icekeep.errors import UsageError, printable
from icekeep.runtime import SYSTEM
from icekeep.spec.times import EARLIEST_MS, format_span, format_time
from icekeep.spec.units import MAX_LONG, format_bytes

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

MAX_ROWS = 100
"""Of more rows than these the first are shown, and how many more there are."""
_SPANS = frozenset(
    {
        *("cpu_ms", "elapsed_ms", "estimate_ms", "looked_ms", "since_previous_ms"),
        *("planning_time_after_ms", "planning_time_before_ms"),
    }
)
"""Fields that are spans: they are shown in seconds, under their names without `_ms`."""
_MAX_ITEMS = 5
_MAX_LINE = 80
_WIDE = 100_000
_GAP = "   "
"""What lies between the columns of a table."""


def plain_values(value: Any) -> Any:
    """A result as what JSON has: mappings, lists, text, numbers; kinds that JSON has not become text."""
    return msgspec.to_builtins(value, enc_hook=str, str_keys=True)


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

    Raises:
        UsageError: the file cannot be written.
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


def print_tables(title: str, values: Mapping[str, Any], stream: TextIO) -> None:
    """Show plain values to people: single ones as a list of names and values, lists of rows as tables.

    On a terminal long texts are folded to its width; elsewhere nothing is cut and nothing is coloured. What the stream's encoding
    does not have is escaped.
    """
    console = Console(
        file=cast("TextIO", _Encoded(stream, stream.encoding)), highlight=False, markup=False, emoji=False
    )
    if console.is_terminal:
        _print(console, title, values)
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


def format_value(name: str, value: Any) -> str:
    """A plain value as people read it; the unit follows from the name of the field.

    >>> format_value("rewritten_bytes_count", 1536), format_value("manifests_count", 12345)
    ('1,536 (1.5 KiB)', '12,345')
    >>> format_value("snapshot_id_before", 12345)
    '12345'
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return _format_number(name, value)
    if isinstance(value, Mapping):
        items = ((str(key), below) for key, below in value.items())
        return ", ".join(f"{printable(shown_name(key))}={format_value(key, below)}" for key, below in items)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _format_items(value)
    return printable(str(value))


def shown_name(name: str) -> str:
    """The name of a field as people read it: a span's is without its unit, since the value has another.

    >>> shown_name("estimated.elapsed_ms"), shown_name("timestamp_ms")
    ('estimated.elapsed', 'timestamp_ms')
    """
    return name.removesuffix("_ms") if name.rpartition(".")[2] in _SPANS else name


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


def _format_number(name: str, value: int) -> str:
    words = name.lower().replace("-", "_").split("_")
    if "bytes" in words:
        return f"{value:,} ({format_bytes(value)})" if abs(value) >= 1024 else f"{value:,}"
    if words[-1] == "ms" and "age" in words:
        if value == MAX_LONG:
            return "no limit"
        return f"{value} ({format_span(value)})"
    if words[-1] == "ms":
        return f"{value} ({format_time(value)})" if value >= EARLIEST_MS else f"{value / 1000:,.1f} s"
    return str(value) if "id" in words or words[-1] in ("ids", "number") else f"{value:,}"


def _format_items(items: Sequence[Any]) -> str:
    if any(isinstance(item, Mapping) for item in items):
        return f"{len(items):,} items"
    shown = ", ".join(printable(str(item)) for item in items[:_MAX_ITEMS])
    more = f" ... ({len(items):,} in all)" if len(items) > _MAX_ITEMS else ""
    return (shown + more) or "-"


def split_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    """Single values, those of nested mappings under dotted names, and what needs lines of its own: rows and long lists."""
    single: dict[str, Any] = {}
    rows: dict[str, Sequence[Any]] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            below, below_rows = split_values(value)
            single |= {f"{name}.{key}": item for key, item in below.items()}
            rows |= {f"{name}.{key}": items for key, items in below_rows.items()}
        elif isinstance(value, list | tuple) and _needs_lines(value):
            rows[name] = value
        else:
            single[name] = value
    return single, rows


def _needs_lines(items: Sequence[Any]) -> bool:
    if not items or isinstance(items[0], Mapping):
        return bool(items)
    texts = [str(item) for item in items]
    # Names stand side by side; what is said of a place, as "PLACE: TEXT", does not.
    return len(items) > _MAX_ITEMS or any(": " in text for text in texts) or sum(map(len, texts)) > _MAX_LINE


def _lines_of(values: Mapping[str, Any]) -> Table:
    """A line for each value, behind its name."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(Text(printable(shown_name(name))), Text(format_value(name, value)))
    return table


def _print_rows(console: Console, items: Sequence[Any]) -> None:
    """Rows as a table or, where the names of its columns are wider than the terminal, each as lines of their own."""
    columns = columns_of(items[:MAX_ROWS])
    names = {column: printable(shown_name(column)) for column in columns}
    # Rich takes one blank more than stands between columns.
    if len(_GAP.join(names.values())) >= console.width:
        for number, item in enumerate(items[:MAX_ROWS]):
            if number:
                console.print()
            console.print(_lines_of({column: item.get(column) for column in columns}))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column, are_numbers in columns.items():
        justify: Literal["left", "right"] = "right" if are_numbers else "left"
        table.add_column(Text(names[column]), justify=justify, overflow="fold", min_width=len(names[column]))
    for item in items[:MAX_ROWS]:
        table.add_row(*(Text(format_value(column, item.get(column))) for column in columns))
    console.print(table)


def columns_of(items: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """The columns of some rows, in their order, and whether each has numbers alone."""
    columns = dict.fromkeys(key for item in items for key in item)
    return {column: all(_is_number(item.get(column)) for item in items) for column in columns}


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))
