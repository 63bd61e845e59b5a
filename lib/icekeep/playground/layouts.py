"""States of how data lies in files, partitions and manifests."""

from icekeep.playground.maker import Maker
from icekeep.playground.rows import REGIONS, orders
from icekeep.spec.evolution import AddPartitionField, RemovePartitionField
from icekeep.spec.types import DAY_MS, HOUR_MS, MINUTE_MS
from icekeep.tables.verbs import update_spec

FAST_APPENDS = {"commit.manifest-merge.enabled": "false"}
"""As streaming writers append: no commit merges the manifests of those before it."""


def small_files(maker: Maker) -> None:
    """Four days, four commits a day, three small files each."""
    maker.create([("placed_at", "day")])
    first_ms = maker.clock.now_ms() // DAY_MS * DAY_MS
    for number in range(16):
        placed_ms = first_ms + number * 6 * HOUR_MS
        parts = [
            orders(
                1000 * number + 300 * writer, 200, placed_ms, spread_ms=HOUR_MS, regions=REGIONS[writer : writer + 1]
            )
            for writer in range(3)
        ]
        maker.append(*parts, after_ms=6 * HOUR_MS - 15 * MINUTE_MS)


def wide_manifests(maker: Maker) -> None:
    """Sixty commits of three files, each file in a day of its own, and the days of a commit far from each other."""
    maker.create([("placed_at", "day")], properties=FAST_APPENDS)
    begin_ms = maker.clock.now_ms() - 200 * DAY_MS
    for number in range(60):
        parts = [orders(1000 * number + 300 * part, 20, begin_ms + (number + 60 * part) * DAY_MS) for part in range(3)]
        maker.append(*parts, after_ms=HOUR_MS)


def skewed(maker: Maker) -> None:
    """One region with as many rows as a hundred of each of the others."""
    maker.create([("region", "identity")])
    now_ms = maker.clock.now_ms()
    others = [orders(100_000 * n, 500, now_ms, regions=[region]) for n, region in enumerate(REGIONS[1:], 1)]
    maker.append(orders(0, 50_000, now_ms, spread_ms=DAY_MS, regions=REGIONS[:1]), *others, after_ms=DAY_MS)


def evolved(maker: Maker) -> None:
    """Small files of three partition specs, six of them or more in each partition."""
    maker.create([("placed_at", "month")])
    _append_small(maker, 0)
    maker.table = update_spec(
        maker.table, [RemovePartitionField("placed_at_month"), AddPartitionField("placed_at", "day")]
    )
    _append_small(maker, 6)
    maker.table = update_spec(maker.table, [AddPartitionField("customer_id", "bucket[2]")])
    _append_small(maker, 12)


def _append_small(maker: Maker, first: int) -> None:
    """Six commits, five hours apart, of orders that were all placed when the first was made."""
    placed_ms = maker.clock.now_ms()
    for number in range(first, first + 6):
        maker.append(orders(1000 * number, 300, placed_ms), after_ms=5 * HOUR_MS)
