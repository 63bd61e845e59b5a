"""A run over many tables, with its threads and leases."""

import signal
import threading

import msgspec
import pytest
from msgspec.structs import replace

from icekeep.errors import NotFoundError, OutcomeUnknownError, SafetyError, UnavailableError, UnsupportedError
from icekeep.events import Warned
from icekeep.fleet import choosing as ranking
from icekeep.fleet.choosing import estimate_of
from icekeep.fleet.job import WorkerPool, due_tables, maintain, plan_maintain
from icekeep.fleet.overview import LEASE_MS, PolicyTable, Scope, TableLeases
from icekeep.fleet.values import JobOutcome
from icekeep.health.values import JobAdvice
from icekeep.maintenance.compact.options import CompactionEstimate, RewriteDataFilesResult
from icekeep.names import NAME_IN_CATALOG
from icekeep.policies.values import parse_glob
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import CUT_OFF_MS, RunRecord
from icekeep.spec.types import DAY_MS, HOUR_MS, MINUTE_MS
from kit.cases import scaled, seeds
from kit.job_world import JOBS, POLICY, Jobs, ends_with, fleet_of, spoil, statuses, whys, world_of
from simulation.nights import Simulation, Violation

pytestmark = pytest.mark.slow


ALL_DONE = dict.fromkeys(JOBS, "done")


@pytest.fixture(scope="module")
def _world():
    return world_of({"calm": 1, "sick": 9, "some": 6})


@pytest.fixture
def world(_world):
    return _world.copy()


@pytest.fixture
def records(tmp_path):
    return RunRecords.at(f"sqlite:///{tmp_path}/runs.db")


class Told:
    def __init__(self):
        self.events = []

    def on(self, event):
        self.events.append(event)


def test_tables_run_by_benefit_per_cost_and_jobs_in_order(world):
    jobs = Jobs()
    result = maintain(fleet_of(world, jobs, workers=1))
    assert (result.status, result.due_jobs_count, result.done_jobs_count, result.tables_count) == ("done", 9, 9, 3)
    assert jobs.calls == [(table, job) for table in ("sick", "some", "calm") for job in JOBS]
    assert statuses(result) == dict.fromkeys(("sick", "some", "calm"), ALL_DONE)
    assert [table.rank for table in result.tables] == [1, 2, 3]
    assert [table.priority for table in result.tables] == sorted((t.priority for t in result.tables), reverse=True)


def test_failure_stops_neither_other_jobs_nor_other_tables(world):
    jobs = Jobs(
        {
            ("sick", "compact"): ends_with(4, "it is encrypted", "unsupported"),
            ("some", "rewrite_manifests"): ends_with(75, "another writer won", "conflict"),
            ("calm", "compact"): RuntimeError("nobody thought of this"),
            ("calm", "expire_snapshots"): JobOutcome(status="partial", exit_status=3),
        }
    )
    result = maintain(fleet_of(world, jobs))
    assert len(jobs.calls) == 9
    assert statuses(result) == {
        "sick": {**ALL_DONE, "compact": "refused"},
        "some": {**ALL_DONE, "rewrite_manifests": "failed"},
        "calm": {**ALL_DONE, "compact": "failed", "expire_snapshots": "partial"},
    }
    assert whys(result)["sick", "compact"] == "it is encrypted"
    assert whys(result)["calm", "compact"] == "RuntimeError: nobody thought of this"
    assert (result.status, result.failed_jobs_count, result.refused_jobs_count) == ("partial", 2, 1)
    assert result.done_jobs_count == 6


def test_due_job_that_changed_nothing_says_so(world):
    """Its arguments may leave out what the number counts."""
    policy = POLICY.replace("compact:", 'compact: {where: "id = 0", when: {small_files_over: 0}}')
    assert policy != POLICY
    results = {
        "sick": RewriteDataFilesResult(estimated=CompactionEstimate(cpu_ms=9)),
        "some": RewriteDataFilesResult(rewritten_data_files_count=6, added_data_files_count=1),
    }
    jobs = Jobs({(name, "compact"): JobOutcome(status="done", result=result) for name, result in results.items()})
    found = whys(maintain(fleet_of(world, jobs, policy=policy)))
    assert found["sick", "compact"].endswith(", over 0; it changed nothing")
    assert found["some", "compact"].endswith(", over 0")
    assert found["calm", "expire_snapshots"] == "no condition is set"


