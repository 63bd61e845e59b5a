"""Airflow submits jobs to YARN, client and cluster mode: what becomes of the tasks, and what Airflow knows of the results."""

import json
from pathlib import Path

import pytest

from kit.cluster_tables import ClusterTable, Site
from kit.in_airflow import connection, run
from kit.submitting import DRIVER_IS_HERE, SMALL
from kit.yarn import Yarn

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
        head = table.table.metadata.current_snapshot_id
        [[uri, _, extra]] = found[run_of]["events"]
        assert (uri, extra["snapshot_id_after"]) == (f"iceberg://lake/db/{name}", head)
    # What spark-submit says of a driver elsewhere is that it failed; the status is that of the job.
    missing = inside["lake.db.nowhere.compact[-1]"]
    assert (missing["state"], missing["left"]["exit_status"]) == ("failed", 2)
    assert (found["inside"]["state"], found["outside"]["state"]) == ("failed", "success")
