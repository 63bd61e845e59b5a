"""The locations where a table's maintenance may delete files, or move them to, and where the other tables of a catalog are.

Whoever may commit to a table writes its metadata: its properties, its log, manifests that name any file. None of that makes a
file the table's own. Its location does, as far as no other table of the catalog lies there; and so does the operator, who
names directories as `reclaim.roots`, for a catalog in the configuration or for one run. Where another table lies below such a
directory, the deeper location counts. What is named for a catalog is named for all its tables, and says not whose it is: it
counts for no table where another one has that very location, or one around it. All else is kept and counted, below
`write.data.path` and `write.metadata.path` too. Whole path components count: what lies in `tbl2` does not lie in `tbl`.

Where another table is, is read out of its metadata of whatever version, once, as metadata files do not change; or the catalog
tells it where that cannot be read.
"""

import threading
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import RECLAIM_ROOTS, ROOTS_EXPECTED, Catalog, Identifier, Pointer, Table, format_identifier
from icekeep.catalog.metadata_files import parse_version_name
from icekeep.decoding import from_json
from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    NotFoundError,
    OptionError,
    UnsupportedError,
    first_line,
)
from icekeep.spec.metadata import TableMetadata, unpacked
from icekeep.spec.properties import OWN_DIRECTORY, data_directory, metadata_directory
from icekeep.storage.local.links import is_behind_link
from icekeep.storage.locations import (
    FILE,
    SCHEMES,
    STORES_OF_KEYS,
    canonical,
    is_root,
    is_whole_store,
    parse_location,
    store_authorities,
)

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
        return is_whole_store(self.key)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return self.key.startswith("file:")

    def holds_or_is(self, other: "ComparedLocation") -> bool:
        """Whether another location lies below this one, however either is spelled, or has its key."""
        return other.key == self.key or self.holds(other)

    def holds(self, other: "ComparedLocation") -> bool:
        """Whether another location lies below this one, however either is spelled."""
        is_below = other.key != self.key and other.key.startswith(self.key.removesuffix("/") + "/")
        return is_below and (self.path is None or (other.path or "").startswith(self.path + "/"))


