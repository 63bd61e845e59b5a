"""What a run only tells about itself: that it cannot be found out ends no run, least of all one that has committed."""

from collections.abc import Callable
from typing import TypeVar

from icekeep.errors import IcekeepError
from icekeep.events import Listener, Warned

Figure = TypeVar("Figure")
Default = TypeVar("Default")


def only_told(what: str, measure: Callable[[], Figure], default: Default, listener: Listener) -> Figure | Default:
    """What `measure` finds; `default` and a warning where it fails, whatever the reason."""
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - a number in the result is not worth the work of the run
        listener.on(Warned(f"{what} is not known: {line_of(error)}; the work itself is not affected"))
        return default


def line_of(error: Exception) -> str:
    """What an error says, in one line."""
    if isinstance(error, IcekeepError):
        return error.message
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else repr(error)
