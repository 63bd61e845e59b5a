"""Whether the tasks that share an executor have the memory that they may take, by Spark's settings alone: nothing is run.

On YARN and Kubernetes an executor is a container with a limit. Its JVM takes `spark.executor.memory`; its Python workers take
what else there is, `spark.executor.memoryOverhead`, of which the JVM needs a part, or `spark.executor.pyspark.memory`, if
that is set. Who takes more is killed. Elsewhere the machine is the limit.
"""

import re
from collections.abc import Mapping

import msgspec

from icekeep.events import Listener, Warned
from icekeep.planning.spark.workers import Workers
from icekeep.spec.units import GIB, MIB

OVERHEAD = "spark.executor.memoryOverhead"
PYTHON_MEMORY = "spark.executor.pyspark.memory"

_HEAP = "spark.executor.memory"
_DRIVER_HEAP = "spark.driver.memory"
_FACTOR = "spark.executor.memoryOverheadFactor"
_LEAST = "spark.executor.minMemoryOverhead"
_DEFAULT_HEAP = "1g"
_DEFAULT_FACTOR = 0.1
_DEFAULT_FACTORS = {"k8s": 0.4}
_DEFAULT_LEAST = "384m"
_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "": MIB, "m": MIB, "g": GIB, "t": GIB << 10, "p": GIB << 20}


class PythonMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What the Python workers of an executor may take together.

    Attributes:
        available_bytes: `None` where no setting limits it.
        jvm_bytes: what the JVM needs of the setting beside them.
        setting: which setting says so.
    """

    available_bytes: int | None
    jvm_bytes: int = 0
    setting: str = OVERHEAD


def size_bytes(text: str) -> int | None:
    """A size as Spark reads it for memory, in MiB where it has no unit; `None` for what is no size.

    >>> size_bytes("2g") == size_bytes("2048") == size_bytes("2048MB")
    True
    """
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _UNITS[match[2].lower()] if match else None


def heap_bytes(properties: Mapping[str, str], *, is_driver: bool = False) -> int:
    """How large the heap of an executor's JVM may grow, or of the driver's."""
    return _size(properties, _DRIVER_HEAP if is_driver else _HEAP, _DEFAULT_HEAP)


def python_memory(properties: Mapping[str, str], master: str) -> PythonMemory:
    """What Spark's settings leave to the Python workers of an executor."""
    manager = master.partition(":")[0].partition("[")[0]
    if manager not in ("yarn", "k8s"):
        return PythonMemory(available_bytes=None)
    given = size_bytes(properties.get(PYTHON_MEMORY, ""))
    if given:
        return PythonMemory(available_bytes=given, setting=PYTHON_MEMORY)
    heap, least = heap_bytes(properties), _size(properties, _LEAST, _DEFAULT_LEAST)
    jvm_bytes = max(least, int(heap * _DEFAULT_FACTOR))
    overhead_bytes = max(least, int(heap * _factor(properties, _DEFAULT_FACTORS.get(manager, _DEFAULT_FACTOR))))
    overhead_bytes = size_bytes(properties.get(OVERHEAD, "")) or overhead_bytes
    return PythonMemory(available_bytes=max(0, overhead_bytes - jvm_bytes), jvm_bytes=jvm_bytes)


def shortage(memory: PythonMemory, slots: int, task_bytes: int) -> str | None:
    """What is wrong and what to set, in one line, where `slots` tasks may take more than they have; else `None`."""
    needed_bytes = slots * task_bytes
    if memory.available_bytes is None or memory.available_bytes >= needed_bytes:
        return None
    setting = f"{memory.setting}={-(-(needed_bytes + memory.jvm_bytes) // GIB)}g"
    return (
        f"the {slots} Python tasks that share an executor may take {task_bytes // MIB:,} MiB each, and {memory.setting} leaves "
        f"them {memory.available_bytes // MIB:,} MiB together: an executor that takes more is killed; set {setting}, or let "
        "fewer tasks share an executor (spark.executor.cores)"
    )


def warn_of_memory(workers: Workers, task_bytes: int, listener: Listener) -> None:
    """Warn before work starts whose tasks may take so much each; costs a question to the driver, and no Spark job."""
    if workers.spark is None:
        return
    context = workers.spark.sparkContext
    memory = python_memory(dict(context.getConf().getAll()), context.master)
    problem = shortage(memory, workers.process_slots, task_bytes)
    if problem is not None:
        listener.on(Warned(problem))


def _size(properties: Mapping[str, str], name: str, default: str) -> int:
    return size_bytes(properties.get(name, "")) or size_bytes(default) or 0


def _factor(properties: Mapping[str, str], default: float) -> float:
    try:
        return float(properties.get(_FACTOR, default))
    except ValueError:
        # Spark itself refuses it.
        return default
