"""The command `doctor` and its function, and Spark's executors: one check after the other, and none ends the others."""

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from icekeep.catalog.base import Catalog, Identifier, validate_namespace
from icekeep.errors import NotFoundError, UsageError, one_line
from icekeep.events import SILENT, Listener, StepFinished, StepStarted
from icekeep.formats.machine import processors_count, task_memory_bytes
from icekeep.maintenance.upgrade.job import look_before_upgrade
from icekeep.maintenance.upgrade.obstacles import READERS, UNKNOWN_ENGINES
from icekeep.names import split_name
from icekeep.operations.configuration.catalogs import Catalogs, TableReference, find_table
from icekeep.operations.configuration.file import NOTIFICATIONS, NotificationSettings
from icekeep.operations.doctor.driver import (
    DRIVER,
    NOT_TRIED,
    OK,
    SPARK_EXTRA,
    UNAVAILABLE,
    WRONG,
    DoctorResult,
    Needs,
    Notes,
    NotTried,
    ahead_ms,
    checked_clock,
    checked_java_version,
    configured_memory,
    look_at_driver,
    look_at_notifications,
    machine_memory,
    needed_extras,
    own_needs,
    settings_memory,
)
from icekeep.operations.doctor.places import (
    DoctorCatalog,
    StorePlace,
    TrialSite,
    look_at_catalog,
    look_at_opening,
    look_at_records,
    look_at_store,
)
from icekeep.operations.loading import configured_catalogs, load_table, open_settings
from icekeep.operations.recording import records_of
from icekeep.planning.spark.configuration import SUBMITTED_VARIABLE, heap_bytes, python_memory
from icekeep.planning.spark.executors import ExecutorAnswer, described_process, executor_answers, executor_processes
from icekeep.planning.spark.failures import GIVE_ALL, GIVE_PACKAGE
from icekeep.planning.spark.session import (
    SparkSource,
    check_source,
    current_properties,
    is_running,
    is_started,
    started,
)
from icekeep.planning.spark.workers import executor_slots, is_local
from icekeep.runtime import SYSTEM, Runtime
from icekeep.storage.open import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Configured(NamedTuple):
    """What the configuration names, of which all is looked at."""

    subjects: list[DoctorCatalog]
    notifications: Sequence[NotificationSettings] = ()


def doctor(
    catalog: Catalog | str | None = None,
    spark: "SparkSource" = None,
    *,
    conf: str | None = None,
    namespace: Identifier | str | None = None,
    location: str | None = None,
    executors: bool = False,
    listener: Listener = SILENT,
) -> DoctorResult:
    """Look whether this machine, Spark's executors, catalogs and their stores are fit for the jobs.

    Whatever is wrong is a finding of the result, with what to do about it; nothing of a user's is touched, and what is made
    to try things is removed again.

    Args:
        catalog: a catalog, or its name in the configuration; by default each that is configured.
        conf: the YAML file, as `load_catalog` takes it.
        namespace: one that exists: a table of its own name is created in it, committed to and dropped. Without it nothing
            is committed.
        location: a directory where the store is tried; by default the catalog's warehouse.
        executors: whether executors are asked where no session runs, for which Spark is started. They are asked in any case
            where one is given or runs already.
    """
    if spark is not None:
        check_source(spark)
    site = _site(namespace, location)
    if catalog is None or isinstance(catalog, str):
        return _examined(
            partial(_configuration, partial(configured_catalogs, conf), catalog), spark, site, executors, listener
        )
    subject = DoctorCatalog(catalog.name, {}, lambda: catalog)
    return _examined(lambda: Configured([subject]), spark, site, executors, listener)


def examine(  # noqa: PLR0913 - the words of the command
    catalogs: Callable[[], Catalogs],
    catalog: str | None,
    spark: "SparkSource",
    *,
    namespace: str | None = None,
    location: str | None = None,
    executors: bool = False,
    table: str | None = None,
    upgrade_to: int | None = None,
    listener: Listener = SILENT,
) -> DoctorResult:
    """The same for the command line, which knows where catalogs are configured.

    Args:
        table: nothing is looked at but what stands in the way of format version `upgrade_to` of this table.

    Raises:
        UsageError: what is given is no namespace, or a table without a format version, or the other way round.
        IcekeepError: the table cannot be loaded or read, or cannot have the format version.
    """
    if (table is None) is not (upgrade_to is None):
        raise UsageError("--table and --upgrade-to belong together; give both, or neither")
    if table is not None and upgrade_to is not None:
        return _looked_at_before_upgrade(find_table(catalogs(), table, catalog), upgrade_to, spark)
    if namespace == "":
        raise UsageError("--namespace is empty; give one that exists, such as 'sandbox' or 'db.sandbox'")
    site = _site(namespace, location)
    return _examined(partial(_configuration, catalogs, catalog), spark, site, executors, listener)


