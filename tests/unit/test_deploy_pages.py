"""docs/deploy says of limits, of Spark's settings and of the package's extras what the code has."""

import importlib.util
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import PurePath

import pytest
import yaml

from icekeep.operations.arguments import parse_command
from icekeep.operations.configuration.file import read_config
from icekeep.operations.doctor.driver import parse_requirement
from icekeep.operations.loading import open_settings
from icekeep.planning.spark import session
from icekeep.planning.spark.session import LIMITS
from icekeep.spec.types import GIB, MIB
from icekeep.version import ICEKEEP_VERSION
from kit.cases import for_each
from kit.pages import blocks
from kit.shell import ROOT

SPARK = (ROOT / "docs" / "deploy" / "spark.md").read_text()
INDEX = (ROOT / "docs" / "deploy" / "index.md").read_text()
INSTALL = (ROOT / "docs" / "install.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def rows(text):
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    return {first: rest for first, *rest in cells}


def test_limits_from_which_spark_works_are_those_of_the_code():
    told = {first: rest[0] for first, rest in rows(SPARK).items()}
    (rewritten,) = (value for name, value in told.items() if "bytes of files that are rewritten" in name)
    assert rewritten.startswith(f"{LIMITS.rewrite_bytes // GIB} GiB; {LIMITS.submitted_rewrite_bytes // MIB} MiB under")
    assert rewritten.endswith(
        f"; {LIMITS.session_rewrite_bytes // MIB} MiB where a session with a local master is given"
    )
    opened = told[next(name for name in told if name.startswith("the same: files that are opened"))]
    assert opened == f"{LIMITS.waiting_files_count}"
    deletes = told[
        "a group of `rewrite_position_deletes` that the driver does in any run, and that counts for neither limit"
    ]
    assert deletes == f"{LIMITS.delete_group_files_count} files, {LIMITS.delete_group_bytes // MIB} MiB"
    entries = told["scan planning, reports, manifests: entries"]
    assert entries.startswith(f"{LIMITS.folded_entries_count:,}; {LIMITS.matched_entries_count:,} where")
    garbage = told["`expire_snapshots`: entries that tell garbage from what is in use"]
    assert garbage == f"{LIMITS.reachable_entries_count:,}"
    assert told["`remove_orphan_files`: files of the listing"] == f"{LIMITS.listed_files_count:,}"
    assert told["files that are deleted, or moved to the trash"] == f"{LIMITS.deleted_files_count:,}"


def test_settings_of_a_session_are_told():
    told = {name: rest[0] for first, rest in rows(SPARK).items() for name in re.findall(r"`(spark\.[\w.]+)`", first)}
    settings = session.session_settings({"spark.master": "local[2]"}, {})
    # What depends on where icekeep lies.
    settings = {
        key: value
        for key, value in settings.items()
        if key not in ("spark.executorEnv.PYTHONPATH", "spark.driver.extraJavaOptions")
    }
    assert {*settings} <= {*told}
    for key in ("spark.log.level", "spark.ui.showConsoleProgress", "spark.ui.enabled"):
        assert told[key].startswith(f"`{settings[key]}`")
    on_a_cluster = session.session_settings({"spark.master": "yarn"}, {})
    local = {key for key, text in told.items() if "with a local master" in text}
    assert local == {*settings} - {*on_a_cluster}


def test_every_page_has_a_row_that_says_whether_it_is_run():
    pages = {path.name for path in (ROOT / "docs" / "deploy").glob("*.md")} - {"index.md"}
    told = {link: rest[0] for first, rest in rows(INDEX).items() for link in re.findall(r"\]\(([\w]+\.md)\)", first)}
    assert {*told} == pages
    for name in pages - {"spark.md"}:
        text = (ROOT / "docs" / "deploy" / name).read_text().lower()
        is_untested = any(words in text for words in ("not tested: written from", "not run by us", "not run here"))
        assert told[name].startswith("no") == is_untested, name


def test_every_extra_has_a_row():
    told = [first.strip("`") for first in rows(INSTALL) if first.startswith("`")]
    assert sorted(told) == sorted(PROJECT["optional-dependencies"])


def test_the_wheel_that_pages_name_is_that_of_this_version():
    named = re.findall(r"icekeep-(\d+\.\d+\.\d+)-py3", INSTALL) + re.findall(r"icekeep:(\d+\.\d+\.\d+)", INDEX + SPARK)
    assert named
    assert {*named} == {ICEKEEP_VERSION}


RECIPE = ROOT / "docs" / "deploy" / "container"
DOCKERFILE = (RECIPE / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((RECIPE / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
COPIED = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
SOURCES = [source for sources in COPIED for source in sources]


def test_what_the_image_copies_is_there():
    ignored = (RECIPE / "Dockerfile.dockerignore").read_text().splitlines()
    assert "lib" in SOURCES
    for source in SOURCES:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored
    # The directory with the user's configuration is copied, and that is left out: the last line that fits decides.
    assert ignored.index("conf/icekeep.yaml") > ignored.index("!conf")


def test_the_image_has_the_python_that_is_needed():
    [version] = re.findall(r"^ARG BASE=python:3\.(\d+)-slim$", DOCKERFILE, re.MULTILINE)
    assert int(version) >= 11
    assert "://" not in DOCKERFILE


def test_the_configuration_is_read_and_its_catalog_opens():
    config = read_config(str(RECIPE / "icekeep.yaml"))
    keys = SERVICES["icekeep"]["environment"]
    catalog = open_settings(config.catalogs["lake"], environ=keys)
    assert catalog.name == "lake"
    assert [policy.name for policy in config.policies] == ["nightly"]


def test_the_image_s_configuration():
    [mounted] = [one for one in SERVICES["icekeep"]["volumes"] if one.startswith("./")]
    source, target, mode = mounted.split(":")
    assert (RECIPE / source).is_file()
    assert target == "/home/icekeep/conf/icekeep.yaml"
    assert mode == "ro"
    properties = read_config(str(RECIPE / "icekeep.yaml")).catalogs["lake"].properties
    addresses = [
        properties["uri"],
        properties["s3.endpoint"],
        SERVICES["catalog"]["environment"]["CATALOG_S3_ENDPOINT"],
    ]
    assert {address.partition("//")[2].partition(":")[0] for address in addresses} <= {*SERVICES}


@for_each("name", [*SERVICES])
def test_a_service_is_of_a_fixed_release_and_needs_what_is_there(name):
    service = SERVICES[name]
    assert re.search(r":[A-Za-z0-9.-]*\d", service["image"])
    assert {*service.get("depends_on", {})} <= {*SERVICES}
    named = {volume.partition(":")[0] for volume in service.get("volumes", ()) if not volume.startswith(".")}
    assert named <= {*COMPOSE["volumes"]}


def test_the_build_is_of_this_checkout():
    build = SERVICES["icekeep"]["build"]
    assert (RECIPE / build["context"]).resolve() == ROOT.resolve()
    assert (ROOT / build["dockerfile"]).read_text() == DOCKERFILE


def test_page_commands_are_valid_and_untested_parts_named():
    page = (RECIPE.parent / "container.md").read_text()
    ours = re.findall(r"^docker (?:compose .* run --rm icekeep|run .*icekeep:[\d.]+) (.+)$", page, re.MULTILINE)
    assert len(ours) == 5
    for command in ours:
        if command != "--version":
            parse_command(command.split(), None, 0)
    assert "What is not tested here is the base" in page


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


def test_pinned_releases_are_allowed_by_package(matrix):
    needs = [
        *PROJECT["dependencies"],
        *(need for extra in matrix.EXTRAS for need in PROJECT["optional-dependencies"][extra]),
    ]
    known = {need.package: need for text in needs if (need := parse_requirement(text, "x86_64"))}
    pins = [pin.split("==") for one in matrix.COMBINATIONS for pin in one.pins]
    assert pins
    for package, release in pins:
        assert known[package].allows(release.removesuffix(".*"))


def test_combinations_name_what_there_is(matrix):
    assert all((ROOT / test).exists() for test in matrix.TESTS)
    assert {*matrix.EXTRAS} <= PROJECT["optional-dependencies"].keys()
    assert {*matrix.SHOWN} <= {*matrix._own_packages()}
    assert len({one.name for one in matrix.COMBINATIONS}) == len(matrix.COMBINATIONS)


def test_rows_of_the_page_between_its_marks(matrix, monkeypatch, tmp_path):
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


@pytest.mark.process
def test_clean_removes_nothing_of_a_user_s(removed):
    places = named_places()
    assert {"./warehouse", "catalog.db", "warehouse/catalog.db"} <= places
    kept = {*places, "conf/icekeep.yaml", "airflow_dags/mine.py", "jobs/mine.py"}
    assert {path for path in kept if is_removed(path, removed)} == set()


@pytest.mark.process
@pytest.mark.parametrize("made", [".venv", ".venv-matrix-newest", ".demo/warehouse", "build/site", "dist", ".bench"])
def test_clean_removes_what_targets_make(removed, made):
    assert is_removed(made, removed)


@pytest.mark.process
def test_the_demo_writes_only_what_clean_removes(removed):
    told = (ROOT / "tests" / "demo" / "flights.py").read_text()
    [home] = re.findall(r'^HOME = ROOT / "(.+)"$', told, re.MULTILINE)
    assert is_removed(home, removed)
    assert f"/{home}/" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.process
@pytest.mark.parametrize("target", ["dist", "dist-env"])
def test_a_package_is_built_without_java(target):
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", target]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert any("/uv --quiet --no-config build " in line for line in lines)
    assert [line for line in lines if re.search(r"\bjava\b|(^|[\s/])\.venv(/| |$)", line)] == []


@pytest.mark.process
def test_pyspark_wheel_is_stored_uncompressed_everywhere():
    locks = {lock.name for lock in (ROOT / ".ci").glob("*.lock") if re.search(r"^pyspark==", lock.read_text(), re.M)}
    assert locks == {"requirements.lock", "requirements-java.lock"}
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", "setup", "java-env"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for lock in locks:
        [line] = [one for one in lines if " pip install " in one and one.endswith(f"/{lock}")]
        assert "--config-settings-package 'pyspark:--build-option=--compression=stored'" in line


@pytest.mark.process
def test_long_test_of_change_runs_its_parts_of_nightly():
    command = ["make", "--dry-run", "--no-print-directory", "changed", "SINCE=main", "MINUTES=7"]
    short = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tests/nightly.py" not in short
    long = subprocess.run([*command, "CASES=1"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert '-m "" --cases 1 $files' in long
    assert 'tests/nightly.py --minutes 7 --since "main"' in long
