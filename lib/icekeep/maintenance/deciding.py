"""What of a table's metadata decides what comes of a rewrite, beside the files: a plan says it, and is held against it.

Who has approved a plan has approved files in that order, of that partition spec, with those columns and in that format.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from icekeep.maintenance.exact_plans import GivenPlan, moved
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import spec_to_json
from icekeep.spec.schema import schema_to_json
from icekeep.spec.sorting import sort_order_to_json

_PLACES = (
    "write.data.path",
    "write.folder-storage.path",
    "write.location-provider.impl",
    "write.object-storage.",
)
_FORMATS = ("write.format.default", "write.parquet.", "write.orc.", "write.avro.", "parquet.enable.dictionary")
_DATA = (*_PLACES, *_FORMATS, "write.target-file-size-bytes", "write.metadata.metrics.", "schema.name-mapping.default")
_DELETES = (
    "write.delete.format.default",
    "write.delete.granularity",
    "write.delete.target-file-size-bytes",
    "write.delete.parquet.",
    "write.delete.orc.",
    "write.delete.avro.",
)
_MANIFESTS = ("commit.manifest.target-size-bytes", "write.manifest.compression-")
_DIGEST_BYTES = 4


def of_data_files(metadata: TableMetadata) -> dict[str, str]:
    """What decides how data files are written; of deletes too, which may be carried over to them."""
    return {
        "schema": definition(metadata.current_schema_id, schema_to_json(metadata.schema)),
        "partition spec": definition(metadata.default_spec_id, spec_to_json(metadata.spec)),
        "sort order": definition(metadata.default_sort_order_id, sort_order_to_json(metadata.sort_order)),
        **_properties(metadata, (*_DATA, *_DELETES)),
    }


def of_delete_files(metadata: TableMetadata) -> dict[str, str]:
    """What decides how position deletes are written: where nothing is said of them, what is said of data files."""
    return _properties(metadata, (*_PLACES, *_FORMATS, *_DELETES))


def of_manifests(metadata: TableMetadata) -> dict[str, str]:
    """What decides how manifests are written."""
    return _properties(metadata, _MANIFESTS)


def hold_decided(given: GivenPlan, metadata: TableMetadata, now: Mapping[str, str]) -> None:
    """Raise `SafetyError` where what decides of the outcome is not what it was when a plan was made."""
    then = given.decided_by
    if then is None:
        # It was written before plans said it.
        return
    differ = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    if differ:
        told = [f"{name} is {now.get(name, 'not set')} by now, and was {then.get(name, 'not set')}" for name in differ]
        raise moved(given, metadata, f"the table's {'; '.join(told[:3])}", changed=differ)


def definition(number: int, document: Any) -> str:
    """An id, and a hash of what it stands for: a number may be given anew."""
    told = json.dumps(document, sort_keys=True).encode()
    return f"{number} ({blake2b(told, digest_size=_DIGEST_BYTES).hexdigest()})"


def _properties(metadata: TableMetadata, names: Iterable[str]) -> dict[str, str]:
    """Those of some names; one that ends in a dot or a dash stands for all that begin so."""
    known = tuple(names)
    return {
        f"property {key}": value
        for key, value in metadata.properties.items()
        if any(key == name or (name[-1] in ".-" and key.startswith(name)) for name in known)
    }