def examine_opening(catalogs: Callable[[], Catalogs], catalog: str, listener: Listener = SILENT) -> DoctorResult:
    """Look at no more than whether one catalog opens, answers and lists; nothing is written to it or its store."""
    began_ms, notes, needs = SYSTEM.monotonic_ms(), Notes(), own_needs(platform.machine())
    for subject in _configuration(catalogs, catalog).subjects:
        about = f"catalog {subject.name}"
        with _step(listener, f"opening {about}"), _unbroken(notes, about):
            look_at_opening(notes, subject, needs)
    return notes.result(SYSTEM.monotonic_ms() - began_ms)


def _looked_at_before_upgrade(reference: TableReference, to: int, spark: "SparkSource") -> DoctorResult:
    """What stands in the way of a format version of a table, as `upgrade` looks for it."""
    began_ms, notes, about = SYSTEM.monotonic_ms(), Notes(), f"table {reference.full_name}"
    table = load_table(reference)
    found = look_before_upgrade(table, to, spark)
    for one in found:
        # Of what leaves no trace in a table nothing can be found out here.
        status = NOT_TRIED if one.name in (READERS, UNKNOWN_ENGINES) else OK
        notes.add(about, one.name, WRONG if one.holds_up else status, f"{one.found}; {one.advice}")
    if not found:
        notes.add(about, "format version", OK, f"the table has format version {table.metadata.format_version}")
    return notes.result(SYSTEM.monotonic_ms() - began_ms)


def _examined(
    configuration: Callable[[], Configured], spark: "SparkSource", site: TrialSite, executors: bool, listener: Listener
) -> DoctorResult:
    began_ms, notes, needs = SYSTEM.monotonic_ms(), Notes(), own_needs(platform.machine())
    with _unbroken(notes, DRIVER):
        look_at_driver(notes, needs, os.environ, with_spark=executors or SUBMITTED_VARIABLE in os.environ)
    found: list[Configured] = []
    places: list[StorePlace] = []
    notes.look("catalogs", "configuration", partial(_configured, configuration, found, site))
    subjects = found[0].subjects if found else []
    for subject in subjects:
        about = f"catalog {subject.name}"
        with _step(listener, f"looking at {about}"), _unbroken(notes, about):
            places += look_at_catalog(notes, subject, site, needs)
            look_at_records(notes, subject)
    for one in found:
        with _unbroken(notes, NOTIFICATIONS):
            look_at_notifications(notes, one.notifications, os.environ)
    if site.location is not None and not subjects:
        with _unbroken(notes, f"store {site.location}"):
            look_at_store(notes, StorePlace(open_storage({}), site.location), SYSTEM)
    if _has_executors(spark, executors):
        with _step(listener, "asking executors"), _unbroken(notes, EXECUTORS):
            packages = _packages(needs, subjects)
            look_at_executors(notes, spark, packages, places, SYSTEM)
    else:
        notes.look(DRIVER, "memory", _configured_memory)
        notes.add(EXECUTORS, "session", NOT_TRIED, "give --executors to start Spark and check each executor")
    return notes.result(SYSTEM.monotonic_ms() - began_ms)


def _site(namespace: Identifier | str | None, location: str | None) -> TrialSite:
    """What the user gives to try things in; raises `UsageError` for what can be no namespace."""
    parts = split_name(namespace) if isinstance(namespace, str) else namespace
    return TrialSite(namespace=None if parts is None else validate_namespace(parts), location=location)


def _configuration(catalogs: Callable[[], Catalogs], name: str | None) -> Configured:
    """What to look at: the catalog that is named, or all; raises where the configuration is wrong or does not know it."""
    known = catalogs()
    subjects = [
        DoctorCatalog(
            one.name,
            one.properties,
            partial(open_settings, one),
            partial(records_of, known.config.runs, one, os.environ),
            one.placing,
        )
        for one in known.chosen(name)
    ]
    return Configured(subjects, known.config.telemetry.notifications)


def _configured(configuration: Callable[[], Configured], found: list[Configured], site: TrialSite) -> str:
    found.append(configuration())
    subjects = found[0].subjects
    if not subjects and site.location is not None:
        raise NotTried("no catalog is configured, and the location alone is tried")
    if not subjects:
        raise NotFoundError(
            "no catalog is configured; write a configuration with `icekeep init`, give --config FILE, set ICEKEEP_CONFIG, start "
            "where conf/icekeep.yaml is, or set spark.sql.catalog.NAME.*"
        )
    return f"{len(subjects)} configured: {', '.join(subject.name for subject in subjects)}"


