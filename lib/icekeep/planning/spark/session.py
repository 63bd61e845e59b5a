"""The Spark session of a job: its source, how it is started and stopped, and the limits below which a job does without Spark.

PySpark is imported when it is first used: small work does not need it, and it may not be installed.

A new session ignores other engines' catalogs, is quiet, in UTC, and always stopped. A cluster's `spark-defaults.conf` often
names an Iceberg catalog as the default one, and without Iceberg's jar every query would fail on it; icekeep needs none of
Spark's catalogs. All other configuration of the operator is kept.
"""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from icekeep.errors import UsageError, brought_by
from icekeep.planning.spark.configuration import SUBMITTED_VARIABLE, configured_properties, is_local_master
from icekeep.runs import note_application
from icekeep.shipped import LOG4J, shipped_file
from icekeep.spec.types import GIB, MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
else:
    # For annotations that are evaluated: PySpark is imported where a session is needed, and not before.
    SparkSession = Any

PACKAGES = ("pyspark", "py4j")
"""The packages of Spark's Python."""

OLDEST_JAVA = 17
"""The oldest release that Spark 4 runs on."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_WORKER_PATH = "spark.executorEnv.PYTHONPATH"
_STOP_MS = 30_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Up to these limits the driver works by itself, beyond them in Spark tasks. Counts, and sizes in bytes.

    Spark takes seconds to start, and a task some milliseconds. Below these limits the driver is done before that, and takes at
    most some hundred megabytes.
    """

    entries_count: int = 200_000  # entries of manifests whose rows are held
    matched_entries_count: int = 1_500_000  # of which deletes are matched by columns, some 400 bytes each
    folded_entries_count: int = 2_000_000  # of which no row is kept, only what is computed from them
    commit_entries_count: int = 20_000  # that a commit filters or reads
    commit_manifests_count: int = 1_000  # they are in; a store answers in some 50 ms, sixteen at a time: 3 s
    list_rows_count: int = 4_000_000  # rows of manifest lists
    ref_entries_count: int = 500_000  # entries that are counted for each reference that leads to them
    reachable_entries_count: int = 10_000_000  # that an expiration holds against its garbage, 8 bytes each
    garbage_files_count: int = 1_000_000  # that are held
    deleted_files_count: int = 100_000  # or moved to the trash
    plan_files_count: int = 200_000  # that deletion plans name
    listed_files_count: int = 1_500_000
    looked_up_files_count: int = 500  # one by one, in place of a listing
    footers_count: int = 2_000  # of data files that are looked at
    sort_sample_bytes: int = 256 * MIB  # of data files whose sort keys are sampled
    delete_group_files_count: int = 100  # position delete files that are rewritten together
    delete_group_bytes: int = 8 * MIB
    checked_delete_bytes: int = 256 * MIB  # of delete files that `check` reads
    row_ids_count: int = 10_000_000  # that `check` holds against each other, 8 bytes each
    # Files that are rewritten where there is no session yet. Two processors rewrite that in half a minute, which Spark takes to
    # start and for its slow first job; a sort takes three times that, and more in Spark on the same processors.
    rewrite_bytes: int = 2 * GIB
    # The same under `spark-submit`, or where a cluster's session runs: the driver may be small.
    submitted_rewrite_bytes: int = 128 * MIB
    # The same where a session of this machine was given: its workers run already, and rewrite more as fast as threads.
    session_rewrite_bytes: int = 32 * MIB
    # Opened for a rewrite, under `spark-submit` to a cluster, where a cluster's session runs, or where a session was given. A
    # store answers in some 30 ms, and threads wait for two or three answers to each file: 10 seconds for two of them.
    waiting_files_count: int = 200


