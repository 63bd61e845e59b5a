"""What a run only tells about itself: that it cannot be found out ends no run, least of all one that has committed."""

from collections.abc import Callable
from typing import TypeVar

from icekeep.errors import one_line
from icekeep.events import Listener, Warned

Figure = TypeVar("Figure")
Default = TypeVar("Default")


def or_warned(what: str, measure: Callable[[], Figure], default: Default, listener: Listener) -> Figure | Default:
    """What `measure` finds; `default` and a warning where it fails, whatever the reason."""
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - a number in the result is not worth the work of the run
        listener.on(Warned(f"{what} is not known: {one_line(error)}; the work itself is not affected"))
        return default
