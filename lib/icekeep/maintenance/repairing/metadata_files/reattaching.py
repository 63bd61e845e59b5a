"""A table whose metadata file is spoilt begins again from its last sound one, which is written anew as the next version.

pointer -> the spoilt file -> an earlier sound one -> what is lost by it -> a new file, while the pointer is where it was

What comes after takes sequence numbers again, and in version 3 row ids, that lost commits had taken. That does no harm: the files
of lost commits are in no snapshot any more, so none of them meets a file of a later commit, and nobody can commit them on the
new metadata, as what they would be based on is not there.
"""

from collections.abc import Sequence

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Pointer, Table, format_identifier
from icekeep.commit.retry import attach
from icekeep.errors import ConflictError, MissingFileError, UsageError, and_more
from icekeep.events import Listener
from icekeep.maintenance.checking.classes import CLASSES
from icekeep.maintenance.checking.faults import Fault
from icekeep.maintenance.repairing import JOB
from icekeep.maintenance.repairing.metadata_files.earlier_metadata import Chosen, choose
from icekeep.maintenance.repairing.metadata_files.lost_commits import gone_below, lost_commits
from icekeep.maintenance.repairing.metadata_files.spoilt import SpoiltMetadata, digest_of, read_spoilt
from icekeep.maintenance.repairing.plan import Asked, Mend, RepairPlan, hash_of, parts_of, staying
from icekeep.maintenance.repairing.reasons import NEEDS_EARLIER, CannotMendError, not_accepted
from icekeep.planning.spark.session import SparkSource, refuse_encrypted
from icekeep.spec.metadata import TableMetadata, parse_metadata
from icekeep.spec.properties import metadata_directory
from icekeep.spec.times import format_time
from icekeep.spec.updates import log_previous
from icekeep.spelling import counted
from icekeep.storage.locations import canonical, is_location

_SHOWN = 10


