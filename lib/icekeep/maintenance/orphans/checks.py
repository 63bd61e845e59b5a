"""What must hold before a file is taken for an orphan: refusals, each of which says what was seen and what to do."""

from collections.abc import Sequence

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.unknown_keys import unknown_names
from icekeep.errors import ConflictError, InvalidTableError, SafetyError, UsageError, and_more, argument
from icekeep.maintenance.deletion.neighbours import Neighbours
from icekeep.maintenance.deletion.reclaim import refuse_if_gc_is_disabled
from icekeep.maintenance.deletion.territory import check_roots, territory
from icekeep.maintenance.orphans import JOB
from icekeep.maintenance.orphans.comparing import Mismatch
from icekeep.maintenance.orphans.listing import Listing
from icekeep.maintenance.orphans.options import Search
from icekeep.planning.spark.session import refuse_encrypted
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.storage.locations import is_location, is_under, loose_path, parse_location, without_dots

_NAMED_TABLES = 5


def refuse(table: Table) -> None:
    """Refuse a table whose files must not be judged by its metadata.

    Raises:
        SafetyError: the table has `gc.enabled=false`, or its catalog a garbage collector of its own.
        UnsupportedError: the table is encrypted.
    """
    refuse_if_gc_is_disabled(table)
    refuse_encrypted(table.metadata, JOB.name)


def refuse_neighbours(table: Table, found: Neighbours) -> None:
    """Raise `SafetyError` where it is not known of all tables of the catalog that they lie elsewhere."""
    names = found.unreadable
    if names:
        named = ", ".join(map(repr, names[:_NAMED_TABLES]))
        raise SafetyError(
            f"files below table {table.name!r} may belong to others: tables {named}{and_more(names, _NAMED_TABLES)} cannot "
            "be loaded, so that it is not known where their files are; nothing is deleted; repair them, drop them from the "
            "catalog without purging them, or, if you know that they lie elsewhere, name them in "
            f"{argument('accept_unreadable')}",
            tables=list(names),
        )


def checked_root(metadata: TableMetadata, search: Search) -> str:
    """The directory that is listed, of a table and a search that hold so far; nothing is read for it.

    Raises:
        UsageError: the location is none.
        OptionError: a root that the options add is none.
        SafetyError: the location is icekeep's own.
        UnsupportedError: the table is encrypted.
    """
    refuse_encrypted(metadata, JOB.name)
    check_roots(search.options.roots)
    given = metadata.location if search.location is None else search.location
    try:
        location = without_dots(given)
    except InvalidTableError as error:
        raise UsageError(f"{error.message}", location=search.location) from None
    if OWN_DIRECTORY in parse_location(location).path.split("/"):
        raise SafetyError(f"location {given!r} is icekeep's own, which keeps its files itself; name another directory")
    # Of a whole disk no more than the scheme would be left.
    root = location.rstrip("/")
    return root if is_location(root) else location


def refuse_unknown_names(table: Table, root: str) -> None:
    """Raise `SafetyError` where metadata names something below the root by a key that is not known: it may lead to more files."""
    for location, key in unknown_names(table.metadata).items():
        if is_location(location) and _may_lie_under(location, root):
            raise SafetyError(
                f"metadata of table {table.name!r} names {location!r} by the key {key!r}, which this icekeep does not know: "
                f"files below {root!r} that it leads to would be taken for orphans; nothing is deleted; use an icekeep that "
                "knows the key",
                location=location,
            )


def _may_lie_under(location: str, root: str) -> bool:
    """Whether a location lies below a directory in the spelling by which files are compared that may be deleted."""
    return is_under(location, root) or loose_path(location).startswith(f"{loose_path(root).rstrip('/')}/")


def refuse_outside(table: Table, root: str, search: Search) -> None:
    """Raise `SafetyError` where the directory that is listed lies where files of this table must not be deleted."""
    # The territory is asked for files: one right in the directory stands for all below it.
    places = territory(table, search.options.roots)
    if not places.holds(f"{root}/any"):
        raise SafetyError(
            f"location {root!r} does not lie in a place of the table ({', '.join(map(repr, places.roots))}): "
            "files there may belong to somebody else; allow it with the option reclaim.roots if they do not",
            location=root,
        )


