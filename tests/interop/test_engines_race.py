"""icekeep, PyIceberg and Iceberg Java commit to one table at the same moment, on PostgreSQL: nothing is lost."""

import pytest
from pyiceberg.catalog.sql import SqlCatalog as ForeignSqlCatalog

from icekeep.catalog.open import open_catalog
from kit.catalogs import (
    EVENTS,
    Race,
    append_in_step,
    append_in_step_by_pyiceberg,
    as_rows,
    check_history,
    conflicts_of,
    our_rows,
    racing_table,
    rows_of,
)
from kit.rows import multiset

pytestmark = pytest.mark.deep

COMMITS = 20
WRITERS = {"icekeep": COMMITS, "pyiceberg": COMMITS, "java": COMMITS}


def test_three_engines_lose_no_commit_and_each_reads_all(java, postgres, tmp_path, tried):
    """Judged by Iceberg Java, PyIceberg and PostgreSQL."""
    uri, warehouse = postgres.new_database(), (tmp_path / "warehouse").as_uri()
    properties = {"type": "sql", "uri": uri, "warehouse": warehouse}
    racing_table(properties)
    java.open_catalog("local", properties)
    race = Race(parties=3)
    race.start(append_in_step, properties, "icekeep", COMMITS)
    race.start(append_in_step_by_pyiceberg, properties, "pyiceberg", COMMITS)
    for number in range(COMMITS):
        race.meet()
        java.append("local.db.events", [["java", number]])
    race.finish()

    table = open_catalog("local", properties).load(EVENTS)
    foreign = ForeignSqlCatalog("local", uri=uri, warehouse=warehouse).load_table(EVENTS)
    expected = rows_of(WRITERS)
    assert our_rows(table) == as_rows(foreign.scan().to_arrow()) == expected
    assert java.rows("local.db.events") == multiset([[writer, number] for writer, number in expected])
    check_history(table, sum(WRITERS.values()))
    conflicts = conflicts_of(table)
    # Writers that never met would have shown nothing.
    assert conflicts >= COMMITS / 4
    tried("commits of three engines at once", sum(WRITERS.values()))
    tried("conflicts that they met", conflicts)
