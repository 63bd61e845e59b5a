"""What docstrings say under `Args:` and `Attributes:` is there, and users are told of every argument."""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import icekeep

ROOT = Path(__file__).parents[2]
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
