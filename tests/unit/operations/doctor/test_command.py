"""The command as an operator types it, and the function, where no Spark is started."""

import json
from pathlib import Path
from typing import Any

import pytest

import icekeep
from icekeep import cli
from icekeep.errors import UsageError
from icekeep.operations import process_run
from icekeep.operations.doctor import driver, examination
from kit.lake import Lake
from kit.memory_catalog import MemoryCatalog


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    # Another test of this process may have a session.
    monkeypatch.setattr(examination, "_has_executors", lambda _, executors: executors)
    monkeypatch.setattr(driver, "checked_java", lambda _: "17.0.1")
    monkeypatch.setattr(examination, "_configured_memory", lambda: "enough")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    write_conf(tmp_path, local=lake.properties)
    return lake


def write_conf(directory: Path, **catalogs: dict[str, str]) -> None:
    (directory / "conf").mkdir(exist_ok=True)
    (directory / "conf" / "icekeep.yaml").write_text(json.dumps({"catalogs": catalogs}))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status = cli.main(["doctor", *words, "--output", "json"])
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return status, json.loads(out)


def unwell(document: Any) -> list[tuple[str, str, str]]:
    found = document["result"]["findings"]
    return [(one["about"], one["check"], one["status"]) for one in found if one["status"] != "ok"]


NO_EXECUTORS = ("executors", "session", "not-tried")


