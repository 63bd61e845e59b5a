"""A table whose metadata file has faults begins again from its last sound one, which is written as the next version.

pointer -> the faulty file -> an earlier sound one -> what is lost by it -> a new file, while the pointer is where it was

A commit that loses a race, or is killed, may leave a sound metadata file that never was the table. What was the table is in the
log of what came after it: in the faulty file, or in others beside it, however unsound they are, or of lost races themselves.

What comes after takes sequence numbers again, and in version 3 row ids, that lost commits had taken. That does no harm: the files
of lost commits are in no snapshot any more, so none of them meets a file of a later commit, and nobody can commit them on the
new metadata, as what they would be based on is not there.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Pointer, Table, format_identifier
from icekeep.catalog.metadata_files import file_version, metadata_files, parse_version_name
from icekeep.commit.retry import attach
from icekeep.errors import (
    ConflictError,
    InvalidTableError,
    MissingFileError,
    SafetyError,
    UnavailableError,
    UsageError,
    and_more,
    first_line,
)
from icekeep.events import Listener
from icekeep.maintenance.check.entries import check_files
from icekeep.maintenance.check.faults import CLASSES, Fault, FaultId, Tally
from icekeep.maintenance.check.lists import CheckedTable, read_lists
from icekeep.maintenance.check.manifests import check_manifests
from icekeep.maintenance.check.metadata import EarlierMetadata, check_metadata, is_uuid, last_sound
from icekeep.maintenance.repair import JOB
from icekeep.maintenance.repair.plan import (
    CannotRepairError,
    RepairedFault,
    RepairPlan,
    RepairScope,
    hash_of,
    not_accepted,
    parts_of,
    unrepaired,
)
from icekeep.planning.scan.plan import refuse_encrypted
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.metadata import TableMetadata, metadata_document, parse_metadata, unpacked_head
from icekeep.spec.properties import metadata_directory
from icekeep.spec.times import format_time
from icekeep.spec.updates import log_previous
from icekeep.spelling import counted
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical, is_location

NEEDS_EARLIER = frozenset(
    (
        FaultId.UNREADABLE_METADATA,
        FaultId.DOUBLED_ID,
        FaultId.CURRENT_SCHEMA_MISSING,
        FaultId.DEFAULT_SPEC_MISSING,
        FaultId.DEFAULT_SORT_ORDER_MISSING,
        FaultId.FIELD_ID_DOUBLED,
        FaultId.CURRENT_SNAPSHOT_MISSING,
        FaultId.REFERENCE_TO_MISSING_SNAPSHOT,
        FaultId.MAIN_NOT_CURRENT,
        FaultId.REFERENCE_LIMIT_WRONG,
        FaultId.ANCESTORS_IN_A_CIRCLE,
        FaultId.SNAPSHOT_WITHOUT_MANIFESTS,
        FaultId.TABLE_UUID_WRONG,
        FaultId.FIRST_ROW_ID_MISSING,
    )
)
"""Kinds of faults of a metadata file of which nobody knows what would be right: the table begins again from an earlier one."""

_GONE = (
    FaultId.MANIFEST_LIST_UNREADABLE,
    FaultId.MANIFEST_UNREADABLE,
    FaultId.DATA_FILE_MISSING,
    FaultId.DELETE_FILE_MISSING,
)
_SNAPSHOTS_SHOWN = 20
_FILES_SHOWN = 10

_READ_MAX = 20
"""At most this many files beside the faulty one are read, those nearest to it by their versions."""

_TEXT_MAX_BYTES = 256 << 20
_CHUNK_BYTES = 64 << 10
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([0-9A-Za-z-]{1,64})"')
_SNAPSHOT_ID = re.compile(rb'"snapshot-id"\s*:\s*([0-9]{1,19})\b')


class CheckedMetadata(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The metadata file that a catalog points to, as it is found, with its faults.

    Attributes:
        data: its bytes; `None` where it is not there.
        raw: its JSON; `None` where it is none.
        previous_location: what the catalog says was the table before it, where it says that.
    """

    location: str
    storage: Storage
    previous_location: str | None
    data: bytes | None
    raw: Any
    tally: Tally

    @cached_property
    def text(self) -> bytes:
        """As much of its text as can be unpacked."""
        return _unpacked(self.data or b"")

    @cached_property
    def table_uuid(self) -> str | None:
        """Whose it says that it is, in lower case; `None` where that is lost, or no UUID."""
        return _uuid_in(self.text)

    def listed(self, name: str) -> list[Any] | None:
        """A list of its JSON; `None` where there is none."""
        found = self.raw.get(name) if isinstance(self.raw, Mapping) else None
        return found if isinstance(found, list) else None

    @cached_property
    def snapshots(self) -> list[Mapping[str, Any]]:
        """Those of its snapshots that have an id."""
        some = self.listed("snapshots") or []
        return [one for one in some if isinstance(one, Mapping) and type(one.get("snapshot-id")) is int]

    def follows(self, location: str) -> bool:
        """Whether a metadata file was the table: the catalog says so, or its text names it, as it names those in its log."""
        if self.previous_location is not None and canonical(self.previous_location) == canonical(location):
            return True
        return location != self.location and _names(self.text, location)


