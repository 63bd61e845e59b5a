import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import icekeep
from icekeep import cli
from icekeep.errors import (
    ConflictError,
    InvalidTableError,
    JobFailedError,
    NotFoundError,
    OptionError,
    OutcomeUnknownError,
    SafetyError,
    UnsupportedError,
    UsageError,
    argument,
)
from icekeep.operations import process_run
from kit import fake_jobs
from kit.cases import for_each
from kit.changes import thrown
from kit.fake_jobs import FAILURES, HISTORY, JOBS, SEAMS
from kit.runtime import START_MS, FakeRuntime
from kit.shell import ROOT

LIB = ROOT / "lib"


@pytest.fixture(autouse=True)
def _world(tmp_path, monkeypatch):
    fake_jobs.forget()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "icekeep.yaml").write_text(
        "catalogs: {local: {type: sql, uri: 'sqlite:///x.db', password: s3cret}}"
    )


def run(*words, job=None, jobs=JOBS):
    return cli.main(words, job, jobs=jobs, seams=SEAMS, runtime=FakeRuntime())


def test_json_goes_to_stdout_and_progress_to_stderr(capsys):
    assert run("compact", "--table", "db.t", "--output", "json") == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert json.loads(out) == {
        "schema_version": 2,
        "job": "compact",
        "table": "local.db.t",
        "run_id": f"compact-{FakeRuntime().new_uuid()}",
        "version": icekeep.__version__,
        "arguments": {},
        "started_ms": START_MS,
        "ended_ms": START_MS,
        "dry_run": False,
        "status": "done",
        "snapshot_id_before": "2",
        "snapshot_id_after": "2",
        "metadata_location_before": "/wh/1.metadata.json",
        "metadata_location_after": "/wh/2.metadata.json",
        "result": {"status": "done", "rewritten_data_files_count": 12},
    }
    assert "rewriting: started, 2 files" in err


def test_command_in_warning_has_table_and_configuration_of_job(capsys):
    warns = {"compact": msgspec.structs.replace(JOBS["compact"], run="kit.fake_jobs:compact_and_warn")}
    Path("conf/icekeep.yaml").rename("my.yaml")
    assert run("compact", "--catalog", "local", "--table", "db.t", "--config", "my.yaml", jobs=warns) == 0
    told = "run `icekeep restore --table local.db.t --run r-1 --config my.yaml` again"
    assert told in capsys.readouterr().err


def test_a_table_is_for_people(capsys):
    assert run("compact", "--table", "db.t") == 0
    out, _ = capsys.readouterr()
    assert out == "compact local.db.t: done\nstatus                      done\nrewritten_data_files_count  12\n"


def test_a_dry_run_shows_the_plan(capsys):
    assert run("compact", "--table", "db.t", "--dry-run") == 0
    out, _ = capsys.readouterr()
    assert out.startswith("compact local.db.t: planned, nothing was changed\n")
    assert "rewritten_bytes_count  3,000,000 (2.9 MiB)" in out
    assert "groups (2)" in out
    assert run("compact", "--table", "db.t", "--dry-run", "--output", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["dry_run"], document["status"]) == (True, "planned")
    assert document["result"]["groups"][0] == {"partition": "day=1", "bytes": 2_000_000, "files": ["a", "b"]}


def test_a_script_of_jobs_is_the_same_without_the_job_s_name(capsys):
    assert run("--table", "db.t", "--output", "json", job="compact") == 0
    by_script = capsys.readouterr().out
    assert run("compact", "--table", "db.t", "--output", "json") == 0
    assert capsys.readouterr().out == by_script


def test_part_of_the_work_is_exit_status_3(capsys):
    in_part = {"compact": msgspec.structs.replace(JOBS["compact"], run="kit.fake_jobs:compact_in_part")}
    assert run("compact", "--table", "db.t", "--output", "json", jobs=in_part) == 3
    assert json.loads(capsys.readouterr().out)["status"] == "partial"


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (UsageError("x"), 2, "usage"),
        (InvalidTableError("x"), 1, "invalid-table"),
        (JobFailedError("x"), 1, "job-failed"),
        (UnsupportedError("x"), 4, "unsupported"),
        (SafetyError("x"), 4, "safety"),
        (OutcomeUnknownError("x"), 5, "outcome-unknown"),
        (ConflictError("x"), 75, "conflict"),
        (RuntimeError("y\nicekeep.errors.SafetyError: x\n\tat java"), 4, "safety"),
    ],
)
def test_an_error_is_one_line_one_object_and_its_exit_status(failure, status, kind, capsys):
    FAILURES.append(failure)
    assert run("compact", "--table", "db.t", "--output", "json") == status
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "schema_version": 2,
        "job": "compact",
        "table": "local.db.t",
        "run_id": f"compact-{FakeRuntime().new_uuid()}",
        "version": icekeep.__version__,
        "started_ms": START_MS,
        "ended_ms": START_MS,
        "exit_status": status,
        "error": {"kind": kind, "message": "x", "help": f"icekeep help {kind}"},
    }
    said = "icekeep: x" if kind == "usage" else f"icekeep: x (icekeep help {kind})"
    assert [line for line in err.splitlines() if line.startswith("icekeep: ")] == [said]
    assert "Traceback" not in err


