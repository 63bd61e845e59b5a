"""What is PySpark's and is imported when it is first used: small work needs none of it, and it may not even be installed."""

import sys
from importlib import import_module
from typing import Any

from icekeep.errors import UsageError, brought_by

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
