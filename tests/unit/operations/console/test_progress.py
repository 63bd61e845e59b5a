import contextlib
import errno
import io
import threading

import pytest

from icekeep.events import (
    CommitRetried,
    InRun,
    Noted,
    RunEnded,
    RunStarted,
    SnapshotCommitted,
    StepAdvanced,
    StepFinished,
    StepStarted,
    StepUnderWay,
    Warned,
)
from icekeep.operations.console.bars import shown_progress
from icekeep.operations.console.progress import PartProgress, PlainProgress, describe
from icekeep.spec.types import MIB
from kit.cases import for_each
from kit.runtime import FakeRuntime


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_step_is_reported_at_start_periodically_and_at_end():
    stream, runtime = io.StringIO(), FakeRuntime()
    progress = PlainProgress(stream, runtime)
    progress.on(StepStarted("rewrite", total=1200, unit="files"))
    for _ in range(10):
        runtime.pass_ms(1_000)
        progress.on(StepAdvanced("rewrite", 100))
    progress.on(StepFinished("rewrite", "3 groups"))
    assert stream.getvalue().splitlines() == [
        "rewrite: started, 1,200 files",
        "rewrite: 500 of 1,200 files, about 7.0 s left",
        "rewrite: 1,000 of 1,200 files, about 2.0 s left",
        "rewrite: done in 10.0 s, 3 groups",
    ]


def test_bytes_are_reported_with_rate_and_time_left():
    stream, runtime = io.StringIO(), FakeRuntime()
    progress = PlainProgress(stream, runtime)
    progress.on(StepStarted("rewrite", total=100 * MIB, unit="bytes"))
    for _ in range(2):
        runtime.pass_ms(5_000)
        progress.on(StepAdvanced("rewrite", 25 * MIB))
    runtime.pass_ms(5_000)
    progress.on(StepUnderWay("rewrite", 75 * MIB))
    runtime.pass_ms(5_000)
    # Less is finished than was under way.
    progress.on(StepAdvanced("rewrite", 5 * MIB))
    progress.on(StepFinished("rewrite", "3 groups"))
    assert stream.getvalue().splitlines() == [
        "rewrite: started, 100.0 MiB",
        "rewrite: 25.0 of 100.0 MiB, 5.0 MiB/s, about 15.0 s left",
        "rewrite: 50.0 of 100.0 MiB, 5.0 MiB/s, about 10.0 s left",
        "rewrite: 75.0 of 100.0 MiB, 5.0 MiB/s, about 5.0 s left",
        "rewrite: 75.0 of 100.0 MiB, 3.8 MiB/s, about 6.7 s left",
        "rewrite: done in 20.0 s, 3 groups",
    ]


@for_each(("unit", "one"), [("files", "file"), ("delete files", "delete file"), ("entries", "entry")])
def test_one_thing_is_reported_in_the_singular(unit, one):
    stream, runtime = io.StringIO(), FakeRuntime()
    progress = PlainProgress(stream, runtime)
    progress.on(StepStarted("rewrite", total=1, unit=unit))
    runtime.pass_ms(6_000)
    progress.on(StepAdvanced("rewrite", 1))
    assert stream.getvalue().splitlines() == [f"rewrite: started, 1 {one}", f"rewrite: 1 of 1 {one}"]


def test_a_step_whose_size_is_not_known_has_no_total():
    stream, runtime = io.StringIO(), FakeRuntime()
    progress = PlainProgress(stream, runtime)
    progress.on(StepStarted("list"))
    runtime.pass_ms(5_000)
    progress.on(StepAdvanced("list", 7))
    progress.on(StepFinished("list"))
    assert stream.getvalue().splitlines() == ["list: started", "list: 7", "list: done in 5.0 s"]


def test_a_step_may_turn_out_to_be_longer():
    stream, runtime = io.StringIO(), FakeRuntime()
    progress = PlainProgress(stream, runtime)
    progress.on(StepStarted("read", 4, "tasks"))
    for event in (StepAdvanced("read", 4, 10), StepAdvanced("read", 2)):
        runtime.pass_ms(5_000)
        progress.on(event)
    assert stream.getvalue().splitlines() == [
        "read: started, 4 tasks",
        "read: 4 of 10 tasks, about 7.5 s left",
        "read: 6 of 10 tasks, about 6.7 s left",
    ]


def test_events_of_a_step_that_never_started_do_no_harm():
    stream = io.StringIO()
    progress = PlainProgress(stream, FakeRuntime())
    progress.on(StepAdvanced("x"))
    progress.on(StepFinished("x"))
    assert stream.getvalue().splitlines() == ["x: 1", "x: done in 0.0 s"]


def test_other_events_are_one_line_each():
    assert describe(Warned("look")) == "warning: look"
    assert describe(Noted("open http://127.0.0.1/")) == "open http://127.0.0.1/"
    assert describe(SnapshotCommitted("db.t", 5, "x")) == "db.t: committed snapshot 5"
    assert describe(SnapshotCommitted("db.t", None, "x")) == "db.t: committed"
    assert (
        describe(CommitRetried("db.t", 2, 1500, "moved"))
        == "db.t: attempt 2 to commit did not land (moved); again in 1.5 s"
    )


class MeetingPlace(FakeRuntime):
    """A clock at which two threads meet if they can both look at it at once."""

    def __init__(self):
        super().__init__()
        self.barrier = threading.Barrier(2)
        self.met = False

    def monotonic_ms(self):
        with contextlib.suppress(threading.BrokenBarrierError):
            self.barrier.wait(timeout=0.2)
            self.met = True
        return super().monotonic_ms()


