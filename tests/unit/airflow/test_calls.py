"""Units of calls as XCom has them, and calls as listings and the form by hand say."""

import json
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.airflow.calls import JobOnTable, Unit, asked_call, due_calls, packed, units_of, unpacked
from icekeep.errors import UsageError
from icekeep.operations.configuration.file import parse_config
from kit.cases import cases, for_each


def call(table: str, job: str = "compact", *, submit: bool = False) -> JobOnTable:
    return JobOnTable(job=job, table=table, submit=submit)


def test_a_unit_is_a_table_in_the_order_in_which_tables_are_due():
    calls = [call("c.d.z"), call("c.d.z", "expire_snapshots"), call("c.d.a", submit=True)]
    assert units_of(calls, 2) == [Unit(name="c.d.z", calls=tuple(calls[:2])), Unit(name="c.d.a", calls=(calls[2],))]


def test_small_tables_share_units_before_large_ones():
    calls = [call(f"c.d.t{number}", submit=number < 2) for number in range(10)]
    assert [unit.name for unit in units_of(calls, 5)] == [
        "c.d.t0",
        "c.d.t1",
        "c.d.t2 and 2 more",
        "c.d.t5 and 2 more",
        "c.d.t8 and 1 more",
    ]


@cases(60)
@given(
    st.lists(st.builds(call, st.integers(0, 30).map("c.d.t{}".format), submit=st.booleans()), max_size=60),
    st.integers(1, 12),
)
def test_units_hold_each_call_once_and_are_not_more_than_wanted(calls, count):
    units = units_of(calls, count)
    assert sorted(units_calls := [one for unit in units for one in unit.calls], key=str) == sorted(calls, key=str)
    is_mixed = any(one.submit for one in calls) and not all(one.submit for one in calls)
    assert len(units) <= max(count, 2 if is_mixed else 1)
    tables = [table for unit in units for table in {one.table for one in unit.calls}]
    assert len(tables) == len({*tables})
    for table in tables:
        assert [one for one in units_calls if one.table == table] == [one for one in calls if one.table == table]


def test_a_unit_comes_out_of_xcom_as_it_went_in():
    units = [
        Unit(name="c.d.t", calls=(JobOnTable(job="compact", table="c.d.t", arguments=("--where=é",), until_ms=7),))
    ]
    through = json.loads(json.dumps(packed(units)))
    assert [unpacked(one) for one in through] == units


CONF = """
policies:
  - name: nightly
    schedule: "@daily"
    match: c.**
    window: {from: 22:00, to: 06:00}
    submit_over: 1000
    jobs: {compact: , check: }
  - {name: other, schedule: "@daily", match: c.**, jobs: {expire_snapshots: }}
"""
AT = round(datetime(2026, 1, 1, 23, tzinfo=UTC).timestamp() * 1000)
CLOSES = round(datetime(2026, 1, 2, 6, tzinfo=UTC).timestamp() * 1000)


def due(job, policy="nightly", estimate_bytes=0, **more):
    return {"job": job, "policy": policy, "arguments": [], "observes": False, "estimate_bytes": estimate_bytes, **more}


def calls(*jobs, policy=0, **changed):
    rules = parse_config(CONF).rules
    chosen = msgspec.structs.replace(rules.policies[policy], **changed)
    return due_calls({"tables": [{"table": "c.d.t", "jobs": jobs}]}, chosen, rules, AT)


def test_due_jobs_become_calls_and_large_ones_are_submitted():
    found = calls(
        due("compact", estimate_bytes=1001, arguments=["--where=a"]), due("check", estimate_bytes=1000, observes=True)
    )
    assert found == [
        JobOnTable(job="compact", table="c.d.t", arguments=("--where=a",), submit=True, until_ms=CLOSES),
        JobOnTable(job="check", table="c.d.t", arguments=("--dry-run",), submit=False, until_ms=CLOSES),
    ]


def test_without_a_limit_nothing_is_submitted():
    [call] = calls(due("compact", estimate_bytes=1 << 60), submit_over_bytes=None)
    assert not call.submit


def test_a_job_of_which_another_policy_decides_is_not_this_one_s():
    assert calls(due("expire_snapshots", policy="other")) == []
    [call] = calls(due("expire_snapshots", policy="other"), policy=1)
    assert call.until_ms is None


FORM = {"table": "c.d.t", "job": "expire_snapshots", "arguments": [], "dry_run": True, "run_by": "spark-submit"}


def asked(**changed):
    return asked_call({**FORM, **changed}, 0)


def test_a_form_is_a_call():
    assert asked() == JobOnTable(job="expire_snapshots", table="c.d.t", arguments=("--dry-run",), submit=True)
    assert asked(arguments=["--older-than=7d", "--trash", "3d"], dry_run=False, run_by="worker") == JobOnTable(
        job="expire_snapshots", table="c.d.t", arguments=("--older-than=7d", "--trash", "3d"), submit=False
    )
    assert asked(arguments=["--dry-run"]).arguments == ("--dry-run",)


@for_each(
    ("changed", "said"),
    [
        ({"table": "d.t"}, "'d.t' is no full name"),
        ({"arguments": ["--where=id > 1"]}, "unrecognized arguments"),
        ({"arguments": ["--older-than=soon"]}, "soon"),
        ({"arguments": ["--help"]}, "ask for help"),
        ({"arguments": ["--config=/etc/passwd"]}, "give settings of the job"),
        ({"arguments": ["--result-file=/etc/cron.d/x"]}, "give settings of the job"),
        ({"arguments": ["--table=c.d.other"]}, "argument --table: is given twice"),
        ({"arguments": ["--catalog=other"]}, "give settings of the job"),
        ({"arguments": ["--output=json"]}, "give settings of the job"),
        ({"arguments": ["--policy=mine"]}, "give settings of the job"),
    ],
)
def test_what_is_no_setting_of_the_job_is_refused(changed, said):
    with pytest.raises(UsageError, match=said):
        asked(**changed)
