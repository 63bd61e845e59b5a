"""The places whose files a table's maintenance may delete: one rule for expiration, purge and orphan removal.

A table may name any file, imported ones that belong to somebody else among them, and whoever may write metadata may write
any path into it. So what is unreachable is deleted only below the table's location, `write.data.path`,
`write.metadata.path`, or a root that the operator allows; all else is kept and counted. Whole path components count: what
lies in `tbl2` does not lie in `tbl`.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import InvalidTableError, OptionError
from icekeep.spec.layout import OWN_DIRECTORY, data_directory, metadata_directory
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.locations import canonical, parse_location
from icekeep.storage.stores import FILE, SCHEMES, STORES_OF_KEYS, store_authorities

ALLOWED_ROOTS = "reclaim.roots"

_OWN = f"/{OWN_DIRECTORY}/"

_LOCAL_SPELLINGS = ("file://", "file:", "", "file://localhost")
"""What may stand before a path on this machine."""

_NAME = r"(?:[^/.\x00][^/\x00]*|\.[^/.\x00][^/\x00]*|\.\.[^/\x00]+)"
_START = r"^(?:(?:file:)?/|[a-z][a-z0-9+-]*://[^/\x00]*/)"
_SMALL_START = r"^(?:(?:file:)?/|[a-z][a-z0-9+-]*://[!-.0-@\[-~]*/)"
_ORDINARY = rf"{_SMALL_START}{_NAME}(?:/{_NAME})*$"
"""Locations that are as `canonical` would spell them but for the store, which is spelled in one of the ways that `_prefixes`
has: no empty name, `.` or `..` is in them, and their authority has no capital letters and nothing beyond ASCII.
"""

_DOUBLED = rf"{_START}{_NAME}(?:/+{_NAME})*$"
"""The same, or with doubled slashes, as below a table location that ends with one: below whatever they begin with."""


class ComparedLocation(msgspec.Struct, frozen=True):
    """A location as it is compared: `key` is canonical, `path` is as written where each spelling is a name of its own."""

    key: str
    path: str | None

    @property
    def is_bare(self) -> bool:
        """Whether it is a whole bucket or disk."""
        return not self.key.partition("://")[2].partition("/")[2]

    def holds(self, other: "ComparedLocation") -> bool:
        """Whether another place lies below this one, however either is spelled."""
        is_below = other.key != self.key and other.key.startswith(self.key.removesuffix("/") + "/")
        return is_below and (self.path is None or (other.path or "").startswith(self.path + "/"))


class Territory(msgspec.Struct, frozen=True):
    """What may be deleted, by place.

    Attributes:
        roots: directories; what lies below one of them, at any depth, is in the territory. None lies below another. What
            lies in a directory of icekeep's own, where plans and the trash are, is not, whatever root is above it.
        others: directories of other tables; what is one of them, or lies below one, is not in the territory.
    """

    roots: tuple[str, ...]
    others: tuple[str, ...] = ()

    def holds(self, location: str) -> bool:
        """Whether the file at a location may be deleted; what is no location may not."""
        return self._is_held(location, _comparable(self.roots), _comparable(self.others))

    def mask(self, locations: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """`holds` of every location; null may not be deleted."""
        chunks = locations.chunks if isinstance(locations, pa.ChunkedArray) else [locations]
        masks = [self._mask(chunk) for chunk in chunks]
        return np.concatenate(masks) if masks else np.zeros(0, np.bool_)

    def _mask(self, locations: pa.Array) -> npt.NDArray[np.bool_]:
        locations, own, others = locations.cast(pa.large_string()), _comparable(self.roots), _comparable(self.others)
        held = _begins(locations, own) & _truth(pc.match_substring_regex(locations, _DOUBLED))
        held &= ~_truth(pc.match_substring(locations, _OWN)) & ~_begins(locations, others) & ~_are(locations, others)
        # Where a place of another table is left out, every spelling of it is.
        unsure = np.arange(len(locations)) if others else np.flatnonzero(~held)
        odd = unsure[~_truth(pc.match_substring_regex(locations.take(unsure), _ORDINARY))]
        held[odd] = [self._is_held(location, own, others) for location in locations.take(odd).to_pylist()]
        return held

    def _is_held(
        self, location: str | None, own: Sequence[ComparedLocation], others: Sequence[ComparedLocation]
    ) -> bool:
        file = None if location is None else compared(location)
        if file is None or _OWN in file.key or not any(root.holds(file) for root in own):
            return False
        return not any(other.key == file.key or other.holds(file) for other in others)


def territory(metadata: TableMetadata, allowed: Sequence[str] = (), others: Sequence[str] = ()) -> Territory:
    """The places of a table, and those that the operator adds.

    What metadata says of places never fails and never holds a whole bucket or disk, nor, for a table that lies elsewhere,
    anything on this machine.

    Args:
        allowed: directories below which files may be deleted as well.
        others: directories of other tables, whose files are theirs wherever they lie.

    Raises:
        OptionError: one of `allowed` is no location, or a whole bucket or disk.
    """
    for root in allowed:
        one = compared(root)
        if one is None or one.is_bare:
            raise OptionError(
                ALLOWED_ROOTS,
                given=root,
                expected="locations of directories such as s3://bucket/path, none of them a whole bucket or disk",
            )
    return Territory(roots=_outermost([*table_roots(metadata), *allowed]), others=tuple(others))


def table_roots(metadata: TableMetadata) -> list[str]:
    """Location, data directory and metadata directory of a table, as far as they can be its own."""
    at = compared(metadata.location)
    is_local = at is not None and _is_local(at)
    roots = []
    for root in (metadata.location, data_directory(metadata), metadata_directory(metadata)):
        one = compared(root)
        if one is not None and not one.is_bare and (is_local or not _is_local(one)):
            roots.append(root)
    return list(_outermost(roots))


def compared(location: str) -> ComparedLocation | None:
    """A location taken apart for comparisons; null if it is none."""
    try:
        key, parsed = canonical(location), parse_location(location)
    except InvalidTableError:
        return None
    is_key = key.partition(":")[0] in STORES_OF_KEYS
    return ComparedLocation(key, parsed.path.rstrip("/") if is_key else None)


def _comparable(directories: Iterable[str]) -> list[ComparedLocation]:
    return [one for one in map(compared, directories) if one is not None and not one.is_bare]


def _outermost(roots: Sequence[str]) -> tuple[str, ...]:
    """Roots without those that are, or lie in, another one."""
    kept: dict[ComparedLocation, str] = {}
    for root in roots:
        one = compared(root)
        if one is not None:
            kept.setdefault(one, root.rstrip("/") or root)
    return tuple(root for one, root in kept.items() if not any(other.holds(one) for other in kept))


def _is_local(one: ComparedLocation) -> bool:
    return one.key.startswith("file:")


def _begins(locations: pa.Array, some: Iterable[ComparedLocation]) -> npt.NDArray[np.bool_]:
    """Which of some ordinary locations lie in one of the places."""
    found = np.zeros(len(locations), np.bool_)
    for prefix in {prefix for one in some for prefix in _prefixes(one)}:
        found |= _truth(pc.starts_with(locations, prefix))
    return found


def _are(locations: pa.Array, some: Iterable[ComparedLocation]) -> npt.NDArray[np.bool_]:
    """Which of some ordinary locations are one of the places."""
    names = [prefix.removesuffix("/") for one in some for prefix in _prefixes(one)]
    return _truth(pc.is_in(locations, pa.array(names, pa.large_string())))


def _prefixes(one: ComparedLocation) -> list[str]:
    scheme, _, rest = one.key.partition("://")
    path = f"/{rest.partition('/')[2]}".rstrip("/")
    if one.path is not None and one.path != path:
        # A key that is spelled oddly has nothing below it that is not.
        return []
    if scheme == FILE and rest.startswith("/"):
        return [f"{spelling}{path}/" for spelling in _LOCAL_SPELLINGS]
    authorities = store_authorities(scheme, rest.partition("/")[0])
    return [f"{one}://{authority}{path}/" for one in SCHEMES.get(scheme, (scheme,)) for authority in authorities]


def _truth(values: pa.Array) -> npt.NDArray[np.bool_]:
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)
