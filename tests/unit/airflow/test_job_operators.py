"""The operators of the jobs by an Airflow that schedules nothing."""

import inspect
import sys
from importlib import import_module
from pathlib import Path

import pytest

from icekeep import airflow as door
from icekeep.airflow.installation import Installation
from icekeep.errors import UsageError
from icekeep.operations.arguments import parse_command
from icekeep.operations.jobs import POLICY_JOBS

FAKE_AIRFLOW = Path(__file__).resolve().parents[2] / "kit" / "fake_airflow"
HERE = Installation(conf="/c.yaml", python="/py")


@pytest.fixture
def operators(monkeypatch):
    before = {*sys.modules}
    monkeypatch.syspath_prepend(str(FAKE_AIRFLOW))
    made = import_module("icekeep.airflow.job_operators").OPERATORS
    with import_module("airflow.sdk").DAG(dag_id="d"):
        yield made
    for name in {*sys.modules} - before:
        if name.partition(".")[0] == "airflow" or name.startswith("icekeep.airflow"):
            del sys.modules[name]


def compact(operators, **given):
    return operators["CompactOperator"](**{"task_id": "t", "table": "c.d.t", "installation": HERE, **given})


def test_each_policy_job_has_public_operator(operators):
    assert [made.JOB.name for made in operators.values()] == [*POLICY_JOBS]
    assert {*operators} <= {*dir(door)}
    assert getattr(door, "CheckOperator") is operators["CheckOperator"]  # noqa: B009


def test_signatures_and_docstrings_name_each_setting(operators):
    for made in operators.values():
        parameters = inspect.signature(made).parameters
        for setting in made.JOB.settings:
            assert parameters[setting.argument].default is None
            assert f"    {setting.argument}: " in made.__doc__
            assert setting.argument in made.template_fields
        assert {"table", "task_id", "spark", "dry_run", "installation", "alias"} < parameters.keys()
        assert "table" in made.template_fields


def test_values_are_the_words_of_the_command_line(operators):
    task = compact(
        operators,
        where="id > 1",
        verify=True,
        options={"min-input-files": 3, "partial-progress.enabled": True},
        snapshot_properties={"ticket": "A=B"},
        dry_run=True,
        spark=True,
    )
    [call] = task._all_calls()
    assert (call.job, call.table, call.submit) == ("compact", "c.d.t", True)
    command = parse_command([f"--table={call.table}", *call.arguments], call.job, 0)
    assert command.dry_run
    assert command.arguments == {
        "where": "id > 1",
        "verify": True,
        "options": {"min-input-files": "3", "partial-progress.enabled": "true"},
        "snapshot_properties": {"ticket": "A=B"},
    }


def test_lists_are_one_argument_and_a_switch_that_is_off_is_none(operators):
    made = operators["ExpireSnapshotsOperator"]
    task = made(task_id="t", table="c.d.t", installation=HERE, snapshot_ids=[1, 2**62], stream_results=False)
    assert task._all_calls()[0].arguments == (f"--snapshot-ids=1,{2**62}",)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"table": "d"}, "task 't': table: "),
        ({"where": "id >"}, "task 't': where: cannot read the filter"),
        ({"where": ""}, "task 't': where: is empty"),
        ({"verify": "maybe"}, "task 't': verify: 'maybe' is neither true nor false"),
        ({"options": "a=b"}, "task 't': options: 'a=b' is not a mapping"),
        ({"options": {"min-input-file": 1}}, "task 't': options: there is no option 'min-input-file'; did you mean"),
        ({"deferable": True}, "task 't': there is no argument 'deferable'; did you mean 'deferrable'?"),
        ({"wher": "x"}, "task 't': there is no argument 'wher'; did you mean 'where'?"),
    ],
)
def test_wrong_value_is_refused_at_parse_in_one_line(operators, given, line):
    with pytest.raises(UsageError) as caught:
        compact(operators, **given)
    assert caught.value.message.startswith(line)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("spark", [False, True])
def test_each_may_be_deferred_though_only_some_modes_are(operators, spark):
    """A word in `default_args` is for all tasks of a DAG."""
    assert compact(operators, spark=spark, deferrable=True).deferrable
    assert not compact(operators, spark=spark).deferrable


def test_templates_are_looked_at_when_they_are_rendered(operators):
    task = compact(operators, table="{{ params.table }}", where="{{ params.where }}", options={"{{ a }}": "b"})
    task.table, task.where, task.options = "c.d.t", "id >", {}
    with pytest.raises(import_module("airflow.sdk.exceptions").AirflowFailException, match="where: cannot read"):
        task._all_calls()


def test_installation_follows_from_worker_variables(operators, monkeypatch):
    for name in ("HOME", "RESULTS", "PYTHON"):
        monkeypatch.delenv(f"ICEKEEP_{name}", raising=False)
    monkeypatch.setenv("ICEKEEP_CONFIG", "/my.yaml")
    task = operators["CheckOperator"](task_id="t", table="c.d.t")
    assert task.installation == Installation(conf="/my.yaml", python=sys.executable)
