"""Keys with empty parts (`db//events/f`), which Hive and Glue make below a database whose location ends with a slash.

The client takes a key apart at its slashes and would put it together without the empty parts: it would read, write or delete
another object. But what is before a key in an address it leaves alone. So all of a key up to its last empty part is made a part
of the bucket's address, its root, and what is behind that is an ordinary key.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import obstore
from obstore.store import S3Store

from icekeep.errors import UnsupportedError

_SAFE = "/~"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION = "us-east-1"
"""What the client takes where nothing says which."""


def has_empty_parts(key: str) -> bool:
    """Whether a key has an empty part at its beginning or in its middle."""
    return key.startswith("/") or "//" in key


def taken_apart(key: str) -> tuple[str, str]:
    """A key's root, which begins and ends with a slash, and what is behind it; together with a slash between them the key.

    >>> taken_apart("db//events/f"), taken_apart("/f")
    (('/db/', 'events/f'), ('/', 'f'))
    """
    absolute = f"/{key}"
    at = absolute.rfind("//")
    return absolute[: at + 1], absolute[at + 2 :]


def rooted(bucket: str, root: str, config: Mapping[str, Any], source_root: str = "") -> tuple[str, dict[str, Any]]:
    """Name and configuration of a bucket for the client that addresses what is below a root.

    Args:
        root: of the objects that are read, written and deleted.
        source_root: of those that are copied, which the client addresses by the bucket's name.

    Raises:
        UnsupportedError: the client would address other objects than these.
    """
    region = config.get("region") or next((os.environ[name] for name in _REGIONS if os.environ.get(name)), _REGION)
    endpoint = config.get("endpoint") or next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
    endpoint = (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/")
    if not config.get("virtual_hosted_style_request"):
        endpoint = f"{endpoint}/{bucket}"
    elif not config.get("endpoint"):
        scheme, _, host = endpoint.partition("://")
        endpoint = f"{scheme}://{bucket}.{host}"
    address = endpoint + quote(root, safe=_SAFE)
    _check_address(address, region)
    made = {**config, "region": region, "endpoint": address, "virtual_hosted_style_request": True}
    return bucket + quote(source_root, safe=_SAFE), made


def _check_address(address: str, region: str) -> None:
    """Ask the client, which sends nothing for that, what it makes of an address."""
    keys = {"access_key_id": "a", "secret_access_key": "b", "session_token": "c"}
    config: Any = {"region": region, "endpoint": address, "virtual_hosted_style_request": True, **keys}
    store = S3Store("bucket", config=config, client_options={"allow_http": True})
    path = urlsplit(obstore.sign(store, "GET", "a/b", timedelta(seconds=1))).path
    if path != urlsplit(f"{address}/a/b").path:
        raise UnsupportedError(f"objects below {address!r} cannot be addressed: the client would ask for {path!r}")
