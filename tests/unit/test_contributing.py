"""The places that CONTRIBUTING.md lists for a new job, catalog or fault are all there are."""

import ast
import re
from pathlib import Path

import pytest

from icekeep.maintenance.check.faults import FaultId
from icekeep.operations.jobs import JOBS, POLICY_JOBS
from icekeep.settings import CATALOG_TYPES

ROOT = Path(__file__).parents[2]
LIB = ROOT / "lib" / "icekeep"
TEXT = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are added")[2].partition("\n## ")[0]

# Modules that are about one job or catalog, and would not have to name another one.
ABOUT_ONE = {
    "remove_orphan_files": {"health/job.py"},
    "rewrite_manifests": {"health/values.py", "planning/manifest_lists.py"},
    "expire_snapshots": {"maintenance/delete/lease.py"},
}


def section(heading: str) -> str:
    found = re.search(rf"\*\*{heading}\*\*(.*?)(?=\n\*\*|\Z)", TEXT, re.S)
    assert found is not None, heading
    return found[1]


def listed(heading: str) -> set[Path]:
    return {ROOT / path for path in re.findall(r"`([a-z_./]+/[a-z_./]*)`", section(heading))}


def naming(name: str) -> set[Path]:
    """The modules with the name as a text of its own, outside docstrings."""
    found = set()
    for path in LIB.rglob("*.py"):
        text = path.read_text()
        if f'"{name}"' in text and any(
            isinstance(node, ast.Constant) and node.value == name for node in ast.walk(ast.parse(text))
        ):
            found.add(path)
    return found


def test_listed_places_exist():
    paths = [ROOT / path for path in re.findall(r"`((?:lib|jobs|docs|tests|\.ci)/[a-z_./]*)`", TEXT)]
    assert len(paths) > 15
    assert [path for path in paths if not path.exists()] == []


@pytest.mark.parametrize("name", ["expire_snapshots", "remove_orphan_files", "rewrite_manifests"])
def test_no_other_module_names_a_job(name):
    assert name in JOBS
    assert name in POLICY_JOBS
    [package] = [p.parent for p in LIB.glob("maintenance/*/__init__.py") if f'name="{name}"' in p.read_text()]
    others = {path for path in naming(name) if package not in path.parents} - {LIB / one for one in ABOUT_ONE[name]}
    assert others <= listed("A job.")


@pytest.mark.parametrize("name", ["glue", "hive"])
def test_no_other_module_names_a_type_of_catalog(name):
    assert name in CATALOG_TYPES
    own = {path for path in naming(name) if path.parent == LIB / "catalog" / "clients"}
    assert naming(name) - own <= listed("A type of catalog.")


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
