"""The values of settings: from the text behind a flag, and from the entries of a policy.

Text is checked as far as that needs no table; a scheduler that only reads the configuration does the same.
"""

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from icekeep.errors import ExpressionError, UsageError
from icekeep.names import NAME_IN_CATALOG, name_of_form, split_names
from icekeep.settings import ALL, Setting, SettingKind, is_all
from icekeep.spec.times import format_span, moment_ms, span_ms, whole_days
from icekeep.spec.types import MAX_LONG, parse_bytes

if TYPE_CHECKING:
    from icekeep.operations.configuration.documents import Entry

_BETWEEN_LOCATIONS = re.compile(r",\s*(?=/|[A-Za-z][A-Za-z0-9+.-]*:/)")
"""A comma before a scheme or a slash; others are part of a name."""


def parse_setting(setting: Setting, text: str, now_ms: int) -> Any:
    """The value of a setting from the text behind its flag; a filter and options stay text."""
    match setting.kind:
        case SettingKind.TIME:
            return moment_ms(text, now_ms)
        case SettingKind.AGE:
            return _span(text, setting.minimum)
        case SettingKind.DAYS:
            return whole_days(text)
        case SettingKind.NUMBER:
            size = parse_bytes(text) if setting.name.endswith("bytes") else None
            return _whole_number(text if size is None else str(size), setting.minimum)
        case SettingKind.NUMBER_OR_ALL:
            return ALL if is_all(text) else _whole_number(text, setting.minimum, f" nor {ALL!r}")
        case SettingKind.IDS:
            return tuple(_whole_number(part.strip(), 0) for part in text.split(","))
        case SettingKind.NAMES:
            return _names(text)
        case SettingKind.LOCATIONS:
            return _locations(text)
        case _:
            return text


def parse_option(text: str) -> tuple[str, str]:
    """`KEY=VALUE` as a pair; raises `UsageError`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{text!r} is not of the form KEY=VALUE")
    return key.strip(), value.strip()


def read_setting(setting: Setting, entry: "Entry") -> tuple[str, ...]:
    """The command line arguments that say what an entry of a policy says, which has the type that its shape asks for."""
    match setting.kind:
        case SettingKind.OPTIONS | SettingKind.PAIRS:
            return tuple(f"{setting.flag}={key}={below.scalar()}" for key, below in entry.mapping().items())
        case SettingKind.SWITCH:
            return (setting.flag,) if entry.plain() else ()
        case SettingKind.IDS | SettingKind.NAMES | SettingKind.LOCATIONS:
            texts = [below.scalar() for below in entry.each()]
            if setting.kind is SettingKind.NAMES:
                # A comma of a name goes in quotes.
                texts = [name_of_form(text, NAME_IN_CATALOG) or text for text in texts]
            entry = msgspec.structs.replace(entry, kind="str", value=",".join(texts))
    return entry.parsed(partial(setting_arguments, setting))


def setting_arguments(setting: Setting, text: str, name: str = "") -> tuple[str, ...]:
    """The command line arguments that say what a text says, such as the property of a table.

    Args:
        name: of the option or pair whose value the text is.
    """
    if setting.kind is SettingKind.SWITCH:
        if text not in ("true", "false"):
            raise UsageError(f"{text!r} is neither true nor false")
        return (setting.flag,) if text == "true" else ()
    if name:
        return (f"{setting.flag}={name}={text}",)
    if not text:
        raise UsageError("is empty")
    if setting.kind in (SettingKind.FILTER, SettingKind.MANIFEST_FILTER):
        # Only a filter needs the parser of filters.
        from icekeep.spec.filters.parsing import parse_where

        try:
            parse_where(text, moment_ms=0)
        except ExpressionError as error:
            raise UsageError(error.message) from None
    if setting.choices and text not in setting.choices:
        raise UsageError(f"{text!r} is none of {', '.join(setting.choices)}")
    parse_setting(setting, text, now_ms=0)
    # One argument, so that a value that begins with a dash is not taken for a flag.
    return (f"{setting.flag}={text}",)


def _span(text: str, minimum: int) -> int:
    milliseconds = span_ms(text)
    if milliseconds < minimum:
        raise UsageError(f"the duration {text!r} is too short; give {format_span(minimum)} or more")
    return milliseconds


def _names(text: str) -> tuple[str, ...]:
    names = []
    for given in split_names(text):
        name = name_of_form(given, NAME_IN_CATALOG)
        if name is None:
            raise UsageError(
                f"{given!r} in {text!r} names no table; give {NAME_IN_CATALOG}, several with commas between"
            )
        names.append(name)
    return tuple(names)


def _locations(text: str) -> tuple[str, ...]:
    locations = tuple(part.strip() for part in _BETWEEN_LOCATIONS.split(text))
    if not all(locations):
        raise UsageError(f"{text!r} is no list of files; give their locations, several with commas between")
    return locations


def _whole_number(text: str, minimum: int, nor: str = "") -> int:
    """A number of a text; `nor` says what else the text could have been."""
    is_number = text.isascii() and text.isdigit()
    digits = text.lstrip("0") or "0"
    if is_number and (len(digits) > len(str(MAX_LONG)) or int(digits) > MAX_LONG):
        raise UsageError(f"{text!r} is above {MAX_LONG}, the largest number that Iceberg has room for")
    if not is_number or int(digits) < minimum:
        raise UsageError(f"{text!r} is {'neither' if nor else 'not'} a whole number of {minimum} or more{nor}")
    return int(digits)
