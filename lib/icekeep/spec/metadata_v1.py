"""Table metadata of format version 1 and that of later versions: what the one leaves out, what the others must not have.

Version 1 has one `schema` and one `partition-spec`; lists of them, ids and sort orders came with version 2, and writers
of version 1 may or may not give them (spec, "Table Metadata Fields"; Appendix E "Version 2").
"""

from typing import Any

from icekeep.errors import InvalidTableError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import (
    PartitionSpec,
    last_assigned_field_id,
    partition_fields_from_json,
    spec_from_json,
    spec_to_json,
)
from icekeep.spec.schema import schema_to_json
from icekeep.spec.sorting import UNSORTED, sort_order_to_json

CURRENT_ONLY = ("schema", "partition-spec")
"""Keys of version 1 that repeat the current schema and the default spec for old readers."""


def with_derived_keys(raw: dict[str, Any]) -> dict[str, Any]:
    """Version 1 metadata with every key that version 2 requires, but `table-uuid`: derived as the spec says.

    Args:
        raw: the JSON object; keys that it has are kept, and `schemas` and `partition-specs` rule over what they replace.

    Raises:
        InvalidTableError: it has neither the old key nor the new one.
    """
    full = {key: value for key, value in raw.items() if value is not None}
    full["last-sequence-number"] = 0
    if "schemas" not in full:
        schema = full.get("schema")
        if not isinstance(schema, dict):
            raise InvalidTableError("the required key 'schema' is missing")
        full["schemas"] = [schema]
        full["current-schema-id"] = schema.get("schema-id", 0)
    if "partition-specs" not in full:
        if "partition-spec" not in full:
            raise InvalidTableError("the required key 'partition-spec' is missing")
        spec = PartitionSpec(spec_id=0, fields=partition_fields_from_json(full["partition-spec"]))
        full["partition-specs"] = [spec_to_json(spec)]
        full["default-spec-id"] = spec.spec_id
    if "last-partition-id" not in full and isinstance(full["partition-specs"], list):
        full["last-partition-id"] = last_assigned_field_id(map(spec_from_json, full["partition-specs"]))
    if "sort-orders" not in full:
        full["sort-orders"] = [sort_order_to_json(UNSORTED)]
        full["default-sort-order-id"] = UNSORTED.order_id
    return full


def current_only(metadata: TableMetadata) -> dict[str, Any]:
    """The current schema and the fields of the default spec under their old keys, which version 1 requires."""
    return {"schema": schema_to_json(metadata.schema), "partition-spec": spec_to_json(metadata.spec)["fields"]}