def test_unknown_outcome_stops_further_jobs_on_table(world):
    jobs = Jobs({("sick", "compact"): ends_with(5, "it may have landed", "outcome_unknown")})
    result = maintain(fleet_of(world, jobs))
    assert jobs.of("sick") == ["compact"]
    assert statuses(result)["sick"] == {
        "compact": "failed",
        "rewrite_manifests": "not_begun",
        "expire_snapshots": "not_begun",
    }
    assert "look before anything follows" in whys(result)["sick", "expire_snapshots"]
    assert statuses(result)["some"] == ALL_DONE


def test_jobs_over_budget_are_named_and_smaller_ones_fit(world):
    plan = plan_maintain(fleet_of(world, Jobs()))
    bytes_of = {(t.table, job.job): job.estimate_bytes for t in plan.tables for job in t.jobs}
    largest = bytes_of["local.db.sick", "compact"]
    assert largest == max(size for (_, job), size in bytes_of.items() if job == "compact") > 0
    jobs = Jobs()
    result = maintain(fleet_of(world, jobs, workers=1, max_bytes=largest - 1))
    assert statuses(result)["sick"]["compact"] == "not_begun"
    assert "of the run's bytes are left" in whys(result)["sick", "compact"]
    assert jobs.of("some")[0] == "compact"
    assert (result.status, result.not_begun_jobs_count) == ("partial", 9 - len(jobs.calls))
    began = sum(bytes_of[f"local.db.{table}", job] for table, job in jobs.calls)
    assert began <= largest - 1


def test_no_job_starts_after_run_time_and_running_one_goes_on(world):
    def long(assignment):
        world.runtime.pass_ms(11 * MINUTE_MS)
        return JobOutcome(status="done")

    jobs = Jobs({("sick", "compact"): long})
    result = maintain(fleet_of(world, jobs, workers=1, max_ms=10 * MINUTE_MS))
    assert jobs.calls == [("sick", "compact")]
    assert statuses(result)["sick"] == {
        "compact": "done",
        "rewrite_manifests": "not_begun",
        "expire_snapshots": "not_begun",
    }
    assert whys(result)["calm", "compact"] == "the time of this run is over"
    assert (result.status, result.not_begun_jobs_count) == ("partial", 8)


def test_a_window_that_closes_meanwhile_lets_nothing_more_begin(world):
    # The clock of these worlds begins on a Tuesday at 22:13.
    policy = POLICY + "    window: {from: '20:00', to: '21:00'}\n"
    fleet = fleet_of(world, jobs := Jobs(), policy=policy, workers=1)
    assert set(whys(maintain(fleet)).values()) == {"its window is closed: 20:00 to 21:00 UTC"}
    assert jobs.calls == []
    opens = POLICY + "    window: {from: '00:00', to: '24:00', days: [tue]}\n"

    def until_wednesday(assignment):
        world.runtime.pass_ms(DAY_MS)
        return JobOutcome(status="done")

    jobs = Jobs({("sick", "compact"): until_wednesday})
    result = maintain(fleet_of(world, jobs, policy=opens, workers=1))
    assert jobs.calls == [("sick", "compact")]
    assert (result.not_begun_jobs_count, result.status) == (8, "partial")


def test_job_exceeding_window_is_not_started(world):
    """A run in observing mode still makes its plan, since that needs no window."""
    # The clock of these worlds begins on a Tuesday at 22:13:20, and no job is estimated below half a second.
    world.runtime.pass_ms(46 * MINUTE_MS + 39_600)
    policy = POLICY + "    window: {from: '20:00', to: '23:00'}\n"
    jobs = Jobs()
    result = maintain(fleet_of(world, jobs, policy=policy, workers=1))
    assert jobs.calls == []
    assert (result.status, result.not_begun_jobs_count) == ("partial", 9)
    assert {why.rpartition(", ")[2] for why in whys(result).values()} == {"and its window closes in 0.4 s"}
    jobs = Jobs()
    observed = maintain(fleet_of(world, jobs, policy=f"{policy}    mode: observe\n", workers=1))
    assert observed.observed_jobs_count == 9
    assert maintain(fleet_of(world, Jobs(), policy=policy.replace("23:00", "24:00"))).done_jobs_count == 9


def compaction_takes(hours_count, table="local.db.sick"):
    """Estimates of which that of one compaction is so many hours."""
    long = JobAdvice(job="compact", has_work=True, reason="r", cpu_ms=hours_count * HOUR_MS)

    def estimate(seen, choice):
        is_long = (seen.name, choice.call.job) == (table, "compact")
        return estimate_of(choice.call.job, (), long if is_long else choice.advice, 0)

    return estimate


