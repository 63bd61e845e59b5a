"""A run and its commits: what is undone, groups in one job, and what is planned anew after a conflict."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import RetryPolicy
from icekeep.errors import (
    ConflictError,
    IcekeepError,
    InvalidTableError,
    JobFailedError,
    NotFoundError,
    OptionError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
)
from icekeep.events import SILENT, SnapshotCommitted
from icekeep.maintenance.compact import job as compaction
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes import job as position_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.rewrite.alive import LOOK_AFTER_MS, living_runs
from icekeep.maintenance.rewrite.groups import GroupResults, in_one_job
from icekeep.maintenance.rewrite.run import RewriteRun, retry_with_replan, undoing
from kit.cases import for_each
from kit.changes import Recorder
from kit.deletes import data_files, delete_positions
from kit.lake import Lake
from kit.memory_catalog import IS_UNKNOWN, MemoryCatalog
from kit.numbered_rows import deletes_of, gone, ids_of, made
from kit.runtime import no_spark
from kit.tables import EVENTS, add, data_file, live, memory_table, set_ref
from unit.maintenance.compact.test_beside_writers import Others


class Refused:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def apply(self, base: Any, attempt: Any) -> Any:
        raise self.error


@pytest.fixture
def table() -> Any:
    return add(memory_table(MemoryCatalog(), commit__retry__num_retries="1"), "a")


def committed(table: Any, change: Any, added: list[str], undone: list[str]) -> None:
    with RewriteRun(table, "compact", "run", SILENT) as run:
        assert living_runs(table, table.runtime) == {"run"}
        run.commit(change, added, lambda: undone.append("files"))


def test_what_landed_is_not_undone_and_the_run_is_over(table: Any) -> None:
    undone: list[str] = []
    committed(table, AppendFiles(files=(data_file("b"),)), [], undone)
    assert (undone, live(table.catalog.load(EVENTS))) == ([], {"a": 1, "b": 1})
    assert living_runs(table, table.runtime) == set()


@pytest.mark.parametrize("error", [ConflictError("gone"), SafetyError("another table"), UnavailableError("away")])
def test_what_did_not_land_is_undone_once(table: Any, error: Exception) -> None:
    undone: list[str] = []
    with pytest.raises(type(error)):
        committed(table, Refused(error), [], undone)
    assert undone == ["files"]


def test_unknown_outcome_is_not_undone_and_the_run_is_alive(table: Any) -> None:
    undone: list[str] = []
    table.catalog.follow(*[IS_UNKNOWN] * 50)
    with pytest.raises(OutcomeUnknownError):
        committed(table, AppendFiles(files=(data_file("b"),)), [], undone)
    assert undone == []
    assert living_runs(table, table.runtime) == {"run"}


def test_an_old_run_whose_files_somebody_took_commits_nothing(table: Any) -> None:
    undone: list[str] = []
    with RewriteRun(table, "compact", "run", SILENT) as run:
        table.catalog.runtime.pass_ms(LOOK_AFTER_MS)
        with pytest.raises(SafetyError, match="gone before their commit"):
            run.commit(AppendFiles(files=(data_file("b"),)), ["memory://lake/b"], lambda: undone.append("files"))
    assert (undone, live(table.catalog.load(EVENTS))) == (["files"], {"a": 1})


@pytest.mark.parametrize("error", [None, ValueError("a bug"), KeyboardInterrupt()])
def test_a_block_that_fails_is_undone_whatever_the_error(error: BaseException | None) -> None:
    undone: list[str] = []

    def act() -> None:
        with undoing(lambda: undone.append("files")):
            if error is not None:
                raise error

    if error is None:
        act()
    else:
        with pytest.raises(type(error)):
            act()
    assert undone == ([] if error is None else ["files"])


Answers = Generator[tuple[int, Any], None, None]


class Job:
    """Answers each payload with its text doubled, in an order of its own; tasks that kill end the job when they are reached."""

    def __init__(self, order: str = "forwards", kills: Sequence[str] = (), says_which: bool = True) -> None:
        self._order, self._kills, self._says_which = order, kills, says_which
        self.started: list[list[str]] = []
        self.open_count = 0

    def __call__(self, payloads: Sequence[str]) -> Answers:
        self.started.append([*payloads])
        self.open_count += 1
        try:
            numbers = range(len(payloads)) if self._order == "forwards" else reversed(range(len(payloads)))
            for number in numbers:
                if payloads[number] in self._kills:
                    yield -1, self._failure(number)
                    return
                yield number, payloads[number] * 2
        finally:
            self.open_count -= 1

    def _failure(self, number: int) -> IcekeepError:
        failed = JobFailedError("Spark failed: a worker is lost")
        what = (
            f"Task {number} in stage 7.0 failed 4 times, most recent failure: Lost task"
            if self._says_which
            else "ended"
        )
        failed.__cause__ = RuntimeError(f"Job aborted due to stage failure: {what}")
        return failed


GROUPS = [("a", ["a0", "a1"]), ("b", ["b0"]), ("c", ["c0", "c1", "c2"])]


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_each_group_comes_once_with_its_results_in_order(order: str) -> None:
    job = Job(order)
    answered = list(in_one_job(GROUPS, job))
    assert sorted(answered, key=lambda one: one.group) == [
        GroupResults("a", ("a0a0", "a1a1")),
        GroupResults("b", ("b0b0",)),
        GroupResults("c", ("c0c0", "c1c1", "c2c2")),
    ]
    assert [one.group for one in answered] == (["a", "b", "c"] if order == "forwards" else ["c", "b", "a"])
    assert job.started == [["a0", "a1", "b0", "c0", "c1", "c2"]]


def test_a_group_comes_before_the_others_have_ended() -> None:
    job = Job()
    answered = in_one_job(GROUPS, job)
    assert next(answered).group == "a"
    assert job.open_count == 1
    answered.close()
    assert job.open_count == 0


def test_an_error_of_a_task_is_its_groups_alone() -> None:
    error = OptionError("o", given=1, expected="2")

    def run(payloads: Sequence[str]) -> Answers:
        for number, payload in enumerate(payloads):
            yield number, error if payload == "a0" else payload

    answered = list(in_one_job(GROUPS[:2], run))
    assert answered == [GroupResults("a", ("a1",), (error,)), GroupResults("b", ("b0",))]


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_task_that_kills_the_job_fails_only_its_group(order: str) -> None:
    """Groups with all their answers are not started again."""
    job = Job(order, kills=["b0"])
    answered = {one.group: one for one in in_one_job(GROUPS, job)}
    assert {name for name, one in answered.items() if one.errors} == {"b"}
    assert answered["a"].results == ("a0a0", "a1a1")
    assert answered["c"].results == ("c0c0", "c1c1", "c2c2")
    assert job.started[1:] == [["c0", "c1", "c2"] if order == "forwards" else ["a0", "a1"]]


def test_what_a_failed_group_has_done_comes_with_it() -> None:
    """Somebody has to remove the files."""
    [a, b, c] = sorted(in_one_job(GROUPS, Job(kills=["c1"])), key=lambda one: one.group)
    assert (a.errors, b.errors) == ((), ())
    assert (c.results, [error.message for error in c.errors]) == (("c0c0",), ["Spark failed: a worker is lost"])


@pytest.mark.parametrize("says_which", [True, False])
def test_a_cluster_that_fails_is_not_asked_for_ever(says_which: bool) -> None:
    groups = [(f"g{n}", [f"t{n}"]) for n in range(50)]
    job = Job(kills=[f"t{n}" for n in range(50)], says_which=says_which)
    answered = list(in_one_job(groups, job))
    assert sorted(one.group for one in answered) == sorted(name for name, _ in groups)
    assert all(one.errors for one in answered)
    assert len(job.started) == (10 if says_which else 1)


def test_group_is_answered_if_threads_stop_after_an_error() -> None:
    error = OptionError("o", given=1, expected="2")

    def run(payloads: Sequence[str]) -> Answers:
        yield 0, error

    assert list(in_one_job([("a", ["a0", "a1"])], run)) == [GroupResults("a", (), (error,))]


PARTIAL = {"partial-progress.enabled": "true", "partial-progress.max-commits": "3"}


def failing_from(number: int, function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """The function, which fails from its `number`th call on."""
    calls: list[None] = []

    def wrapped(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) >= number:
            raise error
        return function(*arguments, **named)

    return wrapped


def test_a_compaction_that_cannot_plan_the_rest_anew(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.filled(commits=6, files=2)
    model = lake.rows()
    first = [file for file in data_files(table) if "at_month=2013-01" in file.file_path]

    def another_run() -> None:
        others.off()
        compact(lake.load(), no_spark, where="at < '2013-02-01T00:00:00+00:00'", options={"rewrite-all": "true"})
        again = failing_from(1, compaction.plan, JobFailedError("a manifest is broken; the table is broken"))
        monkeypatch.setattr(compaction, "plan", again)

    others = Others(another_run)
    result = compact(table, no_spark, options={"rewrite-all": "true"}, listener=others)
    assert (result.status, result.commits_count, result.failed_data_files_count) == ("partial", 1, len(first))
    assert result.rewritten_data_files_count == len(data_files(table)) - len(first)
    assert "a manifest is broken" in others.warnings[-1]
    assert lake.rows() == model


def test_failure_after_the_conversion_makes_the_run_partial(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = gone(made(lake), 1, 6)
    failing = failing_from(1, position_deletes.plan, UnavailableError("the store is away"))
    monkeypatch.setattr(position_deletes, "plan", failing)
    others = Others(lambda: None)
    result = rewrite_position_deletes(table, no_spark, convert_equality_deletes=True, listener=others)
    assert result.status == "partial"
    assert result.conversion is not None
    assert result.conversion.converted_equality_delete_files_count == 1
    assert others.warnings == ["equality deletes are converted, position deletes were not rewritten: the store is away"]
    after = lake.catalog.load(table.identifier)
    assert (deletes_of(after), ids_of(after)) == ([], [0, 2, 3, 4, 5, 7, 8, 9])


def test_failure_without_a_conversion_fails_the_run(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(lake)
    monkeypatch.setattr(position_deletes, "plan", failing_from(1, position_deletes.plan, UnavailableError("away")))
    with pytest.raises(UnavailableError):
        rewrite_position_deletes(table, no_spark, convert_equality_deletes=True)


@pytest.mark.parametrize("error", [IcekeepError("refused"), ValueError("broken")])
def test_a_batch_that_fails_after_one_landed(lake: Lake, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    table = lake.filled(commits=3)
    for number in range(6):
        for file in data_files(table):
            table = delete_positions(table, [(file.file_path, number)])
    before = lake.rows()
    monkeypatch.setattr(RewriteRun, "send", failing_from(2, RewriteRun.send, error))
    heard: list[Any] = []

    class Ear:
        def on(self, event: Any) -> None:
            heard.append(event)

    options = PARTIAL | {"partial-progress.max-failed-commits": "0", "rewrite-all": "true"}
    result = rewrite_position_deletes(table, no_spark, options=options, listener=Ear())
    assert (result.status, result.commits_count) == ("partial", 1)
    planned_count = 6 * len(data_files(table))
    assert result.rewritten_delete_files_count + result.failed_delete_files_count == planned_count
    assert sum(isinstance(event, SnapshotCommitted) for event in heard) == 1
    assert lake.rows() == before


REFUSED = ConflictError("file 'a' is gone")
OUTPACED = ConflictError("others kept changing it: gave up after 3 attempts", attempts=3)
FOR_GOOD = (
    OUTPACED,
    SafetyError("another table"),
    OutcomeUnknownError("may have landed"),
    UnavailableError("away"),
    JobFailedError("a file is broken"),
    ValueError("a bug"),
    KeyboardInterrupt(),
)


class Replanned:
    """A job that others hinder: each of its plans ends with the next of some errors, and then it is done."""

    def __init__(self, *errors, **properties):
        self.catalog, self.listener = MemoryCatalog(), Recorder()
        self.table = memory_table(self.catalog, **{f"commit__retry__{name}": str(n) for name, n in properties.items()})
        self.errors = list(errors)
        self.plans = []
        self.before_next_plan = lambda: None
        self.has_others = True

    def run(self):
        return retry_with_replan(self.table, self.plan_and_commit, what=lambda: "7 files", listener=self.listener)

    def plan_and_commit(self, table, number):
        self.plans.append((number, len(table.metadata.snapshots)))
        # What others commit is in the table that the next plan is made on.
        if self.has_others:
            add(self.catalog.load(EVENTS), f"x{number}")
        if self.errors:
            self.before_next_plan()
            raise self.errors.pop(0)
        return f"done by plan {number}"


@for_each("last", [None, *FOR_GOOD], ids=lambda error: type(error).__name__)
@for_each("retries", range(3))
@for_each("refusals", range(5))
def test_each_refusal_up_to_the_limit_is_planned_anew(retries, refusals, last):
    job = Replanned(*[REFUSED] * refusals, *([] if last is None else [last]), num_retries=retries)
    plans_count = min(refusals, retries) + 1
    if refusals > retries:
        with pytest.raises(ConflictError) as raised:
            job.run()
        assert str(raised.value) == (
            f"others kept changing 7 files of 'db.events': gave up after {plans_count} plans ({REFUSED.message}); "
            "run it again"
        )
        assert (raised.value.facts, raised.value.__cause__) == ({"plans": plans_count}, REFUSED)
    elif last is not None:
        with pytest.raises(type(last)) as raised:
            job.run()
        assert raised.value is last
    else:
        assert job.run() == f"done by plan {plans_count}"
    assert job.plans == [(number, number - 1) for number in range(1, plans_count + 1)]
    assert job.listener.warnings == [f"7 files of 'db.events' are planned again: {REFUSED.message}"] * (plans_count - 1)
    assert len(job.catalog.runtime.sleeps_ms) == plans_count - 1


def test_it_plans_five_times_by_default():
    job = Replanned(*[REFUSED] * 9)
    with pytest.raises(ConflictError, match="gave up after 5 plans"):
        job.run()
    policy = RetryPolicy.of(job.table.metadata)
    assert len(job.plans) == policy.num_retries + 1
    assert job.catalog.runtime.sleeps_ms == [policy.wait_ms(number, job.catalog.runtime) for number in range(1, 5)]


def test_conflicts_that_a_plan_helps_against():
    assert (OUTPACED.is_outpaced, REFUSED.is_outpaced) == (True, False)


def test_a_second_refusal_of_an_unchanged_table():
    job = Replanned(*[REFUSED] * 9)
    job.has_others = False
    with pytest.raises(InvalidTableError) as raised:
        job.run()
    assert str(raised.value) == (
        "cannot commit the plan for 7 files of 'db.events': file 'a' is gone; nobody else has changed the table, so its "
        "metadata contradicts itself; run `icekeep check --table local.db.events --deep` to find where"
    )
    assert (len(job.plans), len(job.listener.warnings)) == (2, 1)


def test_own_start_tag_is_no_change_by_others():
    job = Replanned(*[REFUSED] * 9)
    add(job.table, "first")
    job.table, job.has_others = job.catalog.load(EVENTS), False
    head = job.table.metadata.current_snapshot_id
    job.before_next_plan = lambda: set_ref(job.table, f"start-{len(job.plans)}", head)
    with pytest.raises(InvalidTableError, match="nobody else has changed the table"):
        job.run()
    assert len(job.plans) == 2


def test_a_first_refusal_of_an_unchanged_table():
    """A file may have come or gone, which the table does not know of."""
    job = Replanned(REFUSED)
    job.has_others = False
    assert job.run() == "done by plan 2"


def test_a_table_that_was_made_again_meanwhile_is_not_planned_on():
    job = Replanned(REFUSED)

    def made_again():
        job.catalog.drop(EVENTS)
        add(memory_table(job.catalog), "theirs")

    job.before_next_plan = made_again
    with pytest.raises(SafetyError, match="is another table now"):
        job.run()
    assert len(job.plans) == 1


@pytest.mark.parametrize(("hinder", "error"), [("drop", NotFoundError), ("outage", UnavailableError)])
def test_a_table_that_cannot_be_loaded_is_not_planned_on(hinder, error):
    job = Replanned(REFUSED)

    def hindered():
        if hinder == "drop":
            job.catalog.drop(EVENTS)
        else:
            job.catalog.failing_loads = 1

    job.before_next_plan = hindered
    with pytest.raises(error):
        job.run()
    assert len(job.plans) == 1


def test_a_process_that_is_abandoned_plans_nothing_more():
    job = Replanned(REFUSED)
    job.before_next_plan = lambda: setattr(job.catalog.runtime, "abandoned", True)
    with pytest.raises(UnavailableError, match="is gone, so nothing more is committed"):
        job.run()
    assert (len(job.plans), job.listener.warnings, job.catalog.runtime.sleeps_ms) == (1, [], [])


def test_bad_retry_limit_is_refused_before_the_first_plan():
    job = Replanned(num_retries="often")
    with pytest.raises(IcekeepError, match=r"commit\.retry\.num-retries"):
        job.run()
    assert job.plans == []
