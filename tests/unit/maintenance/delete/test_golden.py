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
from icekeep.errors import SafetyError
from icekeep.maintenance.drop.job import drop_table, plan_drop_table
from icekeep.maintenance.expire.job import expire_snapshots, plan_expire_snapshots
from icekeep.maintenance.orphans.job import plan_remove_orphan_files, remove_orphan_files
from icekeep.maintenance.restore.job import list_restorable, restore
from icekeep.maintenance.why.job import why
from kit.cases import for_each
from kit.memory_catalog import MemoryCatalog
from kit.runtime import no_spark
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


@for_each("gc", ["true", "false"])
@for_each(
    "run",
    [
        lambda table: expire_snapshots(table, no_spark),
        lambda table: plan_expire_snapshots(table, no_spark),
        lambda table: remove_orphan_files(table, no_spark),
        lambda table: plan_remove_orphan_files(table, no_spark),
        lambda table: drop_table(table, no_spark, purge=True),
        lambda table: plan_drop_table(table, no_spark, purge=True),
    ],
)
def test_a_job_that_deletes_is_refused_and_names_the_collector(run, gc):
    table = memory_table(gc__enabled=gc)
    table.catalog.garbage_collector = "nessie-gc"
    files = dict(table.catalog.storage.files)
    with pytest.raises(SafetyError, match=r"'local' has a garbage collector of its own: .*; run nessie-gc") as refused:
        run(table)
    assert refused.value.exit_status == 4
    assert table.catalog.storage.files == files
    assert table.catalog.find(table.identifier).metadata_location == table.metadata_location


def test_a_plain_drop_is_not_refused():
    table = memory_table()
    table.catalog.garbage_collector = "nessie-gc"
    drop_table(table, no_spark)
    assert table.metadata_location in table.catalog.storage.files


def test_the_life_of_a_file_says_who_deletes_it():
    table = memory_table()
    table.catalog.garbage_collector = "nessie-gc"
    assert "nessie-gc alone deletes files" in why(table, table.metadata_location, no_spark).notes[-1]
