"""Airflow submits jobs to YARN, client and cluster mode: what becomes of the tasks, and what Airflow knows of the results.

A deferred task is run by `dag.test()`, which runs its trigger in place of a triggerer.
"""

import json
from pathlib import Path

import pytest

from icekeep.airflow.yarn import ADDRESS_KEY, ResourceManager
from kit.cluster import ClusterTable, Site
from kit.in_airflow import SAID, connection, run
from kit.submitting import DRIVER_IS_HERE, SMALL, Yarn

POLICIES = """
runs: {{uri: "sqlite:///{history}"}}
defaults:
  schedule: null
  retries: 0
  archives: ["{archive}#env"]
policies:
  - name: in-cluster
    tables: [lake.db.inside, lake.db.nowhere]
    jobs: {{compact: {{options: {{rewrite-all: true}}}}}}
    deploy_mode: cluster
    spark_conf: {inside}
  - name: in-client
    tables: [lake.db.outside]
    jobs: {{compact: {{options: {{rewrite-all: true}}}}}}
    deploy_mode: client
    spark_conf: {outside}
"""


@pytest.fixture
def found(yarn: Yarn, on_hdfs: Site, archive_in_hdfs: str, unpacked: Path, tmp_path: Path) -> dict[str, object]:
    """The tables, and the runs of both policies."""
    tables = {name: ClusterTable(on_hdfs, name) for name in ("inside", "outside")}
    common = {**SMALL, **yarn.settings(), "spark.pyspark.python": "./env/bin/python", "spark.eventLog.enabled": "false"}
    outside = {**common, **DRIVER_IS_HERE, "spark.pyspark.driver.python": str(unpacked)}
    conf = tmp_path / "icekeep.yaml"
    policies = POLICIES.format(
        history=tmp_path / "runs.db", archive=archive_in_hdfs, inside=json.dumps(common), outside=json.dumps(outside)
    )
    conf.write_text(f"catalogs: {json.dumps({'lake': dict(on_hdfs.properties)})}\n{policies}")
    home = tmp_path / "airflow"
    home.mkdir()
    runs = run(
        home,
        conf,
        [["icekeep_in-cluster", None], ["icekeep_in-client", None]],
        AIRFLOW_CONN_SPARK_DEFAULT=connection("yarn"),
        HADOOP_CONF_DIR=str(yarn.configuration),
    )
    return {"tables": tables, "inside": runs[0], "outside": runs[1]}


def test_jobs_in_cluster_and_in_client_mode(found):
    inside, outside = found["inside"]["tasks"], found["outside"]["tasks"]
    for task, name, run_of in (
        (inside["lake.db.inside.compact[-1]"], "inside", "inside"),
        (outside["lake.db.outside.compact[-1]"], "outside", "outside"),
    ):
        table = found["tables"][name]
        assert task["state"] == "success"
        assert (task["left"]["exit_status"], task["left"]["result"]["rewritten_data_files_count"]) == (0, 12)
        table.check()
        head = str(table.table.metadata.current_snapshot_id)
        [[uri, _, extra]] = found[run_of]["events"]
        assert (uri, extra["snapshot_id_after"]) == (f"iceberg://lake/db/{name}", head)
    # What spark-submit says of a driver elsewhere is that it failed; the status is that of the job.
    missing = inside["lake.db.nowhere.compact[-1]"]
    assert (missing["state"], missing["left"]["exit_status"]) == ("failed", 2)
    assert (found["inside"]["state"], found["outside"]["state"]) == ("failed", "success")


DEFERRED = """
import json, os

from airflow.sdk import DAG

from icekeep.airflow import CheckOperator, CompactOperator, Installation

PLACE = Installation(conf=os.environ["ICEKEEP_CONFIG"], python=os.environ["ICEKEEP_PYTHON"], home=os.environ["ICEKEEP_HOME"])
CLUSTER = json.loads(os.environ["CLUSTER"])

with DAG("deferred", schedule=None, default_args={"deferrable": True, "retries": 0, "installation": PLACE}) as dag:
    CompactOperator(task_id="done", table="lake.db.deferred", options={"rewrite-all": True}, spark=True, alias="own", **CLUSTER)
    CompactOperator(task_id="wrong", table="lake.db.nowhere", spark=True, **CLUSTER)
    CheckOperator(task_id="worker", table="lake.db.deferred")
"""


def test_triggerer_waits_and_reports_driver_outcome(
    yarn: Yarn, on_hdfs: Site, archive_in_hdfs: str, tmp_path: Path
) -> None:
    """The task's slot is free from when YARN has accepted the application."""
    table, home, conf = ClusterTable(on_hdfs, "deferred"), tmp_path / "airflow", tmp_path / "icekeep.yaml"
    record = f'runs: {{uri: "sqlite:///{tmp_path}/runs.db"}}\n'
    conf.write_text(f"{record}catalogs: {json.dumps({'lake': dict(on_hdfs.properties)})}\n")
    home.mkdir()
    settings = {
        **SMALL,
        **yarn.settings(),
        "spark.pyspark.python": "./env/bin/python",
        "spark.eventLog.enabled": "false",
    }
    cluster = {"deploy_mode": "cluster", "archives": f"{archive_in_hdfs}#env", "conf": settings}
    [done] = run(
        home,
        conf,
        [["deferred", None]],
        DEFERRED,
        AIRFLOW_CONN_SPARK_DEFAULT=connection("yarn", **{ADDRESS_KEY: yarn.rest}),
        HADOOP_CONF_DIR=str(yarn.configuration),
        CLUSTER=json.dumps(cluster),
    )
    tasks, said = done["tasks"], (home / SAID).read_text()
    assert {name: task["state"] for name, task in tasks.items()} == {
        "done[-1]": "success",
        "wrong[-1]": "failed",
        "worker[-1]": "success",
    }
    left = tasks["done[-1]"]["left"]
    assert (left["exit_status"], left["result"]["rewritten_data_files_count"]) == (0, 12)
    table.check()
    [[uri, _, extra]] = done["events"]
    assert (uri, extra["snapshot_id_after"]) == (
        "iceberg://lake/db/deferred",
        str(table.table.metadata.current_snapshot_id),
    )
    assert tasks["wrong[-1]"]["left"]["exit_status"] == 2
    assert said.count("a triggerer waits for application_") == 2
    assert "the worker waits for check of lake.db.deferred: it is a process of the worker" in said
    # An application that has ended stays as it is, and one that is not there is no error of the cluster.
    manager = ResourceManager(yarn.rest)
    assert manager.report("application_1_0001").state == ""
