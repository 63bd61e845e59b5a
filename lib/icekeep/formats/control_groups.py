"""The limits that a container, or whoever started this process, puts on it: files of the kernel's control groups."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def limit_files(root: Path, controller: str, newer: str, older: str) -> Iterator[Path]:
    """Where the limits of the process's control groups stand: of each group, and of those above it.

    Args:
        root: where the system's directories `proc` and `sys` are.
        controller: what is limited, `memory` or `cpu`.
        newer, older: the name of the file in the second version of control groups, and in the first.
    """
    groups = root / "sys/fs/cgroup"
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base, name = (groups / controller, older) if controllers else (groups, newer)
        names = [part for part in path.split("/") if part not in ("", "..")]
        # In a container the path may be that of the machine, while the directory shows the container alone.
        for depth in range(len(names) + 1):
            yield base.joinpath(*names[:depth]) / name
