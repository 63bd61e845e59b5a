"""Iceberg Java opens the catalogs that we do, and says what it finds; judged by Iceberg Java 1.12.0 throughout."""

import pytest

from icekeep.errors import NotFoundError
from icekeep.maintenance.metadata_beside import register_table
from icekeep.spec.types import LONG, STRING
from kit.columns import column, schema_of
from kit.java import IcebergJava, JavaError
from kit.lake import EVENTS, Lake
from kit.postgres import Postgres
from kit.rows import multiset

SIMPLE = schema_of(column(1, "id", LONG, required=True), column(2, "name", STRING))


def test_the_judge_is_the_version_that_was_asked_for(java: IcebergJava) -> None:
    """Judged by Iceberg Java."""
    versions = java.versions()
    assert versions["iceberg"] == "1.12.0"
    assert versions["spark"].startswith("4.1.")


def test_both_see_each_others_tables_come_and_go(java: IcebergJava, lake: Lake) -> None:
    """Judged by Iceberg Java: tables made by either are listed by the other, dropped tables are gone for both."""
    lake.create()
    java.sql("CREATE TABLE local.db.theirs (id BIGINT) USING iceberg")
    assert {row["tableName"] for row in java.sql("SHOW TABLES IN local.db")} == {"events", "theirs"}
    assert lake.catalog.list_tables(("db",)) == [("db", "events"), ("db", "theirs")]
    java.sql("DROP TABLE local.db.theirs PURGE")
    with pytest.raises(NotFoundError):
        lake.catalog.load(("db", "theirs"))
    lake.catalog.drop(EVENTS)
    assert java.sql("SHOW TABLES IN local.db") == []


def test_a_table_that_was_dropped_and_taken_back_is_the_same_for_java(java: IcebergJava, lake: Lake) -> None:
    """Judged by Iceberg Java: it reads the rows, commits to the table, and we see that."""
    lake.filled(commits=2, files=1)
    rows = java.rows("local.db.events")
    location = lake.catalog.drop(EVENTS)
    assert java.sql("SHOW TABLES IN local.db") == []
    register_table(lake.catalog, EVENTS, location)
    java.sql("REFRESH TABLE local.db.events")
    assert java.rows("local.db.events") == rows
    java.sql("ALTER TABLE local.db.events SET TBLPROPERTIES ('made.by' = 'java')")
    assert lake.load().metadata.properties["made.by"] == "java"


def test_namespaces_are_the_same_on_both_sides(java: IcebergJava, lake: Lake) -> None:
    """Judged by Iceberg Java."""
    java.sql("CREATE NAMESPACE local.theirs")
    lake.catalog.create_namespace(("ours",))
    assert {row["namespace"] for row in java.sql("SHOW NAMESPACES IN local")} == {"db", "ours", "theirs"}
    assert lake.catalog.list_namespaces() == [("db",), ("ours",), ("theirs",)]


def test_a_refusal_of_java_is_an_error_with_its_class(java: IcebergJava) -> None:
    """Judged by Iceberg Java."""
    with pytest.raises(JavaError) as refusal:
        java.read_metadata('{"format-version": 99}')
    assert refusal.value.kind == "java.lang.IllegalArgumentException"
    with pytest.raises(JavaError):
        java.sql("SELECT * FROM local.db.nowhere")


def test_java_keeps_tables_in_a_private_postgresql(java: IcebergJava, postgres: Postgres, tmp_path) -> None:
    """Judged by Iceberg Java and PostgreSQL: the fixture serves; our own driver comes later."""
    uri = postgres.new_database()
    java.open_catalog("pg", {"type": "sql", "uri": uri, "warehouse": (tmp_path / "warehouse").as_uri()})
    java.create_table("pg.db.t", SIMPLE)
    java.append("pg.db.t", [[1, "a"], [2, None]])
    java.sql("INSERT INTO pg.db.t VALUES (3, 'c')")
    assert java.rows("pg.db.t") == multiset([[1, "a"], [2, None], [3, "c"]])
    rows = postgres.query(uri, "SELECT catalog_name, table_namespace, table_name, iceberg_type FROM iceberg_tables")
    assert rows == [["pg", "db", "t", "TABLE"]]