class Reattachment(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with a spoilt metadata file.

    Attributes:
        table: the metadata that is written, and where the spoilt file is; `None` where nothing can be done.
        spoilt_location: of the spoilt file.
        sound_location: of the file whose metadata is written.
        spoilt_digest, sound_digest: of the two files when the plan was made.
    """

    plan: RepairPlan
    spoilt_location: str
    table: Table | None = None
    sound_location: str = ""
    spoilt_digest: str = ""
    sound_digest: str = ""


def plan_reattachment(
    catalog: Catalog, identifier: Identifier, asked: Asked, spark: SparkSource, listener: Listener
) -> Reattachment | None:
    """Look at a table's metadata file, and plan what can be done where it has faults that were asked for.

    Returns:
        `None` where it has none of these.

    Raises:
        NotFoundError: the catalog has no such table.
        UsageError: other faults were asked for too; or storage denies access.
        UnsupportedError: the table is encrypted, or its metadata file is packed in a way that we do not read.
        SafetyError: what the earlier metadata leads to could not be looked at.
    """
    pointer = catalog.find(identifier)
    spoilt = read_spoilt(pointer)
    found = sorted(asked.numbers & NEEDS_EARLIER & spoilt.tally.counts.keys())
    if not found:
        return None
    if others := sorted(asked.numbers - NEEDS_EARLIER):
        raise UsageError(
            f"the metadata file of table {format_identifier(identifier)!r} has faults {', '.join(map(str, found))}: mend these "
            f"first and alone, and {', '.join(map(str, others))} by another run"
        )
    try:
        return _planned(catalog, identifier, spoilt, found, asked, spark, listener)
    except CannotMendError as error:
        return Reattachment(plan=_stays(spoilt.tally.faults(found[0])[0], str(error)), spoilt_location=spoilt.location)


def _planned(
    catalog: Catalog,
    identifier: Identifier,
    spoilt: SpoiltMetadata,
    numbers: Sequence[int],
    asked: Asked,
    spark: SparkSource,
    listener: Listener,
) -> Reattachment:
    if not catalog.compares_metadata:
        raise CannotMendError(
            f"catalog {catalog.name!r} writes metadata itself: fix it at the server, or drop the table there, without its "
            "files, and register an earlier metadata file"
        )
    chosen = choose(spoilt, asked.accepted)
    location = chosen.sound.location
    data = spoilt.storage.read(location)
    metadata = parse_metadata(data, location)
    refuse_encrypted(metadata, JOB.name)
    _refuse_elsewhere(spoilt, location, metadata)
    sound = Table(identifier, metadata, location, spoilt.storage, catalog)
    gone = gone_below(sound, spark, listener)
    lost = lost_commits(spoilt, metadata)
    action = _action(sound, chosen, lost.text, gone)
    _need_accepted(spoilt, gone, asked, action)
    mend = Mend(
        fault_id=numbers[0],
        name=CLASSES[numbers[0]].name,
        branch="",
        where=spoilt.location,
        action=action,
        lost_files=(spoilt.location, *(fault.where for fault in gone)),
        lost_records_count=lost.records_count,
    )
    logged = log_previous(metadata, location, metadata.last_updated_ms)
    spoilt_digest, sound_digest = spoilt.digest, digest_of(data)
    parts = [*parts_of([mend], ()), spoilt_digest, sound_digest]
    return Reattachment(
        plan=RepairPlan(mends=(mend,), lost_records_count=lost.records_count, hash=hash_of(metadata.table_uuid, parts)),
        spoilt_location=spoilt.location,
        table=Table(identifier, logged, spoilt.location, spoilt.storage, catalog),
        sound_location=location,
        spoilt_digest=spoilt_digest,
        sound_digest=sound_digest,
    )


def _refuse_elsewhere(spoilt: SpoiltMetadata, location: str, metadata: TableMetadata) -> None:
    """Raise `CannotMendError` for metadata that lies beside the spoilt file, and says that its own lies in another directory."""
    directory = canonical(spoilt.location).rpartition("/")[0]
    is_beside = canonical(location).rpartition("/")[0] == directory
    if is_beside and not spoilt.follows(location) and canonical(metadata_directory(metadata)) != directory:
        raise CannotMendError(
            f"{location!r} is of a table at {metadata.location!r}, which keeps its metadata elsewhere, and nothing says that it "
            "was this table; find out, and register it by hand"
        )


def _action(sound: Table, chosen: Chosen, lost: str, gone: Sequence[Fault]) -> str:
    metadata = sound.metadata
    said = [
        f"the table begins again, in a new metadata file, from {sound.metadata_location!r} of "
        f"{format_time(metadata.last_updated_ms)}, with current snapshot {metadata.current_snapshot_id or 'none'} and "
        f"last-sequence-number {metadata.last_sequence_number}",
        lost,
        "the data of lost commits stays where it is until `icekeep remove_orphan_files` deletes what is old enough; move "
        "metadata files that cannot be read to another directory before that, or it refuses",
    ]
    if not chosen.is_logged:
        said.append(
            "no metadata log says that this file was the table: look at it, as it may be of a commit that never landed"
        )
    if chosen.passed_count:
        said.append(f"the files of {counted(chosen.passed_count, 'versions')} between are missing, or have faults")
    if chosen.followers:
        names = ", ".join(map(repr, chosen.followers[:_SHOWN]))
        said.append(f"{names} may have more, but nothing says that it ever was the table, and it is not taken")
    if gone:
        names = ", ".join(repr(fault.where) for fault in gone[:_SHOWN])
        said.append(
            f"{counted(len(gone), 'files')} that it needs cannot be read any more: {names}{and_more(gone, _SHOWN)}"
        )
    return "; ".join(said)


def _need_accepted(spoilt: SpoiltMetadata, gone: Sequence[Fault], asked: Asked, action: str) -> None:
    """Raise `CannotMendError` unless each file that is lost was named."""
    accepted = {canonical(one) for one in asked.accepted if is_location(one)}
    needed = [spoilt.location, *(fault.where for fault in gone)]
    missing = [one for one in needed if canonical(one) not in accepted]
    if missing:
        more = f" (and {len(missing) - _SHOWN} more)" if len(missing) > _SHOWN else ""
        raise not_accepted(action, missing[:_SHOWN], more)


def _stays(fault: Fault, reason: str) -> RepairPlan:
    return RepairPlan(not_mended=(staying(fault, reason),), hash=hash_of(None, ()))


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
        raise ConflictError(f"{name} has other metadata by now, {pointer.metadata_location!r}; nothing was changed")
    if read_spoilt(pointer).digest != found.spoilt_digest:
        raise ConflictError(f"metadata {table.metadata_location!r} of {name} was written anew; nothing was changed")
    if _digest(pointer, found.sound_location) != found.sound_digest:
        raise ConflictError(f"metadata {found.sound_location!r} is not what it was any more; nothing was changed")
    return attach(table, listener)


def _digest(pointer: Pointer, location: str) -> str:
    try:
        return digest_of(pointer.storage.read(location))
    except MissingFileError:
        return digest_of(None)
