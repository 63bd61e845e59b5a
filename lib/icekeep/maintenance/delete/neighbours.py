"""The other tables of a table's catalog: whether one of them lies where this one deletes files.

A table in another's directory looks like garbage of that other one, so nothing is deleted from a table whose location is not its
own. Where they lie is in `looks`.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, SafetyError
from icekeep.events import SILENT, Listener, Warned
from icekeep.maintenance.delete.locations import Neighbour, TableLocations, compared, named_roots, table_locations
from icekeep.maintenance.delete.looks import FRESH_MS, LOOK_MS, all_tables, folded
from icekeep.spec.properties import data_directory
from icekeep.spec.types import DAY_MS
from icekeep.storage.local.links import real_location

_CACHED_LOCATIONS = 20_000
"""Each table of a run is held against each other one: of 500, places are compared a million times."""

_SLASHES_OF_A_STORE = 2
"""In the key of a whole bucket or disk."""


_CONTAINS, _LIES_IN, _SAME = "contains", "lies in", "is the same place as"


class Neighbours(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of the other tables, where none of them stands in the way.

    Attributes:
        unlisted_reason: why not all tables of the catalog are known; empty if they are.
        unreadable: names of tables whose place is not known, since they cannot be loaded and the catalog does not tell it.
        accepted: those of them that the operator accepts by name, who says that they lie elsewhere; not in `unreadable`.
        other_roots: places of other tables that lie in a place where files of this one may go, or hold its location, and are
            not refused (`deletable_locations`).
    """

    unlisted_reason: str = ""
    unreadable: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    other_roots: tuple[str, ...] = ()


class _Overlap(msgspec.Struct, frozen=True):
    """A place of this table and one of another that meet; `relation` says how, as "contains"."""

    ours: str
    relation: str
    theirs: str


def neighbours(  # noqa: PLR0913 - what a run was asked for
    table: Table,
    *,
    roots: Sequence[str] = (),
    looked_at: str = "",
    refuses_overlap: bool = True,
    accepted: Collection[str] = (),
    dead_uuids: Collection[str] = (),
    is_listed: bool = True,
    is_asked_daily: bool = False,
    listener: Listener = SILENT,
) -> Neighbours:
    """Look at the locations of all other tables in a table's catalog, and refuse those that meet this one's.

    Args:
        roots: directories that the operator names for the run, beside those of the catalog's configuration.
        looked_at: the directory whose files are about to be taken for garbage: then the others are held against it alone, and
            not against this table's location and directories, where there is only a warning (`other_roots`).
        refuses_overlap: false for a job that deletes only what the table's own metadata named: then places that lie in each
            other are a warning (`other_roots`), and only those that are one and the same are refused.
        accepted: names of tables that may be unreadable.
        dead_uuids: of tables that the operator says are dead: none of the others may have one, in lower case.
        is_listed: false for a table that the catalog does not have yet, or not any more: then it need not list it.
        is_asked_daily: a look of the last day is good enough, if one is written down; names are listed all the same.

    Raises:
        TryAgainError: the catalog is out of reach while it is to list its tables.
        ConfigError: it is not where the configuration says, and lists none.
        SafetyError: another table's location equals, contains or lies in this one's location or directories, or this one's
            location meets the other's directories; or the other is the same table under a second name, or is said to be dead.
        InvalidTableError: the table's own location is none.
    """
    location, named = table.metadata.location, named_roots(table, roots)
    if compared(location) is None:
        raise InvalidTableError(f"table {table.name!r} has location {location!r}, which is no location")
    elsewhere = tuple(root for root in table_locations(table.metadata) if _key(root) != _key(location))
    ours = TableLocations(table.metadata.table_uuid, location, elsewhere)
    judged = TableLocations(ours.table_uuid, looked_at, ()) if looked_at else ours
    max_age_ms = DAY_MS if is_asked_daily else FRESH_MS if looked_at else LOOK_MS
    unlisted_reason, found = _others(table, max_age_ms, is_listed=is_listed)
    for neighbour in found:
        _refuse_same(table, neighbour, dead_uuids)
        _refuse_overlap(table, judged, neighbour, nested_too=refuses_overlap)
    others = [place for neighbour in found for place in _other_roots(table, ours, named, neighbour, listener)]
    if unlisted_reason:
        listener.on(Warned(f"tables that are not known may lie where table {table.name!r} does: {unlisted_reason}"))
    for neighbour in found:
        _warn_of_problem(neighbour, accepted, listener)
    unknown = [n.name for n in found if n.locations is None or n.may_lie_elsewhere]
    return Neighbours(
        unlisted_reason=unlisted_reason,
        unreadable=tuple(name for name in unknown if name not in accepted),
        accepted=tuple(sorted(name for name in unknown if name in accepted)),
        other_roots=tuple(dict.fromkeys(others)),
    )


