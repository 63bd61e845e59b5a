"""The fields of what a job or command returns, from its types: name, kind of value, meaning.

A meaning is what the docstring says under `Attributes:`. Where the name says it to those who read the code, `meanings.txt` says
it for readers of the page: of one class (`Class.field`), or of all that have such a field.
"""

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from markdown_tables import code, meanings_of, prose, table

from icekeep.fleet.values import MatchedTables
from icekeep.operations.commands.document_schema import result_types
from icekeep.operations.console.values import is_snapshot_id
from icekeep.operations.jobs import JOBS, resolve
from icekeep.operations.outcomes import Held

_OF_MANY_JOBS = (Held, MatchedTables)
"""What several jobs may return in the same form, which one page has for all of them."""

_FILE = Path(__file__).with_name("meanings.txt")
_WORDS = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Any: "any value",
    type(None): "null",
}


def result_block(name: str) -> str:
    """The fields of all results of a job or command, those within others after them."""
    shown: set[type[Any]] = set()
    parts: list[str] = []
    results = [one for one in result_types(name) if one not in _OF_MANY_JOBS]
    for one in results:
        if len(results) > 1:
            parts.append(f"**{_when(name, one)}**")
        parts += _tables(one, shown)
    return "\n\n".join(parts)


def matched_block(_: str) -> str:
    """The fields of what a job returns that runs on all tables of a pattern."""
    return "\n\n".join(_tables(MatchedTables, set()))


@cache
def meanings() -> Mapping[str, str]:
    """What `meanings.txt` says, by field or by class and field."""
    lines = [line for line in _FILE.read_text().splitlines() if line and not line.startswith("#")]
    return {name: text for name, _, text in (line.partition(": ") for line in lines)}


def all_results(names: Iterable[str]) -> dict[type[Any], None]:
    """Every class that results have, each once."""
    found: dict[type[Any], None] = {}
    for name in names:
        for one in result_types(name):
            for cls in _structs(one):
                _add(cls, found)
    return found


def meaning_of(cls: type[Any], field: str) -> str:
    """What a field means; empty where nothing says it."""
    said = meanings_of(cls).get(field, "").rstrip(".").replace("`None`", "null")
    return said or meanings().get(f"{cls.__name__}.{field}") or meanings().get(field) or ""


def _add(cls: type[Any], found: dict[type[Any], None]) -> None:
    if cls not in found:
        found[cls] = None
        for hint in get_type_hints(cls).values():
            for one in _structs(hint):
                _add(one, found)


def _tables(result: Any, shown: set[type[Any]]) -> Iterator[str]:
    """The table of a class, then those of the classes in it that no other table of the block has shown."""
    waiting: list[tuple[str, type[Any]]] = [("", cls) for cls in _structs(result)]
    while waiting:
        path, cls = waiting.pop(0)
        if cls in shown:
            continue
        shown.add(cls)
        hints = get_type_hints(cls)
        rows = []
        for field in cls.__struct_fields__:
            kind = _kind(hints[field])
            # As `plain_values` writes them.
            kind = kind.replace("whole number", "text") if is_snapshot_id(field) else kind
            rows.append((code(field), kind, prose(meaning_of(cls, field))))
            waiting += [(f"{path}.{field}" if path else field, one) for one in _structs(hints[field])]
        if path:
            yield f"In {code(path)}:"
        yield table(("field", "value", "meaning"), rows)


def _when(name: str, result: Any) -> str:
    """Of which call a result is."""
    job = JOBS.get(name)
    title = result.__name__ if inspect.isclass(result) else str(result)
    if job is None or job.plan is None:
        return f"`{title}`"
    planned = inspect.unwrap(resolve(job.plan)).__annotations__["return"]
    is_plan = result is planned or result in get_args(planned)
    return f"`{title}`, of {'`--dry-run`' if is_plan else 'a run'}"


def _structs(hint: Any) -> Iterator[type[Any]]:
    if inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
        yield hint
    for one in get_args(hint):
        yield from _structs(one)


def _kind(hint: Any) -> str:
    """What a value is, for readers of JSON."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(one) for one in inner if one is not msgspec.UnsetType))
    if origin is tuple or origin is list or (inspect.isclass(origin) and issubclass(origin, (list, tuple))):
        return f"list of {_many(inner[0])}"
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return "object"
    if inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
        return "object"
    if inspect.isclass(hint) and issubclass(hint, str):
        return "text"
    if hint in (dict, Mapping):
        return "object"
    return _WORDS.get(hint, str(getattr(hint, "__name__", hint)).lower())


def _many(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return "lists"
    return {"text": "texts", "object": "objects", "whole number": "whole numbers"}.get(_kind(hint), _kind(hint))
