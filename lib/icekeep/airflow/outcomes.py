"""What a job's end means for a task of Airflow: whether another try may help, what people are told, what XCom keeps. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from icekeep.airflow.calls import JobOnTable
from icekeep.operations.console.values import label, shown_value
from icekeep.operations.runbooks import INTERRUPTED, PARTIAL

WORTH_RETRYING = frozenset({1, 3, 75, 137, 143})
"""Failed, done in part, try again later, killed, terminated as workers and clusters do; any other needs somebody to look."""

FOUND = {"check": 3}
"""By job the status by which it says what it has found: another try would find it again."""

XCOM_BYTES_MAX = 16 << 10
"""Of what one task leaves in XCom, as JSON: Airflow keeps it in its database."""

_HELD = "held"
"""The status of a job that is not wanted on the table any more."""

_MEANINGS = {
    1: "failed",
    2: "wrong usage, configuration or name",
    3: "done in part",
    4: "refused",
    5: "nobody knows whether the commit has landed",
    75: "try again later",
    130: "interrupted",
    137: "killed",
    143: "terminated",
}
_KINDS = {3: PARTIAL, 5: "outcome-unknown", 130: INTERRUPTED, 137: "killed-run", 143: INTERRUPTED}
"""By the status the page about an end of which there is no document with an error."""

_OF_THE_PROCESS = frozenset({"cpu_ms", "peak_task_bytes"})
"""Figures that say nothing of the table."""

_TEXT_LENGTH_MAX = 500
_ITEMS_COUNT_MAX = 100
_IN_CLUSTER = re.compile(r"(?:[Uu]ser application exited with(?: status)?|Kubernetes spark exit code is:) (\d+)")
_STATUS = re.compile(r"Error code is: (-?\d+)")


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended.

    Attributes:
        status: the exit status; `None` where nobody knows it, or nothing was begun.
        document: what the job has to say, with `error` where it failed; `None` where it could not be read.
        said: the line by which it failed, where there is no document.
        was_begun: whether it was begun, where there is no `status`.
    """

    call: JobOnTable
    status: int | None
    document: Mapping[str, Any] | None = None
    said: str = ""
    was_begun: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it did what it was to do."""
        return self.status == 0

    @property
    def hold_reason(self) -> str | None:
        """Why it was not begun after all, as the table's policy is when it would begin; `None` where it was."""
        result = self._value_of("result")
        if self.status != 0 or self._value_of("status") != _HELD or not isinstance(result, Mapping):
            return None
        return str(result.get("held_by"))

    @property
    def is_summary_enough(self) -> bool:
        """Whether the job has done its work. A plan, and what has failed or was found, is shown whole."""
        return self.is_done and self.document is not None and not self._value_of("dry_run")

    @property
    def summary(self) -> str:
        """One line of a call that has not failed: the figures of its result that are not 0, or why it was not begun."""
        if self.hold_reason is not None:
            return f"{self.call.job} of {self.call.table} was not begun: {self.hold_reason}"
        result = self._value_of("result")
        shown = [
            f"{label(name)} {shown_value(name, value)}"
            for name, value in (result.items() if isinstance(result, Mapping) else ())
            if isinstance(value, int) and value and not isinstance(value, bool) and name not in _OF_THE_PROCESS
        ]
        ended = f"{self.call.job} {self.call.table}: {self._value_of('status') or 'done'}"
        run_id = self._value_of("run_id")
        return "; ".join(filter(None, [ended, ", ".join(shown), run_id and f"run {run_id}"]))

    @property
    def is_worth_retrying(self) -> bool:
        """Whether another try may help; what is not known may."""
        if self.status is None:
            return True
        return self.status in WORTH_RETRYING and self.status != FOUND.get(self.call.job)

    @property
    def error_kind(self) -> str:
        """The name of the page about its failure; empty where none is known."""
        error = self._value_of("error")
        if isinstance(error, Mapping):
            return str(error.get("kind", ""))
        if self.status == FOUND.get(self.call.job):
            return ""
        return _KINDS.get(self.status, "") if self.status else ""

    @property
    def has_committed(self) -> bool:
        """Whether the table's metadata moved, as the document says it; what nobody knows is no."""
        before, after = (self._value_of(f"metadata_location_{when}") for when in ("before", "after"))
        return after is not None and before != after

    @property
    def failure(self) -> str:
        """What people are told of a failed call, in one line."""
        about = f"{self.call.job} {self.call.table}".strip()
        error = (self.document or {}).get("error")
        line = str(error.get("message", "")) if isinstance(error, Mapping) else ""
        status = self._value_of("status")
        line = line or self.said or (f"the result says {status!r}" if isinstance(status, str) else "")
        if self.status is None:
            how = "was started, and its outcome is unknown" if self.was_begun else "did not run"
            return f"{about} {how}: {line or 'no exit status is known'}"
        meaning = f" ({_MEANINGS[self.status]})" if self.status in _MEANINGS else ""
        again = "" if self.is_worth_retrying else ", which a retry does not help"
        return f"{about} ended with status {self.status}{meaning}{again}" + (f": {line}" if line else "")

    def _value_of(self, key: str) -> Any:
        return (self.document or {}).get(key)


