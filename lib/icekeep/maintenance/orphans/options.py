"""What an operator says about orphan removal, checked before anything is listed.

The names are those of Iceberg's procedure. Two rules are stricter: there is an age below which no file is ever looked at as
an orphan, whoever asks, and files are never deleted because their metadata spells their store differently.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from icekeep.errors import OptionError, UnsupportedError, UsageError, argument
from icekeep.maintenance.delete.lease import SKEW_MAX_MS
from icekeep.maintenance.delete.options import OrphanOptions
from icekeep.maintenance.delete.saved import SavedDeletion
from icekeep.spec.times import Moment, moment_ms
from icekeep.spec.types import DAY_MS, HOUR_MS
from icekeep.storage.location_keys import Spelling

DEFAULT_AGE_MS = 3 * DAY_MS
FLOOR_AGE_MS = DAY_MS
"""How long a writer may need from its first file to its commit: younger files may be those of one."""


class PrefixMismatchMode(StrEnum):
    """What becomes of a file that metadata leads to under another scheme or authority."""

    ERROR = "ERROR"
    IGNORE = "IGNORE"


def mismatch_mode(text: str) -> PrefixMismatchMode:
    """The mode of a name, in whatever case.

    Raises:
        OptionError: there is no such mode.
        UnsupportedError: it is Iceberg's `DELETE`, which takes a live file for an orphan when a store is spelled differently.
    """
    name = text.strip().upper()
    if name == "DELETE":
        raise UnsupportedError(
            f"{argument('prefix_mismatch_mode')} DELETE deletes files that metadata leads to under another scheme or authority, "
            f"and is not offered; say which are equal with {argument('equal_schemes')} and {argument('equal_authorities')}, or "
            "use IGNORE to keep such files"
        )
    if name not in PrefixMismatchMode.__members__:
        raise OptionError("prefix_mismatch_mode", given=text, expected="ERROR or IGNORE")
    return PrefixMismatchMode(name)


def spelling(equal_schemes: Mapping[str, str] | None, equal_authorities: Mapping[str, str] | None) -> Spelling:
    """The given maps, keys taken apart at their commas.

    >>> spelling({"s3b , s3c": "s3"}, None).schemes
    {'s3b': 's3', 's3c': 's3'}

    Raises:
        OptionError: a name is empty, a value is several names, or a name is said to be equal to two others.
    """
    return Spelling(
        _flattened("equal_schemes", equal_schemes or {}), _flattened("equal_authorities", equal_authorities or {})
    )


def eligible_before_ms(older_than: Moment | None, now_ms: int) -> int:
    """The moment before which a file must have been written to be an orphan, epoch milliseconds.

    Args:
        older_than: what the operator says; three days ago if `None`.
        now_ms: the earlier of our clock and the store's.

    Raises:
        UsageError: it is less than a day ago.
    """
    newest_ms = now_ms - FLOOR_AGE_MS
    if older_than is None:
        return now_ms - DEFAULT_AGE_MS
    before_ms = moment_ms(older_than, now_ms)
    # An age of exactly a day was turned into a moment by our clock; the store's may be a little behind.
    if before_ms - newest_ms > SKEW_MAX_MS:
        is_future = before_ms - now_ms > SKEW_MAX_MS
        age = "in the future" if is_future else f"{max(now_ms - before_ms, 0) / HOUR_MS:.1f} hours ago"
        raise UsageError(
            f"{argument('older_than')} is {age}, and files that young may be those of a writer that has not committed yet; give "
            "an age of 24h or more",
            older_than=before_ms,
        )
    return min(before_ms, newest_ms)


def _flattened(name: str, given: Mapping[str, str]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for keys, value in given.items():
        text, other = f"{keys}={value}", value.strip().lower()
        names = [key.strip().lower() for key in keys.split(",")]
        if not other or not all(names):
            raise OptionError(name, given=text, expected="names on both sides, as in s3n,s3a=s3")
        if "," in other:
            raise OptionError(
                name, given=text, expected="one name on the right, as in s3n,s3a=s3, and each pair by itself"
            )
        for one in names:
            if flat.setdefault(one, other) != other:
                raise OptionError(
                    name, given=text, expected=f"each name once: {one!r} is said to be {flat[one]!r} as well"
                )
    return flat


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched for, and what may go: the arguments of a run, checked.

    Attributes:
        older_than: `None` for three days ago.
        location: the directory that is listed; `None` for the table's location.
        file_list_view: a list of files in place of a listing.
        trash: days; `None` for the default of the store.
        approve: the hash that the plan must have.
        force: go on although a great share of the files would go.
        trust_manifest_list: believe manifest lists although summaries count other files.
        accept_unreadable: names of tables of the catalog that may be unreadable, since they lie elsewhere.
        saved: what alone may go, by a plan that was made before, whose hash `approve` is.
    """

    older_than: Moment | None = None
    location: str | None = None
    file_list_view: str | None = None
    spelling: Spelling
    mode: PrefixMismatchMode
    trash: int | None = None
    approve: str | None = None
    force: bool = False
    trust_manifest_list: bool = False
    max_concurrent_deletes: int | None = None
    options: OrphanOptions
    accept_unreadable: tuple[str, ...] = ()
    saved: SavedDeletion | None = None

    @property
    def finishes_earlier(self) -> bool:
        """Whether the run also deals with what earlier runs left: where a plan is approved or saved, that is all that goes."""
        return self.approve is None and self.saved is None
