import io
import json
import sys

import pytest
from openlineage.client import OpenLineageClient

from icekeep.errors import UsageError
from icekeep.events import InRun, RunEnded, RunStarted, StepStarted
from icekeep.maintenance.compact.options import RewriteDataFilesResult
from icekeep.telemetry import asked
from icekeep.telemetry.asked import lineage_is_asked_for
from icekeep.telemetry.lineage import OpenLineage, dataset_name, new_client
from kit.cases import for_each
from kit.small_servers import http_sink

START_MS = 1_700_000_000_000
ONE, TWO = "0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7"
OUTSIDE = "11111111-d9cb-469f-a165-70867728950e"


def started(run_id=f"compact-{ONE}", **named):
    told = {
        "job": "compact",
        "table": "lake.db.events",
        "policy": "nightly",
        "started_ms": START_MS,
        "table_location": "s3a://bucket/db/events",
        "metadata_location": "m1",
        "snapshot_id": 3,
    } | named
    return RunStarted(run_id=run_id, **told)


def ended(run_id=f"compact-{ONE}", **named):
    told = {"status": "done", "exit_status": 0, "ended_ms": START_MS + 1_500, "metadata_location": "m2"} | named
    return RunEnded(run_id=run_id, **told)


def emitted(tmp_path, *told, environ=None):
    """The events that are written to a file, as JSON has them."""
    path = tmp_path / "lineage.jsonl"
    client = OpenLineageClient(config={"transport": {"type": "file", "log_file_path": str(path), "append": True}})
    sink = OpenLineage(client, environ or {})
    for event in told:
        sink.on(event, START_MS)
    sink.close()
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def without_schemas(facet):
    return {key: value for key, value in facet.items() if not key.startswith("_")}