def status_in(message: str) -> int | None:
    """The exit status of a job in what Airflow's spark-submit hook and spark-submit say; `None` if they name none.

    In cluster mode spark-submit itself ends with 1, and says what the driver ended with. A process that was killed by signal N
    has the status 128 + N.
    """
    inner = _IN_CLUSTER.findall(message)
    if inner and inner[-1] != "0":
        return int(inner[-1])
    match = _STATUS.search(message)
    return None if match is None else of_process(int(match[1]))


def document_in(file: Path) -> dict[str, Any] | None:
    """What a job has written as its result file; `None` where it wrote nothing that can be read."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def of_process(status: int) -> int:
    """A process' exit status as a shell has it."""
    return 128 - status if status < 0 else status


def figures(document: Mapping[str, Any]) -> dict[str, Any]:
    """The single values of a document and of the mappings in it: lists are left out and named, long texts are cut.

    >>> figures({"status": "done", "result": {"files_count": 2, "groups": [1, 2]}})
    {'status': 'done', 'result': {'files_count': 2}, 'left_out': ['result.groups']}
    """
    left_out: list[str] = []
    kept = _figures(document, "", left_out)
    if left_out:
        kept["left_out"] = left_out[:_ITEMS_COUNT_MAX]
    if len(json.dumps(kept)) > XCOM_BYTES_MAX:
        kept = {key: value for key, value in kept.items() if not isinstance(value, dict)} | {"left_out": ["result"]}
    return kept


def for_xcom(ended: Sequence[CallOutcome]) -> dict[str, Any]:
    """What a task leaves in XCom: of one call the figures of its document, of several those of each, as many as it holds."""
    documents = [_document(one) for one in ended]
    if len(documents) == 1:
        return documents[0]
    told: dict[str, Any] = {
        "job": ended[0].call.job,
        "calls_count": len(ended),
        "failed_count": sum(not one.is_done for one in ended),
        "calls": [],
    }
    left_bytes = XCOM_BYTES_MAX - len(json.dumps(told))
    for document in documents:
        left_bytes -= len(json.dumps(document)) + 2
        if left_bytes < 0:
            break
        told["calls"].append(document)
    return told


def _document(one: CallOutcome) -> dict[str, Any]:
    known = figures(one.document or {})
    return {"job": one.call.job, "table": one.call.table, **known, "exit_status": one.status}


def _figures(document: Mapping[str, Any], above: str, left_out: list[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            kept[key] = _figures(value, f"{above}{key}.", left_out)
        elif isinstance(value, list | tuple):
            left_out.append(f"{above}{key}")
        else:
            kept[key] = value[:_TEXT_LENGTH_MAX] if isinstance(value, str) else value
    return kept