@pytest.mark.parametrize(
    ("waited_minutes", "last_ok_days", "is_begun"),
    [(0, None, True), (100, 1, True), (120, None, False), (120, 13, False), (120, 15, True), (300, 15, True)],
    ids=["first half", "first half, done lately", "never", "not long ago", "long ago", "long ago, late"],
)
def test_job_longer_than_window_starts_in_first_half(
    world, records, monkeypatch, waited_minutes, last_ok_days, is_begun
):
    """Where no window would hold a job, it starts in the first half, or after waiting too long."""
    # The clock begins at 22:13:20, and the half of the window is over at midnight.
    monkeypatch.setattr(PolicyTable, "estimate", compaction_takes(12))
    policy = POLICY + "    window: {from: '20:00', to: '04:00'}\n"
    if last_ok_days is not None:
        ended_ms = world.runtime.now_ms() - last_ok_days * DAY_MS
        times = dict.fromkeys(("started_ms", "ended_ms", "seen_ms"), ended_ms)
        records.end(
            RunRecord(
                run_id="compact-1", job="compact", table="local.db.sick", policy="nightly", status="done",
                exit_status=0, **times,
            )
        )  # fmt: skip
    world.runtime.pass_ms(waited_minutes * MINUTE_MS)
    result = maintain(fleet_of(world, Jobs(), policy=policy, records=records, workers=1))
    assert statuses(result)["sick"]["compact"] == ("done" if is_begun else "not_begun")
    assert result.not_begun_jobs_count == (0 if is_begun else 1)
    if not is_begun:
        assert whys(result)["sick", "compact"].startswith(
            "in the second half of its window only what fits is begun: it would take about 12.0 h, and its window closes"
        )


def test_run_time_limit_holds_in_first_half_of_window(world, monkeypatch):
    monkeypatch.setattr(PolicyTable, "estimate", compaction_takes(12))
    policy = POLICY + "    window: {from: '20:00', to: '04:00'}\n"
    result = maintain(fleet_of(world, Jobs(), policy=policy, workers=1, max_ms=4 * HOUR_MS))
    assert "of the run's time are left" in whys(result)["sick", "compact"]
    assert result.not_begun_jobs_count == 1


def test_estimates_go_by_the_cores_that_work(world, monkeypatch):
    monkeypatch.setattr(ranking, "TASK_BYTES", 1)
    fleet = fleet_of(world, Jobs())
    asked = []
    settings = replace(fleet.settings, slots=lambda work_bytes: asked.append(work_bytes) or 64)
    plan = plan_maintain(replace(fleet, settings=settings))
    assert max(asked) == max(job.estimate_bytes for table in plan.tables for job in table.jobs) // 2


def test_disabled_and_unreadable_tables_are_named_and_skipped():
    world = world_of({"mine": 6, "broken": 6, "good": 6}, mine={"icekeep.enabled": "false"})
    spoil(world, ("db", "broken"))
    jobs = Jobs()
    result = maintain(fleet_of(world, jobs))
    assert statuses(result) == {
        "good": ALL_DONE,
        "broken": dict.fromkeys(JOBS, "held"),
        "mine": dict.fromkeys(JOBS, "held"),
    }
    assert {table for table, _ in jobs.calls} == {"good"}
    assert "switched off by table property icekeep.enabled" in whys(result)["mine", "compact"]
    assert [one.name for one in result.not_read] == ["local.db.broken"]
    assert result.status == "partial"
    by_name = {table.table: table for table in result.tables}
    assert by_name["local.db.broken"].not_read
    assert by_name["local.db.mine"].score is None


def test_a_dry_run_and_a_list_begin_nothing_and_write_nothing(world, records, tmp_path):
    before = world.state()
    jobs = Jobs()
    plan = plan_maintain(fleet_of(world, jobs, records=records))
    listed = due_tables(fleet_of(world, jobs, records=records))
    assert (jobs.calls, world.state(), list(tmp_path.iterdir())) == ([], before, [])
    assert (plan.status, plan.due_jobs_count, listed.status) == ("planned", 9, "done")
    assert statuses(plan)["sick"] == dict.fromkeys(JOBS, "due")
    assert [one.table for one in listed.tables] == [one.table for one in plan.tables]
    assert [job.job for job in listed.tables[0].jobs] == [*JOBS]


def test_a_policy_that_observes_has_plans_made_and_nothing_else(world):
    jobs = Jobs({("sick", "compact"): JobOutcome(status="planned")})
    result = maintain(fleet_of(world, jobs, policy=POLICY + "    mode: observe\n"))
    assert all(one.observes for one in jobs.assignments)
    assert statuses(result)["sick"] == dict.fromkeys(JOBS, "observed")
    assert (result.status, result.observed_jobs_count, result.done_jobs_count) == ("done", 9, 0)


