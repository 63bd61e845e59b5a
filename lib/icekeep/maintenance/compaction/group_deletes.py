"""The delete files of a group in an order in which those that reach a file are a few stretches. Pure.

Equality deletes come first, those of a partition together and by their sequence numbers: a file is reached by those that are
newer than it, the end of such a list. Deletes of positions that reach several files follow in the same way, and last come
those that reach one file alone, file by file.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec

from icekeep.maintenance.compaction.plan import GroupDelete, GroupFile, GroupFiles
from icekeep.spec.collections import Part, PositionSet, Renumbering, narrowed, spans
from icekeep.spec.manifests.structs import FileContent

_Name = tuple[str, int | None]


class _Reach(msgspec.Struct):
    """How many files of a group a delete file reaches, and the sum of their numbers: of one file that is its number."""

    delete: GroupDelete
    files_count: int = 0
    numbers_sum: int = 0


class _Share(msgspec.Struct, frozen=True):
    """Files whose delete files are parts of one list: their numbers, and as much of the list as they use."""

    files: Sequence[int]
    deletes: Sequence[GroupDelete]
    parts: Sequence[PositionSet]


def with_deletes_once(files: Iterable[tuple[GroupFile, Sequence[GroupDelete]]]) -> GroupFiles:
    """Files, each with the delete files that reach it, as a group has them.

    Where these are a `Part`, no time is spent on each of its members: files may share a thousand of them.
    """
    pairs = [(file, _part(deletes)) for file, deletes in files]
    shares = _shares([part for _, part in pairs])
    reaches: dict[_Name, _Reach] = {}
    for share in shares:
        _count(share, reaches)
    in_order = sorted(reaches.values(), key=_order)
    places = {_name(reach.delete): place for place, reach in enumerate(in_order)}
    positions: dict[int, PositionSet] = {}
    for share in shares:
        numbers = Renumbering([places[_name(delete)] for delete in share.deletes])
        positions |= zip(share.files, map(numbers.moved, share.parts), strict=True)
    return GroupFiles(
        tuple(msgspec.structs.replace(file, deletes=positions[number]) for number, (file, _) in enumerate(pairs)),
        tuple(reach.delete for reach in in_order),
    )


def _part(deletes: Sequence[GroupDelete]) -> Part[GroupDelete]:
    return deletes if isinstance(deletes, Part) else Part(deletes, PositionSet(range(len(deletes))))


def _shares(parts: Sequence[Part[GroupDelete]]) -> list[_Share]:
    numbers: dict[int, list[int]] = defaultdict(list)
    for number, part in enumerate(parts):
        numbers[id(part.whole)].append(number)
    return [
        _Share(some, *narrowed(parts[some[0]].whole, [parts[number].positions for number in some]))
        for some in numbers.values()
    ]


def _count(share: _Share, reaches: dict[_Name, _Reach]) -> None:
    counts, sums = ([0] * (len(share.deletes) + 1) for _ in range(2))
    for number, part in zip(share.files, share.parts, strict=True):
        for start, stop in spans(part):
            counts[start] += 1
            counts[stop] -= 1
            sums[start] += number
            sums[stop] -= number
    for delete, count, total in zip(share.deletes, accumulate(counts), accumulate(sums), strict=False):
        reach = reaches.setdefault(_name(delete), _Reach(delete))
        reach.files_count += count
        reach.numbers_sum += total


def _name(delete: GroupDelete) -> _Name:
    return delete.file_path, delete.content_offset


def _order(reach: _Reach) -> tuple[int, int, int, bytes, int, str, int]:
    delete = reach.delete
    kind = only = 0
    if delete.content != FileContent.EQUALITY_DELETES:
        kind = 1 if reach.files_count > 1 else 2
        only = reach.numbers_sum if kind == 2 else 0
    offset = -1 if delete.content_offset is None else delete.content_offset
    return kind, only, delete.spec_id, delete.partition, delete.sequence_number, delete.file_path, offset