def test_a_run_that_changed_its_table(tmp_path):
    result = RewriteDataFilesResult(added_data_files_count=2, added_bytes_count=900)
    begin, end = emitted(
        tmp_path, started(), InRun(f"compact-{ONE}", StepStarted("x")), ended(snapshot_id=7, result=result)
    )
    assert (begin["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert (begin["eventTime"], end["eventTime"]) == (
        "2023-11-14T22:13:20.000+00:00",
        "2023-11-14T22:13:21.500+00:00",
    )
    for event in (begin, end):
        assert event["run"]["runId"] == ONE
        assert (event["job"]["namespace"], event["job"]["name"]) == ("default", "compact.lake.db.events")
        assert without_schemas(event["job"]["facets"]["jobType"]) == {
            "processingType": "BATCH",
            "integration": "ICEKEEP",
            "jobType": "JOB",
        }
        [read] = event["inputs"]
        assert (read["namespace"], read["name"]) == ("s3://bucket", "db/events")
        assert read["facets"]["version"]["datasetVersion"] == "3"
        assert read["facets"]["storage"]["storageLayer"] == "iceberg"
        [link] = read["facets"]["symlinks"]["identifiers"]
        assert link == {"namespace": "iceberg://lake", "name": "db.events", "type": "TABLE"}
        assert event["run"]["facets"]["processing_engine"]["name"] == "icekeep"
        assert "parent" not in event["run"]["facets"]
    assert begin["outputs"] == []
    [written] = end["outputs"]
    assert (written["namespace"], written["name"]) == ("s3://bucket", "db/events")
    assert written["facets"]["version"]["datasetVersion"] == "7"
    assert without_schemas(written["outputFacets"]["outputStatistics"]) == {"size": 900, "fileCount": 2}
    assert without_schemas(end["run"]["facets"]["icekeep"]) == {
        "run": f"compact-{ONE}",
        "policy": "nightly",
        "status": "done",
        "exitStatus": 0,
    }


@pytest.mark.parametrize(
    ("end", "state", "outputs"),
    [
        ({"metadata_location": "m1"}, "COMPLETE", 0),
        ({"metadata_location": None}, "COMPLETE", 0),
        ({"status": "partial", "exit_status": 3}, "COMPLETE", 1),
        ({"status": "failed", "exit_status": 4, "error_kind": "safety", "metadata_location": None}, "FAIL", 0),
        ({"status": "interrupted", "exit_status": 143, "metadata_location": None}, "ABORT", 0),
    ],
)
def test_how_a_run_ends(tmp_path, end, state, outputs):
    _, last = emitted(tmp_path, started(), ended(**end))
    assert (last["eventType"], len(last["outputs"])) == (state, outputs)


def test_a_failure_says_what_went_wrong(tmp_path):
    _, last = emitted(
        tmp_path, started(), ended(status="failed", exit_status=4, error_kind="safety", error_message="refused")
    )
    assert without_schemas(last["run"]["facets"]["errorMessage"]) == {
        "message": "refused",
        "programmingLanguage": "PYTHON",
    }
    assert last["run"]["facets"]["icekeep"]["errorKind"] == "safety"


def test_a_drop_is_one(tmp_path):
    _, last = emitted(tmp_path, started(job="drop"), ended(metadata_location=None))
    [written] = last["outputs"]
    assert written["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "DROP"


def test_unloaded_tables_and_dry_runs_are_not_emitted(tmp_path):
    """A table that could not be loaded is no dataset, and a dry run no run."""
    first, last = emitted(tmp_path, started(table_location=None), ended(status="failed", exit_status=1))
    assert (first["inputs"], last["inputs"], last["outputs"]) == ([], [], [])
    assert emitted(tmp_path / "no", started(only_tells=True), ended()) == []


def test_child_run_has_maintain_as_parent_and_scheduler_as_root(tmp_path):
    environ = {"OPENLINEAGE_NAMESPACE": "prod", "OPENLINEAGE_PARENT_ID": f"air/flow/dag.task/{OUTSIDE}"}
    events = emitted(
        tmp_path,
        started(f"maintain-{TWO}", job="maintain", table="", table_location=None),
        started(parent_id=f"maintain-{TWO}"),
        ended(),
        ended(f"maintain-{TWO}"),
        environ=environ,
    )
    whole, part = (event["run"]["facets"]["parent"] for event in events[:2])
    assert whole["run"] == {"runId": OUTSIDE, "facets": {}}
    assert (whole["job"]["namespace"], whole["job"]["name"]) == ("air/flow", "dag.task")
    assert part["run"]["runId"] == TWO
    assert (part["job"]["namespace"], part["job"]["name"]) == ("prod", "maintain")
    assert part["root"]["run"]["runId"] == OUTSIDE
    assert [event["job"]["namespace"] for event in events] == ["prod"] * 4


@pytest.mark.parametrize("text", ["", "x", "a/b", "a/b/no-uuid", f"//{OUTSIDE}"])
def test_a_parent_that_cannot_be_read_is_none(tmp_path, text):
    first, _ = emitted(tmp_path, started(), ended(), environ={"OPENLINEAGE_PARENT_ID": text})
    assert "parent" not in first["run"]["facets"]


@for_each(
    ("location", "name"),
    [
        ("s3://b/db/t", ("s3://b", "db/t")),
        ("gs://b/db/t/", ("gs://b", "db/t")),
        ("hdfs://nn:8020/wh/db/t", ("hdfs://nn:8020", "/wh/db/t")),
        ("file:/wh/db/t", ("file", "/wh/db/t")),
        ("/wh/db/t", ("file", "/wh/db/t")),
        ("wasbs://c@acc.blob.core.windows.net/t", ("abfss://c@acc.dfs.core.windows.net", "t")),
    ],
)
def test_a_table_is_named_by_where_it_lies(location, name):
    assert dataset_name(location) == name


def test_file_of_other_user_does_not_enable_lineage(tmp_path, monkeypatch):
    (tmp_path / "openlineage.yml").write_text("transport: {type: http, url: 'https://elsewhere'}")
    assert lineage_is_asked_for({}, tmp_path)
    monkeypatch.setattr(asked, "is_own_file", lambda _: False)
    assert not lineage_is_asked_for({}, tmp_path)
    assert lineage_is_asked_for({"OPENLINEAGE_URL": "http://x"}, tmp_path)


def test_when_it_is_asked_for(tmp_path):
    home = tmp_path / "home"
    (home / ".openlineage").mkdir(parents=True)
    environ = {"HOME": str(home)}
    assert not lineage_is_asked_for(environ, tmp_path)
    assert lineage_is_asked_for({"OPENLINEAGE_URL": "http://x"}, tmp_path)
    assert lineage_is_asked_for({"OPENLINEAGE__TRANSPORT__TYPE": "console"}, tmp_path)
    assert lineage_is_asked_for({"OPENLINEAGE_CONFIG": "x.yml"}, tmp_path)
    assert not lineage_is_asked_for({"OPENLINEAGE_URL": "http://x", "OPENLINEAGE_DISABLED": "True"}, tmp_path)
    assert not lineage_is_asked_for({"OPENLINEAGE_NAMESPACE": "x"}, tmp_path)
    (home / ".openlineage" / "openlineage.yml").write_text("transport: {type: console}")
    assert lineage_is_asked_for(environ, tmp_path)
    (tmp_path / "openlineage.yml").write_text("transport: {type: console}")
    assert lineage_is_asked_for({}, tmp_path)


@pytest.mark.server
def test_events_reach_a_server_as_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with http_sink(201) as server:
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", server.url)
        sink = OpenLineage(new_client(), {})
        sink.on(started(), START_MS)
        sink.on(ended(), START_MS)
        sink.close()
    assert {one.path for one in server.requests} == {"/api/v1/lineage"}
    assert [json.loads(one.body)["eventType"] for one in server.requests] == ["START", "COMPLETE"]


@pytest.mark.server
def test_a_server_that_refuses_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with http_sink(400) as server:
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", server.url)
        sink = OpenLineage(new_client(), {})
        with pytest.raises(Exception, match="400"):
            sink.on(started(), START_MS)


def test_the_console_is_stderr(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "console")
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    sink = OpenLineage(new_client(), {})
    sink.on(started(), START_MS)
    sink.on(ended(), START_MS)
    assert [json.loads(line)["eventType"] for line in stream.getvalue().splitlines()] == ["START", "COMPLETE"]


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "openlineage", None)
    with pytest.raises(UsageError, match=r"icekeep\[openlineage\] brings it"):
        new_client()
