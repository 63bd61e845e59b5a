"""What both rivals of `expiration.py` do: the same job to a small table and then to the one that counts, as often as is asked.

Standard library only. What a job deleted is brought back before each run, by a process of its own (`expiration_copies.py`).
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from bench import expiration_copies
from bench.watching import Watch

EXPIRE, ORPHANS, ORPHANS_DRY_RUN = "expire", "orphans", "orphans-dry-run"

_SOME = 100


def measured(
    request: dict[str, Any], job: Callable[[str], Any], said: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    """Do the job to the small table so that the session is warm, then to the table that counts.

    Args:
        job: does it to the table of a catalog, and is timed.
        said: what the outcome says, which takes none of that time.

    Returns:
        `runs`, each with what `Watch` saw, the `result`, and what is `left` of the table. The last run's table is left as it is.
    """
    small, table = request["small"], request["table"]
    restore(small)
    said(job(small["catalog"]))
    runs: list[dict[str, Any]] = []
    for _ in range(1 + request["repeat"]):
        restore(table)
        with Watch() as watch:
            outcome = job(table["catalog"])
        runs.append({**watch.figures(), "result": said(outcome), "left": left(table)})
    return {"runs": runs}


def restore(table: dict[str, str]) -> None:
    """Make a table what it was when it was made."""
    _apart("restore", table["path"], table["pristine"])


def left(table: dict[str, str]) -> dict[str, Any]:
    """How many files a table has, and a digest of their names; the names themselves are in its `listing`."""
    return _apart("left", table["path"], table["listing"])


def orphans_said(count: int, locations: Iterable[str]) -> dict[str, Any]:
    """How many orphans were found, and the names of some of them."""
    return {"orphans_count": count, "some": [location.rpartition("/")[2] for location in islice(locations, _SOME)]}


def _apart(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(expiration_copies.__file__)), *arguments]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(answer))
