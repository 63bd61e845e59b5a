"""Layers of policies as the configuration file says them."""

import re
from pathlib import Path

import pytest

from icekeep.errors import ConfigError
from icekeep.operations.configuration.file import parse_config
from icekeep.operations.configuration.layers import layer_of_settings
from icekeep.policies.resolution import rules_for
from icekeep.policies.table_properties import settings_of_properties
from icekeep.policies.values import JobCall, Layer, LayerKind, Mode
from icekeep.policies.windows import Trigger, Window
from kit.cases import for_each

ROOT = Path(__file__).parents[4]
FILE = """
defaults:
  schedule: '@daily'
  retries: 5
  spark_conf: {spark.a: 1, spark.b: 2}
  mode: observe
  window: {from: 22:00, to: 06:00, days: [mon, fri], zone: Europe/Berlin}
  jobs:
    compact: {options: {min-input-files: 5, stitch: false}, when: {small_files_over: 100, min_interval: 6h}}
    check: {deep: true}
policies:
- name: sales
  match: prod.sales.*
  except: [prod.**.tmp_*]
  jobs:
    compact: {options: {min-input-files: 2}, verify: true}
- name: rest
  schedule: null
  match: ['prod.**']
  tables: [dev.a.b]
  retries: 0
  pool: slow
  spark_conf: {spark.b: 3}
  jobs: {compact: , expire_snapshots: {older_than: 7d}}
namespaces:
  prod.sales: {mode: run, jobs: {compact: {verify: false}}}
  dev: {enabled: false}
tables:
  prod.sales.orders: {jobs: {compact: {when: {delete_ratio_over: 0.1}, options: {stitch: true}}}}
"""


def rules(text=FILE):
    return parse_config(text, "my.yaml").rules


def test_defaults_apply_to_policies_and_their_jobs():
    sales, rest = rules().policies
    assert (sales.schedule, sales.retries, sales.pool) == ("@daily", 5, None)
    assert (rest.schedule, rest.retries, rest.pool) == (None, 0, "slow")
    assert sales.spark_conf == (("spark.a", "1"), ("spark.b", "2"))
    assert rest.spark_conf == (("spark.a", "1"), ("spark.b", "3"))
    assert sales.calls == (JobCall("compact", ("--option=min-input-files=2", "--option=stitch=false", "--verify")),)
    assert [call.job for call in rest.calls] == ["compact", "expire_snapshots"]


def test_what_is_in_force_for_a_table_and_where_it_stands():
    (compact, expire) = rules_for(rules(), "prod.sales.orders").jobs
    assert (compact.policy, compact.others, expire.policy, expire.others) == ("sales", ("rest",), "rest", ())
    assert compact.call.arguments == ("--option=min-input-files=2", "--option=stitch=true")
    assert compact.mode is expire.mode is Mode.RUN
    assert compact.window == Window(from_minute=1320, to_minute=360, days=(0, 4), zone="Europe/Berlin")
    assert compact.trigger == Trigger(small_files_over=100, delete_ratio_over=0.1, min_interval_ms=6 * 3_600_000)
    sources = {value.key: (value.innermost.text, value.innermost.source) for value in compact.values}
    assert sources["options.min-input-files"] == ("2", "my.yaml: policies[0].jobs.compact.options.min-input-files")
    assert sources["verify"] == ("false", "my.yaml: namespaces.prod.sales.jobs.compact.verify")
    assert sources["options.stitch"] == ("true", "my.yaml: tables.prod.sales.orders.jobs.compact.options.stitch")
    assert [value.innermost.text for value in compact.common if value.key == "window"] == [
        "mon,fri 22:00 to 06:00 Europe/Berlin"
    ]
    assert [rule.held_by for rule in rules_for(rules(), "dev.a.b").jobs] == [
        "switched off by my.yaml: namespaces.dev.enabled"
    ] * 2
    assert rules_for(rules(), "prod.sales.tmp_1").policies == ("rest",)


