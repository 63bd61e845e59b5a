"""The metadata files that catalogs write: the next metadata, its name and bytes, and which old ones may go.

Shared by the catalogs that write metadata themselves; nothing here knows where a pointer lives. In a filesystem catalog
they are version files, `v<N>.metadata.json`, of which the highest is the head: `version-hint.text` is a hint and no
more, and may be missing, stale or garbage.
"""

import gzip
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from icekeep.catalog.base import Catalog, Conflict, Identifier, Table
from icekeep.decoding import from_json
from icekeep.errors import IcekeepError, InvalidTableError, MissingFileError, UnsupportedError
from icekeep.runtime import Runtime
from icekeep.spec.metadata import TableMetadata, format_metadata, parse_metadata, unpacked
from icekeep.spec.properties import choice, is_true, metadata_directory
from icekeep.spec.snapshots import MetadataLogEntry
from icekeep.spec.updates import Requirement, SetProperties, Update, apply_updates, failing, log_previous
from icekeep.storage.base import DeleteStatus, FileInfo, ListingShare, Storage
from icekeep.storage.local.links import confined_to
from icekeep.storage.locations import (
    canonical,
    checksum_location,
    has_checksum_files,
    is_location,
    is_under,
    join,
    loose_path,
)


def unknown_names(metadata: TableMetadata) -> dict[str, str]:
    """Locations that metadata names under keys which the specification did not have, each with its key; they are retained.

    Later versions keep indexes, for example, in the table's place. What is no location by itself may be one below the table's.
    """
    views = (*metadata.snapshots, *metadata.refs.values(), *metadata.statistics, *metadata.partition_statistics)
    found: dict[str, str] = {}
    for extra in (metadata.extra, *(view.extra for view in views)):
        for key, value in extra.items():
            for text in _texts(value):
                location = text if is_location(text) else f"{metadata.location.rstrip('/')}/{text}"
                if "/" in text and is_location(location):
                    found.setdefault(location, key)
    return found


def _texts(value: object) -> Iterator[str]:
    """All texts in a JSON value, those of keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for below in value.values():
            yield from _texts(below)
    elif isinstance(value, list | tuple):
        for below in value:
            yield from _texts(below)


METADATA_PATH = "write.metadata.path"

METADATA_NAME = r"\.metadata\.json(?:\.gz)?$"
"""How the names of metadata files end, as a pattern for Python and for Arrow. Iceberg once wrote `.metadata.json.gz`."""

_SUFFIXES = {"none": "", "gzip": ".gz"}
_VERSION = re.compile(r"v?(\d{1,18})[-.][^/]*")
_IS_METADATA = re.compile(METADATA_NAME)


def read_table(catalog: Catalog, identifier: Identifier, metadata_location: str, storage: Storage) -> Table:
    """The table whose pointer is at `metadata_location`; raises as `Catalog.load` does."""
    metadata = parse_metadata(storage.read(metadata_location), metadata_location)
    return Table(identifier, metadata, metadata_location, storage, catalog)


def read_current(catalog: Catalog, identifier: Identifier) -> Table:
    """The table that a catalog finds; raises as `Catalog.load` does.

    A table that keeps few metadata files may have moved on, and deleted the one that the pointer named, before it is read.
    """
    pointer = catalog.find(identifier)
    while True:
        try:
            return read_table(catalog, identifier, pointer.metadata_location, pointer.storage)
        except MissingFileError:
            missing, pointer = pointer.metadata_location, catalog.find(identifier)
            if pointer.metadata_location == missing:
                raise


def next_metadata(
    table: Table, requirements: Sequence[Requirement], updates: Sequence[Update], now_ms: int
) -> TableMetadata | Conflict:
    """The metadata that follows a table's, with the file that it replaces in its log.

    A requirement that does not hold is a final conflict, as nothing was sent: whoever planned the change saw another table.
    """
    problem = failing(requirements, table.metadata)
    if problem is not None:
        return Conflict(problem, is_final=True)
    updated = apply_updates(table.metadata, updates, now_ms=now_ms)
    return log_previous(updated, table.metadata_location, table.metadata.last_updated_ms)


def attached_metadata(table: Table, now_ms: int) -> TableMetadata:
    """The metadata that `Catalog.reattach` writes: that of a table as it is, at another time.

    The file that it takes the place of does not come into the log: whoever follows the log reads the files in it, and would
    stop at one that nobody can read.
    """
    return apply_updates(table.metadata, (SetProperties({}),), now_ms=now_ms)


def encode(metadata: TableMetadata) -> bytes:
    """A metadata file's bytes, gzip if the table's properties say so."""
    data = format_metadata(metadata)
    return gzip.compress(data, mtime=0) if compression_suffix(metadata) else data


def new_location(metadata: TableMetadata, version: int, runtime: Runtime) -> str:
    """A location for metadata that no other writer can choose, where a pointer elsewhere says which file is current."""
    name = f"{version:05d}-{runtime.new_uuid()}{compression_suffix(metadata)}.metadata.json"
    return join(metadata_directory(metadata), name)


def write_metadata(storage: Storage, metadata: TableMetadata, location: str) -> None:
    with storage.write(location) as stream:
        stream.write(encode(metadata))


def compression_suffix(metadata: TableMetadata) -> str:
    """What stands before `.metadata.json` in the name of a metadata file: `.gz` or nothing.

    Raises:
        PropertyError: `write.metadata.compression-codec` is neither of the two that the specification knows.
    """
    return choice(metadata.properties, "write.metadata.compression-codec", "none", _SUFFIXES)


def is_metadata_file(location: str) -> bool:
    return _IS_METADATA.search(location) is not None


def file_version(metadata_location: str) -> int:
    """The version in a metadata file's name (`00005-<uuid>.metadata.json`, `v5.metadata.json`); -1 if it has none."""
    match = _VERSION.fullmatch(metadata_location.rsplit("/", 1)[-1])
    return int(match[1]) if match else -1


