"""What a maintenance tool is to the suite: it does an operation to a table in a REST catalog, and says whether it did.

Subclasses of `Tool` are the adapters; `ProcessTool` runs a script that uses `serving.serve`, `CommandTool` a command line.
"""

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from conformance.tools.serving import MESSAGE_LENGTH
from kit.java import TIMEOUT_S, LineProcess, environment_without

COMPACT, MANIFESTS, EXPIRE = "compact", "rewrite_manifests", "expire"
OPERATIONS = (COMPACT, MANIFESTS, EXPIRE)


class Target(msgspec.Struct, frozen=True):
    """A table, and where its catalog answers. Snapshots that are older than `max_age_s` expire, except the newest."""

    uri: str
    table: str
    max_age_s: int = 0


class Answer(msgspec.Struct, frozen=True):
    """What a tool says: that it changed something, that there was nothing to do, or why it did not."""

    changed: bool = False
    error: str = ""
    message: str = ""

    @property
    def told(self) -> str:
        """In a word or two."""
        return "refused" if self.error else "done" if self.changed else "has nothing to do"

    @classmethod
    def of(cls, error: BaseException, kind: str = "") -> Self:
        return cls(error=kind or type(error).__name__, message=str(error)[:MESSAGE_LENGTH])


class Tool:
    """One that is ready to work; `close` ends it.

    Attributes:
        name: on the command line and in tables.
        operations: what it can do at all.
    """

    name: str
    operations: Sequence[str] = OPERATIONS

    def versions(self) -> Mapping[str, str]:
        """Of what it consists, by name."""
        raise NotImplementedError

    def run(self, operation: str, target: Target) -> Answer:
        """Do one of `OPERATIONS` to a table: rewrite all its data files, rewrite its manifests, or expire snapshots."""
        raise NotImplementedError

    def another(self) -> "Tool":
        """The same tool, that can work while this one does."""
        return self

    def close(self) -> None:
        pass


class ProcessTool(Tool):
    """A script of this directory in a Python of its own."""

    def __init__(self, name: str, python: Path, script: str) -> None:
        self.name = name
        self._python, self._script = python, script
        self._second: ProcessTool | None = None
        environment = environment_without("PYTHON", "PYSPARK_", "SPARK_", TZ="UTC")
        self._process = LineProcess(name, (python, Path(__file__).with_name(script)), environment)
        said = json.loads(self._process.answer())
        self._versions, self.operations = said["versions"], said["operations"]

    def versions(self) -> Mapping[str, str]:
        return self._versions

    def run(self, operation: str, target: Target) -> Answer:
        request = {"operation": operation, **msgspec.to_builtins(target)}
        return msgspec.convert(json.loads(self._process.ask(json.dumps(request))), Answer)

    def another(self) -> "Tool":
        if self._second is None:
            self._second = ProcessTool(self.name, self._python, self._script)
        return self._second

    def close(self) -> None:
        if self._second is not None:
            self._second.close()
        self._process.close()


class CommandTool(Tool):
    """A command line, a process for each run: status 0 is success, all else is refusal, said by its last line.

    In it `{operation}`, `{uri}`, `{table}` and `{max_age_s}` stand for what is asked.
    """

    def __init__(self, name: str, command: str, operations: Sequence[str] = OPERATIONS) -> None:
        self.name, self.operations = name, operations
        self._words = shlex.split(command)

    def versions(self) -> Mapping[str, str]:
        return {self.name: self._words[0]}

    def run(self, operation: str, target: Target) -> Answer:
        asked = {"operation": operation, **msgspec.to_builtins(target)}
        try:
            ended = subprocess.run(
                [word.format(**asked) for word in self._words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Answer.of(error)
        if ended.returncode == 0:
            return Answer(changed=True)
        last = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-1:]
        return Answer(error=f"status {ended.returncode}", message="".join(last)[:MESSAGE_LENGTH])