def test_what_a_property_says_is_what_the_file_says():
    """Of every kind of setting that both may say."""
    said = {
        "compact": {
            "where": "day > 5",
            "strategy": "sort",
            "verify": "true",
            "options.min-input-files": "3",
            "enabled": "true",
        },
        "rewrite_manifests": {"spec_id": "all", "where": "manifest_length < 5"},
        "expire_snapshots": {"older_than": "7d", "retain_last": "3", "clean_expired_metadata": "false"},
        "check": {"all_of": "301,303", "deep": "true", "when.age_over": "7d"},
    }
    text = """
tables:
  c.d.t:
    jobs:
      compact: {where: day > 5, strategy: sort, verify: true, options: {min-input-files: 3}, enabled: true}
      rewrite_manifests: {spec_id: all, where: manifest_length < 5}
      expire_snapshots: {older_than: 7d, retain_last: 3, clean_expired_metadata: false}
      check: {all_of: [301, 303], deep: true, when: {age_over: 7d}}
"""
    properties = {f"icekeep.{job}.{key}": value for job, keys in said.items() for key, value in keys.items()}
    own, problems = layer_of_settings(settings_of_properties(properties), LayerKind.PROPERTIES)
    of_file = rules(text).tables["c.d.t"]
    assert problems == ()
    assert values(own) == values(of_file)


def values(layer: Layer):
    return {job: {key: (said.value, said.order) for key, said in keys.items()} for job, keys in layer.jobs.items()}


@for_each(
    ("name", "value", "problem"),
    [
        ("compact.enabled", "no", "'no' is neither true nor false"),
        ("compact.verify", "yes", "'yes' is neither true nor false"),
        ("compact.where", "day >", "cannot read the filter"),
        ("compact.where", "", "is empty"),
        ("compact.options", "a=b", "give options.NAME"),
        ("compact.where.x", "a", "'where' has nothing below it"),
        ("compact.enabled.x", "false", "'enabled' has nothing below it"),
        ("compact.when", "1", "there is no condition ''"),
        ("compact.options.bogus", "1", "there is no option 'bogus'"),
        ("compact.options.min-input-files", "many", "option min-input-files is 'many'; give a whole number"),
        ("expire_snapshots.retain_last", "0", "'0' is not a whole number of 1 or more"),
        ("expire_snapshots.older_than", "soon", "cannot read the time 'soon'"),
        ("check.when.small_files", "1", "there is no condition 'small_files'"),
        ("check.all_of", "1,x", "'x' is not a whole number"),
    ],
)
def test_a_property_that_cannot_be_read_holds_its_job(name, value, problem):
    layer, (found,) = layer_of_settings(settings_of_properties({f"icekeep.{name}": value}), LayerKind.PROPERTIES)
    assert problem in found.problem
    assert (layer.doubtful_jobs, layer.is_doubtful) == ({name.partition(".")[0]}, False)
    assert not layer.jobs.get(name.partition(".")[0])


def test_a_property_of_all_jobs_that_cannot_be_read_holds_all():
    layer, (found,) = layer_of_settings(settings_of_properties({"icekeep.enabled": "off"}), LayerKind.PROPERTIES)
    assert (layer.is_doubtful, found.problem) == (True, "'off' is neither true nor false")


