"""Commands that people are shown to go on with: whole lines, which read the same configuration as the command that shows them."""

import shlex

import msgspec

from icekeep.operations.configuration.file import config_words


class CommandsOn(msgspec.Struct, frozen=True):
    """Makes commands on one table, `CATALOG.NS.NAME`; `conf` is the configuration as it was given.

    >>> CommandsOn("lake.db.events", None)("check", "--ref", "main")
    'icekeep check --table lake.db.events --ref main'
    """

    table: str
    conf: str | None

    def __call__(self, name: str, *words: str) -> str:
        return shlex.join(["icekeep", name, "--table", self.table, *words, *config_words(self.conf)])
