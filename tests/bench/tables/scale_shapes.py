"""What a table of millions of files holds: which files it has, of what partitions, and what its snapshots do.

Files have numbers. First come those that are live, then garbage, which the first snapshot added and the second removed, then
orphans, which no snapshot has. Partitions take turns, so that each manifest has files of all of them.

Each tenth of the live files is appended by some snapshots; then one adds deletes for it: deletes of positions in one file, in a
stretch of files, deletion vectors, and equality deletes, which reach all files of their partition that came before.
"""

import datetime
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

FIRST_DAY = 18_262
"""2020-01-01, in days since the epoch: the day of the first partition."""

CHUNKS = 10
APPENDS_A_CHUNK = 5
_STRETCH_FILES = 50
_HASH = 2_654_435_761
_EPOCH = datetime.date(1970, 1, 1)


class DeleteKind(StrEnum):
    """What a delete file is; of ten in a row these follow one another."""

    OF_FILE = "of one file"
    OF_STRETCH = "of a stretch"
    VECTOR = "vector"
    EQUALITY = "equality"


_TURNS = {
    "all": (*[DeleteKind.OF_FILE] * 6, *[DeleteKind.OF_STRETCH] * 2, DeleteKind.VECTOR, DeleteKind.EQUALITY),
    "mostly-of-one-file": (*[DeleteKind.OF_FILE] * 99, *[DeleteKind.OF_STRETCH] * 10, DeleteKind.EQUALITY),
    "wide": (DeleteKind.OF_STRETCH,),
    "equality": (DeleteKind.EQUALITY,),
}
"""What the delete files of a table are, by the name of the mix: their kinds follow one another in this order."""


class Scale(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How big a table is.

    Attributes:
        files: live data files.
        deletes: delete files and vectors; as many in each chunk and partition.
        manifest_files: how many files a data manifest has.
        garbage_percent, orphans_percent: how many files of the other kinds there are, of a hundred live ones.
        mix: of which kinds the delete files are, a name of `_TURNS`.
        format_version: 2 has no vectors, and a position delete file of one data file is known by equal bounds.
    """

    files: int
    deletes: int = 100_000
    partitions: int = 1_000
    manifest_files: int = 10_000
    garbage_percent: int = 10
    orphans_percent: int = 1
    mix: Literal["all", "mostly-of-one-file", "wide", "equality"] = "all"
    format_version: Literal[2, 3] = 3

    read: ClassVar[tuple[str, ...]] = ("*.avro",)
    is_restored: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.deletes % (CHUNKS * self.partitions):
            raise ValueError(
                f"{self.deletes} delete files cannot be dealt out to {CHUNKS} times {self.partitions} partitions"
            )
        if self.files % (CHUNKS * self.partitions):
            raise ValueError(f"{self.files} files cannot be dealt out to {CHUNKS} times {self.partitions} partitions")
        if self.deletes > self.files:
            raise ValueError("there is at most one delete file a data file")

    @property
    def name(self) -> str:
        numbers = (
            f"{self.files}-files-{self.deletes}-deletes-{self.partitions}-partitions-{self.manifest_files}-a-manifest"
        )
        name = f"scale-{numbers}-{self.garbage_percent}-percent-garbage"
        return name if self.mix == "all" else f"{name}-{self.mix}-v{self.format_version}"

    @property
    def small(self) -> "Scale":
        return replace(self, files=20_000, deletes=400, partitions=20, manifest_files=200)

    @property
    def garbage(self) -> range:
        """The numbers of the files that only the first snapshot has."""
        return range(self.files, self.files + self.files * self.garbage_percent // 100)

    @property
    def orphans(self) -> range:
        """The numbers of the files that no snapshot has."""
        first = self.garbage.stop
        return range(first, first + self.files * self.orphans_percent // 100)

    @property
    def chunk_rows(self) -> int:
        """How many files of a partition a chunk adds."""
        return self.files // CHUNKS // self.partitions

    def appends(self, chunk: int) -> Iterator[range]:
        """The numbers of the files that each snapshot of a chunk appends."""
        size = self.files // CHUNKS
        bounds = [size * chunk + size * number // APPENDS_A_CHUNK for number in range(APPENDS_A_CHUNK + 1)]
        yield from (range(first, stop) for first, stop in pairwise(bounds))

    def chunk_deletes(self, chunk: int) -> range:
        """The numbers of the delete files that the last snapshot of a chunk adds."""
        size = self.deletes // CHUNKS
        return range(size * chunk, size * (chunk + 1))

    def delete(self, number: int) -> "Delete":
        """What a delete file is, and which data files it is for."""
        chunk, own = divmod(number, self.deletes // CHUNKS)
        turn, partition = divmod(own, self.partitions)
        turns = self.deletes // CHUNKS // self.partitions
        kinds = _TURNS[self.mix]
        # Each partition begins elsewhere in the order, so that all kinds are in it even where a chunk has one turn.
        kind = kinds[(turns * chunk + turn + (partition if self.mix != "all" else 0)) % len(kinds)]
        first = self.chunk_rows * chunk + self.chunk_rows * turn // turns
        last = first + min(_STRETCH_FILES, self.chunk_rows // 2) if kind is DeleteKind.OF_STRETCH else first
        last = min(last, self.chunk_rows * (chunk + 1) - 1)
        return Delete(kind, partition, first * self.partitions + partition, last * self.partitions + partition)


class Delete(NamedTuple):
    """A delete file; of files of its partition the first and the last number in which it deletes positions."""

    kind: DeleteKind
    partition: int
    first: int
    last: int


class Paths:
    """Where the files of a table are."""

    def __init__(self, shape: Scale, directory: str) -> None:
        self._shape, self._directory = shape, directory

    def directory(self, partition: int) -> str:
        return f"{self._directory}/at_day={day_text(partition)}"

    def partition_of(self, directory: str) -> int | None:
        """The partition whose files are in a directory; `None` if it is another one."""
        head = f"{self._directory}/at_day="
        if not directory.startswith(head):
            return None
        return (datetime.date.fromisoformat(directory.removeprefix(head)) - _EPOCH).days - FIRST_DAY

    def data(self, number: int) -> str:
        return f"{self.directory(number % self._shape.partitions)}/{number:010}-{hash_of(number):08x}-00001.parquet"

    def delete(self, number: int) -> str:
        ending = "puffin" if self._shape.delete(number).kind is DeleteKind.VECTOR else "parquet"
        return f"{self.directory(number % self._shape.partitions)}/{number:010}-00001-deletes.{ending}"


def hash_of(number: int) -> int:
    """A number of 32 bits that does not follow from its neighbours'."""
    return number * _HASH % (1 << 32)


def hashes(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same of many."""
    return (numbers.astype(np.uint64) * np.uint64(_HASH) % np.uint64(1 << 32)).astype(np.int64)


@cache
def day_text(partition: int) -> str:
    """The day of a partition as ISO 8601."""
    return (_EPOCH + datetime.timedelta(days=FIRST_DAY + partition)).isoformat()
