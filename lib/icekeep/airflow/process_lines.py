"""What is remembered of the lines that a process prints as they go by. Pure."""

import json
import re
from collections.abc import Iterable, Iterator

from icekeep.operations.runbooks import without_ending

_ERROR, _LOGGER = "icekeep: ", "icekeep"
_SAID_LENGTH_MAX = 2000
_APPLICATION = re.compile(r"\b(application_\d+_\d+)\b|spark-app-selector -> (spark-\w+)")
_ADDRESS = re.compile(r"(?:tracking URL: |SparkUI.* started at )(https?://[^\s,\"]+)")


class ProcessOutput:
    """What a process has said.

    Attributes:
        line: of its error, without the name of the program and where to read on, as documents have it.
        tail: its last lines.
        application: the id of its Spark application; empty where it has none, or says none.
        address: where that application is seen in a browser; empty where it does not say.
    """

    def __init__(self) -> None:
        self.line = self.tail = self.application = self.address = ""

    def look_at(self, line: str) -> None:
        """Keep a line, where it matters."""
        error = _error(line)
        if error is not None:
            self.line = error
        if match := _APPLICATION.search(line):
            self.application = match[1] or match[2]
        if match := _ADDRESS.search(line):
            self.address = match[1]
        self.tail = f"{self.tail}\n{line}"[-_SAID_LENGTH_MAX:]

    def looked_at(self, lines: Iterable[str]) -> Iterator[str]:
        """The same lines, each looked at."""
        for line in lines:
            self.look_at(line.strip())
            yield line


def _error(line: str) -> str | None:
    """What a line says that tells of the end of a command, in either form of its logs; `None` for any other line."""
    if line.startswith(_ERROR):
        return without_ending(line.removeprefix(_ERROR))
    if not line.startswith("{"):
        return None
    try:
        told = json.loads(line)
    except ValueError:
        return None
    is_end = (
        told.get("logger") == _LOGGER and told.get("level") == "error" and "exit_status" in (told.get("facts") or {})
    )
    return str(told.get("message", "")) if is_end else None
