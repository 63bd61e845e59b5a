"""What the record of runs says of a job whose driver ran elsewhere: `icekeep runs`, asked by the worker."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from icekeep.airflow.installation import Installation
from icekeep.airflow.outcomes import document_in
from icekeep.airflow.units import JobOnTable
from icekeep.airflow.worker import Worker

_RUNS = "runs"
_LAST = 50
_KEPT = ("run_id", "policy", "status", "snapshot_id_before", "snapshot_id_after")
_PLACES = ("metadata_location_before", "metadata_location_after")


class Recorded:
    """Asks the record of runs.

    Args:
        directory: for what `icekeep runs` writes.
        say: is told each line that it prints.
    """

    def __init__(self, installation: Installation, directory: Path, say: Callable[[str], None]) -> None:
        self._installation, self._file, self._say = installation, directory / "runs.json", say

    def of(self, call: JobOnTable, application: str) -> dict[str, Any] | None:
        """The document of the run of a call that was a Spark application, `exit_status` with it; `None` where there is none."""
        runs = self._runs(f"--table={call.table}", f"--job={call.job}", f"--last={_LAST}")
        found = [one for one in runs if one.get("app_id") == application and one.get("exit_status") is not None]
        if not found:
            return None
        whole = self._runs(f"--run={found[0]['run_id']}")
        return document_of(whole[0] if whole else found[0])

    def _runs(self, *words: str) -> list[Mapping[str, Any]]:
        self._file.unlink(missing_ok=True)
        conf = self._installation.conf
        config = [] if conf is None else [f"--config={conf}"]
        told = [_RUNS, *words, *config, f"--result-file={self._file}"]
        try:
            # The log of the task is no place for the runs of other days.
            Worker(self._installation, told, self._say).run(self._file.with_suffix(".txt"))
        except OSError:
            return []
        result = (document_in(self._file) or {}).get("result")
        return list(result.get("runs", ())) if isinstance(result, Mapping) else []


def document_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as the document that the job has printed, with its exit status.

    >>> document_of({"job": "compact", "table": "c.d.t", "status": "refused", "exit_status": 4, "error_kind": "safety"})
    {'job': 'compact', 'table': 'c.d.t', 'status': 'refused', 'error': {'kind': 'safety', 'message': None}, 'exit_status': 4}
    """
    document = {"job": record["job"], "table": record["table"]}
    document |= {key: record[key] for key in (*_KEPT, *_PLACES) if record.get(key) is not None}
    if record.get("error_kind") is not None:
        document["error"] = {"kind": record["error_kind"], "message": record.get("error_message")}
    if record.get("result") is not None:
        document["result"] = record["result"]
    return {**document, "exit_status": record.get("exit_status")}