def read_pointed(pointer: Pointer) -> CheckedMetadata:
    """Read the file that a table's pointer leads to, and check it.

    Raises:
        UnavailableError: storage is out of reach, or does not know what it has: nothing is said of the file then.
        UsageError: storage denies access: the same.
        UnsupportedError: it is packed in a way that we do not read: the same.
    """
    location, tally, raw = pointer.metadata_location, Tally(), None
    data, problem = _read(pointer), "the metadata file is not there"
    if data is not None:
        try:
            problem, raw = "", metadata_document(data, location)
            check_metadata(raw, location, tally)
        except InvalidTableError as error:
            problem = first_line(error)
    if problem:
        tally.add(Fault(number=FaultId.UNREADABLE_METADATA, where=location, detail=problem))
    return CheckedMetadata(
        location=location,
        storage=pointer.storage,
        previous_location=pointer.previous_location,
        data=data,
        raw=raw,
        tally=tally,
    )


def _read(pointer: Pointer) -> bytes | None:
    location = pointer.metadata_location
    try:
        return pointer.storage.read(location)
    except MissingFileError as error:
        # Missing is what the store says twice, and in two ways.
        if pointer.storage.head(location) is None:
            return None
        raise UnavailableError(
            f"the store has metadata {location!r}, and did not give it: {first_line(error)}; run it again",
            location=location,
        ) from error


def _digest(data: bytes | None) -> str:
    """The same for the same bytes, and another where there is no file."""
    return "missing" if data is None else hashlib.blake2b(data, digest_size=16).hexdigest()


def _unpacked(data: bytes) -> bytes:
    """The text of a metadata file, up to where it cannot be unpacked any more."""
    if data.startswith(b"\x1f\x8b"):
        return b"".join(_unzipped(data))
    try:
        return unpacked_head(data, _TEXT_MAX_BYTES)
    except (zlib.error, OSError, EOFError):
        return b""


def _unzipped(data: bytes) -> Iterator[bytes]:
    stream, size = zlib.decompressobj(wbits=31), 0
    for start in range(0, len(data), _CHUNK_BYTES):
        try:
            part = stream.decompress(data[start : start + _CHUNK_BYTES], _TEXT_MAX_BYTES - size)
        except zlib.error:
            return
        size += len(part)
        yield part
        if size >= _TEXT_MAX_BYTES:
            return


def _uuid_in(text: bytes) -> str | None:
    """The table's UUID that the text of a metadata file says, in lower case; `None` if it says none."""
    found = _UUID.search(text)
    uuid = "" if found is None else found[1].decode("ascii").lower()
    return uuid if is_uuid(uuid) else None


