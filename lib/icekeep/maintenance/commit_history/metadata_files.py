"""Metadata files that belong to no snapshot: changes of schemas, properties and references, expirations, and expired commits.

The metadata log says when each of the last metadata files was written. That of a commit is the first that is no older than
its snapshot, since an engine makes the snapshot before the file; two snapshots of one commit have the same file.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from icekeep.spec.metadata import TableMetadata


def metadata_files_between(metadata: TableMetadata, known_ms: Iterable[int]) -> Mapping[int, int]:
    """For moments of commits, those that the log reaches: how many metadata files lie between the one before and it.

    Args:
        known_ms: when each commit that is known of was made, on whatever branch.
    """
    written_ms, moments = _written_ms(metadata), sorted({*known_ms})
    places = [bisect_left(written_ms, moment) for moment in moments]
    return {
        moment: max(0, place - earlier - 1)
        for earlier_ms, earlier, moment, place in zip(moments, places, moments[1:], places[1:], strict=False)
        if earlier_ms >= written_ms[0]
    }


def metadata_files_after(metadata: TableMetadata, known_ms: Iterable[int]) -> int | None:
    """How many metadata files there are since the newest commit; `None` where the log does not reach back, or there is none."""
    written_ms, newest_ms = _written_ms(metadata), max(known_ms, default=-1)
    if newest_ms < written_ms[0]:
        return None
    return max(0, len(written_ms) - bisect_left(written_ms, newest_ms) - 1)


def _written_ms(metadata: TableMetadata) -> list[int]:
    return sorted([*(entry.timestamp_ms for entry in metadata.metadata_log), metadata.last_updated_ms])