def test_the_facts_of_an_error_are_for_machines(capsys):
    FAILURES.append(ConflictError("x", snapshot_id=7, other={1}, kind=object))
    run("compact", "--table", "db.t", "--output", "json")
    facts = json.loads(capsys.readouterr().out)["error"]["facts"]
    assert facts == {"snapshot_id": "7", "other": [1], "kind": "<class 'object'>"}


def test_an_error_in_a_table_leaves_stdout_empty(capsys):
    FAILURES.append(ConflictError("x"))
    assert run("compact", "--table", "db.t") == 75
    assert capsys.readouterr().out == ""


def test_unexpected_error_exits_1_and_asks_for_report(capsys):
    FAILURES.append(ZeroDivisionError("division by zero\nmore"))
    assert run("compact", "--table", "db.t", "--output", "json") == 1
    out, err = capsys.readouterr()
    assert err.splitlines()[-1] == (
        "icekeep: unexpected error: ZeroDivisionError: division by zero; please report it, --verbose shows more "
        "(icekeep help unexpected)"
    )
    assert json.loads(out)["error"] == {
        "kind": "unexpected",
        "message": "ZeroDivisionError: division by zero",
        "help": "icekeep help unexpected",
    }


def test_verbose_adds_the_traceback(capsys):
    FAILURES.append(ZeroDivisionError("division by zero"))
    assert run("compact", "--table", "db.t", "--verbose") == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["compact", "--table", "db.t", "--colour", "red"], "compact"),
        (["compress", "--table", "db.t"], None),
        (["--colour"], None),
        ([], None),
    ],
)
def test_wrong_usage_is_exit_status_2_and_one_object_too(words, named, capsys, tmp_path):
    path = tmp_path / "result.json"
    assert run(*words, "--output", "json", "--result-file", str(path)) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["job"] == named
    assert json.loads(out)["error"]["kind"] == "usage"
    assert json.loads(path.read_text()) == json.loads(out)
    assert len(err.splitlines()) == 1
    assert HISTORY == []


def test_a_script_names_its_job_in_an_error(capsys):
    assert run("--output", "json", job="compact") == 2
    assert json.loads(capsys.readouterr().out)["job"] == "compact"


@for_each(
    ("error", "message"),
    [
        (
            OptionError("retain_last", given=0, expected=f"1 or more, or leave out {argument('snapshot_ids')}"),
            "--retain-last is 0; give 1 or more, or leave out --snapshot-ids",
        ),
        (OptionError("clean", given="some", expected="all"), "--clean is 'some'; give all"),
        (OptionError("grace", given="x", expected="an age"), "option grace is 'x'; give an age"),
    ],
)
def test_a_message_names_flags_as_the_command_line_has_them(error, message, capsys):
    FAILURES[:] = [error]
    assert run("expire_snapshots", "--table", "db.t", "--output", "json") == 2
    out, err = capsys.readouterr()
    assert err.endswith(f"\nicekeep: {message}\n")
    assert json.loads(out)["error"]["message"] == message


@for_each(
    "message",
    [
        "there is no column 'snapshot_ids'; the columns are id, retain_last",
        "there is no table 'db.older_than'; see /wh/older_than/snapshot_ids.parquet",
        "cannot read 'older_than': Parquet has no column older_than",
    ],
)
def test_names_of_users_are_no_arguments(message, capsys):
    FAILURES[:] = [NotFoundError(message)]
    assert run("expire_snapshots", "--table", "db.t", "--output", "json") == 2
    out, err = capsys.readouterr()
    assert f"icekeep: {message}" in err
    assert json.loads(out)["error"]["message"] == message


def test_result_file_has_json_whatever_stdout_shows(capsys, tmp_path):
    path = tmp_path / "result.json"
    assert run("compact", "--table", "db.t", "--result-file", str(path)) == 0
    assert json.loads(path.read_text())["result"]["rewritten_data_files_count"] == 12
    FAILURES.append(SafetyError("x"))
    assert run("compact", "--table", "db.t", "--result-file", str(path)) == 4
    assert json.loads(path.read_text())["error"]["kind"] == "safety"


