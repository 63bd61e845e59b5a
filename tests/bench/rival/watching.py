"""What a process and those below it take: processor time, and the most memory of each kind. Standard library only."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

_GLANCE_S = 0.1
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_Memory = tuple[str, int, int]
"""The program of a process, its memory beside files, and of files; bytes."""

_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


class Watch:
    """Watches this process and all below it while the block runs: the driver, Spark's JVM and its Python workers.

    Attributes, when the block has ended:
        seconds: on the clock.
        cpu_seconds: of all processes together, those that ended meanwhile among them.
        driver_cpu_seconds: of this process and those below it.
        driver_bytes, jvm_bytes, worker_bytes: the most memory (resident set) of this process, of the JVM, which in local
            mode is driver and executor at once, and of the largest Python worker, in the block alone.
        executor_jvm_bytes: of the largest JVM of an executor on a cluster.
        total_bytes: the most memory of all processes together at one glance. Of files, such as libraries, processes of one
            program have the same pages: those of the process that has most of them count, once. Pages that a fork left shared
            count for each. A child of the JVM that is still the JVM, about to become another program, has no memory of its own;
            its name is that of a thread.
        driver_total_bytes: the same of this process and those below it.
        steal_seconds: of all processors, what the host of this virtual machine took for others.
        others_cpu_seconds: of all processors, what processes that are not watched took.
    """

    def __init__(self, cluster: Sequence[int] = ()) -> None:
        """Watch besides what is below some processes: those of a cluster, whose own memory is nobody's."""
        self._cluster = tuple(cluster)

    def __enter__(self) -> "Watch":
        for pid in _below(_stats(), os.getpid(), *self._cluster):
            with suppress(*_GONE):
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
        self.driver_bytes = self.jvm_bytes = self.worker_bytes = self.executor_jvm_bytes = 0
        self.total_bytes = self.driver_total_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_now_and_then, daemon=True)
        self._driver_cpu, self._cluster_cpu = _Processors(os.getpid()), _Processors(*self._cluster)
        self._busy, self._steal = _machine_seconds()
        self._began = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        self._over.set()
        self._thread.join()
        self._look()
        self.driver_cpu_seconds = self._driver_cpu.seconds
        self.cpu_seconds = self.driver_cpu_seconds + self._cluster_cpu.seconds
        busy, steal = _machine_seconds()
        self.steal_seconds = steal - self._steal
        self.others_cpu_seconds = max(0.0, busy - self._busy - self.cpu_seconds)

    def _look_now_and_then(self) -> None:
        while not self._over.wait(_GLANCE_S):
            self._look()

    def _look(self) -> None:
        stats = _stats()
        self._driver_cpu.look(stats)
        self._cluster_cpu.look(stats)
        driver = self._look_at(_below(stats, os.getpid()), is_cluster=False)
        cluster = self._look_at(_below(stats, *self._cluster), is_cluster=True)
        self.total_bytes = max(self.total_bytes, _together(driver + cluster))
        self.driver_total_bytes = max(self.driver_total_bytes, _together(driver))

    def _look_at(self, tree: Mapping[int, int], *, is_cluster: bool) -> list[_Memory]:
        """Note the peaks of some processes, parents first; what each has now."""
        found, javas = list[_Memory](), dict[int, bytes]()
        for pid, parent in tree.items():
            with suppress(*_GONE):
                (peak, own, of_files), name = _memory_bytes(pid), Path(f"/proc/{pid}/comm").read_text().strip()
                program = Path(os.readlink(f"/proc/{pid}/exe")).name
                if program == "java":
                    javas[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if javas[pid] == javas.get(parent):
                        continue
                if pid in self._cluster:
                    continue
                found.append((program, own, of_files))
                if pid == os.getpid():
                    self.driver_bytes = max(self.driver_bytes, peak)
                elif program.startswith("python"):  # a script has its own name
                    self.worker_bytes = max(self.worker_bytes, peak)
                elif name == "java" and is_cluster:
                    self.executor_jvm_bytes = max(self.executor_jvm_bytes, peak)
                elif name == "java":
                    self.jvm_bytes = max(self.jvm_bytes, peak)
        return found

    def figures(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in _FIGURES}


_FIGURES = (
    *("seconds", "cpu_seconds", "driver_cpu_seconds", "driver_bytes", "jvm_bytes", "worker_bytes"),
    *("executor_jvm_bytes", "total_bytes", "driver_total_bytes"),
    *("steal_seconds", "others_cpu_seconds"),
)


def _machine_seconds() -> tuple[float, float]:
    """What all processors together were busy, and what was taken from them, since the machine started."""
    user, nice, system, _idle, _waiting, irq, soft_irq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft_irq) / _TICKS_A_SECOND, steal / _TICKS_A_SECOND


def _memory_bytes(pid: int) -> tuple[int, int, int]:
    """The most memory of a process so far, what it has now beside files, and of files."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kilobytes = {words[0]: int(words[1]) for words in lines if words[0] in ("VmHWM:", "VmRSS:", "RssFile:")}
    of_files = kilobytes.get("RssFile:", 0)
    return kilobytes.get("VmHWM:", 0) * 1024, (kilobytes.get("VmRSS:", 0) - of_files) * 1024, of_files * 1024


def _together(found: Iterable[_Memory]) -> int:
    """The memory of some processes, what they have of files once for each program."""
    total, files = 0, dict[str, int]()
    for program, own, of_files in found:
        total += own
        files[program] = max(files.get(program, 0), of_files)
    return total + sum(files.values())


def _below(stats: Mapping[int, list[str]], *roots: int) -> dict[int, int]:
    """Some processes and all below them, each with its parent, which comes before it."""
    parents = {pid: int(after_name[1]) for pid, after_name in stats.items()}
    found = {pid: parents[pid] for pid in roots if pid in parents}
    while below := {pid: parent for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= below
    return found


class _Processors:
    """Processor time of some processes and those below them; one that has ended counts in the parent that waited for it.

    Attributes:
        seconds: since this was made, as far as it was looked at.
    """

    def __init__(self, *roots: int) -> None:
        self.seconds = 0.0
        self._roots, self._last = roots, _cpu_seconds(_stats(), roots)

    def look(self, stats: Mapping[int, list[str]]) -> None:
        now = _cpu_seconds(stats, self._roots)
        # Where a parent ends first, the time of those below it is in the tree no more.
        self.seconds += max(0.0, now - self._last)
        self._last = now


def _cpu_seconds(stats: Mapping[int, list[str]], roots: Sequence[int]) -> float:
    return sum(sum(map(int, stats[pid][11:15])) for pid in _below(stats, *roots)) / _TICKS_A_SECOND


def _stats() -> dict[int, list[str]]:
    """Of all processes, by id, what `/proc/PID/stat` says after the name."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(*_GONE):
            found[int(process.name)] = (process / "stat").read_text().rpartition(")")[2].split()
    return found


_PLANS = 4


def timed_plans(
    filters: Mapping[str, Any], ready: Callable[[Any], Callable[[], Callable[[], dict[str, int]]]]
) -> dict[str, Any]:
    """Of each filter the best time of some plans, each of a table that was just loaded, and the files that they find.

    Args:
        ready: loads the table; what it returns plans a filter.
    """
    found = {}
    for name, asked in filters.items():
        seconds, results = [], []
        for _ in range(_PLANS):
            plan = ready(asked)
            began = time.perf_counter()
            say = plan()
            seconds.append(time.perf_counter() - began)
            results.append(say())
        if any(result != results[0] for result in results):
            raise AssertionError(f"the same plan has different results: {results}")
        found[name] = {"seconds": min(seconds), **results[0]}
    return found
