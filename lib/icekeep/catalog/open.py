"""From a catalog's properties, as users of Spark or PyIceberg write them, to the catalog."""

import os
import re
from collections.abc import Mapping

from icekeep.catalog.base import (
    CARRIED_KEYS,
    RECLAIM_ROOTS,
    REWRITE_ROOTS,
    ROOTS_EXPECTED,
    Catalog,
    OperatorRules,
    named_roots_of,
)
from icekeep.catalog.clients.adapter import TIMEOUTS
from icekeep.catalog.clients.metastore import GlueCatalog, HiveCatalog
from icekeep.catalog.clients.rest import RestCatalog
from icekeep.catalog.filesystem import FilesystemCatalog
from icekeep.catalog.sql import SqlCatalog
from icekeep.errors import ConfigError, UnsupportedError, UsageError
from icekeep.runtime import SYSTEM, Runtime
from icekeep.secrets import masked, remember
from icekeep.settings import CATALOG_TYPES
from icekeep.spec.retention import LEAST_AGE
from icekeep.spec.snapshots import RESERVED, is_reserved
from icekeep.storage.locations import is_root
from icekeep.storage.open import open_storage
from icekeep.storage.ranges import first_answer_ms, milliseconds

_KINDS: dict[str, type[SqlCatalog] | type[FilesystemCatalog]] = {
    "sql": SqlCatalog,
    "jdbc": SqlCatalog,
    "filesystem": FilesystemCatalog,
    "hadoop": FilesystemCatalog,
}
_CLIENT_KINDS: dict[str, type[RestCatalog] | type[HiveCatalog] | type[GlueCatalog]] = {
    "rest": RestCatalog,
    "hive": HiveCatalog,
    "glue": GlueCatalog,
}
"""They take an optional extra."""
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_NEED_URI = ("rest", "hive")
_REFUSED = {
    "dynamodb": "PyIceberg's client cannot commit to it",
    "bigquery": "PyIceberg's client cannot commit to it",
    "nessie": "use its REST endpoint instead, type rest",
}


def open_catalog(name: str, properties: Mapping[str, str], runtime: Runtime = SYSTEM) -> Catalog:
    """Open a catalog by its properties; nothing is read or made before it is used.

    >>> catalog = open_catalog("lake", {"type": "sql", "uri": "sqlite:////wh/catalog.db", "warehouse": "s3://bucket/wh"})
    >>> catalog.name
    'lake'

    A `warehouse` without a scheme is a path on this machine, from the current directory if it is relative; `hdfs:/wh`, with
    one slash, lies in Hadoop's default file system.

    Raises:
        ConfigError: a property is missing, makes no sense, or holds a control character.
        UnsupportedError: the `type` is one that other engines know and icekeep cannot use safely, or the extra that it needs
            is not installed.
    """
    remember(properties)
    for key, value in properties.items():
        # A client's error would quote it, escaped in one way or another, so that no login would be found in it. A directory
        # of this machine has no login, and may be called anything.
        is_directory = key == "warehouse" and value.startswith(("/", "file:/"))
        if _CONTROL.search(value) and not is_directory:
            raise ConfigError(f"catalogs.{name}.{key}", "holds a line break or another control character; take it out")
    kind = catalog_type(name, properties)
    given = dict(properties)
    # What a REST server calls a warehouse need not be a location.
    if given.get("warehouse") and kind != "rest":
        given["warehouse"] = _absolute(name, given["warehouse"])
    _check_rules(name, given)
    if kind in _CLIENT_KINDS:
        return _open_client(name, kind, given, runtime)
    return _KINDS[kind](name, given, open_storage(given, runtime), runtime)


def catalog_type(name: str, properties: Mapping[str, str]) -> str:
    """The type of a catalog in lower case.

    Raises:
        ConfigError: it is missing or unknown.
        UnsupportedError: it is one that other engines know and icekeep cannot use safely.
    """
    kind = properties.get("type", "").lower()
    if kind in _REFUSED:
        raise UnsupportedError(
            f"catalog {name!r} has type {kind!r}, which is not supported: {_REFUSED[kind]}", type=kind
        )
    if kind not in CATALOG_TYPES:
        problem = f"is {kind!r}" if kind else "is missing"
        raise ConfigError(f"catalogs.{name}.type", f"{problem}; give one of {', '.join(CATALOG_TYPES)}")
    return kind


def _check_rules(name: str, given: Mapping[str, str]) -> None:
    """What the operator lays down for all tables; raises `ConfigError`."""
    for key, roots in zip((RECLAIM_ROOTS, REWRITE_ROOTS), named_roots_of(given), strict=True):
        for root in roots:
            if not is_root(root):
                raise ConfigError(f"catalogs.{name}.{key}", f"names {root!r}; give {ROOTS_EXPECTED}")
    try:
        carried = OperatorRules.of(given).carried_keys
    except UsageError as error:
        raise ConfigError(f"catalogs.{name}.{LEAST_AGE}", f"is no age: {error.message}") from None
    if reserved := next((key for key in carried if is_reserved(key)), None):
        raise ConfigError(f"catalogs.{name}.{CARRIED_KEYS}", f"names {reserved!r}, which {RESERVED}")


def _open_client(name: str, kind: str, properties: Mapping[str, str], runtime: Runtime) -> Catalog:
    if kind in _NEED_URI and not properties.get("uri"):
        raise ConfigError(f"catalogs.{name}.uri", "is missing; give the address of the server")
    if properties.get("snapshot-loading-mode", "all") != "all":
        raise UnsupportedError(
            f"catalog {name!r} has snapshot-loading-mode={properties['snapshot-loading-mode']}: with some of a table's "
            "snapshots only, files that others need would look like garbage; set it to all"
        )
    for key in TIMEOUTS:
        if key in properties:
            milliseconds(f"catalogs.{name}", key, properties[key])
    first_answer_ms(f"catalogs.{name}", properties)
    return _CLIENT_KINDS[kind](name, properties, runtime)


def _absolute(name: str, warehouse: str) -> str:
    match = _SCHEME.fullmatch(warehouse)
    scheme, rest = (match[1].lower(), match[2]) if match else ("", warehouse)
    if scheme in ("", "file"):
        return warehouse if match and rest.startswith("/") else f"file://{os.path.abspath(rest)}"
    # With one slash it is a path in Hadoop's default file system, which must be one of HDFS.
    if rest.startswith("//") or (scheme == "hdfs" and rest.startswith("/")):
        return warehouse
    raise ConfigError(
        f"catalogs.{name}.warehouse",
        f"is {masked('warehouse', warehouse)!r}, which is no location; give SCHEME://..., hdfs:/PATH for Hadoop's default file "
        "system, or a path on this machine (./PATH if its first part has a colon)",
    )
