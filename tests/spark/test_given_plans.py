"""Plans that are written to a file and carried out later, where all is so much that Spark does it."""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.errors import SafetyError
from icekeep.maintenance.compact.job import compact
from icekeep.operations.commands.applying import apply_plan, write_plan
from icekeep.operations.plan_files import read_plan_file
from icekeep.planning.spark.session import Engine
from icekeep.runtime import SYSTEM
from icekeep.spec.types import DAY_MS
from icekeep.tables.verbs import append
from kit.deletes import data_files, delete_positions
from kit.lake import Lake, events


@pytest.fixture
def engine(in_tasks: Engine) -> Engine:
    """Nothing is few enough for the driver."""
    return in_tasks


def lines_of(path: Path, *kinds: str) -> Counter[str]:
    return Counter(line.name for line in read_plan_file(str(path)).lines() if line.kind in kinds)


def with_deletes(lake: Lake) -> Table:
    table = lake.filled(commits=4, files=2)
    paths = [file.file_path for file in data_files(table)][:3]
    for path in paths:
        table = delete_positions(table, [(path, 1)])
    return table


OPTIONS: Mapping[str, str] = {"rewrite-all": "true", "max-file-group-input-files": "3"}


def test_a_compaction_is_carried_out_as_it_was_planned(tmp_path: Path, lake: Lake, engine: Engine) -> None:
    table, path = with_deletes(lake), tmp_path / "plan.jsonl"
    files = lake.files_on_disk()
    told = write_plan(table, "compact", str(path), engine, options=OPTIONS)
    # Nothing is put in storage for a plan that is only written down.
    assert lake.files_on_disk() == files
    assert told.totals.files_count == 8 + 3
    assert lines_of(path, "data file") == Counter(file.file_path for file in data_files(table))
    append(lake.load(), events(50))
    rows = lake.rows()
    held = apply_plan(table.catalog, str(path), engine, dry_run=True)
    assert (held.status, held.result.rewritten_data_files_count) == ("planned", 8)
    done = apply_plan(table.catalog, str(path), engine).result
    groups = sum(line.kind == "group" for line in read_plan_file(str(path)).lines())
    assert (done.rewritten_data_files_count, done.added_data_files_count) == (8, groups)
    assert groups > 2
    assert lake.rows() == rows
    assert apply_plan(table.catalog, str(path), engine).applied_before


def test_the_same_file_comes_of_few_files_and_of_many(
    tmp_path: Path, lake: Lake, engine: Engine, spark_session: SparkSession
) -> None:
    table = with_deletes(lake)
    few, many = tmp_path / "few.jsonl", tmp_path / "many.jsonl"
    write_plan(table, "compact", str(few), spark_session, options=OPTIONS)
    write_plan(table, "compact", str(many), engine, options=OPTIONS)
    states = [{line.name: line.state for line in read_plan_file(str(one)).lines() if line.state} for one in (few, many)]
    assert states[0] == states[1]
    assert len(states[0]) == 8 + 3
    assert apply_plan(table.catalog, str(few), engine).result.rewritten_data_files_count == 8


def test_a_file_that_has_other_deletes_is_seen_in_tasks(tmp_path: Path, lake: Lake, engine: Engine) -> None:
    table, path = with_deletes(lake), tmp_path / "plan.jsonl"
    write_plan(table, "compact", str(path), engine, options=OPTIONS)
    before = delete_positions(table, [(data_files(table)[0].file_path, 3)])
    files = lake.files_on_disk()
    with pytest.raises(SafetyError, match="1 file has other deletes now"):
        apply_plan(table.catalog, str(path), engine)
    assert lake.load().metadata_location == before.metadata_location
    assert lake.files_on_disk() == files


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ("expire_snapshots", {"older_than": SYSTEM.now_ms() + DAY_MS, "trash": 0}),
        ("drop", {"purge": True}),
    ],
)
def test_what_is_deleted_is_what_is_in_the_file(
    tmp_path: Path, lake: Lake, engine: Engine, spark_session: SparkSession, job: str, told: Mapping[str, Any]
) -> None:
    table, path = with_deletes(lake), tmp_path / "plan.jsonl"
    compact(table, spark_session, options={"rewrite-all": "true"})
    files = lake.files_on_disk()
    written = write_plan(lake.load(), job, str(path), engine, **told)
    assert lake.files_on_disk() == files
    apply_plan(table.catalog, str(path), engine)
    planned = {line.name for line in read_plan_file(str(path)).lines() if line.do == "delete"}
    gone = {str(file) for file in files - lake.files_on_disk() if ".icekeep" not in str(file)}
    assert {name.removeprefix("file://") for name in planned} >= gone
    assert len(gone) >= 8
    assert written.totals.files_count == len(planned)


def test_orphans_are_those_of_the_file(tmp_path: Path, lake: Lake, engine: Engine) -> None:
    table, path = with_deletes(lake), tmp_path / "plan.jsonl"
    directory, old_s = Path(lake.location().removeprefix("file://")), (SYSTEM.now_ms() - 5 * DAY_MS) / 1000
    strays = [directory / "data" / f"stray-{number}.parquet" for number in range(6)]
    for stray in strays:
        stray.write_bytes(b"stray")
        os.utime(stray, (old_s, old_s))
    strays[5].unlink()
    write_plan(table, "remove_orphan_files", str(path), engine, trash=0, options={"max-orphan-ratio": "0.9"})
    planned = lines_of(path, "orphan file")
    assert planned.total() == len(planned) == 5
    strays[5].write_bytes(b"stray")
    os.utime(strays[5], (old_s, old_s))
    assert apply_plan(table.catalog, str(path), engine).result.deleted_files_count == 5
    assert [stray.exists() for stray in strays] == [False] * 5 + [True]
    assert apply_plan(table.catalog, str(path), engine).applied_before
