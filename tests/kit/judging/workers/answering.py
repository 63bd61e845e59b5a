"""The side of a judge's process that all workers share: requests as JSON lines, rows as Arrow's IPC stream in a file.

Runs in `.venv-judges`, which has nothing of icekeep and none of its tests. A worker ends when its standard input does.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

Read = Callable[[dict], pa.Table]
Count = Callable[[dict], dict[str, int]]


def answer_requests(
    version: str,
    read: Read,
    faults: type[BaseException] | tuple[type[BaseException], ...],
    count: Count | None = None,
) -> None:
    """Tell the engine's version, then answer each request.

    Args:
        version: of the engine.
        read: gives the rows of a request: `metadata` is the path of the table's metadata file.
        faults: what the engine raises where it cannot read a table.
        count: says of a request with a filter, `where`, in how many `files` it looked, or how many it had `pruned`.
    """
    _say({"version": version})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if count is not None and "where" in request:
                _say(count(request))
                continue
            rows = read(request)
        except faults as error:
            _say({"error": f"{type(error).__name__}: {error}"})
            continue
        with pa.ipc.new_stream(str(Path(request["rows"])), rows.schema) as stream:
            stream.write_table(rows)
        _say({})


def _say(answer: dict) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201