def _names(text: bytes, location: str) -> bool:
    """Whether a text has the name of a file, at the end of a location. JSON may write slashes and letters otherwise."""
    name = location.rpartition("/")[2]
    return any(f"/{one}".encode() in text for one in (name, json.dumps(name)[1:-1]))


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The file to begin again from.

    Attributes:
        is_logged: whether the catalog, or some metadata log, says that it was the table.
        passed_count: of versions between it and the faulty one, as far as their names tell.
        followers: metadata files that follow the faulty one, and are not taken: nobody says that they ever were the table.
    """

    sound: EarlierMetadata
    is_logged: bool
    passed_count: int
    followers: tuple[str, ...] = ()


def choose(faulty: CheckedMetadata, accepted: Collection[str]) -> Chosen:
    """Choose the metadata file that a table begins again from: the newest that is sound and, as far as is known, was the table.

    Args:
        accepted: locations that may be lost; metadata files among them are passed over.

    Raises:
        CannotRepairError: there is none, or nobody knows which of several was the table, or whose they are.
        UnavailableError, UsageError: storage is out of reach, or denies access.
    """
    known = {"table-uuid": faulty.table_uuid, "metadata-log": faulty.listed("metadata-log")}
    earlier = last_sound(faulty.storage, faulty.location, known, without=accepted)
    found = [one for one in earlier if not _lost_to(faulty, one)]
    if not found:
        raise CannotRepairError(
            "no earlier metadata file of the table was found that is sound; bring the file back from a backup, and "
            "`icekeep check` tells what else is there"
        )
    uuids, logged, followers = _read_around(faulty, found, {canonical(one) for one in accepted if is_location(one)})
    if faulty.follows(found[0].location):
        one, is_logged = found[0], True
    elif faulty.table_uuid is None and len(uuids) > 1:
        directory = faulty.location.rpartition("/")[0]
        raise CannotRepairError(
            f"metadata of {len(uuids)} tables lies in {directory!r}, and nothing that is left of the file says which of "
            "them this one is; find out, and register its metadata by hand: `icekeep drop` without --purge, then "
            "`icekeep register`"
        )
    else:
        one, is_logged = _newest(faulty, found, logged)
    version = file_version(one.location)
    return Chosen(
        sound=one,
        is_logged=is_logged,
        passed_count=max(0, file_version(faulty.location) - version - 1) if version >= 0 else 0,
        followers=tuple(followers),
    )


def _lost_to(faulty: CheckedMetadata, one: EarlierMetadata) -> bool:
    """Whether a file is one of those that lost a race: the catalog says that another of its version was the table."""
    previous = faulty.previous_location
    is_of_the_version = previous is not None and file_version(previous) == file_version(one.location) >= 0
    return is_of_the_version and not faulty.follows(one.location)


def _newest(
    faulty: CheckedMetadata, found: Sequence[EarlierMetadata], logged: Collection[str]
) -> tuple[EarlierMetadata, bool]:
    """The newest by version, and whether it is logged; of several of one version the one that is."""
    newest = max(found, key=lambda one: file_version(one.location))
    version = file_version(newest.location)
    rivals = [one for one in found if file_version(one.location) == version] if version >= 0 else [newest]
    was_table = [one for one in rivals if one.location in logged or faulty.follows(one.location)]
    if len(was_table) == 1:
        return was_table[0], True
    if len(rivals) > 1:
        raise CannotRepairError(
            f"{len(rivals)} sound metadata files have the version before it, and nothing tells which of them was the table; the "
            f"others are of commits that never landed: {', '.join(repr(one.location) for one in rivals)}; look at them, and "
            "name those that were not the table by --accept-loss too"
        )
    # Files with the names of versions land by being created, so each of them was the table.
    names = (one.rpartition("/")[2] for one in (newest.location, faulty.location))
    return newest, all(parse_version_name(name) is not None for name in names)


def _read_around(
    faulty: CheckedMetadata, found: Sequence[EarlierMetadata], accepted: Collection[str]
) -> tuple[set[str], set[str], list[str]]:
    """What metadata files beside the faulty one say, of the nearest versions first.

    Returns:
        The tables that they are of, those of files that may be lost left out; which of `found` one of them names; those that
        name the faulty one.
    """
    uuids: set[str] = set()
    logged: set[str] = set()
    followers: list[str] = []
    directory, _, name = faulty.location.rpartition("/")
    version = file_version(name)
    near = range(max(0, version // 10 - 1) * 10, (version // 10 + 2) * 10)
    found_beside = (
        metadata_files(faulty.storage, directory, like=name, versions=near)
        if version >= 0
        else metadata_files(faulty.storage, directory)
    )
    locations = [one.location for one in found_beside]
    others = [one for one in locations if canonical(one) != canonical(faulty.location)]
    others.sort(key=lambda one: (abs(file_version(one) - version), one))
    for location in others[:_READ_MAX]:
        try:
            text = _unpacked(faulty.storage.read(location))
        except MissingFileError:
            continue
        uuid = _uuid_in(text)
        if uuid is not None and canonical(location) not in accepted:
            uuids.add(uuid)
        # What is newer may be what a run like this one left, and names what that one took, whatever that was.
        if file_version(location) <= version:
            logged |= {one.location for one in found if one.location != location and _names(text, one.location)}
        if _names(text, faulty.location) and faulty.table_uuid in (None, uuid):
            followers.append(location)
    return uuids, logged, followers


def lost_commits(faulty: CheckedMetadata, sound: TableMetadata) -> tuple[str, int | None]:
    """What is lost, in a sentence, and the records that lost snapshots say they added, those of rewrites left out.

    The count is `None` where the faulty file does not say it.
    """
    since = f"all commits since {format_time(sound.last_updated_ms)} are lost, those to schemas, properties and branches too"
    kept = sound.snapshots_by_id
    if faulty.raw is None:
        ids = dict.fromkeys(int(one) for one in _SNAPSHOT_ID.findall(faulty.text))
        gone = [str(one) for one in ids if one not in kept]
        if gone:
            return f"{since}: among them snapshots {_some(gone)}, which the file still names", None
        return f"{since}: what they were the file does not tell", None
    lost = [one for one in faulty.snapshots if one["snapshot-id"] not in kept]
    text = f"{since}: snapshots {_some([*map(_shown, lost)])}" if lost else f"{since}; no snapshot is"
    found = {one["snapshot-id"] for one in faulty.snapshots}
    # A list with faults may lack snapshots that the table has.
    back = [str(one.snapshot_id) for one in sound.snapshots if one.snapshot_id not in found]
    if back:
        text += f"; snapshots that it does not have come back: {_some(back)}"
    listed, counts = faulty.listed("snapshots"), [*map(_added_records, lost)]
    known = [count for count in counts if count is not None]
    is_known = listed is not None and len(listed) == len(faulty.snapshots) and len(known) == len(counts)
    return text, sum(known) if is_known else None


def _shown(snapshot: Mapping[str, Any]) -> str:
    summary = _summary(snapshot)
    shown = [str(summary["operation"])] if "operation" in summary else []
    shown += [
        f"{summary[name]} {name.replace('-', ' ')}" for name in ("added-records", "deleted-records") if name in summary
    ]
    return f"{snapshot['snapshot-id']}" + (f" ({', '.join(shown)})" if shown else "")


def _added_records(snapshot: Mapping[str, Any]) -> int | None:
    """What a summary lacks is 0; `None` where there is no summary, or no number."""
    summary = _summary(snapshot)
    if summary.get("operation") == "replace":
        return 0
    text = str(summary.get("added-records", 0))
    return int(text) if summary and text.isascii() and text.isdigit() else None


def _summary(snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
    found = snapshot.get("summary")
    return found if isinstance(found, Mapping) else {}


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:_SNAPSHOTS_SHOWN]) + and_more(texts, _SNAPSHOTS_SHOWN)


def gone_below(table: Table, spark: SparkSource, listener: Listener) -> list[Fault]:
    """The files that branches and tags of earlier metadata need and that cannot be read: others may have cleaned up since.

    Raises:
        SafetyError: not all of it could be looked at.
    """
    tally, metadata = Tally(_GONE), table.metadata
    ids = {ref.snapshot_id for ref in metadata.refs.values()} | {metadata.current_snapshot_id}
    subject = CheckedTable(
        table=table,
        snapshots=tuple(one for one in metadata.snapshots if one.snapshot_id in ids),
        spark=spark,
        listener=listener,
        tally=tally,
        is_current=False,
    )
    check_files(subject, check_manifests(subject, read_lists(subject)).listed)
    found = [fault for number in _GONE for fault in tally.faults(number)]
    # Where a list or a manifest is gone, that is why the rest of its snapshot was not looked at.
    explains = any(fault.number in (FaultId.MANIFEST_LIST_UNREADABLE, FaultId.MANIFEST_UNREADABLE) for fault in found)
    gaps = [gap for gap in tally.gaps() if not (explains and gap.what.startswith("snapshot "))]
    if gaps:
        why = ", ".join(gap.why for gap in gaps if gap.what == gaps[0].what)
        raise SafetyError(
            f"{gaps[0].what} of {table.metadata_location!r} could not be looked at: {why}; nothing was changed"
        )
    return found


class Reattachment(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with a faulty metadata file.

    Attributes:
        table: the metadata that is written, and where the faulty file is; `None` where nothing can be done.
        sound_location: of the file whose metadata is written.
        faulty_digest, sound_digest: of the two files when the plan was made.
    """

    plan: RepairPlan
    faulty_location: str
    table: Table | None = None
    sound_location: str = ""
    faulty_digest: str = ""
    sound_digest: str = ""


