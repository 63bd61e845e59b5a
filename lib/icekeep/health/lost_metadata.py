"""Whether metadata files that left the log still lie there: `remove_orphan_files` may have removed them since.

The number in a name tells only how many have left. One listing of the metadata directory tells which are there; it is made only
where some have left, and ends after `NAMES_MAX` names.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.version_files import parse_version_name
from icekeep.errors import IcekeepError
from icekeep.health.advice import finished
from icekeep.health.manifests import metadata_number
from icekeep.health.prices import Prices
from icekeep.health.values import JobAdvice, TableHealth
from icekeep.maintenance.orphans.metadata import may_be_found_by_name
from icekeep.maintenance.orphans.options import eligible_before_ms
from icekeep.spelling import counted
from icekeep.storage.base import FileInfo, ListingShare
from icekeep.storage.counted import CountedStorage, Meter
from icekeep.storage.locations import canonical, is_under

NAMES_MAX = 10_000
"""So many names are looked at: ten requests of an object store, which lists the oldest metadata files first."""

_JOB = "remove_orphan_files"


class _There(msgspec.Struct, frozen=True):
    """The lost metadata files that lie there; `is_all`: the listing came to its end."""

    files_count: int
    bytes: int
    is_all: bool


def with_lost_metadata(health: TableHealth, table: Table, prices: Prices | None) -> TableHealth:
    """The health of a table with what `remove_orphan_files` would find of metadata files, where any may be there.

    Args:
        prices: those that the health was asked with.
    """
    if not any(one.job == _JOB and one.has_work for one in health.jobs):
        return health
    meter = Meter()
    try:
        there = _there(table, meter)
    except IcekeepError as error:
        note = f"which metadata files that left the log are still there: {error.message}"
        return msgspec.structs.replace(health, not_measured=(*health.not_measured, note))
    jobs = (finished(_told(one, there), table, prices) if one.job == _JOB else one for one in health.jobs)
    return msgspec.structs.replace(
        health, jobs=tuple(jobs), requests_count=health.requests_count + meter.requests_count
    )


def _told(one: JobAdvice, there: _There) -> JobAdvice:
    count = there.files_count
    if not count and not there.is_all:
        return one
    some = "" if there.is_all else "at least "
    reason = f"{some}{counted(count, 'metadata files')} left the log and {'was' if count == 1 else 'were'} not deleted"
    gain = f"{some}{there.bytes:,} bytes of old metadata are freed"
    if not count:
        reason = "metadata files that left the log were removed; only a listing tells of what failed writes leave"
        gain = ""
    return msgspec.structs.replace(
        one,
        has_work=count > 0,
        reason=reason,
        gain=gain,
        files_count=count,
        freed_bytes=there.bytes,
        requests_count=one.requests_count - one.files_count + count,
    )


def _there(table: Table, meter: Meter) -> _There:
    directory = table.metadata_location.rpartition("/")[0]
    if not is_under(directory, table.metadata.location):
        # By default the job lists only what is below the table's location.
        return _There(0, 0, is_all=True)
    listed = CountedStorage(table.storage, meter).list_share(ListingShare(directory, is_deep=False))
    seen = [*islice(listed, NAMES_MAX)]
    found = [*_lost(table, seen)]
    return _There(len(found), sum(one.size_bytes for one in found), is_all=len(seen) < NAMES_MAX)


def _lost(table: Table, files: list[FileInfo]) -> Iterator[FileInfo]:
    """Those of some files that the job would take for old metadata, as far as names and times tell."""
    now_ms = table.runtime.now_ms()
    before_ms = eligible_before_ms(None, now_ms)
    last_version = parse_version_name(table.metadata_location.rpartition("/")[2])
    current_number = metadata_number(table.metadata_location) or 0
    named = {canonical(one.metadata_file) for one in table.metadata.metadata_log}
    named.add(canonical(table.metadata_location))
    for one in files:
        number = metadata_number(one.location)
        if number is None or number > current_number or one.modified_ms >= before_ms:
            continue
        is_kept = may_be_found_by_name(one.location, one.modified_ms, last_version, now_ms)
        if not is_kept and canonical(one.location) not in named:
            yield one
