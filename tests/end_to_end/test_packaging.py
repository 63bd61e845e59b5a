import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from importlib.metadata import distributions, version
from pathlib import Path

import pytest

from icekeep.operations.doctor.driver import parse_requirement
from icekeep.operations.runbooks import page
from icekeep.shipped import shipped_files
from kit.shell import BIN, ROOT, Operator

LIB = ROOT / "lib"
TYPED = {"icekeep/py.typed", "icekeep/__init__.pyi", "icekeep/airflow/__init__.pyi"}
SHIPPED = sorted(f"icekeep/shipped/{name}" for name in shipped_files())

WHERE = """
import icekeep, pyspark
from pyspark.sql import SparkSession

def where(_):
    import icekeep.formats.rewrite.run
    return [icekeep.__file__]

spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
print("driver", icekeep.__file__)
print("executor", spark.sparkContext.parallelize([1], 1).mapPartitions(where).collect()[0])
spark.stop()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout, as a build leaves files in its source, where another worker may be at the same; it has private files too."""
    source = tmp_path_factory.mktemp("source")
    for name in ("lib", "jobs", "conf", "airflow_dags", "docs/runbooks"):
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    private_files = ("conf/icekeep.yaml", "conf/private.yaml", "conf/.env", "conf/log4j2-mine.properties")
    for private in (*private_files, "jobs/__pycache__/compact.pyc", "airflow_dags/.airflowignore"):
        (source / private).parent.mkdir(exist_ok=True)
        (source / private).write_text("private")
    return source


def build(source: Path, directory: Path, *flags: str) -> None:
    command = [sys.executable, "-m", "build", "--quiet", "--no-isolation", "--outdir", str(directory), *flags]
    subprocess.run([*command, str(source)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """The sdist, the wheel that is built from it, and the zip, as `make dist` makes them."""
    directory = tmp_path_factory.mktemp("dist")
    build(source, directory)
    subprocess.run([sys.executable, f"{ROOT}/.ci/zip_package.py", str(directory / "icekeep.zip")], check=True)
    return directory


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, dist: Path) -> Path:
    """The Python of an environment that has the wheel, and what it depends on from the environment of the tests."""
    environment, [wheel] = tmp_path_factory.mktemp("installed"), dist.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], env={**os.environ, "PYTHONPATH": ""}, check=True)
    [packages] = environment.glob("lib/python*/site-packages")
    # What this file names is found after the wheel, and no file of this kind in there is read, such as that of the checkout.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


Outside = Callable[..., str]
"""Takes the words of a command; what it prints in a directory that has nothing of the checkout."""


@pytest.fixture
def outside(operator: Operator, installed: Path) -> Outside:
    """Somebody who has nothing but what is installed."""
    python = {"PYSPARK_PYTHON": str(installed), "PYSPARK_DRIVER_PYTHON": str(installed)}

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            [*map(str, command)],
            env={**operator.environment(submit=True), **python},
            cwd=operator.conf.parent,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert " WARN " not in done.stderr
        return done.stdout.removesuffix("\n")

    return run


def test_wheel_holds_whole_package_and_shipped_files(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("icekeep/")}
    modules = {path.relative_to(LIB).as_posix() for path in (LIB / "icekeep").rglob("*.py")}
    templates = {path.relative_to(LIB).as_posix() for path in (LIB / "icekeep").rglob("templates/*")}
    runbooks = {path.relative_to(LIB).as_posix() for path in (LIB / "icekeep" / "runbooks").glob("*.md")}
    assert len(modules) > 400
    assert len(templates) > 5
    assert len(runbooks) > 20
    assert held == modules | templates | runbooks | {*SHIPPED, *TYPED}


def test_sdist_has_build_sources_and_nothing_private(dist: Path) -> None:
    [archive] = dist.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        members = sdist.getmembers()
    assert not [member.name for member in members if not (member.isfile() or member.isdir())]
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    [wheel] = dist.glob("*.whl")
    package = {f"lib/{name}" for name in zipfile.ZipFile(wheel).namelist() if name.startswith("icekeep/")}
    assert {name for name in names if not name.startswith("lib/icekeep.egg-info/")} == package | {
        *("LICENSE", "NOTICE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg")
    }


def test_the_wheel_of_the_sdist_is_that_of_the_checkout(dist: Path, source: Path, tmp_path: Path) -> None:
    build(source, tmp_path, "--wheel")
    [of_sdist], [of_checkout] = dist.glob("*.whl"), tmp_path.glob("*.whl")
    assert of_sdist.name == of_checkout.name
    with zipfile.ZipFile(of_sdist) as one, zipfile.ZipFile(of_checkout) as other:
        assert {name: one.read(name) for name in one.namelist()} == {
            name: other.read(name) for name in other.namelist()
        }


def test_the_installed_package_and_its_scripts(installed: Path, outside: Outside) -> None:
    icekeep, home = installed.with_name("icekeep"), installed.parents[1]
    assert outside(icekeep, "--version") == f"icekeep {version('icekeep')}"
    told, file = outside(installed, "-c", "import icekeep; print(icekeep.__version__, icekeep.__file__)").split()
    assert (told, Path(file).is_relative_to(home)) == (version("icekeep"), True)
    assert outside(installed, "-m", "icekeep", "path").splitlines() == [*shipped_files()]
    assert outside(icekeep, "help", "safety").splitlines()[0] == f"`safety`: {page('safety').title}"
    scripts = [name for name in shipped_files() if name.startswith("jobs/")]
    assert len(scripts) > 10
    shipped = Path(outside(icekeep, "path", scripts[0])).parents[1]
    assert shipped.is_relative_to(home)
    for name in scripts:
        assert outside(installed, shipped / name, "--help").startswith(f"usage: {Path(name).name} ")


