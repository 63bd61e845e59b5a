"""Spans and sizes as people read them in a line."""

from icekeep.spec.times import format_span
from icekeep.spec.units import GIB, HOUR_MS, MIB, MINUTE_MS


def about(span_ms: int) -> str:
    """A span without what nobody needs to know.

    >>> about(1_234), about(754_321), about(12_000_100)
    ('1.2 s', '13m', '3.3 h')
    """
    if span_ms >= 2 * HOUR_MS:
        return f"{span_ms / HOUR_MS:,.1f} h"
    return format_span(-(-span_ms // MINUTE_MS) * MINUTE_MS if span_ms >= 2 * MINUTE_MS else span_ms)


def sized(size: int) -> str:
    """Bytes in the unit that budgets are thought of.

    >>> sized(5_000_000), sized(12_000_000_000)
    ('4.8 MiB', '11.2 GiB')
    """
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / MIB:,.1f} MiB"
