"""Delete files read in tasks: the same faults as on the driver."""

import pytest
from pyspark.sql import SparkSession

from icekeep.spec.schema import ROW_ID, Schema
from kit.cases import thinned
from kit.checked_entries import SCHEMA, damager, made, with_files, written
from kit.checked_entries import checked_deletes as checked
from kit.deletes import data_files, delete_by_vector, delete_positions
from kit.runtime import limited

pytestmark = pytest.mark.usefixtures("kit_in_tasks")


@pytest.mark.parametrize("version", thinned([3, 2], 2))
def test_tasks_find_what_the_driver_finds(version: int, spark_session: SparkSession) -> None:
    table = made(version, range(5), range(5, 10))
    for file in data_files(table):
        if version == 3:
            table = delete_by_vector(table, file.file_path, [1, 8])
        else:
            table = delete_positions(table, [(file.file_path, 1), (file.file_path, 8)])
    in_tasks = limited(spark_session, entries_count=-1, folded_entries_count=-1)
    here, there = checked(table), checked(table, in_tasks)
    assert [fault.number for fault in here[0]] == [411, 411]
    assert there[0] == here[0]
    assert there[1].gaps() == here[1].gaps()


@pytest.mark.parametrize("kind", ["sound", "twice", "too-high", "unreadable"])
def test_tasks_find_the_row_ids_that_the_driver_finds(kind: str, spark_session: SparkSession) -> None:
    table = made(3, range(5), range(5, 10))
    first, second = sorted(data_files(table), key=lambda file: file.first_row_id or 0)
    table = delete_by_vector(table, first.file_path, [1, 3])
    ids = {"sound": [1, 3], "twice": [3, 1, 2, 7], "too-high": [1, 99], "unreadable": [1, 3]}[kind]
    schema = Schema(fields=(*SCHEMA.fields, ROW_ID))
    table = with_files(table, written(table, schema, [{"id": n, "kind": "a", "_row_id": n} for n in ids]))
    if kind == "unreadable":
        damager(table).write(second.file_path, b"\0" * 100)
    here = checked(table)
    there = checked(table, limited(spark_session, row_ids_count=-1))
    assert [fault.number for fault in here[0]] == {"twice": [417] * 2, "too-high": [417]}.get(kind, [])
    assert there[0] == here[0]
    assert len(there[1].gaps()) == len(here[1].gaps()) == int(kind == "unreadable")
