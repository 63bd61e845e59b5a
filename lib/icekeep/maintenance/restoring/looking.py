"""Many files looked at one by one, several at a time, since their store may be far away."""

from concurrent.futures import ThreadPoolExecutor

from icekeep.storage.base import FileInfo, Storage
from icekeep.storage.many import REQUESTS_AT_ONCE

_A_TURN = 100


def seen(locations: list[str], storage: Storage) -> list[FileInfo | None]:
    """What there is at some locations, in their order."""
    turns = [locations[start : start + _A_TURN] for start in range(0, len(locations), _A_TURN)]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return [found for turn in pool.map(lambda turn: [storage.head(name) for name in turn], turns) for found in turn]
