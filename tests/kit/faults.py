"""Metadata documents that are broken on purpose, and what a tally of `check` has, in the form that tests compare."""

from collections.abc import Callable
from typing import Any

from icekeep.maintenance.check.faults import CLASSES, Fault, Tally
from icekeep.maintenance.check.metadata import check_metadata
from kit.metadata import sound_document

WHERE = "s3://b/wh/data.db/table/metadata/v2.json"
"""Of the documents in `metadata.py`."""

Edit = Callable[[dict[str, Any]], object]


def told(tally: Tally) -> list[tuple[int, str]]:
    """The faults as number and place."""
    return [(fault.number, fault.where) for fault in all_faults(tally)]


def all_faults(tally: Tally) -> list[Fault]:
    """All faults that are kept, by number and place."""
    return [fault for number in sorted(tally.counts) for fault in tally.faults(number)]


def the_fault(tally: Tally, number: int) -> Fault:
    """The one fault of a class; fails where there is none, or more."""
    (fault,) = tally.faults(number)
    return fault


def serious(tally: Tally) -> set[int]:
    """Numbers of what was found, notices left out."""
    return {number for number in tally.counts if not CLASSES[number].is_notice}


def facts(tally: Tally, number: int) -> dict[str, Any]:
    """What a machine is told of the one fault of a class."""
    return dict(the_fault(tally, number).facts)


def checked(document: object, location: str = WHERE) -> Tally:
    """What `check_metadata` finds."""
    tally = Tally()
    check_metadata(document, location, tally)
    return tally


def put(*path_and_value: Any) -> Edit:
    """An edit that sets the value at a path of keys and positions."""
    *path, key, value = path_and_value

    def act(document: Any) -> None:
        for step in path:
            document = document[step]
        document[key] = value

    return act


def drop(*path: Any) -> Edit:
    """An edit that takes out what is at a path."""
    *above, key = path

    def act(document: Any) -> None:
        for step in above:
            document = document[step]
        del document[key]

    return act


def add(key: str, *items: dict[str, Any]) -> Edit:
    """An edit that appends items to a list at the top, which is made if it is not there."""
    return lambda document: document.setdefault(key, []).extend(items)


def edited(*edits: Edit, version: int = 2) -> Tally:
    """What is found in a sound document that was edited."""
    document = sound_document(version)
    for edit in edits:
        edit(document)
    return checked(document)


def snapshot(snapshot_id: int, sequence_number: int, **keys: Any) -> dict[str, Any]:
    """A sound snapshot without a parent; keys are spelled with underscores."""
    return {
        "snapshot-id": snapshot_id,
        "sequence-number": sequence_number,
        "timestamp-ms": 1602638573590,
        "manifest-list": f"s3://a/b/{snapshot_id}.avro",
        "summary": {"operation": "append"},
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }
