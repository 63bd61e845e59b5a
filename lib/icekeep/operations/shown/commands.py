"""Commands that people are shown, as whole lines, which read the same configuration as the command that shows them."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from icekeep.events import Event, Listener, Warned
from icekeep.operations.configuration.file import config_words
from icekeep.operations.outcomes import RunState
from icekeep.rendered import Details

_ON_SOMETHING = re.compile(r"`(icekeep [^`]*--(?:table|catalog) [^`]*)`")
_COMMAND_ALONE = re.compile(r"icekeep [a-z_]+(?: [a-z-]+)? --(?:table|catalog) [^`\n]+")
_ON_NO_NAMED_TABLE = re.compile(r"--table NAME(?!\S)")


class CommandsOn(msgspec.Struct, frozen=True):
    """Makes commands on one table, `CATALOG.NS.NAME`; `conf` is the configuration as it was given.

    >>> CommandsOn("lake.db.events", None)("check", "--ref", "main")
    'icekeep check --table lake.db.events --ref main'
    """

    table: str
    conf: str | None

    def __call__(self, name: str, *words: str) -> str:
        return shlex.join(["icekeep", name, "--table", self.table, *words, *config_words(self.conf)])


def completed(message: str, table: str | None, conf: str | None) -> str:
    """A message whose commands can be copied: they name the table of the command that tells it, and its configuration.

    >>> completed("run `icekeep repair --table NAME --fault 128` first", "lake.db.t", "my.yaml")
    'run `icekeep repair --table lake.db.t --fault 128 --config my.yaml` first'
    >>> completed("icekeep restore --table lake.db.t --run run-1", "lake.db.t", "my.yaml")
    'icekeep restore --table lake.db.t --run run-1 --config my.yaml'
    """
    more = shlex.join(config_words(conf))

    def whole(command: str) -> str:
        words = command if table is None else _ON_NO_NAMED_TABLE.sub(lambda _: f"--table {shlex.quote(table)}", command)
        return f"{words} {more}" if more and "--config" not in words else words

    if _COMMAND_ALONE.fullmatch(message):
        return whole(message)
    return _ON_SOMETHING.sub(lambda found: f"`{whole(found[1])}`", message)


def with_commands_completed(value: Any, table: str | None, conf: str | None) -> Any:
    """A result as plain values whose texts are `completed`."""
    if isinstance(value, str):
        return completed(value, table, conf) if "icekeep " in value else value
    if isinstance(value, Mapping):
        return {key: with_commands_completed(one, table, conf) for key, one in value.items()}
    if isinstance(value, list | tuple):
        items = (with_commands_completed(one, table, conf) for one in value)
        return Details(items) if isinstance(value, Details) else [*items]
    return value


class CompletingListener:
    """Passes events of a run on, with the commands in warnings `completed`; the run's table may be known later."""

    def __init__(self, listener: Listener, state: RunState, conf: str | None) -> None:
        self._listener, self._state, self._conf = listener, state, conf

    def on(self, event: Event) -> None:
        if isinstance(event, Warned):
            event = Warned(completed(event.message, self._state.table, self._conf))
        self._listener.on(event)
