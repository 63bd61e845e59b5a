"""The command `report`: its words, its output, its exit statuses, over one catalog and several."""

import json
import subprocess
import sys
import webbrowser

import pytest

from icekeep import cli
from icekeep.catalog.open import open_catalog
from icekeep.events import SILENT
from icekeep.operations.commands.report import open_in_browser
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunRecord
from icekeep.tables.verbs import append, create_table
from kit.browser import Page
from kit.lake import SCHEMA, Lake, events

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _world(monkeypatch):
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def conf(tmp_path):
    """Two catalogs of a table each, and one that is out of reach."""
    lines = ["catalogs:"]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        lake = Lake(tmp_path / name)
        # A database may hold several catalogs, told apart by their names.
        catalog = open_catalog(name, lake.properties)
        catalog.create_namespace(("db",), exists_ok=True)
        append(create_table(catalog, ("db", name), SCHEMA), [events(1)])
        lines += [f"  {name}:", *(f"    {key}: {json.dumps(value)}" for key, value in lake.properties.items())]
    path = tmp_path / "icekeep.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def run(conf, capsys):
    def run_command(*words):
        status = cli.main(["report", *words, "--config", str(conf)])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run_command


def test_all_configured_catalogs_are_told_and_one_is_by_its_name(run):
    status, out, _ = run("--output", "json")
    document = json.loads(out)
    assert (status, document["job"], document["status"]) == (0, "report", "done")
    assert [one["table"] for one in document["result"]["tables"]] == ["one.db.one", "two.db.two"]
    status, out, _ = run("--catalog", "two", "--output", "json")
    assert [one["table"] for one in json.loads(out)["result"]["tables"]] == ["two.db.two"]


@pytest.mark.parametrize(
    "words",
    [
        ["--table", "two.db.two"],
        ["--table", "db.two", "--catalog", "two"],
        ["--match", "two.db.*"],
        ["--match", "two.**"],
        ["--match", "*.two"],
    ],
)
def test_one_table_is_told_by_its_name(run, words):
    status, out, _ = run(*words)
    assert status == 0
    assert "two.db.two" in out
    assert "one.db.one" not in out


