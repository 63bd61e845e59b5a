"""The sensor by an Airflow that schedules nothing, over a library that answers what a test says."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from icekeep.airflow.installation import Installation
from icekeep.errors import UsageError

pytestmark = pytest.mark.process

FAKE_AIRFLOW = Path(__file__).resolve().parents[2] / "kit" / "fake_airflow"
LIBRARY = """
import json, sys
from pathlib import Path
answer = json.loads(Path(__file__ + ".json").read_text())
Path(__file__ + ".asked").write_text(json.dumps(sys.argv[1:-1]))
Path(sys.argv[-1].partition("=")[2]).write_text(json.dumps(answer["document"]))
sys.exit(answer["status"])
"""


@pytest.fixture
def sensor(monkeypatch, tmp_path):
    before = {*sys.modules}
    monkeypatch.syspath_prepend(str(FAKE_AIRFLOW))
    library = tmp_path / "lib" / "icekeep"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("")
    (library / "__main__.py").write_text(LIBRARY)
    here = Installation(conf="/c.yaml", python=sys.executable, home=str(tmp_path))
    made = import_module("icekeep.airflow").TableDueSensor
    with import_module("airflow.sdk").DAG(dag_id="d"):
        yield lambda **given: made(**{"task_id": "t", "table": "c.d.t", "installation": here, **given})
    for name in {*sys.modules} - before:
        if name.partition(".")[0] == "airflow" or name.startswith("icekeep.airflow"):
            del sys.modules[name]


@pytest.fixture
def answer(tmp_path):
    def answers(*jobs, status=0, not_read=(), observes=False, error=None):
        tables = [{"table": "c.d.t", "jobs": [{"job": job, "observes": observes} for job in jobs]}] if jobs else []
        document = {"error": error} if error else {"result": {"tables": tables, "not_read": [*not_read]}}
        (tmp_path / "lib/icekeep/__main__.py.json").write_text(json.dumps({"status": status, "document": document}))

    return answers


def exceptions(name):
    return getattr(import_module("airflow.sdk.exceptions"), name)


@pytest.mark.parametrize("deferrable", [False, True])
def test_it_leaves_the_jobs_that_are_due(sensor, answer, deferrable, tmp_path):
    answer("compact", "expire_snapshots")
    task = sensor(policy="big", deferrable=deferrable)
    assert task.execute({}) == ["compact", "expire_snapshots"]
    asked = json.loads((tmp_path / "lib/icekeep/__main__.py.asked").read_text())
    assert asked == ["maintain", "--list", "--tables=c.d.t", "--policy=big", "--config=/c.yaml"]
    assert task.deferred == []


@pytest.mark.parametrize("given", [(), ("compact",)])
def test_nothing_is_due_also_where_a_policy_only_observes(sensor, answer, given):
    answer(*given, observes=True)
    assert not sensor().poke({})


def test_a_triggerer_waits_until_the_time_is_over(sensor, answer, monkeypatch):
    answer()
    task = sensor(deferrable=True, poke_interval=60, timeout=90)
    monkeypatch.setattr(sys.modules["icekeep.airflow.due"], "SYSTEM", Clock())
    task.execute({})
    task.look({}, "event", until_ms=91_000)
    task.look({}, "event", until_ms=31_000)
    assert [(one.total_seconds(), method, kwargs) for one, method, kwargs in task.deferred] == [
        (60, "look", {"until_ms": 91_000}),
        (60, "look", {"until_ms": 91_000}),
        (30, "look", {"until_ms": 31_000}),
    ]
    with pytest.raises(exceptions("AirflowSensorTimeout"), match=r"nothing was due on c.d.t within 90 seconds"):
        task.look({}, "event", until_ms=1_000)


class Clock:
    def now_ms(self):
        return 1_000


def test_unreadable_table_is_not_taken_for_nothing_due(sensor, answer):
    answer(status=3, not_read=[{"name": "c.d.t", "reason": "gone"}])
    with pytest.raises(exceptions("AirflowException"), match=r"cannot look at c\.d\.t: gone"):
        sensor().poke({})
    answer(status=2, error={"kind": "not-found", "message": "there is no policy 'x'"})
    with pytest.raises(exceptions("AirflowFailException"), match="there is no policy 'x'"):
        sensor().poke({})


def test_sensor_defers_by_default_as_airflow_is_configured(sensor, monkeypatch):
    assert not sensor().deferrable
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert sensor().deferrable
    assert not sensor(deferrable=False).deferrable
    assert not sensor(mode="reschedule").deferrable


def test_a_wrong_argument_is_refused_in_one_line(sensor):
    with pytest.raises(UsageError, match="task 't': table: "):
        sensor(table="d")
    with pytest.raises(
        UsageError, match="task 't': deferrable frees the worker by itself; leave out mode='reschedule'"
    ):
        sensor(deferrable=True, mode="reschedule")
    task = sensor(table="{{ params.table }}")
    task.table = "d"
    with pytest.raises(exceptions("AirflowFailException"), match="table: "):
        task.poke({})