def refuse_files_of_others(table: Table, files: Iterable[Sequence[str]]) -> None:
    """Refuse to read files for a table that lie in a place of another one: a manifest can name any.

    Below the table's own location, and its own data directory, another one's location alone keeps files from being read, and no
    directory that its properties name: tables may share a data directory, and anybody may name one. The other tables are looked
    at only where a file lies outside a location that has the table's name.

    Args:
        files: locations, in as many parts as they come in.

    Raises:
        SafetyError: one lies there, and below no `rewrite.roots` of the catalog.
        TryAgainError, ConfigError: as `neighbours`.
    """
    _real.cache_clear()
    location, data = _key(table.metadata.location), _key(data_directory(table.metadata))
    # Called as the table is, as the location is that a catalog gives it, perhaps with a uuid behind.
    name, called = table.identifier[-1].casefold(), location.rstrip("/").rpartition("/")[2].casefold()
    has_name = called == name or called.startswith(f"{name}-")
    allowed = [*map(_key, table.catalog.rewrite_roots), *([location] if has_name else [])]
    own = [root for root in (location, data) if root.count("/") > _SLASHES_OF_A_STORE]
    strangers: dict[str, str] = {}
    for some in files:
        for file in some:
            strangers.setdefault(file.rpartition("/")[0], file)
    strangers = {at: file for at, file in strangers.items() if not any(_holds(root, _key(at)) for root in allowed)}
    if not strangers:
        return
    found = [(n, n.locations) for n in _others(table, LOOK_MS)[1] if n.locations is not None]
    locations = {_key(theirs.location): n for n, theirs in found}
    named = {_key(at): n for n, theirs in found for at in theirs.elsewhere if not _is_wide(at, theirs)}
    for directory, file in strangers.items():
        key = _key(directory)
        places = locations if any(_holds(root, key) for root in own) else {**named, **locations}
        while key.count("/") > _SLASHES_OF_A_STORE:
            if key in places:
                raise SafetyError(
                    f"file {file!r} of table {table.name!r} lies in a place of table {places[key].name!r}, whose rows would be "
                    "copied: nothing is rewritten; if it was added on purpose, name its directory in the catalog's rewrite.roots",
                    **_facts(table, file, places[key]),
                )
            key = key.rpartition("/")[0]


def _holds(root: str, key: str) -> bool:
    return key == root or key.startswith(root.rstrip("/") + "/")


def _others(table: Table, max_age_ms: int, *, is_listed: bool = True) -> tuple[str, list[Neighbour]]:
    """Why not all other tables are known, and those that are, the tables of other catalogs in the same database among them."""
    _real.cache_clear()
    identifiers, unlisted_reason, found = all_tables(table, max_age_ms, is_listed=is_listed)
    if table.identifier not in identifiers:
        # Some catalogs fold the case of names, and list this one under another spelling.
        found = [
            n for n in found if not (_is_same_table(table, n) and folded(n.identifier) == folded(table.identifier))
        ]
    return unlisted_reason, found


