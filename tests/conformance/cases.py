"""What is played: an operation of a tool, and what happens while its commit is held or its answer is lost."""

from collections.abc import Callable, Mapping

import msgspec

from conformance.gate import Lost
from conformance.tools.tool import COMPACT, EXPIRE, MANIFESTS
from conformance.world import World

Meanwhile = Callable[[World], None]

ANSWERS = {
    "answer-500": ("its commit is done, and the answer is 500", Lost(500)),
    "answer-504": ("its commit is done, and the answer is 504, by a proxy", Lost(504)),
    "answer-cut-off": ("its commit is done, and the connection ends without an answer", Lost(0)),
    "not-done-503": ("its commit is not done, and the answer is 503", Lost(503, applied=False)),
}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that may happen.

    Attributes:
        says: in a line, what happens.
        version: of the table's format.
        prepare: done to the table, which has `files` files from as many appends, before the tool begins.
        meanwhile: by the number of a commit of the tool, from 1, what others do while it is held.
        lost: by the same number, what the tool hears in place of an answer.
        beside: while the first commit is held, the same tool does the same from its beginning to its end.
    """

    name: str
    says: str
    operation: str
    version: int = 2
    files: int = 6
    prepare: tuple[Meanwhile, ...] = ()
    meanwhile: Mapping[int, tuple[Meanwhile, ...]] = {}
    lost: Mapping[int, Lost] = {}
    beside: bool = False


def _compactions() -> list[Case]:
    def case(name: str, says: str, *first: Meanwhile, version: int = 2, **more: object) -> Case:
        meanwhile = {1: first} if first else {}
        return Case(name=f"compact/{name}", says=says, operation=COMPACT, version=version, meanwhile=meanwhile, **more)

    every_second = {1: (World.upsert,) * 3, 2: (World.upsert,)}
    return [
        case("append", "a file is appended", World.append),
        case("position-deletes", "rows are deleted by a position delete file", World.delete_positions),
        case("equality-deletes", "rows are deleted by an equality delete file", World.delete_equal),
        case("vector", "rows are deleted by a deletion vector", World.delete_by_vector, version=3),
        case("file-deleted", "a file that it read is deleted whole", World.delete_file),
        case("rollback", "the table is rolled back by one append", World.roll_back),
        case("beside-itself", "the same compaction runs whole", beside=True),
        Case(
            name="compact/equality-deletes-each-second",
            says="three upserts (equality delete and new rows), and a fourth at its second try",
            operation=COMPACT,
            meanwhile=every_second,
        ),
    ]


def _manifests() -> list[Case]:
    def case(name: str, says: str, *first: Meanwhile, version: int = 2) -> Case:
        return Case(name=f"manifests/{name}", says=says, operation=MANIFESTS, version=version, meanwhile={1: first})

    return [
        case("append", "a file is appended", World.append),
        case("position-deletes", "rows are deleted by a position delete file", World.delete_positions),
        case("vector", "rows are deleted by a deletion vector", World.delete_by_vector, version=3),
        case("rollback", "the table is rolled back by one append", World.roll_back),
    ]


_HISTORY = (World.delete_file, World.delete_file, World.make_old)


def _expirations() -> list[Case]:
    def case(name: str, says: str, *first: Meanwhile, prepare: tuple[Meanwhile, ...] = ()) -> Case:
        return Case(
            name=f"expire/{name}",
            says=says,
            operation=EXPIRE,
            prepare=(*_HISTORY, *prepare),
            meanwhile={1: first},
        )

    return [
        case(
            "reader",
            "somebody has planned a scan of the newest snapshot; a file of that is deleted whole",
            World.delete_file,
            prepare=(World.plan_to_read,),
        ),
        case("tag", "an old snapshot that would expire is tagged", lambda world: world.tag(3)),
        case("rollback", "an old snapshot that would expire becomes the current one", lambda world: world.roll_back(3)),
    ]


def _lost() -> list[Case]:
    first: dict[str, tuple[str, tuple[Meanwhile, ...]]] = {
        "compact": (COMPACT, ()),
        "manifests": (MANIFESTS, ()),
        "expire": (EXPIRE, _HISTORY),
    }
    return [
        Case(name=f"{room}/{name}", says=says, operation=operation, prepare=prepare, lost={1: lost})
        for room, (operation, prepare) in first.items()
        for name, (says, lost) in ANSWERS.items()
    ]


CASES = {case.name: case for case in [*_compactions(), *_manifests(), *_expirations(), *_lost()]}
