"""The states that tables of a playground are in: what each is called, what is wrong with it, and what makes it so."""

from collections.abc import Callable

import msgspec

from icekeep.playground import histories, layouts, row_changes
from icekeep.playground.maker import Maker
from icekeep.spec.types import DAY_MS, HOUR_MS


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the playground.

    Attributes:
        name: the table's.
        what: what is wrong with it, and how that came, in one line.
        make: makes the table. Its last commit must be before now.
        age_ms: the age of the table: the clock by which it is made begins so long before now.
        extra_commands: commands that help and that `report` does not propose, as words after `icekeep`, without `--table`.
    """

    name: str
    what: str
    make: Callable[[Maker], None]
    age_ms: int
    extra_commands: tuple[str, ...] = ()


STATES: tuple[State, ...] = (
    State(
        name="small_files",
        what="every six hours each of three writers has left a small file in the day's partition",
        make=layouts.small_files,
        age_ms=4 * DAY_MS,
    ),
    State(
        name="delete_files",
        what="merge-on-read has deleted 40 % of the rows, by 48 position delete files that each scan applies",
        make=row_changes.delete_files,
        age_ms=3 * DAY_MS,
    ),
    State(
        name="upserts",
        what="streaming upserts have left an equality delete file with each commit, which all older files must be compared with",
        make=row_changes.upserts,
        age_ms=2 * DAY_MS,
    ),
    State(
        name="wide_manifests",
        what="each commit has left a manifest over 120 days, so that a filter on one day opens nearly all of them",
        make=layouts.wide_manifests,
        age_ms=3 * DAY_MS,
    ),
    State(
        name="many_snapshots",
        what="a job that commits every ten minutes, mostly nothing, has left 2,000 snapshots that nobody has expired",
        make=histories.many_snapshots,
        age_ms=20 * DAY_MS,
    ),
    State(
        name="orphans",
        what="failed writes have left data files, and commits have left metadata files, that nothing leads to",
        make=histories.orphans,
        age_ms=20 * DAY_MS,
        extra_commands=("remove_orphan_files --dry-run",),
    ),
    State(
        name="skewed",
        what="of five regions one has 96 % of the rows, so that its partition decides how long a job takes",
        make=layouts.skewed,
        age_ms=2 * DAY_MS,
        extra_commands=("plan_scan",),
    ),
    State(
        name="evolved",
        what="partitioned by month, then by day, then by day and bucket: small files lie in all three specs",
        make=layouts.evolved,
        age_ms=4 * DAY_MS,
    ),
    State(
        name="branches",
        what="all rows are replaced each week; two tags and a branch keep old versions on purpose, one tag is forgotten",
        make=histories.branches,
        age_ms=63 * DAY_MS,
        extra_commands=("ref list",),
    ),
    State(
        name="stream",
        what="Flink has committed a file a minute, and notes in its snapshots how far it has come",
        make=histories.stream,
        age_ms=2 * HOUR_MS,
    ),
    State(
        name="vectors",
        what="position delete files of version 2 lie alongside the vectors of version 3, to which it was upgraded meanwhile",
        make=row_changes.vectors,
        age_ms=3 * DAY_MS,
    ),
    State(
        name="broken",
        what="somebody has deleted a data file by hand, and the metadata would give a column id out twice",
        make=histories.broken,
        age_ms=2 * DAY_MS,
        extra_commands=("check", "repair --fault 108,301 --dry-run", "repair --fault 108,301"),
    ),
)
"""All of them, in the order in which they are made and told."""
