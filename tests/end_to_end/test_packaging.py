import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from icekeep.operations.runbooks import page
from kit.shell import BIN, ROOT, Operator

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
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, source = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("source")
    # A build leaves files in its source, where another worker may be at the same.
    shutil.copytree(ROOT / "lib", source / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--quiet",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(directory),
            str(source),
        ],
        check=True,
        capture_output=True,
    )
    subprocess.run([sys.executable, f"{ROOT}/.ci/zip_package.py", str(directory / "icekeep.zip")], check=True)
    return directory


def test_the_wheel_holds_the_whole_package_and_its_command(dist: Path, tmp_path: Path) -> None:
    [wheel] = dist.glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), str(wheel)],
        check=True,
    )
    for files in ("*.py", "templates/*", "runbooks/*.md"):
        installed = {p.relative_to(tmp_path / "icekeep") for p in (tmp_path / "icekeep").rglob(files)}
        assert (
            installed
            == {p.relative_to(ROOT / "lib" / "icekeep") for p in (ROOT / "lib" / "icekeep").rglob(files)}
            != set()
        )
    done = subprocess.run(
        [str(tmp_path / "bin" / "icekeep"), "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "compact" in done.stdout
    assert helped([str(tmp_path / "bin" / "icekeep")], tmp_path) == page("safety").title


def test_the_zip_says_what_to_do_after_an_error(dist: Path) -> None:
    assert helped([sys.executable, "-m", "icekeep"], dist / "icekeep.zip") == page("safety").title


def helped(command: list[str], package: Path) -> str:
    """What the page of a kind of error is about, of an icekeep that is not this checkout."""
    done = subprocess.run(
        [*command, "help", "safety"],
        env={**os.environ, "PYTHONPATH": str(package)},
        cwd=package.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[0].removeprefix("`safety`: ")


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
def test_modules_in_the_zip_are_compiled_for_the_python_that_zipped(
    dist: Path, tmp_path: Path, magic: bytes, loaded: str
) -> None:
    shown, name = tmp_path / "icekeep.zip", "icekeep/spec/bins.py"
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
        "import inspect; from icekeep.spec import bins; print(bins.__file__); print(bins.packed.__code__.co_filename); "
        "print(inspect.getsource(bins.packed))"
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
