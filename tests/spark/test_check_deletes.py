"""Delete files read in tasks: the same faults as on the driver."""

import pytest
from pyspark.sql import SparkSession

from kit.checked_deletes import checked, made
from kit.limits import limited
from kit.written_deletes import data_files, delete_by_vector, delete_positions


@pytest.mark.parametrize("version", [2, 3])
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
