"""Files that stay, as a set: whoever deletes, or brings back, asks one of these.

Files are told apart by their paths alone, in a loose spelling (`path_keys`): one store has many names (a NameNode and its
service, `wasb` and `abfs`), and a file that stays under another of them must not go under this one. So in doubt a file is in
the set: two files that have the same path in two stores stay for each other's sake, as do two whose hashes are equal by
chance. Which files go is never told by such a set, but by exact keys (`location_keys`).

By which scheme and authority a file is in the set decides nothing, but is told: who keeps a file for the sake of another
spelling has to be able to say which.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.storage.location_keys import ANY_PREFIX, Keys, Locations, loose_keys, path_keys
from icekeep.storage.locations import parse_location

Mask: TypeAlias = NDArray[np.bool_]

_EXAMPLES = 10


class PathSet(msgspec.Struct, frozen=True):
    """Path keys, each once, ascending: eight bytes a file. It can be pickled."""

    keys: Keys

    @classmethod
    def of(cls, locations: Locations | Sequence[str]) -> "PathSet":
        """The files at some locations; raises as `location_keys`."""
        return cls.of_keys(_path_keys(locations))

    @classmethod
    def of_keys(cls, *several: Keys) -> "PathSet":
        """The files that have some path keys, in any order."""
        return cls(np.unique(np.concatenate([_NO_KEYS, *several])))

    def mask(self, locations: Locations | Sequence[str]) -> Mask:
        """Which of some locations are in the set; raises as `location_keys`."""
        return self.mask_of_keys(_path_keys(locations))

    def mask_of_keys(self, keys: Keys) -> Mask:
        """Which of some path keys are in the set."""
        return among(keys, self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __or__(self, other: "PathSet") -> "PathSet":
        return PathSet(np.union1d(self.keys, other.keys))

    def __and__(self, other: "PathSet") -> "PathSet":
        return PathSet(np.intersect1d(self.keys, other.keys, assume_unique=True))

    def __le__(self, other: "PathSet") -> bool:
        return bool(other.mask_of_keys(self.keys).all())


def union(several: Iterable[PathSet]) -> PathSet:
    """All files of some sets."""
    return PathSet.of_keys(*(one.keys for one in several))


class PathsOfPrefix(NamedTuple):
    """Path keys of files that are named by one scheme and authority, and the location of one of them."""

    prefix_key: int
    path_keys: Keys
    example: str


def paths_by_prefix(locations: Locations) -> list[PathsOfPrefix]:
    """Some files by how they are named; raises as `location_keys`."""
    keys, prefixes = loose_keys(locations)
    if not len(keys):
        return []
    if (prefixes == prefixes[0]).all():
        return [PathsOfPrefix(int(prefixes[0]), keys, locations[0].as_py())]
    rows = {int(prefix): np.flatnonzero(prefixes == prefix) for prefix in np.unique(prefixes)}
    return [PathsOfPrefix(prefix, keys[own], locations[int(own[0])].as_py()) for prefix, own in rows.items()]


class OtherSpelling(msgspec.Struct, frozen=True):
    """A location, and another of the same path that is in a set."""

    location: str
    kept: str


class OtherSpellings(msgspec.Struct, frozen=True):
    """Files that a set has by other schemes or authorities only: their path keys, and the first of them as they are spelled."""

    keys: Keys
    examples: tuple[OtherSpelling, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def __or__(self, other: "OtherSpellings") -> "OtherSpellings":
        if not other or not self:
            return self or other
        return OtherSpellings(np.union1d(self.keys, other.keys), (*self.examples, *other.examples)[:_EXAMPLES])


class SpelledPaths(msgspec.Struct, frozen=True):
    """A set of files that knows by which schemes and authorities it has each.

    Attributes:
        by_prefix: by prefix key; most sets have one.
        examples: for each prefix key a location that has it.
    """

    by_prefix: Mapping[int, PathSet]
    examples: Mapping[int, str]

    @classmethod
    def of(cls, several: Iterable[PathsOfPrefix]) -> "SpelledPaths":
        """The files of all."""
        keys: dict[int, list[Keys]] = {}
        examples: dict[int, str] = {}
        for prefix, some, example in several:
            keys.setdefault(prefix, []).append(some)
            examples.setdefault(prefix, example)
        return cls({prefix: PathSet.of_keys(*some) for prefix, some in keys.items()}, examples)

    @property
    def paths(self) -> PathSet:
        """The files alone."""
        several = [*self.by_prefix.values()]
        return several[0] if len(several) == 1 else union(several)

    def split_by_spelling(self, locations: Locations, keys: Keys) -> tuple[Mask, OtherSpellings]:
        """Which of some files are in the set, and those of them that it has by other schemes or authorities only.

        Args:
            keys: the path keys of the locations.
        """
        masks = {prefix: paths.mask_of_keys(keys) for prefix, paths in self.by_prefix.items()}
        is_in = np.logical_or.reduce([np.zeros(len(keys), np.bool_), *masks.values()])
        unsure = is_in.copy()
        for prefix, mask in masks.items():
            # What begins with the same letters has the same prefix: so it is with all files of most tables.
            unsure[mask if prefix == ANY_PREFIX else mask & _begin_alike(locations, self.examples[prefix])] = False
        rows = np.flatnonzero(unsure)
        return is_in, self._other_spellings(locations.take(pa.array(rows))) if len(rows) else NO_SPELLINGS

    def _other_spellings(self, locations: Locations) -> OtherSpellings:
        keys, prefixes = loose_keys(locations)
        is_same = prefixes == ANY_PREFIX
        for prefix, paths in self.by_prefix.items():
            is_same |= (prefixes == prefix) & paths.mask_of_keys(keys)
        rows = np.flatnonzero(~is_same)
        examples = tuple(self._other_spelling(locations[row].as_py()) for row in rows[:_EXAMPLES].tolist())
        return OtherSpellings(np.unique(keys[rows]), examples)

    def _other_spelling(self, location: str) -> OtherSpelling:
        example = next(
            self.examples[prefix] for prefix, paths in self.by_prefix.items() if paths.mask([location]).all()
        )
        return OtherSpelling(location, spelled_like(example, location))


def _begin_alike(locations: Locations, example: str) -> Mask:
    """Which locations have the scheme and the authority of another, spelled as it does."""
    head = example.removesuffix(parse_location(example).path)
    return np.asarray(pc.starts_with(locations, f"{head}/").to_numpy(zero_copy_only=False))


def spelled_like(example: str, location: str) -> str:
    """The path of a location, under the scheme and authority of another."""
    scheme, authority, _ = parse_location(example)
    return f"{scheme}://{authority}{parse_location(location).path}"


def among(keys: Keys, ascending: Keys) -> Mask:
    """Which keys are among some that ascend."""
    if not len(ascending):
        return np.zeros(len(keys), np.bool_)
    places = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    return np.asarray(ascending[places] == keys)


def _path_keys(locations: Locations | Sequence[str]) -> Keys:
    if isinstance(locations, pa.Array | pa.ChunkedArray):
        return path_keys(locations)
    return path_keys(pa.array(locations, pa.string()))


_NO_KEYS = np.empty(0, np.int64)
NO_PATHS = PathSet(_NO_KEYS)
NO_SPELLINGS = OtherSpellings(_NO_KEYS)
