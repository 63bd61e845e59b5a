"""What Spark's configuration says of a session, before one runs: where its tasks run, how many at once, with how much memory.

It is read from files and the environment, since Spark itself would have to start a JVM for it.
"""

import itertools
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from icekeep.formats.machine import processors_count
from icekeep.spec.types import GIB, MIB

SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""An environment variable that `spark-submit` sets: a JVM runs already and has the configuration."""

PYTHON_MEMORY = "spark.executor.pyspark.memory"
_OVERHEAD = "spark.executor.memoryOverhead"
_LINE = re.compile(r"(\S+?)(?:\s*[=:]\s*|\s+)(.*)")
_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "": MIB, "m": MIB, "g": GIB, "t": GIB << 10, "p": GIB << 20}


def configured_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """The `spark.*` properties that a session started from this environment would have."""
    try:
        words = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    except ValueError:
        # Spark itself refuses it when it starts.
        words = []
    joined = [word.partition("=") for word in words if word.startswith("--") and "=" in word]
    arguments = [*itertools.pairwise([*words, ""]), *((flag, value) for flag, _, value in joined)]
    directory = environ.get("SPARK_CONF_DIR") or (environ.get("SPARK_HOME") and f"{environ['SPARK_HOME']}/conf")
    chosen = [value for flag, value in arguments if flag == "--properties-file"]
    properties: dict[str, str] = {}
    for path in chosen[-1:] or ([f"{directory}/spark-defaults.conf"] if directory else []):
        with suppress(OSError, UnicodeDecodeError):
            # A Java properties file, as Spark's users write it: key, whitespace, `=` or `:`, and value.
            for line in Path(path).read_text(encoding="utf-8").splitlines():
                match = None if line.lstrip().startswith(("#", "!")) else _LINE.fullmatch(line.strip())
                if match is not None and match[1].startswith("spark."):
                    properties[match[1]] = match[2].strip()
    for flag, value in arguments:
        key, equals, text = value.partition("=")
        if flag in ("--conf", "-c") and equals:
            properties[key.strip()] = text
        if flag == "--master":
            properties["spark.master"] = value
    return properties


def is_local_master(master: str) -> bool:
    """Whether a master runs all tasks in one process on this machine; `local-cluster` starts executors beside the driver."""
    return master.startswith("local") and not master.startswith("local-cluster")


def local_slots(master: str, processors: Callable[[], int]) -> int:
    """How many tasks a local master runs at once; `local[*]` as many as there are processors."""
    threads = re.match(r"local\[\s*(\*|\d+)", master)
    return 1 if threads is None else processors() if threads[1] == "*" else max(1, int(threads[1]))


def configured_slots(properties: Mapping[str, str]) -> int:
    """How many tasks a session of this configuration runs at once with all its executors; 1 where that is not configured.

    >>> configured_slots({"spark.master": "yarn", "spark.executor.instances": "8", "spark.executor.cores": "4"})
    32
    """

    def number(key: str) -> int:
        text = properties.get(key, "").strip()
        return int(text) if text.isdecimal() else 1

    master = properties.get("spark.master", "local[*]")
    if is_local_master(master):
        return local_slots(master, processors_count)
    executors, cpus = number("spark.executor.instances"), max(1, number("spark.task.cpus"))
    if properties.get("spark.dynamicAllocation.enabled", "").lower() == "true":
        executors = max(executors, number("spark.dynamicAllocation.maxExecutors"))
    return max(1, executors * (number("spark.executor.cores") // cpus), number("spark.cores.max") // cpus)


class PythonMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of all Python workers of an executor.

    Attributes:
        available_bytes: `None` where no setting limits it.
        jvm_bytes: the JVM's part of the setting.
        setting: that limits it.
    """

    available_bytes: int | None
    jvm_bytes: int = 0
    setting: str = _OVERHEAD


def size_bytes(text: str) -> int | None:
    """A memory size as Spark reads it, in MiB where it has no unit; `None` for anything else.

    >>> size_bytes("2g") == size_bytes("2048") == size_bytes("2048MB")
    True
    """
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _UNITS[match[2].lower()] if match else None


def heap_bytes(properties: Mapping[str, str], *, is_driver: bool = False) -> int:
    """The largest heap of an executor's JVM, or of the driver's."""
    return size_bytes(properties.get("spark.driver.memory" if is_driver else "spark.executor.memory", "")) or GIB


def python_memory(properties: Mapping[str, str], master: str) -> PythonMemory:
    """The memory that Spark's settings leave to the Python workers of an executor.

    On YARN and Kubernetes an executor is a container with a limit, and killed where it takes more. Its JVM has
    `spark.executor.memory`; its Python workers share `spark.executor.memoryOverhead` with the JVM, or have
    `spark.executor.pyspark.memory`, if that is set. Elsewhere the machine is the limit.
    """
    manager = master.partition(":")[0].partition("[")[0]
    if manager not in ("yarn", "k8s"):
        return PythonMemory(available_bytes=None)
    given = size_bytes(properties.get(PYTHON_MEMORY, ""))
    if given:
        return PythonMemory(available_bytes=given, setting=PYTHON_MEMORY)
    factor = 0.4 if manager == "k8s" else 0.1
    # Spark itself refuses anything but a number.
    with suppress(ValueError):
        factor = float(properties.get("spark.executor.memoryOverheadFactor", factor))
    heap = heap_bytes(properties)
    least = size_bytes(properties.get("spark.executor.minMemoryOverhead", "")) or 384 * MIB
    jvm_bytes = max(least, int(heap * 0.1))
    overhead_bytes = size_bytes(properties.get(_OVERHEAD, "")) or max(least, int(heap * factor))
    return PythonMemory(available_bytes=max(0, overhead_bytes - jvm_bytes), jvm_bytes=jvm_bytes)


def shortage(memory: PythonMemory, slots: int, task_bytes: int) -> str | None:
    """The problem and the setting to change, in one line, where `slots` tasks may take more than they have; else `None`."""
    needed_bytes = slots * task_bytes
    if memory.available_bytes is None or memory.available_bytes >= needed_bytes:
        return None
    setting = f"{memory.setting}={-(-(needed_bytes + memory.jvm_bytes) // GIB)}g"
    return (
        f"the {slots} Python tasks that share an executor may take {task_bytes // MIB:,} MiB each, and {memory.setting} leaves "
        f"them {memory.available_bytes // MIB:,} MiB together: an executor that takes more is killed; set {setting}, or let "
        "fewer tasks share an executor (spark.executor.cores)"
    )
