"""The tree of errors: its shape, its exit statuses, its way through a pickle, and that nothing in it is dead."""

import ast
import copy
import inspect
import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from icekeep import errors
from icekeep.errors import ConfigError, ConflictError, IcekeepError, NotFoundError, OptionError, first_line
from icekeep.operations.jobs import JOBS
from icekeep.planning.scan.plan import VERSION_ARGUMENTS
from kit.cases import for_each

TREE = {
    "IcekeepError": ("Exception", 1, "error"),
    "UsageError": ("IcekeepError", 2, "usage"),
    "ConfigError": ("UsageError", 2, "config"),
    "OptionError": ("UsageError", 2, "option"),
    "PropertyError": ("UsageError", 2, "property"),
    "ExpressionError": ("UsageError", 2, "expression"),
    "NotFoundError": ("IcekeepError", 2, "not-found"),
    "InvalidTableError": ("IcekeepError", 1, "invalid-table"),
    "MissingFileError": ("InvalidTableError", 1, "missing-file"),
    "UnsupportedError": ("IcekeepError", 4, "unsupported"),
    "SafetyError": ("IcekeepError", 4, "safety"),
    "TryAgainError": ("IcekeepError", 75, "try-again"),
    "ConflictError": ("TryAgainError", 75, "conflict"),
    "ClaimedError": ("TryAgainError", 75, "claimed"),
    "UnavailableError": ("TryAgainError", 75, "unavailable"),
    "JobFailedError": ("IcekeepError", 1, "job-failed"),
    "OutcomeUnknownError": ("IcekeepError", 5, "outcome-unknown"),
    "IcekeepBug": ("IcekeepError", 1, "bug"),
}
"""Name -> parent, exit status (DESIGN, "The doors"), and kind, which machines know the error by: never to be changed."""

PROPER_NAMES = {"Airflow", "Avro", "Iceberg", "Java", "Parquet", "Python", "Spark"}
CLASSES = {name: item for name, item in vars(errors).items() if inspect.isclass(item) and issubclass(item, Exception)}
LEAVES = sorted(name for name, cls in CLASSES.items() if not cls.__subclasses__())
LIBRARY = Path(errors.__file__).parent


def made(cls: type[IcekeepError]) -> IcekeepError:
    if cls is ConfigError:
        return ConfigError("catalogs.local.type", "is missing", line=3)
    if cls is OptionError:
        return OptionError("min-input-files", given=0, expected="a whole number, 1 or more")
    return cls("cannot do 'it'", location="file:///x", numbers=(1, 2))


def test_the_tree_has_this_shape_and_these_exit_statuses():
    assert {name: (cls.__bases__[0].__name__, cls.exit_status, cls.kind) for name, cls in CLASSES.items()} == TREE


def test_kinds_and_exit_statuses_of_errors():
    kinds = [cls.__dict__.get("kind") for cls in CLASSES.values()]
    assert None not in kinds
    assert len(set(kinds)) == len(kinds) == len(TREE)


def test_the_docstring_draws_the_same_tree():
    drawn = {}
    for line in errors.__doc__.splitlines():
        words = line.replace("|-", " ").replace("`-", " ").replace("|", " ").split()
        if len(words) > 1 and words[0] in TREE and words[1].isdigit():
            drawn[words[0]] = int(words[1])
    assert drawn == {name: status for name, (_, status, _) in TREE.items()}


def test_exit_statuses_are_those_that_a_scheduler_knows():
    assert {cls.exit_status for cls in CLASSES.values()} == {1, 2, 4, 5, 75}
    retried = {name for name, cls in CLASSES.items() if cls.exit_status == 75}
    assert retried == {"TryAgainError", "ClaimedError", "ConflictError", "UnavailableError"}


def test_what_is_not_there_can_be_caught_as_pythons_lookups_are():
    assert issubclass(NotFoundError, LookupError)
    assert str(NotFoundError("there is no table 'x'")) == "there is no table 'x'"


