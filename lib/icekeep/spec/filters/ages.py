"""Ages and spans as people write them: a whole number and a unit, as `7d` or `36h`."""

import re

from icekeep.spec.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

UNITS_MS = {"s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
AGE = re.compile(r"([0-9]{1,9})([smhdw])")
"""What an age looks like."""


def age_ms(text: str) -> int:
    """Milliseconds of an age; raises `ValueError` for any other text.

    >>> age_ms("36h")
    129600000
    """
    match = AGE.fullmatch(text)
    if match is None:
        raise ValueError("an age is a whole number with s, m, h, d or w, as in 30m or 7d")
    return int(match[1]) * UNITS_MS[match[2]]
