"""Files of plans that somebody has edited, hash and all: they can make a job do less, and never more."""

import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from icekeep.errors import NotFoundError, SafetyError, UsageError
from icekeep.operations.applying import apply_plan, write_plan
from icekeep.spec.units import DAY_MS
from icekeep.tables.append import append
from kit.job_world import World
from kit.lake import events
from kit.no_spark import no_spark
from kit.written_deletes import data_files

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
    with pytest.raises(SafetyError, match=f"1 files to delete are in use by now, or gone, such as '{live}'"):
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


def test_a_plan_that_is_edited_to_another_snapshot_expires_nothing(path: Path) -> None:
    world = World(2)
    for number in range(3):
        world.append(number)
    world.runtime.pass_ms(3 * DAY_MS)
    append(world.table, events(9))
    write_plan(world.table, "expire_snapshots", str(path), no_spark, older_than="1d", retain_last=2, trash=0)
    head_id = str(world.table.metadata.current_snapshot_id)
    edited(path, lambda lines: [lines[0], {**lines[1], "name": head_id}, *lines[2:]])
    before = world.state()
    with pytest.raises(SafetyError, match=f"snapshot {head_id}, which branch 'main' names by now must stay"):
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


def test_a_job_that_makes_no_plan_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="no job 'check' makes a plan"):
        write_plan(with_orphans().table, "check", str(path), no_spark)
