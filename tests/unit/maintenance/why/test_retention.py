from icekeep.catalog.base import OperatorRules
from icekeep.maintenance.why.fate import SnapshotRetention, fate_of_read, kept_until
from icekeep.spec.retention import RetentionPolicy, select_expired
from kit.cases import for_each
from kit.metadata import DAY_MS, START_MS, MetadataBuilder

WEEK = RetentionPolicy(keep_writer_progress_ms=7 * DAY_MS)


def days(number):
    return START_MS + round(number * DAY_MS)


@for_each(
    ("table", "readers", "expected"),
    [
        # Snapshot n was made on day n - 1; what is older than five days goes.
        (MetadataBuilder().commits(4), {1}, SnapshotRetention(days(5) + 1)),
        (MetadataBuilder().commits(4), {1, 3}, SnapshotRetention(days(7) + 1)),
        (MetadataBuilder().commits(4), {4}, SnapshotRetention(None, ("branch main",))),
        (MetadataBuilder().commits(4).tag("t", at=1), {1}, SnapshotRetention(None, ("tag t",))),
        (MetadataBuilder().commits(4).tag("t", at=1, max_ref_age_ms=9 * DAY_MS), {1}, SnapshotRetention(days(9) + 1)),
        (
            MetadataBuilder().commits(4).branch("b", at=2).commits(1, branch="b"),
            {5},
            SnapshotRetention(None, ("branch b",)),
        ),
        (
            MetadataBuilder().commits(4).branch("main", min_snapshots_to_keep=2),
            {3},
            SnapshotRetention(None, ("branch main, which keeps its newest snapshots whatever their age",)),
        ),
        (MetadataBuilder().commits(4).branch("main", min_snapshots_to_keep=2), {2}, SnapshotRetention(days(6) + 1)),
        (
            MetadataBuilder().commits(4).branch("main", max_snapshot_age_ms=20 * DAY_MS),
            {1},
            SnapshotRetention(days(20) + 1),
        ),
        (
            MetadataBuilder().commits(4).properties({"history.expire.max-snapshot-age-ms": "1"}),
            {1},
            SnapshotRetention(days(4)),
        ),
        (MetadataBuilder().commits(2).stage(at_ms=days(3)), {3}, SnapshotRetention(days(8) + 1)),
    ],
)
def test_a_file_is_kept_as_long_as_the_last_snapshot_that_reads_it(table, readers, expected):
    metadata, now_ms = table.build(), days(4)
    assert kept_until(metadata, OperatorRules(), frozenset(readers), now_ms) == expected
    if expected.until_ms is not None and expected.until_ms > now_ms:
        before, then = (select_expired(metadata, WEEK, expected.until_ms - n).snapshot_ids for n in (1, 0))
        assert not readers <= before
        assert readers <= then


def test_of_many_tags_that_keep_a_file_the_first_are_named_and_the_rest_counted():
    kept = SnapshotRetention(None, tuple(f"tag restored-{n}" for n in range(2_000)))
    said = fate_of_read(is_current=False, kept=kept, now_ms=0, is_missing=False, back=None)
    assert said.endswith("kept by tag restored-0, tag restored-1, tag restored-2 and 1,997 more")
