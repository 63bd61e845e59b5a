"""How log lines and results can look; by itself, so that the command line and the configuration know it without more."""

from typing import Literal

import msgspec

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)

Color = Literal["auto", "always", "never"]
COLORS: tuple[Color, ...] = ("auto", "always", "never")


class OutputStyle(msgspec.Struct, frozen=True):
    """How a result is wanted on a terminal.

    Attributes:
        is_wide: nothing is left out, cut or wrapped.
        columns: of tables, by their names in JSON or their labels; empty for as many as fit.
    """

    is_wide: bool = False
    columns: tuple[str, ...] = ()
    color: Color = "auto"


DEFAULT_LOOK = OutputStyle()
