"""Where a catalog has a garbage collector of its own, nothing that deletes begins, whatever the table's properties say."""

import pytest

from icekeep.errors import SafetyError
from icekeep.maintenance.drop.job import drop_table, plan_drop_table
from icekeep.maintenance.expire.job import expire_snapshots, plan_expire_snapshots
from icekeep.maintenance.orphans.job import plan_remove_orphan_files, remove_orphan_files
from icekeep.maintenance.why.job import why
from kit.cases import for_each
from kit.runtime import no_spark
from kit.tables import memory_table


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
