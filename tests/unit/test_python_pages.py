"""docs/python: every public name stands on exactly one page, the tree of errors is that of the code, and the examples run."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import icekeep
from icekeep.errors import IcekeepError
from icekeep.tables.verbs import append, create_table
from kit.cases import for_each

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    name: (DOCS / "python" / f"{name}.md").read_text() for name in ("index", "functions", "values", "errors", "events")
}
BLOCKS = {name: re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) for name, text in PAGES.items()}
OTHER_BLOCKS = {
    str(path.relative_to(DOCS)): re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
    for path in (DOCS / "deploy" / "spark.md", DOCS / "deploy" / "databricks.md", DOCS / "deploy" / "glue.md")
}
CONFIGURATION = 'catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: ./warehouse}}\n'
POLICIES = (
    'policies: [{name: nightly, schedule: "@daily", match: local.**, jobs: {expire_snapshots: {older_than: 7d}}}]\n'
)
NEED_SPARK = {"build_session"}
"""What a block calls that starts Spark: such blocks are only looked at."""


def test_every_public_name_stands_on_exactly_one_page():
    told = [name for text in PAGES.values() for name in re.findall(r"^::: icekeep\.(\w+)$", text, re.MULTILINE)]
    assert sorted(told) == sorted(name for name in icekeep.__all__ if name != "__version__")


@pytest.mark.parametrize(
    ("page", "belongs"),
    [
        ("functions", lambda one: inspect.isfunction(one)),
        ("errors", lambda one: inspect.isclass(one) and issubclass(one, IcekeepError)),
        ("events", lambda one: inspect.isclass(one) and one.__module__ == "icekeep.events"),
    ],
)
def test_a_name_stands_on_the_page_of_its_kind(page, belongs):
    told = re.findall(r"^::: icekeep\.(\w+)$", PAGES[page], re.MULTILINE)
    assert sorted(told) == sorted(name for name in icekeep.__all__ if belongs(getattr(icekeep, name)))


def classes(cls=IcekeepError, depth=0):
    yield cls, depth
    for below in cls.__subclasses__():
        if below.__module__ == "icekeep.errors":
            yield from classes(below, depth + 1)


def test_the_tree_of_errors_is_that_of_the_code():
    rows = re.findall(r"^([ |`-]*)(\w+) +(\d+)   ([a-z-]+)", PAGES["errors"], re.MULTILINE)
    told = [
        (name, len(before) // 3 if len(before) < 4 else 2, int(status), kind) for before, name, status, kind in rows
    ]
    assert told == [(cls.__name__, depth, cls.exit_status, cls.kind) for cls, depth in classes()]


def test_exit_statuses_of_errors_are_explained():
    told = {int(number) for number in re.findall(r"^\| (\d+) \|", PAGES["errors"], re.MULTILINE)}
    assert {cls.exit_status for cls, _ in classes()} <= told


def calls(block):
    """What a block calls of ours by name, with the keywords."""
    tree = ast.parse(block)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "icekeep":
            assert {alias.name for alias in node.names} <= {*icekeep.__all__}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in icekeep.__all__:
            yield node.func.id, len(node.args), [keyword.arg for keyword in node.keywords if keyword.arg]


@for_each("page", [*BLOCKS, *OTHER_BLOCKS])
def test_calls_have_arguments_that_there_are(page):
    found = [call for block in {**BLOCKS, **OTHER_BLOCKS}[page] for call in calls(block)]
    assert found
    for name, arguments_count, keywords in found:
        signature = inspect.signature(getattr(icekeep, name))
        known = {*signature.parameters} | versions(signature)
        assert {*keywords} <= known, name
        positional = [p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
        assert arguments_count <= len(positional), name


def versions(signature: inspect.Signature) -> set[str]:
    """Names behind `**version`."""
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD and parameter.name == "version":
            return {"snapshot_id", "ref", "as_of", "start_snapshot_id", "end_snapshot_id"}
    return set()


@pytest.fixture
def with_flights(tmp_path, monkeypatch):
    """A directory with the configuration and a table, and nothing of Spark's."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "icekeep.yaml").write_text(CONFIGURATION + POLICIES)
    monkeypatch.chdir(tmp_path)
    catalog = icekeep.load_catalog("local")
    catalog.create_namespace(("demo",))
    rows = pa.table({"time_hour": pa.array([1_380_000_000_000_000], pa.timestamp("us", "UTC")), "carrier": ["UA"]})
    table = create_table(catalog, "demo.flights", rows.schema)
    for _ in range(2):
        table = append(table, rows)


@pytest.mark.parametrize("page", [*BLOCKS])
def test_the_examples_of_a_page_run_one_after_the_other(page, with_flights, capsys):
    names: dict[str, Any] = {"print": print}
    ran = 0
    for block in BLOCKS[page]:
        if not any(word in block for word in NEED_SPARK):
            exec(compile(block, f"{page}.md", "exec"), names)
            ran += 1
    assert ran
