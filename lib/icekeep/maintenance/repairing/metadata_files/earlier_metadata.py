"""Which earlier metadata file a table begins again from: the newest that is sound and, as far as can be told, was the table.

A commit that loses a race, or is killed, may leave a sound metadata file that never was the table. What was the table is in the
log of what came after it: in the spoilt file, or in others beside it, be they ever so unsound or of lost races themselves.
"""

from collections.abc import Collection, Iterator

import msgspec

from icekeep.catalog.metadata_files import file_version, is_metadata_file
from icekeep.catalog.version_files import parse_version_name
from icekeep.errors import MissingFileError, UnsupportedError
from icekeep.maintenance.checking.metadata.earlier import Earlier, last_sound
from icekeep.maintenance.repairing.metadata_files.spoilt import SpoiltMetadata, is_named, salvaged, uuid_in
from icekeep.maintenance.repairing.reasons import CannotMendError
from icekeep.storage.base import FileInfo, ListingShare
from icekeep.storage.locations import canonical, is_location

_READ_MAX = 20
"""So many files beside the spoilt one are read, those nearest to it by their versions."""

_TEN = 10


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The file to begin again from.

    Attributes:
        is_logged: whether the catalog, or some metadata log, says that it was the table.
        passed_count: of versions between it and the spoilt one, as far as their names tell.
        followers: metadata files that follow the spoilt one, and are not taken: nobody says that they ever were the table.
    """

    sound: Earlier
    is_logged: bool
    passed_count: int
    followers: tuple[str, ...] = ()


class _Around(msgspec.Struct, kw_only=True):
    """What metadata files beside the spoilt one tell.

    Attributes:
        uuids: whose they are, those that may be lost left out.
        logged: candidates that one of them names.
        followers: those that name the spoilt one.
    """

    uuids: set[str] = set()
    logged: set[str] = set()
    followers: list[str] = []


def choose(spoilt: SpoiltMetadata, accepted: Collection[str]) -> Chosen:
    """Choose the metadata file that a table begins again from.

    Args:
        accepted: locations that may be lost; metadata files among them are passed over.

    Raises:
        CannotMendError: there is none, or nobody can tell which of several was the table, or whose they are.
        UnavailableError, UsageError: storage is out of reach, or denies access.
    """
    known = {"table-uuid": spoilt.table_uuid, "metadata-log": spoilt.log}
    earlier = last_sound(spoilt.storage, spoilt.location, known, without=accepted)
    found = [one for one in earlier if not _lost_to(spoilt, one)]
    if not found:
        raise CannotMendError(
            "no earlier metadata file of the table was found that is sound; bring the file back from a backup, and "
            "`icekeep check` tells what else is there"
        )
    around = _around(spoilt, found, {canonical(one) for one in accepted if is_location(one)})
    if spoilt.follows(found[0].location):
        one, is_logged = found[0], True
    else:
        _refuse_strangers(spoilt, around)
        one, is_logged = _newest(spoilt, found, around)
    passed = file_version(spoilt.location) - file_version(one.location) - 1
    return Chosen(
        sound=one,
        is_logged=is_logged,
        passed_count=max(0, passed) if file_version(one.location) >= 0 else 0,
        followers=tuple(around.followers),
    )


def _lost_to(spoilt: SpoiltMetadata, one: Earlier) -> bool:
    """Whether a file is one of those that lost a race: the catalog says that another of its version was the table."""
    previous = spoilt.previous_location
    is_of_the_version = previous is not None and file_version(previous) == file_version(one.location) >= 0
    return is_of_the_version and not spoilt.follows(one.location)


def _newest(spoilt: SpoiltMetadata, found: list[Earlier], around: _Around) -> tuple[Earlier, bool]:
    """The newest by version; of several of one version the one that a log names."""
    newest = max(found, key=lambda one: file_version(one.location))
    rivals = [newest]
    if file_version(newest.location) >= 0:
        rivals = [one for one in found if file_version(one.location) == file_version(newest.location)]
    logged = [one for one in rivals if one.location in around.logged or spoilt.follows(one.location)]
    if len(logged) == 1:
        return logged[0], True
    if len(rivals) == 1 and _are_versions(newest.location, spoilt.location):
        return newest, True
    if len(rivals) > 1:
        raise CannotMendError(
            f"{len(rivals)} sound metadata files have the version before it, and nothing tells which of them was the table; the "
            f"others are of commits that never landed: {', '.join(repr(one.location) for one in rivals)}; look at them, and "
            "name those that were not the table by --accept-loss too"
        )
    return newest, False


def _are_versions(*locations: str) -> bool:
    """Whether files have the names of versions in a directory, each of which lands by being created, and so was the table."""
    return all(parse_version_name(one.rpartition("/")[2]) is not None for one in locations)


def _refuse_strangers(spoilt: SpoiltMetadata, around: _Around) -> None:
    if spoilt.table_uuid is None and len(around.uuids) > 1:
        directory = spoilt.location.rpartition("/")[0]
        raise CannotMendError(
            f"metadata of {len(around.uuids)} tables lies in {directory!r}, and nothing that is left of the file says which of "
            "them this one is; find out, and register its metadata by hand: `icekeep drop` without --purge, then "
            "`icekeep register`"
        )


def _around(spoilt: SpoiltMetadata, found: list[Earlier], accepted: Collection[str]) -> _Around:
    """Look at metadata files beside the spoilt one, one after the other."""
    around = _Around()
    own_uuid = spoilt.table_uuid
    for location in _beside(spoilt):
        try:
            text = salvaged(spoilt.storage.read(location))
        except MissingFileError:
            continue
        said = uuid_in(text)
        if said is not None and canonical(location) not in accepted:
            around.uuids.add(said)
        # What is newer may be what a run like this one left, and names what that one took, whatever that was.
        if file_version(location) <= file_version(spoilt.location):
            around.logged |= {
                one.location for one in found if one.location != location and is_named(one.location, text)
            }
        if is_named(spoilt.location, text) and own_uuid in (None, said):
            around.followers.append(location)
    return around


def _beside(spoilt: SpoiltMetadata) -> list[str]:
    """Metadata files in the directory of the spoilt one, the nearest versions first."""
    directory, _, name = spoilt.location.rpartition("/")
    version = file_version(name)
    infos = [
        one.location
        for one in _listed(spoilt, directory, name, version)
        if is_metadata_file(one.location) and one.location.rpartition("/")[0] == directory
    ]
    others = [one for one in infos if canonical(one) != canonical(spoilt.location)]
    others.sort(key=lambda one: (abs(file_version(one) - version), one))
    return others[:_READ_MAX]


def _listed(spoilt: SpoiltMetadata, directory: str, name: str, version: int) -> Iterator[FileInfo]:
    """Files beside it; where names begin with versions only those with near ones, since manifests lie there too."""
    starts = ["v"] if name.startswith("v") else [f"{ten:04d}" for ten in _tens(version)]
    try:
        if version >= 0:
            for start in starts:
                yield from spoilt.storage.list_share(ListingShare(directory, is_deep=False, starts_with=start))
            return
    except UnsupportedError:
        # What begins alike is not together in this store's listings.
        pass
    yield from spoilt.storage.list(directory)


def _tens(version: int) -> range:
    return range(max(0, version // _TEN - 1), version // _TEN + 2)
