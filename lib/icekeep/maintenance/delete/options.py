"""What an operator says about deletion: options with names in Iceberg's manner, of which each job takes its own, and settings.

Iceberg has none of them. Ages are texts such as `36h`; `0` means none.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from msgspec import Meta, field

from icekeep.catalog.base import RECLAIM_ROOTS, OperatorRules
from icekeep.errors import OptionError, UsageError
from icekeep.maintenance.options import Options, Positive, parse_options
from icekeep.names import NAME_IN_CATALOG, name_of_form
from icekeep.spec.retention import RetentionPolicy
from icekeep.spec.times import FORM, Days, age_ms, whole_days
from icekeep.spec.types import DAY_MS
from icekeep.storage.locations import is_location, split_locations

TRASH_DAYS = 3
"""How long deleted files stay in the trash on local disks and HDFS, where moving a file costs no more than deleting it."""

_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_TRASH_SCHEMES = frozenset({"file", "hdfs", "viewfs"})
_MAX_DAYS = 36_500


class ReclaimOptions(Options, frozen=True, kw_only=True):
    """How files go: what every job that deletes goes by, and all that a purge does.

    Attributes:
        max_deletes_per_second: over all tasks together; `None` for no limit.
        reclaim_roots: locations joined by commas below which files may be deleted, in addition to the table's location and the
            `reclaim.roots` of its catalog.
    """

    max_deletes_per_second: Positive | None = field(name="max-deletes-per-second", default=None)
    reclaim_roots: str = field(name=RECLAIM_ROOTS, default="")

    @property
    def roots(self) -> tuple[str, ...]:
        """The locations of `reclaim.roots`."""
        return split_locations(self.reclaim_roots)

    def check(self) -> None:
        """Raise `OptionError` where a text that is read later is wrong."""


class GraceOptions(ReclaimOptions, frozen=True, kw_only=True):
    """Those of a job that leaves time between its commit and the deletion.

    Attributes:
        grace: how long after the commit, at least; null is `0`, or `24h` where the catalog cannot compare and swap metadata.
    """

    grace: str | None = field(name="grace", default=None)

    def check(self) -> None:
        self.grace_ms(compares_metadata=True)

    def grace_ms(self, *, compares_metadata: bool) -> int:
        """The wait between commit and deletion in milliseconds, for a kind of catalog; raises `OptionError`."""
        if self.grace is None:
            return 0 if compares_metadata else DAY_MS
        return _age("grace", self.grace)


class ExpirationOptions(GraceOptions, frozen=True, kw_only=True):
    """Those of the expiration of snapshots.

    Attributes:
        keep_writer_progress: up to which age the snapshots stay by which a streaming writer knows how far it has come.
        readers_max_lag: for how long the snapshots stay that a registered reader, or a stream of `readers.spark-checkpoints`, has
            not read; `0` waits for none.
        readers_spark_checkpoints: directories, joined by commas, of the checkpoints of Spark's streams that read the table.
    """

    keep_writer_progress: str = field(name="keep-writer-progress", default="7d")
    readers_max_lag: str = field(name="readers.max-lag", default="7d")
    readers_spark_checkpoints: str = field(name="readers.spark-checkpoints", default="")

    def check(self) -> None:
        GraceOptions.check(self)
        _ = self.keep_writer_progress_ms, self.max_reader_lag_ms
        for location in self.checkpoints:
            if not is_location(location):
                raise OptionError(
                    "readers.spark-checkpoints",
                    given=location,
                    expected="directories such as 's3://bucket/checkpoints/orders'",
                )

    @property
    def max_reader_lag_ms(self) -> int:
        """The age of `readers.max-lag` in milliseconds; raises `OptionError`."""
        return _age("readers.max-lag", self.readers_max_lag)

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The directories of `readers.spark-checkpoints`."""
        return split_locations(self.readers_spark_checkpoints)

    @property
    def keep_writer_progress_ms(self) -> int:
        """The age of `keep-writer-progress` in milliseconds; raises `OptionError`."""
        return _age("keep-writer-progress", self.keep_writer_progress)

    def policy(self, rules: OperatorRules) -> RetentionPolicy:
        """The table's own retention, within what the operator lays down; raises `OptionError`."""
        return RetentionPolicy(
            keep_writer_progress_ms=self.keep_writer_progress_ms,
            progress_keys=rules.carried_keys,
            least_age_ms=rules.least_snapshot_age_ms,
            max_reader_lag_ms=self.max_reader_lag_ms,
        )


