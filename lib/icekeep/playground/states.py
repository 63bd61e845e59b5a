"""The states that tables of a playground are in: what each is called, what is wrong with it, and what makes it so.

They are about how data lies in files, partitions and manifests; about rows that were deleted without rewriting data
files; and about what was committed before, what keeps it, and what was lost.
"""

from collections.abc import Callable

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt, CommitFiles
from icekeep.commit.summary import SummaryBuilder
from icekeep.maintenance.compact.job import compact
from icekeep.playground import states as histories
from icekeep.playground import states as layouts
from icekeep.playground import states as row_changes
from icekeep.playground.maker import REGIONS, PastRuntime, TableMaker, orders
from icekeep.runtime import new_snapshot_id
from icekeep.spec.evolution import AddPartitionField, RemovePartitionField
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_directory
from icekeep.spec.types import DAY_MS, HOUR_MS, MINUTE_MS
from icekeep.spec.updates import Update, apply_updates
from icekeep.storage.base import Storage
from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import update_spec, upgrade_format_version

FAST_APPENDS = {"commit.manifest-merge.enabled": "false"}
"""As streaming writers append: no commit merges the manifests of those before it."""


def small_files(maker: TableMaker) -> None:
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


def wide_manifests(maker: TableMaker) -> None:
    """Sixty commits of three files, each file in a day of its own, and the days of a commit far from each other."""
    maker.create([("placed_at", "day")], properties=FAST_APPENDS)
    begin_ms = maker.clock.now_ms() - 200 * DAY_MS
    for number in range(60):
        parts = [orders(1000 * number + 300 * part, 20, begin_ms + (number + 60 * part) * DAY_MS) for part in range(3)]
        maker.append(*parts, after_ms=HOUR_MS)


def skewed(maker: TableMaker) -> None:
    """One region with as many rows as a hundred of each of the others."""
    maker.create([("region", "identity")])
    now_ms = maker.clock.now_ms()
    others = [orders(100_000 * n, 500, now_ms, regions=[region]) for n, region in enumerate(REGIONS[1:], 1)]
    maker.append(orders(0, 50_000, now_ms, spread_ms=DAY_MS, regions=REGIONS[:1]), *others, after_ms=DAY_MS)


def evolved(maker: TableMaker) -> None:
    """Small files of three partition specs, six of them or more in each partition."""
    maker.create([("placed_at", "month")])
    _append_small(maker, 0)
    maker.table = update_spec(
        maker.table, [RemovePartitionField("placed_at_month"), AddPartitionField("placed_at", "day")]
    )
    _append_small(maker, 6)
    maker.table = update_spec(maker.table, [AddPartitionField("customer_id", "bucket[2]")])
    _append_small(maker, 12)


def _append_small(maker: TableMaker, first: int) -> None:
    """Six commits, five hours apart, of orders that were all placed when the first was made."""
    placed_ms = maker.clock.now_ms()
    for number in range(first, first + 6):
        maker.append(orders(1000 * number, 300, placed_ms), after_ms=5 * HOUR_MS)


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


