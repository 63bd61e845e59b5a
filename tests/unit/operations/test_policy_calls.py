"""Jobs in the name of a policy, as a scheduler calls them: real tables without data, and properties that their owners set."""

import json

import pyarrow as pa
import pytest
from msgspec.structs import replace

from icekeep import cli
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import UsageError
from icekeep.operations import policy_calls
from icekeep.operations.arguments import MAPPINGS, parse_command
from icekeep.operations.configuration.setting_values import setting_arguments
from icekeep.operations.jobs import JOBS, POLICY_JOBS
from icekeep.operations.policy_calls import call_values
from icekeep.policies.values import JobCall
from icekeep.runtime import SYSTEM
from icekeep.settings import SettingKind
from icekeep.spec.types import MINUTE_MS
from icekeep.tables.verbs import append, create_table
from kit import fake_jobs
from kit.cases import for_each
from kit.runtime import FakeRuntime

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64())])
RULES = """
policies:
- {name: careful, schedule: '@daily', match: 'local.db.ca*', jobs: {expire_snapshots: {older_than: 0s, retain_last: 3}}}
- {name: crude, schedule: '@daily', tables: [local.db.calm, local.db.t], jobs: {expire_snapshots: {older_than: 0s}}}
- {name: late, schedule: '@daily', match: 'local.db.t', window: {from: 00:00, to: 00:01, days: [DAY]}, jobs: {compact: }}
- {name: both, schedule: null, match: 'local.db.u', jobs: {compact: {options: OPTIONS}}}
namespaces: {local.off: {enabled: false}}
"""
OPTIONS = "{min-input-files: 2, partial-progress.enabled: true}"


@pytest.fixture
def catalog(tmp_path, monkeypatch):
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path / "warehouse")}
    (tmp_path / "my.yaml").write_text(
        f"catalogs: {json.dumps({'local': properties})}\n{RULES.replace('DAY', 'mon').replace('OPTIONS', OPTIONS)}"
    )
    return open_catalog("local", properties)


def table(catalog, name="t", commits=4, **owner):
    made = create_table(
        catalog, ("db", name), SCHEMA, properties={f"icekeep.{key}": value for key, value in owner.items()}
    )
    for number in range(commits):
        made = append(made, pa.table({"id": [number]}, SCHEMA))
    return made


@pytest.fixture
def call(catalog, capsys):
    """Runs a job on `local.db.NAME` in the name of a policy and gives its exit status, and its one JSON object."""
    catalog.create_namespace(("db",))

    def called(job, name, policy, *words, runtime=SYSTEM):
        told = [job, f"--table=local.db.{name}", f"--policy={policy}", "--config=my.yaml", "--output=json", *words]
        status = cli.main(told, runtime=runtime)
        out = capsys.readouterr()
        called.err = out.err
        return status, json.loads(out.out)

    return called


def runs(capsys, name="t"):
    """What the record of runs has of a table."""
    cli.main(["runs", f"--table=local.db.{name}", "--config=my.yaml", "--output=json"])
    return json.loads(capsys.readouterr().out)["result"]["runs"]


def snapshots_count(catalog, name="t"):
    return len(catalog.load(("db", name)).metadata.snapshots)


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        ({"enabled": "false"}, "switched off by table property icekeep.enabled"),
        ({"expire_snapshots.enabled": "false"}, "switched off by table property icekeep.expire_snapshots.enabled"),
        ({"expire_snapshots.older_than": "soon"}, "the table's properties cannot be read"),
    ],
)
def test_what_the_owner_has_switched_off_is_not_begun(catalog, call, owner, said):
    before = table(catalog, **owner)
    status, found = call("expire_snapshots", "t", "crude", "--older-than=0s")
    assert (status, found["status"], found["result"]) == (0, "held", {"held_by": said, "status": "held"})
    assert catalog.load(("db", "t")).metadata_location == before.metadata_location


def test_a_job_that_is_held_is_no_run_of_it(catalog, call, capsys):
    table(catalog, enabled="false")
    call("expire_snapshots", "t", "crude")
    assert runs(capsys) == []


def test_it_is_printed_for_people_too(catalog, call, capsys):
    table(catalog, enabled="false")
    assert cli.main(["check", "--table=local.db.t", "--policy=crude", "--config=my.yaml"]) == 0
    out = capsys.readouterr().out
    assert "check local.db.t: held" in out
    assert "policy 'crude' does not ask for it on this table" in out


def test_where_only_is_to_be_observed_nothing_is_changed(catalog, call, capsys):
    table(catalog, mode="observe")
    status, found = call("expire_snapshots", "t", "crude", "--older-than=0s")
    assert (status, found["status"], found["dry_run"]) == (0, "planned", True)
    assert snapshots_count(catalog) == 4
    assert runs(capsys) == []


