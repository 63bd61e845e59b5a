"""`icekeep maintain` in this process: what it is told, what it tells, and what jobs are handed."""

import json
import signal

import msgspec
import pytest

from icekeep.cli import main
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import JobFailedError, NotFoundError, SafetyError, UnavailableError, UsageError
from icekeep.events import InRun, StepAdvanced
from icekeep.fleet import choosing as ranking
from icekeep.fleet.values import DueJob, DueList, DueTable, Failing, JobDone, MaintainResult, TableDone
from icekeep.operations.commands import maintain as maintain_verb
from icekeep.operations.commands import matching as one_of_many
from icekeep.operations.commands.maintain import maintain, plan_maintain
from icekeep.operations.commands.runs import list_runs
from icekeep.operations.job_run import JobRun
from icekeep.operations.shown.results import maintain_shown
from icekeep.reports.values import NotRead
from icekeep.runtime import SYSTEM
from icekeep.tables.verbs import append, create_table
from kit.changes import Recorder
from kit.lake import SCHEMA, Lake, events

POLICIES = """
policies:
  - name: nightly
    schedule: "@daily"
    match: local.db.**
    jobs: {compact: , expire_snapshots: {older_than: 0s, retain_last: 1}}
  - {name: by-hand, schedule: null, match: local.db.**, jobs: {check: }}
"""


@pytest.fixture
def lake(tmp_path, monkeypatch):
    lake = Lake(tmp_path)
    for name, files in {"a": 6, "b": 1}.items():
        table = create_table(lake.catalog, ("db", name), SCHEMA)
        for number in range(files):
            table = append(table, [events(number, 3)])
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in lake.properties.items())
    (tmp_path / "icekeep.yaml").write_text(f"catalogs:\n  local:\n{lines}{POLICIES}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return lake


def run(capsys, *words):
    status = main(["maintain", "--config", "icekeep.yaml", "--output", "json", *words])
    out = capsys.readouterr()
    return status, json.loads(out.out), out.err


@pytest.mark.slow
def test_jobs_run_as_commands_and_are_recorded_below_run(lake, capsys):
    status, document, err = run(capsys)
    assert (status, document["status"], document["result"]["done_jobs_count"]) == (0, "done", 4)
    asked = {(t["table"], job["job"]): job["requests_count"] for t in document["result"]["tables"] for job in t["jobs"]}
    assert asked["local.db.a", "compact"] > 20
    assert document["result"]["requests_count"] == sum(asked.values()) > document["result"]["looked_requests_count"]
    lines = [line for line in err.splitlines() if "local.db." in line]
    assert len(lines) == 4
    assert sum(line.startswith("compact local.db.a: done in ") for line in lines) == 1
    assert document["run_id"] == document["result"]["run_id"]
    assert len(lake.catalog.load(("db", "a")).metadata.snapshots) == 1
    status, checked, _ = run(capsys, "--policy", "by-hand", "--tables", "local.db.b")
    assert (status, [job["job"] for job in checked["result"]["tables"][0]["jobs"]]) == (0, ["check"])
    assert main(["runs", "--config", "icekeep.yaml", "--output", "json"]) == 0
    runs = json.loads(capsys.readouterr().out)["result"]["runs"]
    parts = [one for one in runs if one["parent_id"] == document["run_id"]]
    assert sorted((one["table"], one["job"], one["policy"]) for one in parts) == [
        (f"local.db.{table}", job, "nightly") for table in "ab" for job in ("compact", "expire_snapshots")
    ]


@pytest.mark.slow
def test_refused_job_is_shown_with_reason_and_run_exits_3(lake, capsys, monkeypatch):
    def refuse(table, spark, **_):
        raise SafetyError(f"{table.name} may not")

    monkeypatch.setattr("icekeep.maintenance.compact.job.compact", refuse)
    status, document, _ = run(capsys, "--match", "db.a")
    jobs = {job["job"]: job for job in document["result"]["tables"][0]["jobs"]}
    assert (status, document["result"]["refused_jobs_count"]) == (3, 1)
    assert (jobs["compact"]["status"], jobs["compact"]["why"]) == ("refused", "db.a may not")
    assert jobs["compact"]["error_kind"] == SafetyError.kind
    assert jobs["expire_snapshots"]["status"] == "done"


@pytest.mark.slow
def test_job_failed_by_lost_jvm_is_retryable(lake, capsys, monkeypatch):
    """Its failure does not count against the table."""

    def fail(table, spark, **_):
        raise JobFailedError("cannot rewrite 10 files") from ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("icekeep.maintenance.compact.job.compact", fail)
    monkeypatch.setattr("icekeep.operations.interrupts._own_jvm_has_ended", lambda: True)
    _, document, _ = run(capsys, "--match", "db.a")
    jobs = {job["job"]: job for job in document["result"]["tables"][0]["jobs"]}
    assert jobs["compact"]["error_kind"] == UnavailableError.kind
    assert "the JVM of Spark is gone" in jobs["compact"]["why"]


@pytest.mark.slow
def test_a_job_that_fails_before_it_begins_names_no_run(lake, capsys, monkeypatch):
    def refuse(command, *_):
        raise UsageError(f"{command.table} is wrong")

    monkeypatch.setattr(one_of_many, "JobRun", refuse)
    _, document, _ = run(capsys, "--match", "db.a")
    jobs = document["result"]["tables"][0]["jobs"]
    assert {(job["status"], job["run_id"], job["why"]) for job in jobs} == {("failed", None, "local.db.a is wrong")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "nothing"), "there is no policy 'nothing' in icekeep.yaml; there is nightly, by-hand"),
        (("--tables", "a"), "'a' in 'a' names no table; give NAMESPACE.TABLE"),
        (
            ("--tables", "local.db.nope,db.no"),
            "'local.db.no' and 1 more; `icekeep policy explain --table local.db.no --config icekeep.yaml` says",
        ),
        (("--list", "--dry-run"), "--list changes nothing, and --dry-run says what would be changed; give one of them"),
        (("--match", "db"), "'db' can match no table"),
        (
            ("--match", "other.*"),
            "no table that the policies of this run reach is among those that match 'other.*'; `icekeep report --catalog local",
        ),
        (
            ("--match", "local.db.x*"),
            "match 'local.db.x*'; `icekeep report --catalog local --config icekeep.yaml` lists all",
        ),
        (("--workers", "0"), "--workers"),
        (("--catalog", "nowhere"), "there is no catalog 'nowhere'"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_begins(lake, capsys, words, said):
    status, document, _ = run(capsys, *words)
    assert status == 2
    assert said in document["error"]["message"]


def test_without_a_configuration_there_is_nothing_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["maintain", "--output", "json"]) == 2
    assert "there are no policies" in capsys.readouterr().out


