"""All damage that there is, by the class of the fault that it makes: what else is told beside it, and what `repair` mends."""

from collections.abc import Mapping

from icekeep.catalog.base import Catalog, Identifier
from icekeep.errors import InvalidTableError
from icekeep.maintenance.checking.job import check, check_unreadable
from icekeep.maintenance.checking.result import CheckResult
from kit.choices import Choices
from kit.damager import Damager
from kit.entry_damage import CONTENT_DAMAGE, ENTRY_DAMAGE
from kit.metadata_damage import METADATA_DAMAGE, Damage
from kit.no_spark import no_spark

DAMAGE: Mapping[int, Damage] = {**METADATA_DAMAGE, **ENTRY_DAMAGE, **CONTENT_DAMAGE}

_TOTALS = {215, 232, 233}
IMPLIED: dict[int, set[int]] = {
    107: {110},
    111: {107},
    114: {121},
    119: {208},
    124: {304},
    128: {222, 417},
    136: {101},
    208: {214},
    211: {222},
    212: _TOTALS,
    213: _TOTALS,
    214: {416},
    218: {214},
    219: {*_TOTALS, 417},
    226: {405},
    228: {420},
    302: {233},
    402: {*_TOTALS, 417},
    415: _TOTALS,
    421: {214},
}
"""What is wrong too where a class's damage is done, and so may be told beside it."""

DANGLING = 214
MENDABLE = (
    108, 109, 124, 128, 203, 204, 205, 206, 207, 214, 215, 225, 226, 227, 230, 231, 302, 402, 405, 406, 407, 415, 422
)  # fmt: skip
"""What is mended with no loss."""

LOSSES = (212, 213, 220, 301, 303)
"""What is mended where the loss is accepted."""


def spoil(catalog: Catalog, identifier: Identifier, seed: int, *numbers: int) -> None:
    """Damage a table in each way; all places follow from the seed. Raises `CannotDamageError` where it has none."""
    for number in numbers:
        DAMAGE[number](Damager(catalog, identifier, Choices(seed * 1000 + number)))


def checked(catalog: Catalog, identifier: Identifier) -> CheckResult:
    """What the job says of a table, down to its rows."""
    try:
        table = catalog.load(identifier)
    except InvalidTableError as error:
        return check_unreadable(catalog, identifier, error, deep=True)
    return check(table, no_spark, deep=True)


def found_in(result: CheckResult) -> set[int]:
    """The numbers of what was found, notices among them."""
    return {one.fault_id for one in (*result.faults, *result.notices)}