def test_current_settings_apply_where_none_are_given(catalog, call):
    """A policy call without arguments takes what the policy and the table say now."""
    table(catalog, **{"expire_snapshots.retain_last": "2"})
    status, found = call("expire_snapshots", "t", "crude")
    assert (status, found["status"], found["policy"]) == (0, "done", "crude")
    assert found["arguments"].keys() == {"older_than", "retain_last"}
    assert snapshots_count(catalog) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--older-than=365d"], "--older-than=0s of it now, and another --older-than was asked for"),
        (["--older-than=365d", "--retain-last=100"], "now, and another --older-than, --retain-last was asked for"),
        (
            ["--retain-last=1"],
            "wants --older-than=0s --retain-last=3 of it now, and another --retain-last was asked",
        ),
    ],
)
def test_given_argument_is_never_replaced_by_policy(catalog, call, capsys, words, said):
    if "--retain-last" in said:
        table(catalog, **{"expire_snapshots.retain_last": "3"})
    else:
        table(catalog)
    status, found = call("expire_snapshots", "t", "crude", *words)
    assert (status, found["status"]) == (0, "held")
    assert said in found["result"]["held_by"]
    assert snapshots_count(catalog) == 4
    assert runs(capsys) == []


@pytest.mark.parametrize(
    ("job", "policy", "words", "flag"),
    [
        ("expire_snapshots", "crude", [f"--approve={'0' * 64}"], "--approve"),
        ("expire_snapshots", "crude", ["--older-than=0s", "--retain-last=9"], "--retain-last"),
        ("compact", "both", ["--branch=audit"], "--branch"),
        ("compact", "both", ["--where=id > 1", "--option=min-input-files=2"], "--where"),
        ("compact", "both", ["--option=rewrite-all=true", "--option=min-input-files=2"], "--option rewrite-all"),
    ],
)
def test_argument_that_policy_does_not_give_is_usage_error(catalog, call, capsys, job, policy, words, flag):
    name = "u" if policy == "both" else "t"
    before = table(catalog, name)
    status, found = call(job, name, policy, *words)
    assert (status, found["error"]["kind"]) == (2, "usage")
    assert found["error"]["message"].startswith(f"policy {policy!r} does not say {flag} of {job} on ")
    assert catalog.load(("db", name)).metadata_location == before.metadata_location
    assert runs(capsys, name) == []


def test_argument_that_policy_gives_too_is_completed(catalog, call):
    table(catalog, "u")
    status, found = call("compact", "u", "both", "--option=min-input-files=2")
    assert (status, found["status"]) == (0, "done")
    assert found["arguments"]["options"] == {"min-input-files": "2", "partial-progress.enabled": "true"}


def test_plan_for_policy_has_given_arguments_or_is_not_written(catalog, call, tmp_path):
    table(catalog)
    plan = tmp_path / "plan.json"
    _, found = call("expire_snapshots", "t", "crude", "--older-than=365d", f"--plan-out={plan}")
    assert (found["status"], plan.exists()) == ("held", False)


def test_ages_count_from_start_despite_slow_catalog(catalog, call, monkeypatch):
    runtime, resolved = FakeRuntime(), policy_calls.resolve_table

    def slowly(*arguments):
        runtime.pass_ms(10 * MINUTE_MS)
        return resolved(*arguments)

    monkeypatch.setattr(policy_calls, "resolve_table", slowly)
    table(catalog)
    assert call("expire_snapshots", "t", "crude", "--older-than=0s", runtime=runtime)[1]["status"] == "done"


def test_a_policy_that_does_not_decide_of_the_job_has_no_say(catalog, call):
    table(catalog, "calm")
    assert call("expire_snapshots", "calm", "crude")[1]["result"]["held_by"] == (
        "policy 'careful' decides of it, and not 'crude'"
    )
    assert call("rewrite_manifests", "calm", "crude")[1]["result"]["held_by"] == (
        "policy 'crude' does not ask for it on this table"
    )
    assert snapshots_count(catalog, "calm") == 4
    assert call("expire_snapshots", "calm", "careful")[1]["status"] == "done"
    assert snapshots_count(catalog, "calm") == 3


def test_a_window_that_has_closed_holds_its_job(catalog, call):
    table(catalog)
    assert (
        call("compact", "t", "late", runtime=FakeRuntime())[1]["result"]["held_by"]
        == "its window is closed: mon 00:00 to 00:01 UTC"
    )


def test_owner_opting_out_after_planning_holds_job(catalog, call):
    made = table(catalog)
    commit(made, ChangeProperties(updates={"icekeep.enabled": "false"}))
    assert call("expire_snapshots", "t", "crude", "--older-than=0s")[1]["status"] == "held"
    assert snapshots_count(catalog) == 4


