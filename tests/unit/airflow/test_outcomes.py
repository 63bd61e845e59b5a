import json

import pytest

from icekeep.airflow.calls import JobOnTable
from icekeep.airflow.outcomes import (
    XCOM_BYTES_MAX,
    CallOutcome,
    document_in,
    figures,
    for_xcom,
    of_process,
    status_in,
)
from kit.cases import for_each

CALL = JobOnTable(job="compact", table="c.d.t")


def ended(status, document=None, *, job="compact", said=""):
    return CallOutcome(call=JobOnTable(job=job, table="c.d.t"), status=status, document=document, said=said)


def test_done_job_is_one_line_without_zeros_and_timings():
    result = {
        "status": "done",
        "rewritten_data_files_count": 1200,
        "added_bytes_count": 1536,
        "failed_data_files_count": 0,
        "elapsed_ms": 1400,
        "cpu_ms": 900,
        "is_in_trash": True,
        "overlap_depth_before": None,
        "groups": [1],
    }
    document = {"status": "done", "dry_run": False, "run_id": "compact-1", "result": result}
    done = ended(0, document)
    assert done.is_summary_enough
    assert done.summary == (
        "compact c.d.t: done; rewritten data files 1,200, added bytes 1.5 KiB, elapsed 1.4 s; run compact-1"
    )
    assert ended(0).summary == "compact c.d.t: done"
    # A plan, and what nobody could read or was done in part, is shown whole.
    for other in (ended(0, {**document, "dry_run": True}), ended(0), ended(3, document)):
        assert not other.is_summary_enough


@for_each("status", [1, 3, 75, 137, 143, None])
def test_what_may_pass_is_worth_another_try(status):
    assert ended(status).is_worth_retrying


@for_each("status", [2, 4, 5, 127, 130])
def test_what_somebody_must_look_at_is_not(status):
    assert not ended(status).is_worth_retrying
    assert "which a retry does not help" in ended(status).failure


def test_what_a_check_has_found_another_try_would_find_again():
    assert not ended(3, job="check").is_worth_retrying
    assert ended(1, job="check").is_worth_retrying


@for_each(
    ("message", "status"),
    [
        ("Cannot execute: spark-submit x. Error code is: 4.\nLast spark-submit output:\nx", 4),
        ("Cannot execute: spark-submit x. Error code is: -9.", 137),
        ("Cannot execute: spark-submit x. Error code is: 1.\n... User application exited with 75\n...", 75),
        ("org.apache.spark.SparkUserAppException: User application exited with status 2", 2),
        ("Error code is: 1. Kubernetes spark exit code is: 4", 4),
        ("Error code is: 1. Kubernetes spark exit code is: 0", 1),
        ("[Errno 2] No such file or directory: 'spark-submit'", None),
    ],
)
def test_the_status_of_a_job_is_found_in_what_is_said_of_it(message, status):
    assert status_in(message) == status


def test_a_signal_has_the_status_that_a_shell_gives_it():
    assert [of_process(status) for status in (0, 4, -15, -9)] == [0, 4, 143, 137]


def test_a_failure_is_one_line_with_what_the_job_says():
    refused = {"error": {"kind": "safety", "message": "the table has gc.enabled=false"}}
    assert ended(4, refused).failure == (
        "compact c.d.t ended with status 4 (refused), which a retry does not help: the table has gc.enabled=false"
    )
    assert ended(3, {"status": "partial"}).failure == (
        "compact c.d.t ended with status 3 (done in part): the result says 'partial'"
    )
    assert ended(75, said="the catalog is out of reach").failure == (
        "compact c.d.t ended with status 75 (try again later): the catalog is out of reach"
    )
    assert ended(None, said="no spark-submit").failure == "compact c.d.t did not run: no spark-submit"
    assert ended(9).failure == "compact c.d.t ended with status 9, which a retry does not help"


def test_table_has_changed_only_where_metadata_moved():
    moved = {"metadata_location_before": "a", "metadata_location_after": "b"}
    assert ended(0, moved).has_committed
    assert ended(0, {"metadata_location_before": None, "metadata_location_after": "b"}).has_committed
    assert not ended(0, {**moved, "metadata_location_after": "a"}).has_committed
    assert not ended(0, {"metadata_location_before": "a", "metadata_location_after": None}).has_committed
    assert not ended(0, {}).has_committed
    assert not ended(0).has_committed


def test_xcom_gets_single_values_and_names_of_left_out_ones():
    document = {"status": "done", "result": {"n": 1, "text": "x" * 9999, "groups": [{"a": 1}], "of": {"m": 2, "l": []}}}
    assert figures(document) == {
        "status": "done",
        "result": {"n": 1, "text": "x" * 500, "of": {"m": 2}},
        "left_out": ["result.groups", "result.of.l"],
    }


def test_what_xcom_gets_has_a_limit_whatever_a_document_holds():
    wide = {"status": "done", "result": {f"key{number}": "x" * 400 for number in range(1000)}}
    assert figures(wide) == {"status": "done", "left_out": ["result"]}
    lists = {f"key{number}": [] for number in range(5000)}
    assert len(json.dumps(figures(lists))) < XCOM_BYTES_MAX
    many = [ended(number % 2, {"status": "done", "result": {"text": "x" * 400}}) for number in range(2000)]
    told = for_xcom(many)
    assert len(json.dumps(told)) <= XCOM_BYTES_MAX
    assert (told["calls_count"], told["failed_count"]) == (2000, 1000)
    assert 10 < len(told["calls"]) < 2000


def test_xcom_gets_the_document_of_one_call_itself():
    assert for_xcom([ended(4, {"job": "compact", "error": {"kind": "safety"}})]) == {
        "job": "compact",
        "table": "c.d.t",
        "error": {"kind": "safety"},
        "exit_status": 4,
    }


@pytest.mark.parametrize("text", [None, "", "{", "[1]", "7"])
def test_a_result_that_cannot_be_read_is_none(tmp_path, text):
    path = tmp_path / "result.json"
    if text is not None:
        path.write_text(text)
    assert document_in(path) is None
