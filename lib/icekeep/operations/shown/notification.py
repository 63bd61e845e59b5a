"""How a command ended, as a short message to people elsewhere, made of its outcome document."""

from collections.abc import Iterator, Mapping
from typing import Any

from icekeep.errors import OutcomeUnknownError, SafetyError, TryAgainError, printable, shortened
from icekeep.operations.runbooks import ending_of
from icekeep.secrets import without_secrets
from icekeep.telemetry.notifications import FAILURE, INTERRUPTED, PARTIAL, SUCCESS, Message, outcome_of_status

_WORDS: Mapping[int, str] = {
    SafetyError.exit_status: "refused",
    OutcomeUnknownError.exit_status: "outcome unknown",
    TryAgainError.exit_status: "try again later",
    130: INTERRUPTED,
    143: INTERRUPTED,
}
"""How a command ended, by the exit status of its error; any other has failed."""

_KINDS = {SUCCESS: "success", FAILURE: "failure"}
_JOBS = "_jobs_count"
_FAILED_TABLES = "failed_tables_count"
_COUNTED = ("failed", "refused", "interrupted", "not_begun", "elsewhere", "observed", "postponed")
_NEED_ATTENTION = frozenset({"failed", "refused", "interrupted", "partial", "faulty"})
_LINES_MAX, _LINE_LENGTH, _FIGURES_MAX = 10, 300, 4


def message_of(document: Mapping[str, Any], exit_status: int) -> Message:
    """The message about a command: short, and without secrets.

    Args:
        document: that of an outcome or of an error.
        exit_status: of the command, which differs from that of the document where that could not be delivered.
    """
    error, result = document.get("error"), document.get("result")
    of_tables = result if isinstance(result, Mapping) and _FAILED_TABLES in result else None
    on = document["arguments"]["match"] if of_tables is not None else document.get("table")
    about = " ".join(filter(None, ("icekeep", document.get("job"), on)))
    status = document["status"] if error is None else _WORDS.get(document["exit_status"], "failed")
    if error is not None:
        lines = [_line(error["message"], error["kind"])]
    elif isinstance(result, Mapping) and f"due{_JOBS}" in result:
        lines = [_counts(result), *_limited([*_needing_attention(result)])]
    elif of_tables is not None:
        lines = [*_figures(of_tables), *_limited([*_tables_needing_attention(of_tables)])]
    else:
        lines = [*_figures(result)]
    # Of the runs on tables of a pattern each has an id of its own.
    if "run_id" in document and of_tables is None:
        lines.append(f"run {document['run_id']}")
    text = without_secrets("\n".join(map(printable, lines)))
    kind = _KINDS.get(outcome_of_status(exit_status), "warning")
    return Message(printable(f"{about}: {status} (exit status {exit_status})"), text, kind)


def _counts(result: Mapping[str, Any]) -> str:
    """The jobs of a run over all tables, by what became of them."""
    counts = {name: result.get(f"{name}{_JOBS}", 0) for name in _COUNTED}
    more = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    due = result[f"due{_JOBS}"]
    done = f"{result[f'done{_JOBS}']:,} of {due:,} due jobs done" if due else "no job was due"
    return ", ".join([done, *more])


def _needing_attention(result: Mapping[str, Any]) -> Iterator[str]:
    named = set()
    for table in result["tables"]:
        for job in table["jobs"]:
            if job["status"] in _NEED_ATTENTION:
                named.add((table["table"], job["job"]))
                kind = job["error_kind"] or (PARTIAL if job["status"] in ("partial", "faulty") else None)
                yield _line(f"{job['status']}: {table['table']} {job['job']}: {job['why']}", kind)
    yield from _not_read(result)
    for one in result["failing"]:
        if (one["table"], one["job"]) not in named:
            yield _line(f"failing repeatedly: {one['table']} {one['job']}: {one['why']}", None)


def _tables_needing_attention(result: Mapping[str, Any]) -> Iterator[str]:
    """Of a job on the tables of a pattern."""
    for one in result["tables"]:
        if one["status"] in _NEED_ATTENTION:
            message = f": {one['error_message']}" if one["error_message"] else ""
            yield _line(f"{one['status']}: {one['table']}{message}", one["error_kind"] or PARTIAL)
    yield from _not_read(result)


def _not_read(result: Mapping[str, Any]) -> Iterator[str]:
    for one in result["not_read"]:
        yield _line(f"not read: {one['name']}: {one['reason']}", one["kind"])


def _line(text: str, kind: str | None) -> str:
    ending = "" if kind is None else ending_of(kind)
    return f"{shortened(text, _LINE_LENGTH)}{ending}"


def _limited(lines: list[str]) -> list[str]:
    left = len(lines) - _LINES_MAX
    return lines if left <= 0 else [*lines[:_LINES_MAX], f"and {left:,} more"]


def _figures(result: Any) -> Iterator[str]:
    """The numbers of a job's result that are not 0."""
    given = result.items() if isinstance(result, Mapping) else ()
    counts = [
        f"{name.removesuffix('_count')} {value:,}"
        for name, value in given
        if name.endswith("_count") and isinstance(value, int) and value
    ]
    if counts:
        yield ", ".join(counts[:_FIGURES_MAX])
