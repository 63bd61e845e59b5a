"""Many files of this machine given other names at once: each directory that gets names is flushed once."""

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from icekeep.errors import IcekeepError, UnsupportedError
from icekeep.storage.base import MoveOutcome, MoveStatus
from icekeep.storage.local.errors import ABSENT, translate_os_error
from icekeep.storage.local.links import unlink
from icekeep.storage.locations import local_path

_NO_SECOND_NAME = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What the system says to a hard link between two mounts, or in a file system that has none."""


class MoveSteps(NamedTuple):
    """What a storage does for one name or one directory, by paths; they raise the system's errors."""

    make_directory: Callable[[str], None]
    link: Callable[[str, str], None]
    flush_directory: Callable[[str], None]


class _Move(NamedTuple):
    """A move that was asked for, in its place among all."""

    position: int
    source: str
    source_path: str
    target_path: str


def move_together(moves: Iterable[tuple[str, str]], steps: MoveSteps) -> list[MoveOutcome]:
    """Make all the new names, flush their directories, and only then take the old names away.

    A file has at least one name at every moment, and both where a crash comes between; the same moves finish it then.
    """
    answers: dict[int, MoveOutcome] = {}
    for some in _once_each(moves, answers):
        for directory, linked in _linked(some, steps, answers).items():
            try:
                steps.flush_directory(directory)
            except OSError as error:
                answers.update((move.position, _failed(move, error)) for move in linked)
                continue
            for move in linked:
                answers[move.position] = _without_old_name(move)
    return [answers[position] for position in range(len(answers))]


def _once_each(moves: Iterable[tuple[str, str]], answers: dict[int, MoveOutcome]) -> list[list[_Move]]:
    """Moves, those of one source in different rounds: the first that succeeds leaves nothing to the next."""
    rounds: list[list[_Move]] = []
    times: dict[str, int] = {}
    for position, (source, target) in enumerate(moves):
        try:
            move = _Move(position, source, local_path(source), local_path(target))
        except UnsupportedError as error:
            answers[position] = MoveOutcome(source, MoveStatus.IMPOSSIBLE, error.message)
            continue
        except IcekeepError as error:
            answers[position] = MoveOutcome(source, MoveStatus.FAILED, error.message)
            continue
        number = times.get(move.source_path, 0)
        times[move.source_path] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(move)
    return rounds


def _linked(moves: Sequence[_Move], steps: MoveSteps, answers: dict[int, MoveOutcome]) -> dict[str, list[_Move]]:
    """The moves whose files have their new names now, by the directories of these."""
    linked: dict[str, list[_Move]] = {}
    for move in moves:
        directory = os.path.dirname(move.target_path)
        try:
            if directory not in linked:
                steps.make_directory(directory)
            steps.link(move.source_path, move.target_path)
        except FileExistsError:
            answers[move.position] = MoveOutcome(move.source, MoveStatus.TAKEN)
        except OSError as error:
            is_missing = error.errno in ABSENT and not os.path.lexists(move.source_path)
            answers[move.position] = (
                MoveOutcome(move.source, MoveStatus.MISSING) if is_missing else _unnamed(move, error)
            )
        else:
            linked.setdefault(directory, []).append(move)
    return linked


def _without_old_name(move: _Move) -> MoveOutcome:
    try:
        unlink(move.source_path)
    except FileNotFoundError:
        # Whoever took it away meanwhile, the file has its new name.
        pass
    except OSError as error:
        return _failed(move, error)
    return MoveOutcome(move.source, MoveStatus.MOVED)


def _unnamed(move: _Move, error: OSError) -> MoveOutcome:
    """The answer where a file could not be given its new name."""
    reason = translate_os_error(error, "move", move.source).message
    is_impossible = error.errno in _NO_SECOND_NAME and not os.path.isdir(move.source_path)
    return MoveOutcome(move.source, MoveStatus.IMPOSSIBLE if is_impossible else MoveStatus.FAILED, reason)


def _failed(move: _Move, error: OSError) -> MoveOutcome:
    return MoveOutcome(move.source, MoveStatus.FAILED, translate_os_error(error, "move", move.source).message)
