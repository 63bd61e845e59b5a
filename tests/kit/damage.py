"""All damage that there is, by the class of the fault that it makes: what else is told beside it, and what `repair` mends."""

from collections.abc import Collection, Iterable, Mapping

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.errors import InvalidTableError
from icekeep.maintenance.check.job import CheckResult, check, check_unreadable
from icekeep.maintenance.repair.job import RepairResult
from icekeep.spec.manifests.structs import DataFile
from kit.choices import Choices
from kit.damager import Damager, Record
from kit.entry_damage import CONTENT_DAMAGE, ENTRY_DAMAGE
from kit.metadata_damage import METADATA_DAMAGE, Damage
from kit.naive_scan import live_entries
from kit.no_spark import no_spark

DAMAGE: Mapping[int, Damage] = {**METADATA_DAMAGE, **ENTRY_DAMAGE, **CONTENT_DAMAGE}

_TOTALS = {138, 215, 233}
IMPLIED: dict[int, set[int]] = {
    107: {110},
    111: {107},
    114: {121},
    119: {208},
    124: {304},
    128: {222, 417},
    136: {101},
    208: {214, 235},
    211: {222},
    212: {*_TOTALS, 417},
    213: _TOTALS,
    214: {416},
    218: {214, 235},
    219: {*_TOTALS, 417},
    226: {405},
    228: {420},
    235: {207, 214},
    236: {417},
    302: {233},
    402: {*_TOTALS, 417},
    415: _TOTALS,
    421: {214},
}
"""What is wrong too where a class's damage is done, and so may be told beside it."""

DANGLING = (214, 235)
MENDABLE = (
    108, 109, 124, 128, 203, 204, 205, 206, 207, 214, 215, 225, 226, 227, 230, 231, 235, 302, 402, 405, 406, 407, 415,
    422,
)  # fmt: skip
"""What is mended with no loss."""

LOSSES = (212, 213, 220, 301, 303, 401, 413, 414)
"""What is mended where the loss is accepted."""

Key = tuple[str, int | None]
"""Which file: its location, and where in it a vector begins."""


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


def lost_keys(before: Table, after: Table, results: Iterable[RepairResult]) -> set[Key]:
    """What was live before a repair and is not after, of the files that are told as lost."""
    told = {path for result in results for mend in result.mended for path in mend.lost_files}
    keys = [{_key(entry.data_file) for entry in live_entries(table)} for table in (before, after)]
    return {key for key in keys[0] - keys[1] if key[0] in told}


def take_out(catalog: Catalog, identifier: Identifier, keys: Collection[Key]) -> None:
    """Take the entries of some files out of their manifests by hand, as nobody does."""

    def change(entries: list[Record]) -> None:
        entries[:] = [e for e in entries if (e["data_file"]["file_path"], _offset(e["data_file"])) not in keys]

    damager = Damager(catalog, identifier, Choices())
    places = [*damager.entries(None)]
    for manifest in {one.manifest for one in places if (one.file["file_path"], _offset(one.file)) in keys}:
        damager.edit_manifest(manifest, change)


def _key(file: DataFile) -> Key:
    return file.file_path, file.content_offset


def _offset(file: Record) -> int | None:
    return file.get("content_offset")