def plan_reattachment(
    catalog: Catalog, identifier: Identifier, scope: RepairScope, spark: SparkSource, listener: Listener
) -> Reattachment | None:
    """Look at a table's metadata file, and plan what can be done where it has faults that are to be repaired.

    Returns:
        `None` where it has none of these.

    Raises:
        NotFoundError: the catalog has no such table.
        UsageError: other faults are to be repaired too; or storage denies access.
        UnsupportedError: the table is encrypted, or its metadata file is packed in a way that we do not read.
        SafetyError: what the earlier metadata leads to could not be looked at.
    """
    faulty = read_pointed(catalog.find(identifier))
    numbers = sorted(scope.numbers & NEEDS_EARLIER & faulty.tally.counts.keys())
    if not numbers:
        return None
    if others := sorted(scope.numbers - NEEDS_EARLIER):
        names = ", ".join(str(int(number)) for number in numbers)
        raise UsageError(
            f"the metadata file of table {format_identifier(identifier)!r} has faults {names}: repair these first and alone, and "
            f"{', '.join(map(str, others))} by another run"
        )
    try:
        return _planned(catalog, identifier, faulty, numbers[0], scope, spark, listener)
    except CannotRepairError as error:
        stays = unrepaired(faulty.tally.faults(numbers[0])[0], str(error))
        plan = RepairPlan(not_mended=(stays,), hash=hash_of(None, ()))
        return Reattachment(plan=plan, faulty_location=faulty.location)


