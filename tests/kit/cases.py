"""How many generated cases a test runs: each test says a number of its own, and `--cases` multiplies all of them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

Place = TypeVar("Place")

FEW_EXAMPLES = 10
"""The first example of hypothesis is the simplest there is, such as an empty table: one alone shows nothing."""

SQL_BY_DAY = ("sql", pytest.param("filesystem", marks=pytest.mark.nightly))
"""Catalogs for tests of rows and files, which depend little on the catalog: the second is tried in `make nightly` alone."""

_share = 1.0


def set_share(share: float) -> None:
    """Multiply every number of cases by this. Call it before test files are imported: decorators are evaluated then."""
    global _share
    _share = share


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


def chosen_of(count: int, chosen: Sequence[int]) -> list[Any]:
    """Seeds of generated tables: those that differ most always, the others in `make nightly` alone."""
    return [seed if seed in chosen else pytest.param(seed, marks=pytest.mark.nightly) for seed in range(count)]
