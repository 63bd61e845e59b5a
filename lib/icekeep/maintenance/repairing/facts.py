"""What a fault tells of files, for those who look for them; nothing is written that goes by it alone."""

from icekeep.catalog.base import Table
from icekeep.maintenance.checking.faults import Fault
from icekeep.spec.schema import Schema


def manifests_of(fault: Fault) -> frozenset[str]:
    """The manifests that a fault tells of."""
    facts = fault.facts
    told: set[str] = {*facts.get("manifests", ())}
    told.update(one["manifest"] for one in facts.get("entries", ()))
    if "manifest" in facts:
        told.add(facts["manifest"])
    return frozenset(told)


def paths_of(fault: Fault) -> frozenset[str]:
    """The locations of the files that a fault tells of."""
    told = [fault.facts, *fault.facts.get("entries", ())]
    return frozenset(str(one[key]) for one in told for key in ("file_path", "referenced_data_file") if one.get(key))


def schema_of(table: Table, fault: Fault) -> Schema:
    """As the check read the file: the schema of the snapshot that the fault is told of."""
    metadata = table.metadata
    snapshot = metadata.snapshots_by_id.get(fault.snapshot_id or 0)
    schema_id = metadata.current_schema_id if snapshot is None else snapshot.schema_id
    return metadata.schemas_by_id.get(metadata.current_schema_id if schema_id is None else schema_id, metadata.schema)
