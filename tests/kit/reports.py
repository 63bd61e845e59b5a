"""Reports made of values alone, and the picture of one in the README: `python -m kit.reports` in `tests/` makes it anew.

The picture's tables are metadata alone: they have files of the sizes of a real lake that nobody has written.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.retry import commit
from icekeep.health.prices import Prices
from icekeep.health.values import (
    DataHealth,
    DeletesHealth,
    FaultsCount,
    Growth,
    JobAdvice,
    MaintenanceSeen,
    MetadataHealth,
    PartitionsHealth,
    RefHealth,
    ScorePart,
    SizeBucket,
    SnapshotsHealth,
    StreamSeen,
    TableHealth,
)
from icekeep.maintenance.history import GrowthPoint, TableTotals
from icekeep.reports.job import report
from icekeep.reports.page.page import report_page
from icekeep.reports.values import MaintenanceRun, NotRead, ReportResult, TableHistory
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.types import DAY_MS, HOUR_MS, MIB
from kit.browser import chromium
from kit.cases import Choices
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime, no_spark
from kit.tables import BY_KIND, COLUMNS, entries_of

NOW_MS = 1_790_000_000_000
_JOBS = ("compact", "rewrite_position_deletes", "rewrite_manifests", "expire_snapshots", "remove_orphan_files")


def bare_table(name: str = "lake.db.bare") -> TableHealth:
    """A table without a snapshot, of which nothing could be measured."""
    return TableHealth(
        table=name,
        table_uuid=None,
        format="v1",
        location="file:///wh/bare",
        snapshot_id=None,
        score=100.0,
        score_parts=(),
        snapshots=SnapshotsHealth(),
        refs=(),
        metadata=MetadataHealth(),
        data=DataHealth(target_file_bytes=512 * MIB),
        deletes=DeletesHealth(),
        partitions=PartitionsHealth(),
        jobs=(),
    )


def full_table(
    name: str = "lake.db.full", *, said: str = "it is so", score: float = 42.0, **changed: Any
) -> TableHealth:
    """A table with many of all that a report tells.

    Args:
        said: every text of it that is not a word of ours.
    """
    table = replace(
        bare_table(name),
        table_uuid="1f0e",
        format="v2",
        location=f"s3://bucket/{said}",
        snapshot_id=7,
        score=score,
        score_parts=(
            ScorePart(name="files", lost=30.5, reason=said),
            ScorePart(name="manifests", lost=9.0, reason=said),
        ),
        snapshots=SnapshotsHealth(
            snapshots_count=60, expirable_count=50, oldest_timestamp_ms=NOW_MS - 60 * DAY_MS, newest_timestamp_ms=NOW_MS
        ),
        refs=tuple(
            RefHealth(
                ref=f"{said}{number}",
                type="tag",
                snapshot_id=number,
                snapshots_count=1,
                only_snapshots_count=1,
                files_count=9,
                bytes=9000 + number,
                only_files_count=1,
                only_bytes=number,
            )
            for number in range(30)
        ),
        metadata=MetadataHealth(metadata_bytes=50_000, manifests_count=60, ideal_manifests_count=1, mean_overlap=7.5),
        data=DataHealth(
            target_file_bytes=512 * MIB,
            data_files_count=1_234,
            data_files_bytes=77 * MIB,
            record_count=1_000_000,
            small_files_count=1_000,
            histogram=tuple(
                SizeBucket(least_bytes=1 << power, files_count=power, bytes=power << power) for power in range(10, 32)
            ),
        ),
        deletes=DeletesHealth(
            position_delete_files_count=3,
            position_delete_files_bytes=999,
            deleted_ratio=0.125,
            scan_read_bytes=123_456,
            mean_deletes=2.5,
        ),
        partitions=PartitionsHealth(partitions_count=4, largest_partition=said, largest_partition_bytes=9, skew=2.5),
        jobs=tuple(
            JobAdvice(
                job=job,
                has_work=number % 2 == 0,
                reason=said,
                gain=said,
                files_count=10,
                freed_bytes=2048,
                read_bytes=4096,
                written_bytes=1024,
                requests_count=12,
                cpu_ms=1500,
                cost=0.25,
                command=said,
            )
            for number, job in enumerate(_JOBS)
        ),
        last_maintenance=(MaintenanceSeen(job=said, timestamp_ms=NOW_MS - 3 * DAY_MS, snapshot_id=3, made_by=said),),
        streams=tuple(
            StreamSeen(writer=said, key=said, snapshots_count=3, timestamp_ms=NOW_MS - number) for number in range(12)
        ),
        growth=Growth(since_timestamp_ms=NOW_MS - 7 * DAY_MS, daily_bytes=MIB, daily_data_files_count=9),
        faults=(FaultsCount(fault_id=208, name=said, faults_count=2),),
        not_measured=(said,),
    )
    return replace(table, **changed)


def full_history(name: str = "lake.db.full", *, said: str = "it is so") -> TableHistory:
    """A history with points and runs, some of them marked on the plots."""
    return TableHistory(
        table=name,
        growth=tuple(
            GrowthPoint(
                timestamp_ms=NOW_MS - (200 - number) * DAY_MS,
                snapshot_id=number,
                data_files_count=10 + number % 40,
                bytes=(10 + number) * MIB,
                delete_files_count=number % 7,
                metadata_bytes=None if number == 3 else 10_000 * number,
            )
            for number in range(200)
        ),
        commits_count=5_000,
        runs=tuple(full_run(number, said) for number in range(20)),
        left_out_runs_count=11,
    )


def full_run(number: int = 0, said: str = "it is so") -> MaintenanceRun:
    """A run with all that is told of one; each is ten days before the last."""
    return MaintenanceRun(
        job=said,
        run_id=said,
        made_by=said,
        policy=said,
        status=said,
        timestamp_ms=NOW_MS - 10 * number * DAY_MS,
        elapsed_ms=90_000,
        snapshots_count=1,
        snapshot_id=199 - 10 * number,
        before=TableTotals(data_files_count=40 + number, delete_files_count=5, bytes=9 * MIB),
        after=TableTotals(data_files_count=3, delete_files_count=0, bytes=8 * MIB),
        error=said,
        figures={said: 3, "freed_bytes": 4096, "deleted_files_count": 5},
    )


def not_read(name: str = "lake.db.gone", said: str = "it is so") -> NotRead:
    """A table that could not be read."""
    return NotRead(
        name=name, kind="invalid-table", reason=said, faults=(FaultsCount(fault_id=101, name=said, faults_count=1),)
    )


def report_of(*tables: TableHealth, **changed: Any) -> ReportResult:
    """A report over tables, in their order."""
    told: dict[str, Any] = {
        "status": "done",
        "catalogs": ("lake",),
        "tables_count": len(tables),
        "tables": tables,
        "timestamp_ms": NOW_MS,
    }
    return ReportResult(**{**told, **changed})


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
