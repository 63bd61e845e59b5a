"""What docstrings say under `Args:` and `Attributes:` is there, and users are told of every argument."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import icekeep

ROOT = Path(__file__).parents[2]
FILES = [path for room in ("lib", "tests") for path in sorted((ROOT / room).rglob("*.py"))]
ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): ")
SAID_BY_TYPE = {"table", "catalog", "spark", "listener"}
"""Arguments that mean the same wherever they are taken."""

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


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


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in FILES}


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def name_of(node: ast.expr | None) -> str:
    """The last name of `a.B`, `B[T]` or `B`."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    more = [node.args.vararg, node.args.kwarg]
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *filter(None, more)]


def fields(node: ast.ClassDef) -> set[str]:
    """What an object has, by its class and by those that it inherits from."""
    found = {target.id for item in node.body for target in targets(item) if isinstance(target, ast.Name)}
    for item in ast.walk(node):
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            found |= {argument.arg for argument in arguments(item)}
        if isinstance(item, ast.FunctionDef):
            found.add(item.name)
        if isinstance(item, ast.Attribute) and name_of(item.value) == "self":
            found.add(item.attr)
    for base in node.bases:
        for above in classes().get(name_of(base), []):
            found |= fields(above) if above is not node else set()
    return found


def targets(item: ast.stmt) -> list[ast.expr]:
    return [item.target] if isinstance(item, ast.AnnAssign) else item.targets if isinstance(item, ast.Assign) else []


def known(node: Documented) -> set[str]:
    """The names that a docstring may tell of; a request's fields are arguments of what `takes` makes of a function."""
    if isinstance(node, ast.ClassDef):
        return fields(node)
    found = {argument.arg for argument in arguments(node)}
    for argument in arguments(node):
        if argument.arg == "request":
            found = found.union(*map(fields, classes().get(name_of(argument.annotation), [])))
    return found


def untrue(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (doc := ast.get_docstring(node)):
            for title in ("Args", "Attributes"):
                for name in entries(doc, title):
                    if name not in known(node):
                        yield f"line {node.lineno}, {node.name}: {name}"


@pytest.mark.slow
@pytest.mark.parametrize("room", ["lib", "tests"])
def test_a_docstring_tells_of_nothing_that_is_not_there(room: str) -> None:
    found = {path: list(untrue(tree)) for path, tree in trees().items() if path.is_relative_to(ROOT / room)}
    assert len(found) > 100
    assert {str(path): names for path, names in found.items() if names} == {}


@pytest.mark.slow
def test_a_test_that_a_docstring_names_is_there() -> None:
    nodes = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, Documented | ast.Module)]
    named = {name for node in nodes for name in re.findall(r"`(test_\w+)`", ast.get_docstring(node) or "")}
    assert len(named) > 1
    assert named <= {path.stem for path in FILES} | {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


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
    assert list(untrue(tree)) == ["line 1, f: old", "line 13, C: c"]
