"""Every job on Spark's standalone cluster, client mode: tables on S3, their catalog in PostgreSQL."""

from functools import partial
from pathlib import Path

import pytest

from kit.cluster import JOBS, ClusterTable, Site, check_done, make_older, prepared
from kit.object_store import ObjectStore
from kit.submitting import Standalone, Submitter


@pytest.mark.parametrize("name", JOBS)
def test_a_job_in_tasks_of_executors_that_have_the_wheels(
    store: ObjectStore, by_zip: Submitter, s3_table: ClusterTable, name: str
) -> None:
    """Nothing is so little here that the driver would do it by itself."""
    case, before = prepared(name, s3_table, partial(make_older, store))
    done = by_zip.run(case.job, *case.arguments, table=s3_table.name, in_tasks=True)
    check_done(case, done, s3_table, before)
    assert sum(by_zip.events().task_counts.values()) > 0


@pytest.mark.parametrize("name", ["compact", "equality-deletes"])
def test_a_job_on_nodes_that_have_nothing(by_archive: Submitter, s3_table: ClusterTable, name: str) -> None:
    """All that a task needs is in the archive."""
    case, before = JOBS[name], s3_table.operations()
    done = by_archive.run(case.job, *case.arguments, table=s3_table.name, in_tasks=True)
    check_done(case, done, s3_table, before)
    assert sum(by_archive.events().task_counts.values()) > 0


def test_vectors_are_made_and_applied_by_executors(by_zip: Submitter, on_s3: Site) -> None:
    table = ClusterTable(on_s3, "vectors", format_version=3)
    for name in ("equality-deletes", "compact"):
        before = table.operations()
        done = by_zip.run(JOBS[name].job, *JOBS[name].arguments, table=table.name, in_tasks=True)
        assert done.status == 0, done.err[-4000:]
        assert len(table.operations()) > len(before)
        table.check()


def test_a_node_that_lacks_icekeep_is_told_in_one_line(
    standalone: Standalone, on_s3: Site, s3_table: ClusterTable, unpacked: Path, bare: Path, tmp_path: Path
) -> None:
    before = s3_table.operations()
    without = Submitter(
        tmp_path / "edge",
        on_s3.properties,
        unpacked,
        ("--master", standalone.master),
        {"spark.pyspark.python": str(bare), "spark.pyspark.driver.python": str(unpacked)},
    )
    done = without.run("compact", *JOBS["compact"].arguments, table=s3_table.name, in_tasks=True)
    assert done.status == 1
    assert len(done.complaint.splitlines()) == 1
    assert (
        "Spark failed: the executors' Python has no package 'icekeep'; give spark-submit --archives "
        "icekeep-env.tar.gz#env --conf spark.pyspark.python=./env/bin/python, or --py-files icekeep.zip where"
    ) in done.complaint
    assert s3_table.operations() == before
    assert not s3_table.left_files()


def test_a_node_that_lacks_the_wheels_is_told_in_one_line(
    standalone: Standalone,
    on_s3: Site,
    s3_table: ClusterTable,
    unpacked: Path,
    bare: Path,
    zipped: Path,
    tmp_path: Path,
) -> None:
    without = Submitter(
        tmp_path / "edge",
        on_s3.properties,
        unpacked,
        ("--master", standalone.master, "--py-files", str(zipped)),
        {"spark.pyspark.python": str(bare), "spark.pyspark.driver.python": str(unpacked)},
    )
    done = without.run("compact", *JOBS["compact"].arguments, table=s3_table.name, in_tasks=True)
    assert done.status == 1
    assert "the executors' Python has no package '" in done.complaint
    assert len(done.complaint.splitlines()) == 1


def test_a_node_that_lacks_the_python_is_told_in_one_line(
    standalone: Standalone, on_s3: Site, s3_table: ClusterTable, unpacked: Path, tmp_path: Path
) -> None:
    without = Submitter(
        tmp_path / "edge",
        on_s3.properties,
        unpacked,
        ("--master", standalone.master),
        {"spark.pyspark.python": "./env/bin/python", "spark.pyspark.driver.python": str(unpacked)},
    )
    done = without.run("compact", *JOBS["compact"].arguments, table=s3_table.name, in_tasks=True)
    assert done.status == 1
    assert len(done.complaint.splitlines()) == 1
    assert (
        "executors cannot start './env/bin/python'; give spark-submit --archives icekeep-env.tar.gz#env"
        in done.complaint
    )
