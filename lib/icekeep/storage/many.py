"""One call for each of many things, several at a time, where a store has no call for many."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from icekeep.errors import IcekeepError, MissingFileError, UnsupportedError
from icekeep.storage.base import FileInfo, MoveOutcome, MoveStatus, Storage

REQUESTS_AT_ONCE = 16
"""So many requests of one process wait for a store or a catalog at a time."""

LOCAL_REQUESTS_AT_ONCE = 2
"""The same of the disks of this machine: there is no waiting to be done, and more would only fight over the interpreter."""

_HEADS_A_TURN = 100

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def answer_each(
    act: Callable[[_Asked], _Answer], asked: Sequence[_Asked], key: Callable[[_Asked], Hashable], at_once: int
) -> list[_Answer]:
    """The answers of `act`, in order; what has one key is asked one after the other, as if all were."""
    positions_by_key: dict[Hashable, list[int]] = {}
    for position, one in enumerate(asked):
        positions_by_key.setdefault(key(one), []).append(position)
    groups = list(positions_by_key.values())

    def answers_to(positions: Sequence[int]) -> list[_Answer]:
        return [act(asked[position]) for position in positions]

    threads = min(at_once, len(groups))
    if threads < 2:
        return [act(one) for one in asked]
    answers: dict[int, _Answer] = {}
    with ThreadPoolExecutor(threads) as pool:
        for positions, some in zip(groups, pool.map(answers_to, groups), strict=True):
            answers.update(zip(positions, some, strict=True))
    return [answers[position] for position in range(len(asked))]


def head_many(locations: Sequence[str], storage: Storage) -> list[FileInfo | None]:
    """What there is at some locations, in their order, as `Storage.head` tells it."""
    turns = [locations[start : start + _HEADS_A_TURN] for start in range(0, len(locations), _HEADS_A_TURN)]
    answers = answer_each(lambda turn: [storage.head(name) for name in turn], turns, id, REQUESTS_AT_ONCE)
    return [found for some in answers for found in some]


def moved_one_by_one(
    move: Callable[[str, str], None], moves: Iterable[tuple[str, str]], at_once: int = 1
) -> list[MoveOutcome]:
    """What `Storage.move_many` answers, by a storage's `move`."""

    def act(names: tuple[str, str]) -> MoveOutcome:
        source, target = names
        try:
            move(source, target)
        except FileExistsError:
            return MoveOutcome(source, MoveStatus.TAKEN)
        except MissingFileError:
            return MoveOutcome(source, MoveStatus.MISSING)
        except UnsupportedError as error:
            return MoveOutcome(source, MoveStatus.IMPOSSIBLE, error.message)
        except IcekeepError as error:
            return MoveOutcome(source, MoveStatus.FAILED, error.message)
        return MoveOutcome(source, MoveStatus.MOVED)

    return answer_each(act, list(moves), lambda names: names[0], at_once)