def test_unwritable_result_file_is_refused_before_job_starts(capsys, tmp_path):
    assert run("compact", "--table", "db.t", "--result-file", str(tmp_path / "no" / "r.json")) == 2
    assert HISTORY == []
    [line] = capsys.readouterr().err.splitlines()
    assert "cannot write result file" in line


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("compact",), 3),
        (("compact", "--dry-run"), 1),
        (("plan_scan",), 1),
    ],
)
def test_undelivered_result_says_that_commit_stays(words, status, capsys, tmp_path, monkeypatch):
    """The disk is full by the time that the result is there."""

    def full(path, document):
        raise UsageError(f"cannot write result file {path!r}: no space left on device")

    monkeypatch.setattr(process_run, "write_result_file", full)
    path = tmp_path / "result.json"
    assert run(*words, "--table", "db.t", "--output", "json", "--result-file", str(path)) == status
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] in ("done", "planned")
    [line] = [line for line in err.splitlines() if line.startswith("icekeep: ")]
    assert "no space left on device" in line
    assert line.endswith(" (icekeep help undelivered)")
    assert ("what it committed stays" in line) == (status == 3)


def test_what_shows_a_result_is_imported_where_it_is_delivered(capsys):
    """The package was replaced under a long run: that is no failure of what has been committed."""
    gone = {"compact": msgspec.structs.replace(JOBS["compact"], for_people="kit.gone:shown")}
    assert run("compact", "--table", "db.t", jobs=gone) == 3
    assert "what it committed stays" in capsys.readouterr()[1]


