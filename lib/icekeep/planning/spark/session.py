"""The Spark session of a job: where it comes from, what it is started with, and up to where a job does without.

PySpark is imported when it is first used: small work needs none of it, and it may not even be installed. Configuration is read
as it stands before Spark runs, since asking Spark costs the start of a JVM.

A session that is started is neutral towards catalogs of other engines, quiet, in UTC, and stopped for certain. A cluster's
`spark-defaults.conf` often names an Iceberg catalog as the default one, and without Iceberg's jar every query would fail on it;
icekeep needs none of Spark's catalogs. Whatever else the operator configured stays.
"""

import itertools
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from icekeep.errors import UnsupportedError, UsageError, brought_by
from icekeep.runs import note_application
from icekeep.shipped import LOG4J, shipped_file
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.types import GIB, MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
else:
    # For annotations that are evaluated: PySpark is imported where a session is needed, and not before.
    SparkSession = Any

PACKAGES = ("pyspark", "py4j")
"""What Spark's Python consists of."""

SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""An environment variable that `spark-submit` sets: a JVM runs already and knows the configuration."""

OLDEST_JAVA = 17
"""The oldest release that Spark 4 runs on."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_WORKER_PATH = "spark.executorEnv.PYTHONPATH"
_STOP_MS = 30_000
_LINE = re.compile(r"(\S+?)(?:\s*[=:]\s*|\s+)(.*)")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver does by itself; what is more goes to Spark tasks. Counts, and sizes in bytes.

    Spark takes seconds to begin, and a task some milliseconds. Below these limits the driver is done before that, and what it
    holds meanwhile takes at most some hundred megabytes.
    """

    entries_count: int = 200_000  # entries of manifests whose rows are held
    folded_entries_count: int = 2_000_000  # of which no row is kept, only what is worked out from them
    commit_entries_count: int = 20_000  # that a commit filters, or asks something of
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
    # Files that are rewritten where there is no session yet. Two processors rewrite that in half a minute, which is how long
    # Spark takes to begin and for what is slow in its first job; a sort takes three times that, and more in Spark on the same
    # processors.
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
    """A source of a session, with limits of one's own."""

    spark: SparkSession | Callable[[], SparkSession] | None = None
    limits: Limits = LIMITS


SparkSource: TypeAlias = SparkSession | Callable[[], SparkSession] | Engine | None
"""A session; a function that starts one the first time it is called, and returns it again later; one of these with limits; or
by default the session that runs, or a new one, once it is needed.
"""

_noted_context: list[object] = [None]
"""The context whose application was noted last."""


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
    # The JVM is asked once a session.
    if context is not None and context is not _noted_context[0]:
        with suppress(Exception):
            note_application(str(context.applicationId))
            _noted_context[0] = context
    return session


def is_started(spark: SparkSource) -> bool:
    """Whether a session was given, and none has to be started."""
    return is_session(spark.spark if isinstance(spark, Engine) else spark)


def limits_of(spark: SparkSource) -> Limits:
    """Up to where Spark is not asked."""
    return spark.limits if isinstance(spark, Engine) else LIMITS


def check_source(spark: object) -> None:
    """Raise `UsageError` for what is no source of a session: a filter given in its place would else fail much later."""
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


# A module that another thread is importing just now is in `sys.modules` without some of its names.
def is_session(one: object) -> bool:
    """Whether something is a session of Spark."""
    kind = getattr(sys.modules.get("pyspark.sql"), "SparkSession", None)
    return kind is not None and isinstance(one, kind)


def running_context() -> Any:
    """The context of this process, whatever thread started it; `None` where it has none, or only begins one."""
    kind = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    context = None if kind is None else kind._active_spark_context
    # PySpark names it before it has a master, and has no JVM for it before that.
    return None if getattr(context, "_jsc", None) is None else context


def task_context() -> Any:
    """The context of the Spark task that this is; `None` where it is none."""
    kind = getattr(sys.modules.get("pyspark"), "TaskContext", None)
    return None if kind is None else kind.get()


