"""A lake for each test, on each kind of catalog where that matters."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from icekeep.planning.spark.session import Engine
from icekeep.planning.spark.workers import NEW_MANIFESTS, TaskSize
from kit.lake import Lake
from kit.runtime import NOTHING_HERE
from kit.spark_jobs import NAMESAKES, checked_run

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _each_spark_job_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark job of ours that forgets its run fails whatever test meets it; `test_tasks.py` meets those of all jobs."""
    for module in NAMESAKES:
        monkeypatch.setattr(f"{module}.spark_run", checked_run)


@pytest.fixture(autouse=True)
def little_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is cut for all slots, however little it is: tables of tests are small. What tasks write keeps its least size."""
    written = NEW_MANIFESTS.least
    monkeypatch.setattr(TaskSize, "least", property(lambda amount: written if amount is NEW_MANIFESTS else 1))


@pytest.fixture
def in_tasks(spark_session: SparkSession) -> Engine:
    """The session, which is given whatever it could do."""
    return Engine(spark=spark_session, limits=NOTHING_HERE)


@pytest.fixture(scope="session")
def kit_in_tasks(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tasks know what the kit has, such as its store in memory, which travels with its files."""
    archive = shutil.make_archive(str(tmp_path_factory.mktemp("kit") / "kit"), "zip", TESTS, "kit")
    spark_session.sparkContext.addPyFile(archive)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty catalog (SQLite) in a directory of the test's own."""
    return Lake(tmp_path)


@pytest.fixture(params=["sql", "filesystem"])
def any_lake(tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    """An empty catalog of each kind."""
    return Lake(tmp_path, request.param)
