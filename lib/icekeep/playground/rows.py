"""Rows of made-up orders: which they are follows from their numbers alone."""

from collections.abc import Sequence

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("placed_at", pa.timestamp("us", "UTC")),
        pa.field("region", pa.string()),
        pa.field("customer_id", pa.int64()),
        pa.field("amount", pa.float64()),
    ]
)

REGIONS = ("africa", "americas", "asia", "europe", "oceania")


def orders(first_id: int, count: int, at_ms: int, *, spread_ms: int = 0, regions: Sequence[str] = REGIONS) -> pa.Table:
    """Rows with ids from `first_id` on.

    Args:
        at_ms: when the first was placed, epoch milliseconds.
        spread_ms: how much later the last was placed.
        regions: theirs in turn.
    """
    ids = range(first_id, first_id + count)
    step = spread_ms / max(1, count - 1)
    return pa.table(
        {
            "order_id": list(ids),
            "placed_at": [round((at_ms + step * number) * 1000) for number in range(count)],
            "region": [regions[one % len(regions)] for one in ids],
            "customer_id": [one * 7919 % 1000 for one in ids],
            "amount": [one * 104729 % 50_000 / 100 for one in ids],
        },
        schema=SCHEMA,
    )
