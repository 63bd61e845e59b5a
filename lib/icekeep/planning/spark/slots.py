"""How many tasks a Spark session runs at once, and how often it tries one."""

import re
from typing import TYPE_CHECKING

from icekeep.planning.spark.lazily import running_context, task_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_local(spark: "SparkSession") -> bool:
    """Whether all tasks run in one process of Spark, on this machine."""
    return is_local_master(spark.sparkContext.master)


def is_local_master(master: str) -> bool:
    """Whether a master is Spark itself, in one process on this machine."""
    return master.startswith("local") and not master.startswith("local-cluster")


def is_running_on_cluster() -> bool:
    """Whether this process has a Spark session whose tasks run on other machines."""
    context = running_context()
    return context is not None and not is_local_master(context.master)


def max_task_failures(spark: "SparkSession") -> int:
    """How often Spark tries a task; once on a local master, unless it is written `local[N,F]`."""
    if is_local(spark):
        tries = re.fullmatch(r"local\[[^,]*,\s*(\d+)\]", spark.sparkContext.master)
        return int(tries[1]) if tries else 1
    return int(spark.sparkContext.getConf().get("spark.task.maxFailures", "4"))


def is_speculative(spark: "SparkSession") -> bool:
    """Whether Spark makes a second attempt at a slow task beside the first (`spark.speculation`)."""
    return spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true"


def parallelism(spark: "SparkSession") -> int:
    """How many tasks the session runs at once, on all executors together, or what `spark.default.parallelism` says."""
    return int(spark.sparkContext.defaultParallelism)


def executor_slots(spark: "SparkSession") -> int:
    """How many tasks share one executor, and so its memory; with a local master all that run at once.

    It is `spark.executor.cores` by `spark.task.cpus`. Where nobody set the former an executor has what the master gives it: all
    cores of its worker on a standalone cluster, one on YARN and Kubernetes.
    """
    conf = spark.sparkContext.getConf()
    return max(1, _executor_cores(spark) // max(1, int(conf.get("spark.task.cpus", "1") or 1)))


def _executor_cores(spark: "SparkSession") -> int:
    context = spark.sparkContext
    if is_local(spark):
        threads = re.match(r"local\[\s*(\*|\d+)", context.master)
        if threads is None:
            return 1
        # The processors that the JVM sees, which heeds a container's limit.
        return int(
            context._jvm.java.lang.Runtime.getRuntime().availableProcessors() if threads[1] == "*" else threads[1]
        )
    given = context.getConf().get("spark.executor.cores")
    if given is not None:
        return int(given)
    if workers := re.match(r"local-cluster\[\s*\d+\s*,\s*(\d+)", context.master):
        return int(workers[1])
    if not context.master.startswith("spark://"):
        return 1
    # Nothing public of Spark tells it. The driver is no executor; where none has come yet all slots may be on one.
    found = context._jsc.sc().statusStore().executorList(True)
    cores = [found.apply(n).totalCores() for n in range(found.size()) if found.apply(n).id() != "driver"]
    return int(max(cores, default=context.defaultParallelism))


def is_tried_again(max_failures: int) -> bool:
    """Whether Spark tries this task once more if it fails now."""
    context = task_context()
    return context is not None and context.attemptNumber() + 1 < max_failures


def was_tried_before() -> bool:
    """Whether an attempt at this task has failed, or was lost with its executor, or is under way at the same time."""
    context = task_context()
    return context is not None and context.attemptNumber() > 0


def attempt_id() -> int:
    """The number of the attempt at this task, for names of what it writes; no other of the Spark application has it."""
    context = task_context()
    return 0 if context is None else int(context.taskAttemptId())
