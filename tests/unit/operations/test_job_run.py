import pytest
from msgspec.structs import replace

from icekeep.errors import ExpressionError, InvalidTableError, NotFoundError, OptionError, UnavailableError, UsageError
from icekeep.events import SILENT, InRun, RunEnded, RunStarted, unfailing
from icekeep.operations.arguments import Command
from icekeep.operations.interrupts import interrupts
from icekeep.operations.job_run import JobRun, check_arguments
from icekeep.operations.jobs import resolve
from icekeep.operations.run_context import RunContext
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Operation, Predicate
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.transforms import Truncate
from kit import fake_jobs
from kit.cases import for_each
from kit.fake_jobs import CALLS, HISTORY, JOBS, SEAMS, FakeOptions, Result
from kit.metadata import MetadataBuilder
from kit.runtime import FakeRuntime


@pytest.fixture(autouse=True)
def _world(tmp_path, monkeypatch):
    fake_jobs.forget()
    monkeypatch.chdir(tmp_path)
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "icekeep.yaml").write_text("catalogs: {local: {type: sql}}")


class Orphaned(FakeRuntime):
    """The process above ends when it has been asked after so often."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers

    def is_abandoned(self):
        self.answers -= 1
        return self.answers < 0


def run(name, table="db.t", *, dry_run=False, runtime=None, seams=SEAMS, listener=SILENT, **arguments):
    command = Command(name=name, table=table, dry_run=dry_run, arguments=arguments)
    with interrupts() as taken:
        context = RunContext(seams=seams, listener=listener, interrupts=taken, runtime=runtime or FakeRuntime())
        return JobRun(command, JOBS[name], context).outcome()


def test_a_job_runs_on_its_table_in_a_session_that_is_stopped():
    outcome = run("compact")
    assert HISTORY == ["load local.db.t", "start icekeep compact db.t", "compact", "stop"]
    assert (outcome.job, outcome.table, outcome.dry_run, outcome.status) == ("compact", "local.db.t", False, "done")
    assert outcome.result == Result(rewritten_data_files_count=12)


@pytest.mark.parametrize(("mode", "starts"), [("cluster", True), ("client", False)])
def test_cluster_driver_has_session_though_job_needs_none(monkeypatch, mode, starts):
    """YARN takes an application that ends without one for one that failed."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(fake_jobs, "live_properties", lambda: {"spark.submit.deployMode": mode})
    monkeypatch.setitem(
        JOBS, "compact", replace(JOBS["compact"], run="kit.fake_jobs:asking_never", takes_listener=False)
    )
    run("compact", table="local.db.t")
    assert ("start icekeep compact local.db.t" in HISTORY, "stop" in HISTORY) == (starts, starts)
    assert "asking_never" in HISTORY


def test_the_filter_and_the_options_reach_the_job_as_values():
    run("compact", where="id > 1", options={"min-input-files": "2"})
    assert CALLS[0].arguments == {
        "where": Predicate(Operation.GT, "id", (1,)),
        "options": FakeOptions(min_input_files=2),
    }


def test_today_is_the_day_on_which_the_job_began():
    with pytest.raises(ExpressionError, match="column 'id': DATE '2023-11-14' cannot be compared with type long"):
        run("compact", where="id < today")


@pytest.mark.parametrize(
    ("function", "history"),
    [
        ("asking_twice", ["load local.db.t", "start icekeep plan_scan db.t", "asking_twice", "stop"]),
        ("asking_never", ["load local.db.t", "asking_never"]),
    ],
)
def test_a_job_that_may_not_need_spark_starts_it_once_or_never(monkeypatch, function, history):
    job = replace(JOBS["plan_scan"], run=f"kit.fake_jobs:{function}", takes_listener=False)
    monkeypatch.setitem(JOBS, "plan_scan", job)
    run("plan_scan")
    assert history == HISTORY


def test_what_was_not_given_is_left_to_the_job():
    run("compact")
    run("expire_snapshots")
    assert CALLS[0].arguments == {"where": ALWAYS_TRUE, "options": FakeOptions()}
    assert CALLS[1].arguments == {}


def test_a_dry_run_stops_after_the_plan():
    outcome = run("compact", dry_run=True)
    assert HISTORY == ["load local.db.t", "start icekeep compact db.t", "plan_compact", "stop"]
    assert (outcome.status, outcome.dry_run, outcome.result.snapshot_id) == ("planned", True, 7)