TWO = """
policies:
  - {name: first, schedule: null, match: local.db.s*, jobs: {compact: }}
  - {name: second, schedule: "@daily", match: local.db.*, jobs: {compact: , expire_snapshots: }}
"""


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (Scope(), {("calm", "compact"), *((name, "expire_snapshots") for name in ("calm", "sick", "some"))}),
        (Scope(policy="first"), {("sick", "compact"), ("some", "compact")}),
        (Scope(match=parse_glob("db.c*", NAME_IN_CATALOG)), {("calm", "compact"), ("calm", "expire_snapshots")}),
        (Scope(tables=frozenset({"local.db.some"})), {("some", "expire_snapshots")}),
    ],
)
def test_scope_limits_jobs_and_unscheduled_need_a_name(world, scope, expected):
    jobs = Jobs()
    result = maintain(fleet_of(world, jobs, policy=TWO, scope=scope))
    assert {*jobs.calls} == expected
    assert result.status == "done"


@pytest.mark.parametrize(
    "scope",
    [
        Scope(policy="first", tables=frozenset({"local.db.calm"})),
        Scope(match=parse_glob("other.*", NAME_IN_CATALOG)),
        Scope(tables=frozenset({"local.db.nothing"})),
    ],
)
def test_tables_that_no_policy_of_the_run_reaches_are_not_found(world, scope):
    with pytest.raises(NotFoundError, match="no table that the policies of this run reach"):
        maintain(fleet_of(world, Jobs(), policy=TWO, scope=scope))


def test_tables_at_once_never_exceed_workers(world):
    gate = threading.Barrier(2, timeout=30)

    def together(assignment):
        gate.wait()
        return JobOutcome(status="done")

    jobs = Jobs({(table, "compact"): together for table in ("sick", "some")})
    maintain(fleet_of(world, jobs, workers=2))
    assert jobs.most_at_once == 2
    assert len(jobs.calls) == 9


