"""Files of plans that somebody has edited, hash and all: they can make a job do less, and never more."""

import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from icekeep.errors import NotFoundError, SafetyError, UsageError
from icekeep.maintenance.plans import read_plan_file
from icekeep.operations.commands.applying import applied_shown, apply_plan, write_plan
from icekeep.spec.types import DAY_MS
from icekeep.tables.verbs import append
from kit.deletes import data_files, delete_positions
from kit.job_world import EVENTS, World
from kit.lake import events
from kit.runtime import no_spark

Lines = list[dict[str, Any]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plan.jsonl"


def with_orphans() -> World:
    world = World(2)
    world.append(1)
    for name in ("a", "b"):
        world.storage.create(f"{world.table.metadata.location}/data/{name}.parquet", b"stray")
    world.runtime.pass_ms(4 * DAY_MS)
    return world


def planned(world: World, path: Path) -> None:
    write_plan(world.table, "remove_orphan_files", str(path), no_spark, trash=0, options={"max-orphan-ratio": "0.9"})


def edited(path: Path, edit: Callable[[Lines], Lines]) -> None:
    """A plan's file with other lines, and the totals and the hash that go with them."""
    head, *lines, totals, _ = map(json.loads, path.read_text().splitlines())
    head, *lines = edit([head, *lines])
    totals["totals"]["lines_count"] = len(lines)
    body = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in (head, *lines, totals)).encode()
    digest = blake2b(body, digest_size=16).hexdigest()
    path.write_bytes(body + f'{{"hash":"{digest}"}}\n'.encode())


def test_a_live_file_that_was_put_into_a_plan_is_not_deleted(path: Path) -> None:
    world = with_orphans()
    planned(world, path)
    live = data_files(world.table)[0].file_path
    edited(path, lambda lines: [*lines, {**lines[1], "name": live}])
    before = world.state()
    with pytest.raises(SafetyError, match=f"1 file to delete is in use, or gone, such as '{live}'"):
        apply_plan(world.catalog, str(path), no_spark)
    assert world.state() == before


def test_lines_that_were_taken_out_are_not_what_was_approved(path: Path) -> None:
    world = with_orphans()
    planned(world, path)
    edited(path, lambda lines: lines[:-1])
    before = world.state()
    with pytest.raises(SafetyError, match="is approved"):
        apply_plan(world.catalog, str(path), no_spark)
    assert world.state() == before


def test_plan_edited_to_other_snapshot_expires_nothing(path: Path) -> None:
    world = World(2)
    for number in range(3):
        world.append(number)
    world.runtime.pass_ms(3 * DAY_MS)
    append(world.table, events(9))
    write_plan(world.table, "expire_snapshots", str(path), no_spark, older_than="1d", retain_last=2, trash=0)
    head_id = str(world.table.metadata.current_snapshot_id)
    edited(path, lambda lines: [lines[0], {**lines[1], "name": head_id}, *lines[2:]])
    before = world.state()
    with pytest.raises(SafetyError, match=f"snapshot {head_id}, which branch 'main' names now must stay"):
        apply_plan(world.catalog, str(path), no_spark)
    assert world.state() == before


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"job": "plan_scan"}, "no job 'plan_scan' makes a plan"),
        ({"job": "no_such"}, "no job 'no_such' makes a plan"),
        ({"arguments": {"hue": 1}}, "has the argument 'hue', which remove_orphan_files does not take"),
        ({"more": 1}, "cannot be read"),
        ({"table": 5}, "cannot be read"),
    ],
)
def test_a_head_that_makes_no_sense_is_refused(path: Path, change: dict[str, Any], match: str) -> None:
    world = with_orphans()
    planned(world, path)
    edited(path, lambda lines: [{**lines[0], **change}, *lines[1:]])
    with pytest.raises(UsageError, match=match):
        apply_plan(world.catalog, str(path), no_spark)


def test_a_table_that_is_gone_is_said(path: Path) -> None:
    world = with_orphans()
    planned(world, path)
    world.catalog.drop(("db", "events"))
    with pytest.raises(NotFoundError):
        apply_plan(world.catalog, str(path), no_spark)


def with_deletes_of_two_months() -> World:
    world = World(2, [("at", "month")])
    for month in (1, 2):
        for number in range(4):
            world.append(10 * month + number, month=month)
    for file in data_files(world.table):
        for position in (0, 1):
            delete_positions(world.table, [(file.file_path, position)])
    return world


def test_merged_deletes_of_two_partitions_are_refused(path: Path) -> None:
    world = with_deletes_of_two_months()
    write_plan(world.table, "rewrite_position_deletes", str(path), no_spark, options={"rewrite-all": "true"})

    def in_one_group(lines: Lines) -> Lines:
        group = next(one for one in lines if one.get("kind") == "group")
        others = [one for one in lines[1:] if one["kind"] != "group"]
        return [lines[0], group, *({**one, "group": group["group"]} for one in others)]

    edited(path, in_one_group)
    before, rows = world.state(), world.rows()
    with pytest.raises(SafetyError, match="delete files of several partitions would become one"):
        apply_plan(world.catalog, str(path), no_spark)
    assert (world.state(), world.rows()) == (before, rows)


def test_table_missing_in_other_catalog_was_not_dropped(path: Path) -> None:
    world, other = with_orphans(), World(2)
    write_plan(world.table, "drop", str(path), no_spark, purge=True)
    other.catalog.drop(EVENTS)
    other.catalog.identity = "memory elsewhere"
    with pytest.raises(
        NotFoundError, match=r"there is no table 'db.events' in catalog .*; the plan was made in .*--catalog"
    ):
        apply_plan(other.catalog, str(path), no_spark)
    assert world.rows()
    assert apply_plan(world.catalog, str(path), no_spark).applied_before is None
    assert "carried out before" in str(apply_plan(world.catalog, str(path), no_spark).applied_before)


def test_plan_without_catalog_drops_no_missing_table(path: Path) -> None:
    world = with_orphans()
    write_plan(world.table, "drop", str(path), no_spark)
    edited(path, lambda lines: [{key: one for key, one in lines[0].items() if key != "catalog"}, *lines[1:]])
    world.catalog.drop(EVENTS)
    with pytest.raises(NotFoundError, match="made in a catalog that it does not name"):
        apply_plan(world.catalog, str(path), no_spark)


def test_what_carried_a_plan_out_is_told_by_ids_too(path: Path) -> None:
    world = World(2)
    for number in range(5):
        world.append(number)
    write_plan(world.table, "compact", str(path), no_spark)
    done = apply_plan(world.catalog, str(path), no_spark)
    assert (done.applied_snapshot_id, done.applied_run_id) == (None, None)
    again = apply_plan(world.catalog, str(path), no_spark)
    assert again.applied_snapshot_id == world.table.metadata.current_snapshot_id
    assert again.applied_run_id == done.result.run_id
    assert again.plan_hash == read_plan_file(str(path)).hash
    assert {*applied_shown(again)} == {"plan_of", "plan_hash", "applied_before"}
    shown = applied_shown(done)
    assert (shown["plan_of"], shown["rewritten_data_files_count"]) == ("compact", 5)
    assert not any(isinstance(value, dict) and "status" in value for value in shown.values())


def test_a_job_that_makes_no_plan_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="no job 'check' makes a plan"):
        write_plan(with_orphans().table, "check", str(path), no_spark)
