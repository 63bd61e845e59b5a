"""Tasks whose job runs on YARN while a triggerer waits: a ResourceManager that says what a test wants, and no Airflow."""

import asyncio
import json
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from icekeep.airflow.calls import JobOnTable
from icekeep.airflow.installation import Installation
from icekeep.airflow.yarn import ADDRESS_KEY, ApplicationReport, ResourceManager

pytestmark = pytest.mark.process

FAKE_AIRFLOW = Path(__file__).resolve().parents[2] / "kit" / "fake_airflow"
ID = "application_17_0001"
ACCEPTED = f"INFO Client: Application report for {ID} (state: ACCEPTED)\n\t tracking URL: http://rm:8088/proxy/{ID}/"
RUNNING = {"state": "RUNNING", "finalStatus": "UNDEFINED"}
DONE = {"state": "FINISHED", "finalStatus": "SUCCEEDED", "diagnostics": ""}
REFUSED = {"state": "FINISHED", "finalStatus": "FAILED", "diagnostics": "\nUser application exited with status 5\n"}
KILLED = {"state": "KILLED", "finalStatus": "KILLED", "diagnostics": "Application was killed by user ann"}


@pytest.fixture
def yarn():
    """`answers` are those to questions for the application, the last again and again; `asked` is what came."""
    with _resource_manager() as manager:
        yield manager


@contextmanager
def _resource_manager():
    class Handler(BaseHTTPRequestHandler):
        def _answer(self):
            told.asked.append(f"{self.command} {self.path.removeprefix('/ws/v1/cluster/')}")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = {} if self.path.endswith("info") else {"app": told.answers[0]}
            if self.command == "PUT":
                told.asked[-1] += f" {json.loads(body)['state']}"
            elif not self.path.endswith("info"):
                told.answers = told.answers[1:] or told.answers
            status = answer["app"] if isinstance(answer.get("app"), int) else told.status
            sent = json.dumps(answer).encode()
            self.send_response(307 if told.active else status)
            if told.active:
                self.send_header("Location", told.active + self.path)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_PUT = _answer

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told = SimpleNamespace(
        url=f"http://127.0.0.1:{server.server_port}", answers=[DONE], asked=[], status=200, active=""
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def airflow(monkeypatch):
    """What imports our modules that import Airflow; nothing of that is left afterwards."""
    before = {*sys.modules}
    monkeypatch.syspath_prepend(str(FAKE_AIRFLOW))
    monkeypatch.setenv("STATUS", "0")
    monkeypatch.setenv("STDERR", ACCEPTED)
    yield import_module
    for name in {*sys.modules} - before:
        if name.partition(".")[0] == "airflow" or name.startswith("icekeep.airflow"):
            del sys.modules[name]


@pytest.fixture
def connect(airflow, monkeypatch, yarn):
    """Makes the connection of the cluster."""

    def made(host="yarn", **extra):
        found = SimpleNamespace(conn_id="c", conn_type="spark", host=host, extra_dejson={ADDRESS_KEY: yarn.url} | extra)
        hook = airflow("airflow.sdk.bases.hook").BaseHook
        monkeypatch.setattr(hook, "get_connection", staticmethod(lambda _: found))

    made()
    return made


@pytest.fixture
def task(airflow, connect, tmp_path):
    """Makes a task; its results lie in `tmp_path`, and no record of runs is asked."""

    def made(*calls, **given):
        here = Installation(conf="/c.yaml", python="/no/python", results=str(tmp_path))
        with airflow("airflow.sdk").DAG(dag_id="d"):
            usual = {"deploy_mode": "cluster", "deferrable": True, "alias": "a"}
            return airflow("icekeep.airflow.operators").MaintenanceOperator(
                task_id="t", installation=here, calls=calls or (call(),), **{**usual, **given}
            )

    return made


def call(table="c.d.t", **more):
    return JobOnTable(job="compact", table=table, **more)


class Context(dict):
    def __init__(self):
        self.events, self.pushed = [], {}
        emitted = SimpleNamespace(add=lambda asset, extra: self.events.append((asset.uri, extra)))
        instance = SimpleNamespace(xcom_push=lambda key, value: self.pushed.update({key: value}))
        super().__init__(ti=instance, outlet_events=SimpleNamespace(__getitem__=None))
        self["outlet_events"] = _Every(emitted)


class _Every:
    def __init__(self, value):
        self._value = value

    def __getitem__(self, _):
        return self._value


def deferred(airflow, run):
    """The trigger for which a task leaves its worker, as a triggerer makes it of JSON."""
    with pytest.raises(airflow("airflow.sdk").Deferred) as caught:
        run()
    assert caught.value.method_name == "execute_complete"
    path, given = caught.value.trigger.serialize()
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)(**{**json.loads(json.dumps(given)), "poll_s": 0})


