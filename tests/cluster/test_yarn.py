"""Every job on YARN, client and cluster mode: tables on HDFS, their catalog Iceberg's REST server."""

import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hdfs_native import Client

from icekeep.runtime import SYSTEM
from icekeep.storage.hdfs.client import hdfs_path
from kit.cluster import JOBS, OLD, ClusterTable, Site, check_done, check_result, prepared
from kit.submitting import Hdfs, Submitter, Yarn

_NUMBERS = count(1)


@pytest.fixture
def submitter(
    yarn: Yarn, on_hdfs: Site, archive_in_hdfs: str, unpacked: Path, tmp_path: Path
) -> Callable[[str], Submitter]:
    """Submits by a deploy mode; nodes have nothing, and take the environment from HDFS."""

    def of(mode: str) -> Submitter:
        drivers = {"spark.pyspark.driver.python": str(unpacked)} if mode == "client" else {}
        more = ("--files", "icekeep.yaml") if mode == "cluster" else ()
        return Submitter(
            tmp_path / "edge",
            on_hdfs.properties,
            unpacked,
            ("--master", "yarn", "--deploy-mode", mode, "--archives", f"{archive_in_hdfs}#env", *more),
            {"spark.pyspark.python": "./env/bin/python", "spark.executor.instances": "2", **drivers, **yarn.settings()},
            {"HADOOP_CONF_DIR": str(yarn.configuration)},
        )

    return of


def make_older(hdfs: Hdfs, table: ClusterTable) -> None:
    """All files of a table on HDFS were written days ago."""
    then, client = SYSTEM.now_ms() - OLD // timedelta(milliseconds=1), Client(hdfs.uri)
    for file in table.files():
        client.set_times(hdfs_path(file).path, then, then)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_in_client_mode(
    yarn: Yarn, hdfs: Hdfs, on_hdfs: Site, submitter: Callable[[str], Submitter], name: str
) -> None:
    table, submits = ClusterTable(on_hdfs, f"c{next(_NUMBERS)}"), submitter("client")
    case, before = prepared(name, table, partial(make_older, hdfs))
    done = submits.run(case.job, *case.arguments, table=table.name, in_tasks=True)
    check_done(case, done, table, before)
    assert sum(submits.events().task_counts.values()) > 0


@pytest.mark.parametrize("name", JOBS)
def test_a_job_in_cluster_mode(
    yarn: Yarn, hdfs: Hdfs, on_hdfs: Site, submitter: Callable[[str], Submitter], name: str
) -> None:
    """As it is: small work is done by the driver, wherever that is. What it prints is in the log of its container."""
    table, submits = ClusterTable(on_hdfs, f"c{next(_NUMBERS)}"), submitter("cluster")
    case, before = prepared(name, table, partial(make_older, hdfs))
    done = submits.run(case.job, *case.arguments, table=table.name)
    assert done.status == 0, done.err[-4000:] + yarn.log("stderr")[-4000:]
    check_result(case, json.loads(yarn.log("stdout")), table, before)


def test_a_job_that_fails_in_cluster_mode_fails_its_spark_submit(
    yarn: Yarn, on_hdfs: Site, submitter: Callable[[str], Submitter]
) -> None:
    done = submitter("cluster").run("compact", table="db.nowhere")
    assert done.status == 1
    assert "exited with 2" in done.err
