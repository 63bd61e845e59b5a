"""The addresses behind the buttons of a task, by an Airflow that schedules nothing."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from icekeep.airflow.calls import JobOnTable
from icekeep.airflow.installation import Installation
from icekeep.airflow.outcomes import CallOutcome

FAKE_AIRFLOW = Path(__file__).resolve().parents[2] / "kit" / "fake_airflow"
HERE = Installation(conf=None, python="/py", docs_url="https://docs", report_url="https://pages/r.html")


@pytest.fixture
def addresses(monkeypatch):
    before = {*sys.modules}
    monkeypatch.syspath_prepend(str(FAKE_AIRFLOW))
    yield import_module("icekeep.airflow.links").addresses
    for name in {*sys.modules} - before:
        if name.partition(".")[0] == "airflow" or name.startswith("icekeep.airflow"):
            del sys.modules[name]


def ended(status, kind=None, job="compact"):
    document = {"error": {"kind": kind, "message": "m"}} if kind else {"status": "done"}
    return CallOutcome(call=JobOnTable(job=job, table="c.d.t"), status=status, document=document)


@pytest.mark.parametrize(
    ("one", "page"),
    [
        (ended(4, "safety"), "safety"),
        (ended(3), "partial"),
        (ended(137), "killed-run"),
        (ended(143), "interrupted"),
        (ended(5), "outcome-unknown"),
    ],
)
def test_the_runbook_is_that_of_the_first_failure(addresses, one, page):
    found = addresses([ended(0), one, ended(2, "usage")], HERE, "http://rm/a")
    assert found == {
        "Runbook": f"https://docs/runbooks/{page}.html",
        "Report": "https://pages/r.html",
        "Spark application": "http://rm/a",
    }


@pytest.mark.parametrize("one", [ended(0), ended(3, job="check"), ended(2, "../x"), ended(None)])
def test_no_runbook_link_without_failure_or_known_page(addresses, one):
    assert "Runbook" not in addresses([one], HERE, "")


def test_what_is_no_address_of_a_page_is_no_link(addresses):
    nowhere = Installation(conf=None, python="/py", report_url="javascript:alert(1)")
    assert addresses([ended(4, "safety")], nowhere, "N/A") == {}
