"""The version files of a table in a filesystem catalog: `v<N>.metadata.json`, and which of them is the head.

`version-hint.text` is a hint and no more: it may be missing, stale or garbage. Nothing here writes.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError
from icekeep.storage.base import FileInfo, ListingShare, Storage
from icekeep.storage.locations import join

HINT = "version-hint.text"

_NAME = re.compile(r"v([1-9][0-9]{0,17})((?:\.gz|\.zstd)?\.metadata\.json|\.metadata\.json\.gz)")
_SUFFIXES = (".metadata.json", ".gz.metadata.json", ".metadata.json.gz", ".zstd.metadata.json")
"""Plain, gzip, gzip as Iceberg named it before 2019, and zstd, which others write: names that one version may have."""

_HINT_LENGTH_MAX_BYTES = 32


class VersionFile(NamedTuple):
    """One version of a table's metadata."""

    version: int
    location: str


def parse_version_name(name: str) -> int | None:
    """The version of a metadata file by its name; `None` if it is another file."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def version_locations(directory: str, version: int) -> list[str]:
    """All locations at which the metadata file of a version may be."""
    return [join(directory, f"v{version}{suffix}") for suffix in _SUFFIXES]


def find_head(storage: Storage, directory: str) -> VersionFile | None:
    """The newest version in a metadata directory; `None` if it has none.

    The directory is listed, and versions are probed forward from the greatest that the listing and the hint know: the
    hint alone may be behind, and a listing may be as old as its beginning.

    Raises:
        InvalidTableError: the newest version has two files, so that two writers both believe that theirs is the table.
    """
    found = list_versions(storage, directory)
    newest = max(found, default=0)
    hint = read_hint(storage, directory)
    if hint is not None and hint > newest:
        _probe_forward(storage, directory, hint, found)
    _probe_forward(storage, directory, newest + 1, found)
    if not found:
        return None
    version = max(found)
    if len(found[version]) > 1:
        names = " and ".join(repr(location) for location in sorted(found[version]))
        raise InvalidTableError(
            f"version {version} of the table has two metadata files, {names}: two writers committed it with different "
            "compression; compare them and move the wrong one away",
            version=version,
        )
    return VersionFile(version, found[version][0])


def list_versions(storage: Storage, directory: str) -> dict[int, list[str]]:
    """All version files right in a metadata directory, by version.

    Manifests and lists lie there as well, a hundred thousand of them; where that is possible they are not asked for. That there
    is no version at all is believed of a whole listing alone: not every store that says so lists in order.
    """
    return _versions(_named_like_versions(storage, directory), directory) or _versions(
        storage.list(directory), directory
    )


def _versions(infos: Iterable[FileInfo], directory: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for info in infos:
        name = info.location[len(directory) :].lstrip("/")
        version = parse_version_name(name)
        if version is not None:
            found.setdefault(version, []).append(info.location)
    return found


def _named_like_versions(storage: Storage, directory: str) -> list[FileInfo]:
    try:
        return [*storage.list_share(ListingShare(directory, is_deep=False, starts_with="v"))]
    except UnsupportedError:
        # What begins alike is not together in this store's listings.
        return [*storage.list(directory)]


def read_hint(storage: Storage, directory: str) -> int | None:
    """The version that the hint names; `None` if it is missing or makes no sense."""
    location = join(directory, HINT)
    info = storage.head(location)
    if info is None or info.size_bytes > _HINT_LENGTH_MAX_BYTES:
        return None
    try:
        text = storage.read(location).decode("ascii").strip()
    except (MissingFileError, UnicodeDecodeError):
        return None
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) and int(text) > 0 else None


def _probe_forward(storage: Storage, directory: str, version: int, found: dict[int, list[str]]) -> None:
    while existing := [location for location in version_locations(directory, version) if storage.head(location)]:
        found[version] = existing
        version += 1
