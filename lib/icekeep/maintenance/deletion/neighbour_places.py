"""Where another table of a catalog is: read out of its metadata, or told by the catalog where that cannot be read.

Only what says where a table is, is read, of metadata of any version, and once: metadata files do not change.
"""

import threading
import zlib
from collections import OrderedDict
from typing import Any, cast

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Pointer, format_identifier
from icekeep.catalog.version_files import parse_version_name
from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    NotFoundError,
    UnsupportedError,
    first_line,
)
from icekeep.maintenance.deletion.territory import place_of
from icekeep.spec.layout import data_directory, metadata_directory
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.metadata_packing import unpacked

_CACHED_TABLES = 10_000
_METADATA_MAX_BYTES = 1 << 30
"""A packed file that grows beyond this is an attack or an accident, not table metadata."""


class Places(msgspec.Struct, frozen=True):
    """Where a table is: its location, and its directories and metadata file as far as they may lie elsewhere."""

    table_uuid: str | None
    location: str
    elsewhere: tuple[str, ...]


class Neighbour(msgspec.Struct, frozen=True):
    """Another table; `problem` says why it cannot be loaded. Then `places` is what the catalog tells, `None` where it does not.

    What a catalog tells of a place may be less than all: `write.data.path` need not be among it.
    """

    identifier: Identifier
    metadata_location: str = ""
    places: Places | None = None
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


def look_at(catalog: Catalog, identifier: Identifier) -> Neighbour | None:
    """One other table; `None` if it is gone."""
    try:
        pointer = catalog.find(identifier)
        while True:
            try:
                return Neighbour(identifier, pointer.metadata_location, _places(pointer))
            except MissingFileError:
                # A table that keeps few metadata files may have moved on.
                missing, pointer = pointer.metadata_location, catalog.find(identifier)
                if pointer.metadata_location == missing:
                    raise
    except NotFoundError as error:
        return Neighbour(identifier, problem=first_line(error)) if _is_listed(catalog, identifier) else None
    except IcekeepError as error:
        places, is_whole = _told_places(catalog, identifier)
        # A table of another format has no properties that could lead elsewhere.
        may_lie_elsewhere = not is_whole and not isinstance(error, UnsupportedError)
        return Neighbour(identifier, places=places, problem=first_line(error), may_lie_elsewhere=may_lie_elsewhere)


def forget_places() -> None:
    """Forget what was read of tables so far, as for another catalog whose metadata files have the same names."""
    _KNOWN.clear()


def _told_places(catalog: Catalog, identifier: Identifier) -> tuple[Places | None, bool]:
    """Where the catalog says that a table is whose metadata cannot be read, and whether it can be nowhere else."""
    try:
        told = catalog.describe(identifier)
        if told is None or place_of(told.location) is None:
            return None, False
        return _places_of(_Document(told.location, None, dict(told.properties)), *told.elsewhere), told.is_whole
    except IcekeepError:
        return None, False


def _is_listed(catalog: Catalog, identifier: Identifier) -> bool:
    """Whether a table is still named by a catalog that says it has no such table: some hide what may not be seen."""
    try:
        return identifier in catalog.list_tables(identifier[:-1])
    except NotFoundError:
        return False
    except IcekeepError:
        return True


def _places(pointer: Pointer) -> Places:
    """Where the table of a pointer is, read if that is not known yet."""
    location = pointer.metadata_location
    stamp: tuple[int, ...] = ()
    if parse_version_name(location.rsplit("/", 1)[-1]) is not None:
        # Numbers come again when a table is dropped and made anew; other names have an identifier that does not.
        info = pointer.storage.head(location)
        stamp = () if info is None else (info.size_bytes, info.modified_ms)
    known = _KNOWN.get((location, stamp))
    if known is None:
        known = _parse_places(pointer.storage.read(location), location)
        _KNOWN.put((location, stamp), known)
    return known


def _parse_places(data: bytes, metadata_location: str) -> Places:
    try:
        document = msgspec.json.decode(unpacked(data, _METADATA_MAX_BYTES), type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, EOFError, OSError, zlib.error) as error:
        raise InvalidTableError(
            f"cannot read table metadata {metadata_location!r}: {error}", location=metadata_location
        ) from error
    if place_of(document.location) is None:
        raise InvalidTableError(
            f"table metadata {metadata_location!r} has location {document.location!r}, which is no location",
            location=metadata_location,
        )
    return _places_of(document, metadata_location)


def _places_of(document: _Document, *more: str) -> Places:
    """The places that a table's location and properties say, and those that are known besides."""
    document.properties = {k: v for k, v in (document.properties or {}).items() if isinstance(v, str)}
    # Location and properties are all that the layout asks for.
    like_metadata = cast(TableMetadata, document)
    named = (data_directory(like_metadata), metadata_directory(like_metadata), *more)
    places = {named_one: place_of(named_one) for named_one in named}
    # A whole bucket says nothing about where in it the files are.
    elsewhere = tuple(location for location, place in places.items() if place is not None and not place.is_bare)
    return Places(document.table_uuid, document.location, elsewhere)


class _Cache:
    """Places by metadata location, those that were asked for last; may be used from several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._places: OrderedDict[tuple[str, tuple[int, ...]], Places] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, tuple[int, ...]]) -> Places | None:
        with self._lock:
            if key in self._places:
                self._places.move_to_end(key)
            return self._places.get(key)

    def put(self, key: tuple[str, tuple[int, ...]], places: Places) -> None:
        with self._lock:
            self._places[key] = places
            self._places.move_to_end(key)
            while len(self._places) > self._size:
                self._places.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._places.clear()


_KNOWN = _Cache(_CACHED_TABLES)
