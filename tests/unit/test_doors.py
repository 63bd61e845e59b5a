import ast
import doctest
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import icekeep
from icekeep import errors, events
from icekeep.cli import SEAMS
from icekeep.decoding import from_json, from_msgpack, from_plain
from icekeep.errors import UsageError
from icekeep.names import (
    FULL_NAME,
    NAME_IN_CATALOG,
    FullName,
    catalog_of,
    join_parts,
    name_of_form,
    split_name,
    without_catalog,
    written_parts,
)
from icekeep.operations.command_specs import COMMANDS, CommandScope
from icekeep.operations.jobs import JOBS, POLICY_JOBS, resolve
from icekeep.planning.scan.plan import VERSION_ARGUMENTS
from kit.cases import cases, for_each
from kit.shell import ROOT

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


def test_whole_numbers_in_results_are_named_with_unit():
    """Of a time, which it is: how long a run took is `elapsed_ms` everywhere."""
    named = [hint for document in documents() for hint in typing.get_type_hints(document).items()]
    numbers = {name for name, kind in named if int in (kind, *typing.get_args(kind))}
    assert len(numbers) > 80
    without = {name for name in numbers if not re.search("(_count|(^|_)bytes|_ms|_id|sequence_number)$", name)}
    # These are no quantities, say in words what they count, or have numbers under such names.
    assert without == {
        *("exit_status", "rank", "failures_in_a_row", "cut_offs_in_a_row", "figures"),
        *("format_version", "previous_format_version"),
    }
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
        "lag",
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


def test_plan_functions_match_names_and_arguments_of_jobs():
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


def test_a_job_that_changes_a_table_checks_its_arguments():
    assert {name for name, job in JOBS.items() if job.plan is not None} == {n for n, job in JOBS.items() if job.check}


def test_every_job_that_changes_a_table_hands_out_its_real_plan():
    assert {name for name, job in JOBS.items() if job.plan is not None} == {n for n, job in JOBS.items() if job.exact}


def test_every_job_has_one_script_and_every_script_a_job():
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


def test_jobs_that_a_policy_may_ask_for():
    changing = {name for name, job in JOBS.items() if job.plan is not None}
    assert set(POLICY_JOBS) == changing - {"drop", "repair", "upgrade"} | {"check"}


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
def test_a_filter_in_the_place_of_the_session(name):
    """Else `expire_snapshots(table, "30d")` would go by the default age, since a small table needs no session."""
    function = getattr(icekeep, name)
    before = [None] * list(inspect.signature(function).parameters).index("spark")
    with pytest.raises(UsageError, match=r"is no Spark session|is no file"):
        function(*before, "id > 5")


def test_the_functions_that_take_a_session_are_many():
    assert {"compact", "expire_snapshots", "explain_file", "scan", "drop_table"} < {*WITH_SPARK}


PARTS = st.lists(st.text('ab.`"* \n', max_size=5) | st.text(max_size=5), min_size=1, max_size=4).map(tuple)


@cases(600)
@given(PARTS)
@example(("",))
@example(("`",))
@example(("db", "we.b"))
def test_what_is_printed_is_read_as_the_same_parts(parts):
    assert split_name(join_parts(parts)) == parts


@cases(600)
@given(st.text('ab.`"', max_size=8))
def test_each_spelling_of_a_name_has_the_same_parts(text):
    try:
        parts = split_name(text)
    except UsageError:
        return
    assert split_name(join_parts(parts)) == parts
    assert ".".join(written_parts(text)) == text
    in_double_quotes = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
    assert join_parts(split_name(in_double_quotes)) == join_parts(parts)


@for_each(
    "text, parts",
    [
        ("db.events", ("db", "events")),
        ("db.`table:with.special:chars`", ("db", "table:with.special:chars")),
        ('db."table:with.special:chars"', ("db", "table:with.special:chars")),
        ("`a.b`.`say ``hi```", ("a.b", "say `hi`")),
        ('db."a""b"', ("db", 'a"b')),
        ("db.it`s", ("db", "it`s")),
        ("db. blank ", ("db", " blank ")),
        ("db..t", ("db", "", "t")),
    ],
)
def test_parts_are_read_with_the_quotes_of_spark_and_of_trino(text, parts):
    assert split_name(text) == parts


