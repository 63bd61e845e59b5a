"""The operators by an Airflow that schedules nothing (`kit/fake_airflow`), over a library that does what a test says."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from icekeep.airflow.calls import JobOnTable, Unit, packed
from icekeep.airflow.installation import Installation
from icekeep.operations.configuration.file import parse_config

pytestmark = pytest.mark.process

FAKE_AIRFLOW = Path(__file__).resolve().parents[2] / "kit" / "fake_airflow"
LIBRARY = """
import json, sys, time
job, *words = sys.argv[1:]
told = dict(word.removeprefix("--").partition("=")[::2] for word in words)
answers = json.load(open(__file__ + ".json"))
if told.get("table") == "c.d.slow":
    print("I am slow", file=sys.stderr, flush=True)
    time.sleep(600)
status, document = answers.get(told.get("table", ""), [0, {"status": "done"}])
open(told["result-file"], "w").write(json.dumps({"job": job, **document}))
sys.exit(status)
"""


@pytest.fixture
def airflow(monkeypatch):
    """What imports our modules that import Airflow; nothing of that is left afterwards."""
    before = {*sys.modules}
    monkeypatch.syspath_prepend(str(FAKE_AIRFLOW))
    yield import_module
    for name in {*sys.modules} - before:
        if name.partition(".")[0] == "airflow" or name.startswith("icekeep.airflow"):
            del sys.modules[name]


@pytest.fixture
def installation(tmp_path):
    home = tmp_path / "lib" / "icekeep"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("")
    (home / "__main__.py").write_text(LIBRARY)
    answer(tmp_path, {})
    return Installation(conf="/c.yaml", python=sys.executable, home=str(tmp_path))


def answer(tmp_path, answers):
    """By table the status of its jobs, and what they say; without a table that of the rest."""
    (tmp_path / "lib" / "icekeep" / "__main__.py.json").write_text(json.dumps(answers))


class Instance:
    def __init__(self, pulled=None, states=None):
        self.pushed, self._pulled, self._states = {}, pulled or {}, states or {}

    def xcom_push(self, key, value):
        self.pushed[key] = value

    def xcom_pull(self, task_ids, key="return_value"):
        return self._pulled.get(key)

    def get_task_states(self, dag_id, run_ids):
        return {run_ids[0]: self._states}


class Run:
    dag_id, run_id = "d", "r"


def made(airflow, module, name, **arguments):
    """An operator."""
    with airflow("airflow.sdk").DAG(dag_id="d"):
        return getattr(airflow(f"icekeep.airflow.{module}"), name)(task_id="t", **arguments)


def executed(airflow, module, name, instance, **arguments):
    """What an operator gives, or its exception."""
    return outcome_of(airflow, made(airflow, module, name, **arguments), instance)


def outcome_of(airflow, task, instance):
    try:
        return task.execute({"ti": instance, "dag_run": Run()})
    except airflow("airflow.sdk.exceptions").AirflowException as error:
        return type(error).__name__, str(error)


def call(table, job="compact", **more):
    return JobOnTable(job=job, table=table, submit=False, **more)


def unit(*calls):
    return packed([Unit(name="u", calls=calls)])[0]


def test_every_table_of_unit_runs_despite_failures(airflow, installation, tmp_path):
    answer(tmp_path, {"c.d.bad": [4, {"error": {"message": "no"}}], "c.d.late": [75, {"error": {"message": "later"}}]})
    instance = Instance()
    calls = unit(call("c.d.bad"), call("c.d.a"), call("c.d.late"), call("c.d.b"), call("c.d.a", "expire_snapshots"))
    found = executed(
        airflow, "operators", "MaintenanceOperator", instance, installation=installation, unit=calls, job="compact"
    )
    assert found == (
        "AirflowException",
        "2 of 4 failed: compact c.d.bad ended with status 4 (refused), which a retry does not help: no; "
        "compact c.d.late ended with status 75 (try again later): later",
    )
    left = instance.pushed["return_value"]
    assert (left["calls_count"], left["failed_count"]) == (4, 2)
    assert [(one["table"], one["exit_status"]) for one in left["calls"]] == [
        ("c.d.bad", 4),
        ("c.d.a", 0),
        ("c.d.late", 75),
        ("c.d.b", 0),
    ]


def test_unit_of_hopeless_failures_fails_without_retry(airflow, installation, tmp_path):
    """A retry is of no use where no call can succeed another time."""
    answer(tmp_path, {"c.d.bad": [4, {}], "c.d.wrong": [2, {}]})
    found = executed(
        airflow,
        "operators",
        "MaintenanceOperator",
        Instance(),
        installation=installation,
        calls=(call("c.d.bad"), call("c.d.wrong")),
    )
    assert found[0] == "AirflowFailException"


def test_killed_task_starts_no_further_call(airflow, installation):
    calls = (call("c.d.a"), call("c.d.slow"), call("c.d.b"))
    task = made(airflow, "operators", "MaintenanceOperator", installation=installation, calls=calls)
    # Airflow calls this in a signal handler, and goes on.
    task._say = lambda line: task.on_kill()
    instance = Instance()
    outcome, said = outcome_of(airflow, task, instance)
    assert outcome == "AirflowException"
    assert "c.d.slow ended with status 143 (terminated)" in said
    assert "c.d.b did not run: Airflow has ended the task before" in said
    assert [one["exit_status"] for one in instance.pushed["return_value"]["calls"]] == [0, 143, None]


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ((call("c.d.t", "expire_snapshots"),), "compact is not due"),
        ((call("c.d.t", until_ms=1),), "the window in which it may begin is closed"),
    ],
)
def test_what_is_not_due_or_comes_too_late_is_skipped(airflow, installation, calls, said):
    found = executed(
        airflow,
        "operators",
        "MaintenanceOperator",
        Instance(),
        installation=installation,
        unit=unit(*calls),
        job="compact",
    )
    assert found == ("AirflowSkipException", said)


def held(reason):
    return [0, {"status": "held", "result": {"status": "held", "held_by": reason}}]


def test_tables_switched_off_since_planning_are_skipped(airflow, installation, tmp_path):
    answer(tmp_path, {"c.d.off": held("switched off"), "c.d.moved": held("policy 'm' decides of it")})
    told = {"installation": installation, "policy": "nightly"}
    skipped = executed(
        airflow, "operators", "MaintenanceOperator", Instance(), calls=(call("c.d.off"), call("c.d.moved")), **told
    )
    assert skipped == (
        "AirflowSkipException",
        "compact of c.d.off was not begun: switched off; compact of c.d.moved was not begun: policy 'm' decides of it",
    )
    left = executed(
        airflow, "operators", "MaintenanceOperator", Instance(), calls=(call("c.d.off"), call("c.d.a")), **told
    )
    assert [(one["table"], one["status"]) for one in left["calls"]] == [("c.d.off", "held"), ("c.d.a", "done")]


def test_a_python_that_is_not_there_may_be_there_the_next_time(airflow, installation):
    gone = msgspec.structs.replace(installation, python="/no/python")
    found = executed(airflow, "operators", "MaintenanceOperator", Instance(), installation=gone, calls=(call("c.d.t"),))
    assert found[0] == "AirflowException"
    assert found[1].startswith("compact c.d.t did not run: cannot start '/no/python'")


RULES = parse_config("policies: [{name: n, schedule: null, match: c.**, jobs: {compact: }}]").rules
DUE = {"job": "compact", "policy": "n", "arguments": ["--a"], "observes": False, "estimate_bytes": 1}
FOUND = {"status": "done", "tables": [{"table": "c.d.t", "jobs": [DUE]}], "not_read": []}
BROKEN = {"name": "c.d.broken", "kind": "invalid-table", "reason": "it is no JSON"}


def due(airflow, installation, instance):
    return executed(
        airflow,
        "due",
        "DueOperator",
        instance,
        installation=installation,
        policy=RULES.policies[0],
        rules=RULES,
        units_count_max=5,
    )


@pytest.mark.parametrize(("status", "not_read"), [(0, []), (3, [BROKEN])])
def test_due_calls_are_returned_and_unread_tables_kept(airflow, installation, tmp_path, status, not_read):
    answer(tmp_path, {"": [status, {"result": {**FOUND, "not_read": not_read}}]})
    instance = Instance()
    expected = packed([Unit(name="c.d.t", calls=(call("c.d.t", arguments=("--a",)),))])
    assert due(airflow, installation, instance) == expected
    assert instance.pushed == {"not_read": ["c.d.broken: it is no JSON"] if not_read else []}


class Warned:
    """In place of a task's log; keeps warnings."""

    def __init__(self):
        self.warnings = []

    def info(self, *_):
        pass

    def warning(self, text, *arguments):
        self.warnings.append(text % arguments)


