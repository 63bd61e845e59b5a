"""Ages and spans as people write them: a whole number and a unit, as `7d`, `36h` or `500ms`."""

import re

from icekeep.spec.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

UNITS_MS = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
AGE = re.compile(r"[0-9]{1,15}ms|[0-9]{1,9}[smhdw]")
"""What an age looks like."""
FORM = "a whole number with ms, s, m, h, d or w"
"""The same in words."""


def age_ms(text: str) -> int:
    """Milliseconds of an age; raises `ValueError` for any other text.

    >>> age_ms("36h")
    129600000
    """
    if not AGE.fullmatch(text):
        raise ValueError(f"an age is {FORM}, as in 30m or 7d")
    number = text.rstrip("smhdw")
    return int(number) * UNITS_MS[text.removeprefix(number)]