def test_jobs_run_from_what_is_installed_alone(installed: Path, outside: Outside, operator: Operator) -> None:
    operator.lake.filled()
    rows = operator.lake.rows()
    compact, expire, log4j = (
        outside(installed, "-m", "icekeep", "path", name)
        for name in ("jobs/compact.py", "jobs/expire_snapshots.py", "conf/log4j2.properties")
    )
    where = ("--config", operator.conf, "--table", "local.db.events", "--output", "json")
    logs = ("--driver-java-options", f"-Dlog4j2.configurationFile=file:{log4j}")
    compacted = json.loads(outside(BIN / "spark-submit", "--master", "local[2]", *logs, compact, *where))
    assert compacted["result"]["rewritten_data_files_count"] == 18
    kept = ("--older-than", "0s", "--retain-last", "1", "--trash", "0")
    expired = json.loads(outside(installed, expire, *where, *kept))
    assert expired["result"]["deleted_data_files_count"] == 18
    assert operator.lake.rows() == rows


def test_the_zip_has_the_whole_door(dist: Path) -> None:
    code = (
        "import icekeep; print(icekeep.__file__); print([name for name in dir(icekeep) if not hasattr(icekeep, name)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(dist / "icekeep.zip")},
        cwd=dist,
        capture_output=True,
        text=True,
        check=True,
    )
    file, missing = done.stdout.splitlines()
    assert "icekeep.zip" in file
    assert missing == "[]"


@pytest.mark.parametrize(
    ("magic", "loaded"), [(importlib.util.MAGIC_NUMBER, ".pyc"), (b"old\n", ".py")], ids=["same-python", "another"]
)
def test_zip_modules_are_compiled_for_zipping_python(dist: Path, tmp_path: Path, magic: bytes, loaded: str) -> None:
    shown, name = tmp_path / "icekeep.zip", "icekeep/spec/collections.py"
    with zipfile.ZipFile(dist / "icekeep.zip") as whole, zipfile.ZipFile(shown, "w") as changed:
        modules = {entry for entry in whole.namelist() if entry.endswith(".py")}
        assert {entry for entry in whole.namelist() if entry.endswith(".pyc")} == {f"{entry}c" for entry in modules}
        for entry in whole.namelist():
            content = whole.read(entry)
            if entry.endswith(".pyc"):
                assert content.startswith(importlib.util.MAGIC_NUMBER)
                content = magic + content[len(magic) :]
            changed.writestr(entry, content)
    code = (
        "import inspect; from icekeep.spec import collections; print(collections.__file__); "
        "print(collections.packed.__code__.co_filename); "
        "print(inspect.getsource(collections.packed))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(shown)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    file, said, source = done.stdout.split("\n", 2)
    assert Path(file).suffix == loaded
    assert said.endswith(f"icekeep.zip/{name}")
    assert source.startswith("def packed")


def test_the_zip_says_what_to_do_after_an_error(dist: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "icekeep", "help", "safety"],
        env={**os.environ, "PYTHONPATH": str(dist / "icekeep.zip")},
        cwd=dist,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[0] == f"`safety`: {page('safety').title}"


def test_the_zip_knows_its_version_and_what_it_needs(dist: Path) -> None:
    """Snapshots of a job that came by `--py-files` name the version, and `doctor` holds packages against the ranges."""
    [wheel] = dist.glob("*.whl")
    [of_zip], [of_wheel] = (distributions(path=[str(path)]) for path in (dist / "icekeep.zip", wheel))
    assert of_zip.version == of_wheel.version == version("icekeep")
    assert of_zip.metadata["Requires-Python"] == of_wheel.metadata["Requires-Python"]
    of_each = [
        {
            (need.package, need.range, need.extra)
            for text in one.requires or ()
            if (need := parse_requirement(text, "x86_64"))
        }
        for one in (of_zip, of_wheel)
    ]
    assert of_each[0] == of_each[1]
    assert len(of_each[0]) > 30


def test_the_zip_has_what_makes_a_page(dist: Path) -> None:
    code = "from icekeep import ReportResult, report_page; print(report_page(ReportResult(status='done', catalogs=())))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(dist / "icekeep.zip")},
        cwd=dist,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("<!doctype html>")


@pytest.mark.nightly
def test_the_zip_reaches_driver_and_executors_by_py_files(dist: Path, tmp_path: Path, operator: Operator) -> None:
    script = tmp_path / "where.py"
    script.write_text(WHERE)
    archive = dist / "icekeep.zip"
    assert zipfile.ZipFile(archive).testzip() is None
    done = subprocess.run(
        [
            *(str(BIN / "spark-submit"), "--master", "local-cluster[1,1,1024]"),
            *("--conf", "spark.driver.host=127.0.0.1", "--py-files", str(archive), str(script)),
        ],
        env=operator.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    places = dict(line.split() for line in done.stdout.splitlines() if line.startswith(("driver", "executor")))
    assert places.keys() == {"driver", "executor"}
    assert all("icekeep.zip" in place for place in places.values()), places
