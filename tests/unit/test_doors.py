import inspect
import re
import subprocess
import sys
import typing
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

import icekeep
from icekeep import errors, events
from icekeep.cli import SEAMS
from icekeep.errors import UsageError
from icekeep.operations.command_specs import COMMANDS, CommandScope
from icekeep.operations.jobs import JOBS, POLICY_JOBS, resolve
from icekeep.planning.scan.plan import VERSION_ARGUMENTS
from kit.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
LIB = ROOT / "lib"


def test_the_names_of_the_door_are_sorted():
    assert icekeep.__all__ == sorted(icekeep.__all__)
    assert dir(icekeep) == icekeep.__all__


@for_each("name", icekeep.__all__)
def test_every_name_of_the_door_is_found_and_documented(name):
    value = getattr(icekeep, name)
    assert inspect.getdoc(value)
    assert value.__module__.startswith("icekeep.")


def test_what_a_user_meets_is_behind_the_door():
    errors_and_events = {
        name
        for module in (errors, events)
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    returned = set()
    for job in JOBS.values():
        for text in filter(None, (job.run, job.plan)):
            returned |= {*re.findall(r"\w+", str(inspect.signature(resolve(text)).return_annotation))} - {"icekeep"}
    results = {name for name in returned if name.endswith(("Result", "Plan", "Preview", "Explanation"))}
    options = {text.rpartition(":")[2] for job in JOBS.values() if (text := job.options)}
    assert len(results) > 12
    assert errors_and_events | results | options <= {*icekeep.__all__}


def test_the_name_of_a_whole_number_in_a_result_ends_with_its_unit():
    """Of a time, which it is: how long a run took is `elapsed_ms` everywhere."""
    named = [hint for document in documents() for hint in typing.get_type_hints(document).items()]
    numbers = {name for name, kind in named if int in (kind, *typing.get_args(kind))}
    assert len(numbers) > 80
    without = {name for name in numbers if not re.search("(_count|(^|_)bytes|_ms|_id|sequence_number)$", name)}
    # These are no quantities, say in words what they count, or have numbers under such names.
    assert without == {"exit_status", "rank", "failures_in_a_row", "cut_offs_in_a_row", "figures"}
    times = {name.removesuffix("_ms").rpartition("_")[2] for name in numbers if name.endswith("_ms")}
    assert times == {
        "elapsed",
        "cpu",
        "after",
        "until",
        "created",
        "timestamp",
        "previous",
        "looked",
        "estimate",
    }


def documents():
    """What jobs return, and the parts of it."""
    left = [value for name in icekeep.__all__ if inspect.isclass(value := getattr(icekeep, name)) and is_returned(name)]
    found = set()
    while left:
        if (document := left.pop()) not in found and issubclass(document, msgspec.Struct):
            found.add(document)
            left += [part for kind in typing.get_type_hints(document).values() for part in classes_in(kind)]
    return found


def is_returned(name):
    return name.endswith(("Result", "Plan", "Explanation")) or name in ("Restorable", "HistoryEntry")


def classes_in(kind):
    """The classes that an annotation is made of."""
    parts = typing.get_args(kind)
    return [kind] if inspect.isclass(kind) and not parts else [one for part in parts for one in classes_in(part)]


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'icekeep' has no attribute 'nothing'"):
        _ = icekeep.nothing


@pytest.mark.process
def test_opening_the_door_loads_nothing_behind_it():
    code = "import sys, icekeep; print(*(m for m in sys.modules if m.startswith('icekeep')))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(LIB)}, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == {"icekeep", "icekeep.version"}


def test_nothing_of_ours_imports_through_the_door():
    for path in (LIB / "icekeep").rglob("*.py"):
        assert not re.search(r"^from icekeep import (?!errors$)", path.read_text(), re.MULTILINE), path


def test_every_import_string_leads_somewhere():
    strings = [
        text
        for job in JOBS.values()
        for text in (
            job.run,
            job.plan,
            job.exact,
            job.options,
            job.check,
            job.unreadable,
            job.plan_unreadable,
            job.for_people,
        )
        if text is not None
    ]
    strings += [getattr(SEAMS, name) for name in SEAMS.__struct_fields__]
    assert len(strings) > 10
    for text in strings:
        assert callable(resolve(text)), text


@for_each("job", sorted(JOBS))
def test_a_job_s_function_takes_the_job_s_settings(job):
    extras = {"listener"} if JOBS[job].takes_listener else set()
    extras |= {"saved"} if JOBS[job].exact is not None else set()
    for text in (JOBS[job].plan, JOBS[job].exact, JOBS[job].run):
        if text is not None:
            parameters = inspect.signature(resolve(text)).parameters
            keywords = {name for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
            if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
                keywords |= {*VERSION_ARGUMENTS}
            assert keywords == {setting.argument for setting in JOBS[job].settings} | extras


def test_a_plan_is_asked_for_by_the_name_and_with_the_arguments_of_the_job():
    plans = [name for name in icekeep.__all__ if name.startswith("plan_") and name not in ("plan_scan", "plan_tasks")]
    for name in plans:
        run, plan = (getattr(icekeep, each) for each in (name.removeprefix("plan_"), name))
        assert inspect.signature(run).parameters == inspect.signature(plan).parameters
    assert {*plans} >= {job.plan.rpartition(":")[2] for job in JOBS.values() if job.plan is not None}


@for_each("name", icekeep.__all__)
def test_help_shows_no_object_by_its_address(name):
    value = getattr(icekeep, name)
    if inspect.isfunction(value):
        assert " at 0x" not in str(inspect.signature(value))


def test_a_job_that_changes_a_table_has_its_arguments_checked_before_it_begins():
    assert {name for name, job in JOBS.items() if job.plan is not None} == {n for n, job in JOBS.items() if job.check}


def test_every_job_that_changes_a_table_hands_out_its_real_plan():
    assert {name for name, job in JOBS.items() if job.plan is not None} == {n for n, job in JOBS.items() if job.exact}


def test_every_job_has_a_script_of_its_own_and_no_script_is_without_a_job():
    scripts = {path.stem: path.read_text() for path in (ROOT / "jobs").glob("*.py")}
    starting_spark = {
        name
        for name, verb in COMMANDS.items()
        if verb.scope in (CommandScope.CATALOGS, CommandScope.FLEET, CommandScope.PLAN)
    }
    assert scripts.keys() == JOBS.keys() | starting_spark
    assert starting_spark == {"apply", "doctor", "report", "maintain"}
    for job, text in scripts.items():
        assert f'main(job="{job}")' in text
        assert len(text.splitlines()) <= 15


def test_a_policy_may_ask_for_every_job_that_changes_a_table_but_not_to_drop_or_repair_it_and_for_the_check():
    changing = {name for name, job in JOBS.items() if job.plan is not None}
    assert set(POLICY_JOBS) == changing - {"drop", "repair"} | {"check"}


def test_the_package_says_its_version():
    assert icekeep.__version__ == version("icekeep")


WITH_SPARK = [
    name
    for name in icekeep.__all__
    if inspect.isfunction(value := getattr(icekeep, name))
    and "spark" in inspect.signature(value).parameters
    and inspect.signature(value).parameters["spark"].default is None
]


@for_each("name", WITH_SPARK)
def test_a_filter_in_the_place_of_the_session_is_refused_before_anything_is_done(name):
    """Else `expire_snapshots(table, "30d")` would go by the default age, since a small table needs no session."""
    function = getattr(icekeep, name)
    before = [None] * list(inspect.signature(function).parameters).index("spark")
    with pytest.raises(UsageError, match=r"is no Spark session|is no file"):
        function(*before, "id > 5")


def test_the_functions_that_take_a_session_are_many():
    assert {"compact", "expire_snapshots", "explain_file", "scan", "drop_table"} < {*WITH_SPARK}
