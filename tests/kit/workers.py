"""Which worker of pytest-xdist runs a test: tests of one engine share a worker, so that the engine is started once.

With `--dist loadgroup`. Two workers with a JVM each, or three, take each other's time on two cores.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

OF_FOLDERS = {("tests", "spark"): "spark", ("tests", "end_to_end"): "end-to-end"}
"""Tests of Spark in this process, and those that start processes with one."""
LONGEST = "spark"
OF_FIXTURES = ("flink", "trino", "panel", "postgres")
"""Servers and processes of `kit.foreign_software` that few tests need; most of `interop` needs Iceberg Java."""
_TOGETHER = {"panel": "trino"}
"""Trino is one of the judges of the panel."""


class Workers:
    """A plugin of pytest: groups of tests, and their distribution."""

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Every other worker begins at the end: in a fresh checkout each compiles half of the files, and reads the rest."""
        number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        if int(number) % 2 == 0 or (path / "__init__.py").is_file():
            return None
        return _Backwards.from_parent(parent, path=path)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Files that are `slow` come first, so that no worker is left with one at the end; groups last, the longest first."""
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        ranks = []
        for item in items:
            group = OF_FOLDERS.get(item.path.parts[-3:-1]) or _engine(getattr(item, "fixturenames", ()))
            if group is not None:
                item.add_marker(pytest.mark.xdist_group(group))
                ranks.append(2 if group == LONGEST else 3)
            else:
                ranks.append(0 if item.path in slow else 1)
        ranked = sorted(zip(ranks, items, strict=True), key=lambda pair: (pair[0], pair[1].path))
        items[:] = [item for _, item in ranked]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> "_ByGroupOrFile | None":
        return _ByGroupOrFile(config, log) if config.option.dist == "loadgroup" else None


class _Backwards(pytest.Dir):
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return reversed([*super().collect()])


class _ByGroupOrFile(LoadGroupScheduling):
    """A test of no group goes where the others of its file go, whose fixtures it may share.

    A worker that has had a group gets groups alone: a test that needs nothing would find the Spark of an earlier one in its
    process, and what it commits would name it. Where all have had one, what is left goes to any.
    """

    def _split_scope(self, nodeid: str) -> str:
        return super()._split_scope(nodeid).partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._had_group(node) and not all(map(self._had_group, self.nodes)):
            group = next(filter(_is_group, self.workqueue), None)
            if group is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(group, last=False)
        super()._assign_work_unit(node)

    def _had_group(self, node: WorkerController) -> bool:
        return any(map(_is_group, self.assigned_work[node]))


def _is_group(scope: str) -> bool:
    return "/" not in scope


def _engine(fixtures: Any) -> str | None:
    found = [name for name in OF_FIXTURES if name in fixtures]
    return _TOGETHER.get(found[0], found[0]) if found else None
