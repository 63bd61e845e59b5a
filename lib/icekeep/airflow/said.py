"""What is remembered of the lines that a process prints as they go by. Pure."""

import re
from collections.abc import Iterable, Iterator

_ERROR = "icekeep: "
_SAID_LENGTH_MAX = 2000
_APPLICATION = re.compile(r"\b(application_\d+_\d+)\b|spark-app-selector -> (spark-\w+)")


class Said:
    """What a process has said.

    Attributes:
        line: of its error, without the name of the program.
        tail: its last lines.
        application: the id of its Spark application; empty where it has none, or says none.
    """

    def __init__(self) -> None:
        self.line = self.tail = self.application = ""

    def look_at(self, line: str) -> None:
        """Keep a line, where it matters."""
        if line.startswith(_ERROR):
            self.line = line.removeprefix(_ERROR)
        if match := _APPLICATION.search(line):
            self.application = match[1] or match[2]
        self.tail = f"{self.tail}\n{line}"[-_SAID_LENGTH_MAX:]

    def looked_at(self, lines: Iterable[str]) -> Iterator[str]:
        """The same lines, each looked at."""
        for line in lines:
            self.look_at(line.strip())
            yield line