def _warn_of_problem(neighbour: Neighbour, accepted: Collection[str], listener: Listener) -> None:
    if not neighbour.problem:
        return
    if neighbour.locations is not None:
        listener.on(
            Warned(
                f"table {neighbour.name!r} cannot be loaded and is judged by where the catalog says that it lies, "
                f"{neighbour.locations.location!r}: {neighbour.problem}"
            )
        )
        return
    is_accepted = ", which is accepted" if neighbour.name in accepted else ""
    listener.on(Warned(f"it is not known where table {neighbour.name!r} lies{is_accepted}: {neighbour.problem}"))


def _refuse_same(table: Table, neighbour: Neighbour, dead_uuids: Collection[str]) -> None:
    theirs = neighbour.locations
    if theirs is None:
        return
    if _is_same_table(table, neighbour):
        raise SafetyError(
            f"table {table.name!r} at {table.metadata.location!r} is in catalog {table.catalog.name!r} a second time, as "
            f"{neighbour.name!r} at {theirs.location!r}: what one of them expires the other may still name, so nothing is "
            "deleted; drop one of the two names without purging it",
            **_facts(table, table.metadata.location, neighbour),
        )
    if theirs.table_uuid is not None and theirs.table_uuid.lower() in dead_uuids:
        raise SafetyError(
            f"table {theirs.table_uuid} is said to be dead, but is {neighbour.name!r} in catalog {table.catalog.name!r}: nothing "
            "is deleted; leave its uuid out of ignore-metadata-of",
            **_facts(table, table.metadata.location, neighbour),
        )


def _refuse_overlap(table: Table, judged: TableLocations, neighbour: Neighbour, *, nested_too: bool) -> None:
    for one in _overlaps(_pairs(judged, neighbour.locations)):
        if nested_too or one.relation == _SAME:
            raise SafetyError(
                f"{one.ours!r} of table {table.name!r} {one.relation} {one.theirs!r} of table {neighbour.name!r}: files of "
                "one would look like garbage of the other, so nothing is deleted; move one of the two tables to a place of "
                "its own, or drop the one that is not in use without purging it",
                **_facts(table, judged.location, neighbour),
            )


def _other_roots(
    table: Table, ours: TableLocations, roots: Sequence[str], neighbour: Neighbour, listener: Listener
) -> list[str]:
    """Places of a table that was not refused, where files of this one stay; warns how the two overlap."""
    found = _overlaps(_pairs(ours, neighbour.locations))
    if found:
        one = found[0]
        named = ""
        if one.relation == _LIES_IN:
            named = f"; if files below {one.ours!r} belong to {table.name!r}, name it in reclaim.roots"
        listener.on(
            Warned(
                f"{one.ours!r} of table {table.name!r} {one.relation} {one.theirs!r} of table {neighbour.name!r}: files in "
                f"places of that table are kept{named}"
            )
        )
    theirs = neighbour.locations
    if theirs is None:
        return []
    places = (theirs.location, *theirs.elsewhere)
    met = _overlaps((root, place) for root in (ours.location, *roots) for place in places)
    inner = [one for one in met if one.relation == _CONTAINS]
    outer = [one for one in met if one.ours == ours.location and one.relation in (_LIES_IN, _SAME)]
    outer = [one for one in outer if not _is_wide(one.theirs, theirs)]
    # What is named for all tables of the catalog says not whose it is.
    tied = [one for one in met if one.ours in table.catalog.reclaim_roots]
    tied = [
        one for one in tied if one.relation == _SAME or (one.relation == _LIES_IN and not _is_wide(one.theirs, theirs))
    ]
    for one in tied:
        is_at_home = _relation(ours.location, one.ours) in (_CONTAINS, _SAME)
        if not is_at_home and any(_relation(claim, one.ours) in (_LIES_IN, _SAME) for claim in ours.elsewhere):
            listener.on(
                Warned(
                    f"{one.ours!r} in reclaim.roots of catalog {table.catalog.name!r} {one.relation} {one.theirs!r} of table "
                    f"{neighbour.name!r}, so it does not count for table {table.name!r}; if files there are its own, name it "
                    "with --option reclaim.roots"
                )
            )
    found_roots = []
    for one in inner:
        # Theirs may leave out the store that our files name.
        below = _parts(_key(one.theirs))[2].removeprefix(_parts(_key(one.ours))[2].rstrip("/"))
        found_roots += [one.theirs, one.ours.rstrip("/") + below]
    for one in (*outer, *tied):
        # By its text theirs need not be, or hold, ours: one may leave out its store, or be a link.
        our_text, their_text = compared(one.ours), compared(one.theirs)
        is_outer = our_text == their_text or (our_text and their_text and their_text.holds(our_text))
        found_roots.append(one.theirs if our_text and is_outer else one.ours)
    return found_roots


