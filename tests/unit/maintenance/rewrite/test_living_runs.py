"""Each job that writes new files says that it is alive, and its files bear its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icekeep.catalog.base import Table
from icekeep.events import SILENT
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.rewrite.alive import DEAD_AFTER_MS, living_runs, sweep_runs
from icekeep.maintenance.rewrite.run import TAG_PREFIX, RewriteRun
from icekeep.runtime import SYSTEM
from kit.lake import Lake
from kit.no_spark import no_spark
from kit.numbered_rows import gone, made
from kit.runtime import FakeRuntime, with_runtime
from kit.written_deletes import data_files, delete_positions


def small_files(lake: Lake) -> Table:
    return lake.filled(commits=6)


def with_position_deletes(lake: Lake) -> Table:
    table = made(lake)
    path = data_files(table)[0].file_path
    for position in range(5):
        table = delete_positions(table, [(path, position)])
    return table


def with_equality_deletes(lake: Lake) -> Table:
    return gone(made(lake), 1, 6)


@pytest.mark.parametrize(
    ("fill", "job", "is_pinned"),
    [
        (small_files, compact, True),
        (with_position_deletes, rewrite_position_deletes, True),
        (with_equality_deletes, convert_equality_deletes, True),
        (small_files, rewrite_manifests, False),
    ],
)
def test_a_job_is_alive_until_its_commit_and_its_new_files_bear_its_name(
    fill: Callable[[Lake], Table], job: Callable[..., Any], is_pinned: bool, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = fill(lake)
    directory = Path(table.metadata.location.removeprefix("file://"))
    dead = directory / ".icekeep/runs/dead/moves-0"
    dead.parent.mkdir(parents=True)
    dead.write_bytes(b"left")
    before = lake.content_on_disk()
    send = RewriteRun.send
    alive: list[frozenset[str]] = []

    def checked(rewrite: RewriteRun, *arguments: Any) -> Any:
        base = rewrite.table
        [run] = living_runs(base, SYSTEM)
        new = lake.content_on_disk() - before
        assert new
        assert all(run in str(path) for path in new)
        # A sweep of another job, some days later by its own clock, which is wrong.
        days_later = FakeRuntime(now_ms=SYSTEM.now_ms() + 3 * DEAD_AFTER_MS)
        sweep_runs(base, days_later, keep="", listener=SILENT)
        assert living_runs(base, SYSTEM) == {run}
        tags = [name for name in base.catalog.load(base.identifier).metadata.refs if name.startswith(TAG_PREFIX)]
        assert [run in tag for tag in tags] == [True] * is_pinned
        alive.append(frozenset({run}))
        return send(rewrite, *arguments)

    monkeypatch.setattr(RewriteRun, "send", checked)
    result = job(with_runtime(table, SYSTEM), no_spark)
    assert len(alive) == 1
    assert result is not None
    assert living_runs(table, SYSTEM) == frozenset()
    refs = lake.catalog.load(table.identifier).metadata.refs
    assert not [name for name in refs if name.startswith(TAG_PREFIX)]
