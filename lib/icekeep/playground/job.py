"""Making a playground in a directory: all of it, or nothing that could be taken for it."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from icekeep.catalog.sql import SqlCatalog
from icekeep.errors import UsageError
from icekeep.events import SILENT, Listener, StepAdvanced, StepFinished, StepStarted, Warned
from icekeep.playground.clock import PastRuntime
from icekeep.playground.maker import Maker
from icekeep.playground.states import STATES, State
from icekeep.runtime import SYSTEM, Runtime
from icekeep.storage.local.unflushed import UnflushedStorage

CATALOG, NAMESPACE = "demo", "db"
CONFIG = "icekeep.yaml"
"""The configuration in a playground's directory. It is written last: a directory without it is none."""

_STEP = "making tables"

_TEXT = """\
# Made by `icekeep demo`. Give it to any command: --config {directory}/{config}
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
      rewrite_position_deletes:
      rewrite_manifests: {{when: {{manifests_over: 20}}}}
      expire_snapshots: {{when: {{snapshots_over: 100, age_over: 7d}}}}
"""


def make_playground(
    directory: Path, states: Sequence[State] = STATES, *, runtime: Runtime = SYSTEM, listener: Listener = SILENT
) -> Path:
    """Make the catalog with its tables, and the configuration that opens it; returns where that is.

    Whatever ends it early, an interrupt too, takes away what was made. Where the process is killed, the directory is left
    without a configuration, and is not taken again.

    Args:
        directory: absolute; must be empty, or not there.
        states: of the tables.

    Raises:
        UsageError: it is something else, or cannot be written.
    """
    config = directory / CONFIG
    with _new_directory(directory, listener):
        properties = _properties(directory)
        listener.on(StepStarted(_STEP, len(states), "tables"))
        for state in states:
            _make(state, properties, runtime.now_ms())
            listener.on(StepAdvanced(_STEP))
        listener.on(StepFinished(_STEP, f"{len(states)} tables"))
        quoted = {name: f'"{properties[name]}"' for name in ("uri", "warehouse")}
        config.write_text(_TEXT.format(directory=directory, config=CONFIG, catalog=CATALOG, **quoted))
    return config


def _properties(directory: Path) -> Mapping[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{directory / 'catalog.db'}",
        # Locations are not percent-encoded: with `as_uri` the tables of 'my dir' would lie in 'my%20dir'.
        "warehouse": f"file://{directory / 'warehouse'}",
    }


def _make(state: State, properties: Mapping[str, str], now_ms: int) -> None:
    clock = PastRuntime(state.name, now_ms - state.age_ms)
    catalog = SqlCatalog(CATALOG, properties, UnflushedStorage(clock), clock)
    catalog.create_namespace((NAMESPACE,), exists_ok=True)
    maker = Maker(catalog, (NAMESPACE, state.name), clock)
    state.make(maker)
    # Files are as old as the table says; a job that goes by their age, as the removal of orphans, finds them so.
    seconds = clock.now_ms() / 1000
    for path in Path(maker.table.metadata.location.removeprefix("file://")).rglob("*"):
        os.utime(path, (seconds, seconds))


@contextmanager
def _new_directory(directory: Path, listener: Listener) -> Iterator[None]:
    """Make a directory, or take an empty one; where the block fails it is as it was."""
    is_there = directory.exists()
    try:
        if is_there and any(directory.iterdir()):
            raise UsageError(f"{str(directory)!r} is not empty; name a directory that is empty or not there")
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot make a playground in {str(directory)!r}: {reason}") from error
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        if is_there:
            directory.mkdir(exist_ok=True)
        listener.on(Warned(f"the playground is not whole, so what was made of it in {str(directory)!r} is removed"))
        raise