def test_configuration_without_policies_is_an_error(tmp_path, monkeypatch, capsys):
    (tmp_path / "icekeep.yaml").write_text(f"catalogs: {{lake: {{type: filesystem, warehouse: {tmp_path}}}}}")
    monkeypatch.chdir(tmp_path)
    status, document, _ = run(capsys)
    assert status == 2
    assert document["error"]["message"].startswith("icekeep.yaml has no policies, so nothing would be maintained; ")


@pytest.mark.slow
@pytest.mark.slow
def test_python_maintain_matches_command_and_lists_its_runs(lake):
    heard = Recorder()
    result = maintain("local", conf="icekeep.yaml", tables=["db.a"], workers=1, listener=heard)
    assert (result.status, result.done_jobs_count, result.dry_run) == ("done", 2, False)
    assert [(job.job, job.status) for job in result.tables[0].jobs] == [
        ("compact", "done"),
        ("expire_snapshots", "done"),
    ]
    assert len(lake.catalog.load(("db", "a")).metadata.snapshots) == 1
    assert len(lake.catalog.load(("db", "b")).metadata.snapshots) == 1
    runs = list_runs(conf="icekeep.yaml")
    assert {one.job for one in runs if one.parent_id == result.run_id} == {"compact", "expire_snapshots"}
    assert [one.result["done_jobs_count"] for one in list_runs(conf="icekeep.yaml", run=result.run_id)] == [2]
    assert {one.run_id for one in heard.events if isinstance(one, InRun)} <= {one.run_id for one in runs}
    assert result.to_dict()["tables"][0]["jobs"][0]["job"] == "compact"


def test_python_plans_what_the_dry_run_tells_and_changes_nothing(lake, capsys):
    before = [lake.catalog.load(("db", name)).metadata_location for name in "ab"]
    planned = plan_maintain(conf="icekeep.yaml", match="db.*")
    _, document, _ = run(capsys, "--dry-run", "--match", "db.*")
    assert (planned.status, planned.dry_run, planned.due_jobs_count) == ("planned", True, 4)
    assert json.loads(msgspec.json.encode(planned.tables)) == document["result"]["tables"]
    assert [lake.catalog.load(("db", name)).metadata_location for name in "ab"] == before
    assert list_runs(conf="icekeep.yaml") == ()


