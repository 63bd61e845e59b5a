"""What the path means that somebody asks about: a location in whatever spelling, or the end of one."""

from collections.abc import Iterable
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError, UsageError
from icekeep.storage.location_keys import path_keys
from icekeep.storage.locations import canonical_or_text, is_location

_NAMED = 3


class Target(msgspec.Struct, frozen=True):
    """A path that is asked about; it can be pickled.

    Attributes:
        text: as it was given.
        name: its last part: whatever is meant ends so.
        path_key: of a location; `None` where it can only be the end of one.
    """

    text: str
    name: str
    path_key: int | None

    @classmethod
    def of(cls, text: object) -> Self:
        """Raises `UsageError` for what is no path of a file."""
        if not isinstance(text, str) or not text.strip() or text.endswith("/") or "\0" in text:
            raise UsageError(f"{text!r} is no file; give the location of a file, or the end of it")
        key = int(path_keys(pa.array([text]))[0]) if is_location(text) else None
        return cls(text, text.rpartition("/")[2], key)

    @property
    def is_location(self) -> bool:
        """Whether it names one file, and is not the end of a name."""
        return self.path_key is not None

    @property
    def end(self) -> str:
        """What every location that may be meant ends with."""
        return self.name if self.is_location else self.text

    def mask(self, locations: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
        """Which of some locations may be meant."""
        found: NDArray[np.bool_] = np.array(pc.ends_with(locations, self.end).to_pylist(), bool)
        if self.path_key is None or not found.any():
            return found
        rows = np.flatnonzero(found)
        some = locations.take(pa.array(rows))
        ends = np.array(pc.ends_with(some, self.text).to_pylist(), bool)
        found[rows] = ends | np.array([self._has_its_path(location) for location in some.to_pylist()], bool)
        return found

    def among(self, locations: Iterable[str]) -> list[str]:
        """Those of some locations that may be meant, each once."""
        known = [*dict.fromkeys(location for location in locations if location.endswith(self.end))]
        return pa.array(known, pa.string()).filter(pa.array(self.mask(pa.array(known, pa.string())))).to_pylist()

    def chosen(self, locations: Iterable[str]) -> str | None:
        """The one location that is meant among those that may be; `None` where there is none.

        Raises:
            UsageError: several end so.
        """
        by_file = {canonical_or_text(location): location for location in sorted(locations, reverse=True)}
        if self.is_location:
            if (found := by_file.get(canonical_or_text(self.text))) is not None:
                return found
            of_path = [location for location in by_file.values() if self._has_its_path(location)]
            if len(of_path) == 1:
                return of_path[0]
        names = sorted(by_file.values())
        if len(names) > 1:
            more = " and others" if len(names) > _NAMED else ""
            raise UsageError(
                f"{len(names)} files end with {self.text!r}: {', '.join(map(repr, names[:_NAMED]))}{more}; give more of it"
            )
        return names[0] if names else None

    def _has_its_path(self, location: str) -> bool:
        try:
            return int(path_keys(pa.array([location]))[0]) == self.path_key
        except InvalidTableError:
            return False


def same_file(location: str, other: str) -> bool:
    """Whether two locations are spellings of one."""
    # Asked of a million manifests.
    if location.rpartition("/")[2] != other.rpartition("/")[2]:
        return False
    return canonical_or_text(location) == canonical_or_text(other)
