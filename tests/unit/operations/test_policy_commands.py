"""`icekeep policy explain` and `icekeep policy check`, as an operator types them, on real tables without data."""

import json

import msgspec
import pyarrow as pa
import pytest

from icekeep import cli
from icekeep.catalog.open import open_catalog
from icekeep.errors import NotFoundError
from icekeep.operations.commands.policy import check_policies, explain_policies
from icekeep.operations.loading import load_catalog
from icekeep.tables.verbs import create_table
from kit.runtime import FakeRuntime

pytestmark = pytest.mark.slow

RULES = """
defaults: {schedule: '@daily', mode: observe, jobs: {compact: {options: {min-input-files: 5}}}}
policies:
- name: sales
  match: local.sales.*
  except: [local.**.tmp_*]
  window: {from: 22:00, to: 06:00, zone: Europe/Berlin}
  jobs: {compact: {when: {small_files_over: 100}, options: {min-input-files: 2}}}
- name: rest
  match: local.s*.**
  jobs: {compact: , expire_snapshots: {older_than: 7d}, check: {enabled: false}}
namespaces: {local.sales: {mode: run}}
tables: {local.sales.orders: {jobs: {compact: {options: {min-input-files: 9}}}}}
"""
TABLES = {
    ("sales", "orders"): {"icekeep.expire_snapshots.retain_last": "3", "icekeep.remove_orphan_files.older_than": "9d"},
    ("sales", "returns"): {"icekeep.compact.wher": "x"},
    ("sales", "tmp_1"): {"icekeep.enabled": "false"},
    ("stock", "items"): {},
    ("web", "clicks"): {},
}
NEVER = "switched off by {file}: policies[1].jobs.check.enabled"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lake")
    properties = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": str(directory / "warehouse")}
    catalog = open_catalog("local", properties)
    for table, own in TABLES.items():
        catalog.create_namespace(table[:-1], exists_ok=True)
        create_table(catalog, table, pa.schema([("id", pa.int64())]), properties=own)
    (directory / "catalogs.json").write_text(json.dumps({"local": properties}))
    return directory


@pytest.fixture
def run(directory, capsys, monkeypatch):
    """Runs a command with rules and gives its exit status, and its one JSON object."""
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(directory)
    monkeypatch.setenv("HOME", str(directory))

    def run_command(*words, rules=RULES, catalogs="{}"):
        known = {**json.loads((directory / "catalogs.json").read_text()), **json.loads(catalogs)}
        (directory / "my.yaml").write_text(f"catalogs: {json.dumps(known)}\n{rules}")
        status = cli.main(["policy", *words, "--config", "my.yaml", "--output", "json"], runtime=FakeRuntime())
        return status, json.loads(capsys.readouterr().out)

    return run_command


def explained(run, table, **others):
    status, answer = run("explain", "--table", table, **others)
    assert (status, answer["status"], answer["job"]) == (0, "done", "policy explain")
    return answer["result"]


def jobs_of(result):
    return {
        job["job"]: (
            job["policy"],
            job["in_place_of"],
            job["state"],
            (job["held_because"] or "").replace("my.yaml", "{file}"),
        )
        for job in result["jobs"]
    }


def test_explain_shows_deciding_policy_and_command_per_job(run):
    found = explained(run, "local.sales.orders")
    assert (found["table"], found["policies"]) == ("local.sales.orders", ["sales", "rest"])
    assert jobs_of(found) == {
        "compact": ("sales", ["rest"], "runs", ""),
        "expire_snapshots": ("rest", [], "runs", ""),
        "check": ("rest", [], "held", NEVER),
    }
    compact, expire, _ = found["jobs"]
    assert compact["command"] == (
        "icekeep compact --table local.sales.orders --option=min-input-files=9 --config my.yaml"
    )
    assert (compact["conditions"], compact["window"]) == (["small_files_over 100"], "22:00 to 06:00 Europe/Berlin")
    assert (expire["conditions"], expire["window"], expire["is_open"]) == ([], None, True)
    assert expire["command"] == (
        "icekeep expire_snapshots --table local.sales.orders --older-than=7d --retain-last=3 --config my.yaml"
    )


