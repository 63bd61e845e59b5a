from datetime import UTC, datetime

import msgspec

from icekeep.airflow.due_calls import due_calls
from icekeep.airflow.units import JobOnTable
from icekeep.operations.configuration.file import parse_config

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


def test_what_is_due_becomes_calls_of_which_those_over_the_limit_are_submitted():
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
