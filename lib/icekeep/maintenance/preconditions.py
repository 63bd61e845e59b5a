"""What must be so still where a saved plan is carried out: the job finds its own work on the table as it is now, leaves out
what is not in the plan, and refuses where anything of the plan is missing in what it found.

So a plan can only make a run do less than the job alone would. A plan also records what of the metadata decides the result of a
rewrite (sort order, partition spec, columns, format), since that is what was approved, and is compared with it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.file_sets import entry_digest
from icekeep.commit.summary import PLAN_KEY, made_by
from icekeep.errors import SafetyError, and_more
from icekeep.maintenance.plans import EQUALITY_DELETES, POSITION_DELETES, REMOVE, VECTOR, PlanLine, SavedPlan
from icekeep.runs import Run, new_run
from icekeep.runtime import Runtime
from icekeep.spec.manifests.structs import FileContent, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import spec_to_json
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.schema import schema_to_json
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.sorting import sort_order_to_json
from icekeep.spec.times import format_time
from icekeep.spelling import counted

NOTE_OF_REMOVALS = (
    "which delete files are taken out is known only when it commits, since rows move to another partition spec, or the plan has "
    "too many files"
)

_SHOWN = 3
"""How many files or snapshots a refusal names, at most."""


_DELETES = frozenset({POSITION_DELETES, EQUALITY_DELETES, VECTOR})


class AlreadyApplied(Exception):
    """A saved plan has been carried out before: there is nothing to do. Only `apply` meets it.

    Attributes:
        snapshots: by which it was; none where it shows in another way.
    """

    def __init__(self, message: str, snapshots: Sequence[Snapshot] = ()) -> None:
        super().__init__(message)
        self.snapshots = tuple(snapshots)


def refuse_other_table(saved: SavedPlan, table: Table) -> None:
    """Raise `SafetyError` where a table is not the one that a plan was made of, whatever its name is."""
    then, now = saved.head, table.metadata
    if then.table_uuid != now.table_uuid:
        raise SafetyError(
            f"the plan is of another table that was called {table.name!r} (uuid {then.table_uuid}, this one has "
            f"{now.table_uuid}): it was dropped and made again; nothing is changed; make a new plan",
            hash=saved.hash,
        )
    if now.table_uuid is None and then.location != now.location:
        raise SafetyError(
            f"the plan is of a table at {then.location!r}, and {table.name!r} lies at {now.location!r}; nothing is changed; make "
            "a new plan",
            hash=saved.hash,
        )


def run_of_plan(saved: SavedPlan, job: str, runtime: Runtime) -> Run:
    """A run that carries a plan out: its snapshots say which."""
    return msgspec.structs.replace(new_run(job, runtime), plan=saved.hash)


def delete_file_line(entry: ManifestEntry, do: str, group: int | None = None) -> PlanLine:
    """The line of a live delete file; its state is the digest of its entry."""
    file = entry.data_file
    kind = VECTOR if is_deletion_vector(file) else POSITION_DELETES
    return PlanLine(
        do=do,
        kind=EQUALITY_DELETES if file.content is FileContent.EQUALITY_DELETES else kind,
        name=file.file_path,
        group=group,
        size_bytes=file.own_bytes,
        record_count=file.record_count,
        state=entry_digest(entry).hex(),
    )


def saved_removals(saved: SavedPlan, found: Sequence[ManifestEntry], metadata: TableMetadata) -> list[ManifestEntry]:
    """Those of the delete files that would be taken out of the table as it is, `found`, which the plan names as well.

    Raises:
        SafetyError: the plan names one that is not among `found`, and no part of the plan has landed yet.
    """
    lines = {line.state: line.name for line in saved.lines() if line.do == REMOVE and line.kind in _DELETES}
    states = {entry_digest(entry).hex(): entry for entry in found}
    gone = [name for state, name in lines.items() if state not in states]
    if gone and not landed(saved, metadata):
        files = counted(len(gone), "delete files")
        problem = (
            f"{files} to remove {'is' if len(gone) == 1 else 'are'} gone, or needed again, such as {first_of(gone)}"
        )
        raise moved(saved, metadata, problem, gone_count=len(gone))
    return [entry for state, entry in states.items() if state in lines]


def landed(saved: SavedPlan, metadata: TableMetadata) -> list[Snapshot]:
    """The snapshots that carried a plan out, or a part of it; none where they have expired."""
    return [one for one in metadata.snapshots if (one.summary or {}).get(PLAN_KEY) == saved.hash]


def already_applied(saved: SavedPlan, metadata: TableMetadata) -> AlreadyApplied:
    """That snapshots of the table carried the plan out."""
    snapshots = landed(saved, metadata)
    return AlreadyApplied(f"it was carried out before, by {_snapshots(snapshots)}", snapshots)


def moved(saved: SavedPlan, metadata: TableMetadata, problem: str, **facts: Any) -> SafetyError:
    """The refusal of a plan since the table moved in a way that matters.

    Args:
        problem: what of the plan does not hold any more.
    """
    return SafetyError(
        f"the table moved, and the plan does not hold any more: {problem}; {came_since(saved, metadata)}; nothing is changed; "
        "make a new plan",
        hash=saved.hash,
        **facts,
    )


def first_of(names: Sequence[str], total: int | None = None) -> str:
    """The first of some names, and how many more there are."""
    shown = ", ".join(map(repr, names[:_SHOWN]))
    more = (len(names) if total is None else total) - min(len(names), _SHOWN)
    return f"{shown} and {more:,} more" if more else shown


def came_since(saved: SavedPlan, metadata: TableMetadata) -> str:
    """Which snapshots a branch got since a plan was made of it, and who made them."""
    branch, then = saved.head.branch, saved.head.snapshot_id
    head = metadata.head(branch)
    if head is None:
        return f"branch {branch!r} is gone" if then is not None else "no snapshot came since"
    if head.snapshot_id == then:
        return f"branch {branch!r} has the same head {head.snapshot_id} as then"
    newer: list[Snapshot] = []
    for one in _back_from(head, metadata):
        if one.snapshot_id == then:
            return f"since it was made came {_snapshots(newer)}"
        newer.append(one)
    if then is None:
        return f"since it was made came {_snapshots(newer)}"
    if then in metadata.snapshots_by_id:
        return f"branch {branch!r} was moved away from snapshot {then} to {_snapshots([head])}"
    return f"the head of {branch!r} is {_snapshots([head])}, and snapshot {then}, its head then, has expired"


def _back_from(head: Snapshot, metadata: TableMetadata) -> Iterator[Snapshot]:
    one: Snapshot | None = head
    seen: set[int] = set()
    while one is not None and one.snapshot_id not in seen:
        seen.add(one.snapshot_id)
        yield one
        one = None if one.parent_snapshot_id is None else metadata.snapshots_by_id.get(one.parent_snapshot_id)


def _snapshots(some: Sequence[Snapshot]) -> str:
    texts = []
    for one in islice(some, _SHOWN):
        by = made_by(one.summary)
        texts.append(
            f"{one.snapshot_id} ({one.operation or 'unknown'} at {format_time(one.timestamp_ms)}{f' by {by}' if by else ''})"
        )
    return f"{'snapshot' if len(some) == 1 else 'snapshots'} {', '.join(texts)}{and_more(some, _SHOWN)}"


_PLACES = (
    "write.data.path",
    "write.folder-storage.path",
    "write.location-provider.impl",
    "write.object-storage.",
)
_FORMATS = ("write.format.default", "write.parquet.", "write.orc.", "write.avro.", "parquet.enable.dictionary")
_DATA = (*_PLACES, *_FORMATS, "write.target-file-size-bytes", "write.metadata.metrics.", "schema.name-mapping.default")
_DELETE_FORMATS = (
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
        **_properties(metadata, (*_DATA, *_DELETE_FORMATS)),
    }


def of_delete_files(metadata: TableMetadata) -> dict[str, str]:
    """What decides how position deletes are written: where no property is about them, the properties of data files."""
    return _properties(metadata, (*_PLACES, *_FORMATS, *_DELETE_FORMATS))


def of_manifests(metadata: TableMetadata) -> dict[str, str]:
    """What decides how manifests are written."""
    return _properties(metadata, _MANIFESTS)


def check_decided(saved: SavedPlan, metadata: TableMetadata, now: Mapping[str, str]) -> None:
    """Raise `SafetyError` where what decides of the outcome is not what it was when a plan was made."""
    then = saved.head.decided_by
    if then is None:
        # It was written before plans said it.
        return
    differ = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    if differ:
        changes = [f"{name} is {now.get(name, 'not set')} now, and was {then.get(name, 'not set')}" for name in differ]
        raise moved(saved, metadata, f"the table's {'; '.join(changes[:3])}", changed=differ)


def definition(number: int, document: Any) -> str:
    """An id, and a hash of its definition: an id may be given to another one."""
    text = json.dumps(document, sort_keys=True).encode()
    return f"{number} ({blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()})"


def _properties(metadata: TableMetadata, names: Iterable[str]) -> dict[str, str]:
    """Those of some names; one that ends in a dot or a dash stands for all that begin so."""
    known = tuple(names)
    return {
        f"property {key}": value
        for key, value in metadata.properties.items()
        if any(key == name or (name[-1] in ".-" and key.startswith(name)) for name in known)
    }
