"""A job's real plan as a value: all that it does, line by line; and its file, which `--plan-out` writes and `apply` reads.

The file (`docs/plans.md`) is JSON lines, written and read from the first to the last with one line in memory:

    {"format": "icekeep-plan", "version": 1, "icekeep": "0.1.0", "job": "compact", "table": "lake.db.events", ...}
    {"do": "rewrite", "kind": "data file", "name": "...", "group": 0, "size_bytes": 4242, "state": "..."}
    {"totals": {"lines_count": 1, ...}}
    {"hash": "..."}

The last line has the hash of all bytes before it. It holds off accidents and shows which plan it is, and is no signature: a job
that carries out a saved plan never trusts it (`preconditions`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, BinaryIO

import msgspec

from icekeep.decoding import from_json
from icekeep.errors import NotFoundError, UsageError
from icekeep.spec.snapshots import MAIN

REWRITE, APPLY, REMOVE, DELETE_ROWS = "rewrite", "apply", "remove", "delete rows"
"""What is done with files: they are replaced, their deletes are applied, they go since nothing needs them, or rows of them go."""

POSITION_DELETES, EQUALITY_DELETES, VECTOR = "position delete file", "equality delete file", "deletion vector"

GROUP, SNAPSHOT, REFERENCE, FAULT, PART, TABLE = "group", "snapshot", "reference", "fault", "part", "table"
SCHEMA, SPEC = "schema", "partition spec"
_NO_FILES = frozenset({GROUP, SNAPSHOT, REFERENCE, SCHEMA, SPEC, FAULT, PART, TABLE})


class PlanLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One thing that is done.

    Attributes:
        do: such as `rewrite`, `remove`, `expire`, `delete`, `mend`.
        kind: of what, such as `data file`, `manifest`, `snapshot`, `group`.
        name: a file's location, a reference's name, the id of a snapshot, schema or partition spec.
        group: what is done together has one number.
        size_bytes, record_count: of the file, or of all files of a group.
        state: a hash of what must be so still, beside the name.
        says: what else people may want to know.
    """

    do: str
    kind: str
    name: str = ""
    group: int | None = None
    size_bytes: int | None = None
    record_count: int | None = None
    state: str = ""
    says: Mapping[str, Any] = {}

    @property
    def is_of_a_file(self) -> bool:
        """Whether it says what becomes of a file."""
        return self.do not in (APPLY, DELETE_ROWS) and self.kind not in _NO_FILES


class PlanCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan will take, as far as that is known before: bytes, requests of storage, milliseconds of all cores."""

    read_bytes: int = 0
    written_bytes: int = 0
    requests_count: int = 0
    cpu_ms: int = 0


class ExactPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a job hands out.

    Attributes:
        shown: the job's public plan, as `--dry-run` shows it.
        snapshot_id: that it was made of: the head of `branch`, which `None` says for a table without one.
        lines: all that is done; they may be read once, while the session runs that the plan was made in.
        close: lets go of what the lines are read from; called in any case.
        approve: the hash that the job's `approve` takes, if it has one.
        decided_by: what of the table's metadata decides of the outcome, beside the lines (`of_data_files` and its like).
        notes: what is done besides the lines, and is known only then.
    """

    shown: Any
    snapshot_id: int | None
    branch: str = MAIN
    lines: Iterable[PlanLine] = ()
    close: Callable[[], None] | None = None
    approve: str | None = None
    decided_by: Mapping[str, str] = {}
    cost: PlanCost = PlanCost()
    notes: tuple[str, ...] = ()


FORMAT = "icekeep-plan"
VERSION = 2
"""Raised when a file can no longer be read by those who know the version before."""

_HASH_BYTES = 16
_LAST = re.compile(rb'\{"hash":"([0-9a-f]{32})"\}\n')
_LINE_MAX_BYTES = 1 << 24
_ENCODER = msgspec.json.Encoder()


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class PlanHead(_Record, frozen=True, kw_only=True):
    """The first line.

    Attributes:
        icekeep: the version that wrote it.
        table: its name, with that of the catalog in the configuration.
        location, metadata_location, snapshot_id: of the table as it was, the last that of the head of `branch`.
        created_ms: when the plan was made, epoch milliseconds; times in `arguments` are moments.
        arguments: of the job, by the keywords of its function.
        approve: the hash of what the job does, if it has one.
        notes: what is done beside the lines.
        catalog: the catalog's kind and address, whatever a configuration calls it.
        decided_by: what of the table's metadata decides of the outcome, beside the lines. Files of version 1 have neither.
    """

    format: str
    version: int
    icekeep: str
    job: str
    table: str
    table_uuid: str | None
    location: str
    metadata_location: str
    branch: str
    snapshot_id: int | None
    created_ms: int
    arguments: dict[str, Any]
    approve: str | None
    notes: tuple[str, ...]
    catalog: str | None = None
    decided_by: dict[str, str] | None = None