class DeletableLocations(msgspec.Struct, frozen=True):
    """What may be deleted, by where it lies.

    Attributes:
        roots: directories; what lies below one of them, at any depth, may be deleted. What lies in a directory of
            icekeep's own, where plans and the trash are, is not, whatever root is above it.
        others: locations of other tables; what is one of them, or lies below one, may be deleted only by a root that lies
            below that location too, or is it.
    """

    roots: tuple[str, ...]
    others: tuple[str, ...] = ()

    def holds(self, location: str) -> bool:
        """Whether the file at a location may be deleted; anything that is no location may not."""
        return _is_held(location, self._parted())

    def mask(self, locations: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """`holds` of every location; null may not be deleted."""
        chunks = locations.chunks if isinstance(locations, pa.ChunkedArray) else [locations]
        parted = self._parted()
        masks = [self._mask(chunk, parted) for chunk in chunks]
        return np.concatenate(masks) if masks else np.zeros(0, np.bool_)

    def reaches(self, locations: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """`mask`, without files of this machine to which a link leads below their root: these lie elsewhere.

        Raises:
            IcekeepError: the machine does not tell.
        """
        held = self.mask(locations)
        names = (
            locations.filter(pa.array(held)).to_pylist()
            if any(root.is_local for root in _comparable(self.roots))
            else []
        )
        directories = [name.rpartition("/")[0] for name in names]
        elsewhere = {one for one in {*directories} if is_behind_link(one, self.roots)}
        if elsewhere:
            held[np.flatnonzero(held)] = [directory not in elsewhere for directory in directories]
        return held

    def _parted(self) -> "list[_Part]":
        """Each root, with the places of others that lie below it."""
        others = _comparable(self.others)
        return [(root, [other for other in others if root.holds(other)]) for root in _comparable(self.roots)]

    def _mask(self, locations: pa.Array, parted: "list[_Part]") -> npt.NDArray[np.bool_]:
        locations = locations.cast(pa.large_string())
        held = np.zeros(len(locations), np.bool_)
        for root, others in parted:
            held |= _begins(locations, [root]) & ~_begins(locations, others) & ~_are(locations, others)
        held &= _truth(pc.match_substring_regex(locations, _DOUBLED)) & ~_truth(pc.match_substring(locations, _OWN))
        # Where a place of another table is left out, every spelling of it is.
        unsure = np.arange(len(locations)) if self.others else np.flatnonzero(~held)
        odd = unsure[~_truth(pc.match_substring_regex(locations.take(unsure), _ORDINARY))]
        held[odd] = [_is_held(location, parted) for location in locations.take(odd).to_pylist()]
        return held


_Part = tuple[ComparedLocation, list[ComparedLocation]]


def _is_held(location: str | None, parted: Iterable[_Part]) -> bool:
    file = None if location is None else compared(location)
    if file is None or _OWN in file.key:
        return False
    return any(root.holds(file) and not any(other.holds_or_is(file) for other in others) for root, others in parted)


def deletable_locations(table: Table, allowed: Sequence[str] = (), others: Sequence[str] = ()) -> DeletableLocations:
    """The table's location, and the directories that the operator names.

    The location does not count where it is, or lies in, a location of another table. It is never a whole bucket or disk:
    there the directories count that engines make in it. Nor is a directory of the catalog's configuration, unless it is, or lies
    in, the table's location, and no location of another table lies between the two. A directory that is named for a run counts.

    Args:
        allowed: directories that the operator names for a run, beside those of the catalog's configuration (`check_roots`).
        others: places of other tables, whose files are theirs (`Neighbours.other_roots`).
    """
    theirs = _comparable(others)

    def is_free(root: str) -> bool:
        place = compared(root)
        if place is None:
            return False
        around = [other for other in theirs if other.holds_or_is(place)]
        if at is not None and at.holds_or_is(place) and root in table.catalog.reclaim_roots:
            # Deeper than those that lie around the location as well: the operator means this table.
            around = [other for other in around if not other.holds(at)]
        return not around

    at = compared(table.metadata.location)
    location, names = table.metadata.location, [] if at is None else [table.metadata.location]
    if at is not None and at.is_bare:
        names = [] if at.is_local else [f"{location.rstrip('/')}/{name}" for name in ("data", "metadata")]
    own = [root for root in (*names, *table.catalog.reclaim_roots) if is_free(root)]
    # A directory in another counts by itself: another table may lie between them, and a link may lead to it.
    return DeletableLocations(roots=tuple(_each_once([*own, *allowed]).values()), others=tuple(others))


def named_roots(table: Table, allowed: Sequence[str] = ()) -> tuple[str, ...]:
    """The directories that the operator names, in the catalog's configuration and for a run."""
    return (*table.catalog.reclaim_roots, *allowed)


def check_roots(roots: Iterable[str]) -> None:
    """Raise `OptionError` where one of the directories that an operator names is no location, or a whole bucket or disk."""
    for root in roots:
        if not is_root(root):
            raise OptionError(RECLAIM_ROOTS, given=root, expected=ROOTS_EXPECTED)


def table_locations(metadata: TableMetadata) -> list[str]:
    """Where a table says that its files are: its location, data directory and metadata directory.

    What is no location, or a whole bucket or disk, is left out; and what lies on this machine, of a table that lies elsewhere.
    Other engines delete files there, and no other table may lie there; icekeep deletes none for that alone.
    """
    at = compared(metadata.location)
    is_local = at is not None and at.is_local
    roots = []
    for root in (metadata.location, data_directory(metadata), metadata_directory(metadata)):
        one = compared(root)
        if one is not None and not one.is_bare and (is_local or not one.is_local):
            roots.append(root)
    # Without those that are, or lie in, another one.
    kept = _each_once(roots)
    return [root for one, root in kept.items() if not any(other.holds(one) for other in kept)]


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


def _each_once(roots: Iterable[str]) -> dict[ComparedLocation, str]:
    kept: dict[ComparedLocation, str] = {}
    for root in roots:
        one = compared(root)
        if one is not None:
            kept.setdefault(one, root.rstrip("/") or root)
    return kept


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
    """A mask in which null is false."""
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


_CACHED_TABLES = 10_000
_METADATA_MAX_BYTES = 1 << 30
"""A packed file that grows beyond this is an attack or an accident, not table metadata."""


class TableLocations(msgspec.Struct, frozen=True):
    """Where a table is: its location, and its directories and metadata file as far as they may lie elsewhere."""

    table_uuid: str | None
    location: str
    elsewhere: tuple[str, ...]


class Neighbour(msgspec.Struct, frozen=True):
    """Another table; `problem` says why it cannot be loaded.

    Then `locations` is what the catalog tells, which may be less than all: `write.data.path` need not be among it. `None` where
    it tells nothing.
    """

    identifier: Identifier
    metadata_location: str = ""
    locations: TableLocations | None = None
    problem: str = ""
    may_lie_elsewhere: bool = False

    @property
    def name(self) -> str:
        return format_identifier(self.identifier)


class _Document(msgspec.Struct, rename="kebab"):
    """As much of table metadata, of any version, as says where a table is."""

    location: str
    table_uuid: str | None = None
    properties: dict[str, Any] | None = None


def known_neighbour(identifier: Identifier, pointer: Pointer) -> Neighbour | None:
    """One other table whose metadata file is known and never changes; `None` where it is to be looked at."""
    location = pointer.metadata_location
    known = None if _may_change(location) else _KNOWN.get((location, ()))
    return None if known is None else Neighbour(identifier, location, known)


def look_at(catalog: Catalog, identifier: Identifier, pointer: Pointer | None = None) -> Neighbour | None:
    """One other table, by its pointer where that is known; `None` if it is gone."""
    try:
        pointer = catalog.find(identifier) if pointer is None else pointer
        while True:
            try:
                return look_by(identifier, pointer)
            except MissingFileError:
                # A table that keeps few metadata files may have moved on.
                missing, pointer = pointer.metadata_location, catalog.find(identifier)
                if pointer.metadata_location == missing:
                    raise
    except NotFoundError as error:
        return Neighbour(identifier, problem=first_line(error)) if _is_listed(catalog, identifier) else None
    except IcekeepError as error:
        found, is_whole = _locations_by_catalog(catalog, identifier)
        # A table of another format has no properties that could lead elsewhere.
        may_lie_elsewhere = not is_whole and not isinstance(error, UnsupportedError)
        return Neighbour(identifier, locations=found, problem=first_line(error), may_lie_elsewhere=may_lie_elsewhere)


def look_by(identifier: Identifier, pointer: Pointer) -> Neighbour:
    """One other table, by its pointer alone; raises `IcekeepError` where its metadata cannot be read."""
    return Neighbour(identifier, pointer.metadata_location, _read_locations(pointer))


def forget_locations() -> None:
    """Forget what was read of tables so far, as for another catalog whose metadata files have the same names."""
    _KNOWN.clear()


def _locations_by_catalog(catalog: Catalog, identifier: Identifier) -> tuple[TableLocations | None, bool]:
    """Where the catalog says that a table with unreadable metadata lies, and whether it can lie nowhere else."""
    try:
        said = catalog.describe(identifier)
        if said is None or compared(said.location) is None:
            return None, False
        return _locations_of(_Document(said.location, None, dict(said.properties)), *said.elsewhere), said.is_whole
    except IcekeepError:
        return None, False


def _is_listed(catalog: Catalog, identifier: Identifier) -> bool:
    """Whether a table is still named by a catalog that says it has no such table: some hide tables that the asker may not see."""
    try:
        return identifier in catalog.list_tables(identifier[:-1])
    except NotFoundError:
        return False
    except IcekeepError:
        return True


def _read_locations(pointer: Pointer) -> TableLocations:
    """Where the table of a pointer is, read if that is not known yet."""
    location = pointer.metadata_location
    stamp: tuple[int, ...] = ()
    if _may_change(location):
        info = pointer.storage.head(location)
        stamp = () if info is None else (info.size_bytes, info.modified_ms)
    known = _KNOWN.get((location, stamp))
    if known is None:
        known = _parsed_locations(pointer.storage.read(location), location)
        with _KNOWN_LOCK:
            _KNOWN[location, stamp] = known
            if len(_KNOWN) > _CACHED_TABLES:
                del _KNOWN[next(iter(_KNOWN))]
    return known


def _may_change(metadata_location: str) -> bool:
    """Numbers come again when a table is dropped and created again; other names have an identifier that does not."""
    return parse_version_name(metadata_location.rsplit("/", 1)[-1]) is not None


def _parsed_locations(data: bytes, metadata_location: str) -> TableLocations:
    try:
        document = from_json(unpacked(data, _METADATA_MAX_BYTES), _Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, EOFError, OSError, zlib.error) as error:
        raise InvalidTableError(
            f"cannot read table metadata {metadata_location!r}: {error}", location=metadata_location
        ) from error
    if compared(document.location) is None:
        raise InvalidTableError(
            f"table metadata {metadata_location!r} has location {document.location!r}, which is no location",
            location=metadata_location,
        )
    return _locations_of(document, metadata_location)


def _locations_of(document: _Document, *more: str) -> TableLocations:
    """The locations that a table's metadata names, and those known from elsewhere."""
    document.properties = {k: v for k, v in (document.properties or {}).items() if isinstance(v, str)}
    # Location and properties are all that the layout asks for.
    like_metadata = cast(TableMetadata, document)
    named = (data_directory(like_metadata), metadata_directory(like_metadata), *more)
    # A whole bucket says nothing about where in it the files are.
    elsewhere = tuple(at for at in dict.fromkeys(named) if (one := compared(at)) is not None and not one.is_bare)
    return TableLocations(document.table_uuid, document.location, elsewhere)


_KNOWN: dict[tuple[str, tuple[int, ...]], TableLocations] = {}
"""By metadata location, and by what a head of it says where that may change; those that were read last."""

_KNOWN_LOCK = threading.Lock()
