import pytest

from icekeep.errors import ConfigError
from icekeep.operations.configuration.file import parse_config
from icekeep.policies.values import JobCall, Policy
from kit.cases import for_each

HEAD = "policies:\n- name: nightly\n  schedule: '0 2 * * *'\n  tables: [c.db.b, c.db.a, c.da.z]\n"


def policy(text: str) -> Policy:
    return parse_config(text).policies[0]


def test_jobs_run_in_a_fixed_order_and_tables_are_sorted():
    found = policy(HEAD + "  jobs: {expire_snapshots: {}, rewrite_manifests: , compact: {}}\n")
    assert [call.job for call in found.calls] == ["compact", "rewrite_manifests", "expire_snapshots"]
    assert found.tables == ("c.da.z", "c.db.a", "c.db.b")


def test_many_tables_come_in_the_same_order_in_every_process():
    names = [f"c.db.t{n}" for n in (5, 2, 8, 1, 9, 3, 7)]
    found = policy(f"policies: [{{name: n, schedule: null, tables: [{', '.join(names)}], jobs: {{compact: }}}}]")
    assert found.tables == tuple(sorted(names))


def test_names_in_quotes_are_kept_in_one_spelling():
    text = """
policies: [{name: n, schedule: null, tables: ['c.db."we.b"', c.db.`a`], match: c.*.`x*`, jobs: {compact: }}]
namespaces: {'c."a.b"': {enabled: false}}
tables: {'c.db."we.b"': {mode: observe}}
runs: {table: 'c.ops."runs.all"'}
"""
    config = parse_config(text)
    assert config.policies[0].tables == ("c.db.`we.b`", "c.db.a")
    assert config.policies[0].reaches("c.e.`x*`")
    assert not config.policies[0].reaches("c.e.xy")
    assert config.runs.table == "c.ops.`runs.all`"
    assert [layer.name for layer in config.rules.layers_of("c.db.`we.b`")] == ["c.db.`we.b`"]
    assert [layer.name for layer in config.rules.layers_of("c.`a.b`.t")] == ["c.`a.b`"]
    assert config.rules.layers_of("c.a.b.t") == ()


def test_table_named_twice_with_other_quotes_is_refused():
    with pytest.raises(ConfigError, match=r"'c\.db\.t' is there twice, with other quotes"):
        parse_config("tables: {c.db.t: {enabled: false}, c.db.`t`: {enabled: true}}")
    with pytest.raises(ConfigError, match=r"table 'c\.db\.t' is listed twice"):
        policy("policies: [{name: n, schedule: null, tables: [c.db.t, c.db.`t`], jobs: {compact: }}]")


def test_settings_become_the_arguments_of_the_job_s_command_line():
    found = policy(
        HEAD
        + """  jobs:
    compact: {where: "day >= '2026-01-01'", options: {min-input-files: 2, rewrite-all: true}}
    rewrite_manifests: {spec_id: 3, branch: audit}
    expire_snapshots: {older_than: 7d, retain_last: 10, snapshot_ids: [1, 2], clean_expired_metadata: true}
"""
    )
    assert found.calls == (
        JobCall("compact", ("--where=day >= '2026-01-01'", "--option=min-input-files=2", "--option=rewrite-all=true")),
        JobCall("rewrite_manifests", ("--spec-id=3", "--branch=audit")),
        JobCall(
            "expire_snapshots",
            ("--older-than=7d", "--retain-last=10", "--snapshot-ids=1,2", "--clean-expired-metadata"),
        ),
    )


def test_names_are_a_list_and_become_one_argument():
    found = policy(HEAD + "  jobs: {remove_orphan_files: {accept_unreadable: [db.a, 'other.b,c']}}\n")
    assert found.calls == (JobCall("remove_orphan_files", ("--accept-unreadable=db.a,other.`b,c`",)),)