def _has_executors(spark: "SparkSource", executors: bool) -> bool:
    """Whether executors are asked: the user wants it, or Spark runs already."""
    if executors or SUBMITTED_VARIABLE in os.environ:
        return True
    if "pyspark" not in sys.modules:
        return False
    return is_started(spark) or is_running()


def _configured_memory() -> str:
    return configured_memory(current_properties(os.environ), processors_count(), task_memory_bytes(1))


def _packages(needs: Needs | None, subjects: Sequence[DoctorCatalog]) -> list[str]:
    """The packages that executors need as well: those of icekeep, and of the catalogs and their stores."""
    always = [] if needs is None else [one.package for one in (*needs.of(""), *needs.of(SPARK_EXTRA))]
    extras = (packages for subject in subjects for packages in needed_extras(subject.properties).values())
    return [*dict.fromkeys([*always, *(package for some in extras for package in some)])]


@contextmanager
def _step(listener: Listener, step: str) -> Iterator[None]:
    listener.on(StepStarted(step))
    yield
    listener.on(StepFinished(step))


@contextmanager
def _unbroken(notes: Notes, about: str) -> Iterator[None]:
    """Go on after what nobody has thought of."""
    try:
        yield
    except Exception as failure:  # noqa: BLE001 - one thing that cannot be looked at says nothing of the others
        notes.add(about, "all else", WRONG, f"it cannot be checked: {one_line(failure)}")


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
    spark = notes.ask(EXECUTORS, "session", partial(_session, source))
    if spark is None:
        return
    properties, master = dict(spark.sparkContext.getConf().getAll()), spark.sparkContext.master
    slots = executor_slots(spark)
    if not is_local(spark):
        notes.look(EXECUTORS, "memory settings", partial(settings_memory, properties, master, slots))
    packages = [_OURS, *packages]
    found = notes.ask(EXECUTORS, "python", partial(_processes, spark, packages))
    if found is not None and look_at_differences(notes, described_process(packages), found):
        began_ms = runtime.now_ms()
        seen = notes.ask(EXECUTORS, "answers", partial(_answers, spark, places))
        if seen is None:
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
        notes.add(EXECUTORS, f"package {package}", WRONG, problem)
    if not problems:
        notes.add(EXECUTORS, "packages", OK, "the same on all executors as on this machine")
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
        f"{package} is {theirs or 'missing'} on {', '.join(sorted({*some}))}, and this machine has {version or 'it'}; {remedy}"
        for theirs, some in hosts.items()
        if not (theirs is None and version is None)
    ]


def look_at_clocks(notes: Notes, seen: Sequence[ExecutorAnswer], began_ms: int, ended_ms: int) -> None:
    """Say which executors' clocks do not go with this machine's, which was asked before and after them."""
    differences = [(ahead_ms(one.now_ms, began_ms, ended_ms), one.host) for one in seen]
    difference_ms, host = max(differences, key=lambda one: abs(one[0]))
    notes.look(EXECUTORS, "clock", partial(checked_clock, host, difference_ms))


def look_at_reach(notes: Notes, seen: Sequence[ExecutorAnswer], places: Sequence[StorePlace]) -> None:
    for number, place in enumerate(places):
        problems = {one.host: one.problems[number] for one in seen if one.problems[number]}
        for host, problem in problems.items():
            notes.add(f"store {place.location}", "reached by executors", UNAVAILABLE, f"{host}: {problem}")
        if not problems:
            notes.add(f"store {place.location}", "reached by executors", OK, "by all that were checked")


def _session(source: SparkSource) -> tuple[str, "SparkSession"]:
    session = started(source)
    context = session.sparkContext
    java = checked_java_version(str(context._jvm.java.lang.System.getProperty("java.version")), "of Spark's driver")
    slots = executor_slots(session)
    text = f"Spark {context.version}, master {context.master}, {slots} tasks at once in an executor, Java {java}"
    return text, session


def _processes(spark: "SparkSession", packages: Sequence[str]) -> tuple[str, list[dict[str, Any]]]:
    found = executor_processes(spark, packages, _STEP)
    ours = described_process(())["python"]
    minor = ours.split(".")[:2]
    others = sorted({f"{one['python']} on {one['host']}" for one in found if one["python"].split(".")[:2] != minor})
    if others:
        raise UsageError(
            f"Python is {', '.join(others)}, and {ours} here; set spark.pyspark.python to one of the same version"
        )
    hosts = {one["host"] for one in found}
    versions = sorted({one["python"] for one in found})
    return f"{', '.join(versions)} (executors: {len(found)}, hosts: {len(hosts)})", found


def _answers(spark: "SparkSession", places: Sequence[StorePlace]) -> tuple[str, list[ExecutorAnswer]]:
    seen = executor_answers(spark, [(place.storage, place.location) for place in places], _STEP)
    return f"icekeep can be imported (tasks: {len(seen)}, hosts: {len({one.host for one in seen})})", seen
