"""Locations as text: taking them apart, comparing, joining, and which lie in one store. Pure: nothing here asks a store.

Metadata names one file in several ways (`file:/a`, `file:///a`, `/a`), so locations are compared by `canonical`, and
only compared: bytes are read, written and deleted under the spelling that metadata or a listing gave. Percent signs are
ordinary characters, as for the other engines: `b=x%2Fy` is the name of a directory.

A store is identified by the scheme that is used for it here and by one spelling of its authority: the bucket, Azure's
container and account, the NameNode. What only a property or a configuration says is not in a spelling, and such names
stay apart: the account of an Azure container that is named alone, the hosts of a nameservice, Hadoop's default file
system. Where that may cost a file, paths have to be compared without their stores.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.storage.base import LOCAL_REQUESTS_AT_ONCE, REQUESTS_AT_ONCE

FILE, HDFS, S3, GCS, AZURE = "file", "hdfs", "s3", "gs", "abfs"

SCHEMES: Mapping[str, tuple[str, ...]] = {
    FILE: ("file",),
    HDFS: ("hdfs",),
    S3: ("s3", "s3a", "s3n"),
    GCS: ("gs", "gcs"),
    AZURE: ("abfs", "abfss", "wasb", "wasbs", "az"),
}
"""All schemes of each kind of store."""

STORES_OF_KEYS = frozenset({S3, GCS, AZURE})
"""Where a file is an object under a key, so that `a//b` and `a/../a/b` are names of their own and not spellings of `a/b`."""

_KIND_OF = {scheme: kind for kind, schemes in SCHEMES.items() for scheme in schemes}
_NAMENODE_PORT = ":8020"
_AZURE_HOST = ".dfs.core.windows.net"
"""What follows an account that stands alone."""

_ENDPOINT = re.compile(r"(?<=@)([^.@]*)\.(?:blob|dfs)\.(?=[^@]*$)")


def store_kind(scheme: str) -> str:
    """The scheme that stands for all that lead to one kind of store; one that is not known stands for itself.

    >>> store_kind("s3a"), store_kind("gcs"), store_kind("oss")
    ('s3', 'gs', 'oss')
    """
    return _KIND_OF.get(scheme, scheme)


def store_authority(kind: str, authority: str) -> str:
    """The spelling that stands for all that name one store of a kind.

    >>> store_authority("abfs", "files@account.blob.core.windows.net"), store_authority("hdfs", "nn1:8020")
    ('files@account.dfs.core.windows.net', 'nn1')
    """
    if kind == HDFS:
        return authority.lower().removesuffix(_NAMENODE_PORT)
    container, at, host = authority.rpartition("@")
    if kind != AZURE or not at:
        return authority
    account = f"{container}@{host.lower()}"
    return _ENDPOINT.sub(r"\1.dfs.", account) if "." in host else account + _AZURE_HOST


def store_authorities(kind: str, authority: str) -> list[str]:
    """All spellings in small letters of an authority that `store_authority` gave.

    >>> store_authorities("hdfs", "nn1")
    ['nn1', 'nn1:8020']
    """
    if kind == HDFS and authority and ":" not in authority:
        return [authority, authority + _NAMENODE_PORT]
    if kind != AZURE or "@" not in authority:
        return [authority]
    spellings = [authority, _ENDPOINT.sub(r"\1.blob.", authority), authority.removesuffix(_AZURE_HOST)]
    return [one for one in dict.fromkeys(spellings) if store_authority(kind, one) == authority]


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)


class Location(NamedTuple):
    """The parts of a location; `path` starts with a slash and is spelled as given."""

    scheme: str
    authority: str
    path: str


def parse_location(location: str) -> Location:
    """Take a location apart.

    >>> parse_location("s3://bucket/db/events")
    Location(scheme='s3', authority='bucket', path='/db/events')
    >>> parse_location("file:/tmp/x") == parse_location("file:///tmp/x") == parse_location("/tmp/x")
    True

    Raises:
        InvalidTableError: it is empty or relative, or contains a NUL character.
    """
    if "\0" in location:
        raise InvalidTableError(f"location {location!r} contains a NUL character", location=location)
    match = _SCHEME.fullmatch(location)
    scheme, rest = (match[1].lower(), match[2]) if match else ("file", location)
    authority = ""
    # A location without a scheme is a path, where a double slash means no more than a single one.
    if match and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path or "/"
    if not rest.startswith("/"):
        raise InvalidTableError(
            f"location {location!r} is relative; give it as SCHEME://PATH or /PATH", location=location
        )
    return Location(scheme, "" if scheme == "file" and authority == "localhost" else authority, rest)


def are_local(locations: Iterable[str]) -> bool:
    """Whether all are on the disks of this machine."""
    return all(parse_location(location).scheme == "file" for location in locations)


def requests_at_once(locations: Iterable[str]) -> int:
    """The number of concurrent requests for files: those of a remote store mostly wait."""
    return LOCAL_REQUESTS_AT_ONCE if are_local(locations) else REQUESTS_AT_ONCE


def canonical(location: str) -> str:
    """A key that is equal for all spellings of one file, and perhaps for some that are not.

    `.`, `..` and repeated slashes are resolved, and schemes and authorities that name the same store (`s3a`, `s3`) are one,
    as `stores.py` has them. Object stores keep `a//b` and `a/b` apart and this key does not, so it may decide what to keep,
    never what to delete.

    >>> canonical("file:/a//b/./c/../d/")
    'file:///a/b/d'
    """
    parsed = parse_location(location)
    kind = store_kind(parsed.scheme)
    return f"{kind}://{store_authority(kind, parsed.authority)}/{'/'.join(_components(parsed.path))}"


def spellings(location: str) -> tuple[str, ...]:
    """All spellings of a location that differ in what names its store, the given one first.

    >>> spellings("s3a://bucket/t"), spellings("file:/wh/t")
    (('s3a://bucket/t', 's3://bucket/t', 's3n://bucket/t'), ('file:/wh/t', 'file:///wh/t', '/wh/t'))
    """
    parsed = parse_location(location)
    kind = store_kind(parsed.scheme)
    if kind == FILE:
        found = [f"file:{parsed.path}", f"file://{parsed.path}", parsed.path]
    else:
        authorities = store_authorities(kind, store_authority(kind, parsed.authority))
        found = [f"{scheme}://{name}{parsed.path}" for scheme in SCHEMES.get(kind, ()) for name in authorities]
    return tuple(dict.fromkeys((location, *found)))


def without_dots(location: str) -> str:
    """A location without `.` and `..`, in the spelling that it has otherwise: what is listed there has the keys of `canonical`.

    A store may resolve them in another way: on a disk `..` behind a symbolic link leads to where the link points.

    >>> without_dots("file:/wh/t/data/../data"), without_dots("s3://bucket/wh//t")
    ('file:/wh/t/data', 's3://bucket/wh//t')
    """
    path = parse_location(location).path
    if not {".", ".."} & {*path.split("/")}:
        return location
    return f"{location.removesuffix(path)}/{'/'.join(_components(path))}"


def split_locations(text: str) -> tuple[str, ...]:
    """The locations in a text that are joined by commas, as options and properties have them."""
    return tuple(filter(None, (one.strip() for one in text.split(","))))


def is_location(text: str) -> bool:
    """Whether `parse_location` takes a text."""
    try:
        parse_location(text)
    except InvalidTableError:
        return False
    return True


def is_whole_store(location: str) -> bool:
    """Whether a location is a whole bucket or disk.

    >>> is_whole_store("s3://bucket/"), is_whole_store("/wh/.."), is_whole_store("/wh")
    (True, True, False)
    """
    return not canonical(location).partition("://")[2].partition("/")[2]


def is_root(text: str) -> bool:
    """Whether a text names a place that an operator may give to tables: a location, and no whole bucket or disk."""
    return is_location(text) and not is_whole_store(text)


def canonical_or_text(text: str) -> str:
    """`canonical`, by which files are told apart; what metadata gives for a location and is none stays as it is."""
    return canonical(text) if is_location(text) else text


def loose_path(location: str) -> str:
    """The path alone, in the spelling by which files are compared that may be deleted (`location_keys.loose_keys`).

    >>> loose_path("hdfs://nn1:8020/wh//T%61ble") == loose_path("hdfs:/wh/table")
    True
    """
    return loosened(parse_location(canonical(location)).path)


def loosened(path: str) -> str:
    r"""A path of `canonical`, percent-decoded once, in Unicode's form NFC, case-folded, and with slashes for backslashes.

    >>> loosened("/wh/data\\A.parquet")
    '/wh/data/a.parquet'
    """
    # Azure and SeaweedFS make `a/b` of `a\b`, and list it so.
    plain = unquote(path).replace("\\", "/")
    # Folding may take a text out of the form.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", plain).casefold())


def is_under(location: str, root: str) -> bool:
    """Whether a location lies below a directory, by whole path components; no location lies below itself.

    >>> is_under("/wh/tbl/data/f", "file:///wh/tbl"), is_under("/wh/tbl2/f", "/wh/tbl"), is_under("/wh/t/../f", "/wh/t")
    (True, False, False)
    """
    key, root_key = canonical(location), canonical(root)
    return key != root_key and key.startswith(root_key.rstrip("/") + "/")


def checksum_location(location: str) -> str:
    """Where Hadoop keeps the checksum of a file that it has written to a disk of its machine.

    >>> checksum_location("file:/wh/db/events/data/a.parquet")
    'file:/wh/db/events/data/.a.parquet.crc'
    """
    directory, slash, name = location.rpartition("/")
    return f"{directory}{slash}.{name}.crc"


def has_checksum_files(location: str) -> bool:
    """Whether Hadoop keeps checksums in files beside a file: those on a disk of its machine.

    >>> has_checksum_files("/wh/db"), has_checksum_files("file:/wh/db"), has_checksum_files("hdfs://nn/wh/db")
    (True, True, False)
    """
    return location.startswith(("file:", "/"))


def join(location: str, *parts: str) -> str:
    """Append relative paths to a location, keeping its spelling.

    >>> join("file:/wh/", "db/events", "metadata")
    'file:/wh/db/events/metadata'

    Raises:
        InvalidTableError: a part is empty or absolute, or would climb out of the location.
    """
    for part in parts:
        if any(component in ("", ".", "..") for component in part.split("/")):
            raise InvalidTableError(f"cannot append {part!r} to location {location!r}: it is not a plain relative path")
    return "/".join((location.rstrip("/"), *parts))


def local_path(location: str) -> str:
    """The path of a file on this machine.

    Raises:
        UnsupportedError: the location is not on this machine.
    """
    scheme, authority, path = parse_location(location)
    if scheme != "file" or authority:
        raise UnsupportedError(f"location {location!r} is not a local file", location=location)
    return path


def _components(path: str) -> list[str]:
    resolved: list[str] = []
    for component in path.split("/"):
        if component == "..":
            del resolved[-1:]
        elif component not in ("", "."):
            resolved.append(component)
    return resolved
