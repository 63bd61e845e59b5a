"""The version files of a dropped table in a filesystem catalog: moved aside by the drop, and back when it is registered again.

They lie in `<table>/.icekeep/trash/drop-<uuid>/`, under their names. As long as they do the table can come back, whatever table
has its place meanwhile: no job takes its files for garbage, and none deletes the version files of another table.
"""

import re
from collections.abc import Iterator
from contextlib import suppress

from icekeep.catalog.version_files import list_versions, parse_version_name
from icekeep.errors import IcekeepError
from icekeep.runtime import Runtime
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical, checksum_location, has_checksum_files, join

_TRASH = f"{OWN_DIRECTORY}/trash"
DROPPED_PREFIX = "drop-"
"""So begin the names of the directories in the trash that hold them."""

_ASIDE = rf"(?:^|/){re.escape(_TRASH)}/{DROPPED_PREFIX}[^/]+/"
_VERSION_NAME = r"v[0-9]+\.(?:[a-z]+\.)?metadata\.json(?:\.gz)?"

MOVED_ASIDE = f"{_ASIDE}{_VERSION_NAME}$"
"""A location of one of them, whatever is before that, as a pattern for Python and for Arrow."""

CHECKSUM_ASIDE = rf"{_ASIDE}\.{_VERSION_NAME}\.crc$"
"""The same of the checksum file that Hadoop wrote beside one."""


def new_trash(table_location: str, runtime: Runtime) -> str:
    """A directory for the version files of a table that is being dropped."""
    return join(table_location, _TRASH, f"{DROPPED_PREFIX}{runtime.new_uuid()}")


def move_aside(storage: Storage, directory: str, trash: str) -> str | None:
    """Move all version files out of a metadata directory, the head last; returns where that is now.

    A checksum goes before its file: one that is left behind would be that of the next file of the name, which needs none.
    """
    moved = None
    for _, locations in sorted(list_versions(storage, directory).items()):
        for location in locations:
            moved = join(trash, _name(location))
            _move_checksum(storage, location, moved)
            storage.move(location, moved)
    return moved


def _move_checksum(storage: Storage, location: str, moved: str) -> None:
    """Move the checksum of a file along, where Hadoop wrote one: by it readers would refuse another file of the name."""
    source, target = checksum_location(location), checksum_location(moved)
    if has_checksum_files(source) and storage.head(source) is not None:
        storage.move(source, target)


def dropped_heads(storage: Storage, table_location: str) -> Iterator[str]:
    """The newest version file of each table that was dropped at a location and not registered again since."""
    trash = join(table_location, _TRASH)
    for name in sorted(storage.child_names(trash)):
        if name.startswith(DROPPED_PREFIX):
            versions = list_versions(storage, join(trash, name))
            yield from versions[max(versions)] if versions else ()


def is_moved_aside(metadata_location: str, table_location: str) -> bool:
    """Whether a metadata file is a version that a drop of the table at a location moved aside."""
    trash, _, name = canonical(metadata_location).rpartition("/")
    above, _, run = trash.rpartition("/")
    is_trash = above == canonical(join(table_location, _TRASH)) and run.startswith(DROPPED_PREFIX)
    return is_trash and parse_version_name(name) is not None


def move_back(storage: Storage, metadata_location: str, directory: str) -> str:
    """Move a version file back, and then those before it; returns where it is, the head of the table from then on.

    Raises:
        FileExistsError: there is a version of its number.
    """
    location = join(directory, _name(metadata_location))
    try:
        storage.move(metadata_location, location)
    except IcekeepError:
        # A move is repeated until the file is there; whoever compares its bytes tells whose it is.
        if storage.head(location) is None:
            raise
    version = parse_version_name(_name(metadata_location)) or 0
    # They are history: what stays in the trash is missed by readers of the metadata log only, and checksums by nobody.
    with suppress(Exception):
        older = list_versions(storage, metadata_location.rpartition("/")[0])
        names = [each for number in sorted(older) if number < version for each in older[number]]
        storage.move_many((each, join(directory, _name(each))) for each in names)
        for each in (metadata_location, *names):
            _move_checksum(storage, each, join(directory, _name(each)))
    return location


def _name(location: str) -> str:
    return location.rsplit("/", 1)[-1]
