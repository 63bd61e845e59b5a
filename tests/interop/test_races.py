"""Eight processes append to one table at once, on each catalog: none of their commits is lost, none doubled.

Read by us and by PyIceberg; PostgreSQL is a real server.
"""

import pytest
from pyiceberg.catalog.sql import SqlCatalog as ForeignSqlCatalog

from icekeep.catalog.open import open_catalog
from kit.cases import scaled
from kit.catalogs import check_race, conflicts_of, names, racing_table, start_appending
from kit.lake import EVENTS, Lake

pytestmark = pytest.mark.deep

WRITERS, COMMITS = 8, scaled(25, least=10)


@pytest.fixture(params=["filesystem", "sqlite", "postgresql"])
def contested(request, tmp_path):
    """A catalog's properties, and how PyIceberg loads its table."""
    if request.param != "postgresql":
        lake = Lake(tmp_path, "filesystem" if request.param == "filesystem" else "sql")
        return lake.properties, lake.foreign
    uri = request.getfixturevalue("postgres").new_database()
    properties = {"type": "sql", "uri": uri, "warehouse": (tmp_path / "warehouse").as_uri()}
    foreign = lambda: ForeignSqlCatalog("local", uri=uri, warehouse=properties["warehouse"]).load_table(EVENTS)  # noqa: E731
    return properties, foreign


def test_eight_processes_lose_no_commit_and_double_none(contested, tried):
    properties, foreign = contested
    racing_table(properties)
    start_appending(properties, writers=WRITERS, commits=COMMITS).finish()
    table = open_catalog("local", properties).load(EVENTS)
    check_race(table, foreign(), dict.fromkeys(names(WRITERS), COMMITS))
    conflicts = conflicts_of(table)
    # Writers that never met would have shown nothing; how often they do is the machine's load.
    assert conflicts >= WRITERS * COMMITS * 0.1
    tried("commits of racing processes", WRITERS * COMMITS)
    tried("conflicts that they met", conflicts)
