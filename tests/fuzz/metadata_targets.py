"""Spoilt table metadata, partition specs, sort orders and name mappings."""

import gzip
from random import Random
from typing import Any

from fuzz.judging import assert_survives, taken
from fuzz.mutations import json_bytes, mutate_bytes, mutate_json
from icekeep.spec.metadata import format_metadata, metadata_to_json, parse_metadata
from icekeep.spec.updates import SetProperties, apply_updates
from kit.metadata import full_document


def version_1_document() -> dict[str, Any]:
    document = full_document()
    current = next(s for s in document["schemas"] if s["schema-id"] == document["current-schema-id"])
    spec = next(s for s in document["partition-specs"] if s["spec-id"] == document["default-spec-id"])
    document |= {"format-version": 1, "schema": current, "partition-spec": spec["fields"]}
    for key in ("schemas", "current-schema-id", "last-sequence-number", "sort-orders", "default-sort-order-id"):
        document.pop(key, None)
    return document


def version_3_document() -> dict[str, Any]:
    document = {**full_document(), "format-version": 3, "next-row-id": 50}
    for snapshot in document["snapshots"]:
        snapshot |= {"first-row-id": 0, "added-rows": 10}
    return document


def metadata_values(rng: Random) -> bool:
    document = rng.choice([full_document, version_1_document, version_3_document])()
    document = mutate_json(document, rng, rng.choice([1, 1, 2, 5]))
    metadata = taken(lambda: parse_metadata(json_bytes(document), "m"))
    if metadata is None:
        return False
    written = metadata_to_json(metadata)
    assert_survives(document, written, "")
    assert parse_metadata(format_metadata(metadata), "m") == metadata
    changed = taken(lambda: apply_updates(metadata, [SetProperties({"k": "v"})], now_ms=2**62))
    if changed is not None:
        assert_survives({**written, "last-updated-ms": changed.last_updated_ms}, metadata_to_json(changed), "")
    return True


def metadata_bytes(rng: Random) -> bool:
    data = json_bytes(rng.choice([full_document, version_1_document, version_3_document])())
    if rng.random() < 0.3:
        data = gzip.compress(data, 1, mtime=0)
    metadata = taken(lambda: parse_metadata(mutate_bytes(data, rng, rng.choice([1, 1, 3])), "m"))
    if metadata is None:
        return False
    assert parse_metadata(format_metadata(metadata), "m") == metadata
    return True