def metadata_files(storage: Storage, directory: str, *, like: str = "", versions: range = range(0)) -> list[FileInfo]:
    """The metadata files right in a directory, in no order.

    Args:
        like: the name of a metadata file with a version: names of its form, `v5.` or `00005-`, and of these versions are enough.
            Manifests lie there too, a hundred thousand, so that a store that lists by prefix is asked for little more; others
            tell all.
    """
    starts = [""]
    if like.startswith("v"):
        starts = [f"v{versions.start}."] if len(versions) == 1 else ["v"]
    elif versions:
        tens = {f"{version // 10:04d}" for version in versions}
        starts = [f"{versions.start:05d}-"] if len(versions) == 1 else sorted(tens)
    found: dict[str, FileInfo] = {}
    try:
        for start in starts:
            share = ListingShare(directory, is_deep=False, starts_with=start)
            found |= {info.location: info for info in storage.list_share(share)}
    except UnsupportedError:
        # What begins alike is not together in this store's listings.
        files = ((info.location[len(directory) :].lstrip("/"), info) for info in storage.list(directory))
        found = {info.location: info for name, info in files if "/" not in name}
    return [info for info in found.values() if is_metadata_file(info.location)]


def deletes_old_metadata(metadata: TableMetadata) -> bool:
    """Whether a commit deletes the metadata files that fall out of the log; a misspelt property does not."""
    return is_true(metadata.properties, "write.metadata.delete-after-commit.enabled", False)


_LOG = logging.getLogger(__name__)

_WARNED_OF: set[str] = set()
"""Locations of tables."""


class _TableOfMetadata(msgspec.Struct):
    """Of a metadata file only which table's it is."""

    table_uuid: str | None = msgspec.field(name="table-uuid", default=None)


def dropped_from_log(base: TableMetadata, new: TableMetadata, roots: Sequence[str] = ()) -> list[MetadataLogEntry]:
    """Entries of the base's metadata log that the new one has no more, if the table wants their files deleted.

    Only metadata files below the table's location, and none that an unknown key names. It is asked after the commit has landed,
    so it raises nothing.

    Args:
        roots: directories that the operator names beside it.
    """
    if not deletes_old_metadata(new):
        return []
    places = [root for root in (new.location, *roots) if is_location(root)]
    return [
        entry
        for entry in left_the_log(base, new, *unknown_names(new))
        if any(is_under(entry.metadata_file, root) for root in places)
    ]


