"""What `make matrix` tries is within the ranges of the package, and its page has a place for the table."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from icekeep.operations.doctor.driver import parse_requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def matrix():
    spec = importlib.util.spec_from_file_location("matrix", ROOT / ".ci" / "matrix.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_python_of_the_classifiers_is_tried(matrix):
    named = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)}
    assert named >= {"3.11", "3.12", "3.13"}
    assert named <= {one.python for one in matrix.COMBINATIONS}


def test_what_is_pinned_is_one_of_the_releases_that_the_package_allows(matrix):
    needs = [
        *PROJECT["dependencies"],
        *(need for extra in matrix.EXTRAS for need in PROJECT["optional-dependencies"][extra]),
    ]
    known = {need.package: need for text in needs if (need := parse_requirement(text, "x86_64"))}
    pins = [pin.split("==") for one in matrix.COMBINATIONS for pin in one.pins]
    assert pins
    for package, release in pins:
        assert known[package].allows(release.removesuffix(".*"))


def test_tests_and_extras_that_are_named_are_there_and_a_combination_has_a_name_of_its_own(matrix):
    assert all((ROOT / test).exists() for test in matrix.TESTS)
    assert {*matrix.EXTRAS} <= PROJECT["optional-dependencies"].keys()
    assert {*matrix.SHOWN} <= {*matrix._own_packages()}
    assert len({one.name for one in matrix.COMBINATIONS}) == len(matrix.COMBINATIONS)


def test_the_page_gets_rows_between_its_marks_and_keeps_the_other_rows_and_the_rest(matrix, monkeypatch, tmp_path):
    page = tmp_path / "matrix.md"
    page.write_text((ROOT / "docs" / "matrix.md").read_text())
    monkeypatch.setattr(matrix, "PAGE", page)
    first, second = matrix.COMBINATIONS[:2]
    matrix._save([matrix.Row(second, "3.14.1", {}, "an older run"), matrix.Row(first, "3.11.9", {}, "another")])
    matrix._save([matrix.Row(second, "3.14.2", {"pyspark": "4.3.0"}, "1,234 passed, 56 s")])
    text = page.read_text()
    table = text.partition(matrix.BEGIN)[2].partition(matrix.END)[0]
    assert [line.split(" | ")[0] for line in table.split("\n") if line[:2] == "| "][2:4] == [
        f"| {first.name}",
        f"| {second.name}",
    ]
    assert " | 3.14.2 | 4.3.0 | " in table
    assert table.count(f"| {second.name} |") == 1
    assert "an older run" not in text
    assert text.count(matrix.BEGIN) == text.count(matrix.END) == 1
    assert text.startswith((ROOT / "docs" / "matrix.md").read_text().partition(matrix.BEGIN)[0])
    assert text.endswith(matrix.END + "\n")


def test_releases_are_read_from_what_uv_has_compiled(matrix, tmp_path):
    file = tmp_path / "releases.txt"
    file.write_text(
        "pyarrow==26.0.1\npsycopg[binary]==3.2.1\nnumpy==2.4.6 ; python_full_version < '3.12'\n# a comment\n"
    )
    assert matrix._releases(file) == {"pyarrow": "26.0.1", "psycopg": "3.2.1", "numpy": "2.4.6"}