def test_two_runs_at_once_share_the_tables_and_do_nothing_twice(world, records):
    both_look = threading.Barrier(2, timeout=60)
    jobs = Jobs(
        {(table, "compact"): lambda a: (world.runtime.pass_ms(1), JobOutcome(status="done"))[1] for table in ("sick",)},
        records,
    )

    def run(number, results):
        fleet = fleet_of(world, jobs, run_id=f"maintain-{number}", records=records, workers=1)
        both_look.wait()
        results.append(maintain(fleet))

    for number in (1, 2):
        now_ms = world.runtime.now_ms()
        records.begin(RunRecord(run_id=f"maintain-{number}", job="maintain", started_ms=now_ms, seen_ms=now_ms))
    results = []
    threads = [threading.Thread(target=run, args=(number, results)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(jobs.calls) == sorted((table, job) for table in ("sick", "some", "calm") for job in JOBS)
    assert sum(result.done_jobs_count for result in results) == 9
    assert {status for result in results for jobs in statuses(result).values() for status in jobs.values()} <= {
        "done",
        "elsewhere",
        "not_due",
    }
    assert [result.status for result in results] == ["done", "done"]


def held_by_another(world, records, process, run_id="maintain-other"):
    now_ms = world.runtime.now_ms()
    records.begin(RunRecord(run_id=run_id, job="maintain", process=process, started_ms=now_ms, seen_ms=now_ms))
    assert records.take_lease("local.db.sick", run_id, now_ms + LEASE_MS, now_ms) == run_id


def test_a_table_that_another_run_works_on_is_left_to_it(world, records):
    held_by_another(world, records, "")
    jobs = Jobs()
    result = maintain(fleet_of(world, jobs, records=records))
    assert statuses(result)["sick"] == dict.fromkeys(JOBS, "elsewhere")
    assert whys(result)["sick", "compact"] == "run maintain-other is at work on the table"
    assert {table for table, _ in jobs.calls} == {"some", "calm"}
    assert (result.status, result.elsewhere_jobs_count) == ("done", 3)


def test_lease_of_dead_run_is_taken_or_expires(world, records):
    """A lease whose run has ended is taken at once, and one of a silent run when it runs out."""
    held_by_another(world, records, "")
    now_ms = world.runtime.now_ms()
    ended = RunRecord(
        run_id="maintain-other",
        job="maintain",
        status="failed",
        exit_status=1,
        started_ms=now_ms,
        ended_ms=now_ms,
        seen_ms=now_ms,
    )
    records.end(ended)
    assert statuses(maintain(fleet_of(world, Jobs(), records=records)))["sick"] == ALL_DONE
    held_by_another(world, records, "", "maintain-third")
    world.runtime.pass_ms(LEASE_MS + 1)
    assert statuses(maintain(fleet_of(world, Jobs(), records=records)))["sick"] == ALL_DONE


def test_next_run_does_not_repeat_jobs_of_killed_one(world, records):
    first = Jobs({("some", "compact"): SystemExit(137)}, records)
    fleet = fleet_of(world, first, records=records, workers=1)
    killed = maintain(fleet)
    assert killed.status == "interrupted"
    assert first.calls == [*((("sick", job)) for job in JOBS), ("some", "compact")]
    world.runtime.pass_ms(MINUTE_MS)
    second = Jobs({}, records)
    result = maintain(fleet_of(world, second, run_id="maintain-2", records=records, workers=1))
    assert {*second.calls} == {(table, job) for table in ("some", "calm") for job in JOBS}
    assert statuses(result)["sick"] == dict.fromkeys(JOBS, "not_due")
    assert "it ended well 60.0 s ago" in whys(result)["sick", "compact"]


def test_failing_job_is_tried_less_often_and_named(world, records):
    tried, named = [], []
    for night in range(20):
        jobs = Jobs({("sick", "compact"): ends_with(1)}, records)
        result = maintain(fleet_of(world, jobs, run_id=f"maintain-{night}", records=records, workers=1))
        tried += [night] if ("sick", "compact") in jobs.calls else []
        named += [night] if result.failing else []
        assert len(jobs.calls) >= 8
        assert result.status == "partial" if result.failing or night in tried else "done"
        world.runtime.pass_ms(DAY_MS)
    assert tried == [0, 1, 3, 7, 15]
    assert named == [*range(3, 20)]
    assert (result.failing[0].table, result.failing[0].job, result.failing[0].failures_in_a_row) == (
        "local.db.sick",
        "compact",
        5,
    )
    assert result.failing[0].why == "it broke"
    world.runtime.pass_ms(9 * DAY_MS)
    result = maintain(fleet_of(world, Jobs({}, records), run_id="maintain-last", records=records))
    assert (result.failing, result.status) == ((), "done")


def test_what_is_postponed_switched_off_or_closed_is_counted(records):
    world = world_of({"sick": 6, "mine": 1}, mine={"icekeep.enabled": "false"})
    for night in range(3):
        jobs = Jobs({("sick", "compact"): ends_with(1)}, records)
        result = maintain(fleet_of(world, jobs, run_id=f"maintain-{night}", records=records))
        assert result.held_jobs_count == 3
        world.runtime.pass_ms(DAY_MS)
    assert (result.postponed_jobs_count, result.closed_jobs_count, result.status) == (1, 0, "done")
    assert whys(result)["sick", "compact"].startswith("it failed 2 times in a row")
    closed = POLICY + "    window: {from: '00:00', to: '01:00'}\n"
    assert maintain(fleet_of(world, Jobs(), policy=closed)).closed_jobs_count == 3


def test_what_may_pass_is_tried_in_each_night_and_is_not_named(world, records):
    for night in range(5):
        jobs = Jobs({("sick", "compact"): ends_with(75, "another writer won", "conflict")}, records)
        result = maintain(fleet_of(world, jobs, run_id=f"maintain-{night}", records=records, workers=1))
        assert ("sick", "compact") in jobs.calls
        assert (result.status, result.failed_jobs_count, result.failing) == ("partial", 1, ())
        world.runtime.pass_ms(DAY_MS)


def test_what_may_pass_is_no_third_failure(world, records):
    for night, ran in enumerate(
        (ends_with(1), ends_with(1), ends_with(75, "another writer won", "conflict"), ends_with(1))
    ):
        jobs = Jobs({("sick", "compact"): ran}, records)
        result = maintain(fleet_of(world, jobs, run_id=f"maintain-{night}", records=records, workers=1))
        assert ("sick", "compact") in jobs.calls
        assert [one.failures_in_a_row for one in result.failing] == ([3] if night == 3 else [])
        world.runtime.pass_ms([DAY_MS, 2 * DAY_MS, HOUR_MS, 0][night])


def test_tries_of_one_night_are_one_failure(world, records):
    failing = []
    for night in range(3):
        for attempt in range(3):
            jobs = Jobs({("sick", "compact"): ends_with(1)}, records)
            result = maintain(fleet_of(world, jobs, run_id=f"maintain-{night}-{attempt}", records=records))
            failing.append([one.failures_in_a_row for one in result.failing])
            assert (("sick", "compact") in jobs.calls) is (attempt == 0 or night == 0)
            world.runtime.pass_ms(HOUR_MS)
        world.runtime.pass_ms([21 * HOUR_MS, 45 * HOUR_MS, 0][night])
    assert failing == [[], [], [], [], [], [], [3], [3], [3]]


def test_unreachable_records_are_reported_once_and_ignored(world, records, monkeypatch):
    for name in ("last_of", "take_lease", "drop_lease", "renew_leases", "select"):

        def broken(*_, **__):
            raise UnavailableError("the record is out of reach")

        monkeypatch.setattr(records, name, broken)
    told = Told()
    result = maintain(fleet_of(world, Jobs(), records=records, listener=told))
    assert result.status == "done"
    assert result.done_jobs_count == 9
    warnings = [event.message for event in told.events if isinstance(event, Warned)]
    assert len(warnings) == 1
    assert "the record is out of reach" in warnings[0]


def cut_off_after(world, records, fleets, worked_ms):
    """A job that works until the run is stopped, and is written down as interrupted."""

    def work(assignment):
        began_ms = world.runtime.now_ms()
        world.runtime.pass_ms(worked_ms)
        ended = {"started_ms": began_ms, "seen_ms": began_ms + worked_ms, "ended_ms": began_ms + worked_ms}
        named = {"run_id": f"compact-{began_ms}", "job": "compact", "table": assignment.table, "policy": "nightly"}
        records.end(RunRecord(**named, **ended, status="interrupted", exit_status=143, error_message="SIGTERM"))
        fleets[-1].stop.set()
        return JobOutcome(
            status="interrupted", exit_status=143, run_id=named["run_id"], error_message="interrupted by SIGTERM"
        )

    return work


@pytest.mark.parametrize(("worked_ms", "is_cut_off"), [(CUT_OFF_MS, True), (CUT_OFF_MS - 1, False)])
def test_job_cut_off_each_night_comes_last_and_is_named(world, records, worked_ms, is_cut_off):
    """A job that is cut off three nights in a row runs after what has waited, and is named."""
    fleets, called, named = [], [], []
    for night in range(4):
        cut_off = {("sick", "compact"): cut_off_after(world, records, fleets, worked_ms)}
        jobs = Jobs(cut_off if night < 3 else {}, records)
        fleets.append(fleet_of(world, jobs, run_id=f"maintain-{night}", records=records, workers=1))
        result = maintain(fleets[-1])
        called.append([table for table, job in jobs.calls if job == "compact"])
        named.append([(one.job, one.failures_in_a_row, one.cut_offs_in_a_row) for one in result.failing])
        world.runtime.pass_ms(DAY_MS)
    if is_cut_off:
        assert called == [["sick"], ["some", "calm", "sick"], ["some", "calm", "sick"], ["some", "calm", "sick"]]
        assert named == [[], [], [("compact", 0, 3)], []]
    else:
        assert called == [["sick"]] * 3 + [["sick", "some", "calm"]]
        assert named == [[]] * 4


class AwayDuringTheLook:
    """A record of runs whose first question after earlier runs is refused."""

    def __init__(self, records):
        self._records, self._is_first = records, True

    def last_of(self, tables, now_ms):
        if self._is_first:
            self._is_first = False
            raise UnavailableError("connection refused")
        return self._records.last_of(tables, now_ms)

    def __getattr__(self, name):
        return getattr(self._records, name)


@pytest.mark.parametrize(
    ("earlier", "ago_ms", "status", "why"),
    [
        (JobOutcome(status="done"), DAY_MS, "done", ""),
        (JobOutcome(status="done"), HOUR_MS, "elsewhere", "it ended well 60.0 min ago; without `when`"),
        (ends_with(1), HOUR_MS, "done", ""),
        (ends_with(1), DAY_MS, "done", ""),
    ],
)
def test_record_outage_does_not_make_earlier_runs_concurrent(world, records, earlier, ago_ms, status, why):
    """Records that are away while tables are read do not make earlier runs look concurrent."""
    ran = {(table, job): earlier for table in ("sick", "some", "calm") for job in JOBS}
    maintain(fleet_of(world, Jobs(ran, records), records=records))
    world.runtime.pass_ms(ago_ms)
    told = Told()
    away = AwayDuringTheLook(records)
    result = maintain(fleet_of(world, Jobs({}, records), run_id="maintain-2", records=away, listener=told))
    assert statuses(result)["sick"] == dict.fromkeys(JOBS, status)
    assert whys(result)["sick", "compact"].startswith(why)
    assert [one.message.partition(";")[0] for one in told.events if isinstance(one, Warned)] == ["connection refused"]


def test_postponement_survives_record_outage_at_start(world, records):
    """Jobs that are postponed, or that another run does, stay so where records were away at first."""
    for night in range(2):
        maintain(
            fleet_of(world, Jobs({("sick", "compact"): ends_with(1)}, records), run_id=f"m-{night}", records=records)
        )
        world.runtime.pass_ms(DAY_MS)

    def another(assignment):
        maintain(
            fleet_of(
                world,
                Jobs({}, records),
                run_id="other",
                records=records,
                scope=Scope(tables=frozenset({"local.db.some"})),
            )
        )
        return JobOutcome(status="done")

    jobs = Jobs({("sick", "rewrite_manifests"): another}, records)
    fleet = fleet_of(world, jobs, run_id="maintain-2", records=AwayDuringTheLook(records), workers=1)
    result = maintain(fleet)
    assert statuses(result)["sick"]["compact"] == "not_begun"
    assert whys(result)["sick", "compact"].startswith("it failed 2 times in a row")
    assert statuses(result)["some"] == dict.fromkeys(JOBS, "elsewhere")


def test_late_recorded_end_of_last_night_is_not_concurrent(world, records):
    """A run of last night whose end is recorded during this one is no work of another now."""
    last_night = world.runtime.now_ms()
    world.runtime.pass_ms(DAY_MS)

    def late(assignment):
        for table in ("some", "calm"):
            kept = {"started_ms": last_night, "seen_ms": last_night, "ended_ms": last_night}
            run = {"run_id": f"compact-{table}", "job": "compact", "table": f"local.db.{table}", "policy": "nightly"}
            records.end(RunRecord(**run, **kept, status="done", exit_status=0))
        return JobOutcome(status="done")

    jobs = Jobs({("sick", "compact"): late}, records)
    result = maintain(fleet_of(world, jobs, records=records, workers=1))
    assert statuses(result) == dict.fromkeys(("sick", "some", "calm"), ALL_DONE)


def test_signal_ends_running_jobs_and_result_lists_done_ones(world):
    fleets = []

    def signalled(assignment):
        signal.raise_signal(signal.SIGTERM)
        assert fleets[0].stop.wait(30)
        raise SystemExit(143)

    def handle(number, frame):
        raise SystemExit(128 + number)

    jobs = Jobs({("some", "compact"): signalled})
    fleets.append(fleet_of(world, jobs, workers=1))
    before = signal.signal(signal.SIGTERM, handle)
    try:
        result = maintain(fleets[0])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.status == "interrupted"
    assert statuses(result) == {
        "sick": ALL_DONE,
        "some": {"compact": "interrupted", "rewrite_manifests": "not_begun", "expire_snapshots": "not_begun"},
        "calm": dict.fromkeys(JOBS, "not_begun"),
    }
    assert (result.interrupted_jobs_count, result.not_begun_jobs_count, result.done_jobs_count) == (1, 5, 3)


def test_what_fails_while_the_run_is_being_ended_was_interrupted(world):
    fleets = []

    def cancelled(assignment):
        fleets[0].stop.set()
        return ends_with(1, "Spark job was cancelled")

    jobs = Jobs({("sick", "compact"): cancelled})
    fleets.append(fleet_of(world, jobs, workers=1))
    result = maintain(fleets[0])
    assert (result.status, statuses(result)["sick"]["compact"]) == ("interrupted", "interrupted")
    assert len(jobs.calls) == 1


def test_an_interrupted_job_keeps_its_run_and_what_it_said(world):
    fleets = []

    def cancelled(assignment):
        fleets[0].stop.set()
        return msgspec.structs.replace(ends_with(1, "Spark job was cancelled"), run_id="compact-1")

    fleets.append(fleet_of(world, Jobs({("sick", "compact"): cancelled}), workers=1))
    job = maintain(fleets[0]).tables[0].jobs[0]
    assert (job.status, job.run_id, job.error_kind) == ("interrupted", "compact-1", "job_failed")
    assert job.why == "the run was interrupted: Spark job was cancelled"


@pytest.mark.parametrize(
    ("error", "status"),
    [(OutcomeUnknownError, "failed"), (SafetyError, "refused"), (UnsupportedError, "refused")],
)
def test_serious_outcome_is_reported_despite_interrupt(world, error, status):
    """A refusal or an unknown outcome keeps its kind and its run where the whole run is ended."""
    fleets = []

    def doubtful(assignment):
        fleets[0].stop.set()
        ended = ends_with(error.exit_status, "the commit may or may not have landed", error.kind)
        return msgspec.structs.replace(ended, run_id="compact-1")

    fleets.append(fleet_of(world, Jobs({("sick", "compact"): doubtful}), workers=1))
    result = maintain(fleets[0])
    job, later = result.tables[0].jobs[:2]
    assert (result.status, job.status, job.run_id, job.error_kind) == ("interrupted", status, "compact-1", error.kind)
    assert job.why == "the commit may or may not have landed"
    assert later.status == "not_begun"


def test_unlistable_namespace_is_named_and_stops_nothing(world, monkeypatch):
    world.catalog.create_namespace(("other",))
    listing = type(world.catalog).list_tables

    def list_tables(self, namespace):
        if namespace == ("other",):
            raise UnavailableError("it does not answer")
        return listing(self, namespace)

    monkeypatch.setattr(type(world.catalog), "list_tables", list_tables)
    result = maintain(fleet_of(world, Jobs()))
    assert [one.name for one in result.not_read] == ["local.other.*"]
    assert (result.status, result.done_jobs_count) == ("partial", 9)


def test_result_figures_are_nonzero_counts_and_bytes(world):
    class Result(msgspec.Struct):
        rewritten_data_files_count: int = 7
        added_bytes: int = 12
        failed_count: int = 0
        name: str = "x"

    result = maintain(fleet_of(world, Jobs({("sick", "compact"): JobOutcome(status="done", result=Result())})))
    done = next(job for table in result.tables for job in table.jobs if table.table == "local.db.sick")
    assert done.figures == {"rewritten_data_files_count": 7, "added_bytes": 12}


def test_policy_interval_counts_from_last_successful_run(world, records):
    policy = POLICY.replace("compact: ", "compact: {when: {min_interval: 1h}}")
    maintain(fleet_of(world, Jobs({}, records), policy=policy, records=records))
    world.runtime.pass_ms(HOUR_MS)
    jobs = Jobs({}, records)
    maintain(fleet_of(world, jobs, policy=policy, run_id="maintain-2", records=records))
    assert {job for _, job in jobs.calls} == {"compact"}


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        ({"status": "done", "exit_status": 0}, "elsewhere"),
        ({"status": "failed", "exit_status": 1, "error_message": "it broke"}, "elsewhere"),
        ({"status": "interrupted", "exit_status": 143}, "done"),
        ({"status": "running", "exit_status": None}, "done"),
    ],
)
def test_job_ended_by_another_run_is_not_repeated(world, records, ended, status):
    """What another run finished during this one is skipped, and what died with it is done here."""

    def another(assignment):
        now_ms = world.runtime.now_ms()
        told = RunRecord(
            run_id="compact-other",
            job="compact",
            table="local.db.some",
            policy="nightly",
            started_ms=now_ms,
            seen_ms=now_ms,
            **ended,
        )
        records.end(told if ended["exit_status"] is None else msgspec.structs.replace(told, ended_ms=now_ms))
        world.runtime.pass_ms(HOUR_MS)
        return JobOutcome(status="done")

    jobs = Jobs({("sick", "compact"): another})
    result = maintain(fleet_of(world, jobs, records=records, workers=1))
    assert statuses(result)["some"] == {**ALL_DONE, "compact": status}


