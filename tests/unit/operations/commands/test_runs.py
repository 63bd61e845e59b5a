"""`icekeep runs`, as an operator types it, over runs that are written down in files beside warehouses."""

import json
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from icekeep import cli
from icekeep.errors import NotFoundError, UsageError
from icekeep.operations.commands.runs import list_runs
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import SILENT_MS, RunRecord
from icekeep.runtime import SYSTEM
from kit.fake_jobs import problems

CONFIGURATION = """
catalogs:
  a: {type: sql, uri: 'sqlite:///a.db', warehouse: ./wh-a}
  b: {type: sql, uri: 'sqlite:///b.db', warehouse: ./wh-b}
"""


def record(number, catalog="a", **fields):
    now_ms = SYSTEM.now_ms()
    return RunRecord(
        **{
            "run_id": f"compact-{number}",
            "job": "compact",
            "table": f"{catalog}.db.t",
            "started_ms": now_ms - 60_000 + number,
            "ended_ms": now_ms - 30_000,
            "seen_ms": now_ms - 30_000,
            "status": "done",
            "exit_status": 0,
            "result": {"status": "done"},
            **fields,
        }
    )


@pytest.fixture(autouse=True)
def _world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "conf").mkdir()
    configure(CONFIGURATION)
    own = RunRecords.at("sqlite:///wh-a.icekeep-runs.db")
    for one in (
        record(1),
        record(2, job="check", status="faulty", exit_status=3, table="a.db.u"),
        record(3, status="running", exit_status=None, ended_ms=None),
        record(4, status="running", exit_status=None, ended_ms=None, seen_ms=SYSTEM.now_ms() - 2 * SILENT_MS),
    ):
        own.begin(one)
    other = RunRecords.at("sqlite:///wh-b.icekeep-runs.db")
    other.end(record(5, "b", status="failed", exit_status=75, error_kind="conflict", error_message="another won"))


def configure(text):
    Path("conf/icekeep.yaml").write_text(text)


def runs(capsys, *words):
    status = cli.main(["runs", *words, "--output", "json"])
    document = json.loads(capsys.readouterr().out)
    assert problems(document) == []
    return status, document


def found(capsys, *words):
    status, document = runs(capsys, *words)
    assert status == 0
    return {one["run_id"].removeprefix("compact-"): one["status"] for one in document["result"]["runs"]}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {"5": "failed", "4": "unfinished", "3": "running", "2": "faulty", "1": "done"}),
        ("--catalog b", {"5": "failed"}),
        ("--table a.db.u", {"2": "faulty"}),
        ("--table db.t --catalog a", {"4": "unfinished", "3": "running", "1": "done"}),
        ("--job check", {"2": "faulty"}),
        ("--status unfinished", {"4": "unfinished"}),
        ("--status failed", {"5": "failed"}),
        ("--last 2", {"5": "failed", "4": "unfinished"}),
        ("--since 1d --job check", {"2": "faulty"}),
        ("--since 10s", {}),
        ("--run compact-3", {"3": "running"}),
    ],
)
def test_runs_of_all_catalogs_are_found_the_newest_first(words, expected, capsys):
    assert list(found(capsys, *words.split()).items()) == list(expected.items())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [5, 4, 3, 2, 1]),
        ({"catalog": "b"}, [5]),
        ({"table": "a.db.t", "status": "done"}, [1]),
        ({"job": "check", "since": timedelta(days=1)}, [2]),
        ({"since": timedelta(seconds=10)}, []),
        ({"last": 2}, [5, 4]),
        ({"last": None, "status": "unfinished"}, [4]),
    ],
)
def test_python_lists_the_same_runs_as_values(arguments, expected):
    found = list_runs(**arguments)
    assert [one.run_id for one in found] == [f"compact-{number}" for number in expected]
    assert all(one.to_dict()["table"] in ("a.db.t", "a.db.u", "b.db.t") for one in found)


def test_python_has_the_result_of_one_run_and_no_other():
    assert list_runs(run="compact-1")[0].result == {"status": "done"}
    assert {one.result for one in list_runs()} == {None}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"last": 0}, UsageError),
        ({"job": "compakt"}, UsageError),
        ({"status": "broken"}, UsageError),
        ({"run": "compact-9"}, NotFoundError),
        ({"catalog": "c"}, NotFoundError),
        ({"conf": "nothing.yaml"}, NotFoundError),
    ],
)
def test_python_says_what_is_wrong(arguments, error):
    with pytest.raises(error):
        list_runs(**arguments)


