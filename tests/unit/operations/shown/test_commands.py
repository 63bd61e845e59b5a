"""Commands that errors name: they read the configuration of the command that failed."""

import pytest

from icekeep.events import StepFinished, Warned
from icekeep.operations.outcomes import RunState
from icekeep.operations.shown.commands import CompletingListener, completed, with_commands_completed
from kit.cases import for_each


@for_each(
    ("message", "shown"),
    [
        (
            "`icekeep report --catalog lake` lists them",
            "`icekeep report --catalog lake --config 'my own.yaml'` lists them",
        ),
        ("`icekeep history --table db.t --all`", "`icekeep history --table db.t --all --config 'my own.yaml'`"),
        ("`icekeep check --table t --config a.yaml`", "`icekeep check --table t --config a.yaml`"),
        ("`icekeep --help` lists them", "`icekeep --help` lists them"),
        ("see `icekeep runs`", "see `icekeep runs`"),
    ],
)
def test_a_command_on_a_table_or_catalog_that_an_error_names_reads_the_same_configuration(message, shown):
    assert completed(message, None, "my own.yaml") == shown
    assert completed(message, None, None) == message


@pytest.mark.parametrize(
    "text",
    ["`icekeep drop --table NAMES.db.t`", "icekeep 0.1 failed: give --table x\nas it is"],
)
def test_what_is_no_command_without_a_name_stays_as_it_is(text):
    assert completed(text, "lake.db.t", None) == text
    assert text.startswith("`") or completed(text, "lake.db.t", "my.yaml") == text


def test_it_is_on_the_table_of_the_command_that_failed():
    message = "run `icekeep repair --table NAME --fault 128` first"
    assert completed(message, "lake.db.t", None) == "run `icekeep repair --table lake.db.t --fault 128` first"
    assert completed(message, None, None) == message


def test_commands_in_results_and_warnings_read_the_same_configuration():
    """`why` told how a file is restored, and that command knew no catalog."""
    result = {
        "note": "run `icekeep check --table NAME`",
        "back": ("icekeep restore --table a.b.c --run r-1",),
        "count": 3,
    }
    assert with_commands_completed(result, "a.b.c", "my.yaml") == {
        "note": "run `icekeep check --table a.b.c --config my.yaml`",
        "back": ["icekeep restore --table a.b.c --run r-1 --config my.yaml"],
        "count": 3,
    }
    heard = []

    class Hearing:
        def on(self, event):
            heard.append(event)

    state = RunState()
    listener = CompletingListener(Hearing(), state, "my.yaml")
    state.table = "a.b.c"
    listener.on(Warned("run `icekeep restore --table NAME --run r`"))
    listener.on(StepFinished("deleting files", "3 files"))
    assert heard == [
        Warned("run `icekeep restore --table a.b.c --run r --config my.yaml`"),
        StepFinished("deleting files", "3 files"),
    ]