def test_explain_shows_source_of_value_and_what_it_overrides(run):
    found = explained(run, "local.sales.orders")
    values = {(v["policy"], v["job"], v["key"]): (v["value"], v["source"], v["overridden"]) for v in found["values"]}
    assert values["sales", "compact", "options.min-input-files"] == (
        "9",
        "my.yaml: tables.local.sales.orders.jobs.compact.options.min-input-files",
        [
            "2 (my.yaml: policies[0].jobs.compact.options.min-input-files)",
            "5 (my.yaml: defaults.jobs.compact.options.min-input-files)",
        ],
    )
    assert values["rest", "all", "mode"] == (
        "run",
        "my.yaml: namespaces.local.sales.mode",
        ["observe (my.yaml: defaults.mode)"],
    )
    assert values["rest", "expire_snapshots", "retain_last"] == (
        "3",
        "table property icekeep.expire_snapshots.retain_last",
        [],
    )
    assert values["sales", "all", "schedule"] == ("@daily", "my.yaml: defaults.schedule", [])
    assert ("rest", "all", "window") not in values
    assert found["without_effect"] == [
        {"job": "remove_orphan_files", "value": "9d", "source": "table property icekeep.remove_orphan_files.older_than"}
    ]


def test_explain_says_that_no_policy_reaches_table(run, capsys):
    run("explain", "--table", "local.sales.orders")
    no_rules = "policies: [{name: n, schedule: null, match: local.nope.*, jobs: {compact: }}]"
    assert explained(run, "local.sales.orders", rules=no_rules)["policies"] == []
    assert cli.main(["policy", "explain", "--table", "local.sales.orders", "--config", "my.yaml"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "policy explain: done"
    assert out[1].split() == ["table", "local.sales.orders"]
    assert out[2].split(maxsplit=1) == ["policies", "no policy reaches it"]


def test_where_only_is_observed_the_command_says_so(run):
    found = explained(run, "local.stock.items")
    assert jobs_of(found)["expire_snapshots"] == ("rest", [], "observes", "")
    assert found["jobs"][1]["command"].endswith("--older-than=7d --dry-run --config my.yaml")


def test_a_table_s_owner_switches_everything_off(run):
    off = "switched off by table property icekeep.enabled"
    assert {job[3] for job in jobs_of(explained(run, "local.sales.tmp_1")).values()} == {off}


def test_invalid_property_holds_its_job_and_is_shown(run):
    found = explained(run, "local.sales.returns")
    assert jobs_of(found)["compact"] == ("sales", ["rest"], "held", "the table's properties cannot be read")
    assert jobs_of(found)["expire_snapshots"][2] == "runs"
    assert [(one["job"], one["source"], one["holds"]) for one in found["problems"]] == [
        ("compact", "table property icekeep.compact.wher", True)
    ]


def test_a_table_that_no_policy_reaches_has_no_jobs(run):
    found = explained(run, "local.web.clicks")
    assert (found["policies"], found["jobs"], found["values"]) == ([], [], [])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("explain", "--table", "local.sales.nothing"), "there is no table 'sales.nothing' in catalog 'local'"),
        (("explain", "--table", "sales.orders", "--catalog", "prod"), "there is no catalog 'prod'; there is local"),
        (("explain",), "the following arguments are required: --table; see icekeep policy explain --help"),
        (("check", "--catalog", "prod"), "there is no catalog 'prod'; there is local"),
        (("check", "--table", "local.sales.orders"), "unrecognized arguments: --table local.sales.orders"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_status_2(run, words, complaint):
    status, answer = run(*words)
    assert status == 2
    assert complaint in answer["error"]["message"]


@pytest.mark.parametrize("table", TABLES)
def test_python_is_told_of_a_table_what_the_command_tells(run, directory, table):
    # Whether a window is open is a question of the time, and the command has another clock here.
    always = RULES.replace("  window: {from: 22:00, to: 06:00, zone: Europe/Berlin}\n", "")
    assert always != RULES
    told = explained(run, ".".join(("local", *table)), rules=always)
    loaded = load_catalog("local", conf="my.yaml").load(table)
    assert json.loads(msgspec.json.encode(explain_policies(loaded, conf="my.yaml"))) == told


@pytest.mark.parametrize(
    "rules", [RULES, "policies: [{name: p, schedule: null, match: local.*.nothing, jobs: {check: }}]"]
)
def test_python_checks_what_the_command_checks(run, rules):
    _, answer = run("check", rules=rules)
    found = check_policies(conf="my.yaml")
    assert found == check_policies("local", conf="my.yaml")
    assert json.loads(msgspec.json.encode(found)) == answer["result"]
    assert found.to_dict()["status"] == answer["status"]


def test_python_needs_a_file_and_a_catalog_that_is_in_it(run, directory):
    run("check")
    loaded = load_catalog("local", conf="my.yaml").load(("web", "clicks"))
    with pytest.raises(NotFoundError, match="there is no catalog 'other'"):
        check_policies("other", conf="my.yaml")
    for function in (check_policies, lambda **conf: explain_policies(loaded, **conf)):
        with pytest.raises(NotFoundError, match="there is no configuration"):
            function()
        with pytest.raises(NotFoundError, match=r"nothing\.yaml"):
            function(conf="nothing.yaml")


def test_without_a_file_there_are_no_policies(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["policy", "check"]) == 2
    assert "there is no configuration (" in (told := capsys.readouterr().err)
    assert "icekeep.yaml), and so there are no policies; make one, or name a file with --config" in told


def test_check_is_done_if_all_tables_and_names_match(run):
    status, answer = run("check")
    result = answer["result"]
    assert (status, answer["status"]) == (0, "done")
    assert (result["tables_count"], result["policies_count"]) == (5, 2)
    assert result["not_reached"] == ["local.web.clicks"]
    assert [(one["table"], one["policies"], one["decides"][0]) for one in result["reached_by_several"]] == [
        (f"local.sales.{name}", ["sales", "rest"], "compact: sales over rest") for name in ("orders", "returns")
    ]
    assert not any(result[key] for key in ("unmatched_patterns", "unknown_names", "wrong_options", "unlisted_catalogs"))


WRONG = """
policies:
- {name: a, schedule: null, match: [local.salse.*, '*.sales.*'], except: ['local.**.old_*'], jobs: {check: }}
- {name: b, schedule: null, tables: [local.stock.itmes], jobs: {compact: {options: {min-input-fils: 2, stitch: maybe}}}}
namespaces: {local.nowhere: {enabled: false}, local.stock: {enabled: true}}
tables: {local.stock.item: {enabled: false}}
"""


def test_unmatched_names_patterns_and_options_are_reported(run):
    status, answer = run("check", rules=WRONG)
    result = answer["result"]
    assert (status, answer["status"]) == (2, "wrong")
    assert [(one["policy"], one["key"], one["pattern"]) for one in result["unmatched_patterns"]] == [
        ("a", "match", "local.salse.*"),
        ("a", "except", "local.**.old_*"),
    ]
    assert [(one["where"], one["name"]) for one in result["unknown_names"]] == [
        ("policy b", "local.stock.itmes"),
        ("tables", "local.stock.item"),
        ("namespaces", "local.nowhere"),
    ]
    assert [one["where"].rpartition(".")[2] for one in result["wrong_options"]] == ["min-input-fils", "stitch"]


def test_job_that_no_schedule_runs_is_reported_as_wrong(run):
    rules = """
policies:
- {name: hand, schedule: null, match: local.sales.*, jobs: {compact: }}
- {name: night, schedule: '@daily', match: local.**, jobs: {compact: , check: }}
tables: {local.sales.tmp_1: {enabled: false}}
"""
    status, answer = run("check", rules=rules)
    assert (status, answer["status"]) == (2, "wrong")
    assert answer["result"]["never_run"] == [
        {
            "job": "compact",
            "policy": "night",
            "decided_by": "hand",
            "tables": ["local.sales.orders", "local.sales.returns"],
        }
    ]


def test_unlistable_catalog_is_reported_without_its_tables(run):
    uri = "postgresql://nobody@127.0.0.1:9/x"
    gone = json.dumps({"gone": {"type": "sql", "uri": uri, "warehouse": "/tmp/w"}})
    rules = """
policies:
- {name: a, schedule: null, match: ['local.**', 'gone.b.*', '**.zzz'], tables: [gone.a.t], jobs: {check: }}
"""
    status, answer = run("check", rules=rules, catalogs=gone)
    result = answer["result"]
    assert (status, answer["status"], result["tables_count"]) == (75, "unavailable", 5)
    assert [one["where"] for one in result["unlisted_catalogs"]] == ["gone"]
    assert (result["unmatched_patterns"], result["unknown_names"]) == ([], [])
    status, answer = run("check", "--catalog", "local", rules=rules, catalogs=gone)
    assert (status, [one["pattern"] for one in answer["result"]["unmatched_patterns"]]) == (2, ["**.zzz"])


def test_a_catalog_that_is_named_and_not_configured_is_told(run):
    rules = "policies:\n- {name: a, schedule: null, match: prod.**, jobs: {check: }}\n"
    status, answer = run("check", rules=rules)
    assert (status, answer["status"], answer["result"]["unlisted_catalogs"][0]["where"]) == (2, "wrong", "prod")
    assert "there is no catalog 'prod'" in answer["result"]["unlisted_catalogs"][0]["problem"]


def test_misconfigured_catalog_is_wrong_not_unavailable(run):
    gone = json.dumps({"gone": {"type": "sql", "uri": "sqlite:///none.db", "warehouse": "/tmp/w"}})
    status, answer = run("check", catalogs=gone)
    [told] = answer["result"]["unlisted_catalogs"]
    assert (status, answer["status"], told["where"]) == (2, "wrong", "gone")
    assert "'catalogs.gone.uri': there is no file" in told["problem"]
    assert told["problem"].endswith("(my.yaml, line 1)")
