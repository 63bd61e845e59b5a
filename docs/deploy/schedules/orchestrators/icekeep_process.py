"""One command of icekeep as a process, for an orchestrator in whose environment icekeep is not installed."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ICEKEEP = os.environ.get("ICEKEEP", "/opt/icekeep/bin/icekeep")
CONFIG = os.environ.get("ICEKEEP_CONFIG", "/etc/icekeep/icekeep.yaml")
RETRIES, RETRY_SECONDS = 4, int(os.environ.get("ICEKEEP_RETRY_SECONDS", "300"))

TRY_AGAIN = 75
"""The one exit status that the same command may not have some minutes later; `maintain` itself takes up what failed."""


class Ended(Exception):
    """The command ended with another status than 0; the message is one line."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        self.status, self.document = status, document
        error = document.get("error") or {}
        said = error.get("message") or f"it is {document.get('status', 'not known what it did')}"
        help_page = f" ({error['help']})" if "help" in error else ""
        super().__init__(f"icekeep ended with exit status {status}: {said}{help_page}")


def run(*words: str, say: Callable[[str], object]) -> dict[str, Any]:
    """Run it to its end, and return the document that `--output json` prints.

    Args:
        say: is told each line of its log.

    Raises:
        Ended: its exit status is not 0.
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "result.json"
        process = subprocess.Popen(
            [ICEKEEP, *words, "--config", CONFIG, "--result-file", str(file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                say(line.rstrip())
            status = process.wait()
        finally:
            # A task that is cancelled ends it; a commit that is under way comes to its end.
            process.terminate()
            process.wait(120)
        document = json.loads(file.read_text()) if file.exists() else {}
    if status != 0:
        raise Ended(status, document)
    return document


def counts(document: dict[str, Any]) -> dict[str, int]:
    """The numbers of a result that are not 0, such as `done_jobs_count`."""
    result = document.get("result") or {}
    return {key: value for key, value in result.items() if key.endswith("_count") and value}
