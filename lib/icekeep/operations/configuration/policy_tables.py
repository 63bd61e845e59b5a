"""What policies say of a real table: the configuration, with what its catalog has stored for it and its own properties say."""

from collections.abc import Iterable, Mapping

import msgspec

from icekeep.catalog.base import Catalog, Identifier, StoresPolicies
from icekeep.catalog.wrappers import unwrapped
from icekeep.errors import NotFoundError
from icekeep.names import full_name
from icekeep.operations.configuration.file import Configuration
from icekeep.operations.configuration.layers import layer_of_settings
from icekeep.policies.polaris import settings_of_polaris
from icekeep.policies.resolution import TableRules, rules_for
from icekeep.policies.table_properties import OutsideSettings, Problem, settings_of_properties
from icekeep.policies.values import Layer, LayerKind, Rules
from icekeep.settings import CONFIG_PLACES


class Resolved(msgspec.Struct, frozen=True):
    """What is in force for a table, and what was said outside the file that is not understood or not taken."""

    rules: TableRules
    problems: tuple[Problem, ...] = ()


def resolve_table(
    rules: Rules, catalog: Catalog, identifier: Identifier, properties: Mapping[str, str] | None
) -> Resolved:
    """What is in force for a table.

    Args:
        properties: of the table; `None` where its metadata cannot be read, so that nobody knows whether its owner has switched
            jobs off: then none may run by a policy.

    Raises:
        NotFoundError: the catalog stores policies, and has no such table.
        UnavailableError: the catalog is out of reach.
    """
    stored: Layer | None = None
    problems: tuple[Problem, ...] = ()
    bare = unwrapped(catalog)
    if isinstance(bare, StoresPolicies):
        policies = settings_of_polaris(bare.stored_policies(identifier))
        stored, problems = layer_of_settings(policies, LayerKind.STORED, catalog.name)
    if properties is None:
        unread = Problem(None, "table properties", "the table's metadata cannot be read")
        outside = OutsideSettings(problems=(unread,))
    else:
        outside = settings_of_properties(properties)
    own, more = layer_of_settings(outside, LayerKind.PROPERTIES)
    name = full_name(catalog.name, identifier)
    return Resolved(rules_for(rules, name, stored=stored, properties=own), (*problems, *more))


def tables_of(catalog: Catalog) -> Iterable[str]:
    """The full names of all tables of a catalog, in all its namespaces; raises what listing raises."""
    for namespace in catalog.list_namespaces():
        try:
            tables = catalog.list_tables(namespace)
        except NotFoundError:
            # Dropped since the namespaces were listed.
            continue
        yield from (full_name(catalog.name, table) for table in tables)


def require_file(config: Configuration) -> str:
    """The path of the configuration; raises `NotFoundError` where there is none, and so no policies."""
    if config.path is None:
        raise NotFoundError(
            f"there is no configuration ({CONFIG_PLACES}), and so there are no policies; make one, or name a file with --config"
        )
    return config.path
