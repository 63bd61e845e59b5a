"""docs/policies.md and docs/filters.md say what the code does: keys, layers, examples."""

import re
import shlex
from pathlib import Path

import pytest

from icekeep.catalog.base import StoredPolicy
from icekeep.errors import ExpressionError
from icekeep.operations.arguments import parse_command
from icekeep.operations.configuration.file import parse_config
from icekeep.policies.polaris import settings_of_polaris
from icekeep.policies.resolution import rules_for
from icekeep.policies.table_properties import OWNERS_SETTINGS, settings_of_properties
from icekeep.policies.values import parse_glob
from icekeep.policies.windows import CONDITIONS
from icekeep.spec.filters.parsing import parse_where

DOCS = Path(__file__).parents[2] / "docs"
POLICIES = (DOCS / "policies.md").read_text()
FILTERS = (DOCS / "filters.md").read_text()
SNIPPETS = re.findall(r"^```yaml\n(.*?)^```$", POLICIES, re.MULTILINE | re.DOTALL)
NOW_MS = 1_790_000_000_000


def rows(text, heading):
    """The cells of the first table behind a heading."""
    [table] = re.findall(rf"^#+ {heading}\n.*?^(\|.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_examples_of_policies_are_read():
    assert len(SNIPPETS) == 2
    for snippet in SNIPPETS:
        assert parse_config(snippet).policies


def test_the_example_decides_as_the_page_says():
    rules = parse_config(SNIPPETS[0]).rules
    decided = {one.job: one.policy for one in rules_for(rules, "prod.sales.orders_eu").jobs}
    assert decided == {"compact": "orders", "expire_snapshots": "everything"}
    assert not rules_for(rules, "prod.raw.tmp_load").jobs


@pytest.mark.parametrize(
    ("pattern", "matched", "other"),
    [
        ("prod.*.orders", "prod.a.orders", "prod.a.b.orders"),
        ("prod.**", "prod.a.b.c", "lake.a.b"),
        ("prod.**.orders", "prod.a.b.orders", "prod.a.b.Orders"),
    ],
)
def test_patterns_match_as_the_page_says(pattern, matched, other):
    assert parse_glob(pattern).matches(matched)
    assert not parse_glob(pattern).matches(other)


def test_what_owners_may_set_is_all_that_is_told():
    told = {cells[0].strip("`"): {*re.findall(r"`(\w+)`", cells[1])} for cells in owners_rows()}
    assert told == {job: {*names} for job, names in OWNERS_SETTINGS.items()}


def owners_rows():
    [table] = re.findall(r"^\| job \| settings \|\n\|---\|---\|\n(.*?)\n\n", POLICIES, re.MULTILINE | re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_properties_that_the_page_shows_are_understood():
    shown = dict(re.findall(r"`(icekeep\.[\w.-]+)=([^`.]+)`", POLICIES))
    assert {"icekeep.enabled", "icekeep.mode", "icekeep.compact.when.small_files_over"} <= {*shown}
    properties = {name.replace("JOB", "compact"): value for name, value in shown.items()}
    heard = settings_of_properties(properties)
    assert heard.problems == ()
    assert len(heard.settings) == len(properties)


def test_conditions_and_stored_types_are_those_that_there_are():
    assert [cells[0].strip("`") for cells in rows(POLICIES, "Conditions")] == [*CONDITIONS]
    types = {cells[0].strip("`"): cells[1].strip("`") for cells in rows(POLICIES, "Policies that a catalog stores")}
    assert len(types) == 4
    for name, job in types.items():
        from_server = stored(name)
        assert {told.job for told in settings_of_polaris([from_server]).settings} == {job}


def stored(name):
    return StoredPolicy(name, "one", '{"enable": true}')


def test_filters_that_the_page_shows_are_read_and_those_that_it_calls_wrong_are_not():
    commands = re.findall(r"^(\$ )?(icekeep .*--where.*)$", FILTERS, re.MULTILINE)
    assert len(commands) == 9
    refused = []
    for shown, line in commands:
        words = shlex.split(line)
        parse_command(words[1:], None, NOW_MS)
        text = words[words.index("--where") + 1]
        try:
            parse_where(text, NOW_MS)
        except ExpressionError:
            assert shown, text
            refused.append(text)
    assert refused == ["id >> 5"]
    for manifests in re.findall(r"`(manifest_length [^`]+)`", FILTERS):
        parse_where(manifests, NOW_MS)