def many_snapshots(maker: TableMaker) -> None:
    """One commit of rows, and 2,000 of nothing."""
    maker.create()
    maker.append(orders(0, 5000, maker.clock.now_ms(), spread_ms=DAY_MS))
    for _ in range(2000 // _COMMITS_AT_ONCE):
        maker.commit(EmptyCommits(maker.table.storage, maker.clock, _COMMITS_AT_ONCE, 10 * MINUTE_MS))


def orphans(maker: TableMaker) -> None:
    """Thirty versions of which the log keeps five, and twelve files that no commit has."""
    maker.create(properties={"write.metadata.previous-versions-max": "5", "history.expire.max-snapshot-age-ms": _YEAR})
    for number in range(30):
        maker.append(orders(100 * number, 100, maker.clock.now_ms()), after_ms=HOUR_MS)
    compact(maker.table, _no_spark)
    maker.table = maker.table.refresh()
    for number in range(12):
        location = f"{data_directory(maker.table.metadata)}/00000-{number}-failed-write-{number:05d}.parquet"
        maker.table.storage.create(location, b"PAR1" + bytes(20_000))


def branches(maker: TableMaker) -> None:
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


def stream(maker: TableMaker) -> None:
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


def broken(maker: TableMaker) -> None:
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


_FILES, _FILE_ROWS = 6, 1000


def delete_files(maker: TableMaker) -> None:
    """Six data files, of which eight commits delete 5 % of the rows each."""
    maker.create()
    parts = [orders(10_000 * number, _FILE_ROWS, maker.clock.now_ms(), spread_ms=HOUR_MS) for number in range(_FILES)]
    maker.append(*parts, after_ms=HOUR_MS)
    for number in range(8):
        positions = [(file, range(number, _FILE_ROWS, 20)) for file in maker.files()]
        maker.delete_positions(positions, after_ms=HOUR_MS)


def upserts(maker: TableMaker) -> None:
    """Thirty commits that each write 200 orders, half of which are there already."""
    maker.create(properties=FAST_APPENDS)
    for number in range(30):
        rows = orders(100 * number, 200, maker.clock.now_ms(), spread_ms=MINUTE_MS)
        maker.upsert(rows, "order_id", after_ms=HOUR_MS)


def vectors(maker: TableMaker) -> None:
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


class PlaygroundState(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the playground.

    Attributes:
        name: the table's.
        what: what is wrong with it, and how that came, in one line.
        make: makes the table. Its last commit must be before now.
        age_ms: the age of the table: the clock by which it is made begins so long before now.
        extra_commands: commands that help and that `report` does not propose, as words after `icekeep`, without `--table`.
    """

    name: str
    what: str
    make: Callable[[TableMaker], None]
    age_ms: int
    extra_commands: tuple[str, ...] = ()


STATES: tuple[PlaygroundState, ...] = (
    PlaygroundState(
        name="small_files",
        what="every six hours each of three writers has left a small file in the day's partition",
        make=layouts.small_files,
        age_ms=4 * DAY_MS,
    ),
    PlaygroundState(
        name="delete_files",
        what="merge-on-read has deleted 40 % of the rows, by 48 position delete files that each scan applies",
        make=row_changes.delete_files,
        age_ms=3 * DAY_MS,
    ),
    PlaygroundState(
        name="upserts",
        what="streaming upserts have left an equality delete file with each commit, which all older files must be compared with",
        make=row_changes.upserts,
        age_ms=2 * DAY_MS,
    ),
    PlaygroundState(
        name="wide_manifests",
        what="each commit has left a manifest over 120 days, so that a filter on one day opens nearly all of them",
        make=layouts.wide_manifests,
        age_ms=3 * DAY_MS,
    ),
    PlaygroundState(
        name="many_snapshots",
        what="a job that commits every ten minutes, mostly nothing, has left 2,000 snapshots that nobody has expired",
        make=histories.many_snapshots,
        age_ms=20 * DAY_MS,
    ),
    PlaygroundState(
        name="orphans",
        what="failed writes have left data files, and commits have left metadata files, that nothing leads to",
        make=histories.orphans,
        age_ms=20 * DAY_MS,
        extra_commands=("remove_orphan_files --dry-run",),
    ),
    PlaygroundState(
        name="skewed",
        what="of five regions one has 96 % of the rows, so that its partition decides how long a job takes",
        make=layouts.skewed,
        age_ms=2 * DAY_MS,
        extra_commands=("plan_scan",),
    ),
    PlaygroundState(
        name="evolved",
        what="partitioned by month, then by day, then by day and bucket: small files lie in all three specs",
        make=layouts.evolved,
        age_ms=4 * DAY_MS,
    ),
    PlaygroundState(
        name="branches",
        what="all rows are replaced each week; two tags and a branch keep old versions on purpose, one tag is forgotten",
        make=histories.branches,
        age_ms=63 * DAY_MS,
        extra_commands=("ref list",),
    ),
    PlaygroundState(
        name="stream",
        what="Flink has committed a file a minute, and notes in its snapshots how far it has come",
        make=histories.stream,
        age_ms=2 * HOUR_MS,
    ),
    PlaygroundState(
        name="vectors",
        what="position delete files of version 2 lie alongside the vectors of version 3, to which it was upgraded meanwhile",
        make=row_changes.vectors,
        age_ms=3 * DAY_MS,
    ),
    PlaygroundState(
        name="broken",
        what="somebody has deleted a data file by hand, and the metadata would give a column id out twice",
        make=histories.broken,
        age_ms=2 * DAY_MS,
        extra_commands=("check", "repair --fault 108,301 --dry-run", "repair --fault 108,301"),
    ),
)
"""All of them, in the order in which they are made and told."""
