"""The cases of a test: lists of them in one item, how many are generated (`--cases`), and choices that follow from a number."""

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from random import Random as Random  # noqa: TID251 - seeded; tests take it from here
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

Place = TypeVar("Place")

FEW_EXAMPLES = 10
"""The first example of hypothesis is the simplest there is, such as an empty table: one alone shows nothing."""

SQL_BY_DAY = ("sql", pytest.param("filesystem", marks=pytest.mark.nightly))
"""Catalogs for tests of rows and files, which depend little on the catalog: the second is tried in `make nightly` alone."""

SHOWN_WHOLE = 5
"""How many failed cases of one test are printed with their tracebacks; of the others there is a line each."""

_Given: Any = type(pytest.param())
"""A case that a test has given an id."""

_share, _first_seed = 1.0, 0


def set_share(share: float, first_seed: int = 0) -> None:
    """Multiply every number of cases by `share`, and begin generated cases at a seed.

    Call it before test files are imported: decorators are evaluated then.
    """
    global _share, _first_seed
    _share, _first_seed = share, first_seed


def seeds(count: int) -> range:
    """The seeds of generated cases: the same in every run, but for one with `--seed`, which looks elsewhere."""
    return range(_first_seed, _first_seed + count)


def scaled(usual: int, *, least: int = 1) -> int:
    """So many cases where a test alone would take `usual`; `least` is what it needs to be able to fail."""
    return max(least, round(usual * _share))


def cases(usual: int, *, least: int = FEW_EXAMPLES, **others: Any) -> settings:
    """Decorate a property that is checked with `usual` examples; `others` are settings of hypothesis."""
    passed_over = [*others.pop("suppress_health_check", ()), HealthCheck.too_slow]
    return settings(max_examples=scaled(usual, least=min(usual, least)), suppress_health_check=passed_over, **others)


def some_of(places: Iterable[Place], *, least: int, kind: Callable[[Place], Any] = lambda _: None) -> list[Place]:
    """Of all the places where something can go wrong as many as `--cases` asks for; all of them from 1 on.

    They are evenly spread, the first and the last among them, and at least one of each `kind`.
    """
    found = list(places)
    count = scaled(len(found), least=max(least, 2))
    if count >= len(found):
        return found
    kinds = [kind(place) for place in found]
    chosen = {number * (len(found) - 1) // (count - 1) for number in range(count)}
    chosen |= {kinds.index(one) for one in {*kinds} - {kinds[number] for number in chosen}}
    return [found[number] for number in sorted(chosen)]


def chosen_of(count: int, chosen: Sequence[int], others: pytest.MarkDecorator = pytest.mark.nightly) -> list[Any]:
    """Seeds of generated tables: those that differ most at each change; the others have a mark."""
    marked = [pytest.param(_first_seed + seed, marks=others) for seed in range(count) if seed not in chosen]
    return [*(seed for seed in range(count) if seed in chosen), *marked]


def thinned(values: Iterable[Any], every: int, others: pytest.MarkDecorator = pytest.mark.nightly) -> list[Any]:
    """Cases of which every so many, from the first on, is tried at each change; the others have a mark."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=others if number % every else ())
        for number, value in enumerate(values)
    ]


def for_each(
    names: str | Sequence[str], values: Iterable[Any], ids: Callable[[Any], object] = repr
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test that is run with each of the values, as `parametrize` does, in one item that lists all that fail.

    For tests that take a moment and need nothing fresh for each case: a fixture of the test is the same for all of them.
    """
    parameters = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    cases_of = [
        value if isinstance(value, _Given) else pytest.param(*((value,) if len(parameters) == 1 else value))
        for value in values
    ]
    assert not any(case.marks for case in cases_of), "a mark needs an item of its own: use parametrize"

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def in_one_item(*arguments: Any, **fixtures: Any) -> None:
            __tracebackhide__ = True
            assert cases_of, "there is no case"
            failed = []
            for case in cases_of:
                try:
                    test(*arguments, **dict(zip(parameters, case.values, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is printed with the others
                    failed.append((str(case.id or ", ".join(str(ids(value)) for value in case.values)), error))
            if failed:
                raise AssertionError(_listed(failed, len(cases_of)))

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in parameters]
        in_one_item.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return in_one_item

    return decorated


def _listed(failed: Sequence[tuple[str, BaseException]], count: int) -> str:
    lines = [f"{len(failed)} of {count} cases fail"]
    for number, (name, error) in enumerate(failed):
        if number < SHOWN_WHOLE:
            lines += [f"--- {name[:500]}", *traceback.format_exception(error)]
        else:
            lines.append(f"--- {name[:100]}: {str(error).partition(chr(10))[0][:200]}")
    return "\n".join(lines)


class Choices(Random):
    """All choices of one number; any two numbers choose differently, small ones too."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
