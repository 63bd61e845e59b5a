"""Catalogs from connections of Airflow, by one that has none."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from icekeep.airflow.installation import Installation
from icekeep.errors import UsageError
from icekeep.operations.configuration.documents import with_mapping
from icekeep.operations.configuration.file import read_config

FAKE_AIRFLOW = Path(__file__).resolve().parents[2] / "kit" / "fake_airflow"
SECRET = "p\"w'${X}: #"
HERE = Installation(conf=None, python="/py")


class Connection(msgspec.Struct):
    schema: str | None = "prod"
    host: str | None = None
    login: str | None = None
    password: str | None = None
    extra: str | None = None


@pytest.fixture
def airflow(monkeypatch):
    before = {*sys.modules}
    monkeypatch.syspath_prepend(str(FAKE_AIRFLOW))
    yield import_module("icekeep.airflow.connections")
    for name in {*sys.modules} - before:
        if name.partition(".")[0] == "airflow" or name.startswith("icekeep.airflow"):
            del sys.modules[name]


@pytest.fixture
def describe(airflow, monkeypatch):
    def is_described(**fields):
        found = Connection(**{"extra": '{"type": "rest"}', **fields})
        monkeypatch.setattr(airflow.BaseHook, "get_connection", staticmethod(lambda _: found))

    return is_described


def test_fields_are_properties_of_the_catalog(airflow, describe):
    describe(host="https://c", login="me", password="pw", extra='{"type": "rest", "a": true, "n": 5}')
    assert airflow.IcekeepHook("c").get_conn() == (
        "prod",
        {"type": "rest", "a": "true", "n": "5", "uri": "https://c", "credential": "me:pw"},
    )
    describe(password="t")
    assert airflow.IcekeepHook("c").get_conn()[1]["token"] == "t"


def test_airflow_masks_what_is_secret(airflow, describe):
    describe(password=SECRET, extra='{"type": "rest", "s3.secret-access-key": "k", "warehouse": "w"}')
    airflow.IcekeepHook("c").get_conn()
    assert {*import_module("airflow.sdk.log").masked} == {SECRET, "k"}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"schema": None}, "connection 'c': the field Catalog (schema) is no catalog's name"),
        ({"extra": None}, "connection 'c': extra has no \"type\""),
        ({"extra": '{"token": "hidden'}, "connection 'c': extra is not JSON"),
        ({"extra": '["hidden"]'}, "connection 'c': extra is no JSON object"),
        ({"extra": '{"type": "rest", "a": ["hidden"]}'}, "connection 'c': property 'a' of extra is neither"),
        ({"login": "hidden"}, "connection 'c': there is a login and no password"),
        ({"password": "p", "extra": '{"type": "rest", "token": "hidden"}'}, "connection 'c': property 'token' is given twice"),
    ],
)  # fmt: skip
def test_connection_error_is_one_line_without_values(airflow, describe, fields, line):
    describe(**fields)
    with pytest.raises(UsageError) as caught:
        airflow.IcekeepHook("c").get_conn()
    assert caught.value.message.startswith(line)
    assert "hidden" not in caught.value.message
    assert "\n" not in caught.value.message


def test_job_configuration_uses_variables_only_it_sees(airflow, describe):
    describe(password=SECRET, extra=json.dumps({"type": "rest", "s3.region": "eu"}))
    before = dict(os.environ)
    with airflow.connected("c", HERE) as here:
        text = Path(here.conf).read_text()
        assert SECRET not in text
        found = read_config(here.conf).catalogs["prod"].resolved(here.environment(os.environ))
        assert found == {"type": "rest", "s3.region": "eu", "token": SECRET}
    assert not Path(here.conf).exists()
    assert dict(os.environ) == before


def test_policies_and_other_catalogs_stay_unchanged(airflow, describe, tmp_path):
    conf = tmp_path / "my.yaml"
    conf.write_text(
        "catalogs: {other: {type: hive, uri: 'thrift://h:1'}}\n"
        "policies: [{name: n, schedule: 0 2 * * *, match: prod.**, window: {from: 22:00, to: 6:00}, jobs: {compact: }}]\n"
    )
    describe()
    with airflow.connected("c", msgspec.structs.replace(HERE, conf=str(conf))) as here:
        merged = read_config(here.conf)
    assert {*merged.catalogs} == {"other", "prod"}
    [one], [other] = merged.policies, read_config(str(conf)).policies
    assert (one.schedule, one.match, one.layer.keys["window"].value) == (
        other.schedule,
        other.match,
        other.layer.keys["window"].value,
    )


def test_a_catalog_of_the_configuration_is_never_replaced(airflow, describe, tmp_path):
    conf = tmp_path / "my.yaml"
    conf.write_text("catalogs: {prod: {type: hive, uri: 'thrift://h:1'}}\n")
    describe()
    fails = import_module("airflow.sdk.exceptions").AirflowFailException
    with (
        pytest.raises(fails, match=r"catalogs\.prod is in .* too; leave it out of one"),
        airflow.connected("c", msgspec.structs.replace(HERE, conf=str(conf))),
    ):
        pass


def test_without_a_connection_nothing_is_made(airflow):
    with airflow.connected(None, HERE) as here:
        assert here is HERE


def test_a_key_that_is_no_mapping_is_refused(tmp_path):
    (tmp_path / "c.yaml").write_text("catalogs: [a]\n")
    with pytest.raises(UsageError, match="is no mapping"):
        with_mapping(str(tmp_path / "c.yaml"), "catalogs", "prod", {})


def test_all_tasks_of_the_dags_have_the_connection(airflow, tmp_path):
    conf = tmp_path / "my.yaml"
    conf.write_text(
        "policies: [{name: a, schedule: null, match: c.**, jobs: {compact: }},"
        " {name: b, schedule: null, tables: [d.e.t], jobs: {compact: }}]\n"
    )
    made = import_module("icekeep.airflow.factory").dags(conf, icekeep_conn_id="lake")
    tasks = [task for dag in made.values() for task in dag.tasks if hasattr(task, "icekeep_conn_id")]
    assert {task.task_id: task.icekeep_conn_id for task in tasks} == dict.fromkeys(
        ("due", "tables.compact", "d.e.t.compact", "job"), "lake"
    )