def test_one_catalog_out_of_reach_does_not_stop_the_others(run, conf):
    conf.write_text(
        conf.read_text() + "  away:\n    type: sql\n    uri: postgresql://nobody@127.0.0.1:9/x\n    warehouse: /tmp/x\n"
    )
    status, out, _ = run("--output", "json")
    document = json.loads(out)
    assert (status, document["status"], len(document["result"]["tables"])) == (3, "partial", 2)
    [unread] = document["result"]["not_read"]
    assert unread["name"] == "away.*"
    status, out, err = run("--catalog", "away")
    assert status == 75
    assert out == ""
    assert len([line for line in err.splitlines() if line.startswith("icekeep: ")]) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--table", "one.db.one", "--match", "db.*"], "--table and --match both say which tables"),
        (["--match", "db"], "'db' can match no table"),
        (["--match", "nope.*"], "'nope.*' matches no table of one, two; `icekeep report --config "),
        (["--match", "one.nope.*"], "'one.nope.*' matches no table of one; `icekeep report --catalog one --config "),
        (
            ["--match", "nope.*", "--catalog", "two"],
            "'nope.*' matches no table of two; `icekeep report --catalog two --config ",
        ),
        (
            ["--match", "one.db.*", "--catalog", "one"],
            "'one.db.*' matches no table of one; beside --catalog a pattern is over NAMESPACE.TABLE",
        ),
        (["--match", "twoo.db.*"], "matches no table of one, two; there is no catalog 'twoo'; did you mean 'two'?"),
        (["--table", "twoo.db.t"], "there is no catalog 'twoo'; did you mean 'two'?"),
        (["--catalog", "three"], "there is no catalog 'three'; there is one, two"),
        (["--table", "one.db.nothing"], "there is no table 'db.nothing'"),
        (["--table", "nothing"], "'nothing' cannot be a table"),
        (["--output", "xml"], "invalid choice: 'xml'"),
        (["--dry-run"], "unrecognized arguments: --dry-run"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_status_2(run, words, line):
    status, _, err = run(*words)
    assert status == 2
    [told] = [each for each in err.splitlines() if each.startswith("icekeep: ")]
    assert line in told


def test_a_catalog_without_tables_is_told_with_where_to_look(run, conf):
    """The name of a catalog in a shared database may be mistyped: all its tables are there, under another."""
    status, _, err = run()
    assert (status, "has no table" in err) == (0, False)
    conf.write_text(conf.read_text().replace("  two:", "  tow:"))
    status, _, err = run()
    assert status == 0
    [told] = [line for line in err.splitlines() if "has no table" in line]
    assert told.endswith(
        "catalog 'tow' has no table; where there should be some, look at its name and address: "
        f"icekeep doctor --catalog tow --config {conf}"
    )


def test_metrics_go_to_stdout_alone_and_json_to_the_result_file(run, tmp_path):
    status, out, _ = run("--output", "prometheus", "--result-file", str(tmp_path / "r.json"))
    assert status == 0
    assert 'icekeep_table_score{catalog="one",namespace="db",table="one.db.one"} 100.0' in out.splitlines()
    assert all(line.startswith(("#", "icekeep_")) for line in out.splitlines())
    assert json.loads((tmp_path / "r.json").read_text())["status"] == "done"


def test_an_error_with_metrics_leaves_stdout_empty(run):
    status, out, _ = run("--output", "prometheus", "--catalog", "three")
    assert (status, out) == (2, "")


@pytest.mark.parametrize("command", ["compact", "history", "doctor"])
def test_other_commands_have_no_metrics(conf, capsys, command):
    words = [] if command == "doctor" else ["--table", "one.db.one"]
    assert cli.main([command, *words, "--config", str(conf), "--output", "prometheus"]) == 2
    assert "invalid choice: 'prometheus'" in capsys.readouterr().err


def test_prices_of_the_configuration_make_costs(run, conf):
    conf.write_text(conf.read_text() + "prices:\n  million_requests: 1000000\n  currency: EUR\n")
    _, out, _ = run("--output", "json")
    result = json.loads(out)["result"]
    assert result["currency"] == "EUR"
    jobs = [job for one in result["tables"] for job in one["jobs"]]
    assert all(job["cost"] == job["requests_count"] for job in jobs)


def test_page_goes_to_stdout_and_json_to_result_file(run, tmp_path):
    status, out, _ = run("--output", "html", "--result-file", str(tmp_path / "r.json"))
    assert status == 0
    assert out.startswith("<!doctype html>")
    assert out.rstrip().endswith("</html>")
    assert "one.<wbr>db.<wbr>one" in out
    document = json.loads((tmp_path / "r.json").read_text())
    assert [one["table"] for one in document["result"]["histories"]] == ["one.db.one", "two.db.two"]


def test_of_one_table_a_page_has_the_history_too(run):
    status, out, _ = run("--output", "html", "--table", "one.db.one")
    assert status == 0
    assert "Bytes of metadata" not in out
    assert "two.<wbr>db" not in out


def test_a_page_without_its_packages_is_refused_before_the_work(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr("icekeep.operations.commands.report.report", pytest.fail)
    status, out, err = run("--output", "html")
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        "icekeep: package 'jinja2' is not installed; icekeep[report] brings it (how to install it: docs/install.md)"
    ]


def written_down(tmp_path, **fields):
    """A run of a job on the first table, beside the warehouse of its catalog."""
    records = RunRecords.at(f"sqlite:///{tmp_path}/one/warehouse.icekeep-runs.db")
    told = {"run_id": "expire_snapshots-1", "job": "expire_snapshots", "table": "one.db.one", "status": "done"}
    times = {"started_ms": 1_790_000_000_000, "ended_ms": 1_790_000_600_000, "seen_ms": 1_790_000_600_000}
    records.end(RunRecord(**{**told, **times, "result": {"deleted_data_files_count": 7}, **fields}))


def test_runs_that_are_written_down_are_on_the_page(run, tmp_path):
    written_down(tmp_path)
    written_down(tmp_path, run_id="other", table="one.db.elsewhere")
    status, out, _ = run("--output", "html", "--catalog", "one", "--result-file", str(tmp_path / "r.json"))
    assert status == 0
    page = Page(out)
    for words in ("expire snapshots", "in 10.0 min", "deleted data files 7"):
        assert words in page.text
    [history] = json.loads((tmp_path / "r.json").read_text())["result"]["histories"]
    assert [one["run_id"] for one in history["runs"]] == ["expire_snapshots-1"]


def test_a_record_that_cannot_be_read_is_a_warning(run, tmp_path):
    (tmp_path / "one" / "warehouse.icekeep-runs.db").write_text("no database" * 100)
    status, out, err = run("--output", "html", "--table", "one.db.one")
    assert status == 0
    assert "one.<wbr>db.<wbr>one" in out
    assert len([line for line in err.splitlines() if "the record of runs is not read" in line]) == 1


def test_a_page_is_written_beside_what_the_terminal_shows(run, tmp_path):
    written_down(tmp_path)
    status, out, _ = run("--page", str(tmp_path / "page.html"))
    assert status == 0
    assert out.startswith("report: done")
    page = Page((tmp_path / "page.html").read_text())
    for words in ("one.db.one", "two.db.two", "deleted data files 7"):
        assert words in page.text


def test_a_browser_is_asked_to_show_the_page(run, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(webbrowser, "get", lambda: None)
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: started.append(words))
    monkeypatch.chdir(tmp_path)
    assert run("--page", "page.html", "--open")[0] == 0
    assert started == [[sys.executable, "-I", "-m", "webbrowser", (tmp_path / "page.html").as_uri()]]


def test_where_there_is_no_browser_a_line_says_where_the_page_is(run, tmp_path, monkeypatch):
    def none():
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    page = tmp_path / "page.html"
    status, _, err = run("--page", str(page), "--open")
    assert status == 0
    assert page.exists()
    assert len([line for line in err.splitlines() if f"there is no browser that could show {str(page)!r}" in line]) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--open"], "--open shows the page that --page FILE writes; give both"),
        (
            ["--since", "nowhere.json"],
            "cannot read earlier report 'nowhere.json': no such file or directory; `icekeep report ",
        ),
        (["--page", "nowhere/page.html"], "cannot write page 'nowhere/page.html': there is no directory"),
    ],
)
def test_a_page_that_cannot_be_is_refused_before_the_work(run, monkeypatch, words, line):
    monkeypatch.setattr("icekeep.operations.commands.report.report", pytest.fail)
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    [told] = err.splitlines()
    assert told.startswith(f"icekeep: {line}")


