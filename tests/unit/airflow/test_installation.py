"""Command lines and variables of the machines of Airflow, and what a process beside a task has printed."""

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from icekeep.airflow.calls import JobOnTable, arguments_of_defaults, submit_arguments
from icekeep.airflow.installation import SUBMITTED, Installation, ProcessOutput, job_words
from icekeep.airflow.provider import get_provider_info, sanitize_uri, table_uri
from icekeep.operations.configuration.file import parse_config
from kit.cases import for_each


def test_checkout_has_job_scripts_and_installation_has_one():
    here = Installation(conf="/c.yaml", python="/py", home="/home/icekeep")
    assert here.command(["compact", "-x"]) == ["/py", "-P", "-m", "icekeep", "compact", "-x"]
    of_task = {"ICEKEEP_SUBMITTER": "parent"}
    assert here.environment({"A": "b"}) == {**of_task, "A": "b", "PYTHONPATH": "/home/icekeep/lib"}
    assert here.environment({"PYTHONPATH": "/more"}) == {**of_task, "PYTHONPATH": f"/home/icekeep/lib{os.pathsep}/more"}
    assert here.application("compact") == ("/home/icekeep/jobs/compact.py", [])
    installed = Installation(conf="/c.yaml", python="/py")
    assert installed.command([]) == here.command([])
    assert installed.environment({"PYTHONPATH": "/more"}) == {**of_task, "PYTHONPATH": "/more"}
    # Who says otherwise has a wrapper that starts Python and ends.
    assert installed.environment({"ICEKEEP_SUBMITTER": "none"}) == {"ICEKEEP_SUBMITTER": "none"}
    assert installed.application("compact") == (str(SUBMITTED), ["compact"])
    assert [path.name for path in SUBMITTED.parent.glob("*.py")].count("__init__.py") == 1
    assert {path.name for path in SUBMITTED.parent.glob("*.py")} == {"__init__.py", SUBMITTED.name}


def test_job_words_name_table_policy_config_and_result_file():
    call = JobOnTable(job="expire_snapshots", table="c.d.t", arguments=("--older-than=7d",))
    words = job_words(call, "nightly", "/c.yaml", Path("/tmp/r.json"))
    assert words == [
        "--table=c.d.t",
        "--config=/c.yaml",
        "--policy=nightly",
        "--output=table",
        "--result-file=/tmp/r.json",
    ]
    observing = JobOnTable(job="expire_snapshots", table="c.d.t", arguments=("--older-than=7d", "--dry-run"))
    assert job_words(observing, "nightly", "c.yaml", None)[2:4] == ["--dry-run", "--policy=nightly"]
    by_hand = job_words(call, None, "c.yaml", None)
    assert by_hand == ["--table=c.d.t", "--config=c.yaml", "--older-than=7d", "--output=table"]
    plain = JobOnTable(job="compact", table="c.d.t")
    assert job_words(plain, None, "c.yaml", None, "json") == ["--table=c.d.t", "--config=c.yaml", "--output=json"]


POLICIES = """
defaults: {schedule: null, connection: cluster, spark_conf: {spark.a: 1}}
policies:
  - name: n
    tables: [c.d.t]
    jobs: {compact: }
    deploy_mode: cluster
    py_files: icekeep.zip
    archives: ["hdfs:///env.tar.gz#env"]
    files: [a.xml, b.xml]
    spark_conf: {spark.b: 2}
"""


def test_spark_submit_is_told_what_the_policy_says():
    config = parse_config(POLICIES)
    assert submit_arguments(config.policies[0]) == {
        "conn_id": "cluster",
        "conf": {"spark.a": "1", "spark.b": "2"},
        "deploy_mode": "cluster",
        "py_files": "icekeep.zip",
        "archives": "hdfs:///env.tar.gz#env",
        "files": "a.xml,b.xml",
    }
    assert arguments_of_defaults(config.rules.defaults) == {"conn_id": "cluster", "conf": {"spark.a": "1"}}


@pytest.mark.parametrize("table", ["c.d.t", "c.d.e.t", "c.d é.t/x?#"])
def test_the_uri_of_a_table_is_one_that_airflow_takes_as_it_is(table):
    uri = table_uri(table)
    assert sanitize_uri(urlsplit(uri)).geturl() == uri
    assert uri.isascii()


@for_each("uri", ["iceberg:///d/t", "iceberg://c/t", "iceberg://c", "iceberg://c//t"])
def test_a_uri_that_names_no_table_is_refused(uri):
    with pytest.raises(ValueError, match="CATALOG/NAMESPACE/TABLE"):
        sanitize_uri(urlsplit(uri))


def test_the_provider_names_what_is_there():
    info = get_provider_info()
    for module in [*info["operators"][0]["python-modules"]]:
        assert (Path(__file__).parents[3] / "lib" / f"{module.replace('.', '/')}.py").is_file()
    assert {one["handler"] for one in info["asset-uris"]} == {f"{sanitize_uri.__module__}.{sanitize_uri.__name__}"}


def said(*lines):
    one = ProcessOutput()
    assert [*one.looked_at(lines)] == [*lines]
    return one


def test_the_line_of_the_last_error_is_kept_and_no_other():
    one = said("INFO icekeep: no", "icekeep: first\n", "icekeep: the table is gone\n", "INFO end")
    assert one.line == "the table is gone"
    assert one.tail.endswith("icekeep: the table is gone\nINFO end")


def test_where_to_read_on_is_left_out_as_in_documents():
    one = said("icekeep: the table has gc.enabled=false (see there) (icekeep help safety)")
    assert one.line == "the table has gc.enabled=false (see there)"
    assert one.tail.endswith("(icekeep help safety)")


def test_an_error_is_found_in_logs_of_json_too():
    def line(**changed):
        known = {"level": "error", "message": "the table is gone", "logger": "icekeep", "facts": {"exit_status": 2}}
        return json.dumps({**known, **changed})

    assert said(line(), "{", "{}", line(level="warning", message="no")).line == "the table is gone"
    assert said(line(facts=None), line(logger="py4j")).line == ""


def test_the_application_is_that_of_which_the_last_line_speaks():
    yarn = said(
        "Submitted application application_1_0001", "Application report for application_2_0042 (state: FINISHED)"
    )
    assert yarn.application == "application_2_0042"
    assert said("labels: spark-app-selector -> spark-0af3, spark-role -> driver").application == "spark-0af3"
    assert said("nothing of the kind").application == ""


def test_however_much_is_said_only_the_end_is_kept():
    assert len(said(*(f"line {number}" for number in range(10_000))).tail) == 2000


def test_application_address_is_that_of_cluster_or_driver():
    assert said("\t tracking URL: http://rm:8088/proxy/application_1_0001/").address == (
        "http://rm:8088/proxy/application_1_0001/"
    )
    assert said("INFO SparkUI: Bound SparkUI to 0.0.0.0, and started at http://host:4040").address == "http://host:4040"
    assert said("INFO see http://elsewhere", "tracking URL: N/A").address == ""