def _planned(
    catalog: Catalog,
    identifier: Identifier,
    faulty: CheckedMetadata,
    number: int,
    scope: RepairScope,
    spark: SparkSource,
    listener: Listener,
) -> Reattachment:
    if not catalog.compares_metadata:
        raise CannotRepairError(
            f"catalog {catalog.name!r} writes metadata itself: fix it at the server, or drop the table there, without its "
            "files, and register an earlier metadata file"
        )
    chosen = choose(faulty, scope.accepted)
    location = chosen.sound.location
    data = faulty.storage.read(location)
    metadata = parse_metadata(data, location)
    refuse_encrypted(metadata, JOB.name)
    _refuse_elsewhere(faulty, location, metadata)
    gone = gone_below(Table(identifier, metadata, location, faulty.storage, catalog), spark, listener)
    lost, lost_records_count = lost_commits(faulty, metadata)
    action = _action(metadata, chosen, lost, gone)
    lost_files = (faulty.location, *(fault.where for fault in gone))
    accepted = {canonical(one) for one in scope.accepted if is_location(one)}
    if missing := [one for one in lost_files if canonical(one) not in accepted]:
        more = f" (and {len(missing) - _FILES_SHOWN} more)" if len(missing) > _FILES_SHOWN else ""
        raise not_accepted(action, missing[:_FILES_SHOWN], more)
    repaired = RepairedFault(
        fault_id=int(number),
        name=CLASSES[number].name,
        branch="",
        where=faulty.location,
        action=action,
        lost_files=lost_files,
        lost_records_count=lost_records_count,
    )
    logged = log_previous(metadata, location, metadata.last_updated_ms)
    faulty_digest, sound_digest = _digest(faulty.data), _digest(data)
    plan_hash = hash_of(metadata.table_uuid, [*parts_of([repaired], ()), faulty_digest, sound_digest])
    return Reattachment(
        plan=RepairPlan(mends=(repaired,), lost_records_count=lost_records_count, hash=plan_hash),
        faulty_location=faulty.location,
        table=Table(identifier, logged, faulty.location, faulty.storage, catalog),
        sound_location=location,
        faulty_digest=faulty_digest,
        sound_digest=sound_digest,
    )


