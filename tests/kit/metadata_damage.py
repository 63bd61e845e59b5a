"""Damage to metadata files, by the class of the fault that it makes; each raises `CannotDamageError` where it cannot."""

import uuid
from collections.abc import Callable, Mapping

from kit.damager import CannotDamageError, Damager, Record

Damage = Callable[[Damager], object]
_ABSENT = 424_242


def _need(found: object) -> None:
    if not found:
        raise CannotDamageError


def _in_metadata(change: Callable[[Damager, Record], object]) -> Damage:
    def damage(damager: Damager) -> None:
        document = damager.metadata()
        change(damager, document)
        damager.edit_metadata(lambda old: (old.clear(), old.update(document)))

    return damage


def _above_v1(document: Record) -> None:
    _need(document["format-version"] > 1)


def _snapshot(damager: Damager, document: Record) -> Record:
    _need(document.get("snapshots"))
    found: Record = damager.chosen.choice(document["snapshots"])
    return found


def _cut(damager: Damager) -> None:
    data = damager.read(damager.location)
    damager.write(damager.location, data[: damager.chosen.randrange(len(data) // 2)])


def _last_sequence_number(damager: Damager, document: Record) -> None:
    _above_v1(document)
    _need(document["last-sequence-number"] > 0 and document.get("snapshots"))
    newest = max(snapshot.get("sequence-number", 0) for snapshot in document["snapshots"])
    _need(newest)
    document["last-sequence-number"] = damager.chosen.randrange(newest)


def _doubled_schema(_: Damager, document: Record) -> None:
    _need(document.get("schemas"))
    document["schemas"].append(document["schemas"][0])


def _last_column_id(damager: Damager, document: Record) -> None:
    document["last-column-id"] = 1


def _last_partition_id(_: Damager, document: Record) -> None:
    _need(any(spec["fields"] for spec in document.get("partition-specs", [])))
    document["last-partition-id"] = 999


def _partition_source(_: Damager, document: Record) -> None:
    default = document.get("default-spec-id")
    fields = [f for spec in document.get("partition-specs", []) if spec["spec-id"] == default for f in spec["fields"]]
    _need(fields)
    fields[0]["source-id"] = _ABSENT


def _identifier(_: Damager, document: Record) -> None:
    _need(document.get("schemas"))
    for schema in document["schemas"]:
        schema["identifier-field-ids"] = [_ABSENT]


def _doubled_field(_: Damager, document: Record) -> None:
    _need(document.get("schemas"))
    for schema in document["schemas"]:
        _need(len(schema["fields"]) > 1)
        schema["fields"][1]["id"] = schema["fields"][0]["id"]


def _current_snapshot(_: Damager, document: Record) -> None:
    _need(document.get("snapshots"))
    document["current-snapshot-id"] = _ABSENT
    document.pop("refs", None)


def _reference(_: Damager, document: Record) -> None:
    _need(document.get("snapshots"))
    document.setdefault("refs", {})["lost"] = {"snapshot-id": _ABSENT, "type": "branch"}


def _main(_: Damager, document: Record) -> None:
    others = [s for s in document.get("snapshots", []) if s["snapshot-id"] != document.get("current-snapshot-id")]
    _need(others)
    document.setdefault("refs", {})["main"] = {"snapshot-id": others[0]["snapshot-id"], "type": "branch"}


def _limit(_: Damager, document: Record) -> None:
    _need(document.get("refs", {}).get("main"))
    document["refs"]["main"]["max-snapshot-age-ms"] = -1


def _circle(damager: Damager, document: Record) -> None:
    snapshot = _snapshot(damager, document)
    snapshot["parent-snapshot-id"] = snapshot["snapshot-id"]


def _sequence_number(_: Damager, document: Record) -> None:
    _above_v1(document)
    children = [s for s in document.get("snapshots", []) if s.get("parent-snapshot-id") is not None]
    _need(children)
    by_id = {s["snapshot-id"]: s for s in document["snapshots"]}
    parent = by_id.get(children[-1]["parent-snapshot-id"])
    _need(parent and parent.get("sequence-number"))
    assert parent is not None
    children[-1]["sequence-number"] = parent["sequence-number"]


def _no_manifests(damager: Damager, document: Record) -> None:
    snapshot = _snapshot(damager, document)
    snapshot.pop("manifest-list", None)
    snapshot.pop("manifests", None)


def _snapshot_log(_: Damager, document: Record) -> None:
    _need(len(document.get("snapshot-log", [])) > 1)
    document["snapshot-log"][-1]["snapshot-id"] = document["snapshot-log"][0]["snapshot-id"]


def _statistics(_: Damager, document: Record) -> None:
    document.setdefault("statistics", []).append(
        {
            "snapshot-id": _ABSENT,
            "statistics-path": "memory://elsewhere/stats.puffin",
            "file-size-in-bytes": 10,
            "file-footer-size-in-bytes": 4,
            "blob-metadata": [],
        }
    )


def _uuid(_: Damager, document: Record) -> None:
    _above_v1(document)
    _need(document.get("metadata-log"))
    document["table-uuid"] = str(uuid.UUID(int=7))


def _location(_: Damager, document: Record) -> None:
    document["location"] = "warehouse/db/t"


def _next_row_id(damager: Damager, document: Record) -> None:
    _need(document["format-version"] > 2 and document["next-row-id"] > 0)
    _need(any(snapshot.get("added-rows") for snapshot in document["snapshots"]))
    document["next-row-id"] = damager.chosen.randrange(document["next-row-id"])


def _row_ids(_: Damager, document: Record) -> None:
    adding = [s for s in document.get("snapshots", []) if s.get("added-rows")]
    _need(document["format-version"] > 2 and len(adding) > 1)
    adding[-1]["first-row-id"] = adding[0]["first-row-id"]


def _no_row_id(_: Damager, document: Record) -> None:
    _need(document["format-version"] > 2 and len(document.get("snapshots", [])) > 1)
    document["snapshots"][-1].pop("first-row-id")


def _schema_of_snapshot(damager: Damager, document: Record) -> None:
    _snapshot(damager, document)["schema-id"] = _ABSENT


def _time(_: Damager, document: Record) -> None:
    children = [s for s in document.get("snapshots", []) if s.get("parent-snapshot-id") is not None]
    _need(children)
    children[-1]["timestamp-ms"] -= 10 * 24 * 3600 * 1000


def _operation(damager: Damager, document: Record) -> None:
    _above_v1(document)
    snapshot = _snapshot(damager, document)
    _need(snapshot.get("summary"))
    del snapshot["summary"]["operation"]


def _odd_history(damager: Damager, document: Record) -> None:
    damager.chosen.choice((_schema_of_snapshot, _time, _operation))(damager, document)


def _feature(_: Damager, document: Record) -> None:
    _need(document["format-version"] < 3 and document.get("schemas"))
    document["schemas"][-1]["fields"][-1]["initial-default"] = 1


METADATA_DAMAGE: Mapping[int, Damage] = {
    101: _cut,
    102: _in_metadata(_last_sequence_number),
    103: _in_metadata(_doubled_schema),
    104: _in_metadata(lambda _, document: document.update({"current-schema-id": _ABSENT})),
    105: _in_metadata(lambda _, document: document.update({"default-spec-id": _ABSENT})),
    106: _in_metadata(lambda _, document: document.update({"default-sort-order-id": _ABSENT})),
    107: _in_metadata(_partition_source),
    108: _in_metadata(_last_column_id),
    109: _in_metadata(_last_partition_id),
    111: _in_metadata(_doubled_field),
    113: _in_metadata(_identifier),
    114: _in_metadata(_current_snapshot),
    115: _in_metadata(_reference),
    116: _in_metadata(_main),
    117: _in_metadata(_limit),
    118: _in_metadata(_circle),
    119: _in_metadata(_sequence_number),
    120: _in_metadata(_no_manifests),
    121: _in_metadata(_snapshot_log),
    124: _in_metadata(_statistics),
    126: _in_metadata(_uuid),
    127: _in_metadata(_location),
    128: _in_metadata(_next_row_id),
    129: _in_metadata(_row_ids),
    130: _in_metadata(_no_row_id),
    136: _in_metadata(_feature),
    137: _in_metadata(
        lambda _, document: document.setdefault("properties", {}).update({"schema.name-mapping.default": "[{"})
    ),
    138: _in_metadata(_odd_history),
}
