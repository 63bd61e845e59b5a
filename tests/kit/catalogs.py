"""Small tables for tests of catalogs, and a race between processes for one table's pointer."""

import multiprocessing
import uuid
from collections import Counter
from collections.abc import Mapping
from multiprocessing.synchronize import Barrier
from typing import Any

from icekeep.catalog.base import Catalog, Committed, Conflict, Identifier, Table
from icekeep.catalog.open import open_catalog
from icekeep.runtime import SystemRuntime
from icekeep.spec.metadata import TableMetadata, new_table_metadata, parse_metadata
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import LONG, STRING, NestedField
from icekeep.spec.updates import AddSnapshot, SetProperties

SCHEMA = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=LONG, required=True),
        NestedField(field_id=2, name="name", type=STRING),
    )
)
EVENTS: Identifier = ("db", "events")
COUNTER = "test.counter"


def simple_metadata(location: str, **properties: str) -> TableMetadata:
    """Metadata of a new, empty table with two columns; `_` in the names of properties stands for `-`."""
    return new_table_metadata(
        schema=SCHEMA,
        spec=UNPARTITIONED,
        location=location,
        table_uuid=str(uuid.uuid5(uuid.NAMESPACE_URL, location)),
        now_ms=SystemRuntime().now_ms(),
        properties={name.replace("_", "-"): value for name, value in properties.items()},
    )


def set_counter(value: int | str) -> list[SetProperties]:
    """The updates of a commit that sets one table property."""
    return [SetProperties({COUNTER: str(value)})]


def add_snapshot(snapshot_id: int, sequence_number: int = 1) -> list[AddSnapshot]:
    """The updates of a commit that adds a snapshot which nobody reads."""
    return [
        AddSnapshot(
            Snapshot(
                snapshot_id=snapshot_id,
                timestamp_ms=SystemRuntime().now_ms(),
                sequence_number=sequence_number,
                manifest_list="file:///nowhere/snap.avro",
                summary={"operation": "append"},
                schema_id=0,
            )
        )
    ]


def increment(catalog: Catalog, identifier: Identifier, start: Any = None) -> int:
    """Add one to the counter of a table, however often it takes; how often it conflicted.

    `start`, a barrier, lets several writers load the same base before one of them swaps.
    """
    conflicts = 0
    while True:
        table = catalog.load(identifier)
        if start is not None:
            start.wait()
            start = None
        value = int(table.metadata.properties.get(COUNTER, "0"))
        match catalog.swap(table, [], set_counter(value + 1)):
            case Committed():
                return conflicts
            case Conflict():
                conflicts += 1
            case outcome:
                raise AssertionError(outcome)


def race(properties: Mapping[str, str], *, writers: int, swaps: int) -> int:
    """Let processes increment the counter of `db.events`, each `swaps` times; how many conflicts there were."""
    context = multiprocessing.get_context("fork")
    start, conflicts = context.Barrier(writers), context.Queue()
    processes = [
        context.Process(target=_increment_often, args=(dict(properties), swaps, start, conflicts))
        for _ in range(writers)
    ]
    for process in processes:
        process.start()
    total = sum(conflicts.get(timeout=30) for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return total


def _increment_often(properties: dict[str, str], swaps: int, start: Barrier, conflicts: Any) -> None:
    catalog = open_catalog("local", properties)
    # Every writer loads the same base before any of them swaps: all but one must conflict, in every round.
    conflicts.put(sum(increment(catalog, EVENTS, start) for _ in range(swaps)))


def attaching_race(properties: Mapping[str, str], sound_location: str, location: str, *, clients: int) -> Counter[str]:
    """Let processes give `db.events` metadata again, all at once; how many outcomes there were of each kind."""
    context = multiprocessing.get_context("fork")
    start, outcomes = context.Barrier(clients), context.Queue()
    processes = [
        context.Process(target=_attach, args=(dict(properties), sound_location, location, start, outcomes))
        for _ in range(clients)
    ]
    for process in processes:
        process.start()
    kinds = Counter(outcomes.get(timeout=30) for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return kinds


def _attach(properties: dict[str, str], sound_location: str, location: str, start: Barrier, outcomes: Any) -> None:
    catalog = open_catalog("local", properties)
    storage = catalog.find(EVENTS).storage
    metadata = parse_metadata(storage.read(sound_location), sound_location)
    start.wait()
    outcomes.put(type(catalog.reattach(Table(EVENTS, metadata, location, storage, catalog))).__name__)