def test_a_dry_run_of_a_job_that_changes_nothing_is_the_job():
    outcome = run("plan_scan", dry_run=True, ref="audit")
    assert (CALLS[0].function, CALLS[0].arguments) == ("plan_scan", {"where": ALWAYS_TRUE, "ref": "audit"})
    assert (outcome.status, outcome.dry_run) == ("done", True)


BROKEN = replace(SEAMS, load_table="kit.fake_jobs:load_broken_table", open_catalog="kit.fake_jobs:open_catalog")


def test_unreadable_table_is_given_to_job_that_supports_it(monkeypatch):
    job = replace(
        JOBS["expire_snapshots"],
        unreadable="kit.fake_jobs:run_on_broken",
        plan_unreadable="kit.fake_jobs:plan_on_broken",
    )
    monkeypatch.setitem(JOBS, "expire_snapshots", job)
    outcome = run("expire_snapshots", seams=BROKEN, older_than="1d")
    assert HISTORY == ["load local.db.t", "open local", "run_on_broken"]
    assert (outcome.status, outcome.dry_run) == ("partial", False)
    function, table, arguments = CALLS[0]
    assert (function, table, arguments["older_than"], {*arguments}) == (
        "run_on_broken", "local.db.t", "1d", {"older_than", "listener"}
    )  # fmt: skip
    HISTORY.clear()
    outcome = run("expire_snapshots", seams=BROKEN, dry_run=True)
    session = "start icekeep expire_snapshots db.t"
    assert ["load local.db.t", "open local", session, "plan_on_broken", "stop"] == HISTORY
    assert (outcome.status, outcome.dry_run) == ("planned", True)


def test_job_without_support_fails_on_unreadable_table():
    with pytest.raises(InvalidTableError, match="it is no metadata"):
        run("compact", seams=BROKEN)
    assert HISTORY == ["load local.db.t"]


@for_each(
    ("job", "arguments", "error"),
    [
        ("compact", {"where": "id >"}, ExpressionError),
        ("compact", {"where": "id = 'x'"}, ExpressionError),
        ("compact", {"where": "colour = 1"}, NotFoundError),
        ("compact", {"options": {"min-input-files": "x"}}, OptionError),
        ("compact", {"options": {"colour": "red"}}, OptionError),
        ("compact", {"strategy": "guess"}, UsageError),
        ("plan_scan", {"ref": "nope"}, NotFoundError),
        ("expire_snapshots", {"snapshot_ids": (99,)}, NotFoundError),
    ],
)
def test_what_can_be_wrong_is_found_before_spark_starts(job, arguments, error):
    with pytest.raises(error):
        run(job, **arguments)
    assert not any(line.startswith("start") for line in HISTORY)


def test_invalid_filter_is_refused_before_catalog_is_opened():
    with pytest.raises(ExpressionError):
        run("compact", where="id >")
    assert HISTORY == []


def test_the_session_is_stopped_when_the_job_fails():
    fake_jobs.FAILURES.append(RuntimeError("boom"))
    with pytest.raises(RuntimeError, match="boom"):
        run("compact")
    assert HISTORY[-1] == "stop"


def test_lost_spark_submit_is_reported_and_session_stopped():
    fake_jobs.FAILURES.append(ConnectionRefusedError(111, "Connection refused"))
    with pytest.raises(UnavailableError, match="the JVM of Spark is gone"):
        run("compact", runtime=Orphaned(1))
    assert HISTORY[-1] == "stop"


def test_job_without_spark_submit_is_refused_first():
    with pytest.raises(UnavailableError, match="ICEKEEP_SUBMITTER=none"):
        run("compact", runtime=Orphaned(0))
    assert HISTORY == []


