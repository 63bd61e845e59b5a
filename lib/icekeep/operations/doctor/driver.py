"""What `doctor` finds on this machine: Python, packages, Java, memory, clocks, addresses of messages.

Whatever a check raises is a finding, and never an error of the whole. Nothing is sent to the addresses.
"""

import operator
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, metadata
from platform import python_version_tuple
from typing import TypeVar

import msgspec

from icekeep.errors import IcekeepBug, IcekeepError, TryAgainError, UnavailableError, UsageError, brought_by, one_line
from icekeep.maintenance.compact.job import BUDGET_BYTES
from icekeep.operations.configuration.file import NOTIFICATIONS, NotificationSettings, resolve_references
from icekeep.operations.outcomes import our_error
from icekeep.planning.spark.configuration import SUBMITTED_VARIABLE, heap_bytes, python_memory, shortage
from icekeep.planning.spark.executors import UNKNOWN_VERSION, described_process
from icekeep.planning.spark.session import OLDEST_JAVA, java_program
from icekeep.rendered import Rendered
from icekeep.secrets import masked
from icekeep.spec.types import SECOND_MS, format_bytes
from icekeep.storage.base import DeleteStatus, Storage
from icekeep.storage.locations import AZURE, GCS, HDFS, S3, is_location, parse_location, store_kind
from icekeep.telemetry.notifications import checked_receiver

V = TypeVar("V")

OK, WRONG, UNAVAILABLE, NOT_TRIED = "ok", "wrong", "unavailable", "not-tried"

_OUT_OF_REACH = "; see whether it runs, whether its address is right, and whether this machine may connect to it"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        about: what it belongs to: `driver`, `executors`, `catalog NAME`, `store LOCATION`.
        check: what was looked at.
        status: `ok`; `wrong` for what must be fixed; `unavailable` for what is out of reach; `not-tried`.
        message: what was found and, where that is not well, what to do.
    """

    about: str
    check: str
    status: str
    message: str


class DoctorResult(Rendered, frozen=True, kw_only=True):
    """All findings; `status` is `wrong` if one of them is, else `unavailable` if one of them is, else `ok`."""

    status: str
    findings: tuple[Finding, ...] = ()
    elapsed_ms: int = 0


class NotTried(Exception):
    """Raised by a look that does not take place, with the reason."""


class Notes:
    """The findings as they are made."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []

    def look(self, about: str, check: str, look: Callable[[], str]) -> bool:
        """Look at something: what it says is well, what it raises is not. Returns whether it is well."""
        return self.ask(about, check, lambda: (look(), True)) is not None

    def ask(self, about: str, check: str, look: Callable[[], tuple[str, V]]) -> V | None:
        """The same for a look that brings something back beside what it says; `None` where it is not well."""
        found = None
        try:
            status = OK
            message, found = look()
        except NotTried as reason:
            status, message = NOT_TRIED, str(reason)
        except Exception as failure:  # noqa: BLE001 - whatever is raised is what was to be found out
            ours = our_error(failure)
            status = UNAVAILABLE if isinstance(ours, TryAgainError) else WRONG
            message = one_line(ours or failure) + (_OUT_OF_REACH if isinstance(ours, UnavailableError) else "")
        self.add(about, check, status, message)
        return found

    def add(self, about: str, check: str, status: str, message: str) -> None:
        self._findings.append(Finding(about=about, check=check, status=status, message=message))

    def result(self, elapsed_ms: int) -> DoctorResult:
        found = {finding.status for finding in self._findings}
        status = next((one for one in (WRONG, UNAVAILABLE) if one in found), OK)
        return DoctorResult(status=status, findings=tuple(self._findings), elapsed_ms=elapsed_ms)


SPARK_EXTRA = "spark"

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?", re.DOTALL)
_BOUND = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)")
_EXTRA = re.compile(r"extra == [\"']([^\"']+)[\"']")
_MACHINE = re.compile(r"platform_machine == [\"']([^\"']+)[\"']")
_PYTHON_BELOW = re.compile(r"python_version < [\"']([^\"']+)[\"']")
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")
_COMPARE: Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_CATALOG_PACKAGES = {"rest": ("requests",), "glue": ("boto3",), "hive": ("thrift", "pyiceberg")}
_STORE_PACKAGES = {
    S3: ("s3", "obstore"),
    GCS: ("gcs", "obstore"),
    AZURE: ("azure", "obstore"),
    HDFS: ("hdfs", "hdfs-native"),
}


