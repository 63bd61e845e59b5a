"""Units of sizes and spans, how sizes are shown, and the largest numbers of Java's types, which Iceberg writes for "no limit"."""

import re

MIB = 1 << 20
GIB = 1 << 30

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
DAY_SECONDS = DAY_MS // SECOND_MS

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str) -> int | None:
    """A size with a unit, in bytes; `None` where the text is none. Units are powers of 1024, as Spark has them: MB is MiB.

    >>> parse_bytes("128MB"), parse_bytes("1.5 GiB"), parse_bytes("512"), parse_bytes("many")
    (134217728, 1610612736, 512, None)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    return (
        int(float(found[1]) * 1024 ** " kmgtp".index(found[2].lower() or " "))
        if found[2] or "." in found[1]
        else int(found[1])
    )


def format_bytes(size: int) -> str:
    """A size in binary units.

    >>> format_bytes(536870912)
    '512.0 MiB'
    """
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} PiB"
