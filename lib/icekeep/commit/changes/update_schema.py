"""Change a table's schema."""

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.spec.definition_updates import LAST_ADDED, AddSchema, SetCurrentSchema
from icekeep.spec.evolution.column_properties import column_property_updates
from icekeep.spec.evolution.schema_changes import SchemaChange
from icekeep.spec.evolution.schema_evolution import evolve_schema
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import Update


class UpdateSchema(msgspec.Struct, frozen=True):
    """Changes of the current schema, in order; properties that name columns follow."""

    changes: tuple[SchemaChange, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        evolution = evolve_schema(base, self.changes)
        schema = evolution.schema
        if schema.schema_id == base.current_schema_id:
            return ()
        properties = column_property_updates(base.schema, schema, base.properties)
        if schema.schema_id in base.schemas_by_id:
            return SetCurrentSchema(schema.schema_id), *properties
        return AddSchema(schema, evolution.last_column_id), SetCurrentSchema(LAST_ADDED), *properties
