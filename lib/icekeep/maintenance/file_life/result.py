"""What is told of a file."""

from enum import StrEnum

import msgspec

from icekeep.planning.scan.report import Evidence
from icekeep.rendered import Rendered


class State(StrEnum):
    """What a file is to its table.

    Attributes:
        CURRENT: the current version of `main` has it.
        RETAINED: a snapshot has it, and the current version of `main` does not.
        PLANNED: no snapshot has it, and it lies in its place until the plan of a run takes it.
        TRASH: a run has moved it to the trash.
        GARBAGE: it was of the table, no snapshot has it any more, and it is still there.
        ORPHAN: it lies in a place of the table, and nothing has ever led to it as far as is known.
        OWN: it is icekeep's own.
        ELSEWHERE: it lies in no place of the table, and nothing of the table leads to it.
        GONE: it was of the table, and is not there any more.
        UNKNOWN: it is not there, and nothing is known of it.
        UNDECIDED: nothing that can be read leads to it, and not everything can be read.
    """

    CURRENT = "current"
    RETAINED = "retained"
    PLANNED = "planned"
    TRASH = "trash"
    GARBAGE = "garbage"
    ORPHAN = "orphan"
    OWN = "own"
    ELSEWHERE = "elsewhere"
    GONE = "gone"
    UNKNOWN = "unknown"
    UNDECIDED = "undecided"


class FileEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot did with the file.

    Attributes:
        event: `added`, `removed`, `removed in part` (some of the vectors of a Puffin file), or of statistics `describes`.
        timestamp_ms: of the snapshot, epoch milliseconds; `None` where it expired, as `operation` and `made_by`.
    """

    event: str
    snapshot_id: int
    timestamp_ms: int | None
    operation: str | None
    made_by: str | None


class ReadingRef(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshots that read the file and that one reference leads to; `ref` is `None` for those that none leads to.

    Attributes:
        is_in_head: whether the snapshot at which the reference is has the file.
        oldest_timestamp_ms, newest_timestamp_ms: of the snapshots, epoch milliseconds.
    """

    ref: str | None
    type: str
    is_in_head: bool
    snapshots_count: int
    oldest_timestamp_ms: int
    newest_timestamp_ms: int


class ReachingDelete(msgspec.Struct, frozen=True, kw_only=True):
    """A delete file, or a vector in a Puffin file, that readers apply to the data file.

    Attributes:
        record_count: of the whole delete file, which may be for other data files too.
        snapshot_id: that added it; `None` where that is not known.
    """

    kind: str
    record_count: int
    sequence_number: int
    snapshot_id: int | None
    timestamp_ms: int | None
    made_by: str | None
    file_path: str


class HeldVector(msgspec.Struct, frozen=True, kw_only=True):
    """A deletion vector in a Puffin file, and the data file that it is for."""

    record_count: int
    offset_bytes: int | None
    blob_bytes: int | None
    referenced_data_file: str | None


class KnownColumn(msgspec.Struct, frozen=True, kw_only=True):
    """What metadata says of the values that a data file has in a column."""

    column: str
    known: str


class PlanOfFile(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of a run that names the file.

    Attributes:
        place: `trash`; `in place`, where the file waits for the plan to be carried out; or `gone`.
        created_ms: when the run made the plan, epoch milliseconds.
        until_ms: the file is not deleted before.
        is_restorable: whether `icekeep restore --run RUN` brings it back.
    """

    run: str
    job: str
    place: str
    created_ms: int
    until_ms: int
    is_restorable: bool


class WhyResult(Rendered, frozen=True, kw_only=True, omit_defaults=True):
    """The life of one file. What does not apply to such a file is left out.

    Attributes:
        file_path: as metadata spells it, or the store.
        kind: as `file_kinds.FileKind`; `deletion vectors` for a Puffin file.
        answer: why it is there, or is not, and when it goes; a sentence or two.
        created_ms: when the store says that it was written, epoch milliseconds.
        partition: as people read it; empty for none.
        referenced_data_file: the only data file that a delete file is for.
        is_read_by_filter: whether a scan with the filter reads it.
        pruned_by: the first step that leaves it out, as `Explanation.pruned_by`.
        snapshots_count: how many snapshots read it.
        retained_until_ms: so long expiration by the table's own limits keeps a snapshot that reads it, if nothing is committed.
        kept_by: what keeps it for good, until somebody changes that.
        removable_after_ms: from then on `remove_orphan_files` takes it at its defaults.
        deletes_count: delete files that reach the data file in the version that is described: the current one, or the newest that
            has it. `deletes` are the first thousand; so are `vectors`.
        unreadable_files: manifest lists, manifests and plans that could not be looked into.
    """

    file_path: str
    kind: str
    state: State
    answer: str
    is_in_storage: bool
    stored_bytes: int | None = None
    created_ms: int | None = None
    record_count: int | None = None
    partition: str | None = None
    sequence_number: int | None = None
    referenced_data_file: str | None = None
    is_read_by_filter: bool | None = None
    pruned_by: str | None = None
    snapshots_count: int = 0
    retained_until_ms: int | None = None
    kept_by: tuple[str, ...] = ()
    removable_after_ms: int | None = None
    deletes_count: int | None = None
    vectors_count: int | None = None
    history: tuple[FileEvent, ...] = ()
    refs: tuple[ReadingRef, ...] = ()
    deletes: tuple[ReachingDelete, ...] = ()
    vectors: tuple[HeldVector, ...] = ()
    columns: tuple[KnownColumn, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    plans: tuple[PlanOfFile, ...] = ()
    unreadable_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
