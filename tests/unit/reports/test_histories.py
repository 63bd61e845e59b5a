"""What runs of maintenance did: by the snapshots that they left, by the record of runs, by both; and how tables grew."""

import pytest
from msgspec.structs import replace

from icekeep.errors import UnavailableError
from icekeep.maintenance.compact.job import compact
from icekeep.reports.histories import GROWING_TABLES, histories_of, maintenance_runs, table_history, with_histories
from icekeep.reports.job import merged, report
from icekeep.reports.page.page import report_page
from icekeep.run_records.values import RunRecord
from icekeep.tables.verbs import append
from kit.browser import Page
from kit.job_world import EVENTS, World
from kit.lake import events
from kit.runtime import no_spark
from kit.tables import HOUR_MS, add, appends, wait


def recorded(**changed):
    """A run of `compact` that has ended well."""
    told = {"run_id": "compact-1", "job": "compact", "table": "local.db.events", "policy": "nightly", "status": "done"}
    return RunRecord(**{**told, "started_ms": 1_000, "ended_ms": 9_000, "seen_ms": 5_000, **changed})


def maintained(**summary):
    """A table of three appends, one commit of a job whose summary has these keys, and an append."""
    table = appends(count=3)
    table = add(wait(table), "new")
    keys = {name.replace("_", "."): value for name, value in summary.items()}
    *rest, last = table.metadata.snapshots
    made = replace(last, summary={**last.summary, **{k.replace("run.id", "run-id"): v for k, v in keys.items()}})
    return replace(table, metadata=replace(table.metadata, snapshots=(*rest, made)))


def test_job_commit_is_run_with_totals_before_and_after():
    table = maintained(icekeep_job="compact", icekeep_run_id="compact-1", icekeep_policy="nightly")
    [run] = maintenance_runs(table.metadata)
    assert (run.job, run.run_id, run.policy, run.snapshots_count) == ("compact", "compact-1", "nightly", 1)
    assert (run.before.data_files_count, run.after.data_files_count) == (6, 7)
    assert run.after.bytes == run.before.bytes + 100
    assert run.timestamp_ms == table.metadata.snapshots[-1].timestamp_ms
    assert (run.status, run.elapsed_ms) == (None, None)


def test_replace_commits_of_other_engines_are_runs_too():
    table = maintained(operation="replace", engine_name="spark")
    table = replace(
        table,
        metadata=replace(
            table.metadata,
            snapshots=tuple(
                replace(s, summary={**s.summary, "engine-name": "spark"}) if s.operation == "replace" else s
                for s in table.metadata.snapshots
            ),
        ),
    )
    [run] = maintenance_runs(table.metadata)
    assert (run.job, run.run_id) == ("compact", None)
    assert run.made_by.startswith("Spark")


def test_the_commits_of_one_run_are_one_run():
    table = appends(count=4)
    told = {"icekeep.job": "compact", "icekeep.run-id": "compact-1"}
    first, *made = table.metadata.snapshots
    made = [replace(s, summary={**s.summary, **told}) for s in made]
    [run] = maintenance_runs(replace(table.metadata, snapshots=(first, *made)))
    assert (run.snapshots_count, run.snapshot_id) == (3, made[-1].snapshot_id)
    assert (run.before.data_files_count, run.after.data_files_count) == (1, 10)


def test_a_run_whose_parent_has_expired_has_no_before():
    table = maintained(icekeep_job="compact")
    [run] = maintenance_runs(replace(table.metadata, snapshots=table.metadata.snapshots[-1:]))
    assert (run.before, run.after.data_files_count) == (None, 7)


def test_a_run_with_snapshots_and_a_record_is_one():
    table = maintained(icekeep_job="compact", icekeep_run_id="compact-1")
    record = recorded(
        result={"rewritten_data_files_count": 12, "failed_files_count": 0, "is_it": True, "status": "done"}
    )
    [run] = maintenance_runs(table.metadata, [record])
    assert (run.status, run.elapsed_ms, run.timestamp_ms, run.policy) == ("done", 8_000, 9_000, "nightly")
    assert (run.before.data_files_count, run.after.data_files_count) == (6, 7)
    assert run.figures == {"rewritten_data_files_count": 12}
    assert (run.snapshots_count, run.snapshot_id) == (1, table.metadata.current_snapshot_id)