def event_of(trigger):
    """The one event of a trigger, as JSON has it."""

    async def first():
        return [event.payload async for event in trigger.run()]

    [payload] = asyncio.run(first())
    return json.loads(json.dumps(payload))


def outcome(airflow, run):
    try:
        return run()
    except airflow("airflow.sdk.exceptions").AirflowException as error:
        return type(error).__name__, str(error)


def test_task_defers_once_yarn_has_job_and_resumes_with_result(airflow, task, yarn, tmp_path):
    yarn.answers, context = [RUNNING, RUNNING, DONE], Context()
    one = task(conf={"spark.a": "1"})
    trigger = deferred(airflow, lambda: one.execute(context))
    assert one.submitted_conf == {"spark.a": "1", "spark.yarn.submit.waitAppCompletion": "false"}
    assert (one.conf, yarn.asked) == ({"spark.a": "1"}, ["GET info"])
    [[_, _, words, _]] = one.submitted
    [file] = [word.partition("=")[2] for word in words if word.startswith("--result-file=")]
    event = event_of(trigger)
    assert yarn.asked[1:] == [f"GET apps/{ID}"] * 3
    moved = {"metadata_location_before": "a", "metadata_location_after": "b", "run_id": "r"}
    Path(file).write_text(json.dumps({"status": "done", **moved}))
    later = task()
    assert later.execute_complete(context, event)["status"] == "done"
    assert context.events == [("iceberg://c/d/t", {"job": "compact", "run_id": "r", "metadata_location_after": "b"})]
    assert (later.links["Spark application"], [*tmp_path.iterdir()]) == (f"http://rm:8088/proxy/{ID}/", [])


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (REFUSED, "AirflowFailException", "ended with status 5 (nobody knows whether the commit has landed)"),
        (
            {**REFUSED, "diagnostics": "User application exited with status 75"},
            "AirflowException",
            "ended with status 75 (try again later): User application exited with status 75",
        ),
        (KILLED, "AirflowException", "ended with status 1 (failed): Application was killed by user ann"),
        ({"state": "FAILED"}, "AirflowException", "ended with status 1 (failed): YARN says FAILED"),
        (404, "AirflowException", f"was started, and its outcome is unknown: YARN does not know {ID} any more"),
    ],
)
def test_the_end_of_a_driver_is_what_yarn_says_of_it(airflow, task, yarn, answer, kind, said):
    yarn.answers, context = [RUNNING, answer], Context()
    event = event_of(deferred(airflow, lambda: task().execute(context)))
    found = outcome(airflow, lambda: task().execute_complete(context, event))
    assert found[0] == kind
    assert said in found[1]
    assert context.events == []


def test_later_calls_run_after_failure_and_it_is_kept(airflow, task, yarn):
    yarn.answers, context = [REFUSED], Context()
    first = deferred(airflow, lambda: task(call("c.d.a"), call("c.d.b")).execute(context))
    yarn.answers, event = [DONE], event_of(first)
    later = task()
    second = deferred(airflow, lambda: later.execute_complete(context, event))
    assert [words[2][0] for words in later.submitted] == ["compact"]
    assert "--table=c.d.b" in later.submitted[0][2]
    found = outcome(airflow, lambda: task().execute_complete(context, event_of(second)))
    assert found[0] == "AirflowFailException"
    assert found[1].startswith("1 of 2 failed: compact c.d.a ended with status 5")
    assert [one["exit_status"] for one in context.pushed["return_value"]["calls"]] == [5, 0]


def test_task_timeout_ends_its_job_and_starts_no_more(airflow, task, yarn):
    yarn.answers, context = [RUNNING], Context()
    one = task(call("c.d.a"), call("c.d.b"))
    one.execution_timeout = timedelta(0)
    event = event_of(deferred(airflow, lambda: one.execute(context)))
    later = task()
    kind, said = outcome(airflow, lambda: later.execute_complete(context, event))
    assert (kind, yarn.asked[-1], later.submitted) == ("AirflowException", f"PUT apps/{ID}/state KILLED", [])
    assert f"the time of the task (execution_timeout) was over; YARN was asked to end {ID}" in said
    assert "compact c.d.b did not run: Airflow has ended the task before" in said


def test_triggerer_gives_up_on_unreachable_yarn(airflow, task, yarn, monkeypatch):
    trigger = deferred(airflow, lambda: task().execute(Context()))
    monkeypatch.setattr(airflow("icekeep.airflow.triggers"), "UNREACHABLE_COUNT_MAX", 3)
    yarn.status, yarn.answers = 503, [RUNNING]
    event = event_of(trigger)
    assert yarn.asked[1:] == [f"GET apps/{ID}"] * 3
    kind, said = outcome(airflow, lambda: task().execute_complete(Context(), event))
    assert kind == "AirflowException"
    assert f"the triggerer cannot ask YARN at {yarn.url}: HTTP Error 503" in said
    assert f"YARN could not be asked to end {ID}: HTTP Error 503" in said