@for_each("travel", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
@for_each("cls", CLASSES.values(), ids=CLASSES)
def test_every_error_survives_pickling(cls, travel):
    error = made(cls)
    found = travel(error)
    assert type(found) is cls
    assert (found.message, found.facts, str(found), found.args) == (
        error.message,
        error.facts,
        str(error),
        error.args,
    )
    assert (found.kind, found.exit_status) == (error.kind, error.exit_status)
    assert vars(found) == vars(error)


def test_the_files_in_the_way_of_a_change():
    error = pickle.loads(pickle.dumps(ConflictError("no", data_files=frozenset({"a"}), attempts=2)))
    assert (error.data_files, error.facts, error.is_outpaced) == (frozenset({"a"}), {"attempts": 2}, True)


def test_errors_of_options_and_configuration_word_themselves():
    assert made(OptionError).message == "option min-input-files is 0; give a whole number, 1 or more"
    assert made(OptionError).facts == {
        "option": "min-input-files",
        "given": "0",
        "expected": "a whole number, 1 or more",
    }
    assert made(ConfigError).message == "configuration key 'catalogs.local.type': is missing"
    assert made(ConfigError).facts == {"key_path": "catalogs.local.type", "line": 3}


@cache
def made_in_library() -> tuple[tuple[str, ast.Call, Path], ...]:
    return tuple(_made_in_library())


def _made_in_library() -> Iterator[tuple[str, ast.Call, Path]]:
    for path in sorted(LIBRARY.rglob("*.py")):
        if path.name != "errors.py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES:
                    yield node.func.id, node, path


@pytest.mark.slow
@for_each("leaf", LEAVES)
def test_every_leaf_is_raised_somewhere(leaf):
    assert leaf in {name for name, _, _ in made_in_library()}


@pytest.mark.slow
def test_no_error_is_raised_that_says_no_more_than_its_family():
    made_names = {name for name, _, _ in made_in_library()}
    assert made_names.isdisjoint({"IcekeepError", "TryAgainError"})


def test_messages_are_one_line_in_lower_case_without_stop():
    checked = 0
    for name, call, path in made_in_library():
        text = call.args[0] if call.args and name not in ("OptionError", "ConfigError") else None
        parts = text.values if isinstance(text, ast.JoinedStr) else [text]
        first, last = parts[0], parts[-1]
        where = f"{path.name}:{call.lineno}"
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            checked += 1
            word = first.value.split(" ")[0]
            assert word in PROPER_NAMES or not (word[:1].isupper() and word[1:].islower()), where
        if isinstance(last, ast.Constant) and isinstance(last.value, str):
            assert not last.value.endswith(".") or last.value.endswith("..."), where
            assert "\n" not in last.value, where
    assert checked > 50


def test_an_argument_that_a_message_begins_with_is_marked_as_one():
    """A command shows its flag in that place."""
    of_jobs = {setting.argument for job in JOBS.values() for setting in job.settings}
    taken = {"approve", "purge", "match", "tables", *VERSION_ARGUMENTS, *of_jobs}
    for _, call, path in made_in_library():
        text = call.args[0] if call.args else None
        first = text.values[0] if isinstance(text, ast.JoinedStr) else text
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            word, _, rest = first.value.partition(" ")
            assert word not in taken or not rest.startswith(("is ", "and ", "needs ")), f"{path.name}:{call.lineno}"


def test_the_first_line_of_a_message_is_one_that_says_something():
    """Spark's parser begins its messages with an empty line."""
    assert first_line(ValueError("\n[PARSE_SYNTAX_ERROR] at 'with'\n\n== SQL ==")) == "[PARSE_SYNTAX_ERROR] at 'with'"
    assert first_line(ValueError("  \n")) == "ValueError"


def test_appended_text_uses_flags_and_survives_pickling():
    error = IcekeepError(f"{errors.argument('spec_id')} is 7")
    error.append(f"give {errors.argument('order')}")
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert (str(one), one.message) == ("spec_id is 7; give order",) * 2
        assert one.worded({"spec_id": "--spec-id", "order": "--order"}) == "--spec-id is 7; give --order"


def test_shown_commands_read_the_last_configuration_in_use():
    first, second = errors.commands_reading(["--config", "a"]), errors.commands_reading(["--config", "b"])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert errors.shown_command("tables") == "icekeep tables --config b"
    second.__exit__(None, None, None)
    assert errors.shown_command("tables") == "icekeep tables"