class Requirement(msgspec.Struct, frozen=True):
    """A package that is needed, between which releases, and the extra of icekeep that brings it, if one does."""

    package: str
    bounds: tuple[tuple[str, str], ...] = ()
    extra: str = ""

    @property
    def range(self) -> str:
        """The releases, as a person reads them."""
        return ",".join(f"{sign}{release}" for sign, release in sorted(self.bounds, reverse=True))

    def allows(self, version: str) -> bool:
        """Whether a release is one of those that are needed; what is no release number cannot be told."""
        found = _RELEASE.match(version)
        if found is None:
            return True
        return all(_COMPARE[sign](_release(found[1]), _release(release)) for sign, release in self.bounds)

    def problem(self, version: str | None) -> str | None:
        """What is wrong with the installed version, `None` for no package, and what to do; `None` where nothing is."""
        remedy = f"pip install '{self.package}{self.range}'"
        if version is None:
            # An extra may bring more with it, such as a build of its own.
            return f"{self.package} is not installed; {brought_by(self.extra) if self.extra else remedy}"
        if version == UNKNOWN_VERSION or self.allows(version):
            return None
        return f"{self.package} is {version}, and icekeep needs {self.range}; {remedy}"


def parse_requirement(text: str, machine: str) -> Requirement | None:
    """A requirement of a package's metadata; `None` for one of machines of another kind, or of older Pythons than this.

    >>> parse_requirement('psycopg[binary]<4,>=3.2; extra == "postgres"', "x86_64")
    Requirement(package='psycopg', bounds=(('<', '4'), ('>=', '3.2')), extra='postgres')
    """
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        return None
    marker = match[3] or ""
    machines = _MACHINE.findall(marker)
    if machines and machine not in machines:
        return None
    below = _PYTHON_BELOW.search(marker)
    if below is not None and _release(".".join(python_version_tuple()[:2])) >= _release(below[1]):
        return None
    extra = _EXTRA.search(marker)
    return Requirement(match[1], tuple(_BOUND.findall(match[2])), extra[1] if extra else "")


class Needs(msgspec.Struct, frozen=True):
    """What icekeep needs: Python between which releases, and packages."""

    python: Requirement
    packages: tuple[Requirement, ...]

    def of(self, extra: str, packages: Iterable[str] | None = None) -> tuple[Requirement, ...]:
        """The packages of an extra, or those of them that are named; of none for what is always needed."""
        wanted = None if packages is None else {*packages}
        return tuple(one for one in self.packages if one.extra == extra and (wanted is None or one.package in wanted))


def own_needs(machine: str) -> Needs | None:
    """What the metadata of the installed package says; `None` where icekeep runs from a zip or a checkout."""
    try:
        found = metadata("icekeep")
    except PackageNotFoundError:
        return None
    parsed = (parse_requirement(text, machine) for text in found.get_all("Requires-Dist") or ())
    python = Requirement("Python", tuple(_BOUND.findall(found["Requires-Python"] or "")))
    return Needs(python, tuple(one for one in parsed if one is not None))


