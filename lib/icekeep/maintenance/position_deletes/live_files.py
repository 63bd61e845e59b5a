"""The live data files of a partition, packed for tasks: 25 bytes a file, in parts of neighbours by path.

A task loads the parts that its range of paths meets. Few lie in the plan, many where planning has put them: the driver holds
the sums of each part, and some paths by which a group is divided.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter

import msgspec
import numpy as np

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.deletes.positions import LiveFile
from icekeep.spec.reach import PathDigest, path_digest
from icekeep.storage.base import Storage

PART_FILES = 20_000
_SAMPLES_COUNT = 32
_NAME = struct.Struct(">QQ")
_FILE = np.dtype([("high", ">u8"), ("low", ">u8"), ("number", ">i8"), ("has_vector", "?")])


class LivePart(msgspec.Struct, frozen=True, kw_only=True):
    """Some live data files of a partition, neighbours by path.

    Attributes:
        samples: paths of some of them, evenly spread and in order, the first one among them.
        packed: all of them, or `None` where they lie in storage, from an `offset` of a file on; or, in a preview, nowhere.
    """

    files_count: int
    samples: tuple[str, ...]
    last_path: str
    packed: bytes | None = None
    location: str | None = None
    offset: int = 0

    def meets(self, first: str | None, end: str | None) -> bool:
        """Whether a file of it may lie in a range of paths; `None`: no bound. The end is not in the range."""
        return (first is None or first <= self.last_path) and (end is None or self.samples[0] < end)

    @property
    def packed_bytes(self) -> int:
        return self.files_count * _FILE.itemsize


def packed_parts(files: Iterable[tuple[str, LiveFile]]) -> Iterator[LivePart]:
    """Data files in the order of their paths, in parts; no more than a part of them is held."""
    rest = iter(files)
    while some := [*islice(rest, PART_FILES)]:
        rows = [(*_NAME.unpack(path_digest(path)), file.sequence_number, file.has_vector) for path, file in some]
        step = -(-len(some) // _SAMPLES_COUNT)
        yield LivePart(
            files_count=len(some),
            samples=tuple(path for path, _ in some[::step]),
            last_path=some[-1][0],
            packed=np.array(rows, _FILE).tobytes(),
        )


class PackedLiveFiles:
    """Live data files by the digests of their paths."""

    def __init__(self, packed: Iterable[bytes]) -> None:
        rows = np.concatenate([np.empty(0, _FILE), *(np.frombuffer(some, _FILE) for some in packed)])
        rows = rows[np.argsort(rows["high"])]
        # By the order of the machine, as what is looked for comes in.
        self._high, self._low = rows["high"].astype(np.uint64), rows["low"].astype(np.uint64)
        self._numbers, self._have_vectors = rows["number"].astype(np.int64), rows["has_vector"]

    def __len__(self) -> int:
        return len(self._high)

    def get(self, path: str, /) -> LiveFile | None:
        """The file at a path, if it is one of them."""
        return self.at(path_digest(path))

    def at(self, digest: PathDigest) -> LiveFile | None:
        """The file at the path of a digest."""
        high, low = _NAME.unpack(digest)
        place = int(np.searchsorted(self._high, np.uint64(high)))
        while place < len(self._high) and int(self._high[place]) == high:
            if int(self._low[place]) == low:
                return LiveFile(int(self._numbers[place]), has_vector=bool(self._have_vectors[place]))
            place += 1
        return None


def load_live_files(parts: Sequence[LivePart], storage: Storage) -> PackedLiveFiles:
    """The files of some parts.

    Raises:
        InvalidTableError, MissingFileError: what planning has put into storage cannot be read back.
    """
    return PackedLiveFiles(_packed(parts, storage))


def _packed(parts: Sequence[LivePart], storage: Storage) -> Iterator[bytes]:
    for location, some in groupby(parts, attrgetter("location")):
        if location is None:
            for part in some:
                if part.packed is None:
                    raise IcekeepBug("the data files of a group are kept nowhere; a preview of so many has sums only")
                yield part.packed
            continue
        with storage.open(location) as stream:
            for part in some:
                stream.seek(part.offset)
                packed = stream.read(part.packed_bytes)
                if len(packed) != part.packed_bytes:
                    raise InvalidTableError(f"cannot read the data files of a group in {location!r}; plan anew")
                yield packed
