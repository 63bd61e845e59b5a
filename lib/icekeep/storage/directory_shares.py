"""The listing of a tree of directories, divided: for stores that know directories."""

from collections import deque
from collections.abc import Callable, Iterable

from icekeep.storage.base import ListingShare


def directory_shares(
    prefix_location: str, count: int, subdirectories: Callable[[str], Iterable[str]]
) -> list[ListingShare]:
    """Shares of a listing, by walking directories level by level until there are `count` or no more to walk.

    A directory that was walked through is a share of the files right in it; one that was not is a share at every depth.

    Args:
        subdirectories: locations of the directories right in a directory, without links; none if it is not there.
    """
    walked: list[ListingShare] = []
    waiting = deque([prefix_location])
    while waiting and len(walked) + len(waiting) < count:
        location = waiting.popleft()
        walked.append(ListingShare(location, is_deep=False))
        waiting.extend(sorted(subdirectories(location)))
    return [*walked, *(ListingShare(location) for location in waiting)]
