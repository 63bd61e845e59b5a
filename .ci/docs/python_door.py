"""How griffe, which reads Python for the site without running it, shows functions that take a request.

`maintenance/jobs.py` makes the fields of the request keyword arguments, so the signature is the function's first parameter
and these fields. All names that `icekeep` exports stand in `icekeep/__init__.pyi`, which griffe reads by itself.

Docstrings of ours tell of several names in one entry where one sentence is about all; griffe knows one name an entry.
"""

import re
from collections.abc import Iterator
from typing import Any

from griffe import Class, Extension, Function, Module, Parameter, ParameterKind, Parameters

_DECORATOR = "takes"
_WITHOUT_NAME = "spark"
_ENTRY = re.compile(r"( {4,})(\w+(?:, \w+)*): ")
_DEEPER = re.compile(r" {5,}\S")


class Door(Extension):
    """Gives functions that are decorated with `takes` the arguments that they are called with."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None and (obj.is_function or obj.is_class):
            obj.docstring.value = _one_name_an_entry(obj.docstring.value, obj.parameters if obj.is_function else ())

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        for function in list(_functions(pkg)):
            request = _request_of(function)
            if request is not None:
                first = next(iter(function.parameters))
                function.parameters = Parameters(first, *_arguments(request))


def _one_name_an_entry(text: str, parameters: Any) -> str:
    """A docstring whose arguments and attributes are told of one by one, those of `**name` with their stars."""
    told: list[str] = []
    names: list[str] = []
    entry: list[str] = []
    is_in_section = False
    for line in [*text.splitlines(), ""]:
        found = _ENTRY.match(line) if is_in_section else None
        if not found and _DEEPER.match(line) and entry:
            entry.append(line)
            continue
        for name in names:
            starred = f"**{name}" if _takes_any(name, parameters) else name
            told += [f"    {starred}: {entry[0]}", *entry[1:]]
        names, entry = ([], []) if found is None else (found[2].split(", "), [line[found.end() :]])
        if not found:
            told.append(line)
            is_in_section = line.strip() in ("Args:", "Attributes:")
    return "\n".join(told[:-1])


def _takes_any(name: str, parameters: Any) -> bool:
    return any(one.name.lstrip("*") == name and one.kind is ParameterKind.var_keyword for one in parameters)


def _functions(module: Module) -> Iterator[Function]:
    for member in module.members.values():
        if member.is_alias:
            continue
        if isinstance(member, Module):
            yield from _functions(member)
        elif isinstance(member, Function):
            yield member


def _request_of(function: Function) -> Class | None:
    """The class that `takes` is given; `None` where the function is not decorated so."""
    for decorator in function.decorators:
        value: Any = decorator.value
        if getattr(value, "canonical_path", "").endswith(f".{_DECORATOR}") or str(value).startswith(f"{_DECORATOR}("):
            name = str(value.arguments[0])
            found = function.module[name]
            return found.final_target if found.is_alias else found
    return None


def _arguments(request: Class) -> Iterator[Parameter]:
    """The fields, those of the class before those that it inherits; all but the session by their names."""
    fields: dict[str, Any] = {}
    for cls in (request, *request.mro()):
        for name, one in cls.members.items():
            if one.is_attribute and one.annotation:
                fields.setdefault(name, one)
    named = [one for name, one in fields.items() if name != _WITHOUT_NAME]
    if _WITHOUT_NAME in fields:
        yield _parameter(fields[_WITHOUT_NAME], ParameterKind.positional_or_keyword)
    yield from (_parameter(one, ParameterKind.keyword_only) for one in named)


def _parameter(field: Any, kind: ParameterKind) -> Parameter:
    return Parameter(field.name, annotation=field.annotation, kind=kind, default=field.value)
