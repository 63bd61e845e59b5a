"""States of what was committed before, what keeps it, and what was lost."""

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt, CommitFiles
from icekeep.commit.summary import SummaryBuilder
from icekeep.maintenance.compact.job import compact
from icekeep.playground.clock import PastRuntime
from icekeep.playground.layouts import FAST_APPENDS
from icekeep.playground.maker import Maker
from icekeep.playground.rows import orders
from icekeep.runtime import new_snapshot_id
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_directory
from icekeep.spec.types import DAY_MS, HOUR_MS, MINUTE_MS
from icekeep.spec.updates import Update, apply_updates
from icekeep.storage.base import Storage
from icekeep.tables.refs import create_branch, create_tag

_COMMITS_AT_ONCE = 100


class EmptyCommits(msgspec.Struct, frozen=True):
    """Many commits that add nothing, in one: what a writer leaves that commits at each checkpoint."""

    storage: Storage
    clock: PastRuntime
    count: int
    interval_ms: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """The snapshots one after another, each with a manifest list of its own."""
        head = base.current_snapshot
        manifests = [] if head is None else attempt.reader.manifests(head)
        updates: list[Update] = []
        for _ in range(self.count):
            self.clock.move_on(self.interval_ms)
            commit_id = str(self.clock.new_uuid())
            files = CommitFiles(self.storage, commit_id)
            snapshot_id = new_snapshot_id(self.clock, base.snapshots_by_id)
            one = Attempt(base, 1, snapshot_id, files, attempt.reader, self.clock)
            made = one.snapshot_updates("append", manifests, SummaryBuilder())
            updates += made
            base = apply_updates(base, made, now_ms=self.clock.now_ms())
        return tuple(updates)


def many_snapshots(maker: Maker) -> None:
    """One commit of rows, and 2,000 of nothing."""
    maker.create()
    maker.append(orders(0, 5000, maker.clock.now_ms(), spread_ms=DAY_MS))
    for _ in range(2000 // _COMMITS_AT_ONCE):
        maker.commit(EmptyCommits(maker.table.storage, maker.clock, _COMMITS_AT_ONCE, 10 * MINUTE_MS))


def orphans(maker: Maker) -> None:
    """Thirty versions of which the log keeps five, and twelve files that no commit has."""
    maker.create(properties={"write.metadata.previous-versions-max": "5", "history.expire.max-snapshot-age-ms": _YEAR})
    for number in range(30):
        maker.append(orders(100 * number, 100, maker.clock.now_ms()), after_ms=HOUR_MS)
    compact(maker.table, _no_spark)
    maker.table = maker.table.refresh()
    for number in range(12):
        location = f"{data_directory(maker.table.metadata)}/00000-{number}-failed-write-{number:05d}.parquet"
        maker.table.storage.create(location, b"PAR1" + bytes(20_000))


def branches(maker: Maker) -> None:
    """Nine weeks, of which two tags and a branch keep some; a third tag should have gone by its own limit."""
    maker.create()
    for week in range(8):
        maker.overwrite(orders(0, 4000 + 500 * week, maker.clock.now_ms(), spread_ms=DAY_MS), after_ms=7 * DAY_MS)
        if week == 0:
            maker.table = create_tag(maker.table, "forgotten", max_ref_age=30 * DAY_MS)
        if week == 1:
            maker.table = create_tag(maker.table, "quarter")
        if week == 3:
            maker.table = create_tag(maker.table, "audit")
        if week == 4:
            maker.table = create_branch(maker.table, "experiment")
            maker.append(orders(90_000, 2000, maker.clock.now_ms()), after_ms=HOUR_MS, branch="experiment")


def stream(maker: Maker) -> None:
    """Ninety checkpoints of Flink."""
    maker.create(properties=FAST_APPENDS)
    for checkpoint in range(1, 91):
        summary = {
            "flink.job-id": "8d2c9e4f6b1a47c0a5d3e7f901234567",
            "flink.operator-id": "cbc357ccb763df2852fee8c4fc7d55f2",
            "flink.max-committed-checkpoint-id": str(checkpoint),
        }
        rows = orders(100 * checkpoint, 60, maker.clock.now_ms(), spread_ms=MINUTE_MS)
        maker.append(rows, after_ms=MINUTE_MS, summary=summary)


def broken(maker: Maker) -> None:
    """A compaction's file is gone, while an older snapshot still has what was compacted; and the last column id is too low."""
    maker.create()
    for number in range(8):
        maker.append(orders(1000 * number, 500, maker.clock.now_ms()), after_ms=HOUR_MS)
    compact(maker.table, _no_spark)
    maker.table = maker.table.refresh()
    [file] = maker.files()
    maker.table.storage.delete_many([file.file_path])
    _lower_last_column_id(maker.table)


def _lower_last_column_id(table: Table) -> None:
    """Write another number into the metadata file, as an editor of files would."""
    location, storage = table.metadata_location, table.storage
    document = msgspec.json.decode(storage.read(location))
    document["last-column-id"] -= 2
    storage.delete_many([location])
    storage.create(location, msgspec.json.encode(document))


_YEAR = str(365 * DAY_MS)


def _no_spark() -> None:
    raise AssertionError("so few rows need no Spark")
