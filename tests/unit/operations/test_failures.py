from threading import Thread

import msgspec
import pytest

from icekeep.errors import (
    THIS_TABLE,
    ConflictError,
    IcekeepError,
    InvalidTableError,
    JobFailedError,
    NotFoundError,
    OptionError,
    argument,
    one_line,
    shown_command,
    table_at,
)
from icekeep.operations.outcomes import RunState, our_error, run_failure
from icekeep.planning.spark.failures import known_error, spark_failed
from kit.cases import for_each
from kit.runtime import FakeRuntime

FROM_AN_EXECUTOR = """An error occurred while calling o63.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/lib/icekeep/planning/spark/tasks.py", line 5, in read
    raise error
icekeep.errors.MissingFileError: there is no file 's3://b/early'

During handling of the above exception, another exception occurred:
icekeep.errors.InvalidTableError: cannot read manifest 's3://b/m0.avro': entry 17 has status 9

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
"""


def test_an_error_of_ours_is_itself():
    error = ConflictError("another writer won")
    assert our_error(error) is error


def test_the_last_error_of_ours_is_found_in_what_spark_says():
    found = our_error(RuntimeError(FROM_AN_EXECUTOR))
    assert type(found) is InvalidTableError
    assert found.message == "cannot read manifest 's3://b/m0.avro': entry 17 has status 9"
    assert found.exit_status == 1


def test_an_error_with_a_constructor_of_its_own_is_found_too():
    found = our_error(RuntimeError("icekeep.errors.OptionError: option x is '0'; give 1"))
    assert type(found) is OptionError
    assert (found.message, found.exit_status) == ("option x is '0'; give 1", 2)


@for_each("text", ["", "boom", "icekeep.errors.Nothing: x", "icekeep.errors.Any: x", "icekeep.errors: x"])
def test_what_is_not_ours_is_not_found(text):
    assert our_error(RuntimeError(text)) is None


@for_each(
    ("failure", "line"),
    [
        (RuntimeError("first\nsecond"), "RuntimeError: first"),
        (RuntimeError("\n  \n first"), "RuntimeError: first"),
        (KeyError(), "KeyError"),
        (RuntimeError("calling o63\nCaused by: A: a\n\tat x\nCaused by: B: b\n\tat y"), "RuntimeError: B: b"),
        (IcekeepError("plain"), "plain"),
    ],
)
def test_one_line_says_what_helps(failure, line):
    assert one_line(failure) == line


def test_one_line_is_not_endless():
    assert len(one_line(RuntimeError("x" * 10_000))) == 500


def test_a_failure_is_described_for_machines():
    def described(failure):
        return msgspec.to_builtins(run_failure(failure, None, RunState()).error)

    assert described(OptionError("x", given=0, expected="1")) == {
        "kind": "option",
        "message": "option x is 0; give 1",
        "facts": {"option": "x", "given": "0", "expected": "1"},
        "help": "icekeep help option",
    }
    unexpected = {"kind": "unexpected", "message": "ValueError: boom", "help": "icekeep help unexpected"}
    assert described(ValueError("boom")) == unexpected
    assert described(ConflictError("x")) == {"kind": "conflict", "message": "x", "help": "icekeep help conflict"}


def test_only_arguments_and_table_become_command_line_words():
    """Names that users gave, and that look like those of arguments or of the table, stay as they are."""
    state = RunState(table="lake.db.a b", location="s3://b/t")
    state.start("expire_snapshots", {}, FakeRuntime())
    text = "there is no column 'older_than' in the table at 's3://b/t', older_than NAME"
    error = NotFoundError(
        f"{argument('older_than')}: {table_at('s3://b/t')} is old, {table_at('s3://b/u')} is not; {text}"
    )
    error.append(f"run `{shown_command('check', '--table', THIS_TABLE)}`")
    assert run_failure(error, None, state).line == (
        f"--older-than: table 'lake.db.a b' is old, the table at 's3://b/u' is not; {text}; "
        "run `icekeep check --table 'lake.db.a b'`"
    )
    assert str(error).endswith("`icekeep check --table NAME`")


def test_thread_limit_error_says_what_limits_threads(monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading._start_new_thread", refuse, raising=False)
    monkeypatch.setattr("threading._start_joinable_thread", refuse, raising=False)
    with pytest.raises(RuntimeError) as raised:
        Thread(target=print).start()
    found = our_error(raised.value)
    assert type(found) is JobFailedError
    assert "starts no more threads for this process; raise what limits it" in found.message
    assert spark_failed(raised.value).message == known_error(raised.value, "a task").message == found.message
