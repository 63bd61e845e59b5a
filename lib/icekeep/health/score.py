"""One number for a table: how far it is from one that readers, planners and stores pay little for.

Most of that maintenance mends, and the jobs that have something to do say what. The score of a table for which none has may be
low all the same, where few small files lie in each of many partitions, or deletes are fewer than `compact` takes for many.
"""

from collections.abc import Iterable

import msgspec

from icekeep.health.values import ScorePart
from icekeep.spelling import counted, counted_doing


class Sickness(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that a score goes by; each is 0 where nothing is wrong, and more is worse, but for `other_files_count`.

    Attributes:
        small_files_count: in partitions that have more than one file.
        left_files_count: of these, those that are too few together for `compact`; only told.
        other_files_count: the other data files.
        deleted_ratio: deleted rows of all rows.
        delete_read_ratio: bytes of deletes that a scan reads, of those of data.
        mean_deletes: delete files applied to a data file, in the mean.
        equality_delete_files_count: live ones.
        spare_manifests_count: more than there need be.
        mean_overlap: manifests that a filter on one partition opens, in the mean, beyond the first.
        partition_skew: the largest partition divided by the median.
    """

    faults_count: int = 0
    small_files_count: int = 0
    left_files_count: int = 0
    other_files_count: int = 0
    deleted_ratio: float = 0.0
    delete_read_ratio: float = 0.0
    mean_deletes: float = 0.0
    equality_delete_files_count: int = 0
    spare_manifests_count: int = 0
    mean_overlap: float = 0.0
    expirable_count: int = 0
    metadata_bytes: int = 0
    dangling_count: int = 0
    partition_skew: float = 1.0


_LEAST_SHOWN = 0.5


def score_of(sick: Sickness) -> tuple[float, tuple[ScorePart, ...]]:
    """The score of a table, 0 to 100 (healthy), and what takes points from it, the most first.

    Each part i has a burden x of 0 or more and a weight w; it leaves `1 - w * x / (1 + x)` of the points, and

        score = 100 * product over i of (1 - w_i * x_i / (1 + x_i))

    | part       | w   | x |
    |------------|-----|---|
    | faults     | 0.9 | faults |
    | files      | 0.7 | small files / (20 + other files) |
    | deletes    | 0.7 | deleted ratio / 0.2 + bytes of deletes that a scan reads / (0.2 * bytes of data) |
    |            |     | + delete files applied to a data file / 10 + equality delete files / 50 |
    | manifests  | 0.5 | spare manifests / 50 + (mean overlap - 1) / 5 |
    | snapshots  | 0.3 | snapshots to expire / 100 + bytes of the metadata file / 20 MB |
    | dangling   | 0.2 | dangling delete files / 20 |
    | partitions | 0.1 | (skew - 1) / 50 |

    So every part only takes points, more of a burden never gives any back, one very bad part is enough for a bad score, and
    what maintenance cannot fix (skew) weighs little. Weights and units were chosen, not measured.
    """
    parts = [part for part in _parts(sick) if part.lost]
    left = 100.0
    for part in parts:
        left *= 1 - part.lost / 100
    told = (p for p in parts if p.lost >= _LEAST_SHOWN)
    rounded = (msgspec.structs.replace(part, lost=round(part.lost, 1)) for part in told)
    return round(left, 1), tuple(sorted(rounded, key=lambda part: (-part.lost, part.name)))


def _parts(sick: Sickness) -> Iterable[ScorePart]:
    small, other = sick.small_files_count, sick.other_files_count
    yield _part(
        "faults",
        0.9,
        sick.faults_count,
        f"{counted(sick.faults_count, 'faults')} in metadata and manifest lists; `icekeep check` says which",
    )
    left = f", {sick.left_files_count:,} of them too few together for compact" if sick.left_files_count else ""
    yield _part(
        "files",
        0.7,
        small / (20 + other),
        f"{small:,} of {counted_doing(small + other, 'data files', 'are')} small{left}",
    )
    yield _part(
        "deletes",
        0.7,
        sick.deleted_ratio / 0.2
        + sick.delete_read_ratio / 0.2
        + sick.mean_deletes / 10
        + sick.equality_delete_files_count / 50,
        f"{sick.deleted_ratio:.1%} of the rows are deleted, a scan reads {sick.delete_read_ratio:.1%} more for deletes, "
        f"{sick.mean_deletes:.1f} delete files a data file, "
        f"{counted(sick.equality_delete_files_count, 'equality delete files')}",
    )
    yield _part(
        "manifests",
        0.5,
        sick.spare_manifests_count / 50 + sick.mean_overlap / 5,
        f"{counted(sick.spare_manifests_count, 'manifests')} more than needed"
        # 0 too where there are no partitions.
        + (f", a filter on one partition opens {1 + sick.mean_overlap:.1f}" if sick.mean_overlap else ""),
    )
    yield _part(
        "snapshots",
        0.3,
        sick.expirable_count / 100 + sick.metadata_bytes / 20_000_000,
        f"{counted(sick.expirable_count, 'snapshots')} to expire"
        # Only its catalog may read some.
        + (f", a metadata file of {sick.metadata_bytes:,} bytes" if sick.metadata_bytes else ""),
    )
    yield _part(
        "dangling",
        0.2,
        sick.dangling_count / 20,
        f"{counted_doing(sick.dangling_count, 'delete files', 'reach')} nothing",
    )
    yield _part(
        "partitions",
        0.1,
        max(0.0, sick.partition_skew - 1) / 50,
        f"the largest partition is {sick.partition_skew:.1f} times the median",
    )


def _part(name: str, weight: float, burden: float, reason: str) -> ScorePart:
    return ScorePart(name=name, lost=100 * weight * burden / (1 + burden), reason=reason)