def test_a_switch_that_is_off_is_no_argument():
    found = policy(HEAD + "  jobs: {expire_snapshots: {clean_expired_metadata: false}}\n")
    assert found.calls == (JobCall("expire_snapshots", ()),)


def test_what_the_scheduler_needs_has_defaults():
    found = policy(HEAD + "  jobs: {compact: {}}\n")
    assert (found.retries, found.retry_delay_ms, found.timeout_ms, found.pool) == (2, 300_000, None, None)
    told = policy(
        HEAD + "  jobs: {compact: {}}\n  retries: 0\n  retry_delay: 10s\n  timeout: 2h\n  pool: p\n"
        "  connection: yarn\n  spark_conf: {spark.executor.memory: 4g, spark.executor.cores: 2}\n"
    )
    assert (told.retries, told.retry_delay_ms, told.timeout_ms, told.pool) == (0, 10_000, 7_200_000, "p")
    assert told.connection == "yarn"
    assert told.spark_conf == (("spark.executor.memory", "4g"), ("spark.executor.cores", "2"))
    assert (found.deploy_mode, found.files, found.submit_over_bytes) == (None, (), 2 << 30)
    sent = policy(
        HEAD + "  jobs: {compact: {}}\n  deploy_mode: cluster\n  py_files: a.zip\n"
        "  archives: ['env.tar.gz#env']\n  files: [a, b]\n  submit_over: 7\n"
    )
    assert (sent.deploy_mode, sent.py_files, sent.archives) == ("cluster", ("a.zip",), ("env.tar.gz#env",))
    assert (sent.files, sent.submit_over_bytes) == (("a", "b"), 7)
    assert policy(HEAD + "  jobs: {compact: {}}\n  files: []\ndefaults: {files: [a]}\n").files == ()
    assert policy(HEAD + "  jobs: {compact: {}}\n  submit_over: null\n").submit_over_bytes is None
    assert policy(HEAD + "  jobs: {compact: {}}\n  submit_over: 2g\n").submit_over_bytes == 2 << 30
    assert sent.layer.keys["files"].text == "a, b"


AIRFLOW_TAKES = [
    *("'@once'", "'@continuous'", "'@hourly'", "'@daily'", "'@weekly'", "'@monthly'", "'@quarterly'", "'@yearly'"),
    *("'0 2 * * MON-FRI'", "'*/5 0,12 1-7 * 0'", "'0 2 * * 1#2'", "'0 2 L * *'", "'0 0 29 2 *'", "'0 2 * * 7'"),
]


@for_each("schedule", ["null", *AIRFLOW_TAKES])
def test_a_schedule_is_cron_a_preset_or_null(schedule):
    found = policy(f"policies: [{{name: n, schedule: {schedule}, tables: [c.d.t], jobs: {{compact: }}}}]")
    assert found.schedule == (None if schedule == "null" else schedule.strip("'"))