def _is_wide(place: str, theirs: TableLocations) -> bool:
    """Whether a directory of a table lies above its location: such as all tables of a warehouse may share is nobody's own."""
    return _relation(place, theirs.location) == _CONTAINS


def _pairs(ours: TableLocations, theirs: TableLocations | None) -> list[tuple[str, str]]:
    """The places of two tables of which none may meet."""
    if theirs is None:
        return []
    return [
        (ours.location, theirs.location),
        *((directory, theirs.location) for directory in ours.elsewhere),
        *((ours.location, directory) for directory in theirs.elsewhere),
    ]


def _overlaps(pairs: Iterable[tuple[str, str]]) -> list[_Overlap]:
    """Those of some pairs of places that meet, one of ours and one of theirs each."""
    related = [_Overlap(our_root, _relation(our_root, their_root), their_root) for our_root, their_root in pairs]
    return [one for one in related if one.relation]


def _facts(table: Table, our_root: str, neighbour: Neighbour) -> dict[str, str]:
    theirs = "" if neighbour.locations is None else neighbour.locations.location
    return {"table": table.name, "other": neighbour.name, "location": our_root, "other_location": theirs}


def _relation(ours: str, theirs: str) -> str:
    """How two places that meet do so; empty if they do not."""
    our_key, their_key = _key(ours), _key(theirs)
    (our_store, our_host, our_path), (their_store, their_host, their_path) = _parts(our_key), _parts(their_key)
    # A location without an authority is in the store that is the default of whoever wrote it, which may be any.
    if our_store != their_store or (our_host and their_host and our_host != their_host):
        return ""
    if our_path == their_path:
        return _SAME
    if their_path.startswith(our_path.rstrip("/") + "/"):
        return _CONTAINS
    return _LIES_IN if our_path.startswith(their_path.rstrip("/") + "/") else ""


@lru_cache(_CACHED_LOCATIONS)
def _parts(key: str) -> tuple[str, str, str]:
    scheme, _, rest = key.partition("://")
    host, slash, path = rest.partition("/")
    return scheme, host, slash + path


def _key(location: str) -> str:
    """How a place is compared: a directory that two links lead to is one place."""
    return _key_of(_real(location))


@lru_cache(_CACHED_LOCATIONS)
def _real(location: str) -> str:
    return real_location(location)


@lru_cache(_CACHED_LOCATIONS)
def _key_of(location: str) -> str:
    place = compared(location)
    return "" if place is None else place.key


def _is_same_table(table: Table, neighbour: Neighbour) -> bool:
    theirs, uuid = neighbour.locations, table.metadata.table_uuid
    if theirs is None:
        return False
    is_same_uuid = bool(uuid and theirs.table_uuid) and str(uuid).lower() == str(theirs.table_uuid).lower()
    return is_same_uuid or _key(neighbour.metadata_location) == _key(table.metadata_location)
