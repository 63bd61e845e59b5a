"""Errors of tasks in one line: the error, the file that the task was at, and the remedy."""

import errno
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import msgspec

from icekeep.errors import IcekeepError, JobFailedError, and_more, refused_threads, revived
from icekeep.storage.open import last_read

GIVE_ALL = "give spark-submit --archives icekeep-env.tar.gz#env --conf spark.pyspark.python=./env/bin/python"
GIVE_PACKAGE = f"{GIVE_ALL}, or --py-files icekeep.zip where all other packages are installed"

_MEMORY_REMEDY = (
    "give executors more 'spark.executor.memoryOverhead', or let fewer tasks share one by 'spark.executor.cores' (with a local "
    "master: a smaller N in 'local[N]')"
)
_THREAD_REMEDY = "give this machine, or its container, more memory"
_MISSING_PACKAGE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_MISSING_ARROW = "PACKAGE_NOT_INSTALLED"
_MISSING_PYTHON = re.compile(r'Cannot run program "([^"]+)".*No such file')
_TASK = re.compile(r"Task (\d+) in stage \S+ failed \d+ times")
_LOST = re.compile(r"ExecutorLostFailure \((executor [^)]*?)\)(?: Reason: (.*))?")
_MENTION = re.compile(
    # As Python prints an error at the end of a traceback, or as Spark 4 or 3.5 wraps the text of `raise_error`.
    r"^(?:.*(?:\[USER_RAISED_EXCEPTION\]|java\.lang\.RuntimeException:) )?icekeep\.errors\.(\w+): (.*?)(?: SQLSTATE: \w+\]?)?$",
    re.MULTILINE,
)
_PYTHON_ERROR = re.compile(r"\w+(Error|Exception): ")
_WORKER_ENDED = re.compile(r"Python worker exited unexpectedly \(crashed\)")
_NAMES = ("manifest_path", "file_path", "location", "manifest_list")
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})
_FILES_LOOKED_AT = 1_000
_REASON_LENGTH_MAX = 200


def known_error(error: Exception, payload: Any, *, in_thread: bool = False) -> IcekeepError:
    """An error of a task, in Spark or in a thread of this process, as one of ours, with the file in its message."""
    if isinstance(error, IcekeepError):
        return error
    line = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    read = last_read()
    if not (read and read in line) and (place := _place(payload, read)):
        line = f"{line}, {place}"
    if isinstance(error, MemoryError):
        line = f"{line}; {_THREAD_REMEDY if in_thread else _MEMORY_REMEDY}"
    return _failed_by(error, line)


@contextmanager
def translated(payloads: Sequence[Any] = ()) -> Iterator[None]:
    """Revive an error of ours from its last mention in an error of Spark's.

    Where Spark mentions none of ours, as for lost executors, it is a `JobFailedError`; `payloads` are those of the tasks by
    Spark's numbers, if these are the same.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    # Two stages that fail at once make an error without a class of PySpark's.
    except (PySparkException, Py4JError) as error:
        mentions = _MENTION.findall(str(error))
        if not mentions:
            raise spark_failed(error, payloads) from error
        name, message = mentions[-1]
        raise revived(name, message) from error


def spark_failed(error: BaseException, payloads: Sequence[Any] = ()) -> JobFailedError:
    """The error for work that failed without an error of ours: a lost executor, or a worker without our packages."""
    text = str(error)
    reason = _lacking(text) or _death(text, payloads)
    if reason is None:
        # The last Python error in what Spark says, else the first line.
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if _PYTHON_ERROR.match(line)), (lines or [repr(error)])[0])
    return _failed_by(error, f"Spark failed: {reason}")


def failed_task(error: IcekeepError) -> int | None:
    """The number of the task that failed its whole job, if Spark's error has one."""
    match = _TASK.search(str(error.__cause__))
    return int(match[1]) if match else None


def _failed_by(error: BaseException, text: str) -> JobFailedError:
    """The error for work that failed by a foreign error; its fact `cause` is the resource that is likely to be short again."""
    if (refused := refused_threads(error)) is not None:
        return refused
    facts = {}
    # Facts travel from an executor, the cause of an error does not.
    if isinstance(error, MemoryError):
        facts["cause"] = "memory"
    elif isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        facts["cause"] = "disk"
    failed = JobFailedError(text, **facts)
    failed.__cause__ = error
    return failed


def _lacking(text: str) -> str | None:
    """The remedy where executors lack Python or a package; `None` for any other error."""
    if python := _MISSING_PYTHON.search(text):
        return f"executors cannot start {python[1]!r}; {GIVE_ALL}"
    if missing := _MISSING_PACKAGE.findall(text):
        remedy = GIVE_PACKAGE if missing[-1] == "icekeep" else GIVE_ALL
        return f"the executors' Python has no package {missing[-1]!r}; {remedy}"
    if _MISSING_ARROW in text:
        return f"the executors' Python has no package 'pyarrow'; {GIVE_ALL}"
    return None


def _death(text: str, payloads: Sequence[Any]) -> str | None:
    """The message for a lost worker or executor, by Spark's text; `None` for any other error."""
    lost = _LOST.search(text)
    if lost is not None:
        reason = " ".join((lost[2] or "").split())[:_REASON_LENGTH_MAX].rstrip(" .")
        subject = f"an executor was lost ({lost[1]}{': ' if reason else ''}{reason})"
    elif _WORKER_ENDED.search(text):
        subject = "a Python worker was killed"
    else:
        return None
    number = _TASK.search(text)
    payload = payloads[int(number[1])] if number and int(number[1]) < len(payloads) else None
    place = _place(payload, None)
    return f"{subject}{', ' if place else ''}{place}; most often it is for want of memory: {_MEMORY_REMEDY}"


def _place(payload: Any, last_read: str | None) -> str:
    if last_read:
        return f"the last file that the task read is {last_read!r}"
    files = list(dict.fromkeys(islice(_files(payload), _FILES_LOOKED_AT)))
    return f"the task was at {files[0]!r}{and_more(files)}" if files else ""


def _files(value: Any) -> Iterator[str]:
    if isinstance(value, msgspec.Struct):
        named = [getattr(value, name) for name in _NAMES if isinstance(getattr(value, name, None), str)]
        yield from named
        if not named:
            for name in value.__struct_fields__:
                yield from _files(getattr(value, name))
    elif isinstance(value, Mapping):
        yield from (value[name] for name in _NAMES if isinstance(value.get(name), str))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _files(one)
