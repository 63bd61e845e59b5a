"""The places that CONTRIBUTING.md lists for a new job, flag, catalog or fault are all there are."""

import ast
import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from icekeep.maintenance.check.faults import FaultId
from icekeep.operations.jobs import JOBS, POLICY_JOBS, resolve
from icekeep.settings import CATALOG_TYPES
from kit.cases import for_each
from kit.shell import ROOT

LIB = ROOT / "lib" / "icekeep"
TEXT = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are added")[2].partition("\n## ")[0]
WORD = re.compile(r"[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)*")
SUFFIXES = {".py", ".pyi", ".md", ".yml", ".yaml", ".txt", ".json"}
TYPES = [name for name in CATALOG_TYPES if (ROOT / "docs" / "catalogs" / f"{name}.md").exists()]

# Modules that are about one job or catalog, and would not have to name another one.
ABOUT_ONE = {
    "remove_orphan_files": {"health/job.py"},
    "rewrite_manifests": {"health/values.py", "planning/manifest_lists.py"},
    "expire_snapshots": {"maintenance/delete/lease.py"},
}
TELL_OF_ALL = {
    "docs/index.md",
    "docs/judges.md",
    "docs/performance/scale.md",
    "docs/playground.md",
    "docs/table-properties.md",
    "lib/icekeep/__init__.py",
}
"""Prose in which each job of a policy happens to be named, and in which a new one need not be."""


def section(heading: str) -> str:
    found = re.search(rf"\*\*{heading}\*\*(.*?)(?=\n\*\*|\Z)", TEXT, re.S)
    assert found is not None, heading
    return found[1]


def patterns(text: str) -> set[str]:
    """The files and folders in code spans, with `*` for NAME; where a command is run is no place."""
    words = {word for span in re.findall(r"`([^`]+)`", text) for word in span.split() if ".venv" not in word}
    words -= {"tests/"}
    return {word.replace("NAME", "*") for word in words if "/" in word or re.fullmatch(r"[A-Z]+\.md", word)}


def listed(heading: str) -> set[str]:
    """The places of a list, and those of all lists."""
    return patterns(section(heading)) | {"CHANGELOG.md"}


def is_in(path: str, places: Iterable[str]) -> bool:
    return any(path.startswith(place) if place.endswith("/") else fnmatch(path, place) for place in places)


@cache
def words_by_file() -> dict[str, frozenset[str]]:
    """The words of each file of the repository; those with dashes and underscores are whole."""
    folders = (ROOT / name for name in ("lib", "docs", "conf", ".ci", "jobs", "airflow_dags", "tests"))
    files = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*") if path.suffix in SUFFIXES)]
    return {str(path.relative_to(ROOT)): frozenset(WORD.findall(path.read_text())) for path in files}


def naming_all(names: Iterable[Collection[str]]) -> set[str]:
    """The files that have each of some things, by one of its names."""
    wanted = [frozenset(one) for one in names]
    return {path for path, words in words_by_file().items() if all(not words.isdisjoint(one) for one in wanted)}


def spellings(name: str) -> set[str]:
    """A setting in code and on the command line; an argument may be the plural."""
    return {name, name.replace("_", "-"), name.replace("-", "_"), re.sub("y$", "ie", name) + "s"}


def naming(name: str, *, in_prose: bool = False) -> set[str]:
    """The modules with the name as a text of its own, or as a word of one, outside docstrings."""
    names = re.compile(rf"\b{name}\b").search if in_prose else name.__eq__
    found = set()
    for path in LIB.rglob("*.py"):
        text = path.read_text()
        if name in text and any(map(names, texts_of(ast.parse(text)))):
            found.add(str(path.relative_to(ROOT)))
    return found


def texts_of(tree: ast.AST) -> Iterable[str]:
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value


def test_listed_places_exist():
    paths = patterns(TEXT)
    assert len(paths) > 35
    here = [*words_by_file(), *(f"{parent.as_posix()}/" for path in words_by_file() for parent in Path(path).parents)]
    assert [one for one in paths if not (LIB / one).exists() and not any(fnmatch(path, one) for path in here)] == []


def test_whatever_lists_all_jobs_is_listed():
    found = naming_all({name, job.run.rpartition(":")[2]} for name, job in JOBS.items())
    assert len(found) > 5
    assert sorted(path for path in found if not is_in(path, listed("A job."))) == []


def test_whatever_lists_the_jobs_of_policies_is_listed():
    found = naming_all({name} for name in POLICY_JOBS)
    places = listed("A job.") | TELL_OF_ALL
    assert sorted(path for path in found if not is_in(path, {*places, "tests/"})) == []


@for_each("name", [name for name, job in JOBS.items() if len(job.settings) > 5])
def test_whatever_lists_all_settings_of_a_job_is_listed(name):
    found = naming_all(spellings(setting.name) for setting in JOBS[name].settings)
    check_of_flags(name, found)


@for_each("name", [name for name, job in JOBS.items() if job.options])
def test_whatever_lists_all_options_of_a_job_is_listed(name):
    options = [one for one in resolve(JOBS[name].options).__struct_encode_fields__ if "." not in one]
    check_of_flags(name, naming_all(map(spellings, options)) if len(options) > 2 else set())


def check_of_flags(name, found):
    """Its package, and what it shares with others, has them; so has a function that passes them on, for plan_scan `scan`."""
    own = {f"{package(name)}/", "lib/icekeep/maintenance/delete/", "lib/icekeep/maintenance/rewrite/", "tests/"}
    own |= {"lib/icekeep/tables/read.py"} if name == "plan_scan" else set()
    assert sorted(path for path in found if not is_in(path, listed("A flag or an option of a job.") | own)) == []


def package(name: str) -> str:
    return str(Path("lib", *resolve(JOBS[name].run).__module__.split(".")).parent)


def test_whatever_lists_all_types_of_catalogs_is_listed():
    found = naming_all({name} for name in TYPES)
    assert len(found) > 5
    assert sorted(path for path in found if not is_in(path, listed("A type of catalog."))) == []


def test_whatever_lists_all_faults_is_listed():
    found = naming_all({str(int(fault))} for fault in FaultId)
    assert len(found) > 1
    assert sorted(path for path in found if not is_in(path, listed("A fault that `check` finds."))) == []


@pytest.mark.parametrize("name", ["expire_snapshots", "remove_orphan_files", "rewrite_manifests"])
def test_no_other_module_names_a_job(name):
    assert name in POLICY_JOBS
    own = {f"{package(name)}/", *(f"lib/icekeep/{one}" for one in ABOUT_ONE[name])}
    places = listed("A job.") - {"lib/icekeep/maintenance/"} | own
    assert sorted(path for path in naming(name) if not is_in(path, places)) == []


@pytest.mark.parametrize("name", ["glue", "hive"])
def test_no_other_module_names_a_type_of_catalog(name):
    assert name in CATALOG_TYPES
    places = listed("A type of catalog.") - {"lib/icekeep/catalog/"} | {"lib/icekeep/catalog/clients/"}
    assert sorted(path for path in naming(name, in_prose=True) if not is_in(path, places)) == []


def test_numbers_of_faults_stand_in_their_table_alone():
    numbers = {int(fault) for fault in FaultId}
    found = []
    for path in LIB.rglob("*.py"):
        if path.name == "faults.py" or "maintenance" not in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and any(
                isinstance(one, ast.Constant) and one.value in numbers and type(one.value) is int for one in node.args
            ):
                found.append(f"{path.relative_to(LIB)}:{node.lineno}")
    assert found == []
