"""From a catalog's properties, as users of Spark or PyIceberg write them, to the catalog."""

import os
from collections.abc import Mapping

from icekeep.catalog.base import Catalog
from icekeep.catalog.filesystem import FilesystemCatalog
from icekeep.catalog.sql import SqlCatalog
from icekeep.errors import ConfigError, UnsupportedError
from icekeep.runtime import SYSTEM, Runtime
from icekeep.storage.open import open_storage

_KINDS: dict[str, type[SqlCatalog] | type[FilesystemCatalog]] = {
    "sql": SqlCatalog,
    "jdbc": SqlCatalog,
    "filesystem": FilesystemCatalog,
    "hadoop": FilesystemCatalog,
}
_KNOWN_ELSEWHERE = ("rest", "hive", "glue", "nessie", "dynamodb", "bigquery")


def open_catalog(name: str, properties: Mapping[str, str], runtime: Runtime = SYSTEM) -> Catalog:
    """Open a catalog by its properties; nothing is read or made before it is used.

    A `warehouse` without a scheme is a path on this machine, from the current directory if it is relative.

    Raises:
        ConfigError: a property is missing or makes no sense.
        UnsupportedError: the `type` is one that other engines know and icekeep does not yet.
    """
    kind = properties.get("type", "").lower()
    if kind in _KNOWN_ELSEWHERE:
        raise UnsupportedError(
            f"catalog {name!r} has type {kind!r}, which is not supported yet, only {_known()}", type=kind
        )
    if kind not in _KINDS:
        problem = f"is {kind!r}" if kind else "is missing"
        raise ConfigError(f"catalogs.{name}.type", f"{problem}; give one of {_known()}")
    given = dict(properties)
    if given.get("warehouse"):
        given["warehouse"] = _absolute(given["warehouse"])
    return _KINDS[kind](name, given, open_storage(given, runtime), runtime)


def _known() -> str:
    return ", ".join(_KINDS)


def _absolute(warehouse: str) -> str:
    has_scheme = "://" in warehouse or warehouse.startswith("file:/")
    return warehouse if has_scheme else f"file://{os.path.abspath(warehouse.removeprefix('file:'))}"
