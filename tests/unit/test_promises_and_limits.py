"""docs/safety.md names the tests behind each promise, and they are there; docs/limits.md has the numbers of the code."""

import re
from pathlib import Path

import pytest

from icekeep.catalog.open import open_catalog
from icekeep.errors import UnsupportedError
from icekeep.formats.machine import COMFORTABLE_BYTES
from icekeep.formats.parquet.footer import MAX_FOOTER_BYTES
from icekeep.formats.puffin import _MAX_FOOTER_BYTES as PUFFIN_FOOTER_BYTES
from icekeep.formats.rewrite.copy_row_groups import MAX_ROW_GROUPS
from icekeep.health.files import MAX_HEADS
from icekeep.maintenance.check import deletes, row_ids
from icekeep.maintenance.delete.execute import CALL_FILES
from icekeep.planning.spark.session import LIMITS
from icekeep.planning.spark.workers import THREAD_BYTES
from icekeep.spec.avro import _MAX_BLOCK_BYTES, _MAX_HEADER_BYTES
from icekeep.spec.filters.expressions import MAX_DEPTH
from icekeep.spec.filters.parsing import MAX_LITERALS, MAX_TEXT_LENGTH
from icekeep.spec.metadata import MAX_METADATA_BYTES, SUPPORTED_FORMAT_VERSION
from icekeep.spec.sorting import MAX_TEXT_LENGTH as SORT_ORDER_LENGTH
from icekeep.spec.types import GIB, MAX_NESTING, MIB
from kit.shell import ROOT
from simulation.mutants import MUTANTS

SAFETY = (ROOT / "docs" / "safety.md").read_text()
PAGE = (ROOT / "docs" / "limits.md").read_text()
PROMISES = [*re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", SAFETY, re.MULTILINE)]
NOT_PROMISED = "What is not promised"


@pytest.mark.parametrize(("promise", "text"), PROMISES, ids=[name for name, _ in PROMISES])
def test_each_promise_names_tests_that_there_are(promise: str, text: str) -> None:
    named = re.findall(r"^\| \[([\w/.]+)\]\(\.\./tests/([\w/.]+)\) \| .+ \|$", text, re.MULTILINE)
    assert (len(named) >= 3) != (promise == NOT_PROMISED)
    for shown, address in named:
        assert shown == address
        holds_something(ROOT / "tests" / address)


def holds_something(path: Path) -> None:
    """A module of tests has some, a contract has methods that are; what is run by hand runs by itself."""
    text = path.read_text()
    assert re.search(r"^(    )?def test_|^if __name__|^MUTANTS\b", text, re.MULTILINE) or path.suffix == ".txt"


def test_the_page_counts_mutants_as_there_are() -> None:
    assert f"in {len(MUTANTS)} ways" in SAFETY


def shown(value: int, is_size: bool) -> str:
    if not is_size:
        return f"{value:,}"
    return f"{value // GIB} GiB" if value >= GIB else f"{value // MIB} MiB" if value >= MIB else f"{value // 1024} KiB"


def test_what_is_done_without_spark_is_as_the_code_has_it() -> None:
    told = {name.strip("`"): value for name, (value, _) in tables()[1].items()}
    assert told == {name: shown(getattr(LIMITS, name), name.endswith("bytes")) for name in LIMITS.__struct_fields__}


def tables() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The table of sizes, and that of what is done without Spark."""
    sizes, _, without_spark = PAGE.partition("\n## What is done without Spark")
    return _table(sizes.rpartition("\n| limit |")[2]), _table(without_spark.rpartition("\n| limit |")[2])


def _table(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.partition("\n\n")[0].splitlines()[2:]]
    return {name: rest for name, *rest in cells}


def test_sizes_are_as_the_code_has_them() -> None:
    assert [value for value, _ in tables()[0].values()] == [
        shown(MAX_METADATA_BYTES, True),
        f"{shown(_MAX_HEADER_BYTES, True)}; {shown(_MAX_BLOCK_BYTES, True)}",
        shown(PUFFIN_FOOTER_BYTES, True),
        shown(MAX_FOOTER_BYTES, True),
        shown(MAX_ROW_GROUPS, False),
        shown(THREAD_BYTES, True),
        shown(COMFORTABLE_BYTES, True),
        f"{shown(MAX_TEXT_LENGTH, True)}; {shown(MAX_LITERALS, False)}; {shown(MAX_DEPTH, False)}",
        shown(SORT_ORDER_LENGTH, True),
        shown(MAX_NESTING, False),
        shown(CALL_FILES, False),
        shown(deletes.REACHES, False),
        shown(row_ids.BRANCH_FILES, False),
        shown(row_ids.OVERLAPPING_FILES, False),
        shown(MAX_HEADS, False),
    ]


def test_what_is_said_to_be_refused_is() -> None:
    assert f"format version {SUPPORTED_FORMAT_VERSION + 1} and later" in PAGE
    for kind in ("dynamodb", "bigquery", "nessie"):
        assert f"`{kind}`" in PAGE
        with pytest.raises(UnsupportedError):
            open_catalog("c", {"type": kind})
