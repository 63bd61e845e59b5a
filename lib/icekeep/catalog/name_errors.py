"""Errors about names that a catalog has, has not, or must not have; they say what there is, or what to do."""

import difflib
from typing import Protocol

from icekeep.catalog.base import Catalog, Identifier, format_identifier
from icekeep.errors import ConfigError, NotFoundError, UsageError


def no_such_table(catalog: Catalog, identifier: Identifier) -> NotFoundError:
    """The error for a table that is not there, with names that the user may have meant."""
    message = f"there is no table {format_identifier(identifier)!r} in catalog {catalog.name!r}"
    try:
        known = [format_identifier(other) for other in catalog.list_tables(identifier[:-1])]
    except NotFoundError:
        message += f", nor a namespace {format_identifier(identifier[:-1])!r}"
        known = [format_identifier(other) for other in catalog.list_namespaces()]
    near = difflib.get_close_matches(format_identifier(identifier), known, n=3) or known[:3]
    if near:
        message += f"; there is {', '.join(map(repr, near))}{' ...' if len(known) > len(near) else ''}"
    return NotFoundError(message, catalog=catalog.name, table=format_identifier(identifier))


class _Named(Protocol):
    name: str


def no_such_namespace(catalog: _Named, namespace: Identifier) -> NotFoundError:
    """The error for a namespace that is not there; says how to make one."""
    text = format_identifier(namespace)
    return NotFoundError(
        f"there is no namespace {text!r} in catalog {catalog.name!r}; create it first with "
        f"load_catalog({catalog.name!r}).create_namespace({namespace!r})",
        catalog=catalog.name,
        namespace=text,
    )


def namespace_exists(catalog: _Named, namespace: Identifier) -> UsageError:
    """The error for a namespace that is there although it must not be."""
    return UsageError(f"namespace {format_identifier(namespace)!r} exists already in catalog {catalog.name!r}")


def namespace_not_empty(catalog: _Named, namespace: Identifier) -> UsageError:
    """The error for a namespace that cannot be dropped."""
    return UsageError(
        f"namespace {format_identifier(namespace)!r} in catalog {catalog.name!r} is not empty; drop what is in it first"
    )


def no_warehouse(catalog: _Named) -> ConfigError:
    """The error for a catalog that is to say where a new table lies, and cannot."""
    return ConfigError(
        f"catalogs.{catalog.name}.warehouse",
        "is missing, so that new tables have no location; give a directory as a URI, or each table a location",
    )


def table_exists(catalog: Catalog, identifier: Identifier) -> UsageError:
    """The error for a table that is there although it must not be."""
    return UsageError(f"table {format_identifier(identifier)!r} exists already in catalog {catalog.name!r}")