@pytest.mark.parametrize("function", [maintain, plan_maintain])
@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"conf": "nothing.yaml"}, NotFoundError, "there is no configuration file 'nothing.yaml'"),
        ({"policy": "nothing"}, NotFoundError, "there is no policy 'nothing'"),
        ({"catalog": "nothing"}, NotFoundError, "there is no catalog 'nothing'"),
        ({"workers": 0}, UsageError, "workers is 0; give 1 or more"),
        ({"max_bytes": 0}, UsageError, "max_bytes is 0; give 1 or more"),
        ({"tables": "db.a"}, UsageError, "tables is the text 'db.a'; give a list of names"),
    ],
)
def test_python_raises_what_is_wrong_before_anything_begins(lake, function, arguments, error, said):
    with pytest.raises(error, match=said):
        function(**{"conf": "icekeep.yaml", **arguments})


def test_python_gives_jobs_its_own_session_which_goes_on(lake, monkeypatch):
    seen = []

    def compact(table, spark, **_):
        seen.append(spark())
        raise UsageError("that is all")

    monkeypatch.setattr("icekeep.maintenance.compact.job.compact", compact)
    monkeypatch.setattr("icekeep.planning.spark.session.stop_session", seen.append)
    session = object()
    result = maintain(None, lambda: session, conf="icekeep.yaml", tables=["db.a"])
    assert result.tables[0].jobs[0].why == "that is all"
    assert seen == [session]


def test_interrupt_reaches_caller_after_jobs_ended(lake, monkeypatch):
    ended = []

    def compact(table, spark, *, listener, **_):
        signal.raise_signal(signal.SIGINT)
        try:
            for _ in range(1000):
                listener.on(StepAdvanced("compacting"))
                SYSTEM.sleep_ms(10)
        finally:
            ended.append(table.name)

    monkeypatch.setattr("icekeep.maintenance.compact.job.compact", compact)
    with pytest.raises(KeyboardInterrupt):
        maintain(conf="icekeep.yaml", tables=["db.a"])
    assert ended == ["db.a"]
    by_job = {one.job: one.status for one in list_runs(conf="icekeep.yaml")}
    assert by_job == {"maintain": "interrupted", "compact": "interrupted"}


def test_estimates_are_for_the_cores_that_would_work(lake, capsys, monkeypatch):
    asked = []

    def expected(properties, work_bytes):
        asked.append((properties(), work_bytes))
        return 4

    monkeypatch.setattr(ranking, "TASK_BYTES", 1)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn --conf spark.executor.instances=8")
    monkeypatch.setattr(maintain_verb, "expected_slots", expected)
    run(capsys, "--dry-run")
    assert max(size for _, size in asked) > 0
    assert asked[0][0].items() >= {"spark.master": "yarn", "spark.executor.instances": "8"}.items()


@pytest.mark.slow
def test_unopenable_catalog_is_named_and_others_are_maintained(lake, capsys):
    file = lake.directory / "icekeep.yaml"
    text = file.read_text().replace("catalogs:\n", "catalogs:\n  lost: {type: rest, uri: '${NOT_SET_ANYWHERE}'}\n")
    file.write_text(text.replace("match: local.db.**", "match: '**.db.*'"))
    status, document, _ = run(capsys, "--dry-run")
    assert (status, document["status"], document["dry_run"], document["result"]["dry_run"]) == (
        3,
        "partial",
        True,
        True,
    )
    assert [one["name"] for one in document["result"]["not_read"]] == ["lost.*"]
    assert document["result"]["due_jobs_count"] == 4


def test_the_only_catalog_out_of_reach_is_tried_again_later(lake, capsys):
    away = "catalogs:\n  local: {type: sql, uri: 'postgresql://nobody@127.0.0.1:9/x', warehouse: /tmp/x}\n"
    (lake.directory / "icekeep.yaml").write_text(f"{away}runs: {{enabled: false}}\n{POLICIES}")
    for words in ((), ("--dry-run",), ("--list",)):
        status, document, _ = run(capsys, *words)
        assert (status, document["error"]["kind"]) == (75, "unavailable")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "tables"),
    [
        (("--tables", "db.a,local.db.b"), ["a", "b"]),
        (("--tables", "db.a", "--catalog", "local"), ["a"]),
        (("--match", "db.a"), ["a"]),
        (("--match", "local.db.a"), ["a"]),
        (("--match", "local.**"), ["a", "b"]),
        (("--match", "*.b", "--catalog", "local"), ["b"]),
    ],
)
def test_tables_are_selected_by_names_and_patterns(lake, capsys, words, tables):
    status, document, _ = run(capsys, "--dry-run", *words)
    assert status == 0
    assert sorted(one["table"] for one in document["result"]["tables"]) == [f"local.db.{name}" for name in tables]


