"""Units of sizes and spans, how sizes are shown, and the largest numbers of Java's types, which Iceberg writes for "no limit"."""

MIB = 1 << 20
GIB = 1 << 30

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
DAY_SECONDS = DAY_MS // SECOND_MS

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1


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
