"""The picture of a report in the README: `python -m kit.report_picture` in `tests/` makes it anew.

Its tables are metadata alone: they have files of the sizes of a real lake that nobody has written, as a report opens none.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.retry import commit
from icekeep.health.prices import Prices
from icekeep.reports.job import report
from icekeep.reports.page.page import report_page
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.types import DAY_MS, HOUR_MS, MIB
from kit.choices import Choices
from kit.chromium import chromium
from kit.memory_catalog import MemoryCatalog
from kit.no_spark import no_spark
from kit.runtime import FakeRuntime
from kit.tables import BY_KIND, COLUMNS, entries_of

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "report.png"
_SIZE = (1280, 1500)


class Habit(msgspec.Struct, frozen=True, kw_only=True):
    """How a table lives: commits a day, files of each and their size, delete files each third day, days between compactions."""

    name: str
    commits: int = 1
    files: int = 4
    size_bytes: int = 400 * MIB
    deletes: int = 0
    compacted_days: int = 0


LAKE = (
    Habit(name="web.clicks", commits=8, files=6, size_bytes=9 * MIB),
    Habit(name="web.sessions", commits=4, files=4, size_bytes=24 * MIB, compacted_days=7),
    Habit(name="sales.orders", commits=4, files=4, size_bytes=60 * MIB, deletes=2),
    Habit(name="sales.order_items", commits=2, files=8, size_bytes=380 * MIB, compacted_days=6),
    Habit(name="sales.customers", files=1, size_bytes=90 * MIB, deletes=3),
    Habit(name="sales.refunds", files=2, size_bytes=6 * MIB),
    Habit(name="stock.movements", commits=6, files=3, size_bytes=14 * MIB, compacted_days=3),
    Habit(name="stock.levels", files=6, size_bytes=430 * MIB),
    Habit(name="finance.ledger", files=3, size_bytes=460 * MIB, compacted_days=9),
    Habit(name="finance.rates", files=1, size_bytes=2 * MIB, compacted_days=5),
    Habit(name="ml.features", commits=2, files=12, size_bytes=200 * MIB, compacted_days=12),
)


def lake(days: int = 30) -> MemoryCatalog:
    """A catalog whose tables have been written to for some days; the last one cannot be read."""
    runtime = FakeRuntime(now_ms=1_793_000_000_000)
    catalog = MemoryCatalog(runtime=runtime, name="lake")
    chance = Choices(26)
    start_ms = runtime.now_ms()
    for habit in LAKE:
        # Each table lives through the same month.
        runtime.pass_ms(start_ms - runtime.now_ms())
        _lived(_made(catalog, habit), habit, days, chance)
    broken = _made(catalog, Habit(name="legacy.exports"))
    data, at = catalog.storage.files[broken.metadata_location]
    catalog.storage.files[broken.metadata_location] = (data[:200], at)
    return catalog


def _made(catalog: MemoryCatalog, habit: Habit) -> Table:
    identifier = tuple(habit.name.split("."))
    catalog.create_namespace(identifier[:-1], exists_ok=True)
    metadata = new_table_metadata(
        schema=COLUMNS,
        spec=BY_KIND,
        location=catalog.default_location(identifier),
        table_uuid=str(catalog.runtime.new_uuid()),
        now_ms=catalog.runtime.now_ms(),
        properties={"commit.manifest-merge.enabled": "false"},
        format_version=2,
    )
    return catalog.create(identifier, metadata)


def _lived(table: Table, habit: Habit, days: int, chance: Choices) -> None:
    runtime = table.catalog.runtime
    for day in range(days):
        for number in range(habit.commits):
            runtime.pass_ms(DAY_MS // habit.commits - (HOUR_MS if number == 0 else 0))
            added = tuple(_file(table, f"{day}-{number}-{n}", habit, chance) for n in range(habit.files))
            table = commit(table, AppendFiles(files=added), runtime=runtime).table
        if habit.deletes and day % 3 == 2:
            deletes = tuple(_delete(table, f"d{day}-{n}", chance) for n in range(habit.deletes))
            table = commit(table, RowDelta(added_deletes=deletes), runtime=runtime).table
        runtime.pass_ms(HOUR_MS)
        if habit.compacted_days and day % habit.compacted_days == habit.compacted_days - 1:
            table = _compacted(table, day)


def _compacted(table: Table, day: int) -> Table:
    old = [e for e in entries_of(table) if e.data_file.content is FileContent.DATA]
    parts: dict[tuple[object, ...], list[DataFile]] = {}
    for entry in old:
        parts.setdefault(entry.data_file.partition, []).append(entry.data_file)
    change = RewriteFiles(
        removed=tuple(old),
        added=tuple(file for part in parts.values() for file in _packed(table, part, day)),
        schema_id=0,
        remove_dangling=True,
        summary={"icekeep.job": "compact"},
    )
    return commit(table, change, runtime=table.catalog.runtime).table


def _packed(table: Table, files: Sequence[DataFile], day: int) -> list[DataFile]:
    size = sum(file.file_size_in_bytes for file in files)
    count = max(1, round(size / (500 * MIB)))
    rows = sum(file.record_count for file in files)
    return [
        msgspec.structs.replace(
            files[0],
            file_path=f"{table.metadata.location}/data/packed-{day}-{files[0].partition[0]}-{number}.parquet",
            file_size_in_bytes=size // count,
            record_count=rows // count + (rows % count if number == 0 else 0),
        )
        for number in range(count)
    ]


def _file(table: Table, name: str, habit: Habit, chance: Choices) -> DataFile:
    size = round(habit.size_bytes * chance.lognormvariate(0, 0.35))
    return DataFile(
        file_path=f"{table.metadata.location}/data/{name}.parquet",
        file_format="PARQUET",
        spec_id=table.metadata.default_spec_id,
        partition=(chance.choice(["a", "a", "b", "c"]),),
        record_count=size // 120,
        file_size_in_bytes=size,
    )


def _delete(table: Table, name: str, chance: Choices) -> DataFile:
    data = chance.choice([e.data_file for e in entries_of(table) if e.data_file.content is FileContent.DATA])
    return DataFile(
        file_path=f"{table.metadata.location}/data/{name}-deletes.parquet",
        file_format="PARQUET",
        spec_id=data.spec_id,
        partition=data.partition,
        record_count=max(1, data.record_count // 30),
        file_size_in_bytes=max(1000, data.record_count // 30),
        content=FileContent.POSITION_DELETES,
        referenced_data_file=data.file_path,
    )


def main() -> None:
    """Make the picture."""
    prices = Prices(core_hour=0.05, gib_read=0.0, million_requests=0.4, gib_month=0.023, currency="EUR")
    text = report_page(report(lake(), no_spark, prices=prices, histories=True))
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory) / "report.html"
        page.write_text(text)
        with chromium(Path(directory) / "browser") as browser:
            width, height = _SIZE
            browser.open(page, width=width, height=height)
            PICTURE.parent.mkdir(exist_ok=True)
            browser.screenshot(PICTURE)


if __name__ == "__main__":
    main()