@pytest.mark.slow
def test_events_of_several_threads_are_taken_one_at_a_time():
    runtime = MeetingPlace()
    progress = PlainProgress(io.StringIO(), runtime)
    threads = [threading.Thread(target=progress.on, args=(StepAdvanced("rewrite"),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not runtime.met


def test_a_reader_that_went_away_does_not_end_the_job():
    stream = io.StringIO()
    progress = PlainProgress(stream, FakeRuntime())
    stream.close()
    progress.on(Warned("nobody listens"))


def test_a_terminal_that_is_gone_does_not_end_the_job(monkeypatch):
    """Its window was closed, and the job goes on in the background: each write is an error (EIO)."""

    class Gone(Terminal):
        is_gone = False

        def write(self, text):
            if self.is_gone:
                raise OSError(errno.EIO, "Input/output error")
            return super().write(text)

        def flush(self):
            self.write("")

    monkeypatch.setenv("TERM", "xterm")
    stream = Gone()
    with shown_progress(stream, FakeRuntime()) as listener:
        listener.on(StepStarted("rewrite", total=2, unit="files"))
        stream.is_gone = True
        listener.on(StepAdvanced("rewrite"))
        listener.on(Warned("nobody listens"))
        listener.on(StepFinished("rewrite"))
    assert "nobody listens" not in stream.getvalue()


def test_outside_a_terminal_lines_are_plain():
    stream = io.StringIO()
    with shown_progress(stream, FakeRuntime()) as listener:
        listener.on(StepStarted("rewrite [red]", total=2, unit="files"))
    assert stream.getvalue() == "rewrite [red]: started, 2 files\n"


def test_on_a_terminal_there_is_a_bar_and_lines_above_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with shown_progress(stream, FakeRuntime()) as listener:
        listener.on(StepStarted("rewrite [red]", total=2, unit="files"))
        listener.on(StepAdvanced("rewrite [red]"))
        listener.on(StepAdvanced("unknown"))
        listener.on(Warned("look [blue]"))
        listener.on(StepFinished("rewrite [red]", "fine"))
        listener.on(StepFinished("unknown"))
    shown = stream.getvalue()
    assert "\x1b[" in shown
    assert "rewrite [red]: done, fine" in shown
    assert "warning: look [blue]" in shown
    assert shown.index("rewrite [red]") < shown.index("warning")


def test_terminal_note_is_whole_and_nothing_drawn_after_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    stream, address = Terminal(), f"http://127.0.0.1:8642/?token={'x' * 43}"
    with shown_progress(stream) as listener:
        listener.on(StepStarted("looking", total=2, unit="tables"))
        listener.on(StepFinished("looking", "2 tables"))
        drawing = [thread for thread in threading.enumerate() if "Refresh" in type(thread).__name__]
        listener.on(Noted(f"open {address} (Ctrl-C ends it)"))
        assert f"open {address} (Ctrl-C ends it)\n" in stream.getvalue()
        for thread in drawing:
            thread.join(60)
        assert drawing
        assert not any(thread.is_alive() for thread in drawing)


def two_runs(listener):
    """Two parts of a run over many tables, with a step of the same name."""
    for name, parent in (("maintain-1", None), ("compact-1", "maintain-1"), ("check-1", "maintain-1")):
        job = name.partition("-")[0]
        table = "lake.db.t" if parent else ""
        listener.on(RunStarted(run_id=name, job=job, table=table, parent_id=parent, started_ms=1))
    for name in ("compact-1", "check-1"):
        listener.on(InRun(name, StepStarted("planning", total=5)))
    listener.on(InRun("check-1", StepFinished("planning")))
    listener.on(InRun("compact-1", StepFinished("planning")))
    listener.on(InRun("maintain-1", Warned("tired")))
    listener.on(InRun("compact-1", CommitRetried("db.t", 1, 5, "moved")))
    listener.on(InRun("compact-1", SnapshotCommitted("db.t", 7, "m")))
    listener.on(InRun("compact-1", Warned("careful")))
    listener.on(InRun("check-1", StepStarted("reading")))
    listener.on(RunEnded(run_id="compact-1", status="done", exit_status=0, ended_ms=1_301))
    listener.on(RunEnded(run_id="check-1", status="failed", exit_status=1, ended_ms=2_001, error_message="it broke"))
    listener.on(InRun("maintain-1", StepFinished("looking")))


LINES_OF_PARTS = [
    "compact lake.db.t: warning: careful",
    "compact lake.db.t: done in 1.3 s",
    "check lake.db.t: failed in 2.0 s: it broke",
]


def test_child_run_has_line_at_end_and_its_warnings():
    stream = io.StringIO()
    with shown_progress(stream, FakeRuntime()) as listener:
        two_runs(listener)
    assert stream.getvalue().splitlines() == ["warning: tired", *LINES_OF_PARTS, "looking: done in 0.0 s"]


def test_terminal_child_runs_have_own_bars_and_same_lines(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with shown_progress(stream, FakeRuntime()) as listener:
        two_runs(listener)
    shown = stream.getvalue()
    assert [line for line in LINES_OF_PARTS if line not in shown] == []
    for step in ("compact lake.db.t: planning", "check lake.db.t: planning"):
        assert step in shown
        assert f"{step}: done" not in shown
    assert "attempt 1" not in shown


def test_child_run_progress_survives_closed_stream():
    stream = io.StringIO()
    progress = PartProgress(stream, RunStarted(run_id="x-1", job="x", table="c.d.t", parent_id="m-1", started_ms=1))
    stream.close()
    progress.on(Warned("nobody listens"))
