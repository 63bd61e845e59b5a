"""Which of the chosen equality deletes reach a data file, in a form that does not grow with the pairs of both.

Within a scope, all partitions or a single one, deletes are in the order of what they reach: those that reach a data file are
all from one on (`spec.delete_runs`). So of each data file two numbers are known, however many deletes reach it.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.reach import Specs, is_global, max_reached

Scope = tuple[int, bytes]
"""A partition spec and the bytes of a partition (`PartitionCodec`)."""

EVERYWHERE: Scope = (-1, b"")
"""Of deletes that are for all partitions."""


class EqualityDelete(msgspec.Struct, frozen=True):
    """A live equality delete file as it was read, and the bytes of its partition."""

    entry: ManifestEntry
    partition: bytes

    def scope(self, specs: Specs) -> Scope | None:
        """The partition that it is for; `None` for all of the table.

        Raises:
            InvalidTableError: its partition spec is missing.
        """
        file = self.entry.data_file
        return None if is_global(file, specs) else (file.spec_id, self.partition)


class Reach(msgspec.Struct, frozen=True):
    """Equality deletes by scope, in order, and the greatest data sequence number that each reaches."""

    scopes: tuple[tuple[DataFile, ...], ...]
    greatest: tuple[tuple[int, ...], ...]
    numbers: Mapping[Scope, int]

    @classmethod
    def of(cls, deletes: Iterable[EqualityDelete], specs: Specs) -> "Reach":
        """Put deletes in order; raises `InvalidTableError` where a partition spec is missing."""
        by_place: dict[Scope, list[ManifestEntry]] = defaultdict(list)
        for delete in deletes:
            by_place[delete.scope(specs) or EVERYWHERE].append(delete.entry)
        in_order = [
            sorted(some, key=lambda entry: (max_reached(entry), entry.data_file.file_path))
            for some in by_place.values()
        ]
        return cls(
            scopes=tuple(tuple(entry.data_file for entry in some) for some in in_order),
            greatest=tuple(tuple(map(max_reached, some)) for some in in_order),
            numbers={place: number for number, place in enumerate(by_place)},
        )

    def of_file(self, spec_id: int, partition: bytes, sequence_number: int) -> tuple[tuple[int, int], ...]:
        """For each scope that has deletes of a data file: its number, and the place of the first of them."""
        found = []
        for place in (EVERYWHERE, (spec_id, partition)):
            number = self.numbers.get(place)
            if number is None:
                continue
            first = bisect_left(self.greatest[number], sequence_number)
            if first < len(self.greatest[number]):
                found.append((number, first))
        return tuple(found)