def test_a_page_in_a_file_needs_its_packages_too(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr("icekeep.operations.commands.report.report", pytest.fail)
    status, _, err = run("--page", str(tmp_path / "page.html"))
    assert status == 2
    assert "package 'jinja2' is not installed" in err


def test_earlier_report_is_compared_with_current_tables(run, conf, tmp_path):
    earlier = str(tmp_path / "earlier.json")
    assert run("--result-file", earlier)[0] == 0
    two = open_catalog("two", Lake(tmp_path / "two").properties)
    append(two.load(("db", "two")), [events(2)])
    status, out, _ = run("--since", earlier, "--page", str(tmp_path / "page.html"))
    assert status == 0
    assert ": 1 of 2 tables changed" in out
    assert "1 -> 2" in out
    assert "1 of 2 tables changed" in Page((tmp_path / "page.html").read_text()).text
    _, out, _ = run("--since", earlier, "--output", "json")
    other, one = json.loads(out)["result"]["since"]["tables"]
    assert (one["table"], one["state"]) == ("one.db.one", "same")
    assert (other["before"]["data_files_count"], other["after"]["data_files_count"]) == (1, 2)
    # What it printed is an earlier report too, and one with another before it.
    (tmp_path / "printed.json").write_text(out)
    _, out, _ = run("--since", str(tmp_path / "printed.json"), "--table", "two.db.two", "--output", "json")
    assert [table["state"] for table in json.loads(out)["result"]["since"]["tables"]] == ["same"]


@pytest.mark.process
def test_browser_start_runs_no_file_of_current_directory(tmp_path, monkeypatch):
    (tmp_path / "webbrowser.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BROWSER", "true")
    monkeypatch.setattr(webbrowser, "get", lambda: None)
    started, begin = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **how: started.append(begin(*words, **how)))
    assert open_in_browser(tmp_path / "page.html", SILENT)
    started[0].wait(60)
    assert not (tmp_path / "ran").exists()
