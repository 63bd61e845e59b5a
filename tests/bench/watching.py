"""What a process and those below it take: processor time, and the most memory of each kind. Standard library only."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_GLANCE_S = 0.1
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


class Watch:
    """Watches this process and all below it while the block runs: the driver, Spark's JVM and its Python workers.

    Attributes, when the block has ended:
        seconds: on the clock.
        cpu_seconds: of all processes together, those that ended meanwhile among them.
        driver_bytes, jvm_bytes, worker_bytes: the most memory (resident set) of this process, of the JVM, which in local
            mode is driver and executor at once, and of the largest Python worker, in the block alone.
    """

    def __enter__(self) -> "Watch":
        for pid in _tree():
            with suppress(*_GONE):
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
        self.driver_bytes = self.jvm_bytes = self.worker_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_now_and_then, daemon=True)
        self._thread.start()
        self._cpu = _cpu_seconds()
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu_seconds = _cpu_seconds() - self._cpu
        self._over.set()
        self._thread.join()
        self._look()

    def _look_now_and_then(self) -> None:
        while not self._over.wait(_GLANCE_S):
            self._look()

    def _look(self) -> None:
        for pid in _tree():
            with suppress(*_GONE):
                peak, name = _peak_bytes(pid), Path(f"/proc/{pid}/comm").read_text().strip()
                if pid == os.getpid():
                    self.driver_bytes = max(self.driver_bytes, peak)
                elif name == "java":
                    self.jvm_bytes = max(self.jvm_bytes, peak)
                elif name.startswith("python"):
                    self.worker_bytes = max(self.worker_bytes, peak)

    def figures(self) -> dict[str, float]:
        names = ("seconds", "cpu_seconds", "driver_bytes", "jvm_bytes", "worker_bytes")
        return {name: getattr(self, name) for name in names}


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _tree() -> list[int]:
    """This process and all below it."""
    parents = {pid: int(after_name[1]) for pid, after_name in _stats().items()}
    found = {os.getpid()}
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    return sorted(found)


def _cpu_seconds() -> float:
    """Of the tree; a process that has ended counts in the parent that waited for it."""
    stats = _stats()
    return sum(sum(map(int, stats[pid][11:15])) for pid in _tree() if pid in stats) / _TICKS_A_SECOND


def _stats() -> dict[int, list[str]]:
    """Of all processes, by id, what `/proc/PID/stat` says after the name."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(*_GONE):
            found[int(process.name)] = (process / "stat").read_text().rpartition(")")[2].split()
    return found
