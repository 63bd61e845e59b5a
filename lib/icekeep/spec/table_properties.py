"""Values of table properties, read in one way wherever they are honoured."""

import re
from collections.abc import Mapping

from icekeep.errors import PropertyError


def boolean_property(properties: Mapping[str, str], key: str, default: bool) -> bool:
    """`true` or `false` in any case, the default where the table says nothing; raises `PropertyError` for anything else."""
    text = properties.get(key)
    if text is None:
        return default
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise PropertyError(f"table property {key!r} is {text!r}; set 'true' or 'false'", property=key)
    return value


def whole_number(properties: Mapping[str, str], key: str, default: int, least: int | None = 0) -> int:
    """A whole number, the default where the table says nothing; written as Java reads one: digits, with a sign if need be.

    Raises:
        PropertyError: it is anything else, or less than `least`.
    """
    text = properties.get(key)
    if text is None:
        return default
    value = int(text) if re.fullmatch("[+-]?[0-9]+", text) else None
    if value is None or (least is not None and value < least):
        wanted = "a whole number" if least is None else f"a whole number, {least} or more"
        raise PropertyError(f"table property {key!r} is {text!r}; set {wanted}", property=key)
    return value


def retry_number(properties: Mapping[str, str], key: str, default: int) -> int:
    """A number of retries or milliseconds to wait, as `whole_number`; one below 0 is 0, as it is to Java's retries."""
    return max(0, whole_number(properties, key, default, least=None))