def test_spark_catalog_is_found_through_jvm_under_submit(monkeypatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert run("plan_scan", "lake.db.t").table == "lake.db.t"
    assert HISTORY[0] == "ask the JVM"


def test_spark_catalog_is_found_in_spark_defaults_elsewhere(monkeypatch, tmp_path):
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.catalog.lake.type hadoop\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert run("plan_scan", "lake.db.t").table == "lake.db.t"
    assert "ask the JVM" not in HISTORY


def test_partition_field_in_filter_is_refused_with_column():
    spec = PartitionSpec(
        spec_id=1, fields=(PartitionField(source_id=1, field_id=1000, name="id_trunc", transform=Truncate(10)),)
    )
    metadata = MetadataBuilder().spec(spec).build()
    with pytest.raises(NotFoundError, match=r"truncate.10. of column 'id'; write truncate\(10, id\) = 20"):
        check_arguments({"where": parse_where("id_trunc = 20")}, metadata)


def test_arguments_are_held_against_the_table():
    metadata = MetadataBuilder().commits(2).tag("audit", at=1).build()
    check_arguments(
        {"where": parse_where("id > 1"), "ref": "audit", "spec_id": 0, "snapshot_ids": (1, 2)},
        metadata,
    )
    check_arguments({"branch": "main"}, metadata)
    with pytest.raises(NotFoundError, match="no branch 'audits'; there is 'main'"):
        check_arguments({"branch": "audits"}, metadata)
    with pytest.raises(UsageError, match="'audit' is a tag; only a branch can be committed to"):
        check_arguments({"branch": "audit"}, metadata)
    with pytest.raises(NotFoundError, match="no branch or tag 'audits'; there is 'audit', 'main'"):
        check_arguments({"ref": "audits"}, metadata)


def test_a_package_that_is_not_installed_is_one_clear_line():
    with pytest.raises(UsageError, match="package 'absent_package' is not installed"):
        resolve("absent_package.module:function")
    with pytest.raises(UsageError, match=r"PySpark is not installed: icekeep\[spark\] brings it"):
        resolve("pyspark.absent:function")


def test_missing_own_module_is_not_a_usage_error():
    with pytest.raises(ModuleNotFoundError):
        resolve("icekeep.absent:function")


class Heard:
    def __init__(self):
        self.events = []

    def on(self, event):
        self.events.append(event)


def test_run_events_go_from_start_to_end_under_one_run_id():
    heard = Heard()
    outcome = run("compact", listener=heard, strategy="sort")
    first, *between, last = heard.events
    table = MetadataBuilder().commits(2).tag("audit", at=1).build()
    assert first == RunStarted(
        run_id=outcome.run_id,
        job="compact",
        started_ms=outcome.started_ms,
        table="local.db.t",
        arguments={"strategy": "sort"},
        table_location=table.location,
        metadata_location="/wh/1.metadata.json",
        snapshot_id=table.current_snapshot_id,
    )
    assert between
    assert all(isinstance(event, InRun) and event.run_id == outcome.run_id for event in between)
    assert last == RunEnded(
        run_id=outcome.run_id,
        status="done",
        exit_status=0,
        ended_ms=outcome.ended_ms,
        result=outcome.result,
        snapshot_id=table.current_snapshot_id,
        metadata_location="/wh/2.metadata.json",
    )


def test_a_dry_run_only_tells():
    heard = Heard()
    run("compact", listener=heard, dry_run=True)
    assert heard.events[0].only_tells
    assert (heard.events[-1].status, heard.events[-1].metadata_location) == ("planned", None)


@pytest.mark.parametrize(
    ("failure", "status", "exit_status", "kind"),
    [
        (OptionError("a", given=1, expected="2"), "failed", 2, "option"),
        (ZeroDivisionError("x"), "failed", 1, "unexpected"),
        (SystemExit(143), "interrupted", 130, "interrupted"),
    ],
)
def test_a_run_that_fails_is_told_with_why(failure, status, exit_status, kind):
    heard = Heard()
    fake_jobs.FAILURES.append(failure)
    with pytest.raises(type(failure)):
        run("compact", listener=heard)
    last = heard.events[-1]
    assert isinstance(last, RunEnded)
    assert (last.status, last.exit_status, last.error_kind) == (status, exit_status, kind)


def test_a_run_whose_table_cannot_be_loaded_is_told_all_the_same():
    heard = Heard()
    with pytest.raises(InvalidTableError):
        run("compact", listener=heard, seams=BROKEN)
    first, last = heard.events
    assert (first.table, first.table_location, first.run_id) == ("local.db.t", None, last.run_id)
    assert last.error_kind == "invalid-table"


def test_listener_failing_at_start_and_end_stops_nothing():
    class Failing(Heard):
        def on(self, event):
            super().on(event)
            if isinstance(event, RunStarted | RunEnded):
                raise ValueError("no")

    heard = Failing()
    assert run("compact", listener=unfailing(heard)).status == "done"
    assert isinstance(heard.events[-1], RunEnded)
