"""Commands that people are shown to go on with: whole lines, which read the same configuration as the command that shows them."""

import re
import shlex

import msgspec

from icekeep.operations.configuration.file import config_words

_ON_SOMETHING = re.compile(r"`(icekeep [^`]*--(?:table|catalog) [^`]*)`")


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
    """An error's message whose commands can be copied: they name the table of the failed command, and its configuration.

    >>> completed("run `icekeep repair --table NAME --fault 128` first", "lake.db.t", "my.yaml")
    'run `icekeep repair --table lake.db.t --fault 128 --config my.yaml` first'
    """
    more = shlex.join(config_words(conf))

    def whole(found: re.Match[str]) -> str:
        words = found[1] if table is None else found[1].replace("--table NAME", f"--table {shlex.quote(table)}")
        return f"`{words} {more}`" if more and "--config" not in words else f"`{words}`"

    return _ON_SOMETHING.sub(whole, message)
