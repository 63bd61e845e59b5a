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
        total_bytes: the most memory of all processes together at one glance; pages that Python's share count for each. A
            child of the JVM that is still the JVM, about to become another program, has no memory of its own; its name is
            that of a thread.
    """

    def __enter__(self) -> "Watch":
        for pid in _tree():
            with suppress(*_GONE):
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
        self.driver_bytes = self.jvm_bytes = self.worker_bytes = self.total_bytes = 0
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
        total, programs = 0, dict[int, str]()
        # Parents come first.
        for pid, parent in _tree().items():
            with suppress(*_GONE):
                (peak, present), name = _peak_and_present_bytes(pid), Path(f"/proc/{pid}/comm").read_text().strip()
                programs[pid] = Path(os.readlink(f"/proc/{pid}/exe")).name
                total += 0 if programs[pid] == programs.get(parent) == "java" else present
                if pid == os.getpid():
                    self.driver_bytes = max(self.driver_bytes, peak)
                elif name == "java":
                    self.jvm_bytes = max(self.jvm_bytes, peak)
                elif programs[pid].startswith("python"):  # a script has its own name
                    self.worker_bytes = max(self.worker_bytes, peak)
        self.total_bytes = max(self.total_bytes, total)

    def figures(self) -> dict[str, float]:
        names = ("seconds", "cpu_seconds", "driver_bytes", "jvm_bytes", "worker_bytes", "total_bytes")
        return {name: getattr(self, name) for name in names}


def _peak_and_present_bytes(pid: int) -> tuple[int, int]:
    """The most memory of a process so far, and what it has now."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kilobytes = {words[0]: int(words[1]) for words in lines if words[0] in ("VmHWM:", "VmRSS:")}
    return kilobytes.get("VmHWM:", 0) * 1024, kilobytes.get("VmRSS:", 0) * 1024


def _tree() -> dict[int, int]:
    """This process and all below it, each with its parent, which comes before it."""
    parents = {pid: int(after_name[1]) for pid, after_name in _stats().items()}
    found = {os.getpid(): os.getppid()}
    while below := {pid: parent for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= below
    return found


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
