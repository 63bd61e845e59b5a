"""Why the entries of a manifest cannot be read: what its records store, before anything is inherited."""

from typing import Any

import msgspec

from icekeep.errors import InvalidTableError
from icekeep.spec.avro import read_header, read_records
from icekeep.spec.manifests.read import record_field, stored_fields
from icekeep.spec.manifests.structs import (
    DATA_FILE_FIELD_ID,
    PARTITION_FIELD_ID,
    FileContent,
    ManifestContent,
    ManifestFile,
    Status,
)
from icekeep.spec.types import StructType

_STATUS, _SEQUENCE_NUMBER, _FILE_PATH, _CONTENT = 0, 3, 100, 134
"""Field ids of `manifest_entry` and `data_file`."""

RawFault = tuple[int, str, dict[str, Any]]


def raw_faults(data: bytes, row: ManifestFile, partition: StructType) -> list[RawFault]:
    """What is wrong with a manifest that does not decode, as far as it is known: class, detail, facts; else nothing."""
    try:
        header = read_header(data, row.manifest_path)
        schema = msgspec.json.decode(header.metadata["avro.schema"])
        file_name, file_schema = record_field(schema, DATA_FILE_FIELD_ID)
        stored = stored_fields(record_field(file_schema, PARTITION_FIELD_ID)[1])
        missing = [field.name for field in partition.fields if field.field_id not in stored]
        if missing:
            return [(216, f"its partitions lack {', '.join(map(repr, missing))} of spec {row.partition_spec_id}", {})]
        entry_names = {number: field["name"] for number, field in stored_fields(schema).items()}
        file_names = {number: field["name"] for number, field in stored_fields(file_schema).items()}
        found: list[RawFault] = []
        for record in read_records(data, header, row.manifest_path):
            found += _of_record(record, record[file_name], entry_names, file_names, row)
    except (InvalidTableError, KeyError, TypeError, ValueError, msgspec.DecodeError):
        return []
    return found


def _of_record(
    record: Any, file: Any, entry_names: dict[int, str], file_names: dict[int, str], row: ManifestFile
) -> list[RawFault]:
    path = file[file_names[_FILE_PATH]]
    facts = {"file_path": path, "spec_id": row.partition_spec_id}
    status, content = record[entry_names[_STATUS]], file.get(file_names.get(_CONTENT, ""), FileContent.DATA) or 0
    found: list[RawFault] = []
    if status not in [*Status] or content not in [*FileContent]:
        # Told by the decoder's own words.
        return found
    if (content == FileContent.DATA) is not (row.content is ManifestContent.DATA):
        kind = "data" if content == FileContent.DATA else "deletes"
        found.append((211, f"the entry of {path!r} is of {kind}, the manifest of {row.content.name.lower()}", facts))
    numbered = entry_names.get(_SEQUENCE_NUMBER)
    is_null = numbered is None or record[numbered] is None
    if status != Status.ADDED and row.sequence_number and is_null:
        found.append((217, f"the entry of {path!r} is not added, and has no sequence number", facts))
    return found
