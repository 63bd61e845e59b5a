"""Values of table properties: each kind is read in one way wherever it is honoured, and a wrong value is one `PropertyError`.

Case does not matter where Iceberg Java ignores it. Spaces do: Java refuses them or takes the value for another one.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

from icekeep.errors import PropertyError

V = TypeVar("V")

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def wrong_property(key: str, text: str, wanted: str) -> PropertyError:
    """The error for a value that a property cannot take; `wanted` completes "set ..."."""
    return PropertyError(f"table property {key!r} is {text!r}; set {wanted}", property=key)


def choice(properties: Mapping[str, str], key: str, default: str, choices: Mapping[str, V]) -> V:
    """What one of some names, which are lower-case, stands for; raises `PropertyError` for any other name."""
    text = properties.get(key, default)
    name = text.lower()
    if name not in choices:
        *others, last = map(repr, choices)
        raise wrong_property(key, text, f"{', '.join(others)} or {last}")
    return choices[name]


def boolean_property(properties: Mapping[str, str], key: str, default: bool) -> bool:
    """`true` or `false`, the default where the table says nothing.

    Raises:
        PropertyError: it is anything else, which Java takes for false and nobody sees.
    """
    text = properties.get(key)
    return default if text is None else choice(properties, key, text, {"true": True, "false": False})


def is_true(properties: Mapping[str, str], key: str, default: bool) -> bool:
    """Whether a property says `true`; all else is false, as it is to Java.

    For what deletes files: false is the safe side of it, and an error might come after a commit has landed.
    """
    return properties.get(key, str(default)).lower() == "true"


def whole_number(
    properties: Mapping[str, str], key: str, default: int, least: int | None = 0, most: int | None = None
) -> int:
    """A whole number, the default where the table says nothing; written as Java reads one: digits, with a sign if need be.

    Raises:
        PropertyError: it is anything else, less than `least` or more than `most`.
    """
    text = properties.get(key)
    if text is None:
        return default
    value = int(text) if _WHOLE.fullmatch(text) else None
    if value is None or (least is not None and value < least) or (most is not None and value > most):
        limits = "" if least is None else f", {least} or more" if most is None else f", {least} to {most}"
        raise wrong_property(key, text, f"a whole number{limits}")
    return value


def retry_number(properties: Mapping[str, str], key: str, default: int) -> int:
    """A number of retries or milliseconds to wait, as `whole_number`; one below 0 is 0, as it is to Java's retries."""
    return max(0, whole_number(properties, key, default, least=None))


def probability(properties: Mapping[str, str], key: str, default: float) -> float:
    """A number above 0 and below 1; raises `PropertyError` for anything else."""
    text = properties.get(key)
    if text is None:
        return default
    value = float(text) if _DECIMAL.fullmatch(text) else 0.0
    if not 0 < value < 1:
        raise wrong_property(key, text, "a number between 0 and 1")
    return value
