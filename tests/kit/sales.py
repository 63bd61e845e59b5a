"""The tables that README and docs/quickstart.md work on: small commits, one a day, each as old as its day."""

import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from icekeep.operations.loading import configured_catalogs, open_settings
from icekeep.runtime import SYSTEM
from icekeep.tables.verbs import append, create_table
from kit.runtime import FakeRuntime

COMMITS = {"orders": 40, "refunds": 7, "customers": 1}
"""The tables of the namespace `sales`, and how many commits each has."""
YOUNGEST_DAYS = 10
"""How old the newest commit is."""
DAY_MS = 86_400_000
ROWS_A_DAY = 250
SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("ordered_at", pa.timestamp("us", "UTC")),
        pa.field("amount", pa.decimal128(9, 2)),
    ]
)


def make_sales(conf: Path, catalog: str) -> None:
    """Create the tables in a catalog of a configuration file."""
    for seed, (name, commits) in enumerate(COMMITS.items()):
        began_ms = SYSTEM.now_ms() - (commits + YOUNGEST_DAYS) * DAY_MS
        runtime = FakeRuntime(seed, began_ms, chance=None)
        opened = open_settings(configured_catalogs(str(conf)).get(catalog), runtime=runtime)
        opened.create_namespace(("sales",), exists_ok=True)
        table = create_table(opened, ("sales", name), SCHEMA)
        for day in range(commits):
            runtime.pass_ms(DAY_MS)
            table = append(table, sold_on(day))


def sold_on(day: int) -> pa.Table:
    """The rows of one commit, the same in every run."""
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(days=day)
    numbers = range(day * ROWS_A_DAY, (day + 1) * ROWS_A_DAY)
    return pa.table(
        {
            "order_id": list(numbers),
            "customer": [f"customer-{number * 7919 % 997}" for number in numbers],
            "ordered_at": [start + datetime.timedelta(minutes=5 * n) for n in range(ROWS_A_DAY)],
            "amount": [Decimal(number * 7919 % 100_000) / 100 for number in numbers],
        },
        schema=SCHEMA,
    )
