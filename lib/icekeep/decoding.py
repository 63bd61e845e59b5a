"""Values of a type from JSON, MessagePack and plain objects, by msgspec: the only place that gives it a type.

msgspec looks at a type when it is first asked for it, and stores what it finds in the type before it has found all. It lets other
threads run meanwhile, and one that asks for the same type then follows pointers that are not set: the process dies. So types are
looked at here, one at a time, and are given to msgspec by nobody else.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
_DecHook = Callable[[type, Any], Any]

_lock = threading.RLock()
_decoders: dict[tuple[Any, ...], Any] = {}


@overload
def from_json(data: bytes | str, wanted: type[T]) -> T: ...
@overload
def from_json(data: bytes | str, wanted: object) -> Any: ...
def from_json(data: bytes | str, wanted: object) -> Any:
    """A value of a type, or of one of several, from JSON; raises `msgspec.DecodeError` where it is none."""
    return _decoder(msgspec.json.Decoder, wanted).decode(data)


@overload
def from_msgpack(data: bytes, wanted: type[T], dec_hook: _DecHook | None = None) -> T: ...
@overload
def from_msgpack(data: bytes, wanted: object, dec_hook: _DecHook | None = None) -> Any: ...
def from_msgpack(data: bytes, wanted: object, dec_hook: _DecHook | None = None) -> Any:
    """A value of a type, or of one of several, from MessagePack; raises `msgspec.DecodeError` where it is none.

    Args:
        dec_hook: makes values of types that msgspec does not know.
    """
    return _decoder(msgspec.msgpack.Decoder, wanted, dec_hook).decode(data)


def from_plain(value: Any, wanted: type[T], *, strict: bool = True) -> T:
    """A value of a type from mappings, lists, texts and numbers; raises `msgspec.ValidationError` where it is none.

    Args:
        strict: a text is not taken for a number or a truth value.
    """
    # Which decoder looks at a type does not matter.
    _decoder(msgspec.json.Decoder, wanted)
    return msgspec.convert(value, wanted, strict=strict)


def _decoder(make: Callable[..., Any], wanted: Any, dec_hook: _DecHook | None = None) -> Any:
    key = make, wanted, dec_hook
    found = _decoders.get(key)
    if found is None:
        with _lock:
            found = _decoders.setdefault(key, make(wanted, dec_hook=dec_hook))
    return found