@for_each(
    "parts, text",
    [
        (("db", "events"), "db.events"),
        (("db", "größe 10%:x"), "db.größe 10%:x"),
        (("db", "it`s"), "db.it`s"),
        (("db", "`s"), "db.```s`"),
        (("a.b", "t"), "`a.b`.t"),
        (("db", "a*"), "db.`a*`"),
        (("db", " x"), "db.` x`"),
    ],
)
def test_only_what_needs_quotes_has_them(parts, text):
    assert join_parts(parts) == text


@for_each(
    "text, problem",
    [
        ("db.`events", "the quote ` in 'db.`events' is not closed; a quote within a name is doubled"),
        ('"db', "the quote \" in '\"db' is not closed; a quote within a name is doubled"),
        ("db.`a`b", "'b' follows a quote in 'db.`a`b'; put the whole part in quotes"),
    ],
)
def test_unbalanced_quotes_are_refused_with_their_place(text, problem):
    with pytest.raises(UsageError) as refused:
        split_name(text)
    assert refused.value.message == problem


@for_each(
    "text, form, name",
    [
        ('lake.db."we.b"', FULL_NAME, "lake.db.`we.b`"),
        ("`lake`.`db`.`t`", FULL_NAME, "lake.db.t"),
        ("db.`a.b`", FULL_NAME, None),
        ("db.`a.b`", NAME_IN_CATALOG, "db.`a.b`"),
        ("`db.events`", NAME_IN_CATALOG, None),
        ("db.", NAME_IN_CATALOG, None),
        ("db.``", NAME_IN_CATALOG, None),
        ("db. t", NAME_IN_CATALOG, None),
        ("db.` t`", NAME_IN_CATALOG, "db.` t`"),
        ("db.`t", NAME_IN_CATALOG, None),
        ("db.a\nb", NAME_IN_CATALOG, None),
    ],
)
def test_a_name_has_the_parts_of_its_form(text, form, name):
    assert name_of_form(text, form) == name


def test_a_full_name_is_taken_apart():
    assert FullName.parse("lake.`a.b`.c.`d.e`") == ("lake", "`a.b`.c", "d.e")
    assert (catalog_of("`la.ke`.db.t"), without_catalog('lake.db."we.b"')) == ("la.ke", 'db."we.b"')
    with pytest.raises(UsageError, match=r"'lake\.`db\.t`' is no full name of a table; give CATALOG\.NAMESPACE\.TABLE"):
        FullName.parse("lake.`db.t`")


DECODERS = {"decode", "convert", "Decoder"}


class Inner(msgspec.Struct, frozen=True):
    """What another value holds."""

    number: int


class Outer(msgspec.Struct, frozen=True):
    """A value of values."""

    inner: Inner
    by_name: dict[str, Inner] = {}


WHOLE = Outer(Inner(1), {"a": Inner(2)})


def test_each_way_gives_the_value():
    assert from_json(msgspec.json.encode(WHOLE), Outer) == WHOLE
    assert from_msgpack(msgspec.msgpack.encode(WHOLE), Outer) == WHOLE
    assert from_plain(msgspec.to_builtins(WHOLE), Outer) == WHOLE
    assert from_json(b"[1]", tuple[int, ...]) == (1,)
    assert from_json(b'"a"', int | str) == "a"
    assert from_plain("7", int, strict=False) == 7
    assert from_msgpack(msgspec.msgpack.encode(3), complex, lambda _, given: complex(given)) == 3 + 0j


@for_each(
    "wrong",
    [lambda: from_json(b"{}", Outer), lambda: from_msgpack(b"\x80", Outer), lambda: from_plain({"inner": 1}, Outer)],
)
def test_what_is_no_such_value_is_an_error(wrong):
    with pytest.raises(msgspec.ValidationError):
        wrong()