def test_cluster_driver_has_session_though_job_is_held(catalog, call, monkeypatch, capsys):
    """YARN takes an application that ends without one for a failed one."""
    table(catalog, enabled="false")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(fake_jobs, "live_properties", lambda: {"spark.submit.deployMode": "cluster"})
    fake_jobs.forget()
    names = ("build_session", "stop_session", "cancel_jobs", "live_properties")
    seams = replace(cli.SEAMS, **{name: f"kit.fake_jobs:{name}" for name in names})
    words = ["compact", "--table=local.db.t", "--policy=late", "--config=my.yaml"]
    assert cli.main(words, seams=seams, runtime=FakeRuntime()) == 0
    assert "compact local.db.t: held" in capsys.readouterr().out
    assert [*fake_jobs.HISTORY] == ["start icekeep compact local.db.t", "stop"]


def test_a_policy_that_is_not_there_is_a_mistake(catalog, call):
    table(catalog)
    status, found = call("expire_snapshots", "t", "other", "--older-than=0s")
    assert (status, found["error"]["kind"]) == (2, "not-found")
    assert found["error"]["message"].startswith("there is no policy 'other' in my.yaml; there is careful, crude, late")
    _, found = call("expire_snapshots", "t", "crud", "--older-than=0s")
    assert found["error"]["message"] == "there is no policy 'crud' in my.yaml; did you mean 'crude'?"
    assert snapshots_count(catalog) == 4


def test_wrong_schedule_stops_only_its_policy(catalog, call, tmp_path, capsys):
    """A scheduler runs the other policies. What the wrong one decides of is not left to the next, whose retention is shorter."""
    file = tmp_path / "my.yaml"
    file.write_text(file.read_text().replace("careful, schedule: '@daily'", "careful, schedule: '0 25 * * *'"))
    for name in ("t", "calm"):
        table(catalog, name)
    status, found = call("expire_snapshots", "t", "crude")
    assert (status, found["status"]) == (0, "done")
    status, found = call("expire_snapshots", "calm", "crude")
    assert (status, found["status"], snapshots_count(catalog, "calm")) == (0, "held", 4)
    assert "'careful'" in found["result"]["held_by"]
    assert [one["status"] for one in runs(capsys)] == ["done"]
    told = "configuration key 'policies[0].schedule': '0 25 * * *' is not a cron schedule"
    for policy in ("careful", None):
        words = ["maintain", "--list", "--config=my.yaml", "--output=json", *([f"--policy={policy}"] if policy else [])]
        assert cli.main(words) == 2
        assert json.loads(capsys.readouterr().out)["error"]["message"].startswith(told)
    assert cli.main(["maintain", "--list", "--config=my.yaml", "--output=json", "--policy=crude"]) == 0


def test_wrong_default_schedule_stops_policies_without_own(catalog, call, tmp_path):
    file = tmp_path / "my.yaml"
    text = file.read_text().replace("crude, schedule: '@daily'", "crude")
    file.write_text(f"defaults: {{schedule: H}}\n{text}")
    table(catalog, "cat")
    status, found = call("expire_snapshots", "cat", "careful")
    assert (status, found["status"]) == (0, "done")
    status, found = call("expire_snapshots", "cat", "crude")
    assert (status, found["error"]["facts"]["key_path"]) == (2, "defaults.schedule")


@for_each("job", [JOBS[name] for name in POLICY_JOBS])
def test_policy_settings_mean_the_same_as_flags(job):
    """Every setting of every job."""
    texts = {
        SettingKind.SWITCH: "true",
        SettingKind.TIME: "7d",
        SettingKind.AGE: "36h",
        SettingKind.DAYS: "3d",
        SettingKind.NUMBER: "7",
        SettingKind.NUMBER_OR_ALL: "All",
        SettingKind.IDS: "1, 2",
        SettingKind.NAMES: "db.`a,b`, db.c",
        SettingKind.LOCATIONS: "s3://b/a,1, s3://b/c",
        SettingKind.FILTER: "a = '--x=1'",
        SettingKind.MANIFEST_FILTER: "manifest_length < 7",
    }
    words = []
    for setting in job.settings:
        for name in ("a", "b.c") if setting.kind in MAPPINGS else ("",):
            text = setting.choices[-1] if setting.choices else texts.get(setting.kind, "-x=y")
            words += setting_arguments(setting, text, name)
    asked = parse_command(["--table=t", *words], job.name, 12345)
    assert call_values(JobCall(job.name, tuple(words)), job, 12345) == asked.arguments
    assert len(asked.arguments) == len(job.settings)


def test_a_key_that_is_given_twice_is_refused():
    job = JOBS["remove_orphan_files"]
    words = ("--equal-authorities=old=new", "--equal-authorities=old =other")
    with pytest.raises(UsageError, match="'old' is given twice; give it once"):
        call_values(JobCall(job.name, words), job, 0)