def test_a_run_that_left_no_snapshot_is_told_by_its_record():
    table = appends(count=3)
    first, *_, last = (s.snapshot_id for s in table.metadata.snapshots)
    records = [
        recorded(run_id="a", job="expire_snapshots", snapshot_id_before=first, snapshot_id_after=last),
        recorded(
            run_id="b", job="compact", status="failed", error_message="no room", ended_ms=None, snapshot_id_before=77
        ),
    ]
    expired, failed = maintenance_runs(table.metadata, records)
    assert (expired.before.data_files_count, expired.after.data_files_count) == (1, 6)
    assert (failed.status, failed.error, failed.timestamp_ms, failed.before) == ("failed", "no room", 5_000, None)


def test_the_newest_runs_come_first_and_older_ones_are_counted():
    records = [recorded(run_id=str(n), ended_ms=n) for n in range(23)]
    told = table_history(appends(count=1), records, points=0)
    assert [run.run_id for run in told.runs] == [str(n) for n in range(22, 2, -1)]
    assert told.left_out_runs_count == 3
    assert (told.growth, told.commits_count) == ((), 0)


def test_growth_is_that_of_main():
    told = table_history(appends(count=3))
    assert [(p.data_files_count, p.delete_files_count) for p in told.growth] == [(1, 0), (3, 0), (6, 0)]
    assert told.growth[1].timestamp_ms - told.growth[0].timestamp_ms == HOUR_MS
    assert told.commits_count == 3


@pytest.mark.slow
class TestReports:
    """Of a catalog with a table that was compacted."""

    @pytest.fixture
    def world(self):
        world = World(2)
        table = world.catalog.load(EVENTS)
        for number in range(6):
            world.runtime.pass_ms(HOUR_MS)
            table = append(table, [events(number, 5)])
        world.runtime.pass_ms(HOUR_MS)
        compact(table, no_spark)
        return world

    def test_a_report_has_histories_where_they_are_asked_for(self, world):
        assert report(world.catalog, no_spark).histories == ()
        found = report(world.catalog, no_spark, histories=True)
        [history] = found.histories
        [run] = history.runs
        assert (run.job, run.before.data_files_count, run.after.data_files_count) == ("compact", 6, 1)
        assert [point.data_files_count for point in history.growth] == [1, 2, 3, 4, 5, 6, 1]
        assert found.timestamp_ms == world.runtime.now_ms()
        both = merged([found, found])
        assert (both.histories, both.timestamp_ms) == ((history, history), found.timestamp_ms)

    def test_the_page_shows_them(self, world):
        page = Page(report_page(report(world.catalog, no_spark, histories=True)))
        assert "6 → 1" in page.text
        assert any("Data files over time" in label for label in page.values("aria-label"))
        assert "7 of 7 commits of main" in page.text

    def test_unreadable_table_keeps_recorded_runs_and_reason(self, world):
        found = report(world.catalog, no_spark)

        def before(operation, location):
            if operation == "load":
                raise UnavailableError("the catalog is away")

        world.storage.before = before
        [history] = with_histories(world.catalog, found, [recorded(), recorded(table="other")]).histories
        assert history.not_read == "the catalog is away"
        assert [run.run_id for run in history.runs] == ["compact-1"]

    def test_a_run_that_has_died_is_told_as_unfinished(self, world):
        died = recorded(status="running", ended_ms=None)
        *_, run = with_histories(world.catalog, report(world.catalog, no_spark), [died]).histories[0].runs
        assert (run.status, run.timestamp_ms) == ("unfinished", 5_000)

    def test_what_nobody_has_thought_of_ends_nothing(self, world):
        found = report(world.catalog, no_spark)

        def before(operation, location):
            raise ZeroDivisionError("by zero")

        world.storage.before = before
        [history] = with_histories(world.catalog, found).histories
        assert "ZeroDivisionError" in history.not_read

    def test_only_of_the_largest_tables_lists_are_read(self, world):
        [table] = report(world.catalog, no_spark).tables
        larger = replace(table.data, data_files_bytes=table.data.data_files_bytes + 1)
        others = [replace(table, table=f"local.db.{n}", data=larger) for n in range(GROWING_TABLES)]
        *_, last_but_one, history = histories_of(world.catalog, [*others, table])
        assert (history.growth, len(history.runs), history.not_read) == ((), 1, None)
        assert "there is no table" in last_but_one.not_read
        *_, history = histories_of(world.catalog, [*others[1:], table])
        assert len(history.growth) == 7

    def test_of_a_table_whose_lists_are_long_fewer_are_read(self, world):
        [table] = report(world.catalog, no_spark).tables
        for number in range(4):
            append(world.catalog.load(EVENTS), [events(number, 5)])
        told = [replace(table, metadata=replace(table.metadata, manifests_count=n)) for n in (1, 20_000, 1_000_000)]
        counts = [len(histories_of(world.catalog, [one])[0].growth) for one in told]
        assert counts == [11, 10, 8]