MANY_THREADS = """
import sys, threading
import msgspec
from icekeep.decoding import from_json, from_msgpack, from_plain
sys.setswitchinterval(1e-6)
data = {"x": {"a": 1, "b": ["c"]}, "y": {}}
ways = (
    lambda wanted: from_json(msgspec.json.encode(data), wanted),
    lambda wanted: from_msgpack(msgspec.msgpack.encode(data), wanted),
    lambda wanted: from_plain(data, wanted),
)
for _ in range(int(sys.argv[1])):
    inner = msgspec.defstruct("Inner", [("a", int), ("b", list[str])])
    outer = msgspec.defstruct("Outer", [("x", inner), ("y", dict[str, inner])])
    barrier = threading.Barrier(4)

    def use(number):
        barrier.wait()
        assert ways[number % 3](outer).x.a == 1

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("alive")
"""


@pytest.mark.process
def test_a_type_is_first_used_by_many_threads_at_once():
    """By msgspec itself it kills the process after some sixty types at the latest."""
    done = subprocess.run([sys.executable, "-c", MANY_THREADS, "120"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_nobody_else_gives_msgspec_a_type():
    """A decoding call without a type looks at none."""
    found = []
    for path in sorted(LIB.rglob("*.py")):
        if path.name == "decoding.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("msgspec."):
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            is_typed = (
                name in ("convert", "Decoder") or len(node.args) > 1 or any(k.arg == "type" for k in node.keywords)
            )
            if name in DECODERS and is_typed:
                found.append(f"{path.relative_to(LIB)}:{node.lineno}: {ast.unparse(node.func)}")
    assert found == []


FILES = [path for room in ("lib", "tests") for path in sorted((ROOT / room).rglob("*.py"))]
ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): ")
SAID_BY_TYPE = {"table", "catalog", "spark", "listener"}
"""Arguments that mean the same wherever they are taken."""


def entries(doc: str, title: str) -> list[str]:
    """The names that a section of a docstring tells of; a line that is none is told as it is."""
    lines = inspect.cleandoc(doc).splitlines()
    section = lines[lines.index(f"{title}:") + 1 :] if f"{title}:" in lines else []
    found: list[str] = []
    depth = None
    for line in filter(str.strip, section):
        own = len(line) - len(line.lstrip())
        depth = own if depth is None else depth
        if own < depth:
            break
        if own == depth:
            entry = ENTRY.match(line.lstrip())
            found += [name.lstrip("*") for name in entry[1].split(", ")] if entry else [line]
    return found


class Documented(NamedTuple):
    """A module, class or function, as far as docstrings tell of it: trees of all files would fill the memory of later tests."""

    path: Path
    line: int
    name: str
    doc: str
    names: frozenset[str]
    """Its arguments, or its fields and methods."""
    related: tuple[str, ...]
    """The bases of a class; the type of a function's `request`, whose fields are arguments of what `takes` makes of it."""
    is_class: bool


def name_of(node: ast.expr | None) -> str:
    """The last name of `a.B`, `B[T]` or `B`."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    more = [node.args.vararg, node.args.kwarg]
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *filter(None, more)]


def targets(item: ast.stmt) -> list[ast.expr]:
    return [item.target] if isinstance(item, ast.AnnAssign) else item.targets if isinstance(item, ast.Assign) else []


def fields(node: ast.ClassDef) -> set[str]:
    """What the class itself gives an object."""
    found = {target.id for item in node.body for target in targets(item) if isinstance(target, ast.Name)}
    for item in ast.walk(node):
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            found |= {argument.arg for argument in arguments(item)}
        if isinstance(item, ast.FunctionDef):
            found.add(item.name)
        if isinstance(item, ast.Attribute) and name_of(item.value) == "self":
            found.add(item.attr)
    return found


def documented(path: Path, tree: ast.Module) -> Iterator[Documented]:
    yield Documented(path, 0, path.stem, ast.get_docstring(tree) or "", frozenset(), (), False)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names, related = fields(node), tuple(map(name_of, node.bases))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {argument.arg for argument in arguments(node)}
            related = tuple(name_of(one.annotation) for one in arguments(node) if one.arg == "request")
        else:
            continue
        doc = ast.get_docstring(node) or ""
        yield Documented(path, node.lineno, node.name, doc, frozenset(names), related, isinstance(node, ast.ClassDef))


@cache
def everything() -> list[Documented]:
    return [one for path in FILES for one in documented(path, ast.parse(path.read_text("utf-8")))]


def known(one: Documented, classes: Mapping[str, list[Documented]]) -> frozenset[str]:
    """The names that a docstring may tell of."""
    above = (known(base, classes) for name in one.related for base in classes.get(name, []) if base is not one)
    return one.names.union(*above)


def untrue(found: Iterable[Documented], classes: Mapping[str, list[Documented]]) -> Iterator[str]:
    for one in found:
        names = entries(one.doc, "Args") + entries(one.doc, "Attributes")
        if names and (gone := [name for name in names if name not in known(one, classes)]):
            yield f"{one.path}, line {one.line}, {one.name}: {', '.join(gone)}"


@pytest.mark.slow
def test_a_docstring_tells_of_nothing_that_is_not_there() -> None:
    classes: dict[str, list[Documented]] = {}
    for one in everything():
        if one.is_class:
            classes.setdefault(one.name, []).append(one)
    assert len(everything()) > 5_000
    assert list(untrue(everything(), classes)) == []


@pytest.mark.slow
def test_a_test_that_a_docstring_names_is_there() -> None:
    named = {name for one in everything() for name in re.findall(r"`(test_\w+)`", one.doc)}
    assert len(named) > 1
    assert named <= {one.name for one in everything()}


def test_a_public_function_tells_of_each_argument() -> None:
    """Of those whose docstrings tell of arguments; the others say it in a sentence."""
    untold, count = {}, 0
    for name in icekeep.__all__:
        value: Any = getattr(icekeep, name)
        if inspect.isfunction(value) and (told := entries(value.__doc__ or "", "Args")):
            count += 1
            untold[name] = {*inspect.signature(value).parameters} - {*told} - SAID_BY_TYPE
    assert count > 20
    assert {name: names for name, names in untold.items() if names} == {}


def test_a_name_that_is_gone_is_seen() -> None:
    doc = "Do.\n\n    Args:\n        a, old: x,\n            y: z\n        *b: w\n\n    Raises:\n        Other: v\n    "
    tree = ast.parse(f'def f(a, *b):\n    """{doc}"""\n\nclass C:\n    """Attributes:\n        c: x\n    """')
    found = [*documented(Path("t.py"), tree)]
    assert list(untrue(found, {})) == ["t.py, line 1, f: old", "t.py, line 13, C: c"]


MODULES = sorted(
    ".".join(path.relative_to(LIB).with_suffix("").parts).removesuffix(".__init__")
    for path in LIB.rglob("*.py")
    if ">>>" in path.read_text("utf-8")
)


@for_each("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for examples in doctest.DocTestFinder().find(import_module(name), name):
        runner.run(examples, out=said.append)
    assert runner.tries, "there are examples"
    assert not runner.failures, "".join(said)


DESIGN = ROOT / "docs" / "design"
TEXT = (DESIGN / "README.md").read_text()
PATHS = sorted({*re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", TEXT)} - {"jobs/", "commit.retry"})
RECORDS = sorted(path.name for path in (DESIGN / "decisions").glob("[0-9]*.md"))


def test_there_are_paths_and_decisions():
    assert len(PATHS) > 20
    assert len(RECORDS) > 10


@for_each("path", PATHS)
def test_a_path_that_the_design_names_is_there(path):
    lib = ROOT / "lib" / "icekeep"
    assert any((room / path).exists() for room in (lib, lib / "formats", lib / "planning", ROOT))


@for_each("name", RECORDS)
def test_a_decision_says_why_what_and_what_follows_and_is_listed(name):
    text = (DESIGN / "decisions" / name).read_text()
    assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequence"))
    assert f"({name})" in (DESIGN / "decisions" / "README.md").read_text()
    for path in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text):
        assert (ROOT / "lib" / "icekeep" / path).is_file()
