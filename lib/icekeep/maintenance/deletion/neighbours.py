"""The other tables of a table's catalog: whether one of them lies where this one deletes files.

catalog -> names -> pointers -> places -> compared. A table in another's directory looks like garbage of that other one, so
nothing is deleted from a table whose place is not its own. Only places are read out of the others' metadata: a table of a
version that is not known here has its place all the same.
"""

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Pointer, Table, format_identifier, one_line
from icekeep.catalog.version_files import parse_version_name
from icekeep.errors import IcekeepError, InvalidTableError, MissingFileError, NotFoundError, SafetyError
from icekeep.events import SILENT, Listener, Warned
from icekeep.maintenance.deletion.territory import place_of, table_roots
from icekeep.spec.layout import data_directory, metadata_directory
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.metadata_codec import unzipped

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16
_REQUESTS_EACH = 4
"""A thread may need a connection of its own, which fewer requests are not worth."""

_CACHED_TABLES = 10_000
_METADATA_MAX_BYTES = 1 << 30
"""A gzip file that grows beyond this is an attack or an accident, not table metadata."""


class Neighbours(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of the other tables, where none of them stands in the way.

    Attributes:
        unlisted_reason: why not all tables of the catalog are known; empty if they are.
        unreadable: names of tables whose place is not known, since they cannot be loaded.
        shares_data_path: names of tables that have a data or metadata directory which equals, contains or lies in one of
            this table's, though no location is involved. Each of them expires only files that its own metadata named;
            whoever takes files for garbage that no metadata names must not go on.
    """

    unlisted_reason: str = ""
    unreadable: tuple[str, ...] = ()
    shares_data_path: tuple[str, ...] = ()


class Places(msgspec.Struct, frozen=True):
    """Where a table is: its location, and its directories and metadata file as far as they may lie elsewhere."""

    table_uuid: str | None
    location: str
    elsewhere: tuple[str, ...]


class _Neighbour(msgspec.Struct, frozen=True):
    """Another table; `places` is null if it cannot be loaded, and `problem` says why."""

    identifier: Identifier
    metadata_location: str = ""
    places: Places | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        return format_identifier(self.identifier)


class _Document(msgspec.Struct, rename="kebab"):
    """As much of table metadata, of any version, as says where a table is."""

    location: str
    table_uuid: str | None = None
    properties: dict[str, Any] | None = None


def neighbours(table: Table, *, looked_at: str = "", is_listed: bool = True, listener: Listener = SILENT) -> Neighbours:
    """Look at the places of all other tables in a table's catalog, and refuse those that meet this one's.

    Args:
        looked_at: a directory that counts as one of the table's, since files in it are about to be taken for garbage.
        is_listed: false for a table that the catalog does not have yet, or not any more: then it need not list it.

    Raises:
        SafetyError: another table's location equals, contains or lies in this one's location or directories, or this one's
            location meets the other's directories, or the other is the same table under a second name.
        InvalidTableError: the table's own location is none.
    """
    ours = _own_places(table, looked_at)
    identifiers, unlisted_reason = _all_tables(table, is_listed=is_listed)
    others = [other for other in identifiers if other != table.identifier]
    found = [n for n in _each(lambda other: _look(table.catalog, other), others) if n is not None]
    if table.identifier not in identifiers:
        # Some catalogs fold the case of names, and list this one under another spelling.
        found = [
            n for n in found if not (_is_same_table(table, n) and _folded(n.identifier) == _folded(table.identifier))
        ]
    for neighbour in found:
        _refuse_overlap(table, ours, neighbour)
    if unlisted_reason:
        listener.on(Warned(f"tables that are not known may lie where table {table.name!r} does: {unlisted_reason}"))
    for neighbour in found:
        if neighbour.places is None:
            listener.on(Warned(f"it cannot be told where table {neighbour.name!r} lies: {neighbour.problem}"))
    return Neighbours(
        unlisted_reason=unlisted_reason,
        unreadable=tuple(n.name for n in found if n.places is None),
        shares_data_path=tuple(n.name for n in found if n.places is not None and _shares(ours, n.places)),
    )


def forget_places() -> None:
    """Forget what was read of tables so far, as for another catalog whose metadata files have the same names."""
    _KNOWN.clear()


def _own_places(table: Table, looked_at: str) -> Places:
    location = table.metadata.location
    if place_of(location) is None:
        raise InvalidTableError(f"table {table.name!r} has location {location!r}, which is no location")
    roots = (*table_roots(table.metadata), *filter(None, [looked_at]))
    elsewhere = tuple(root for root in roots if _key(root) != _key(location))
    return Places(table.metadata.table_uuid, location, elsewhere)


def _all_tables(table: Table, *, is_listed: bool) -> tuple[list[Identifier], str]:
    """The names of all tables of the catalog, and why not all of them could be listed."""
    catalog, problems = table.catalog, []
    namespaces = {table.identifier[:-1]}
    try:
        namespaces.update(catalog.list_namespaces())
    except IcekeepError as error:
        problems.append(f"catalog {catalog.name!r} does not list its namespaces: {one_line(error)}")

    def list_one(namespace: Identifier) -> tuple[Sequence[Identifier], str]:
        try:
            return catalog.list_tables(namespace), ""
        except NotFoundError:
            # Somebody dropped it since the namespaces were listed.
            return (), ""
        except IcekeepError as error:
            text = format_identifier(namespace)
            return (), f"catalog {catalog.name!r} does not list the tables of namespace {text!r}: {one_line(error)}"

    identifiers: list[Identifier] = []
    for listed, problem in _each(list_one, sorted(namespaces)):
        identifiers += listed
        problems += [problem] if problem else []
    if is_listed and not problems and _folded(table.identifier) not in map(_folded, identifiers):
        problems.append(f"catalog {catalog.name!r} does not list the table itself, so it may not list others")
    return identifiers, "; ".join(problems)


def _look(catalog: Catalog, identifier: Identifier) -> _Neighbour | None:
    """One other table; null if it is gone."""
    try:
        pointer = catalog.find(identifier)
        while True:
            try:
                return _Neighbour(identifier, pointer.metadata_location, _places(pointer))
            except MissingFileError:
                # A table that keeps few metadata files may have moved on.
                missing, pointer = pointer.metadata_location, catalog.find(identifier)
                if pointer.metadata_location == missing:
                    raise
    except NotFoundError as error:
        return _Neighbour(identifier, problem=one_line(error)) if _is_listed(catalog, identifier) else None
    except IcekeepError as error:
        return _Neighbour(identifier, problem=one_line(error))


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
        document = msgspec.json.decode(unzipped(data, _METADATA_MAX_BYTES), type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, EOFError, OSError, zlib.error) as error:
        raise InvalidTableError(
            f"cannot read table metadata {metadata_location!r}: {error}", location=metadata_location
        ) from error
    if place_of(document.location) is None:
        raise InvalidTableError(
            f"table metadata {metadata_location!r} has location {document.location!r}, which is no location",
            location=metadata_location,
        )
    document.properties = {k: v for k, v in (document.properties or {}).items() if isinstance(v, str)}
    # Location and properties are all that the layout asks for.
    like_metadata = cast(TableMetadata, document)
    named = (data_directory(like_metadata), metadata_directory(like_metadata), metadata_location)
    places = {named_one: place_of(named_one) for named_one in named}
    # A whole bucket says nothing about where in it the files are.
    elsewhere = tuple(location for location, place in places.items() if place is not None and not place.is_bare)
    return Places(document.table_uuid, document.location, elsewhere)


def _refuse_overlap(table: Table, ours: Places, neighbour: _Neighbour) -> None:
    theirs = neighbour.places
    if theirs is None:
        return
    facts = {"table": table.name, "other": neighbour.name, "location": ours.location, "other_location": theirs.location}
    if _is_same_table(table, neighbour):
        raise SafetyError(
            f"table {table.name!r} at {ours.location!r} is in catalog {table.catalog.name!r} a second time, as "
            f"{neighbour.name!r} at {theirs.location!r}: what one of them expires the other may still name, so nothing is "
            "deleted; drop one of the two names without purging it",
            **facts,
        )
    pairs = [
        (ours.location, theirs.location),
        *((directory, theirs.location) for directory in ours.elsewhere),
        *((ours.location, directory) for directory in theirs.elsewhere),
    ]
    for our_place, their_place in pairs:
        relation = _relation(our_place, their_place)
        if relation:
            raise SafetyError(
                f"{our_place!r} of table {table.name!r} {relation} {their_place!r} of table {neighbour.name!r}: files of "
                "one would look like garbage of the other, so nothing is deleted; move one of the two tables to a place of "
                "its own, or drop the one that is not in use without purging it",
                **facts,
            )


def _shares(ours: Places, theirs: Places) -> bool:
    return any(_relation(a, b) for a in ours.elsewhere for b in theirs.elsewhere)


def _relation(ours: str, theirs: str) -> str:
    """How two places that meet do so; empty if they do not."""
    our_key, their_key = _key(ours), _key(theirs)
    (our_store, our_host, our_path), (their_store, their_host, their_path) = _parts(our_key), _parts(their_key)
    # A location without an authority is in the store that is the default of whoever wrote it, which may be any.
    if our_store != their_store or (our_host and their_host and our_host != their_host):
        return ""
    if our_path == their_path:
        return "is the same place as"
    if their_path.startswith(our_path.rstrip("/") + "/"):
        return "contains"
    return "lies in" if our_path.startswith(their_path.rstrip("/") + "/") else ""


def _parts(key: str) -> tuple[str, str, str]:
    scheme, _, rest = key.partition("://")
    host, slash, path = rest.partition("/")
    return scheme, host, slash + path


def _key(location: str) -> str:
    place = place_of(location)
    return "" if place is None else place.key


def _is_same_table(table: Table, neighbour: _Neighbour) -> bool:
    theirs, uuid = neighbour.places, table.metadata.table_uuid
    if theirs is None:
        return False
    is_same_uuid = bool(uuid and theirs.table_uuid) and str(uuid).lower() == str(theirs.table_uuid).lower()
    return is_same_uuid or _key(neighbour.metadata_location) == _key(table.metadata_location)


def _folded(identifier: Identifier) -> tuple[str, ...]:
    return tuple(part.casefold() for part in identifier)


def _each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """The answers for some items, in their order; in threads where there are many."""
    these = list(items)
    threads = min(_THREADS, len(these) // _REQUESTS_EACH)
    if threads < 2:
        return [work(item) for item in these]
    with ThreadPoolExecutor(threads, thread_name_prefix="neighbours") as pool:
        return list(pool.map(work, these))


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