def refuse_unmatched(table: Table, root: str, listing: Listing, search: Search) -> None:
    """Raise `SafetyError`: metadata leads to files below the root, and none of them was listed.

    Where something was listed, paths are spelled in different ways; where nothing was, it is the wrong list or place.
    """
    if listing.files_count:
        problem = (
            "none of those listed there is one of them: paths must be spelled in different ways, and live files would be taken "
            "for orphans; nothing is deleted; compare a path that is listed with one in the metadata"
        )
    elif search.file_list_view is None:
        problem = "no file was listed there; nothing is deleted; see whether they are gone, or lie in another store"
    else:
        others = f", and {listing.outside_count:,} that lie elsewhere" if listing.outside_count else ""
        problem = (
            f"{argument('file_list_view')} {search.file_list_view!r} names none there{others}; nothing is deleted; give a list "
            "of all files below that location"
        )
    raise SafetyError(f"metadata of table {table.name!r} leads to files below {root!r}, but {problem}", location=root)


def refuse_mismatches(count: int, mismatches: Sequence[Mismatch]) -> None:
    """Raise `SafetyError` where metadata has listed files under other schemes or authorities."""
    if count:
        named = "; ".join(f"listed {c.listed!r}, in metadata as {c.metadata!r}" for c in mismatches)
        raise SafetyError(
            f"{count} listed files have the path of a live file but another scheme or authority, so it cannot be told whether "
            f"they are orphans: {named}; say which are equal with {argument('equal_schemes')} and "
            f"{argument('equal_authorities')}, or keep such files with {argument('prefix_mismatch_mode')} IGNORE",
            count=count,
        )


def refuse_foreign(
    table: Table, root: str, foreign: Sequence[str], forks: Sequence[str], unfinished: Sequence[str] = ()
) -> None:
    """Refuse to go on where there is metadata that leads to files which this table's metadata does not know of.

    Args:
        foreign, forks: of other tables, and of another line of this one's history; each says which file.
        unfinished: young files that may be those of a commit under way.

    Raises:
        SafetyError: something is `foreign`, or there are `forks`.
        ConflictError: all that stands in the way is `unfinished`.
    """
    if foreign:
        raise SafetyError(
            f"below {root!r} there is table metadata that is not of table {table.name!r}: {foreign[0]}"
            f"{and_more(foreign)}; its files would look like orphans, so nothing is deleted; move that table, or its metadata "
            "if it is dead, to another place, or name a dead table with --option ignore-metadata-of=UUID",
            files=[*foreign],
        )
    if forks:
        raise SafetyError(
            f"metadata that descends from the current one of table {table.name!r}, or is further on, is not in its history: "
            f"{forks[0]}{and_more(forks)}; another catalog may have this table too, or a commit died before it landed; nothing "
            "is deleted; find out which line of history is the right one, and if it is the catalog's, commit to the table or "
            f"give --option ignore-metadata-of={table.metadata.table_uuid}",
            files=[*forks],
        )
    if unfinished:
        raise ConflictError(
            f"somebody is writing metadata of table {table.name!r}, or died at it a short time ago: {unfinished[0]}"
            f"{and_more(unfinished)}; nothing is deleted; run it again later",
            files=[*unfinished],
        )


class OrphanShare(msgspec.Struct, frozen=True):
    """How many of the files that count would go; metadata files in no log do not count."""

    orphans_count: int
    files_count: int

    def problem(self, most: float) -> str | None:
        """What stands against deleting so many, `None` where nothing does.

        Args:
            most: the greatest share that is deleted without asking.
        """
        if self.orphans_count <= most * self.files_count:
            return None
        return (
            f"{self.orphans_count:,} of the {self.files_count:,} files that were listed would go, which is more than "
            f"{most:.0%}: something may be wrong with the listing or with the metadata; nothing is deleted; look at the plan, "
            "and if it is right run with --approve HASH for exactly these files, or with --force, or raise max-orphan-ratio"
        )
