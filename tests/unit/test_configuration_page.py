"""docs/configuration.md has every key of the configuration and no other; docs/health.md has the formula of the score."""

import re
from pathlib import Path

import pytest

from icekeep.health.files import Sickness, score_of
from icekeep.health.prices import Prices
from icekeep.operations.configuration import shape
from icekeep.operations.configuration.file import KEEP_MS, parse_config
from icekeep.operations.jobs import JOBS, POLICY_JOBS
from icekeep.policies.windows import CONDITIONS
from icekeep.spec.times import format_span
from kit.cases import for_each

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text()
HEALTH = (ROOT / "docs" / "health.md").read_text()


def keys_of(struct):
    return {*struct.__struct_encode_fields__}


def rows(heading):
    """The cells of the rows of a section's tables, by their first cell."""
    text = re.search(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    cells = [
        [one.strip() for one in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    return {first.strip("`"): rest for first, *rest in cells}


@for_each(
    ("heading", "keys"),
    [
        ("At the top", keys_of(shape.ConfigurationKeys)),
        ("runs", keys_of(shape.RunsKeys)),
        ("log", keys_of(shape.LogKeys)),
        ("metrics", keys_of(shape.MetricsKeys)),
        ("notifications", keys_of(shape.NotificationKeys)),
        ("prices", keys_of(Prices)),
        ("policies", keys_of(shape.PolicyKeys)),
        ("window", keys_of(shape.WindowKeys)),
        ("jobs", {"enabled", "when", *POLICY_JOBS}),
        ("when", CONDITIONS),
    ],
)
def test_a_section_has_all_keys_that_there_are_and_no_other(heading, keys):
    assert {*rows(heading)} == {*keys}


def test_each_job_has_the_settings_that_it_has():
    told = rows("jobs")
    for job in POLICY_JOBS:
        assert re.findall(r"`(\w+)`", told[job][0]) == [setting.name for setting in JOBS[job].settings]


def test_where_else_a_key_may_stand_is_so():
    told = {key: {*re.findall(r"`(\w+)`", cells[1])} for key, cells in rows("policies").items()}
    assert {key for key, where in told.items() if "defaults" in where} == keys_of(shape.DefaultKeys)
    for layer in ("namespaces", "tables"):
        assert {key for key, where in told.items() if layer in where} == keys_of(shape.LayerKeys)


def test_defaults_are_those_that_are_told():
    text = "catalogs: {c: {type: sql}}\npolicies: [{name: n, schedule: null, match: c.**, jobs: {compact: }}]"
    [policy] = parse_config(text).policies
    told = {key: cells[2].strip("`") for key, cells in rows("policies").items()}
    assert told["retries"] == str(policy.retries)
    assert told["retry_delay"] == format_span(policy.retry_delay_ms)
    assert told["connection"] == policy.connection
    assert told["submit_over"] == str(policy.submit_over_bytes)
    assert rows("runs")["keep"][1].strip("`") == format_span(KEEP_MS)
    assert rows("prices")["currency"][1].strip("`") == Prices().currency


BURDENS = {
    "faults": {"faults_count": 10**9},
    "files": {"small_files_count": 10**12},
    "deletes": {"equality_delete_files_count": 10**12},
    "manifests": {"spare_manifests_count": 10**12},
    "snapshots": {"expirable_count": 10**12},
    "dangling": {"dangling_count": 10**12},
    "partitions": {"partition_skew": 1e12},
}


def test_the_formula_of_the_score_is_that_of_the_code():
    table = re.findall(r"^\| (\w+) \| ([\d.]+) \| (.+) \|$", HEALTH, re.MULTILINE)
    assert [name for name, _, _ in table] == [*BURDENS]
    words = " ".join(re.sub(r"[|]", " ", score_of.__doc__).split())
    for name, weight, burden in table:
        score, parts = score_of(Sickness(**BURDENS[name]))
        assert [part.name for part in parts] == [name]
        assert score == pytest.approx(100 * (1 - float(weight)), abs=0.1)
        assert f"{name} {weight} {burden}" in words
