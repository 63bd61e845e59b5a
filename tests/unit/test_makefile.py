"""What `make clean` removes: only what targets have made, never a table or a file of somebody who works in the checkout. How
environments are made that have PySpark, and which targets need none of them."""

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path, PurePath

import pytest
import yaml

from kit.pages import blocks

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def removed():
    """The patterns of paths that `make clean` gives to `rm`."""
    command = ["make", "--dry-run", "--no-print-directory", "clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    commands = [line.split() for line in done.stdout.splitlines()]
    assert {words[0] for words in commands} == {"rm"}
    return {word for words in commands for word in words[1:] if not word.startswith("-")}


def is_removed(path, patterns):
    """Whether the path or a directory above it is."""
    one = PurePath(path)
    return any(fnmatch(str(place), pattern) for place in (one, *one.parents) for pattern in patterns)


def configurations():
    """What a user of the checkout is shown: the example in conf/, and each block of YAML in the pages that begin."""
    pages = [ROOT / name for name in ("README.md", "docs/quickstart.md", "docs/install.md")]
    texts = [block.text for page in pages for block in blocks(page) if block.language == "yaml"]
    return [yaml.safe_load(text) for text in [*texts, (ROOT / "conf" / "icekeep.example.yaml").read_text()]]


def named_places():
    """Relative paths at which those configurations put tables, catalogs and records of runs."""
    catalogs = [one for found in configurations() for one in found.get("catalogs", {}).values()]
    warehouses = [one["warehouse"] for one in catalogs if "warehouse" in one]
    databases = [match[1] for one in catalogs if (match := re.fullmatch("sqlite:///(.+)", one.get("uri", "")))]
    return {*warehouses, *databases, *(f"{place}.icekeep-runs.db" for place in warehouses)}


def test_clean_removes_no_table_catalog_record_of_runs_or_configuration_that_a_user_is_told_to_have(removed):
    places = named_places()
    assert {"./warehouse", "catalog.db", "warehouse/catalog.db"} <= places
    kept = {*places, "conf/icekeep.yaml", "airflow_dags/mine.py", "jobs/mine.py"}
    assert {path for path in kept if is_removed(path, removed)} == set()


@pytest.mark.parametrize("made", [".venv", ".venv-matrix-newest", ".demo/warehouse", "build/site", "dist", ".bench"])
def test_clean_removes_what_targets_make(removed, made):
    assert is_removed(made, removed)


def test_the_demo_writes_nothing_but_what_clean_removes_and_git_passes_over(removed):
    told = (ROOT / "tests" / "demo" / "flights.py").read_text()
    [home] = re.findall(r'^HOME = ROOT / "(.+)"$', told, re.MULTILINE)
    assert is_removed(home, removed)
    assert f"/{home}/" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("target", ["dist", "dist-env"])
def test_a_package_is_built_without_java_and_without_the_environment_of_development(target):
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", target]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert any("/uv --quiet --no-config build " in line for line in lines)
    assert [line for line in lines if re.search(r"\bjava\b|(^|[\s/])\.venv(/| |$)", line)] == []


def test_pyspark_s_wheel_is_stored_uncompressed_wherever_it_is_built():
    locks = {lock.name for lock in (ROOT / ".ci").glob("*.lock") if re.search(r"^pyspark==", lock.read_text(), re.M)}
    assert locks == {"requirements.lock", "requirements-java.lock"}
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", "setup", "java-env"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for lock in locks:
        [line] = [one for one in lines if " pip install " in one and one.endswith(f"/{lock}")]
        assert "--config-settings-package 'pyspark:--build-option=--compression=stored'" in line


def test_a_change_is_tested_at_length_with_its_own_parts_of_the_night():
    command = ["make", "--dry-run", "--no-print-directory", "changed", "SINCE=main", "MINUTES=7"]
    short = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tests/nightly.py" not in short
    long = subprocess.run([*command, "CASES=1"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert '-m "" --cases 1 $files' in long
    assert 'tests/nightly.py --minutes 7 --since "main"' in long
