"""Spark's executors: the same Python and packages as here, clocks that go with this machine's, memory for their tasks.

Needs PySpark, and is imported when its turn has come.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from icekeep.errors import UsageError
from icekeep.operations.doctor.clocks import ahead_ms, checked_clock
from icekeep.operations.doctor.driver import checked_java_version
from icekeep.operations.doctor.findings import OK, UNAVAILABLE, WRONG, Notes
from icekeep.operations.doctor.memory import machine_memory, settings_memory
from icekeep.operations.doctor.store import StorePlace
from icekeep.planning.spark.configuration import heap_bytes, python_memory
from icekeep.planning.spark.executors import ExecutorAnswer, described_process, executor_answers, executor_processes
from icekeep.planning.spark.failures import GIVE_ALL, GIVE_PACKAGE
from icekeep.planning.spark.session import SparkSource, started
from icekeep.planning.spark.workers import executor_slots, is_local
from icekeep.runtime import Runtime

EXECUTORS = "executors"

_STEP = "icekeep doctor: asking the executors"
_OURS = "icekeep"


def look_at_executors(
    notes: Notes, source: SparkSource, packages: Sequence[str], places: Sequence[StorePlace], runtime: Runtime
) -> None:
    """Start Spark if it is not started yet, and ask its executors.

    Args:
        packages: what icekeep takes here, and executors need too.
        places: what each executor has to reach.
    """
    sessions: list[SparkSession] = []
    if not notes.look(EXECUTORS, "session", partial(_session, source, sessions)):
        return
    (spark,) = sessions
    properties, master = dict(spark.sparkContext.getConf().getAll()), spark.sparkContext.master
    slots = executor_slots(spark)
    if not is_local(spark):
        notes.look(EXECUTORS, "memory settings", partial(settings_memory, properties, master, slots))
    packages = [_OURS, *packages]
    found: list[dict[str, Any]] = []
    if not notes.look(EXECUTORS, "python", partial(_asked, spark, packages, found)):
        return
    if look_at_differences(notes, described_process(packages), found):
        seen: list[ExecutorAnswer] = []
        began_ms = runtime.now_ms()
        if not notes.look(EXECUTORS, "answers", partial(_seen, spark, places, seen)):
            return
        look_at_clocks(notes, seen, began_ms, runtime.now_ms())
        look_at_reach(notes, seen, places)
        if python_memory(properties, master).available_bytes is None:
            least = min(seen, key=lambda one: one.memory_bytes)
            jvm_bytes = heap_bytes(properties, is_driver=is_local(spark))
            notes.look(EXECUTORS, "memory", partial(machine_memory, least.host, least.memory_bytes, jvm_bytes, slots))


def look_at_differences(notes: Notes, ours: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> bool:
    """Say which packages executors lack, or have in another version than this machine; whether they have icekeep."""
    problems = [
        (package, problem)
        for package, version in ours["packages"].items()
        for problem in package_problems(package, version, found)
    ]
    for package, problem in problems:
        notes.tell(EXECUTORS, f"package {package}", WRONG, problem)
    if not problems:
        notes.tell(EXECUTORS, "packages", OK, "the same on all executors as on this machine")
    return all(one["packages"][_OURS] is not None for one in found)


def package_problems(package: str, version: str | None, found: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong with a package on executors, a line for each version that differs from ours."""
    hosts: dict[str | None, list[str]] = {}
    for one in found:
        theirs = one["packages"][package]
        # A version that nobody tells is none that differs.
        if theirs is None or (theirs and version and theirs != version):
            hosts.setdefault(theirs, []).append(one["host"])
    remedy = GIVE_PACKAGE if package == _OURS else GIVE_ALL
    return [
        f"{_is_there(package, theirs)} on {_hosts(some)}, and this machine has {version or 'it'}; {remedy}"
        for theirs, some in hosts.items()
        if not (theirs is None and version is None)
    ]


def look_at_clocks(notes: Notes, seen: Sequence[ExecutorAnswer], began_ms: int, ended_ms: int) -> None:
    """Say which executors' clocks do not go with this machine's, which was asked before and after them."""
    differences = [(ahead_ms(one.now_ms, began_ms, ended_ms), one.host) for one in seen]
    difference_ms, host = max(differences, key=lambda one: abs(one[0]))
    notes.look(EXECUTORS, "clock", partial(checked_clock, host, difference_ms))


def look_at_reach(notes: Notes, seen: Sequence[ExecutorAnswer], places: Sequence[StorePlace]) -> None:
    """Say which executors do not reach a place."""
    for number, place in enumerate(places):
        problems = {one.host: one.problems[number] for one in seen if one.problems[number]}
        for host, problem in problems.items():
            notes.tell(f"store {place.location}", "reached by executors", UNAVAILABLE, f"{host}: {problem}")
        if not problems:
            notes.tell(f"store {place.location}", "reached by executors", OK, "by all that were checked")


def _session(source: SparkSource, sessions: list[SparkSession]) -> str:
    session = started(source)
    sessions.append(session)
    context = session.sparkContext
    java = checked_java_version(str(context._jvm.java.lang.System.getProperty("java.version")), "of Spark's driver")
    slots = executor_slots(session)
    return f"Spark {context.version}, master {context.master}, {slots} tasks at once in an executor, Java {java}"


def _asked(spark: SparkSession, packages: Sequence[str], found: list[dict[str, Any]]) -> str:
    found += executor_processes(spark, packages, _STEP)
    ours = described_process(())["python"]
    others = sorted({f"{one['python']} on {one['host']}" for one in found if _minor(one["python"]) != _minor(ours)})
    if others:
        raise UsageError(
            f"Python is {', '.join(others)}, and {ours} here; set spark.pyspark.python to one of the same version"
        )
    hosts = {one["host"] for one in found}
    versions = sorted({one["python"] for one in found})
    return f"{', '.join(versions)} (executors: {len(found)}, hosts: {len(hosts)})"


def _seen(spark: SparkSession, places: Sequence[StorePlace], seen: list[ExecutorAnswer]) -> str:
    asked = [(place.storage, place.location) for place in places]
    seen += executor_answers(spark, asked, _STEP)
    return f"icekeep can be imported (tasks: {len(seen)}, hosts: {len({one.host for one in seen})})"


def _is_there(package: str, version: str | None) -> str:
    return f"{package} is missing" if version is None else f"{package} is {version}"


def _hosts(hosts: Sequence[str]) -> str:
    return ", ".join(sorted(set(hosts)))


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
