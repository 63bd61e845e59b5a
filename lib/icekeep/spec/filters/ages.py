"""Ages and spans as people write them: a whole number and a unit, as `7d` or `36h`."""

import re

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
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
    return int(match[1]) * _UNITS_MS[match[2]]