def test_restarted_resource_manager_may_not_know_application(airflow, task, yarn):
    """The triggerer asks on, and does not take the application for lost."""
    yarn.answers, context = [RUNNING, 404, 404, RUNNING, DONE], Context()
    event = event_of(deferred(airflow, lambda: task().execute(context)))
    assert event["report"][1] == "SUCCEEDED"
    assert task().execute_complete(context, event)["exit_status"] == 0


def test_clearing_a_task_that_waits_kills_its_job(airflow, task, yarn):
    trigger = deferred(airflow, lambda: task().execute(Context()))
    asyncio.run(trigger.on_kill())
    assert yarn.asked[-1] == f"PUT apps/{ID}/state KILLED"
    yarn.status = 500
    asyncio.run(trigger.on_kill())


def test_a_resource_manager_on_standby_leads_to_the_active_one(yarn):
    with _resource_manager() as standby:
        standby.active = yarn.url
        manager = ResourceManager(standby.url)
        assert manager.report(ID).has_succeeded
        manager.kill(ID)
    assert yarn.asked == [f"GET apps/{ID}", f"PUT apps/{ID}/state KILLED"]


def test_task_killed_while_submitting_leaves_no_job(airflow, task, yarn):
    one, context = task(), Context()
    hook = one._get_hook

    def ended_meanwhile():
        one.on_kill()
        return hook()

    one._get_hook = ended_meanwhile
    kind, said = outcome(airflow, lambda: one.execute(context))
    assert (kind, yarn.asked[-1]) == ("AirflowException", f"PUT apps/{ID}/state KILLED")
    assert f"Airflow has ended the task; YARN was asked to end {ID}" in said


WORKERS = [
    (False, "cluster", {}, "it is a process of the worker"),
    (True, "client", {}, "its driver is a process of the worker (client mode)"),
    (
        True,
        "cluster",
        {"host": "k8s://https://k"},
        "its cluster is not YARN by the connection, and a triggerer can ask",
    ),
    (True, "cluster", {ADDRESS_KEY: ""}, f"connection 'c' has no '{ADDRESS_KEY}' in its extra"),
    (
        True,
        "cluster",
        {ADDRESS_KEY: "http://ann:pa55word@rm:8088"},
        "YARN cannot be asked at http://rm:8088: the address has a login in it",
    ),
    (
        True,
        "cluster",
        {ADDRESS_KEY: "file:///etc"},
        "YARN cannot be asked at file:///etc: 'file:///etc' is not an http",
    ),
]


@pytest.mark.parametrize(("is_submitted", "mode", "connection", "why"), WORKERS)
def test_worker_waits_where_triggerer_cannot_and_says_why(
    airflow, task, connect, monkeypatch, is_submitted, mode, connection, why
):
    """`default_args` and `default_deferrable` are for all tasks."""
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    connect(**connection)
    one, lines = task(call(submit=is_submitted), deferrable=None, deploy_mode=mode), []
    one.log.info = lambda line, *told: lines.append(line % told)
    outcome(airflow, lambda: one.execute(Context()))
    [line] = [line for line in lines if line.startswith("the worker waits for compact of c.d.t: ")]
    assert why in line
    assert getattr(one, "submitted_conf", None) is None


def test_cluster_needing_login_is_detected_before_submission(airflow, task, yarn):
    yarn.status, one, lines = 401, task(), []
    one.log.info = lambda line, *told: lines.append(line % told)
    assert one.execute(Context())["exit_status"] == 0
    assert any(f"YARN cannot be asked at {yarn.url}: HTTP Error 401" in line for line in lines)


@pytest.mark.parametrize(
    ("given", "variable", "defers"), [(None, None, 0), (None, "True", 1), (False, "True", 0), (True, None, 1)]
)
def test_deferrable_defaults_to_airflow_configuration(task, monkeypatch, given, variable, defers):
    if variable is not None:
        monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", variable)
    assert task(deferrable=given).deferrable is bool(defers)


def test_invalid_yarn_answer_is_error_not_job_end(yarn):
    for answer in ({}, {"state": ""}, "text"):
        yarn.answers = [answer]
        with pytest.raises(OSError, match="does not answer as a ResourceManager does"):
            ResourceManager(yarn.url).report(ID)
    assert ApplicationReport(*["FINISHED", "UNDEFINED"]).has_succeeded is False
