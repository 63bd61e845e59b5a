"""Table properties that name columns follow a column that is renamed, and go with one that is dropped."""

import json
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from icekeep.errors import InvalidTableError
from icekeep.spec.name_mapping import PROPERTY, MappedField, name_mapping_for, name_mapping_of, name_mapping_to_json
from icekeep.spec.schema import Schema
from icekeep.spec.types import NestedField, child_fields
from icekeep.spec.updates import RemoveProperties, SetProperties, Update

PREFIXES = (
    "write.metadata.metrics.column.",
    "write.parquet.bloom-filter-enabled.column.",
    "write.parquet.stats-enabled.column.",
)
"""What stands before a column's full name in the properties that Iceberg's Java library lets follow."""


def column_property_updates(old: Schema, new: Schema, properties: Mapping[str, str]) -> tuple[Update, ...]:
    """What is to change in a table's properties when its schema does: settings by column, and the name mapping.

    The mapping keeps the names that a field had, as older files know it by them; new fields are added to it.
    """
    changed: dict[str, str] = {}
    gone: set[str] = set()
    for key, value in properties.items():
        prefix = next((prefix for prefix in PREFIXES if key.startswith(prefix)), None)
        field_id = None if prefix is None else old.ids_by_name.get(key[len(prefix) :])
        if prefix is None or field_id is None or new.names_by_id.get(field_id) == old.names_by_id[field_id]:
            continue
        gone.add(key)
        if field_id in new.names_by_id:
            changed[prefix + new.names_by_id[field_id]] = value
    mapping = _mapping(old, new, properties)
    if mapping is not None:
        changed[PROPERTY] = mapping
    updates: list[Update] = []
    if gone - changed.keys():
        updates.append(RemoveProperties(tuple(sorted(gone - changed.keys()))))
    if changed:
        updates.append(SetProperties(changed))
    return tuple(updates)


def _mapping(old: Schema, new: Schema, properties: Mapping[str, str]) -> str | None:
    """The table's name mapping with the names that changed; null where none did, or it has none that can be read."""
    try:
        mapping = name_mapping_of(properties)
    except InvalidTableError:
        return None
    if mapping is None:
        return None
    updated = _with_new_names(mapping, new.fields, {field_id: f.name for field_id, f in old.fields_by_id.items()})
    return None if updated == mapping else json.dumps(name_mapping_to_json(updated))


def _with_new_names(
    mapping: tuple[MappedField, ...], fields: Iterable[NestedField], old_names: Mapping[int, str]
) -> tuple[MappedField, ...]:
    """One level of a mapping with the names of fields that were added or renamed; what it leaves out stays out."""
    by_id = {field.field_id: field for field in fields}
    new_names = {f.name: f.field_id for f in by_id.values() if old_names.get(f.field_id) != f.name}
    out = []
    for mapped in mapping:
        # A name that was given away stands for the field that has it now.
        names = [name for name in mapped.names if new_names.get(name, mapped.field_id) == mapped.field_id]
        below = mapped.fields
        if mapped.field_id is not None and (field := by_id.get(mapped.field_id)) is not None:
            if field.name in new_names and field.name not in names:
                names.append(field.name)
            below = _with_new_names(mapped.fields, child_fields(field.type), old_names)
        out.append(replace(mapped, names=tuple(names), fields=below))
    added = tuple(field for field in by_id.values() if field.field_id not in old_names)
    return *out, *name_mapping_for(Schema(fields=added))
