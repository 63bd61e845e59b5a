"""Examples of plain functions, one a line, in a text file beside the tests: `check_examples` holds all of them.

    # A head says what the lines below it show.
    decimal(9, 2) == parse_type("decimal(9, 2)")
    parse_type("decimal(9)")  !! InvalidTableError: a pattern that its message has, or nothing

A line is an expression that is true, or one that raises; a statement, such as an assignment, helps those below it. What
is indented goes on with the line before.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from icekeep import errors

UNIT = Path(__file__).parents[1] / "unit"
RAISES = "  !! "
_STATEMENT = re.compile(r"\w+ = |from |import ")


def check_examples(file: str, *sources: ModuleType | Mapping[str, Any]) -> None:
    """Hold the examples of a file below `tests/unit`, with the names of modules and others; the later ones win."""
    __tracebackhide__ = True
    names: dict[str, Any] = {**vars(errors)}
    for source in sources:
        names |= vars(source) if isinstance(source, ModuleType) else source
    lines = _lines((UNIT / file).read_text("utf-8"))
    assert lines, f"{file} has no example"
    failed = [f"{file}:{number}: {line}\n    {problem}" for number, line in lines if (problem := _problem(line, names))]
    assert not failed, f"{len(failed)} of {len(lines)} examples fail\n" + "\n".join(failed)


def _lines(text: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(" "):
            lines[-1] = (lines[-1][0], f"{lines[-1][1]} {line.strip()}")
        elif line and not line.startswith("#"):
            lines.append((number, line))
    return lines


def _problem(line: str, names: dict[str, Any]) -> str:
    """What is wrong with an example; "" if nothing is."""
    expression, raises, expected = line.partition(RAISES)
    kind, _, pattern = expected.partition(": ")
    try:
        if _STATEMENT.match(expression):
            exec(expression, names)
            value = True
        else:
            value = eval(expression, names)
        if raises:
            return f"raises nothing and gives {value!r}"
        return "" if value else _sides(expression, names)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is printed with the others
        if raises and isinstance(error, eval(kind, names)) and re.search(pattern, str(error)):
            return ""
        return f"{type(error).__name__}: {error}"


def _sides(expression: str, names: dict[str, Any]) -> str:
    """What a comparison that is false compares."""
    for operator in (" == ", " != ", " in ", " < ", " is "):
        left, found, right = expression.partition(operator)
        try:
            if found:
                return f"{eval(left, names)!r}{operator}{eval(right, names)!r}"
        except SyntaxError:
            continue
    return "is false"