def delete_dropped(
    storage: Storage,
    base: TableMetadata,
    new: TableMetadata,
    is_due: Callable[[MetadataLogEntry], bool] = lambda entry: True,
    *,
    roots: Sequence[str] = (),
    others: Callable[[], Iterable[str]] = tuple,
) -> None:
    """Delete the metadata files that a commit dropped from the log (`dropped_from_log`), those of them that are due.

    Whoever may commit to a table writes its location and its log, and could name metadata of another table: what goes says
    itself that it is of this one, by its uuid, and lies behind no link. The commit has landed: an error here would be taken for
    its failure, so none is raised.

    Args:
        others: metadata files of other tables, where the catalog tells all at once; nothing goes that lies beside one of them.
    """
    with suppress(Exception):
        found = dropped_from_log(base, new, roots)
        _warn_of_stay(base, new, found)
        dropped = [entry.metadata_file for entry in found if is_due(entry)]
        if not dropped:
            return
        taken = {canonical(location).rpartition("/")[0] for location in others() if is_location(location)}
        going = [
            location
            for location in dropped
            if canonical(location).rpartition("/")[0] not in taken and _is_metadata_of(new, location, storage)
        ]
        with confined_to((new.location, *roots)):
            outcomes = storage.delete_many(going)
            gone = [one.location for one in outcomes if one.status is not DeleteStatus.FAILED]
            # Hadoop's writers make one beside each file.
            storage.delete_many([checksum_location(location) for location in gone if has_checksum_files(location)])


def _warn_of_stay(base: TableMetadata, new: TableMetadata, found: Sequence[MetadataLogEntry]) -> None:
    """Say once in a process that the table's metadata files stay that lie outside its places, though it wants them deleted."""
    if not deletes_old_metadata(new) or new.location in _WARNED_OF:
        return
    stays = next(
        (entry.metadata_file for entry in left_the_log(base, new, *unknown_names(new)) if entry not in found), None
    )
    if stays is not None:
        _WARNED_OF.add(new.location)
        _LOG.warning(
            "metadata files that commits drop from the log of the table at %r are kept, %r first: they lie outside its location; "
            "if they are its own, name their directory in reclaim.roots of the catalog",
            new.location,
            stays,
        )


def _is_metadata_of(metadata: TableMetadata, location: str, storage: Storage) -> bool:
    """Whether a metadata file says that it is of a table; one of version 1 without a uuid says nothing."""
    try:
        uuid = table_uuid_in(storage.read(location))
    except (IcekeepError, msgspec.MsgspecError, OSError, EOFError, zlib.error):
        return False
    return uuid is not None and uuid == metadata.table_uuid


def table_uuid_in(data: bytes) -> str | None:
    """The uuid of the table that a metadata file is of; raises whatever decoding raises where it is none."""
    return from_json(unpacked(data), _TableOfMetadata).table_uuid


def delete_refused(storage: Storage, location: str) -> None:
    """Delete a metadata file that was written for a change which is proved to have failed, so that no pointer can name it.

    An error here would be told in place of that proof, so none is raised.
    """
    with suppress(Exception):
        storage.delete_many([location])


def left_the_log(base: TableMetadata, new: TableMetadata, *kept: str) -> list[MetadataLogEntry]:
    """Entries of the base's metadata log whose files the new one does not name any more, by whatever spelling.

    A log is text, and whoever may write metadata may write any: what does not name a metadata file is passed over.

    Args:
        kept: locations of metadata that is in use beside the log.
    """
    logged = (entry.metadata_file for entry in new.metadata_log)
    paths = {loose_path(location) for location in (*logged, *kept) if is_location(location)}

    def has_left(location: str) -> bool:
        return is_metadata_file(location) and is_location(location) and loose_path(location) not in paths

    return [entry for entry in base.metadata_log if has_left(entry.metadata_file)]


HINT = "version-hint.text"

_NAME = re.compile(r"v([1-9][0-9]{0,17})((?:\.gz|\.zstd)?\.metadata\.json|\.metadata\.json\.gz)")
_VERSION_SUFFIXES = (".metadata.json", ".gz.metadata.json", ".metadata.json.gz", ".zstd.metadata.json")
"""Plain, gzip, gzip as Iceberg named it before 2019, and zstd, which others write: names that one version may have."""

_HINT_LENGTH_MAX_BYTES = 32


class VersionFile(NamedTuple):
    version: int
    location: str


def parse_version_name(name: str) -> int | None:
    """The version of a metadata file by its name; `None` if it is another file."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def version_locations(directory: str, version: int) -> list[str]:
    return [join(directory, f"v{version}{suffix}") for suffix in _VERSION_SUFFIXES]


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
    named = metadata_files(storage, directory, like="v")
    return _versions(named, directory) or _versions(storage.list(directory), directory)


def _versions(infos: Iterable[FileInfo], directory: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for info in infos:
        name = info.location[len(directory) :].lstrip("/")
        version = parse_version_name(name)
        if version is not None:
            found.setdefault(version, []).append(info.location)
    return found


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
