"""Making a playground in a directory: all of it, or nothing that could be taken for it."""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from icekeep.catalog.database import sqlite_uri
from icekeep.catalog.sql import SqlCatalog
from icekeep.errors import UsageError, printable
from icekeep.events import SILENT, Listener, StepAdvanced, StepFinished, StepStarted
from icekeep.playground.maker import PastRuntime, TableMaker
from icekeep.playground.place import CONFIG, DATABASE, WAREHOUSE, new_place
from icekeep.playground.states import STATES, PlaygroundState
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spelling import counted
from icekeep.storage.local.storage import UnflushedStorage

CATALOG, NAMESPACE = "demo", "db"

_STEP = "making tables"

_CONFIG_TEXT = """\
# Made by `icekeep demo`. Give it to any command: --config {config}
catalogs:
  {catalog}:
    type: sql
    uri: {uri}
    warehouse: {warehouse}
# `icekeep maintain --dry-run --config ...` tells what this policy would do, without --dry-run it is done.
policies:
  - name: nightly
    schedule: "0 2 * * *"
    match: {catalog}.**
    jobs:
      compact: {{when: {{small_files_over: 5}}}}
      rewrite_position_deletes: {{when: {{delete_ratio_over: 0.01}}}}
      rewrite_manifests: {{when: {{manifests_over: 20}}}}
      expire_snapshots: {{when: {{snapshots_over: 100, age_over: 7d}}}}
"""

_NOT_IN_CONFIG = re.compile(r"\$\{|[\ud800-\udfff]")
"""What paths in the configuration cannot have: it reads the first as the name of an environment variable, and is UTF-8."""


@contextmanager
def new_playground(
    directory: Path,
    states: Sequence[PlaygroundState] = STATES,
    *,
    runtime: Runtime = SYSTEM,
    listener: Listener = SILENT,
) -> Iterator[Path]:
    """Make the catalog with its tables, and the configuration that opens it, whose path the block is given.

    Whatever ends this or the block early, an interrupt too, takes away what was made. Where the process is killed before all
    tables are made, the directory is left without a configuration. A directory with anything in it is not taken again.

    Args:
        directory: absolute; must be empty, or not there.
        states: of the tables.

    Raises:
        UsageError: it is something else, cannot be written, or has a name that the configuration cannot have.
    """
    config, properties = directory / CONFIG, _properties(directory)
    with new_place(directory, listener):
        listener.on(StepStarted(_STEP, len(states), "tables"))
        for state in states:
            _make(state, properties, runtime.now_ms())
            listener.on(StepAdvanced(_STEP))
        listener.on(StepFinished(_STEP, counted(len(states), "tables")))
        config.write_text(_config_text(config, properties), encoding="utf-8")
        yield config


def _config_text(config: Path, properties: Mapping[str, str]) -> str:
    return _CONFIG_TEXT.format(
        config=printable(shlex.quote(str(config))),
        catalog=CATALOG,
        uri=_quoted(properties["uri"]),
        warehouse=_quoted(properties["warehouse"]),
    )


def _quoted(text: str) -> str:
    """A text as YAML has it between double quotes, on one line."""
    return yaml.safe_dump(text, default_style='"', allow_unicode=True, width=sys.maxsize).rstrip("\n")


def _properties(directory: Path) -> Mapping[str, str]:
    """Of the catalog; raises `UsageError` where the configuration cannot have them."""
    unfit = _NOT_IN_CONFIG.search(str(directory))
    if unfit:
        raise UsageError(
            f"cannot make a playground in {str(directory)!r}: the configuration cannot have {unfit[0]!r} in a path; "
            "name another directory"
        )
    return {
        "type": "sql",
        "uri": sqlite_uri(str(directory / DATABASE)),
        # Locations are not percent-encoded: with `as_uri` the tables of 'my dir' would lie in 'my%20dir'.
        "warehouse": f"file://{directory / WAREHOUSE}",
    }


def _make(state: PlaygroundState, properties: Mapping[str, str], now_ms: int) -> None:
    clock = PastRuntime(state.name, now_ms - state.age_ms)
    catalog = SqlCatalog(CATALOG, properties, UnflushedStorage(clock), clock)
    catalog.create_namespace((NAMESPACE,), exists_ok=True)
    maker = TableMaker(catalog, (NAMESPACE, state.name), clock)
    state.make(maker)
    # Files are as old as the table says; a job that goes by their age, as the removal of orphans, finds them so.
    seconds = clock.now_ms() / 1000
    for path in Path(maker.table.metadata.location.removeprefix("file://")).rglob("*"):
        os.utime(path, (seconds, seconds))
