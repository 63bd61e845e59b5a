"""States of tables from which rows were deleted without the data files being rewritten."""

from icekeep.playground.layouts import FAST_APPENDS
from icekeep.playground.maker import Maker
from icekeep.playground.rows import REGIONS, orders
from icekeep.spec.types import HOUR_MS, MINUTE_MS
from icekeep.tables.verbs import upgrade_format_version

_FILES, _FILE_ROWS = 6, 1000


def delete_files(maker: Maker) -> None:
    """Six data files, of which eight commits delete 5 % of the rows each."""
    maker.create()
    parts = [orders(10_000 * number, _FILE_ROWS, maker.clock.now_ms(), spread_ms=HOUR_MS) for number in range(_FILES)]
    maker.append(*parts, after_ms=HOUR_MS)
    for number in range(8):
        positions = [(file, range(number, _FILE_ROWS, 20)) for file in maker.files()]
        maker.delete_positions(positions, after_ms=HOUR_MS)


def upserts(maker: Maker) -> None:
    """Thirty commits that each write 200 orders, half of which are there already."""
    maker.create(properties=FAST_APPENDS)
    for number in range(30):
        rows = orders(100 * number, 200, maker.clock.now_ms(), spread_ms=MINUTE_MS)
        maker.upsert(rows, "order_id", after_ms=HOUR_MS)


def vectors(maker: Maker) -> None:
    """Position delete files, the upgrade to version 3, and then vectors, of which the last takes in those before it."""
    maker.create([("region", "identity")])
    rows = orders(0, _FILE_ROWS * len(REGIONS), maker.clock.now_ms(), spread_ms=HOUR_MS)
    maker.append(rows, after_ms=HOUR_MS)
    for number in range(4):
        positions = [(file, range(number, _FILE_ROWS, 100)) for file in maker.files()[1:]]
        maker.delete_positions(positions, after_ms=HOUR_MS)
    maker.table = upgrade_format_version(maker.table, 3)
    for number in range(3):
        maker.delete_by_vectors([(maker.files()[0], range(number, _FILE_ROWS, 100))], after_ms=HOUR_MS)