@pytest.mark.slow
def test_a_local_catalog_that_is_well_is_exit_status_0(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(lake.directory.rglob("*"))
    status, document = run(capsys, "--namespace", "db")
    assert (status, unwell(document)) == (0, [NO_EXECUTORS])
    assert {*document} == {
        *(
            "schema_version",
            "job",
            "run_id",
            "version",
            "arguments",
            "started_ms",
            "ended_ms",
            "dry_run",
            "status",
            "result",
        )
    }
    assert (document["job"], document["status"]) == ("doctor", "ok")
    assert {*document["result"]} == {"status", "findings", "elapsed_ms"}
    assert set(lake.directory.rglob("*")) == before


@pytest.mark.slow
def test_for_people_each_thing_is_a_line(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--catalog", "local"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "doctor: ok"
    (commit,) = [line for line in lines if "give --namespace" in line]
    assert commit.split()[:4] == ["catalog", "local", "commit", "not-tried"]


def test_unconfigured_catalog_is_one_finding_among_others(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = run(capsys, "--catalog", "lcoal")
    assert (status, document["status"]) == (2, "wrong")
    assert unwell(document) == [("catalogs", "configuration", "wrong"), NO_EXECUTORS]
    (wrong,) = [one for one in document["result"]["findings"] if one["status"] == "wrong"]
    assert wrong["message"] == "there is no catalog 'lcoal'; did you mean 'local'?"


def test_a_configuration_that_is_wrong_is_a_finding_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = run(capsys, "--config", str(tmp_path / "nope.yaml"))
    assert (status, unwell(document)[0]) == (2, ("catalogs", "configuration", "wrong"))
    write_conf(tmp_path, local={"uri": "sqlite:///x"})
    status, document = run(capsys)
    assert (status, unwell(document)[0]) == (2, ("catalogs", "configuration", "wrong"))


def test_missing_catalogs_are_wrong_and_other_checks_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, document = run(capsys)
    assert (status, unwell(document)) == (2, [("catalogs", "configuration", "wrong"), NO_EXECUTORS])
    told = " ".join(one["message"] for one in document["result"]["findings"])
    assert all(
        way in told for way in ("--config FILE", "ICEKEEP_CONFIG", "conf/icekeep.yaml", "spark.sql.catalog.NAME.*")
    )


def test_a_store_is_tried_without_a_catalog_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = run(capsys, "--location", f"file://{tmp_path}/there")
    assert status == 0
    stores = {one["about"] for one in document["result"]["findings"] if one["about"].startswith("store")}
    assert stores == {f"store file://{tmp_path}/there"}
    assert list(tmp_path.iterdir()) == []


def test_each_catalog_that_is_configured_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = {"type": "sql", "uri": f"sqlite:///{tmp_path}/a.db", "warehouse": f"file://{tmp_path}/a"}
    other = {"type": "filesystem", "warehouse": "file:///proc/nowhere"}
    write_conf(tmp_path, first=one, second=other, third={"type": "sql", "uri": "${NOT_SET}"})
    status, document = run(capsys)
    assert status == 2
    assert [found for found in unwell(document) if found[2] == "wrong"] == [
        ("catalog first", "namespaces", "wrong"),
        ("store file:///proc/nowhere", "put", "wrong"),
        ("catalog third", "settings", "wrong"),
    ]


def test_what_can_be_no_namespace_is_wrong_usage(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["doctor", "--namespace", "a..b", "--output", "json"])
    assert status == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "usage"
    assert cli.main(["doctor", "--namespace", ""]) == 2
    assert "--namespace is empty; give one that exists" in capsys.readouterr().err


def test_unexpected_error_in_check_does_not_hide_others(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(examination, "look_at_catalog", fail)
    status, document = run(capsys)
    assert (status, unwell(document)) == (2, [("catalog local", "all else", "wrong"), NO_EXECUTORS])
    (known,) = [one for one in document["result"]["findings"] if one["about"] == "catalogs"]
    assert known["message"] == "1 configured: local"


def test_spark_that_does_not_start_is_a_finding(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise UsageError("cannot start Spark: there is no Java")

    monkeypatch.setattr("icekeep.planning.spark.session.build_session", fail)
    status, document = run(capsys, "--executors")
    assert (status, unwell(document)[-1]) == (2, ("executors", "session", "wrong"))
    assert document["result"]["findings"][-1]["message"] == "cannot start Spark: there is no Java"


def test_an_answer_that_cannot_be_delivered_says_of_no_change(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise UsageError("disk full")

    monkeypatch.setattr(process_run, "write_result_file", fail)
    assert cli.main(["doctor", "--result-file", str(lake.directory / "r.json")]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "icekeep: disk full (icekeep help undelivered)"


@pytest.mark.slow
def test_the_function_takes_a_name_or_a_catalog(lake: Lake) -> None:
    by_name = icekeep.doctor("local", namespace="db")
    by_catalog = icekeep.doctor(lake.catalog, namespace=("db",))
    assert {by_name.status, by_catalog.status} == {"ok"}
    # Only a configuration says where runs are written down.
    assert [one.check for one in by_name.findings if one.check != "record of runs"] == [
        one.check for one in by_catalog.findings
    ]
    assert len(by_name.findings) == len(by_catalog.findings) + 1
    by_file = icekeep.doctor(conf=str(lake.directory / "conf" / "icekeep.yaml"), namespace="db")
    assert [one.check for one in by_file.findings] == [one.check for one in by_name.findings]


def test_the_function_raises_for_nothing_that_it_finds() -> None:
    catalog = MemoryCatalog()
    catalog.storage = None  # type: ignore[assignment]
    result = icekeep.doctor(catalog)
    assert result.status == "wrong"
    assert icekeep.doctor("nope").status == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs", "status", "said"),
    [
        ("{}", "ok", "warehouse.icekeep-runs.db; there is none yet"),
        ("{enabled: false}", "not-tried", "runs are not written down; give `runs: {uri: ...}`"),
        ("{uri: 'sqlite:nonsense'}", "wrong", "configuration key 'runs.uri': cannot be understood"),
    ],
)
def test_it_says_where_runs_are_written_down(
    lake: Lake, capsys: pytest.CaptureFixture[str], runs: str, status: str, said: str
) -> None:
    catalogs = json.dumps({"local": lake.properties})
    Path("conf/icekeep.yaml").write_text(f"catalogs: {catalogs}\nruns: {runs}\n")
    [found] = [one for one in run(capsys)[1]["result"]["findings"] if one["check"] == "record of runs"]
    assert (found["about"], found["status"]) == ("catalog local", status)
    assert said in found["message"]


# urllib3, which apprise imports, binds a socket to see whether there is IPv6.
@pytest.mark.server
def test_notification_addresses_are_checked_and_nothing_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLACK", "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ")
    urls = ("${SLACK}", "${NOT_SET}", "slack://abc", "json://example.com/S3cretPart")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "icekeep.yaml").write_text(json.dumps({"notifications": [{"url": one} for one in urls]}))
    status, document = run(capsys)
    assert status == 2
    found = [one for one in document["result"]["findings"] if one["about"] == "notifications"]
    assert [(one["check"], one["status"], one["message"].partition(";")[0].partition(",")[0]) for one in found] == [
        ("${SLACK}", "ok", "the address is well formed"),
        ("${NOT_SET}", "wrong", "configuration key 'notifications[1].url': refers to environment variable 'NOT_SET'"),
        ("slack://******", "wrong", "apprise does not know this kind of address"),
        ("json://******", "ok", "the address is well formed"),
    ]
    assert "S3cretPart" not in json.dumps(document)