@for_each(
    ("change", "key_path", "problem"),
    [
        (("nightly", "'a b'"), "policies[0].name", "'a b' cannot be a name"),
        (
            ("'0 2 * * *'", "'0 2 * *'"),
            "policies[0].schedule",
            "'0 2 * *' is not a cron schedule; give five fields ('0 2 * * *': minute 0-59, hour 0-23",
        ),
        (("'0 2 * * *'", "'0 25 * * *'"), "policies[0].schedule", "'0 25 * * *' is not a cron schedule"),
        (("'0 2 * * *'", "'99 99 * * *'"), "policies[0].schedule", "'99 99 * * *' is not a cron schedule"),
        (("'0 2 * * *'", "'H 2 * * *'"), "policies[0].schedule", "'H 2 * * *' is not a cron schedule"),
        (("'0 2 * * *'", "'@sometimes'"), "policies[0].schedule", "'@sometimes' is not a cron schedule"),
        (("'0 2 * * *'", "'0 0 31 2 *'"), "policies[0].schedule", "'0 0 31 2 *' never comes"),
        (("'0 2 * * *'", "5"), "policies[0].schedule", "should be text, but is a number"),
        (("  schedule: '0 2 * * *'\n", ""), "policies[0].schedule", "is missing"),
        (("c.da.z", "da.z"), "policies[0].tables[2]", "'da.z' is not a full name"),
        (("c.da.z", "c.db.b"), "policies[0].tables[2]", "table 'c.db.b' is listed twice"),
        (("[c.db.b, c.db.a, c.da.z]", "[]"), "policies[0].tables", "is empty"),
        (("[c.db.b, c.db.a, c.da.z]", "c.db.a"), "policies[0].tables", "should be a list, but is text"),
        (("compact: {}", "compcat: {}"), "policies[0].jobs.compcat", "there is no such key; did you mean 'compact'?"),
        (("compact: {}", "plan_scan: {}"), "policies[0].jobs.plan_scan", "there is no such key"),
        (("{compact: {}}", "{}"), "policies[0].jobs", "is empty"),
        (
            ("compact: {}", "compact: {wher: x}"),
            "policies[0].jobs.compact.wher",
            "there is no such key; did you mean 'where'?",
        ),
        (("compact: {}", "compact: {where: 5}"), "policies[0].jobs.compact.where", "should be text, but is a number"),
        (
            ("compact: {}", "compact: {where: day < todya}"),
            "policies[0].jobs.compact.where",
            "cannot read the filter at position 7, before 'todya'",
        ),
        (
            ("compact: {}", "compact: {options: {a: [1]}}"),
            "policies[0].jobs.compact.options.a",
            "should be a single value",
        ),
        (
            ("compact: {}", "expire_snapshots: {older_than: 7x}"),
            "policies[0].jobs.expire_snapshots.older_than",
            "cannot read the time '7x'",
        ),
        (
            ("compact: {}", "expire_snapshots: {retain_last: 0}"),
            "policies[0].jobs.expire_snapshots.retain_last",
            "is 0; give a whole number of 1 or more",
        ),
        (
            ("compact: {}", "expire_snapshots: {snapshot_ids: []}"),
            "policies[0].jobs.expire_snapshots.snapshot_ids",
            "is empty",
        ),
        (
            ("compact: {}", "remove_orphan_files: {accept_unreadable: [a]}"),
            "policies[0].jobs.remove_orphan_files.accept_unreadable",
            "'a' in 'a' names no table",
        ),
        (("jobs:", "retries: '3'\n  jobs:"), "policies[0].retries", "should be a whole number, but is text"),
        (
            ("jobs:", "retry_delay: 5\n  jobs:"),
            "policies[0].retry_delay",
            "should be a span such as 30m, 36h or 7d, but is a number",
        ),
        (("jobs:", "retry_delay: soon\n  jobs:"), "policies[0].retry_delay", "cannot read the duration 'soon'"),
        (
            ("jobs:", "deploy_mode: both\n  jobs:"),
            "policies[0].deploy_mode",
            "is 'both'; there is client, cluster",
        ),
        (("jobs:", "files: [a, 'b,c']\n  jobs:"), "policies[0].files[1]", "holds a comma"),
        (("jobs:", "submit_over: much\n  jobs:"), "policies[0].submit_over", "should be a whole number"),
        (("jobs:", "pol: x\n  jobs:"), "policies[0].pol", "there is no such key"),
    ],
)
def test_what_is_wrong_is_an_error_with_the_key_s_path(change, key_path, problem):
    text = HEAD + "  jobs: {compact: {}}\n"
    assert change[0] in text
    with pytest.raises(ConfigError) as caught:
        parse_config(text.replace(*change))
    assert str(caught.value).startswith(f"configuration key {key_path!r}: {problem}")


def test_two_policies_cannot_have_the_same_name():
    one = "{name: n, schedule: null, tables: [c.d.t], jobs: {compact: }}"
    with pytest.raises(ConfigError, match=r"'policies\[1\]\.name': 'n' is the name of an earlier policy"):
        parse_config(f"policies: [{one}, {one}]")