def needed_extras(properties: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The extras that a catalog with these properties and its store take, and which packages of each."""
    kind, uri = properties.get("type", "").lower(), properties.get("uri", "")
    found: dict[str, tuple[str, ...]] = {}
    if kind in _CATALOG_PACKAGES:
        found["catalogs"] = _CATALOG_PACKAGES[kind]
    if kind in ("sql", "jdbc") and uri.removeprefix("jdbc:").startswith("postgres"):
        found["postgres"] = ("psycopg",)
    warehouse = properties.get("warehouse", "")
    if is_location(warehouse):
        store = _STORE_PACKAGES.get(store_kind(parse_location(warehouse).scheme))
        if store is not None:
            found[store[0]] = (store[1],)
    return found


def _release(text: str) -> tuple[int, ...]:
    """The number of a release, to compare: 4.0 is as new as 4."""
    parts = [int(part) for part in text.split(".")]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


DRIVER = "driver"

_NO_SPARK = f"PySpark is not installed; only large tables need it: {brought_by(SPARK_EXTRA)}, and Java is needed too"

_JAVA_VERSION = re.compile(r'version "((?:1\.)?(\d+)[^"]*)"')
_JAVA_SECONDS = 30


def look_at_driver(notes: Notes, needs: Needs | None, environ: Mapping[str, str], *, with_spark: bool = False) -> None:
    """Look at Python, at what is always needed beside it, and at PySpark and Java.

    Args:
        with_spark: whether Spark is wanted for certain; else it may be missing, since small tables need none.
    """
    has_spark = with_spark or described_process(["pyspark"])["packages"]["pyspark"] is not None
    notes.look(DRIVER, "python", partial(checked_python, described_process(())["python"], needs))
    if needs is None:
        reason = "icekeep runs from a zip or a checkout and is not installed as a package"
        notes.add(DRIVER, "packages", NOT_TRIED, f"{reason}, so the releases that it needs are not known")
    else:
        look_at_packages(notes, DRIVER, (*needs.of(""), *(needs.of(SPARK_EXTRA) if has_spark else ())))
    if has_spark:
        notes.look(DRIVER, "java", partial(checked_java, environ))
    else:
        notes.add(DRIVER, "spark", NOT_TRIED, _NO_SPARK)


def look_at_packages(notes: Notes, about: str, requirements: Sequence[Requirement]) -> None:
    """Look at packages on this machine: one line for all that are well, and one for each other."""
    versions = described_process([one.package for one in requirements])["packages"]
    well = []
    for requirement in requirements:
        version = versions[requirement.package]
        problem = requirement.problem(version)
        if problem is not None:
            notes.add(about, f"package {requirement.package}", WRONG, problem)
        else:
            well.append(f"{requirement.package} {version or '(of no known version)'}")
    if well:
        notes.add(about, "packages", OK, ", ".join(well))


def checked_python(version: str, needs: Needs | None) -> str:
    if needs is not None and not needs.python.allows(version):
        raise UsageError(f"Python is {version}, and icekeep needs {needs.python.range}")
    return version


def checked_java(
    environ: Mapping[str, str], run: Callable[..., "subprocess.CompletedProcess[str]"] = subprocess.run
) -> str:
    if SUBMITTED_VARIABLE in environ:
        raise NotTried("spark-submit has started Java already; what it is stands with the executors")
    program = java_program(environ)
    try:
        done = run([program, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{program!r} cannot be run ({error}); set JAVA_HOME to where Java {OLDEST_JAVA} or later is"
        ) from error
    found = _JAVA_VERSION.search(done.stderr + done.stdout)
    if found is None:
        raise UsageError(
            f"{program!r} does not say which Java it is; set JAVA_HOME to where Java {OLDEST_JAVA} or later is"
        )
    return checked_java_version(found[1], program)


def checked_java_version(version: str, where: str) -> str:
    major = int(re.split(r"\D", version.removeprefix("1."))[0])
    if major < OLDEST_JAVA:
        raise UsageError(
            f"Java is {version} ({where}), and Spark needs {OLDEST_JAVA} or later; install it, and set JAVA_HOME"
        )
    return f"{version} ({where})"


_ALL = "local[*]"
_COUNT = re.compile(r"[1-9]\d*")
_LOCAL = re.compile(r"local(?:\[\s*(\*|\d+).*)?")


def configured_memory(properties: Mapping[str, str], processors: int, machine_bytes: int) -> str:
    """What is said of the memory that tasks of a session would have, by its configuration, where no session runs."""
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
    """What is said of the memory that Spark's settings leave to the Python tasks of an executor."""
    memory = python_memory(properties, master)
    problem = shortage(memory, slots, BUDGET_BYTES)
    if problem is not None:
        raise UsageError(problem)
    if memory.available_bytes is None:
        return f"{slots} tasks share an executor, and no setting limits what they take beside the JVM"
    return f"{slots} tasks share an executor, and {memory.setting} leaves them {format_bytes(memory.available_bytes)}"


def machine_memory(whose: str, memory_bytes: int, jvm_bytes: int, slots: int) -> str:
    """What is said of tasks that share a machine or a container with a JVM."""
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


def remove_own(storage: Storage, directory: str, drawn: str) -> None:
    """Remove a directory that this run has made, with all that lies in it; one that is not there is fine.

    Args:
        drawn: the name by chance that stands in the directory's own, by which it can be no other's.
    """
    if drawn not in directory.rstrip("/").rpartition("/")[2]:
        raise IcekeepBug(f"{directory!r} is not named by {drawn!r}, and so may be another's")
    outcomes = storage.delete_many([file.location for file in storage.list(directory)])
    failed = [one for one in outcomes if one.status is DeleteStatus.FAILED]
    if failed:
        raise UnavailableError(f"{failed[0].location!r} is left behind ({failed[0].reason}); remove it by hand")
    _remove_directories(storage, directory)


def absent(storage: Storage, *directories: str) -> tuple[str, ...]:
    """Those of some directories that are not there, and so would be made by a file below them."""
    found = []
    for each in directories:
        # What cannot be looked at is left as it is.
        with suppress(IcekeepError):
            if not storage.directory_exists(each):
                found.append(each)
    return tuple(found)


def remove_empty(storage: Storage, directories: Iterable[str]) -> None:
    """Remove directories, in this order, that were absent before; what others have put there meanwhile keeps one."""
    for each in directories:
        with suppress(IcekeepError):
            storage.remove_directory(each)


def _remove_directories(storage: Storage, directory: str) -> None:
    # No files are left, so that all that has a name is a directory.
    for name in storage.child_names(directory):
        _remove_directories(storage, f"{directory}/{name}")
    if storage.directory_exists(directory):
        storage.remove_directory(directory)


def look_at_notifications(
    notes: Notes, notifications: Sequence[NotificationSettings], environ: Mapping[str, str]
) -> None:
    for one in notifications:
        notes.look(NOTIFICATIONS, masked(one.key_path, one.url), partial(_checked, one, environ))


def _checked(one: NotificationSettings, environ: Mapping[str, str]) -> str:
    checked_receiver(resolve_references(one.key_path, one.url, environ))
    of = "any command" if one.jobs is None else ", ".join(sorted(one.jobs))
    return f"the address is well formed, nothing was sent; for {', '.join(sorted(one.when))} of {of}"


SKEW_MAX_MS = 5 * SECOND_MS
"""By how much clocks may differ before it is told: what keeps them in step does so within a fraction of a second."""

STORE_GRAIN_MS = 2 * SECOND_MS
"""How coarsely stores tell when a file was made."""


def ahead_ms(theirs_ms: int, began_ms: int, ended_ms: int, grain_ms: int = 0) -> int:
    """By how much another clock is ahead of ours at least, below zero where it is behind.

    Args:
        theirs_ms: what it said while ours went from `began_ms` to `ended_ms`; `grain_ms` may have been cut off from it.

    >>> ahead_ms(9_000, 1_000, 2_000), ahead_ms(1_500, 1_000, 2_000), ahead_ms(0, 5_000, 6_000, grain_ms=1_000)
    (7000, 0, -4000)
    """
    if theirs_ms > ended_ms:
        return theirs_ms - ended_ms
    return min(0, theirs_ms + grain_ms - began_ms)


def checked_clock(whose: str, difference_ms: int) -> str:
    """What is said of a clock that goes with ours."""
    if abs(difference_ms) > SKEW_MAX_MS:
        way = "ahead of" if difference_ms > 0 else "behind"
        raise UsageError(
            f"the clock of {whose} is {abs(difference_ms) / SECOND_MS:,.0f} s {way} this machine's, and files are deleted by "
            "their age: set the clocks right, by NTP for example"
        )
    return f"within {SKEW_MAX_MS // SECOND_MS} s of this machine's"
