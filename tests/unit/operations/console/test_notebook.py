"""Progress of functions: one line that changes where there is a notebook, lines on a stream where there is none."""

import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from icekeep.events import InRun, SnapshotCommitted, StepAdvanced, StepFinished, StepStarted, Warned
from icekeep.operations.console.notebook import NotebookProgress, progress
from kit.runtime import FakeRuntime


def shell(monkeypatch: pytest.MonkeyPatch, *, kernel: object) -> list[tuple[str, Any]]:
    """Pretend to be in IPython; returns what is displayed and updated."""
    shown: list[tuple[str, Any]] = []
    handle = SimpleNamespace(update=lambda bundle, raw: shown.append(("update", bundle)))

    def display(bundle: Any, *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        shown.append(("display", bundle))
        return handle

    module = ModuleType("IPython")
    module.get_ipython = lambda: SimpleNamespace(kernel=kernel)  # type: ignore[attr-defined]
    module.display = SimpleNamespace(display=display)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    return shown


def test_without_ipython_lines_go_to_stderr(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    progress().on(StepStarted("rewriting data files", 12, "files"))
    assert capsys.readouterr().err == "rewriting data files: started, 12 files\n"
    assert "IPython" not in sys.modules


def test_in_ipython_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    shown = shell(monkeypatch, kernel=None)
    progress().on(Warned("look out"))
    assert capsys.readouterr().err == "warning: look out\n"
    assert not shown


def test_in_a_notebook_the_cell_has_one_output_that_changes(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    shown, runtime = shell(monkeypatch, kernel=object()), FakeRuntime()
    listener = progress(runtime=runtime)
    listener.on(StepStarted("rewriting data files", 12, "files"))
    runtime.pass_ms(250)
    listener.on(InRun("compact-1", StepAdvanced("rewriting data files", 5)))
    listener.on(StepAdvanced("rewriting data files", 1))
    listener.on(StepFinished("rewriting data files", "12 -> 1"))
    listener.on(SnapshotCommitted("db.<events>", 7, "m"))
    assert [kind for kind, _ in shown] == ["display", "update", "update", "update"]
    texts = [bundle["text/plain"] for _, bundle in shown]
    assert texts[0] == "rewriting data files: started, 12 files"
    assert texts[1] == "rewriting data files: 5 of 12 files"
    assert texts[2] == "rewriting data files: done in 0.2 s, 12 -> 1"
    assert texts[3].splitlines() == [texts[2], "db.<events>: committed snapshot 7"]
    assert shown[-1][1]["text/html"].endswith("db.&lt;events&gt;: committed snapshot 7</pre>")
    assert capsys.readouterr() == ("", "")


def test_given_stream_takes_lines_even_in_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, stream = shell(monkeypatch, kernel=object()), io.StringIO()
    progress(stream).on(Warned("look out"))
    assert stream.getvalue() == "warning: look out\n"
    assert not shown


def test_two_steps_at_once_are_two_lines_and_old_lines_go() -> None:
    texts: list[str] = []
    listener = NotebookProgress(texts.append, FakeRuntime())
    for number in range(30):
        listener.on(Warned(f"number {number}"))
    listener.on(StepStarted("a"))
    listener.on(StepStarted("b"))
    assert texts[-1].splitlines()[-3:] == ["warning: number 29", "a: started", "b: started"]
    assert "number 9" not in texts[-1].splitlines()
    assert len(texts[-1].splitlines()) == 22