@pytest.mark.slow
def test_unreached_table_is_named_and_others_are_maintained(lake, capsys):
    status, document, _ = run(capsys, "--tables", "local.db.a,local.db.nope")
    result = document["result"]
    assert (status, document["status"], result["done_jobs_count"]) == (3, "partial", 2)
    assert [(one["name"], one["kind"]) for one in result["not_read"]] == [("local.db.nope", "not-found")]
    assert (
        "`icekeep policy explain --table local.db.nope --config icekeep.yaml` says why"
        in result["not_read"][0]["reason"]
    )


def test_unknown_catalog_in_all_policies_is_an_error(lake, capsys):
    file = lake.directory / "icekeep.yaml"
    text = file.read_text()
    file.write_text(text.replace("schedule: null, match: local.", "schedule: null, match: lokal."))
    told = "policy 'by-hand': there is no catalog 'lokal'; did you mean 'local'?"
    status, document, _ = run(capsys, "--policy", "by-hand")
    assert (status, document["error"]["message"]) == (2, told)
    file.write_text(text.replace("match: local.", "match: lokal."))
    for words in ((), ("--dry-run",), ("--list",)):
        status, document, _ = run(capsys, *words)
        assert (status, document["error"]["message"]) == (2, told.replace("by-hand", "nightly"))


@pytest.mark.slow
def test_policies_that_are_left_out_or_fit_nothing_are_told(lake, capsys):
    file = lake.directory / "icekeep.yaml"
    more = """
  - {name: lost, schedule: "@daily", match: [local.nope.*, local.db.a], jobs: {rewrite_manifests: }}
  - {name: gone, schedule: "@daily", tables: [local.db.gone], jobs: {check: }}
  - {name: elsewhere, schedule: "@daily", match: nope.**, jobs: {check: }}
"""
    file.write_text(file.read_text() + more)
    _, document, _ = run(capsys, "--dry-run")
    assert document["result"]["notes"] == [
        "policies without a schedule are left out: 'by-hand'; --policy runs one of them",
        "policy 'elsewhere': there is no catalog 'nope'; there is local",
        "policy 'lost': no table is meant by 'local.nope.*'; `icekeep policy check --config icekeep.yaml` tells more",
        "policy 'gone': no table is meant by 'local.db.gone'; `icekeep policy check --config icekeep.yaml` tells more",
    ]
    _, document, _ = run(capsys, "--dry-run", "--policy", "by-hand", "--tables", "db.a")
    assert document["result"]["notes"] == []


@pytest.mark.slow
def test_job_taken_by_policy_without_schedule_is_noted(lake, capsys):
    file = lake.directory / "icekeep.yaml"
    first = "policies:\n  - {name: takes, schedule: null, match: local.**, jobs: {compact: }}\n"
    file.write_text(file.read_text().replace("policies:\n", first))
    said = (
        "no schedule runs compact on local.db.a and 1 more, which policy 'nightly' asks for: policy 'takes' stands before it, "
        "decides of that job there, and has no schedule"
    )
    for words in ((), ("--policy", "nightly"), ("--list",)):
        assert said in run(capsys, *words)[1]["result"]["notes"]
    [note] = run(capsys, "--dry-run", "--policy", "nightly", "--tables", "db.b")[1]["result"]["notes"]
    assert note.startswith("no schedule runs compact on local.db.b, which")
    assert run(capsys, "--dry-run", "--policy", "takes")[1]["result"]["notes"] == []


def test_unknown_options_are_refused_before_any_run(lake, capsys):
    file = lake.directory / "icekeep.yaml"
    file.write_text(file.read_text().replace("{check: }", "{check: , compact: {options: {target-size: 1}}}"))
    status, document, _ = run(capsys)
    assert status == 2
    assert "jobs.compact.options.target-size: there is no option 'target-size'" in document["error"]["message"]
    assert not (lake.directory / "warehouse.icekeep-runs.db").exists()