def spark_is_3(spark: Any) -> bool:
    """Whether a session is of Spark 3.5, the one release before 4.0 that is supported: it lacks a few calls."""
    # A session's own version is asked of its SQL, which has not begun in one that begins it late.
    return bool(spark.sparkContext.version.startswith("3."))


class _Functions:
    """`pyspark.sql.functions`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("pyspark.sql.functions"), name)


F: Any = _Functions()


def from_arrow_schema(schema: Any) -> Any:
    """PySpark's schema for one of Arrow."""
    return import_module("pyspark.sql.pandas.types").from_arrow_schema(schema)


def to_arrow_schema(schema: Any) -> Any:
    """Arrow's schema for one of PySpark."""
    return import_module("pyspark.sql.pandas.types").to_arrow_schema(schema)


def with_field(schema: Any, name: str, type_: Any) -> Any:
    """PySpark's schema with one more field behind the others, of Arrow's type, which is never null."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    return StructType([*schema.fields, StructField(name, from_arrow_type(type_), nullable=False)])


def on_disk(rows: Any) -> Any:
    """A DataFrame that is computed once, and kept on the executors' disks."""
    from pyspark import StorageLevel

    return rows.persist(StorageLevel.DISK_ONLY)


def configured_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """The `spark.*` properties that a session started from this environment would have."""
    try:
        words = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    except ValueError:
        # Spark itself will refuse it when it starts.
        words = []
    joined = [word.partition("=") for word in words if word.startswith("--") and "=" in word]
    arguments = [*itertools.pairwise([*words, ""]), *((flag, value) for flag, _, value in joined)]
    directory = environ.get("SPARK_CONF_DIR") or (environ.get("SPARK_HOME") and f"{environ['SPARK_HOME']}/conf")
    chosen = [value for flag, value in arguments if flag == "--properties-file"]
    properties: dict[str, str] = {}
    for path in chosen[-1:] or ([f"{directory}/spark-defaults.conf"] if directory else []):
        properties |= _properties_of_file(Path(path))
    for flag, value in arguments:
        key, equals, text = value.partition("=")
        if flag in ("--conf", "-c") and equals:
            properties[key.strip()] = text
        if flag == "--master":
            properties["spark.master"] = value
    return properties


def _properties_of_file(path: Path) -> Iterator[tuple[str, str]]:
    """Those of a Java properties file, as far as Spark's users write it: a key, then whitespace, `=` or `:`, then the value."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        match = None if line.lstrip().startswith(("#", "!")) else _LINE.fullmatch(line.strip())
        if match is not None and match[1].startswith("spark."):
            yield match[1], match[2].strip()


def current_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the session that runs in this process, which knows best; where none runs, of one that would be started."""
    context = running_context()
    return configured_properties(environ) if context is None else dict(context.getConf().getAll())


def live_properties() -> dict[str, str]:
    """Spark's configuration: the JVM's under `spark-submit`, otherwise what a new session would be started with."""
    if SUBMITTED_VARIABLE not in os.environ:
        return configured_properties(os.environ)
    with _needing_pyspark():
        from pyspark import SparkConf, SparkContext
    # Without a connection to the JVM a SparkConf is empty; nothing public of PySpark connects without a context.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def has_local_master(properties: Mapping[str, str]) -> bool:
    """Whether a session of these properties has its tasks on this machine, as one that is configured nowhere has."""
    return properties.get("spark.master", "local").startswith("local")


