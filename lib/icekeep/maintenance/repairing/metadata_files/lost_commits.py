"""What is lost where a table begins again from earlier metadata: commits, as far as the spoilt file still tells of them."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import SafetyError, and_more
from icekeep.events import Listener
from icekeep.maintenance.checking.entries.job import check_files
from icekeep.maintenance.checking.faults import Fault, Tally
from icekeep.maintenance.checking.file_classes import DATA_FILE_MISSING, DELETE_FILE_MISSING
from icekeep.maintenance.checking.manifest_classes import LIST_UNREADABLE, MANIFEST_UNREADABLE
from icekeep.maintenance.checking.manifests.lists import read_lists
from icekeep.maintenance.checking.manifests.manifests import check_manifests
from icekeep.maintenance.checking.subject import Subject
from icekeep.maintenance.repairing.metadata_files.spoilt import SpoiltMetadata
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.times import format_time

_GONE = (LIST_UNREADABLE, MANIFEST_UNREADABLE, DATA_FILE_MISSING, DELETE_FILE_MISSING)
_SHOWN = 20
_REWRITES = "replace"


class LostCommits(msgspec.Struct, frozen=True, kw_only=True):
    """What is lost, in a sentence, and the records that lost snapshots say they added, those of rewrites left out.

    Attributes:
        records_count: `None` where the spoilt file does not tell it.
    """

    text: str
    records_count: int | None


def lost_commits(spoilt: SpoiltMetadata, sound: TableMetadata) -> LostCommits:
    """Compare a spoilt metadata file with the earlier one that the table is to begin again from."""
    since = f"all commits since {format_time(sound.last_updated_ms)} are lost, those to schemas, properties and branches too"
    kept = sound.snapshots_by_id
    if spoilt.raw is None:
        ids = [one for one in spoilt.named_snapshot_ids() if one not in kept]
        known = (
            f"among them snapshots {_some(map(str, ids))}, which the file still names"
            if ids
            else "what they were the file does not tell"
        )
        return LostCommits(text=f"{since}: {known}", records_count=None)
    lost = [one for one in spoilt.snapshots if one["snapshot-id"] not in kept]
    text = f"{since}: snapshots {_some(map(_told, lost))}" if lost else f"{since}; no snapshot is"
    found = {one["snapshot-id"] for one in spoilt.snapshots}
    # A list with faults may lack snapshots that the table has.
    back = [str(one.snapshot_id) for one in sound.snapshots if one.snapshot_id not in found]
    if back:
        text += f"; snapshots that it does not have come back: {_some(iter(back))}"
    counts = [_added_records(one) for one in lost]
    told = [count for count in counts if count is not None]
    are_told = spoilt.has_all_snapshots and len(told) == len(counts)
    return LostCommits(text=text, records_count=sum(told) if are_told else None)


def _told(snapshot: Mapping[str, Any]) -> str:
    summary = _summary(snapshot)
    said = [str(summary["operation"])] if "operation" in summary else []
    said += [
        f"{summary[name]} {name.replace('-', ' ')}" for name in ("added-records", "deleted-records") if name in summary
    ]
    return f"{snapshot['snapshot-id']}" + (f" ({', '.join(said)})" if said else "")


def _added_records(snapshot: Mapping[str, Any]) -> int | None:
    """What is not in a summary is nought; `None` where there is no summary, or no number."""
    summary = _summary(snapshot)
    if summary.get("operation") == _REWRITES:
        return 0
    said = str(summary.get("added-records", 0))
    return int(said) if summary and said.isascii() and said.isdigit() else None


def _summary(snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
    found = snapshot.get("summary")
    return found if isinstance(found, Mapping) else {}


def _some(texts: Iterator[str]) -> str:
    """Some of many, and how many more there are."""
    found = [*texts]
    return ", ".join(found[:_SHOWN]) + and_more(found, _SHOWN)


def gone_below(table: Table, spark: SparkSource, listener: Listener) -> list[Fault]:
    """The files that branches and tags of earlier metadata need and that cannot be read: others may have cleaned up since.

    Raises:
        SafetyError: not all of it could be looked at.
    """
    tally = Tally(_GONE)
    metadata = table.metadata
    ids = {ref.snapshot_id for ref in metadata.refs.values()} | {metadata.current_snapshot_id}
    subject = Subject(
        table=table,
        raw={},
        snapshots=tuple(one for one in metadata.snapshots if one.snapshot_id in ids),
        spark=spark,
        listener=listener,
        tally=tally,
        is_current=False,
    )
    check_files(subject, check_manifests(subject, read_lists(subject)).listed)
    found = [fault for number in _GONE for fault in tally.faults(number)]
    # Where a list or a manifest is gone, that is why the rest of its snapshot was not looked at.
    is_told = any(fault.number in (LIST_UNREADABLE, MANIFEST_UNREADABLE) for fault in found)
    gaps = [gap for gap in tally.gaps() if not (is_told and gap.what.startswith("snapshot "))]
    if gaps:
        why = ", ".join(gap.why for gap in gaps if gap.what == gaps[0].what)
        raise SafetyError(
            f"{gaps[0].what} of {table.metadata_location!r} could not be looked at: {why}; nothing was changed"
        )
    return found
