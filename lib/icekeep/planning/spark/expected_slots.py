"""How many tasks a job would run at once, as far as that is known before it begins; nothing is started for it."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress

from icekeep.formats.processors import processors_count
from icekeep.planning.spark.lazily import running_context
from icekeep.planning.spark.limits import LIMITS
from icekeep.planning.spark.slots import is_local_master
from icekeep.planning.spark.workers import own_rewrite_bytes, thread_workers

Properties = Callable[[], Mapping[str, str]]
"""Gives Spark's configuration, `spark.*`; may raise whatever the JVM raises."""

_USUAL_MASTER = "local[*]"


def expected_slots(properties: Properties, work_bytes: int) -> int:
    """How many tasks of a job that reads so many bytes would run at once, at least one.

    Where executors come and go as they are needed, it is as many as may come.
    """
    if work_bytes <= own_rewrite_bytes(LIMITS):
        return thread_workers().slots
    told: Mapping[str, str] = {}
    running, context = 0, running_context()
    # A session that is about to end answers with whatever it likes, and an estimate is worth no error.
    with suppress(Exception):
        if context is not None:
            running = int(context.defaultParallelism)
            told = {"spark.master": context.master, **dict(context.getConf().getAll())}
        else:
            told = properties()
    return max(1, running, configured_slots(told))


def configured_slots(properties: Mapping[str, str]) -> int:
    """How many tasks a session of this configuration runs at once, once all its executors are there; 1 where it does not say.

    >>> configured_slots({"spark.master": "yarn", "spark.executor.instances": "8", "spark.executor.cores": "4"})
    32
    """
    master = properties.get("spark.master", _USUAL_MASTER)
    each = max(1, _number(properties, "spark.task.cpus", 1))
    if is_local_master(master):
        threads = re.match(r"local\[\s*(\*|\d+)", master)
        return 1 if threads is None else processors_count() if threads[1] == "*" else max(1, int(threads[1]))
    cores = _number(properties, "spark.executor.cores", 1)
    is_dynamic = properties.get("spark.dynamicAllocation.enabled", "").lower() == "true"
    executors = _number(properties, "spark.executor.instances", 1)
    if is_dynamic:
        executors = max(executors, _number(properties, "spark.dynamicAllocation.maxExecutors", 1))
    most = max(executors * (cores // each), _number(properties, "spark.cores.max", 1) // each)
    return max(1, most)


def _number(properties: Mapping[str, str], key: str, default: int) -> int:
    text = properties.get(key, "").strip()
    return int(text) if text.isdecimal() else default
