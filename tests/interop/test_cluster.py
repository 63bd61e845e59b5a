"""The short form of `tests/cluster`: two jobs on Spark's standalone cluster, which has the wheels and is given the package."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster import JOBS, ClusterTable, check_done, site_on_s3
from kit.java import IcebergJava
from kit.object_store import ObjectStore
from kit.postgres import Postgres
from kit.submitting import Standalone, Submitter, bare_python, python_with_wheels, zipped_package

pytestmark = pytest.mark.deep


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    cluster = Standalone(bare_python(tmp_path / "bare"), workers=1)
    yield cluster
    cluster.close()


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    server = ObjectStore()
    yield server
    server.close()


def test_jobs_on_a_cluster(
    cluster: Standalone, store: ObjectStore, postgres: Postgres, java: IcebergJava, tmp_path: Path
) -> None:
    """Tables lie on S3, their catalog in PostgreSQL."""
    site = site_on_s3(store, postgres.new_database(), java, tmp_path)
    python = python_with_wheels(tmp_path / "wheels")
    submitter = Submitter.with_zip(tmp_path / "edge", site.properties, cluster.master, zipped_package(tmp_path), python)
    table = ClusterTable(site, "events")
    for name in ("compact", "expire"):
        before = table.operations()
        done = submitter.run(JOBS[name].job, *JOBS[name].arguments, table=table.name, in_tasks=True)
        check_done(JOBS[name], done, table, before)
        assert submitter.events().task_counts
