"""From a name to a catalog or table that is open: the end of the configuration and the start of the work."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from icekeep.catalog.base import Catalog, Table, parse_identifier
from icekeep.catalog.open import open_catalog
from icekeep.errors import NotFoundError
from icekeep.operations.configuration.catalogs import Catalogs, TableReference
from icekeep.operations.configuration.file import CatalogSettings, read_config
from icekeep.planning.spark.session import current_properties
from icekeep.runtime import SYSTEM, Runtime


def load_catalog(name: str | None = None, *, conf: str | None = None) -> Catalog:
    """Open a catalog by the name that the configuration gives it.

    Args:
        name: may be left out where only one catalog, or one called `default`, is configured.
        conf: the YAML file; without it the one that `read_config` finds. Catalogs that are
            not in it are looked up in Spark's configuration and in PyIceberg's.

    Raises:
        NotFoundError: no configuration knows the catalog.
        ConfigError: the file is wrong, or refers to an environment variable that is not set.
    """
    return open_settings(configured_catalogs(conf).get(name))


def configured_catalogs(conf: str | None) -> Catalogs:
    """The catalogs that `load_catalog` knows; raises `ConfigError` where the file is wrong."""
    return Catalogs(read_config(conf), partial(current_properties, os.environ), os.environ, Path.cwd())


def open_settings(
    settings: CatalogSettings, *, environ: Mapping[str, str] | None = None, runtime: Runtime = SYSTEM
) -> Catalog:
    """Open a catalog from its settings."""
    with settings.placing():
        return open_catalog(settings.name, settings.resolved(os.environ if environ is None else environ), runtime)


def load_table(reference: TableReference, *, runtime: Runtime = SYSTEM) -> Table:
    """Open the catalog of a table and load the table; raises what `open_settings` and `Catalog.load` raise."""
    catalog = open_settings(reference.catalog, runtime=runtime)
    try:
        with reference.catalog.placing():
            return catalog.load(parse_identifier(reference.name))
    except NotFoundError as error:
        raise reference.not_found(error) from error
