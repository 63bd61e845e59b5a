"""How many processors this process may keep busy."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from icekeep.formats.control_groups import limit_files


def processors_count(root: Path = Path("/")) -> int:
    """Those that it may run on, or fewer where its container is given less of their time; a part of one counts as one.

    Args:
        root: where the system's directories `proc` and `sys` are.
    """
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(own, *_quotas(root), own))


def _quotas(root: Path) -> Iterator[int]:
    """How many processors' time each of the process's control groups may take, where it has a limit."""
    for file in limit_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        # The older form has the period in a file of its own; a group without a limit says `max`, or -1.
        with suppress(OSError, ValueError):
            quota_us, *period_us = file.read_text().split()
            period = int(period_us[0] if period_us else file.with_name("cpu.cfs_period_us").read_text())
            if int(quota_us) > 0 and period > 0:
                yield -(-int(quota_us) // period)