def test_python_lists_more_than_a_page_of_runs():
    own = RunRecords.at("sqlite:///wh-b.icekeep-runs.db")
    for number in range(100, 130):
        own.begin(record(number, "b"))
    assert (len(list_runs("b")), len(list_runs("b", last=None))) == (20, 31)


def test_the_result_is_told_of_one_run(capsys):
    assert runs(capsys, "--run", "compact-1")[1]["result"]["runs"][0]["result"] == {"status": "done"}
    assert {one["result"] for one in runs(capsys)[1]["result"]["runs"]} == {None}


def test_a_run_that_is_not_there_is_exit_status_2(capsys):
    status, document = runs(capsys, "--run", "compact-9")
    assert (status, document["error"]["kind"]) == (2, "not-found")
    assert "there is no run 'compact-9'" in document["error"]["message"]
    assert "; `icekeep runs" in document["error"]["message"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CONFIGURATION + "runs: {enabled: false}", "the configuration has `runs.enabled: false`"),
        ("catalogs: {c: {type: rest, uri: 'http://h'}}", "no catalog has its warehouse in a directory of this machine"),
    ],
)
def test_where_none_is_kept_that_is_said_with_what_to_do(text, reason, capsys):
    configure(text)
    status, document = runs(capsys)
    assert status == 2
    assert reason in document["error"]["message"]
    assert "give `runs: {uri: sqlite:///PATH}`" in document["error"]["message"]


def test_a_record_that_cannot_be_written_to_can_be_read(capsys, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert found(capsys, "--catalog", "b") == {"5": "failed"}


def test_for_people_a_run_is_a_line(capsys):
    assert cli.main(["runs", "--catalog", "b"]) == 0
    out = capsys.readouterr().out
    assert "runs (1)" in out
    line = next(line for line in out.splitlines() if "compact-5" in line)
    assert all(word in line for word in ("b.db.t", "failed", "75", "another won", "30.0 s"))


def test_a_long_error_does_not_make_the_list_wide(capsys):
    cause = "the catalog is out of reach: " + "very " * 100
    failed = record(6, "b", run_id="compact-01234567-89ab-4cde", status="refused", exit_status=4, error_message=cause)
    RunRecords.at("sqlite:///wh-b.icekeep-runs.db").end(failed)
    assert cli.main(["runs", "--catalog", "b", "--status", "refused"]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if "refused" in line)
    assert " compact-01234567 " in line
    assert max(map(len, out.splitlines())) < 220
    assert line.endswith("very ver...")


def test_for_people_a_run_that_failed_is_told_whole_too(capsys):
    assert cli.main(["runs", "--run", "compact-5"]) == 0
    out = capsys.readouterr().out
    assert "error_kind     conflict" in out
    assert "table          b.db.t" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--status dead", "there is no status 'dead'; there is done, partial, sound, faulty, failed, "),
        ("--status refuse", "did you mean 'refused'?"),
        ("--job compcat", "did you mean 'compact'?"),
        ("--job nope", "there is no job or command whose runs are written down 'nope'"),
        ("--job apply", "there is no job or command whose runs are written down 'apply'"),
    ],
)
def test_a_word_that_no_run_can_have_is_an_error(words, said, capsys):
    status, document = runs(capsys, *words.split())
    assert status == 2
    assert said in document["error"]["message"]
    assert len(document["error"]["message"]) < 250


def test_a_place_in_which_nothing_was_written_down_yet_is_named(capsys, tmp_path):
    configure(CONFIGURATION + "runs: {uri: 'sqlite:///typo.db'}\n")
    status, document = runs(capsys)
    assert (status, document["result"]["runs"]) == (0, [])
    note = f"nothing is written down in 'sqlite:///{tmp_path}/typo.db' yet"
    assert document["result"]["notes"] == [note]
    assert cli.main(["runs"]) == 0
    assert note in capsys.readouterr().out


@pytest.mark.server
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_unreachable_records_server_is_named_with_key(capsys, host):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    configure(CONFIGURATION + f"runs: {{uri: 'postgresql://me:s3cret@{host}:{port}/x'}}\n")
    status, document = runs(capsys)
    assert status == 75
    assert document["error"]["message"] == (
        f"the record of runs at 'postgresql://{host}:{port}/x' is out of reach: Connection refused; "
        "`runs.uri` in conf/icekeep.yaml names it"
    )


def test_for_people_one_run_is_all_that_is_known_of_it(capsys):
    assert cli.main(["runs", "--run", "compact-1"]) == 0
    out = capsys.readouterr().out
    assert "run_id         compact-1" in out
    assert "result.status  done" in out
