"""Plain values of results as people read them, wherever they are shown.

A name tells the unit, so bytes, moments and ages are shown exactly and readably. Spans are shown in seconds, and so their names
without `_ms`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from icekeep.errors import printable
from icekeep.rendered import Details
from icekeep.spec.times import EARLIEST_MS, format_moment, format_span, format_time
from icekeep.spec.types import MAX_LONG, format_bytes

MAX_ROWS = 100
"""Of more rows than these the first are shown, and how many more there are."""
_SPANS = frozenset({"cpu_ms", "elapsed_ms", "estimate_ms", "looked_ms", "since_previous_ms"})
"""Fields that are spans: they are shown in seconds, under their names without `_ms`."""
_MAX_ITEMS = 5
_MAX_LINE = 80


def plain_values(value: Any) -> Any:
    """A result as what JSON has: mappings, lists, text, numbers; kinds that JSON has not become text.

    So do the ids of snapshots: they have 64 bits, and most readers of JSON (jq below 1.7, JavaScript) keep 53 of them.
    """
    return _with_ids_as_text(msgspec.to_builtins(value, enc_hook=str, str_keys=True))


def is_snapshot_id(name: str) -> bool:
    """Whether a field has ids of snapshots, by its name.

    >>> is_snapshot_id("snapshot_id_after"), is_snapshot_id("snapshot_ids"), is_snapshot_id("run_id")
    (True, True, False)
    """
    words = _words(name)
    return "snapshot" in words and ("id" in words or "ids" in words)


def _with_ids_as_text(value: Any, *, is_id: bool = False) -> Any:
    if isinstance(value, dict):
        return {name: _with_ids_as_text(below, is_id=is_snapshot_id(name)) for name, below in value.items()}
    if isinstance(value, list | tuple):
        return [_with_ids_as_text(item, is_id=is_id) for item in value]
    return str(value) if is_id and isinstance(value, int) and not isinstance(value, bool) else value


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


def label(name: str) -> str:
    """The name of a field as people read it.

    >>> label("rewritten_data_files_count"), label("estimated.cpu_ms"), label("snapshot_id")
    ('rewritten data files', 'estimated cpu', 'snapshot id')
    """
    words = [part.removesuffix("_count").removesuffix("_ms").replace("_", " ") for part in name.split(".")]
    words = ["records" if word == "record" else word for word in words]
    return printable(" ".join(words))


def shown_value(name: str, value: Any) -> str:
    """A value with one unit and with a zone.

    >>> shown_value("read_bytes", 1536), shown_value("timestamp_ms", 1_767_225_600_000)
    ('1.5 KiB', '2026-01-01 00:00:00 UTC')
    """
    if is_bytes(name, value):
        return format_bytes(value)
    if is_moment(name, value):
        return format_moment(value)
    return format_value(name, value)


def is_bytes(name: str, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and "bytes" in _words(name)


def is_moment(name: str, value: Any) -> bool:
    """Whether a value is a moment in epoch milliseconds, by the name of its field."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    words = _words(name)
    return words[-1] == "ms" and "age" not in words and value >= EARLIEST_MS


def _words(name: str) -> list[str]:
    return name.lower().replace("-", "_").split("_")


def _format_number(name: str, value: int) -> str:
    words = _words(name)
    if "bytes" in words:
        return f"{value:,} ({format_bytes(value)})" if abs(value) >= 1024 else f"{value:,}"
    if words[-1] == "ms" and "age" in words:
        if value == MAX_LONG:
            return "no limit"
        return f"{value} ({format_span(value)})"
    if is_moment(name, value):
        return f"{value} ({format_time(value)})"
    if words[-1] == "ms":
        return f"{value / 1000:,.1f} s"
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
        elif isinstance(value, list | tuple) and (isinstance(value, Details) or _needs_lines(value)):
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


def columns_of(items: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """The columns of some rows, in their order, and whether each has numbers alone."""
    columns = dict.fromkeys(key for item in items for key in item)
    return {column: all(_is_number(item.get(column)) for item in items) for column in columns}


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))
