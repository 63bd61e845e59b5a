"""What is said of many tables."""

from collections.abc import Mapping
from typing import Any

import msgspec

from icekeep.health.values import FaultsCount, TableHealth
from icekeep.maintenance.history import GrowthPoint, TableTotals
from icekeep.rendered import Rendered


class NotRead(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose health is not known, or a namespace or catalog whose tables cannot be listed.

    Attributes:
        name: `catalog.namespace.table`, or with `*` in the place of what is not known.
        kind: of the error, as machines know it; `unexpected` for one that nobody has thought of.
        faults: what `check` finds in metadata that does not load.
    """

    name: str
    kind: str
    reason: str
    faults: tuple[FaultsCount, ...] = ()


class MaintenanceRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a maintenance job, of whatever engine, and how large the table was before and after it.

    Known from the snapshots that it made, from the record of runs, or from both; `None` is "not known".

    Attributes:
        run_id: of the run of icekeep that made it, where the summary names one.
        made_by: the engine, as snapshots say.
        status: how it ended, as the record of runs says.
        timestamp_ms: when it ended, or was last seen, epoch milliseconds; without a record when it made its last commit.
        elapsed_ms: how long it took, as its record says.
        snapshots_count: commits of it that the table still has.
        snapshot_id: the last of them.
        error: why it failed.
        figures: what its result counts, without zeros; of a record alone.
    """

    job: str
    run_id: str | None = None
    made_by: str | None = None
    policy: str | None = None
    status: str | None = None
    timestamp_ms: int
    elapsed_ms: int | None = None
    snapshots_count: int = 0
    snapshot_id: int | None = None
    before: TableTotals | None = None
    after: TableTotals | None = None
    error: str | None = None
    figures: Mapping[str, Any] = {}


class TableHistory(msgspec.Struct, frozen=True, kw_only=True):
    """How a table came to be what it is.

    Attributes:
        growth: of `main`, the oldest commit first; of a long history commits at even distances. Empty where it was not read.
        commits_count: how many commits `growth` stands for.
        runs: of maintenance, the newest first.
        left_out_runs_count: older ones that are not listed.
        not_read: why nothing is known, in one line.
    """

    table: str
    growth: tuple[GrowthPoint, ...] = ()
    commits_count: int = 0
    runs: tuple[MaintenanceRun, ...] = ()
    left_out_runs_count: int = 0
    not_read: str | None = None


class TableFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a table that two reports are compared by.

    Attributes:
        score: 0 to 100 (healthy).
        bytes, data_files_count: of live data files.
        small_files_count: those that `compact` takes.
        delete_files_count: live ones, including deletion vectors.
        faults_count: in metadata and manifest lists.
    """

    score: float
    bytes: int
    data_files_count: int
    small_files_count: int
    delete_files_count: int
    snapshots_count: int
    faults_count: int


class TableChange(msgspec.Struct, frozen=True, kw_only=True):
    """A table in an earlier report and in this one.

    Attributes:
        state: `same` or `changed`; `new` where the earlier report does not have it, `gone` where this one does not; `not_read`
            where one of the two could not read it.
        before: in the earlier report; `None` where it has no figures of the table.
        after: in this report; `None` where it has none.
    """

    table: str
    state: str
    before: TableFigures | None
    after: TableFigures | None


class ReportSince(msgspec.Struct, frozen=True, kw_only=True):
    """What changed since an earlier report.

    Attributes:
        timestamp_ms: when the earlier report was made, epoch milliseconds.
        tables: in the order of this report, then those that only the earlier one has figures of.
    """

    timestamp_ms: int
    tables: tuple[TableChange, ...]

    @property
    def changed(self) -> tuple[TableChange, ...]:
        """The tables whose figures are not those of the earlier report."""
        return tuple(one for one in self.tables if one.state != "same")


class ReportResult(Rendered, frozen=True, kw_only=True):
    """The health of tables, the worst first.

    Attributes:
        status: `partial` where a table could not be read, else `done`.
        catalogs: the names of those that were looked at.
        currency: of all costs; `None` without prices.
        tables_count: that were looked at, those that could not be read among them.
        histories: of the tables, where they were asked for.
        requests_count, read_bytes: what it took of storage, beside the loading of tables and their histories.
        timestamp_ms: when it was done, epoch milliseconds.
        since: what changed since an earlier report; `None` where none was given.
    """

    status: str
    catalogs: tuple[str, ...]
    currency: str | None = None
    tables_count: int = 0
    not_read: tuple[NotRead, ...] = ()
    tables: tuple[TableHealth, ...] = ()
    histories: tuple[TableHistory, ...] = ()
    requests_count: int = 0
    read_bytes: int = 0
    elapsed_ms: int = 0
    timestamp_ms: int = 0
    since: ReportSince | None = None