def _refuse_elsewhere(faulty: CheckedMetadata, location: str, metadata: TableMetadata) -> None:
    """Raise `CannotRepairError` for metadata that lies beside the faulty file, and says that its own lies elsewhere."""
    directory = canonical(faulty.location).rpartition("/")[0]
    is_beside = canonical(location).rpartition("/")[0] == directory
    if is_beside and not faulty.follows(location) and canonical(metadata_directory(metadata)) != directory:
        raise CannotRepairError(
            f"{location!r} is of a table at {metadata.location!r}, which keeps its metadata elsewhere, and nothing says that it "
            "was this table; find out, and register it by hand"
        )


def _action(metadata: TableMetadata, chosen: Chosen, lost: str, gone: Sequence[Fault]) -> str:
    parts = [
        f"the table begins again, in a new metadata file, from {chosen.sound.location!r} of "
        f"{format_time(metadata.last_updated_ms)}, with current snapshot {metadata.current_snapshot_id or 'none'} and "
        f"last-sequence-number {metadata.last_sequence_number}",
        lost,
        "the data of lost commits stays where it is until `icekeep remove_orphan_files` deletes what is old enough; move "
        "metadata files that cannot be read to another directory before that, or it refuses",
    ]
    if not chosen.is_logged:
        parts.append(
            "no metadata log says that this file was the table: look at it, as it may be of a commit that never landed"
        )
    if chosen.passed_count:
        parts.append(f"the files of {counted(chosen.passed_count, 'versions')} between are missing, or have faults")
    if chosen.followers:
        names = ", ".join(map(repr, chosen.followers[:_FILES_SHOWN]))
        parts.append(f"{names} may have more, but nothing says that it ever was the table, and it is not taken")
    if gone:
        names = ", ".join(repr(fault.where) for fault in gone[:_FILES_SHOWN]) + and_more(gone, _FILES_SHOWN)
        parts.append(f"{counted(len(gone), 'files')} that it needs cannot be read any more: {names}")
    return "; ".join(parts)


def reattached(found: Reattachment, listener: Listener) -> Table:
    """Carry a plan out, and return the table as it is then.

    Raises:
        ConflictError: the pointer moved, or one of the two files is not what it was; nothing was changed.
        OutcomeUnknownError: it may have landed.
    """
    table = found.table
    assert table is not None
    pointer = table.catalog.find(table.identifier)
    name = f"table {table.name!r}"
    if canonical(pointer.metadata_location) != canonical(table.metadata_location):
        raise ConflictError(f"{name} has other metadata now, {pointer.metadata_location!r}; nothing was changed")
    if _digest(read_pointed(pointer).data) != found.faulty_digest:
        raise ConflictError(f"metadata {table.metadata_location!r} of {name} was replaced; nothing was changed")
    try:
        sound: bytes | None = pointer.storage.read(found.sound_location)
    except MissingFileError:
        sound = None
    if _digest(sound) != found.sound_digest:
        raise ConflictError(f"metadata {found.sound_location!r} is not what it was any more; nothing was changed")
    return attach(table, listener)
