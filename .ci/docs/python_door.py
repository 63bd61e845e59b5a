"""How griffe, which reads Python for the site without running it, shows functions that take a request.

`maintenance/requests.py` makes the fields of the request keyword arguments, so the signature is the function's first parameter
and these fields. All names that `icekeep` exports stand in `icekeep/__init__.pyi`, which griffe reads by itself.
"""

from collections.abc import Iterator
from typing import Any

from griffe import Class, Extension, Function, Module, Parameter, ParameterKind, Parameters

_DECORATOR = "takes"
_WITHOUT_NAME = "spark"


class Door(Extension):
    """Gives functions that are decorated with `takes` the arguments that they are called with."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        for function in list(_functions(pkg)):
            request = _request_of(function)
            if request is not None:
                first = next(iter(function.parameters))
                function.parameters = Parameters(first, *_arguments(request))


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
        fields = {
            **fields,
            **{name: one for name, one in cls.attributes.items() if one.annotation and name not in fields},
        }
    named = [one for name, one in fields.items() if name != _WITHOUT_NAME]
    if _WITHOUT_NAME in fields:
        yield _parameter(fields[_WITHOUT_NAME], ParameterKind.positional_or_keyword)
    yield from (_parameter(one, ParameterKind.keyword_only) for one in named)


def _parameter(field: Any, kind: ParameterKind) -> Parameter:
    return Parameter(field.name, annotation=field.annotation, kind=kind, default=field.value)