def test_what_people_are_shown():
    jobs = (
        JobDone(job="compact", policy="p", status="done", why="w", elapsed_ms=90_000, figures={"added_bytes": 2048}),
        JobDone(job="check", policy="p", status="not_due", why="it ran 1h ago"),
        JobDone(job="expire_snapshots", policy="p", status="elsewhere", why="run x is at work on the table"),
    )
    result = MaintainResult(
        status="partial",
        run_id="maintain-1",
        tables_count=1,
        done_jobs_count=1,
        failing=(Failing(table="c.db.u", job="compact", failures_in_a_row=4, why="it broke"),),
        not_read=(NotRead(name="c.db.v", kind="k", reason="no metadata"),),
        notes=("a note",),
        tables=(TableDone(table="c.db.t", jobs=jobs, problems=("table property x: no",)),),
    )
    shown = maintain_shown(result)
    assert [(row["job"], row["took"], row["figures"]) for row in shown["jobs"]] == [
        ("compact", "90.0 s", "added_bytes 2.0 KiB"),
        ("expire_snapshots", "-", "-"),
    ]
    assert shown["failing"] == ["c.db.u compact: failed 4 times in a row: it broke"]
    assert (shown["not_read"], shown["notes"]) == (["c.db.v: no metadata"], ["a note"])
    long = msgspec.structs.replace(jobs[0], status="failed", why="no room " * 99)
    table = msgspec.structs.replace(result.tables[0], jobs=(long,))
    [row] = maintain_shown(msgspec.structs.replace(result, tables=(table,)))["jobs"]
    assert len(row["why"]) < 130
    assert shown["problems"] == ["c.db.t: table property x: no"]
    assert {"not_due", "postponed", "dry_run", "failed_jobs_count"}.isdisjoint(shown)
    due = DueJob(job="compact", policy="p", arguments=(), observes=False, why="w", estimate_ms=1, estimate_bytes=2)
    listed = DueList(
        status="done", tables=(DueTable(table="c.db.t", priority=1.0, estimate_ms=1, estimate_bytes=2, jobs=(due,)),)
    )
    assert [row["job"] for row in maintain_shown(listed)["due"]] == ["compact"]


def test_postponed_jobs_are_always_shown_others_in_dry_run():
    """A dry run lists every job that is not begun, with the reason."""
    jobs = [
        JobDone(job=status, policy="p", status=status, why=f"why {status}")
        for status in ("postponed", "held", "closed", "not_due")
    ]
    result = MaintainResult(
        status="done",
        run_id="maintain-1",
        postponed_jobs_count=1,
        tables=(TableDone(table="c.db.t", jobs=tuple(jobs)),),
    )
    shown = maintain_shown(result)
    assert shown["postponed_jobs_count"] == 1
    assert shown["postponed"] == [{"table": "c.db.t", "job": "postponed", "why": "why postponed"}]
    assert {"held", "closed", "not_due"}.isdisjoint(shown)
    dry = maintain_shown(msgspec.structs.replace(result, status="planned", dry_run=True))
    for status in ("postponed", "held", "closed", "not_due"):
        assert dry[status] == [{"table": "c.db.t", "job": status, "why": f"why {status}"}]


def after_the_first_job(monkeypatch, act):
    """Let somebody act when the first job of a run has begun."""
    done = []

    def run(command, *arguments):
        if not done:
            done.append(command.table)
            act({"a", "b", "c"} - {command.table.rpartition(".")[2]})
        return JobRun(command, *arguments)

    monkeypatch.setattr(one_of_many, "JobRun", run)


@pytest.mark.slow
def test_owners_are_asked_again_before_each_job(lake, capsys, monkeypatch):
    def act(left):
        opted_out, made_anew = sorted(left)
        change = ChangeProperties(updates={"icekeep.enabled": "false"})
        commit(lake.catalog.load(("db", opted_out)), change, runtime=SYSTEM)
        lake.catalog.drop(("db", made_anew))
        other = create_table(lake.catalog, ("db", made_anew), SCHEMA, location=str(lake.directory / "elsewhere"))
        for number in range(3):
            other = append(other, [events(number, 3)])
        names.extend(left)

    names = []
    table = create_table(lake.catalog, ("db", "c"), SCHEMA)
    for number in range(3):
        table = append(table, [events(number, 3)])
    after_the_first_job(monkeypatch, act)
    status, document, _ = run(capsys, "--workers", "1")
    assert status == 3
    jobs = {one["table"]: one["jobs"] for one in document["result"]["tables"]}
    opted_out, made_anew = (
        [job["why"] for job in jobs[f"local.db.{name}"] if job["status"] == "not_begun"] for name in sorted(names)
    )
    assert opted_out
    assert all("icekeep.enabled" in why for why in opted_out)
    assert made_anew
    assert all("the name was given to another" in why for why in made_anew)
    assert len(lake.catalog.load(("db", sorted(names)[1])).metadata.snapshots) == 3
