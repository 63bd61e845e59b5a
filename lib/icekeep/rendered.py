"""What results have in common: plain values of them, and what notebooks show, which the upper rooms know how to do."""

from importlib import import_module
from typing import Any

import msgspec

_HTML = "icekeep.operations.console.notebook"


class Rendered(msgspec.Struct, frozen=True):
    """A result or a plan, which a notebook shows as the tables that the command line prints."""

    def to_dict(self) -> dict[str, Any]:
        """Its fields as dicts, sequences, text and numbers, under their names.

        `pandas.DataFrame(report.to_dict()["tables"])` has a row for each table. Ids are numbers here; JSON of the command line
        has them as text.
        """
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str, str_keys=True)
        return plain

    def _repr_html_(self) -> str:
        # By its name, as help and mistakes are answered without the rooms below: a value knows nothing of consoles.
        html: str = import_module(_HTML).html_of(self)
        return html


class Details(list[Any]):
    """Rows among those that are printed of a result, which a terminal shows only where everything is asked for."""
