"""What is PySpark's and is imported when it is first used: small work needs none of it, and it may not even be installed.

Spark's configuration as it stands before Spark runs: `spark-defaults.conf` and what `PYSPARK_SUBMIT_ARGS` adds.

Reading it here costs nothing; asking Spark costs the start of a JVM. Under `spark-submit` the JVM runs already and
`session.py` asks it instead.

Where Java is, which Spark runs on: looked for as Spark's own launcher does, and not started.

The Spark session of a job: neutral towards catalogs of other engines, quiet, in UTC, and stopped for certain.

A cluster's `spark-defaults.conf` often names an Iceberg catalog as the default one, and without Iceberg's jar every query
would fail on it; icekeep needs none of Spark's catalogs. Whatever else the operator configured stays.

Up to where this process does work by itself, and from where Spark does: one table of limits for all jobs.

Spark takes seconds to begin, and a task some milliseconds. Below these limits the driver is done before that, and what it
holds meanwhile takes at most some hundred megabytes.

Who works beyond this process: a Spark session that may not have been started yet, and up to where it is not asked.

Planning small tables needs no session, and starting one takes seconds.

What no job reads yet, refused in one line before anything is planned or read.
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
from typing import Any, Protocol, TypeAlias, cast

import msgspec
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icekeep.errors import UnsupportedError, UsageError, brought_by
from icekeep.runs import note_application
from icekeep.shipped import LOG4J, shipped_file
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.types import GIB, MIB

PACKAGES = ("pyspark", "py4j")
"""What Spark's Python consists of."""


def spark_is_missing() -> UsageError:
    """The error for work that needs Spark where its packages are not installed."""
    return UsageError(
        f"this needs Spark, and PySpark is not installed: {brought_by('spark')}, or run the job with spark-submit",
        module="pyspark",
    )


class _Functions:
    """`pyspark.sql.functions`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("pyspark.sql.functions"), name)


F: Any = _Functions()


def from_arrow_schema(schema: Any) -> Any:
    """PySpark's schema for one of Arrow."""
    from pyspark.sql.pandas.types import from_arrow_schema as made

    return made(schema)


def from_arrow_type(type_: Any) -> Any:
    """PySpark's type for one of Arrow."""
    from pyspark.sql.pandas.types import from_arrow_type as made

    return made(type_)


def to_arrow_schema(schema: Any) -> Any:
    """Arrow's schema for one of PySpark."""
    from pyspark.sql.pandas.types import to_arrow_schema as made

    return made(schema)


def on_disk(rows: Any) -> Any:
    """A DataFrame that is computed once, and kept on the executors' disks."""
    from pyspark import StorageLevel

    return rows.persist(StorageLevel.DISK_ONLY)


def with_field(schema: Any, name: str, type_: Any) -> Any:
    """PySpark's schema with one more field behind the others, of Arrow's type, which is never null."""
    from pyspark.sql.types import StructField, StructType

    return StructType([*schema.fields, StructField(name, from_arrow_type(type_), nullable=False)])


def is_session(one: object) -> bool:
    """Whether something is a session of Spark."""
    kind = _of_module("pyspark.sql", "SparkSession")
    return kind is not None and isinstance(one, kind)


def spark_is_3(spark: Any) -> bool:
    """Whether a session is of Spark 3.5, the one release before 4.0 that is supported: it lacks a few calls."""
    # A session's own version is asked of its SQL, which has not begun in one that begins it late.
    return bool(spark.sparkContext.version.startswith("3."))


def running_context() -> Any:
    """Of the session that this process has, whatever thread started it; `None` where it has none, or only begins one."""
    kind = _of_module("pyspark", "SparkContext")
    context = None if kind is None else kind._active_spark_context
    # PySpark names it before it has a master, and has no JVM for it before that.
    return None if getattr(context, "_jsc", None) is None else context


def task_context() -> Any:
    """Of the Spark task that this is; `None` where it is none."""
    kind = _of_module("pyspark", "TaskContext")
    return None if kind is None else kind.get()


def _of_module(module: str, name: str) -> Any:
    """What a module has of a name; `None` where it was not imported yet, or is being imported by another thread just now."""
    return getattr(sys.modules.get(module), name, None)


SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""An environment variable that `spark-submit` sets: a JVM runs already and knows the configuration."""

_LINE = re.compile(r"(\S+?)(?:\s*[=:]\s*|\s+)(.*)")


def configured_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """The `spark.*` properties that a session started from this environment would have."""
    arguments = _submit_arguments(environ)
    chosen = [value for flag, value in arguments if flag == "--properties-file"]
    properties: dict[str, str] = {}
    for path in chosen[-1:] or _default_files(environ):
        properties |= _read_properties(Path(path))
    for flag, value in arguments:
        key, equals, text = value.partition("=")
        if flag in ("--conf", "-c") and equals:
            properties[key.strip()] = text
        if flag == "--master":
            properties["spark.master"] = value
    return properties


def current_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the session that runs in this process, which knows best; where none runs, of one that would be started."""
    context = running_context()
    return configured_properties(environ) if context is None else dict(context.getConf().getAll())


def has_local_master(properties: Mapping[str, str]) -> bool:
    """Whether a session of these properties has its tasks on this machine, as one that is configured nowhere has."""
    return properties.get("spark.master", "local").startswith("local")


def _submit_arguments(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Pairs of a flag and the word after it, `--flag=word` included."""
    try:
        words = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    except ValueError:
        # Spark itself will refuse it when it starts.
        return []
    pairs = list(itertools.pairwise([*words, ""]))
    joined = [word.partition("=") for word in words if word.startswith("--") and "=" in word]
    return pairs + [(flag, value) for flag, _, value in joined]


def _default_files(environ: Mapping[str, str]) -> list[str]:
    directory = environ.get("SPARK_CONF_DIR") or (environ.get("SPARK_HOME") and f"{environ['SPARK_HOME']}/conf")
    return [f"{directory}/spark-defaults.conf"] if directory else []


def _read_properties(path: Path) -> dict[str, str]:
    """A Java properties file, as far as Spark's users write it: a key, then whitespace, `=` or `:`, then the value."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    matches = [_LINE.fullmatch(line.strip()) for line in lines if not line.lstrip().startswith(("#", "!"))]
    return {match[1]: match[2].strip() for match in matches if match and match[1].startswith("spark.")}


OLDEST_JAVA = 17
"""The oldest release that Spark 4 runs on."""


def java_program(environ: Mapping[str, str]) -> str:
    """The program that starts Java.

    Raises:
        UsageError: there is none.
    """
    home = environ.get("JAVA_HOME")
    if home:
        program = Path(home, "bin", "java")
        if not program.exists():
            raise UsageError(
                f"there is no bin/java under JAVA_HOME, {home!r}; set it to where Java {OLDEST_JAVA} or later is"
            )
        return str(program)
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise UsageError(f"there is no Java; install Java {OLDEST_JAVA} or later, or set JAVA_HOME")
    return found


_FORCED = {
    "spark.sql.defaultCatalog": "spark_catalog",
    # Spark 3.5 has no word for its own catalog: one that is configured there has to be on its classpath.
    **({} if pyspark.__version__.startswith("3.") else {"spark.sql.catalog.spark_catalog": "builtin"}),
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
}
_UNLESS_CONFIGURED = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}
_LOCAL_UNLESS_CONFIGURED = {"spark.ui.enabled": "false", "spark.python.unix.domain.socket.enabled": "true"}
"""On one machine nobody looks at Spark's pages, and they take a port; on a cluster they are as the operator has them.

Over TCP each Python task waits 40 ms for an acknowledgement that the other side puts off. Elsewhere the operator decides:
the path of an executor's temporary directory may be too long for such a socket.
"""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_WORKER_PATH = "spark.executorEnv.PYTHONPATH"
_STOP_SECONDS = 30