def java_program(environ: Mapping[str, str]) -> str:
    """The program that starts Java, as Spark's own launcher finds it; raises `UsageError` if there is none."""
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
    """Start Spark, or take the session that runs, as it is but for `extra_conf`, which wins over what is configured.

    Raises:
        UsageError: PySpark is not installed, there is no Java, or Spark does not start.
    """
    with _needing_pyspark():
        from pyspark.sql import SparkSession
    with starting():
        settings, builder = dict(extra_conf or {}), SparkSession.builder
        # `getOrCreate` applies what it is given to a session that runs, which is the application's.
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
        # One line for what Spark's launcher says in ten.
        try:
            java_program(os.environ)
        except UsageError as error:
            raise UsageError(f"cannot start Spark: {error.message}") from error
    try:
        yield
    # Where the cluster ends the application meanwhile PySpark knows no class for what the JVM says.
    except (PySparkException, Py4JJavaError) as error:
        lines = str(error).splitlines()
        # The first line of py4j's says only which call it was.
        is_java = isinstance(error, Py4JJavaError) and len(lines) > 1
        reason = lines[1].removeprefix(": ") if is_java else lines[0]
        raise UsageError(f"cannot start Spark: {reason}; what Spark says stands above") from error


def is_running() -> bool:
    """Whether this process has a Spark session; the active one is that of a thread, and others may have none."""
    kind = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return kind is not None and kind._active_spark_context is not None


def session_settings(configured: Mapping[str, str], extra_conf: Mapping[str, str]) -> dict[str, str]:
    """What a session is started with beside what is configured."""
    import pyspark

    unless_configured = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "WARN"}
    if has_local_master({**configured, **extra_conf}):
        # On one machine nobody looks at Spark's pages, and they take a port. Over TCP each Python task waits 40 ms for an
        # acknowledgement that the other side puts off. On a cluster the operator decides: the path of an executor's temporary
        # directory may be too long for a socket.
        unless_configured |= {"spark.ui.enabled": "false", "spark.python.unix.domain.socket.enabled": "true"}
    settings = {key: value for key, value in unless_configured.items() if key not in configured}
    logging = shipped_file(LOG4J)
    if SUBMITTED_VARIABLE not in os.environ and _JAVA_OPTIONS not in configured and logging is not None:
        # A JVM that is started here logs so from its first line on.
        settings[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={logging.as_uri()}"
    root = Path(__file__).resolve().parents[3]
    if root.name not in ("site-packages", "dist-packages") and root.is_dir():
        # Workers import this package too; it runs from a checkout.
        settings[_WORKER_PATH] = os.pathsep.join([str(root), *filter(None, [configured.get(_WORKER_PATH)])])
    settings |= {
        "spark.sql.defaultCatalog": "spark_catalog",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
    }
    # Spark 3.5 has no word for its own catalog: one that is configured there has to be on its classpath.
    if not pyspark.__version__.startswith("3."):
        settings["spark.sql.catalog.spark_catalog"] = "builtin"
    return settings | dict(extra_conf)


def stop_session(spark: SparkSession) -> None:
    """Stop Spark, whatever state an interrupt left it in; never raises and never hangs."""
    ask_apart(lambda: spark.stop(), _STOP_MS)
    note_application(None)


def cancel_jobs(spark: SparkSession) -> None:
    """Cancel all running Spark jobs, without waiting; safe in a signal handler."""
    ask_apart(lambda: spark.sparkContext.cancelAllJobs(), 0)


def ask_apart(ask: Callable[[], object], wait_ms: int) -> None:
    """Ask the JVM from a thread of its own, wait no longer than that, and raise nothing.

    py4j keeps a connection a thread, and an interrupted call leaves an unread answer in that of the calling one. The JVM may be
    gone, and with it what was to be stopped.
    """

    def quietly() -> None:
        with suppress(Exception):
            ask()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(wait_ms / 1000)


def refuse_encrypted(metadata: TableMetadata, job: str) -> None:
    """Refuse a table that a job could not read, before anything is planned; raises `UnsupportedError`."""
    if metadata.is_encrypted:
        raise UnsupportedError(
            f"{job} refuses the table at {metadata.location!r}: it is encrypted, which is not supported yet"
        )


def refuse_encrypted_file(file: Any) -> None:
    """Refuse a planned data file, a row of a DataFrame or a dict, that cannot be decrypted; raises `UnsupportedError`."""
    if file["key_metadata"] is not None:
        raise UnsupportedError(f"data file {file['file_path']!r} is encrypted, which is not supported yet")
