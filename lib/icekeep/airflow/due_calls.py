"""What `icekeep maintain --list` answers, as calls. Pure."""

from collections.abc import Mapping
from typing import Any

from icekeep.airflow.units import JobOnTable
from icekeep.policies.resolution import window_of
from icekeep.policies.values import Policy, Rules
from icekeep.policies.windows import closes_ms


def due_calls(found: Mapping[str, Any], policy: Policy, rules: Rules, now_ms: int) -> list[JobOnTable]:
    """The calls that `maintain --list` names, in its order."""
    limit_bytes, calls = policy.submit_over_bytes, []
    for table in found["tables"]:
        for job in table["jobs"]:
            if job["policy"] != policy.name:
                continue
            window = window_of(rules, policy.name, table["table"], job["job"])
            call = JobOnTable(
                job=job["job"],
                table=table["table"],
                arguments=(*job["arguments"], *(["--dry-run"] if job["observes"] else [])),
                submit=limit_bytes is not None and job["estimate_bytes"] > limit_bytes,
                until_ms=None if window is None else closes_ms(window, now_ms),
            )
            calls.append(call)
    return calls
