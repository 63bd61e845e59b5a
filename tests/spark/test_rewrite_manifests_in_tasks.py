"""Manifests of many entries, rewritten in Spark tasks: what comes of it is what comes of it on the driver."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from icekeep.errors import InvalidTableError, UnavailableError
from icekeep.events import SILENT
from icekeep.maintenance.manifests import execute
from icekeep.maintenance.manifests.execute import rewritten
from icekeep.maintenance.manifests.records import rewritten_in_tasks
from icekeep.maintenance.manifests.survey import Survey, survey
from icekeep.maintenance.rewrite.run import WrittenFiles
from icekeep.planning.spark.session import Engine
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.storage.local.storage import LocalStorage
from kit.memory_catalog import MemoryCatalog
from kit.rewritten_manifests import chosen, entries_in
from kit.runtime import NOTHING_HERE, no_spark
from kit.tables import BY_KIND, add, data_file, memory_table

MANIFESTS_COUNT = 24


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Manifests that each reach over all partitions; one partition holds half of the files."""
    catalog = MemoryCatalog(LocalStorage(), warehouse=str(tmp_path / "wh"))
    table = memory_table(
        catalog, spec=BY_KIND, commit__manifest__target_size_bytes="120", commit__manifest_merge__enabled="false"
    )
    for number in range(MANIFESTS_COUNT):
        kinds = [f"kind{n}" if n % 2 else "most" for n in range(16)]
        table = add(table, *(data_file(f"{number}-{n}", partition=(kind,)) for n, kind in enumerate(kinds)))
    return table


def work_of(table: Any, plan: Any) -> Any:
    [group] = plan.groups
    [run] = group.runs
    return execute.ManifestsWriting.of(table, group, run, plan.target_bytes, NOTHING_HERE)


def found(table: Any, plan: Any) -> Survey:
    work = work_of(table, plan)
    return survey(work.run.manifests, 0, work.run.target, table.storage, no_spark)


def in_spark(task: Any, writer: Any, lie: Survey, spark: SparkSession) -> list[ManifestFile]:
    """Of 32 manifests, so that there is more than one task."""
    return rewritten_in_tasks(task, writer, lie, 32, spark)


def told(table: Any, manifests: tuple[ManifestFile, ...]) -> Counter[str]:
    return Counter(map(repr, entries_in(table.storage, manifests, table.metadata.partition_type(0))))


def files(table: Any) -> set[str]:
    return {info.location for info in table.storage.list(f"{table.metadata.location}/metadata")}


def test_tasks_write_the_entries_that_the_driver_writes_and_no_two_manifests_overlap(
    table: Any, in_tasks: Engine, spark_session: SparkSession
) -> None:
    plan = chosen(table)
    [by_tasks] = rewritten(table, plan, in_tasks, "run", WrittenFiles(table, "run", SILENT))
    [on_driver] = rewritten(table, plan, no_spark, "run", WrittenFiles(table, "run", SILENT))
    assert told(table, by_tasks.added) == told(table, on_driver.added)
    assert told(table, by_tasks.added).total() == MANIFESTS_COUNT * 16
    assert sorted(by_tasks.partitions) == sorted(on_driver.partitions)
    assert len(by_tasks.added) > 8
    ends = sorted((m.partitions[0].lower_bound, m.partitions[0].upper_bound) for m in by_tasks.added if m.partitions)
    assert len(ends) == len(by_tasks.added)
    assert all(before[1] <= after[0] for before, after in pairwise(ends))
    counts = [m.existing_files_count or 0 for m in by_tasks.added]
    # The last manifest of each of the three tasks is cut short.
    assert max(counts) <= 4 * sorted(counts)[3]


def test_a_manifest_that_cannot_be_read_in_a_task_is_an_error(
    table: Any, in_tasks: Engine, spark_session: SparkSession
) -> None:
    plan, before = chosen(table), files(table)
    work = work_of(table, plan)
    broken = (replace(work.run.manifests[0], added_files_count=3), *work.run.manifests[1:])
    with pytest.raises(InvalidTableError, match="its manifest list says 3"):
        in_spark(replace(work.task, manifests=broken), work.writer, found(table, plan), spark_session)
    assert files(table) == before


def test_a_task_that_fails_to_write_leaves_no_manifest_of_its_own_or_of_others(
    table: Any, in_tasks: Engine, spark_session: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.mkdir()

    # A class of a function travels to workers by value: they cannot import this module.
    class Failing(LocalStorage):
        @contextmanager
        def write(self, location: str) -> Iterator[Any]:
            with LocalStorage.write(self, location) as stream:

                class Checked:
                    def write(self, data: bytes) -> None:
                        if b"most" in data:
                            raise UnavailableError("the store is away")
                        stream.write(data)

                yield Checked()
            (log / location.rsplit("/", 1)[-1]).touch()

    plan, before = chosen(table), files(table)
    work = work_of(table, plan)
    writer = replace(work.writer, storage=Failing(), codec="uncompressed", target_bytes=1000)
    with pytest.raises(UnavailableError, match="the store is away"):
        in_spark(work.task, writer, found(table, plan), spark_session)
    assert len([*log.iterdir()]) > 1
    assert files(table) == before