def test_what_the_look_notes_is_warned_of(airflow, installation, tmp_path):
    answer(tmp_path, {"": [0, {"result": {**FOUND, "notes": ["no schedule runs compact: 100%"]}}]})
    known = {"policy": RULES.policies[0], "rules": RULES, "units_count_max": 5}
    task = made(airflow, "due", "DueOperator", installation=installation, **known)
    task.log = Warned()
    assert len(outcome_of(airflow, task, Instance())) == 1
    assert task.log.warnings == ["no schedule runs compact: 100%"]


@pytest.mark.parametrize(
    ("status", "document", "outcome"),
    [
        (2, {"error": {"message": "there is no policy 'n'"}}, "AirflowFailException"),
        (75, {"error": {"message": "the catalog is out of reach"}}, "AirflowException"),
        (3, {}, "AirflowException"),
        (0, {}, "AirflowException"),
    ],
)
def test_without_an_answer_nothing_is_mapped(airflow, installation, tmp_path, status, document, outcome):
    answer(tmp_path, {"": [status, document]})
    found = due(airflow, installation, Instance())
    assert found[0] == outcome
    assert found[1].startswith("maintain --list ")
    assert document.get("error", {}).get("message", "") in found[1]


STATES = {"due": "success", "tables.compact_0": "failed", "tables.compact_1": "skipped", "outcome": "running"}