class PlanTotals(_Record, frozen=True, kw_only=True):
    """The last line but one: what all lines sum up to, and what they will take. `cost` where prices are configured.

    Attributes:
        files_count, files_bytes: that are rewritten, taken out or deleted, without those that are only applied.
    """

    lines_count: int = 0
    files_count: int = 0
    files_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    requests_count: int = 0
    cpu_ms: int = 0
    cost: float | None = None
    currency: str | None = None


class _Totals(_Record, frozen=True, kw_only=True):
    totals: PlanTotals


class _Version(msgspec.Struct):
    format: str
    version: int
    icekeep: str = ""


class SavedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a plan that was read once, as a whole, and found to be what was written."""

    path: str
    head: PlanHead
    totals: PlanTotals
    hash: str

    def lines(self) -> Iterator[PlanLine]:
        """All that is done, read from the beginning.

        Raises:
            UsageError: a line is none, or the file is not the one that was read.
        """
        left = self.totals.lines_count
        hashing = blake2b(digest_size=_HASH_BYTES)
        for number, line in enumerate(_raw_lines(self.path)):
            if not _LAST.fullmatch(line):
                hashing.update(line)
            if not 1 <= number <= left:
                continue
            try:
                yield from_json(line, PlanLine)
            except msgspec.MsgspecError as error:
                raise UsageError(f"line {number + 1} of plan {self.path!r} cannot be read: {error}") from None
        if hashing.hexdigest() != self.hash:
            raise _changed(self.path)


def write_lines(
    stream: BinaryIO, head: PlanHead, lines: Iterable[PlanLine], costs: Mapping[str, Any]
) -> tuple[PlanTotals, str]:
    """Write a plan; returns its totals and its hash.

    Args:
        costs: what carrying it out takes: the fields of `PlanTotals` that no line says.
    """
    hashing = blake2b(digest_size=_HASH_BYTES)
    lines_count = files_count = files_bytes = 0

    def write(record: object) -> None:
        line = _ENCODER.encode(record) + b"\n"
        hashing.update(line)
        stream.write(line)

    write(head)
    for line in lines:
        lines_count += 1
        if line.is_of_a_file:
            files_count += 1
            files_bytes += line.size_bytes or 0
        write(line)
    totals = PlanTotals(lines_count=lines_count, files_count=files_count, files_bytes=files_bytes, **costs)
    write(_Totals(totals=totals))
    digest = hashing.hexdigest()
    stream.write(_ENCODER.encode({"hash": digest}) + b"\n")
    return totals, digest


def read_plan_file(path: str) -> SavedPlan:
    """Read a file as a whole, and hold it against its hash.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is no plan, was cut off or changed, or is of a newer icekeep.
    """
    raw = _raw_lines(path)
    first = next(raw, b"")
    _refuse_foreign(first, path)
    hashing = blake2b(digest_size=_HASH_BYTES)
    before, last, count = b"", first, 1
    for line in raw:
        hashing.update(last)
        before, last = last, line
        count += 1
    end = _LAST.fullmatch(last)
    if end is None:
        raise UsageError(f"plan {path!r} is cut off, or something was added at its end; write it again with --plan-out")
    digest = end[1].decode()
    if digest != hashing.hexdigest():
        raise _changed(path)
    try:
        head = from_json(first, PlanHead)
        totals = from_json(before, _Totals).totals
    except msgspec.MsgspecError as error:
        raise UsageError(f"plan {path!r} cannot be read: {error}") from None
    if totals.lines_count != count - 3:
        raise _changed(path)
    return SavedPlan(path=path, head=head, totals=totals, hash=digest)


def _raw_lines(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as stream:
            while line := stream.readline(_LINE_MAX_BYTES):
                yield line
    except FileNotFoundError:
        raise NotFoundError(f"there is no plan {path!r}", path=path) from None
    except OSError as error:
        raise UsageError(f"cannot read plan {path!r}: {(error.strerror or '').lower()}", path=path) from error


def _refuse_foreign(first: bytes, path: str) -> None:
    try:
        said = from_json(first, _Version)
    except msgspec.MsgspecError:
        said = _Version(format="", version=0)
    if said.format != FORMAT:
        raise UsageError(f"{path!r} is no plan of icekeep; `--plan-out` of a job writes one")
    if said.version > VERSION:
        raise UsageError(
            f"plan {path!r} was written by a newer icekeep ({said.icekeep or 'unknown'}): it has format version "
            f"{said.version}, and this one reads up to {VERSION}; apply it with that version"
        )


def _changed(path: str) -> UsageError:
    return UsageError(
        f"plan {path!r} was changed since it was written: its hash differs; write it again with --plan-out"
    )
