"""Which worker of pytest-xdist runs a test: tests of one engine share a worker, so that the engine is started once.

With `--dist loadgroup`. Two workers with a JVM each, or three, take each other's time on two cores.
"""

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling

OF_FOLDERS = {"spark": "spark", "end_to_end": "end-to-end"}
"""Tests of Spark in this process, and those that start processes with one."""
OF_FIXTURES = ("flink", "trino", "panel", "postgres")
"""Servers and processes of `kit.foreign_software` that few tests need; most of `interop` needs Iceberg Java."""
_TOGETHER = {"panel": "trino"}
"""Trino is one of the judges of the panel."""


class Workers:
    """A plugin of pytest: groups of tests, and their distribution."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Files that are `slow` come first, so that no worker is left with one at the end, and engines last.

        A test that needs nothing would find the Spark of an earlier one in its process, and what it commits would name it.
        """
        engines, slow = set[Path](), set[Path]()
        for item in items:
            group = OF_FOLDERS.get(item.path.parent.name) or _engine(getattr(item, "fixturenames", ()))
            if group is not None:
                item.add_marker(pytest.mark.xdist_group(group))
                engines.add(item.path)
            elif item.get_closest_marker("slow"):
                slow.add(item.path)
        items.sort(key=lambda item: (item.path in engines, item.path not in slow))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> "_ByGroupOrFile | None":
        return _ByGroupOrFile(config, log) if config.option.dist == "loadgroup" else None


class _ByGroupOrFile(LoadGroupScheduling):
    """A test of no group goes where the others of its file go, whose fixtures it may share."""

    def _split_scope(self, nodeid: str) -> str:
        return super()._split_scope(nodeid).partition("::")[0]


def _engine(fixtures: Any) -> str | None:
    found = [name for name in OF_FIXTURES if name in fixtures]
    return _TOGETHER.get(found[0], found[0]) if found else None
