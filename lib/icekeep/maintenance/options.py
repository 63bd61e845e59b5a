"""The `options` map of a job: Iceberg's names, parsed once, validated once.

A job's options are a frozen struct whose fields are renamed to the option names; what Iceberg does not know is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from icekeep.decoding import from_plain
from icekeep.errors import OptionError
from icekeep.spec.types import parse_bytes

_BYTES = "-bytes"
O = TypeVar("O", bound="Options")  # noqa: E741

Positive = Annotated[int, msgspec.Meta(gt=0)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a job; sub-classes name each field with `msgspec.field(name=...)` and bound it with `msgspec.Meta`."""


def parse_options(cls: type[O], given: Mapping[str, Any] | O) -> O:
    """Turn an options map, values as text or typed, into a job's options.

    Raises:
        OptionError: the job has no such option, or it cannot take such a value.
    """
    if isinstance(given, cls):
        return given
    assert not isinstance(given, Options)
    attributes = dict(zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True))
    hints = get_type_hints(cls, include_extras=True)
    values = {}
    for name, value in given.items():
        if name not in attributes:
            raise OptionError.unknown(name, given=value, known=list(attributes))
        hint = hints[attributes[name]]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        try:
            plain = _plain(name, value, choices) if isinstance(value, str) else value
            values[attributes[name]] = from_plain(plain, hint, strict=False)
        except msgspec.ValidationError as error:
            expected = f"one of {', '.join(choices)}" if choices else _expected(name, str(error))
            raise OptionError(name, given=value, expected=expected) from None
    return cls(**values)


def _plain(name: str, text: str, choices: Sequence[str]) -> str | int:
    """A size in bytes, or a choice in any case, and with underscores for dashes, as Iceberg's enums have them; else the text."""
    size = parse_bytes(text) if name.endswith(_BYTES) and not text.strip().isdigit() else None
    if size is not None:
        return size
    by_spelling = {choice.replace("-", "_"): choice for choice in choices}
    return by_spelling.get(text.lower().replace("-", "_"), text)


def _expected(name: str, problem: str) -> str:
    """What msgspec expected of an option, from its message ("Expected `int` >= 1")."""
    text = problem.partition("Expected ")[2].partition(", got")[0].replace("`", "").replace(" | null", "")
    number = "a whole number of bytes, such as 134217728 or 128MB," if name.endswith(_BYTES) else "a whole number"
    for type_name, words in (("int", number), ("bool", "true or false"), ("float", "a number")):
        text = text.replace(type_name, words)
    return text.removesuffix(",") or "another value"