LIMITS = Limits()
"""The limits unless an `Engine` has others."""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A source of a session, with other limits."""

    spark: SparkSession | Callable[[], SparkSession] | None = None
    limits: Limits = LIMITS


SparkSource: TypeAlias = SparkSession | Callable[[], SparkSession] | Engine | None
"""A session; a function that starts one when it is first called, and returns the same later; one of these with limits; by default
the running session, or a new one once it is needed.
"""

_noted_context: list[object] = [None]
"""The context whose application was last noted."""


def started(spark: SparkSource) -> SparkSession:
    """The session of a source; commits name its application from now on. Raises what `build_session` raises."""
    source = spark.spark if isinstance(spark, Engine) else spark
    if is_session(source):
        session = cast("SparkSession", source)
    elif source is not None:
        session = cast("Callable[[], SparkSession]", source)()
    else:
        session = build_session("icekeep")
    context = getattr(session, "sparkContext", None)
    # Ask the JVM once a session.
    if context is not None and context is not _noted_context[0]:
        with suppress(Exception):
            note_application(str(context.applicationId))
            _noted_context[0] = context
    return session


def is_started(spark: SparkSource) -> bool:
    return is_session(spark.spark if isinstance(spark, Engine) else spark)


def limits_of(spark: SparkSource) -> Limits:
    return spark.limits if isinstance(spark, Engine) else LIMITS


def check_source(spark: object) -> None:
    """Raise `UsageError` for anything but a source of a session: a misplaced argument would otherwise fail much later."""
    if not (spark is None or is_session(spark) or isinstance(spark, Engine) or callable(spark)):
        raise UsageError(
            f"{spark!r} is no Spark session; give a session, or nothing, and other arguments by their names"
        )


def spark_is_missing() -> UsageError:
    """The error for work that needs Spark where its packages are not installed."""
    return UsageError(
        f"this needs Spark, and PySpark is not installed: {brought_by('spark')}, or run the job with spark-submit",
        module="pyspark",
    )


@contextmanager
def _needing_pyspark() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise spark_is_missing() from error


# A module that another thread is importing is in `sys.modules` without some of its names.
def is_session(one: object) -> bool:
    """Whether something is a `SparkSession`; PySpark is not imported."""
    kind = getattr(sys.modules.get("pyspark.sql"), "SparkSession", None)
    return kind is not None and isinstance(one, kind)


def running_context() -> Any:
    """The Spark context of this process, whatever thread started it; `None` where it has none, or is only starting one."""
    kind = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    context = None if kind is None else kind._active_spark_context
    # PySpark sets it before it has a JVM and a master.
    return None if getattr(context, "_jsc", None) is None else context


def is_running() -> bool:
    """Whether this process has a Spark session, whatever thread started it."""
    kind = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return kind is not None and kind._active_spark_context is not None


def task_context() -> Any:
    """The context of the current Spark task; `None` outside of one."""
    kind = getattr(sys.modules.get("pyspark"), "TaskContext", None)
    return None if kind is None else kind.get()


def spark_is_3(spark: Any) -> bool:
    """Whether a session is of Spark 3.5, the one supported release before 4.0, which lacks some calls."""
    # A session's own version comes from its SQL, which a `LateSession` has not begun.
    return bool(spark.sparkContext.version.startswith("3."))


class _Functions:
    """`pyspark.sql.functions`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("pyspark.sql.functions"), name)


F: Any = _Functions()


def from_arrow_schema(schema: Any) -> Any:
    return import_module("pyspark.sql.pandas.types").from_arrow_schema(schema)


def to_arrow_schema(schema: Any) -> Any:
    return import_module("pyspark.sql.pandas.types").to_arrow_schema(schema)


def with_field(schema: Any, name: str, type_: Any) -> Any:
    """PySpark's schema with one more field at its end, of an Arrow type and never null."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    return StructType([*schema.fields, StructField(name, from_arrow_type(type_), nullable=False)])


def on_disk(rows: Any) -> Any:
    """Persist a DataFrame on the executors' disks."""
    from pyspark import StorageLevel

    return rows.persist(StorageLevel.DISK_ONLY)


def current_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """The properties of the running session; where none runs, those of one that would be started."""
    context = running_context()
    return configured_properties(environ) if context is None else dict(context.getConf().getAll())


def live_properties() -> dict[str, str]:
    """Spark's configuration: the JVM's under `spark-submit`, otherwise that of a new session."""
    if SUBMITTED_VARIABLE not in os.environ:
        return configured_properties(os.environ)
    with _needing_pyspark():
        from pyspark import SparkConf, SparkContext
    # Without a connection to the JVM a SparkConf is empty; PySpark's public API connects only for a context.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def java_program(environ: Mapping[str, str]) -> str:
    """The Java program, as Spark's launcher finds it; raises `UsageError` if there is none."""
    home = environ.get("JAVA_HOME")
    if home:
        program = Path(home, "bin", "java")
        if not program.exists():
            raise UsageError(
                f"there is no bin/java under JAVA_HOME, {home!r}; set it to where Java {OLDEST_JAVA} or later is"
            )
        return str(program)
    on_path = shutil.which("java", path=environ.get("PATH"))
    if on_path is None:
        raise UsageError(f"there is no Java; install Java {OLDEST_JAVA} or later, or set JAVA_HOME")
    return on_path