SEEDS = seeds(scaled(20, least=3))


@pytest.mark.parametrize("seed", SEEDS)
def test_three_concurrent_runs_with_one_killed_and_restarted(seed):
    night = Simulation(seed)
    night.play()
    assert night.lake.done.total() > 100
    assert sum(run.result is not None for run in night.runs) >= 2


@pytest.mark.parametrize("seed", SEEDS)
def test_where_the_record_of_runs_fails_nothing_is_lost(seed):
    Simulation(seed, tables_count=40, fails=0.2).play()


BREAKS = {
    "no lease": lambda patch: patch.setattr(TableLeases, "take", lambda self, table: None),
    "what others did is not asked": lambda patch: patch.setattr(TableLeases, "last_of", once(TableLeases.last_of)),
    "a job is forgotten": lambda patch: patch.setattr(WorkerPool, "_note", lambda self, *_: True),
    "the lease of a dead run is kept for ever": lambda patch: patch.setattr(
        TableLeases, "_has_ended", lambda self, *_: False
    ),
}


def once(ask):
    """The answer for many tables, and nothing for one."""
    return lambda self, tables: ask(self, tables) if len(tables) > 1 else {}


@pytest.mark.parametrize("name", BREAKS)
def test_broken_code_is_seen(name, monkeypatch):
    BREAKS[name](monkeypatch)
    with pytest.raises(Violation):
        play_many()


def play_many():
    for seed in range(30):
        Simulation(seed, tables_count=60).play()
