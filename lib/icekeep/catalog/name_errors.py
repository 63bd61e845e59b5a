"""Errors about names that a catalog has, has not, or must not have; they say what there is, or what to do."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from icekeep.catalog.base import Catalog, Identifier, NamespacesMissingError, format_identifier
from icekeep.errors import ConfigError, NotFoundError, UsageError
from icekeep.spelling import did_you_mean, with_one_typo

_NAMED = 3
"""Of no more names than these all are told."""


def no_such_table(catalog: Catalog, identifier: Identifier) -> NotFoundError:
    """The error for a table that is not there, with names that the user may have meant, or how to list those that there are."""
    name, namespace = format_identifier(identifier), format_identifier(identifier[:-1])
    listed = ["icekeep", "report", "--catalog", catalog.name]
    try:
        tables = catalog.list_tables(identifier[:-1])
    except NotFoundError:
        problem = f", nor a namespace {namespace!r}"
        try:
            namespaces = catalog.list_namespaces()
        except NamespacesMissingError as error:
            namespaces = [*error.known]
        hint = _hint(identifier[:-1], namespaces, f"catalog {catalog.name!r}", "namespaces", listed)
        if quoted := _with_dots(catalog, identifier, namespaces):
            hint = f"{did_you_mean(map(format_identifier, quoted))} Put a part that has a dot in quotes"
    else:
        problem = ""
        listed += ["--match", f"{namespace}.*"]
        hint = _hint(identifier, tables, f"namespace {namespace!r}", "tables", listed)
    return NotFoundError(
        f"there is no table {name!r} in catalog {catalog.name!r}{problem}; {hint}", catalog=catalog.name, table=name
    )


def _hint(wanted: Identifier, known: Sequence[Identifier], place: str, kind: str, listed: Sequence[str]) -> str:
    """Names that are mistyped in one that is not there; else all names or, of many, how to list them.

    Only names beside the wanted one are compared, and only their last parts: the parts before are the same, and would make any
    two of them look alike. A command that deletes may be run with what is proposed here.
    """
    beside = {one[-1]: format_identifier(one) for one in known if one[:-1] == wanted[:-1]}
    near = with_one_typo(wanted[-1], beside) if wanted else []
    if wanted in known:
        # Some servers answer so for what the user may not read.
        return "the catalog lists it, and says that it is not there: see whether you may read it"
    if near:
        return did_you_mean(beside[one] for one in near)
    if not known:
        return f"{place} has no {kind}"
    if len(known) <= _NAMED:
        return f"there is {', '.join(repr(format_identifier(one)) for one in known)}"
    return f"{place} has {len(known):,} {kind}; `{shlex.join(listed)}` lists them"


def _with_dots(catalog: Catalog, wanted: Identifier, namespaces: Sequence[Identifier]) -> list[Identifier]:
    """The tables of the wanted name whose dots are not all between parts."""
    text, found = ".".join(wanted), []
    for namespace in namespaces:
        if text.startswith(f"{'.'.join(namespace)}."):
            with suppress(NotFoundError):
                found += [one for one in catalog.list_tables(namespace) if ".".join(one) == text]
    return found


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
