"""Breaking the library in one place: a function of it is replaced, by one that can be called in the same ways."""

import inspect
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch


def replaced(of: Any, name: str, broken: Any) -> AbstractContextManager[Any]:
    """Within the block `of.name` is `broken`.

    Raises `TypeError` where `broken` cannot take the arguments of the original: the library has changed, and what the
    replacement would show is that, and not the fault that it stands for.
    """
    original = inspect.getattr_static(of, name)
    if isinstance(original, property) and isinstance(broken, property):
        _check_signature(original.fget, broken.fget, name)
    elif callable(original):
        _check_signature(original, broken, name)
    return patch.object(of, name, broken)


def _check_signature(original: Any, broken: Any, name: str) -> None:
    parameters = inspect.signature(original).parameters.values()
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    for full in (True, False):
        wanted = [p for p in (*by_place, *by_name) if full or p.default is p.empty]
        places = [None for p in wanted if p in by_place]
        names = {p.name: None for p in wanted if p in by_name}
        try:
            inspect.signature(broken).bind(*places, **names)
        except TypeError as error:
            raise TypeError(f"what replaces {name!r} cannot be called as it is: {error}") from None
