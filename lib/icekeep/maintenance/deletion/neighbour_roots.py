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
from icekeep.decoding import from_json
from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    NotFoundError,
    UnsupportedError,
    first_line,
)
from icekeep.maintenance.deletion.territory import compared
from icekeep.spec.metadata import TableMetadata, unpacked
from icekeep.spec.properties import data_directory, metadata_directory

_CACHED_TABLES = 10_000
_METADATA_MAX_BYTES = 1 << 30
"""A packed file that grows beyond this is an attack or an accident, not table metadata."""


class TableRoots(msgspec.Struct, frozen=True):
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
    places: TableRoots | None = None
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


def recalled(identifier: Identifier, pointer: Pointer) -> Neighbour | None:
    """One other table whose metadata file is known by now and never changes; `None` where it is to be looked at."""
    location = pointer.metadata_location
    known = None if _may_change(location) else _KNOWN.get((location, ()))
    return None if known is None else Neighbour(identifier, location, known)


def look_at(catalog: Catalog, identifier: Identifier, pointer: Pointer | None = None) -> Neighbour | None:
    """One other table, by its pointer where that was told; `None` if it is gone."""
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
        places, is_whole = _roots_by_catalog(catalog, identifier)
        # A table of another format has no properties that could lead elsewhere.
        may_lie_elsewhere = not is_whole and not isinstance(error, UnsupportedError)
        return Neighbour(identifier, places=places, problem=first_line(error), may_lie_elsewhere=may_lie_elsewhere)


def look_by(identifier: Identifier, pointer: Pointer) -> Neighbour:
    """One other table, by its pointer alone; raises `IcekeepError` where its metadata cannot be read."""
    return Neighbour(identifier, pointer.metadata_location, _roots(pointer))


def forget_roots() -> None:
    """Forget what was read of tables so far, as for another catalog whose metadata files have the same names."""
    _KNOWN.clear()


def _roots_by_catalog(catalog: Catalog, identifier: Identifier) -> tuple[TableRoots | None, bool]:
    """Where the catalog says that a table is whose metadata cannot be read, and whether it can be nowhere else."""
    try:
        told = catalog.describe(identifier)
        if told is None or compared(told.location) is None:
            return None, False
        return _roots_of(_Document(told.location, None, dict(told.properties)), *told.elsewhere), told.is_whole
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


def _roots(pointer: Pointer) -> TableRoots:
    """Where the table of a pointer is, read if that is not known yet."""
    location = pointer.metadata_location
    stamp: tuple[int, ...] = ()
    if _may_change(location):
        info = pointer.storage.head(location)
        stamp = () if info is None else (info.size_bytes, info.modified_ms)
    known = _KNOWN.get((location, stamp))
    if known is None:
        known = _parsed_roots(pointer.storage.read(location), location)
        _KNOWN.put((location, stamp), known)
    return known


def _may_change(metadata_location: str) -> bool:
    """Numbers come again when a table is dropped and created again; other names have an identifier that does not."""
    return parse_version_name(metadata_location.rsplit("/", 1)[-1]) is not None


def _parsed_roots(data: bytes, metadata_location: str) -> TableRoots:
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
    return _roots_of(document, metadata_location)


def _roots_of(document: _Document, *more: str) -> TableRoots:
    """The places that a table's location and properties say, and those that are known besides."""
    document.properties = {k: v for k, v in (document.properties or {}).items() if isinstance(v, str)}
    # Location and properties are all that the layout asks for.
    like_metadata = cast(TableMetadata, document)
    named = (data_directory(like_metadata), metadata_directory(like_metadata), *more)
    places = {named_one: compared(named_one) for named_one in named}
    # A whole bucket says nothing about where in it the files are.
    elsewhere = tuple(location for location, place in places.items() if place is not None and not place.is_bare)
    return TableRoots(document.table_uuid, document.location, elsewhere)


class _Cache:
    """TableRoots by metadata location, those that were asked for last; may be used from several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._roots: OrderedDict[tuple[str, tuple[int, ...]], TableRoots] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, tuple[int, ...]]) -> TableRoots | None:
        with self._lock:
            if key in self._roots:
                self._roots.move_to_end(key)
            return self._roots.get(key)

    def put(self, key: tuple[str, tuple[int, ...]], places: TableRoots) -> None:
        with self._lock:
            self._roots[key] = places
            self._roots.move_to_end(key)
            while len(self._roots) > self._size:
                self._roots.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._roots.clear()


_KNOWN = _Cache(_CACHED_TABLES)