def build_session(app_name: str, extra_conf: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark, or take the running session; `extra_conf` wins over its configuration.

    Raises `UsageError` where PySpark is not installed, there is no Java, or Spark does not start.
    """
    with _needing_pyspark():
        from pyspark.sql import SparkSession
    with starting():
        settings, builder = dict(extra_conf or {}), SparkSession.builder
        # `getOrCreate` would apply our settings to a running session, which is the application's.
        if not is_running():
            settings, builder = session_settings(live_properties(), settings), builder.appName(app_name)
        session = builder.config(map=settings).getOrCreate()
        note_application(session.sparkContext.applicationId)
        return session


@contextmanager
def starting() -> Iterator[None]:
    """The block starts Spark; raises `UsageError` where there is no Java, or Spark does not start."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SUBMITTED_VARIABLE not in os.environ:
        # One line in place of ten of Spark's launcher.
        try:
            java_program(os.environ)
        except UsageError as error:
            raise UsageError(f"cannot start Spark: {error.message}") from error
    try:
        yield
    # Where the cluster ends the application meanwhile, PySpark has no class for the JVM's error.
    except (PySparkException, Py4JJavaError) as error:
        lines = str(error).splitlines()
        # py4j's first line names only the call.
        is_java = isinstance(error, Py4JJavaError) and len(lines) > 1
        reason = lines[1].removeprefix(": ") if is_java else lines[0]
        raise UsageError(f"cannot start Spark: {reason}; what Spark says stands above") from error


def session_settings(configured: Mapping[str, str], extra_conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of a new session beside its configuration."""
    import pyspark

    unless_configured = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "WARN"}
    if is_local_master({**configured, **extra_conf}.get("spark.master", "local")):
        # On one machine nobody looks at Spark's UI, and it takes a port. Over TCP each Python task waits 40 ms for a delayed
        # acknowledgement. On a cluster the operator decides: the path of an executor's temporary directory may be too long for a
        # socket.
        unless_configured |= {"spark.ui.enabled": "false", "spark.python.unix.domain.socket.enabled": "true"}
    settings = {key: value for key, value in unless_configured.items() if key not in configured}
    logging = shipped_file(LOG4J)
    if SUBMITTED_VARIABLE not in os.environ and _JAVA_OPTIONS not in configured and logging is not None:
        # A new JVM logs so from its first line on.
        settings[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={logging.as_uri()}"
    root = Path(__file__).resolve().parents[3]
    if root.name not in ("site-packages", "dist-packages") and root.is_dir():
        # From a checkout: workers import this package too.
        settings[_WORKER_PATH] = os.pathsep.join([str(root), *filter(None, [configured.get(_WORKER_PATH)])])
    settings |= {
        "spark.sql.defaultCatalog": "spark_catalog",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
    }
    # Spark 3.5 has no name for its built-in catalog: a configured one has to be on the classpath.
    if not pyspark.__version__.startswith("3."):
        settings["spark.sql.catalog.spark_catalog"] = "builtin"
    return settings | dict(extra_conf)


def stop_session(spark: SparkSession) -> None:
    """Stop Spark, even after an interrupt; never raises and never hangs."""
    ask_apart(lambda: spark.stop(), _STOP_MS)
    note_application(None)


def cancel_jobs(spark: SparkSession) -> None:
    """Cancel all running Spark jobs, without waiting; safe in a signal handler."""
    ask_apart(lambda: spark.sparkContext.cancelAllJobs(), 0)


def ask_apart(ask: Callable[[], object], wait_ms: int) -> None:
    """Call the JVM from a new thread, wait at most `wait_ms`, and raise nothing.

    py4j has a connection for each thread, and an interrupted call leaves an unread answer in it. The JVM may be gone.
    """

    def quietly() -> None:
        with suppress(Exception):
            ask()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(wait_ms / 1000)