def test_failed_job_keeps_exit_status_without_result_file(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(process_run, "write_result_file", thrown(UsageError("no space left on device")))
    FAILURES.append(OutcomeUnknownError("x"))
    assert run("compact", "--table", "db.t", "--result-file", str(tmp_path / "r.json")) == 5


def test_full_stdout_is_reported_and_not_a_job_failure(capsys, monkeypatch, tmp_path):
    """`icekeep compact ... > file` on a full disk."""
    monkeypatch.setattr(process_run, "_print", thrown(OSError(28, "No space left on device")))
    with (tmp_path / "out").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert run("compact", "--table", "db.t") == 3
    assert "what it committed stays" in capsys.readouterr().err


@for_each("signals", [[], [signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]])
def test_signal_while_printing_does_not_lose_answer(signals, capsys, monkeypatch):
    """A second one ends a process whose reader reads no more."""
    real = process_run._print

    def slow(answer, output):
        for number in signals:
            os.kill(os.getpid(), number)
        real(answer, output)

    monkeypatch.setattr(process_run, "_print", slow)
    words = ("compact", "--table", "db.t", "--output", "json")
    if len(signals) > 1:
        with pytest.raises(SystemExit) as ended:
            run(*words)
        assert ended.value.code == 143
    else:
        assert run(*words) == 0
        assert json.loads(capsys.readouterr().out)["status"] == "done"


@pytest.mark.parametrize(("words", "status"), [(("compact",), 3), (("compact", "--dry-run"), 1)])
def test_what_cannot_be_shown_is_told_with_what_was_committed(words, status, capsys):
    shown = msgspec.structs.replace(JOBS["compact"], for_people="kit.fake_jobs:not_shown")
    assert run(*words, "--table", "db.t", jobs={"compact": shown}) == status
    err = capsys.readouterr().err
    assert "icekeep: RuntimeError: cannot be shown" in err
    assert ("what it committed stays" in err) == (status == 3)


@for_each("encoding", ["ascii", "iso-8859-1"])
def test_an_answer_is_delivered_in_any_locale(encoding, monkeypatch):
    for output in ("table", "json"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        assert run("compact", "--table", "db.größe-表", "--output", output) == 0
        stream.flush()
        assert b"gr" in stream.buffer.getvalue()


@pytest.mark.parametrize(("run_string", "status"), [("terminated", 143), ("terminated_and_confused", 143)])
def test_sigterm_unwinds_job_cleans_up_and_exits_143(run_string, status, capsys):
    jobs = {
        "compact": msgspec.structs.replace(
            JOBS["compact"], run=f"kit.fake_jobs:{run_string}", check=None, takes_listener=False
        )
    }
    assert run("compact", "--table", "db.t", "--output", "json", jobs=jobs) == status
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == {
        "kind": "interrupted",
        "message": "interrupted by SIGTERM",
        "help": "icekeep help interrupted",
    }
    assert "icekeep: interrupted by SIGTERM (icekeep help interrupted)" in err
    assert HISTORY[-1] == "stop"
    assert HISTORY.count("cancel") == 1
    assert "not reached" not in HISTORY


def test_an_error_of_ours_is_told_although_a_signal_began_it(capsys):
    jobs = {
        "compact": msgspec.structs.replace(
            JOBS["compact"], run="kit.fake_jobs:terminated_and_refused", check=None, takes_listener=False
        )
    }
    assert run("compact", "--table", "db.t", jobs=jobs) == 4


def test_a_keyboard_interrupt_is_exit_status_130(capsys):
    FAILURES.append(KeyboardInterrupt())
    assert run("compact", "--table", "db.t") == 130
    assert "icekeep: interrupted by SIGINT" in capsys.readouterr().err


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_without_a_stream_the_job_is_done_all_the_same(stream, monkeypatch, tmp_path):
    """`icekeep compact ... >&-`, as some schedulers start commands."""
    monkeypatch.setattr(sys, stream, None)
    assert run("compact", "--table", "db.t", "--result-file", str(tmp_path / "r.json")) == 0
    assert json.loads((tmp_path / "r.json").read_text())["status"] == "done"


@pytest.mark.process
def test_closed_stdout_does_not_change_exit_status(tmp_path):
    code = (
        "import sys\nfrom icekeep import cli\nfrom kit.fake_jobs import JOBS, SEAMS\n"
        "sys.stdin.read()\n"
        "sys.exit(cli.main(['compact', '--table', 'db.t', '--dry-run'], jobs=JOBS, seams=SEAMS))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{LIB}:{LIB.parent / 'tests'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    process.stdin.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0
    assert "BrokenPipe" not in err


def test_config_show_has_sources_and_no_secrets(capsys, monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__ENV__URI", "sqlite:///y.db")
    assert run("config", "show", "--output", "json") == 0
    out, _ = capsys.readouterr()
    assert "s3cret" not in out
    document = json.loads(out)
    assert (document["job"], document["status"]) == ("config show", "done")
    shown = {(p["catalog"], p["key"]): (p["value"], p["source"]) for p in document["result"]["properties"]}
    assert shown["local", "uri"] == ("sqlite:///x.db", "conf/icekeep.yaml, line 1")
    assert shown["local", "password"] == ("******", "conf/icekeep.yaml, line 1")
    assert shown["env", "uri"] == ("sqlite:///y.db", "variable PYICEBERG_CATALOG__ENV__URI")
    assert run("config", "show") == 0
    assert "sqlite:///x.db" in capsys.readouterr().out


def test_help_is_exit_status_0(capsys):
    assert run("compact", "--help") == 0
    assert "--dry-run" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.parametrize("module", ["icekeep", "icekeep.cli", "icekeep.operations.configuration.file"])
def test_importing_loads_neither_spark_nor_arrow(module):
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(LIB)}, capture_output=True, text=True, check=True
    )
    assert not {"pyspark", "pyarrow", "pandas", "datafusion", "sqlalchemy"} & set(done.stdout.split())


@pytest.mark.process
@for_each(
    "words",
    [
        ["compact", "--help"],
        ["compact", "--table", "db.t", "--colour", "red"],
        ["compact", "--table", "db.t", "--where", "id >"],
        ["compact", "--catalog", "nope", "--table", "db.t"],
        ["config", "show"],
        ["help"],
        ["help", "safety"],
        ["help", "compact"],
        ["help", "nothing"],
        ["ref", "--help"],
        ["ref", "create-tag", "v1"],
        ["ref", "list", "--catalog", "nope", "--table", "db.t"],
        ["rollback", "--table", "db.t", "--timestamp", "yesterday"],
    ],
)
def test_help_and_mistakes_load_neither_spark_nor_arrow(words):
    code = f"import sys; from icekeep.cli import main; main({words!r}); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(LIB)}, capture_output=True, text=True, check=True
    )
    assert not {"pyspark", "pyarrow"} & set(done.stdout.split())


@pytest.mark.process
def test_the_help_of_no_job_loads_spark():
    code = (
        "import sys; from icekeep.cli import main; from icekeep.operations.jobs import JOBS\n"
        "print([name for name in JOBS if main([name, '--help']) != 0], *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(LIB)}, capture_output=True, text=True, check=True
    )
    failed, *modules = done.stdout.splitlines()[-1].split()
    assert failed == "[]"
    assert "pyspark" not in modules


@pytest.mark.process
def test_the_console_script_ends_the_process_with_the_status():
    done = subprocess.run(
        [sys.executable, "-c", "from icekeep.__main__ import entry_point; entry_point()", "compress"],
        env={"PYTHONPATH": str(LIB)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("icekeep: there is no command 'compress'; ")


@pytest.mark.process
def test_an_interrupt_while_modules_are_loaded_is_one_line():
    code = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'icekeep.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from icekeep.__main__ import entry_point\n"
        "entry_point()"
    )
    environ = {"PYTHONPATH": str(LIB)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "icekeep: interrupted before it began; nothing was changed\n")


def test_stdout_may_be_anything_that_can_be_written_to():
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        assert run("compact", "--table", "db.t", "--output", "json") == 0
    assert json.loads(stream.getvalue())["status"] == "done"
