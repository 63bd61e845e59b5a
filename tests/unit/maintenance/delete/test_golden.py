"""The files that a run leaves below `.icekeep/`: a later version of icekeep reads those of every version that was released.

`golden/v1/` holds one of each kind. Where a change makes today's files others than the newest ones there, and that is meant, keep
the old ones and add the new ones as the next version: `python tests/unit/maintenance/delete/test_golden.py v2`.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from icekeep.catalog.base import Table
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.restore.job import list_restorable, restore
from kit.memory_catalog import MemoryCatalog
from kit.storage import contents
from kit.tables import EVENTS, add, memory_table

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(path.name for path in GOLDEN.iterdir())
OWN = "memory://lake/wh/db/events/.icekeep/"
A_DAY_MS = 86_400_000


def expired_table() -> Table:
    """A table of which a run has just expired one snapshot, into the trash; the same names and ids each time."""
    catalog = MemoryCatalog()
    table = add(memory_table(catalog), "a", "b")
    add(table, "c")
    catalog.runtime.clock_ms += 10 * A_DAY_MS
    now_ms = catalog.runtime.now_ms()
    expire_snapshots(catalog.load(EVENTS), older_than=now_ms, retain_last=1, trash=3)
    return catalog.load(EVENTS)


def own_files(table: Table) -> dict[str, str]:
    """What runs say in their files, without the files in the trash; process and version are not always the same."""
    found = contents(table.storage, OWN)
    texts = {name: data.decode() for name, data in found.items() if "/files/" not in name}
    return {name: re.sub(r'"(process|engine-version)":"[^"]+"', r'"\1":"a \1"', text) for name, text in texts.items()}


def golden_files(version: str) -> dict[str, str]:
    below = GOLDEN / version
    return {str(path.relative_to(below)): path.read_text() for path in below.rglob("*") if path.is_file()}


def meant(text: str) -> list[Any]:
    """What a file says, however it is laid out: JSON, or JSON lines."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def test_todays_files_are_those_of_the_newest_version() -> None:
    today, newest = own_files(expired_table()), golden_files(VERSIONS[-1])
    assert today.keys() == newest.keys()
    for name, text in today.items():
        assert meant(text) == meant(newest[name]), name


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_run_of_each_version_has_removed_comes_back(version: str) -> None:
    table = expired_table()
    [(trashed, data)] = [(name, data) for name, data in contents(table.storage, OWN).items() if "/files/" in name]
    [run] = {name.split("/")[1] for name in golden_files(version)}
    table.storage.delete_many([f"{OWN}{name}" for name in contents(table.storage, OWN)])
    table.storage.create(f"{OWN}trash/{run}/files/{trashed.partition('/files/')[2]}", data)
    assert list_restorable(table) == ()
    for name, text in golden_files(version).items():
        table.storage.create(f"{OWN}{name}", text.encode())
    [waiting] = list_restorable(table)
    assert (waiting.job, waiting.snapshots_count, waiting.files_count) == ("expire_snapshots", 1, 1)
    done = restore(table)
    assert (done.status, done.restored_files_count, done.restored_snapshots_count) == ("done", 1, 1)
    assert len(table.catalog.load(EVENTS).metadata.snapshots) == 2


if __name__ == "__main__":
    for name, text in own_files(expired_table()).items():
        location = GOLDEN / sys.argv[1] / name
        location.parent.mkdir(parents=True, exist_ok=True)
        location.write_text(text)
