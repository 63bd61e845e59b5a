"""README and docs/quickstart.md as a reader follows them: files are written, commands run in their order, outputs compared."""

import datetime
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from icekeep.operations.loading import configured_catalogs, open_settings
from icekeep.runtime import SYSTEM
from icekeep.tables.verbs import append, create_table
from kit.cases import thinned
from kit.lake import multiset
from kit.pages import LEFT_OUT, Block, blocks, commands_of
from kit.runtime import FakeRuntime
from kit.shell import BIN, ROOT, Finished

COMMITS = {"orders": 40, "refunds": 7, "customers": 1}
"""The tables of the namespace `sales`, and how many commits each has."""
YOUNGEST_DAYS = 10
"""How old the newest commit is."""
DAY_MS = 86_400_000
ROWS_A_DAY = 250
SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("ordered_at", pa.timestamp("us", "UTC")),
        pa.field("amount", pa.decimal128(9, 2)),
    ]
)


def make_sales(conf: Path, catalog: str) -> None:
    """Create the tables in a catalog of a configuration file."""
    for seed, (name, commits) in enumerate(COMMITS.items()):
        began_ms = SYSTEM.now_ms() - (commits + YOUNGEST_DAYS) * DAY_MS
        runtime = FakeRuntime(seed, began_ms, chance=None)
        opened = open_settings(configured_catalogs(str(conf)).get(catalog), runtime=runtime)
        opened.create_namespace(("sales",), exists_ok=True)
        table = create_table(opened, ("sales", name), SCHEMA)
        for day in range(commits):
            runtime.pass_ms(DAY_MS)
            table = append(table, sold_on(day))


def sold_on(day: int) -> pa.Table:
    """The rows of one commit, the same in every run."""
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(days=day)
    numbers = range(day * ROWS_A_DAY, (day + 1) * ROWS_A_DAY)
    return pa.table(
        {
            "order_id": list(numbers),
            "customer": [f"customer-{number * 7919 % 997}" for number in numbers],
            "ordered_at": [start + datetime.timedelta(minutes=5 * n) for n in range(ROWS_A_DAY)],
            "amount": [Decimal(number * 7919 % 100_000) / 100 for number in numbers],
        },
        schema=SCHEMA,
    )


PAGES = ("README.md", "docs/quickstart.md")
CONF = Path("conf/icekeep.yaml")


class Followed(msgspec.Struct, frozen=True):
    """What came of a page's commands, in their order, in a directory."""

    page: str
    directory: Path
    lines: tuple[tuple[str, Finished], ...]

    @property
    def output(self) -> set[str]:
        """Every line that was printed, but for numbers and places."""
        return {likeness(line) for _, done in self.lines for text in (done.out, done.err) for line in text.splitlines()}


def run(line: str, directory: Path) -> Finished:
    """Run a line in a shell that knows `icekeep`, as it is installed."""
    environment = {key: value for key, value in os.environ.items() if key not in ("SPARK_HOME", "PYTHONPATH")}
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        env={**environment, "PATH": f"{BIN}:{environment['PATH']}"},
        cwd=directory,
        timeout=300,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def begin(page: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Block]:
    """Write the configuration that a page begins with, and make the tables that it speaks of; gives its other blocks."""
    monkeypatch.chdir(directory)
    first, *others = [block for block in blocks(ROOT / page) if block.language in ("", "yaml")]
    while first.language != "yaml":
        first, *others = others
    CONF.parent.mkdir()
    CONF.write_text(first.text)
    make_sales(CONF, *yaml.safe_load(first.text)["catalogs"])
    yield from others


@pytest.fixture(scope="module", params=thinned(PAGES, 2))
def followed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    directory = tmp_path_factory.mktemp("reader")
    lines = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        for block in begin(request.param, directory, monkeypatch):
            if block.language == "yaml":
                CONF.write_text(CONF.read_text() + block.text)
            for line in commands_of(block):
                if line.startswith("icekeep "):
                    lines.append((line, run(line, directory)))
    return Followed(request.param, directory, tuple(lines))


def likeness(line: str) -> str:
    """A line without what differs from run to run: numbers, ids, places, and the widths of columns."""
    words = re.sub(r"─+", "─", line).split()
    return " ".join("#" if re.search(r"\d|/", word) else word for word in words)


def shown_outputs(page: str) -> list[str]:
    """The lines of a page's blocks that icekeep's own commands print."""
    told = [block.text for block in blocks(ROOT / page) if block.language == ""]
    texts = [text for text in told if not re.search(r"^(make|pip|spark-submit) ", text, re.MULTILINE)]
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    return [line for line in lines if not commands_of(Block("", line))]


def sales(directory: Path) -> SqlCatalog:
    """The catalog of a page, as PyIceberg sees it."""
    return SqlCatalog("lake", uri=f"sqlite:///{directory}/catalog.db", warehouse=(directory / "warehouse").as_uri())


def test_every_command_does_what_it_is_to_do(followed: Followed) -> None:
    assert len(followed.lines) >= 8
    # `doctor` may find that the machine of a test has little memory.
    wrong = {line: done.err for line, done in followed.lines if done.status and not line.startswith("icekeep doctor")}
    assert wrong == {}
    assert {done.status for line, done in followed.lines if line.startswith("icekeep doctor")} <= {0, 2}


def test_tables_have_the_rows_that_they_had(followed: Followed) -> None:
    catalog = sales(followed.directory)
    for name, commits in COMMITS.items():
        rows = multiset(pa.concat_tables(sold_on(day) for day in range(commits)))
        assert multiset(catalog.load_table(f"sales.{name}").scan().to_arrow()) == rows


def test_what_is_shown_is_what_was_printed(followed: Followed) -> None:
    """But for numbers and places; a line that ends with `...` is the beginning of one."""
    shown, printed = shown_outputs(followed.page), followed.output
    assert len(shown) >= 5
    for line in shown:
        beginning = likeness(line.removesuffix(LEFT_OUT))
        is_whole = not line.endswith(LEFT_OUT)
        assert any(one == beginning or (not is_whole and one.startswith(beginning)) for one in printed), line


def test_readme_s_python_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(begin("README.md", tmp_path, monkeypatch))
    [program] = [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]
    (tmp_path / "program.py").write_text(program)
    done = run(f"'{sys.executable}' program.py", tmp_path)
    assert done.status == 0, done.err
    orders = sales(tmp_path).load_table("sales.orders")
    [left] = orders.snapshots()
    assert left.summary["icekeep.job"] == "compact"
    assert orders.scan().count() == COMMITS["orders"] * ROWS_A_DAY