@pytest.mark.parametrize(
    ("states", "not_read", "said"),
    [
        ({**STATES, "tables.compact_0": "success"}, [], None),
        (STATES, [], "1 failed: compact c.d.t"),
        (
            {**STATES, "tables.check": "upstream_failed"},
            ["c.d.x: gone"],
            "2 failed: tables.check, compact c.d.t; tables could not be looked at: c.d.x: gone",
        ),
        ({"due": "success"}, ["c.d.x: gone"], "tables could not be looked at: c.d.x: gone"),
    ],
)
def test_a_run_fails_by_what_has_failed_in_it_and_names_that(airflow, states, not_read, said):
    units = packed([Unit(name=name, calls=()) for name in ("c.d.t", "c.d.u")])
    instance = Instance({"return_value": units, "not_read": not_read}, states)
    found = executed(airflow, "factory", "OutcomeOperator", instance, listing="due")
    assert found == (None if said is None else ("AirflowFailException", said))


def test_a_listed_table_that_ends_with_a_number_keeps_its_name(airflow):
    found = executed(airflow, "factory", "OutcomeOperator", Instance(states={"c.d.t.check_0": "failed"}))
    assert found == ("AirflowFailException", "1 failed: c.d.t.check_0")


@pytest.mark.parametrize(("dry_run", "status", "shown"), [(False, 0, False), (True, 0, True), (False, 3, True)])
def test_task_log_shows_whole_output_where_summary_falls_short(airflow, installation, tmp_path, dry_run, status, shown):
    program = tmp_path / "lib" / "icekeep" / "__main__.py"
    program.write_text(f"import sys\nprint('a table')\nprint('progress', file=sys.stderr)\n{LIBRARY}")
    document = {"status": "done", "dry_run": dry_run, "result": {"rewritten_data_files_count": 2}}
    answer(tmp_path, {"c.d.t": [status, document]})
    task = made(airflow, "operators", "MaintenanceOperator", installation=installation, calls=(call("c.d.t"),))
    task.log, lines = SimpleNamespace(error=lambda *_: None), []
    task.log.info = lambda line, *told: lines.append(line % told)
    outcome_of(airflow, task, Instance())
    assert ("progress" in lines, "a table" in lines) == (True, shown)
    assert ("compact c.d.t: done; rewritten data files 2" in lines) is (status == 0)