class OrphanOptions(GraceOptions, frozen=True, kw_only=True):
    """Those of orphan removal.

    Attributes:
        max_orphan_ratio: of the files that were listed, the share above which it stops.
        ignore_metadata_of: uuids of dead tables, joined by commas: their old metadata files are taken for garbage.
    """

    max_orphan_ratio: Annotated[float, Meta(ge=0, le=1)] = field(name="max-orphan-ratio", default=0.2)
    ignore_metadata_of: str = field(name="ignore-metadata-of", default="")

    def check(self) -> None:
        GraceOptions.check(self)
        _ = self.ignored_uuids

    @property
    def ignored_uuids(self) -> tuple[str, ...]:
        """The uuids of `ignore-metadata-of`, in lower case; raises `OptionError`."""
        uuids = tuple(part.strip().lower() for part in self.ignore_metadata_of.split(",") if part.strip())
        for uuid in uuids:
            if not _UUID.fullmatch(uuid):
                raise OptionError("ignore-metadata-of", given=uuid, expected="uuids of tables, with commas between")
        return uuids


R = TypeVar("R", bound=ReclaimOptions)


def checked_options(
    cls: type[R], given: Mapping[str, Any] | R | None, max_concurrent_deletes: int | None, trash: int | None = None
) -> R:
    """The options of a job, once everything that is said about deletion has been looked at, before anything is listed or planned.

    Raises:
        OptionError: the job has no such option, or one cannot take its value.
    """
    if max_concurrent_deletes is not None and max_concurrent_deletes < 1:
        raise OptionError("max_concurrent_deletes", given=max_concurrent_deletes, expected="a whole number, 1 or more")
    trash_days(trash, "")
    options = parse_options(cls, {} if given is None else given)
    options.check()
    return options


def accepted_names(given: Sequence[str]) -> tuple[str, ...]:
    """The names of tables that may be unreadable, sorted, each once.

    Raises:
        OptionError: one of them names no table.
    """
    if isinstance(given, str):
        raise OptionError("accept_unreadable", given=given, expected="a list of names such as ['db.events']")
    names = {name: name_of_form(name, NAME_IN_CATALOG) for name in given}
    for text, name in names.items():
        if name is None:
            raise OptionError("accept_unreadable", given=text, expected=f"names of tables as {NAME_IN_CATALOG}")
    return tuple(sorted({name for name in names.values() if name is not None}))


def asked_trash_days(given: Days | None) -> int | None:
    """The argument `trash` of a job as a number.

    Raises:
        OptionError: it is no whole number of days.
    """
    try:
        return None if given is None else whole_days(given)
    except UsageError:
        raise OptionError("trash", given=str(given), expected="whole days, as in 3 or 3d") from None


def trash_days(given: int | None, scheme: str) -> int:
    """For how many days files go to the trash; none where they are deleted at once.

    Args:
        given: what the operator says; `None` for the default of the store.

    Raises:
        OptionError: the number of days is out of range.
    """
    if given is None:
        return TRASH_DAYS if scheme in _TRASH_SCHEMES else 0
    if not 0 <= given <= _MAX_DAYS:
        raise OptionError("trash", given=given, expected=f"a number of days, 0 to {_MAX_DAYS:,}; 0 deletes at once")
    return given


def _age(name: str, text: str) -> int:
    if text.strip() == "0":
        return 0
    try:
        return age_ms(text.strip())
    except ValueError:
        raise OptionError(name, given=text, expected=f"0, or {FORM}, as in 36h") from None
