"""Which keys of objects the client can address as they are spelled."""

import re

from icekeep.errors import UnsupportedError
from icekeep.storage.locations import Location
from icekeep.storage.stores import S3, store_kind

_UNSENDABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def has_roots(location: Location) -> bool:
    """Whether names with empty parts can be addressed there."""
    return store_kind(location.scheme) == S3


def without_empty_parts(key: str) -> str:
    """A key with each run of slashes as one."""
    return "/".join(filter(None, key.split("/"))) + ("/" if key.endswith("/") else "")


def check_key(key: str, location: str) -> None:
    """Raise `UnsupportedError` for a key that the client would change or cannot send."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or _UNSENDABLE.search(key):
        raise UnsupportedError(
            f"location {location!r} cannot be used in an object store: the client would change its name; it may have no "
            "empty part (but in S3), no '.' or '..', no slash at an end and no control character",
            location=location,
        )
