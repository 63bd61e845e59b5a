"""What writers do, in the words of the model: what they are told, what may differ after it, and of what kind rows are."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.metadata import TableMetadata

if TYPE_CHECKING:
    from simulation.model import Model

KINDS = ("a", "b", "c")
"""What the column `kind` of a table holds, by which some tables are partitioned."""


def kind_of(row: int) -> str:
    """The kind of a row."""
    return KINDS[row // 10 % len(KINDS)]


def kinds_of(rows: Iterable[int]) -> list[str]:
    """The kinds of rows, sorted."""
    return sorted(set(map(kind_of, rows)))


FINDINGS = (IcekeepBug, InvalidTableError)
NOTICED = "E1"
"""What the library itself finds: that the table is damaged, or the library broken."""

NOT_ICEKEEPS = "E2"
"""An error that is none of icekeep's, such as a `TypeError`."""


class Violation(AssertionError):
    """An invariant does not hold; `invariant` is its letter and number, as `model` has them."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant, self.message = invariant, message

    def __reduce__(self) -> tuple[type["Violation"], tuple[str, str]]:
        return type(self), (self.invariant, self.message)


class Told(Enum):
    """What a writer was told of its operation."""

    NOTHING = "nothing yet"
    COMMITTED = "committed"
    UNCHANGED = "nothing to change"
    FAILED = "proven not to have landed"
    UNKNOWN = "unknown"
    CRASHED = "the writer crashed"
    INTERRUPTED = "the writer was interrupted"


class Effect(NamedTuple):
    """What an operation does to the live files of one branch, and to its rows beside that.

    `deleted_rows` go by delete files. A compaction leaves the rows as they are (`same_rows`), and where others have deleted
    some of what it replaces it may bring some of the delete files of `may_carry`, for files that it adds. Added files are
    given `sequence_number`, or that of `numbers` where they have one, or the snapshot's.
    """

    branch: str
    removed: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()
    sequence_number: int | None = None
    same_rows: bool = False
    deleted_rows: frozenset[int] = frozenset()
    may_carry: frozenset[str] = frozenset()
    numbers: Mapping[str, int] = {}


class Doing(Protocol):
    """An operation as the model sees it."""

    name: str
    told: Told
    landings: int
    met_faults: bool
    unrecognised: bool
    outrun: bool
    began_ms: int
    moves_refs: frozenset[str]
    changes: frozenset[str]
    expires: bool
    restores: bool
    left: frozenset[str]

    def effect(self, model: "Model", before: TableMetadata, after: TableMetadata) -> Effect | None:
        """What may differ, of a landing on top of `before`."""

    def check(self, model: "Model", before: TableMetadata, after: TableMetadata) -> None:
        """What else must hold of it."""

    def deletes(self, model: "Model", location: str) -> None:
        """What must hold of a file that it is about to delete, beside what holds of all."""