@for_each(
    ("old", "new", "key_path", "problem"),
    [
        ("prod.sales.*", "prod.*", "policies[0].match", "'prod.*' can match no table"),
        ("['prod.**']", "[]", "policies[1].match", "is empty"),
        ("['prod.**']", "['prod.**', 'a.b?.c']", "policies[1].match[1]", "'a.b?.c' has '?'"),
        ("[prod.**.tmp_*]", "{}", "policies[0].except", "should be text or a list, but is keys with values"),
        ("  match: prod.sales.*\n", "", "policies[0].tables", "is missing"),
        (
            "[dev.a.b]",
            "[dev.a.*]",
            "policies[1].tables[0]",
            "'dev.a.*' is not a full name; a pattern stands under `match`",
        ),
        (
            "pool: slow",
            "except: dev.**",
            "policies[1].except",
            "'dev.**' takes table 'dev.a.b' out, which `tables` lists",
        ),
        ("mode: observe", "mode: watch", "defaults.mode", "is 'watch'; there is run, observe"),
        (
            "mode: run",
            "mod: run",
            "namespaces.prod.sales.mod",
            "there is no such key; did you mean 'mode'?",
        ),
        ("mode: run", "retries: 1", "namespaces.prod.sales.retries", "there is no such key"),
        (
            "  dev: {",
            "  dev..a: {",
            "namespaces.dev..a",
            "'dev..a' is not a full name; give CATALOG or CATALOG.NAMESPACE",
        ),
        (
            "prod.sales.orders: {",
            "sales.orders: {",
            "tables.sales.orders",
            "'sales.orders' is not a full name; give CATALOG.NAM",
        ),
        (
            "  dev: {",
            "  dev.*: {",
            "namespaces.dev.*",
            "'dev.*' is not a full name; a pattern stands under `match` of a policy",
        ),
        (
            "prod.sales.orders: {",
            "prod.sales.*: {",
            "tables.prod.sales.*",
            "'prod.sales.*' is not a full name; a pattern stands under `match` of a policy",
        ),
        ("from: 22:00", "from: 25:00", "defaults.window.from", "'25:00' is no time of the day"),
        ("to: 06:00", "to: 22:00", "defaults.window", "opens and closes at the same time of the day"),
        ("to: 06:00", "to: 00:00", "defaults.window", "opens at 24:00 or closes at 00:00"),
        ("[mon, fri]", "[mon, friday]", "defaults.window.days[1]", "'friday' is no day"),
        ("[mon, fri]", "[]", "defaults.window.days", "is empty"),
        ("Europe/Berlin", "Berlin", "defaults.window.zone", "there is no time zone 'Berlin' on this machine"),
        ("small_files_over: 100", "small_files: 100", "defaults.jobs.compact.when.small_files", "there is no such key"),
        (
            "small_files_over: 100",
            "small_files_over: 1.5",
            "defaults.jobs.compact.when.small_files_over",
            "'1.5' is no limit",
        ),
        (
            "min_interval: 6h",
            "min_interval: 6",
            "defaults.jobs.compact.when.min_interval",
            "should be a span such as 30m, 36h or 7d, but is a number",
        ),
        (
            "delete_ratio_over: 0.1",
            "delete_ratio_over: []",
            "tables.prod.sales.orders.jobs.compact.when.delete_ratio_over",
            "should be a single value, but is a list",
        ),
        ("enabled: false", "enabled: 0", "namespaces.dev.enabled", "should be true or false, but is a number"),
        ("retries: 5", "retries: -1", "defaults.retries", "is -1; give a whole number of 0 or more"),
        (
            "{deep: true}",
            "{depp: true}",
            "defaults.jobs.check.depp",
            "there is no such key; did you mean 'deep'?",
        ),
    ],
)
def test_what_is_wrong_is_an_error_with_the_key_s_path(old, new, key_path, problem):
    assert FILE.count(old) == 1
    with pytest.raises(ConfigError) as caught:
        rules(FILE.replace(old, new))
    assert str(caught.value).startswith(f"configuration key {key_path!r}: {problem}")


def shown_policies(page):
    """The blocks of a page that have policies, by the name of the first one."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return {parse_config(block).policies[0].name: block for block in blocks if "policies:" in block}


def test_the_policies_that_pages_show_are_in_force_as_these_say():
    assert [*shown_policies("README.md")] == ["nightly"]
    shown = rules(shown_policies("docs/policies.md")["orders"])
    compact, expire = rules_for(shown, "prod.sales.orders_eu").jobs
    assert (compact.policy, compact.others, expire.policy) == ("orders", ("everything",), "everything")
    assert (compact.mode, expire.mode) == (Mode.RUN, Mode.RUN)
    assert [rule.mode for rule in rules_for(shown, "prod.stock.items").jobs] == [Mode.OBSERVE] * 2
    assert all(rule.held_by for rule in rules_for(shown, "prod.sales.ledger").jobs)
    assert rules_for(shown, "prod.sales.tmp_orders").policies == ()


def test_without_a_default_each_policy_has_a_schedule_of_its_own():
    with pytest.raises(ConfigError, match=r"'policies\[0\]\.schedule': is missing; give five fields .*, or null \("):
        rules(FILE.replace("  schedule: '@daily'\n", ""))
