"""`tests/conformance` with icekeep and Iceberg Java here, with all tools nightly: docs/conformance.md says what comes of it."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.play import CASES, cell, play
from conformance.tools.known import TOOLS
from conformance.tools.ours import Icekeep, Java
from conformance.tools.tool import MANIFESTS, Target, Tool
from conformance.world import NAME, World
from kit.java import IcebergJava
from kit.shell import ROOT

pytestmark = pytest.mark.deep

PAGE = ROOT / "docs" / "conformance.md"
LEFT = " (left on disk)"
WITH_KEYS = "case, with keys"
"""How the table begins of a server that keeps idempotency keys."""

QUICK = [name for name, case in CASES.items() if not case.lost and not case.beside]
LONG = [name for name in CASES if name not in QUICK]


def told(title: str = "case") -> dict[str, dict[str, str]]:
    """By tool and case, what the table with this title says on the page."""
    lines = PAGE.read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(f"| {title} | "))
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[begin:])
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in table]
    tools = [title.partition(":")[0] for title in rows[0][1:]]
    cells = {row[0].strip("`"): row[1:] for row in rows[2:]}
    return {tool: {case: own[number] for case, own in cells.items()} for number, tool in enumerate(tools)}


def check(case: str, tool: Tool, key_lifetime: str | None = None) -> None:
    found = play(CASES[case], tool, key_lifetime)
    now, said = cell(found), told("case" if key_lifetime is None else WITH_KEYS)[tool.name][case]
    if not isinstance(tool, Icekeep):
        # Others may still delete files when they have answered.
        now, said = now.replace(LEFT, ""), said.replace(LEFT, "")
    assert now == said, found


@pytest.fixture(scope="module")
def java_tool(java: IcebergJava) -> Iterator[Tool]:
    tool = Java(java)
    yield tool
    tool.close()


def test_the_page_names_all_cases_and_tools() -> None:
    assert {tool: list(cells) for tool, cells in told().items()} == {tool: list(CASES) for tool in TOOLS}


def test_the_page_names_all_cases_of_lost_answers_with_keys() -> None:
    lost = [name for name, case in CASES.items() if case.lost]
    assert {tool: list(cells) for tool, cells in told(WITH_KEYS).items()} == {"icekeep": lost, "java": lost}


def test_the_page_names_the_versions_that_the_environment_has(java: IcebergJava) -> None:
    locked = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / ".ci/requirements-rivals.lock").read_text(), re.MULTILINE))
    names = ("iceberg-compaction", "iceberg-zamboni", "pyiceberg", "duckdb")
    wanted = [*(f"{name} {locked[name]}" for name in names), f"Iceberg {java.versions()['iceberg']}"]
    [titles] = [line for line in PAGE.read_text().splitlines() if line.startswith("| case | ")]
    assert [one for one in wanted if one not in titles] == []


@pytest.mark.parametrize("case", QUICK)
def test_icekeep_keeps_all_rows(case: str) -> None:
    check(case, Icekeep())


@pytest.mark.parametrize("case", QUICK)
def test_iceberg_java_does_what_the_page_says(case: str, java_tool: Tool) -> None:
    check(case, java_tool)


def test_iceberg_java_reads_the_same_rows(tmp_path: Path, java: IcebergJava) -> None:
    """What decides all cases is a reader of the suite's own."""
    world = World(tmp_path, 2, files=3)
    try:
        for act in (World.delete_positions, World.upsert, World.delete_equal, World.append):
            act(world)
        assert Icekeep().run(MANIFESTS, Target(world.server.uri, ".".join(NAME))).changed
        java.open_catalog("suite", world.server.properties)
        rows = java.sql(f"SELECT id, kind, number, note FROM suite.{'.'.join(NAME)}")
        found = world.reader.held(world.reader.head())
        assert found.has_equality_deletes
        assert sorted(map(repr, (tuple(row.values()) for row in rows))) == sorted(map(repr, found.rows.elements()))
    finally:
        world.close()


@pytest.mark.nightly
@pytest.mark.parametrize("case", LONG)
@pytest.mark.parametrize("name", ["icekeep", "java"])
def test_ours_in_all_other_cases(case: str, name: str, java_tool: Tool) -> None:
    check(case, Icekeep() if name == "icekeep" else java_tool)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.lost])
@pytest.mark.parametrize("name", ["icekeep", "java"])
def test_ours_where_the_server_keeps_keys(case: str, name: str, java_tool: Tool) -> None:
    check(case, Icekeep() if name == "icekeep" else java_tool, "PT30M")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["iceberg-compaction", "iceberg-zamboni"])
def test_the_rivals_do_what_the_page_says(name: str) -> None:
    if not (ROOT / ".venv-rivals").exists():
        pytest.fail("there is no .venv-rivals; run `make rivals-env` first")
    tool = TOOLS[name]()
    try:
        for case in CASES:
            check(case, tool)
    finally:
        tool.close()
