"""What notebooks show of values: a class that says so, and nothing of how it is done, which the upper rooms know."""

from importlib import import_module
from typing import Any

import msgspec

_HTML = "icekeep.operations.console.html"


class Rendered(msgspec.Struct, frozen=True):
    """A result or a plan, which a notebook shows as the tables that the command line prints."""

    def _repr_html_(self) -> str:
        # By its name, as help and mistakes are answered without the rooms below: a value knows nothing of consoles.
        html: str = import_module(_HTML).html_of(self)
        return html


class Details(list[Any]):
    """Rows among those that are printed of a result, which a terminal shows only where everything is asked for."""
