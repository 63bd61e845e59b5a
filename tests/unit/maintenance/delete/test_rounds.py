"""How many parts of a plan tasks carry out between two looks at the catalog."""

from types import SimpleNamespace
from typing import Any

import pytest

from icekeep.maintenance.delete import run as deleting
from icekeep.maintenance.delete.plan_file import PlanPart
from icekeep.maintenance.delete.reachable import FileKind, FilesOfKind
from kit.cases import for_each

MINUTE = 60_000


def parts(count: int, files: int = 50_000) -> tuple[PlanPart, ...]:
    kind = FilesOfKind(kind=FileKind.DATA, files_count=files, bytes=0)
    return tuple(PlanPart(location=f"p{n}", files=(kind,), digest="") for n in range(count))


class Clock:
    now = 0

    def monotonic_ms(self) -> int:
        return self.now


def rounds(count: int, took: Any) -> list[int]:
    """How many parts the rounds have, where one of so many takes so long."""
    clock, found, left = Clock(), [], [*parts(count)]
    for some in deleting.batches_of_parts(parts(count), None, clock):
        found.append(len(some))
        assert [*some] == left[: len(some)]
        del left[: len(some)]
        clock.now += took(len(some), len(found))
    assert not left
    return found


def test_a_round_takes_about_a_minute_whatever_slots_there_are():
    assert rounds(1_000, lambda size, _: size * 1_000)[:6] == [4, 8, 16, 32, 60, 60]
    assert rounds(20, lambda size, _: size * 30_000) == [4, *[2] * 8]
    assert rounds(8, lambda size, _: 10 * MINUTE) == [4, 1, 1, 1, 1]


def test_slots_that_come_later_are_used():
    """Four hundred executors came when the first rounds were done."""
    found = rounds(4_000, lambda size, number: size * (15_000 if number < 4 else 100))
    assert found[:3] == [4, 4, 4]
    assert max(found) > 500


def test_no_time_at_all_is_no_error():
    assert rounds(100, lambda *_: 0) == [4, 8, 16, 32, 40]


@pytest.mark.parametrize(("rate", "sizes"), [(1.0, [1] * 5), (2_000.0, [2, 2, 1]), (10_000.0, [5])])
def test_with_a_limited_speed_a_round_has_as_many_files_as_that_allows(rate, sizes):
    found = [*deleting.batches_of_parts(parts(5), rate, Clock())]
    assert [len(some) for some in found] == sizes


@for_each(
    ("rate", "concurrent", "tasks"), [(None, None, 40), (None, 7, 7), (100.0, None, 1), (2_500.0, None, 5), (1e6, 9, 9)]
)
def test_tasks_share_a_limited_speed(rate, concurrent, tasks):
    conf = SimpleNamespace(get=lambda *_: None)
    session = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf, master="yarn", defaultParallelism=2))
    bins, each = deleting.task_bins(rate, parts(40), concurrent, session)
    assert len(bins) == tasks
    assert each == (None if rate is None else rate / tasks)
