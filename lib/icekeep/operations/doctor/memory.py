"""Whether the tasks that run at once on a machine or in an executor fit into its memory."""

import re
from collections.abc import Mapping

from icekeep.errors import UsageError
from icekeep.maintenance.compact.job import BUDGET_BYTES
from icekeep.operations.doctor.findings import NotTried
from icekeep.planning.spark.configuration import heap_bytes, python_memory, shortage
from icekeep.spec.types import format_bytes

_ALL = "local[*]"
_COUNT = re.compile(r"[1-9]\d*")
_LOCAL = re.compile(r"local(?:\[\s*(\*|\d+).*)?")


def configured_memory(properties: Mapping[str, str], processors: int, machine_bytes: int) -> str:
    """What is said of the memory that tasks of a session would have, by its configuration, where no session runs.

    Raises:
        UsageError: it is too little.
        NotTried: only Spark itself knows.
    """
    master = properties.get("spark.master", _ALL)
    local = _LOCAL.fullmatch(master)
    if local is not None:
        slots = processors if local[1] == "*" else int(local[1] or 1)
        return machine_memory("this machine", machine_bytes, heap_bytes(properties, is_driver=True), slots)
    if not master.startswith(("yarn", "k8s")):
        raise NotTried(f"how many tasks share an executor of {master!r} only Spark knows; give --executors")
    slots = _count(properties, "spark.executor.cores") // _count(properties, "spark.task.cpus")
    return settings_memory(properties, master, max(1, slots))


def settings_memory(properties: Mapping[str, str], master: str, slots: int) -> str:
    """What is said of the memory that Spark's settings leave to the Python tasks of an executor.

    Raises:
        UsageError: it is too little.
    """
    memory = python_memory(properties, master)
    problem = shortage(memory, slots, BUDGET_BYTES)
    if problem is not None:
        raise UsageError(problem)
    if memory.available_bytes is None:
        return f"{slots} tasks share an executor, and no setting limits what they take beside the JVM"
    return f"{slots} tasks share an executor, and {memory.setting} leaves them {format_bytes(memory.available_bytes)}"


def machine_memory(whose: str, memory_bytes: int, jvm_bytes: int, slots: int) -> str:
    """What is said of tasks that share a machine or a container with a JVM.

    Raises:
        UsageError: they may take more than there is.
    """
    share_bytes = max(0, memory_bytes - jvm_bytes) // slots
    if share_bytes < BUDGET_BYTES:
        raise UsageError(
            f"{whose} has {format_bytes(memory_bytes)}, of which Spark's JVM may take {format_bytes(jvm_bytes)}: that leaves "
            f"{format_bytes(share_bytes)} to each of {slots} tasks, which may take {format_bytes(BUDGET_BYTES)} each; run "
            "fewer at once ('local[N]', or spark.executor.cores), or give it more memory"
        )
    return f"{whose} has {format_bytes(memory_bytes)}: {format_bytes(share_bytes)} for each of {slots} tasks at once"


def _count(properties: Mapping[str, str], name: str) -> int:
    given = properties.get(name, "1")
    if not _COUNT.fullmatch(given):
        raise UsageError(f"{name} is {given!r}; give a whole number, such as 2")
    return int(given)
