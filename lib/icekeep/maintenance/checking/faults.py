"""What a fault is: a class of faults with a number that never changes its meaning, and one fault of a class, somewhere."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

MAX_EXAMPLES = 20
"""So many faults of a class are told one by one where nobody asks for all."""

MAX_GAPS = 200


class FaultClass(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fault.

    Attributes:
        number: of three digits; the first is the level (1 metadata, 2 manifest lists and manifests, 3 files, 4 content).
        name: in lower case, with dashes.
        rule: what must hold, by the spec.
        readers: what a reader gets wrong while it does not hold.
        mend: what an operator can do about it.
        is_notice: no reader gets a wrong row by it; it is told, and the table counts as sound all the same.
    """

    number: int
    name: str
    rule: str
    readers: str
    mend: str
    is_notice: bool = False


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault.

    Attributes:
        number: of its class.
        where: the location of the file that has it, or the part of the metadata, such as "ref 'main'".
        detail: what is wrong there, in one sentence without a full stop.
        snapshot_id: the oldest snapshot of the table in which it is seen; `None` where it is of no snapshot.
        facts: the same for machines: numbers, texts and lists of these.
    """

    number: int
    where: str
    detail: str
    snapshot_id: int | None = None
    facts: Mapping[str, Any] = {}


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was not checked, and why: nothing is said to be sound that was not looked at."""

    what: str
    why: str


class Tally:
    """Faults as they are found: each class is counted, and of each the first are kept by place; it is pickled and merged.

    Args:
        whole: numbers of classes of which every fault is kept.

    Attributes:
        unread_manifests: locations of those whose entries could not be read; faults of their files may not be told of them.
    """

    def __init__(self, whole: Iterable[int] = ()) -> None:
        self.whole = frozenset(whole)
        self.counts: dict[int, int] = {}
        self.gaps_count = 0
        self.unread_manifests: set[str] = set()
        self._faults: dict[int, list[Fault]] = {}
        self._gaps: list[Gap] = []

    def add(self, fault: Fault) -> None:
        """Count a fault, and keep it if there is room."""
        self.counts[fault.number] = self.counts.get(fault.number, 0) + 1
        self._keep(fault.number, [fault])

    def gap(self, what: str, why: str) -> None:
        """Note what could not be checked."""
        self.gaps_count += 1
        if len(self._gaps) == MAX_GAPS and (what, why) >= _gap_order(self._gaps[-1]):
            return
        self._gaps = sorted({*self._gaps, Gap(what=what, why=why)}, key=_gap_order)[:MAX_GAPS]

    def unread_manifest(self, location: str, why: str) -> None:
        """Note that the entries of a manifest could not be read."""
        self.unread_manifests.add(location)
        self.gap(f"the files of manifest {location!r}", why)

    def merge(self, other: "Tally") -> None:
        """Take in what was found elsewhere."""
        for number, count in other.counts.items():
            self.counts[number] = self.counts.get(number, 0) + count
        for number, faults in other._faults.items():
            self._keep(number, faults)
        self.unread_manifests |= other.unread_manifests
        self.gaps_count += other.gaps_count
        self._gaps = sorted({*self._gaps, *other._gaps}, key=_gap_order)[:MAX_GAPS]

    def faults(self, number: int) -> tuple[Fault, ...]:
        """The faults of a class that are kept, by place."""
        return tuple(sorted(self._faults.get(number, ()), key=_order))

    def gaps(self) -> tuple[Gap, ...]:
        """What was not checked, as far as it is kept."""
        return tuple(self._gaps)

    def _keep(self, number: int, faults: Sequence[Fault]) -> None:
        kept = self._faults.setdefault(number, [])
        kept.extend(faults)
        # Sorted now and then only: a class may have a fault for each file of the table.
        if number not in self.whole and len(kept) > 10 * MAX_EXAMPLES:
            kept[:] = sorted(kept, key=_order)[:MAX_EXAMPLES]


def _order(fault: Fault) -> tuple[str, str]:
    return fault.where, fault.detail


def _gap_order(gap: Gap) -> tuple[str, str]:
    return gap.what, gap.why
