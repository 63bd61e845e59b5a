"""JSON objects of the spec as frozen structs that keep what they do not know.

A `View` has one attribute a key (`snapshot_id` for `snapshot-id`). Keys without an attribute land in `extra` and are
written back unchanged, so that a commit of ours never drops what a newer writer put there.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from icekeep.decoding import from_plain
from icekeep.errors import InvalidTableError

V = TypeVar("V", bound="View")
_OF_A_MAP = "[...]"


class View(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """One JSON object of the spec; null and absent are the same."""

    extra: Mapping[str, Any] = {}


def view_from_json(cls: type[V], value: Any, what: str) -> V:
    """Build a view from a decoded JSON object; `what` names the object in errors.

    Raises:
        InvalidTableError: the value is no object, lacks a required key or has one of a wrong type.
    """
    if not isinstance(value, dict):
        raise InvalidTableError(f"{what} is {value!r}; it must be an object")
    names = _json_names(cls)
    known = {key: item for key, item in value.items() if key in names and item is not None}
    try:
        view = from_plain(known, cls)
    except msgspec.ValidationError as error:
        problem = f"{str(error)[:1].lower()}{str(error)[1:]}"
        if _OF_A_MAP in problem:
            # Of a map the error does not say which key it is.
            problem = next(_not_text(known), problem)
        raise InvalidTableError(f"{what}: {problem}") from None
    if len(known) < len(value):
        extra = {key: item for key, item in value.items() if key not in names}
        return msgspec.structs.replace(view, extra=extra) if extra else view
    return view


def _not_text(view: Mapping[str, Any]) -> Iterator[str]:
    for name, item in view.items():
        for key, value in item.items() if isinstance(item, dict) else ():
            if not isinstance(value, str):
                yield f"{key!r} of its {name!r} is {value!r}; it must be text"


def view_to_json(view: View) -> dict[str, Any]:
    """The JSON object of a view: its non-null attributes, then the keys that were kept."""
    out: dict[str, Any] = {}
    for key, attribute in _json_names(type(view)).items():
        value = getattr(view, attribute)
        if value is not None:
            out[key] = list(value) if isinstance(value, tuple) else value
    out.update(view.extra)
    return out


@cache
def _json_names(cls: type[View]) -> dict[str, str]:
    return {
        encoded: attribute
        for attribute, encoded in zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True)
        if attribute != "extra"
    }