def build_session(app_name: str, extra_conf: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark, or take the session that runs, as it is but for `extra_conf`, which wins over what is configured.

    Raises:
        UsageError: there is no Java, or Spark does not start.
    """
    with starting():
        if is_running():
            # `getOrCreate` applies what it is given to the session it finds, which is the application's.
            return noted(SparkSession.builder.config(map=dict(extra_conf or {})).getOrCreate())
        settings = session_settings(live_properties(), extra_conf or {})
        return noted(SparkSession.builder.appName(app_name).config(map=settings).getOrCreate())


@contextmanager
def starting() -> Iterator[None]:
    """The block starts Spark.

    Raises:
        UsageError: there is no Java, or Spark does not start.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _require_java()
    try:
        yield
    # Where the cluster ends the application meanwhile PySpark knows no class for what the JVM says.
    except (PySparkException, Py4JJavaError) as error:
        raise UsageError(f"cannot start Spark: {_said(error)}; what Spark says stands above") from error


def noted(spark: SparkSession) -> SparkSession:
    """The session; its application is that of this process from now on, whether any work goes to it or not."""
    note_application(spark.sparkContext.applicationId)
    return spark


def is_running() -> bool:
    """Whether this process has a Spark session; the active one is that of a thread, and others may have none."""
    return SparkContext._active_spark_context is not None


def stop_session(spark: SparkSession) -> None:
    """Stop Spark, whatever state an interrupt left it in; never raises and never hangs."""
    # py4j keeps a connection a thread; an interrupted call leaves an unread answer in that of this thread.
    thread = threading.Thread(target=_stop, args=(spark,), daemon=True)
    thread.start()
    thread.join(_STOP_SECONDS)
    note_application(None)


def cancel_jobs(spark: SparkSession) -> None:
    """Cancel all running Spark jobs, without waiting; safe in a signal handler."""
    threading.Thread(target=_cancel, args=(spark,), daemon=True).start()


def live_properties() -> dict[str, str]:
    """Spark's configuration: the JVM's under `spark-submit`, otherwise what a new session would be started with."""
    if SUBMITTED_VARIABLE in os.environ:
        # Without a connection to the JVM a SparkConf is empty; nothing public of PySpark connects without a context.
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    return configured_properties(os.environ)


def session_settings(configured: Mapping[str, str], extra_conf: Mapping[str, str]) -> dict[str, str]:
    """What a session is started with beside what is configured."""
    wished = dict(_UNLESS_CONFIGURED)
    if has_local_master({**configured, **extra_conf}):
        wished |= _LOCAL_UNLESS_CONFIGURED
    settings = {key: value for key, value in wished.items() if key not in configured}
    return settings | _quiet_jvm(configured) | _worker_path(configured) | _FORCED | dict(extra_conf)


def _said(error: Exception) -> str:
    """The first line of what went wrong; py4j's says only which call it was."""
    lines = str(error).splitlines()
    return lines[1].removeprefix(": ") if isinstance(error, Py4JJavaError) and len(lines) > 1 else lines[0]


def _stop(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:  # noqa: BLE001 - the JVM may be gone already; the job's own outcome is what counts
        return


def _cancel(spark: SparkSession) -> None:
    try:
        spark.sparkContext.cancelAllJobs()
    except Exception:  # noqa: BLE001 - as above: nothing is left to cancel
        return


def _require_java() -> None:
    """Say in one line what Spark's launcher says in ten."""
    if SUBMITTED_VARIABLE in os.environ:
        return
    try:
        java_program(os.environ)
    except UsageError as error:
        raise UsageError(f"cannot start Spark: {error.message}") from error


def _quiet_jvm(configured: Mapping[str, str]) -> dict[str, str]:
    """Let a JVM that is started here log as the shipped `conf/log4j2.properties` says, from its first line on."""
    file = shipped_file(LOG4J)
    if SUBMITTED_VARIABLE in os.environ or _JAVA_OPTIONS in configured or file is None:
        return {}
    return {_JAVA_OPTIONS: f"-Dlog4j2.configurationFile={file.as_uri()}"}


def _worker_path(configured: Mapping[str, str]) -> dict[str, str]:
    """Workers import this package too; where it runs from a checkout they are told where that is."""
    root = Path(__file__).resolve().parents[3]
    if root.name in ("site-packages", "dist-packages") or not root.is_dir():
        return {}
    paths = [str(root), *filter(None, [configured.get(_WORKER_PATH)])]
    return {_WORKER_PATH: os.pathsep.join(paths)}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver does by itself; what is more goes to Spark tasks. Counts, and sizes in bytes.

    Attributes:
        entries_count: entries of manifests whose rows are held.
        folded_entries_count: entries of which no row is kept, only what is worked out from them.
        commit_entries_count: entries that a commit filters, or asks something of.
        commit_manifests_count: the manifests that they are in. A store answers in some 50 ms, sixteen at a time: three seconds.
        list_rows_count: rows of manifest lists.
        ref_entries_count: entries that are counted for each reference that leads to them.
        reachable_entries_count: entries by which the garbage of an expiration is told from what is in use; eight bytes are
            held of each.
        garbage_files_count: files that are garbage, and are held.
        deleted_files_count: files that are deleted, or moved to the trash.
        plan_files_count: files that deletion plans name.
        listed_files_count: files of a listing.
        looked_up_files_count: files that are looked up one by one, in place of a listing.
        footers_count: data files whose footers are looked at.
        sort_sample_bytes: of data files whose sort keys are sampled.
        delete_group_files_count, delete_group_bytes: of position delete files that are rewritten together.
        checked_delete_bytes: of delete files that `check` reads.
        row_ids_count: rows whose ids `check` holds against each other, 8 bytes each.
        rewrite_bytes: of files that are rewritten, where there is no session yet. Two processors write so much anew in half a
            minute, which is how long Spark takes to begin and for what is slow in its first job; a sort takes three times that,
            and more in Spark on the same processors.
        submitted_rewrite_bytes: the same under `spark-submit`, or where a cluster's session runs: the driver may be small.
        session_rewrite_bytes: the same where a session of this machine was given: its workers run already, and rewrite more as
            fast as threads.
        waiting_files_count: files that are opened for a rewrite, under `spark-submit` to a cluster, where a cluster's session
            runs, or where a session was given. A store answers in some 30 ms, and threads wait for two or three answers to each
            file: 10 seconds for two of them.
    """

    entries_count: int = 200_000
    folded_entries_count: int = 2_000_000
    commit_entries_count: int = 20_000
    commit_manifests_count: int = 1_000
    list_rows_count: int = 4_000_000
    ref_entries_count: int = 500_000
    reachable_entries_count: int = 10_000_000
    garbage_files_count: int = 1_000_000
    deleted_files_count: int = 100_000
    plan_files_count: int = 200_000
    listed_files_count: int = 1_500_000
    looked_up_files_count: int = 500
    footers_count: int = 2_000
    sort_sample_bytes: int = 256 * MIB
    delete_group_files_count: int = 100
    delete_group_bytes: int = 8 * MIB
    checked_delete_bytes: int = 256 * MIB
    row_ids_count: int = 10_000_000
    rewrite_bytes: int = 2 * GIB
    submitted_rewrite_bytes: int = 128 * MIB
    session_rewrite_bytes: int = 32 * MIB
    waiting_files_count: int = 200


LIMITS = Limits()
"""What holds where nobody hands in other limits."""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A source of a session, with limits of one's own."""

    spark: SparkSession | Callable[[], SparkSession] | None = None
    limits: Limits = LIMITS


SparkSource: TypeAlias = SparkSession | Callable[[], SparkSession] | Engine | None
"""A session; a function that starts one the first time it is called, and returns it again later; one of these with limits; or
by default the session that runs, or a new one, once it is needed.
"""


_known: list[object] = [None]
"""The context whose application was noted last."""


def started(spark: SparkSource) -> SparkSession:
    """The session itself.

    Raises:
        UsageError: PySpark is not installed, or as `build_session` raises it.
    """
    given = _session_of(spark)
    if is_session(given):
        return _noted(cast("SparkSession", given))
    if given is None:
        try:
            pass
        except ModuleNotFoundError as error:
            if error.name not in PACKAGES:
                raise
            raise spark_is_missing() from error
        return _noted(build_session("icekeep"))
    return _noted(cast("Callable[[], SparkSession]", given)())


def _noted(session: SparkSession) -> SparkSession:
    """A session whose application commits name from now on; the JVM is asked once a session."""
    context = getattr(session, "sparkContext", None)
    if context is not None and context is not _known[0]:
        with suppress(Exception):
            note_application(str(context.applicationId))
            _known[0] = context
    return session


def is_started(spark: SparkSource) -> bool:
    """Whether a session was given, and none has to be started."""
    return is_session(_session_of(spark))


def limits_of(spark: SparkSource) -> Limits:
    """Up to where Spark is not asked."""
    return spark.limits if isinstance(spark, Engine) else LIMITS


def check_source(spark: object) -> None:
    """Raise `UsageError` for what is no source of a session: a filter given in its place would else fail much later."""
    if not (spark is None or is_session(spark) or isinstance(spark, Engine) or callable(spark)):
        raise UsageError(
            f"{spark!r} is no Spark session; give a session, or nothing, and other arguments by their names"
        )


def _session_of(spark: SparkSource) -> SparkSession | Callable[[], SparkSession] | None:
    return spark.spark if isinstance(spark, Engine) else spark


class Row(Protocol):
    """A row of a DataFrame, or a dict."""

    def __getitem__(self, column: str, /) -> Any: ...


def refuse_encrypted(metadata: TableMetadata, job: str) -> None:
    """Refuse a table that a job could not read, before anything is planned; raises `UnsupportedError`."""
    if metadata.is_encrypted:
        raise UnsupportedError(
            f"{job} refuses the table at {metadata.location!r}: it is encrypted, which is not supported yet"
        )


def refuse_encrypted_file(file: Row) -> None:
    """Refuse a planned data file that nobody here could read; raises `UnsupportedError`."""
    if file["key_metadata"] is not None:
        raise UnsupportedError(f"data file {file['file_path']!r} is encrypted, which is not supported yet")
