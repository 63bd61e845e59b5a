"""A case played with a tool, and what came of it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Columns

from conformance.gate import Gate, Lost
from conformance.tools.tool import COMPACT, EXPIRE, Answer, Target, Tool
from conformance.tools.tool import MANIFESTS as REWRITE_MANIFESTS
from conformance.world import NAME, OLD_S, Kept, Reader, World, foreign_rows
from icekeep.spec.snapshots import MAIN

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
        return Case(
            name=f"manifests/{name}", says=says, operation=REWRITE_MANIFESTS, version=version, meanwhile={1: first}
        )

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
        "manifests": (REWRITE_MANIFESTS, ()),
        "expire": (EXPIRE, _HISTORY),
    }
    return [
        Case(name=f"{room}/{name}", says=says, operation=operation, prepare=prepare, lost={1: lost})
        for room, (operation, prepare) in first.items()
        for name, (says, lost) in ANSWERS.items()
    ]


CASES = {case.name: case for case in [*_compactions(), *_manifests(), *_expirations(), *_lost()]}


DATA_FILES, MANIFESTS = (".parquet", ".puffin"), (".avro",)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool said, and what is left of the table.

    Attributes:
        answers: of the tool; two where it ran beside itself.
        landed: whether the table has what the tool made: new files, new manifests, or fewer snapshots.
        rows_lost, rows_back: rows that somebody must be able to read and nobody can, and rows that are there although they
            were deleted, or twice.
        refs_lost: branches and tags that are gone; their rows count as lost only as far as their files are.
        commits: how many the tool asked for.
        discarded_files, discarded_bytes: what of its work no snapshot has: data files and delete files, or manifests.
        left_files: of these, what is still on disk.
        notes: what a reader should know besides.
    """

    case: str
    tool: str
    answers: tuple[Answer, ...] = ()
    landed: bool = False
    rows_lost: int = 0
    rows_back: int = 0
    refs_lost: tuple[str, ...] = ()
    commits: int = 0
    discarded_files: int = 0
    discarded_bytes: int = 0
    left_files: int = 0
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> str:
        """The kind of the error by which the tool says that it failed; empty if it says that all is well."""
        return self.answers[0].error if self.answers else ""

    @property
    def is_right(self) -> bool:
        """Whether nobody's rows suffered, and no reference without a word."""
        return not self.rows_lost and not self.rows_back and (not self.refs_lost or bool(self.error))

    @property
    def verdict(self) -> str:
        """In two or three words."""
        if not self.answers:
            return "cannot"
        if len(self.answers) > 1:
            return f"one {self.answers[1].told}, the other {self.answers[0].told}"
        if self.landed and self.error:
            return "done, told as failed"
        if self.landed:
            return "done"
        if self.error:
            return "refused" if self.commits else "refused at once"
        return "says done, is not" if self.answers[0].changed else "nothing done"


def play(case: Case, tool: Tool, key_lifetime: str | None = None) -> Outcome:
    """Make the table, let the tool work, and look at what is left.

    `key_lifetime` says for how long the catalog keeps what became of requests by their keys; without it it keeps none.
    """
    if case.operation not in tool.operations:
        return Outcome(case=case.name, tool=tool.name, notes=("it has no such operation",))
    with TemporaryDirectory(prefix="conformance-") as directory:
        world = World(Path(directory), case.version, case.files, key_lifetime)
        gate = Gate(world.server.uri)
        try:
            for act in case.prepare:
                act(world)
            return _played(case, tool, world, gate)
        finally:
            gate.close()
            world.close()


def _played(case: Case, tool: Tool, world: World, gate: Gate) -> Outcome:
    begun = world.begin()
    seen: dict[str, int] = {}
    answers: list[Answer] = []

    def hold(number: int) -> None:
        seen.update(world.files())
        for act in case.meanwhile.get(number, ()):
            act(world)
        if case.beside and number == 1:
            # By the server itself: nothing holds it there.
            answers.append(_asked(tool.another(), case, world.server.uri))
            seen.update(world.files())

    gate.before_commit, gate.lost = hold, case.lost
    answers.insert(0, _asked(tool, case, gate.uri))
    if gate.failures:
        raise gate.failures[0]
    seen |= world.files()
    made = {path: size for path, size in seen.items() if path not in begun and path not in world.by_writer}
    heard = Outcome(case=case.name, tool=tool.name, answers=tuple(answers), commits=len(gate.commits))
    return _judged(case, world, made, heard)


def _asked(tool: Tool, case: Case, uri: str) -> Answer:
    return tool.run(case.operation, Target(uri=uri, table=".".join(NAME), max_age_s=OLD_S // 2))


def _judged(case: Case, world: World, made: Mapping[str, int], heard: Outcome) -> Outcome:
    reader = world.reader
    losses = [(kept, _compared(reader, kept)) for kept in world.kept]
    wanted = DATA_FILES if case.operation == COMPACT else MANIFESTS
    work = {_plain(path): size for path, size in made.items() if path.endswith(wanted) and not _is_list(path)}
    if case.operation == EXPIRE:
        landed, discarded = len(reader.snapshot_ids) < world.snapshots_count, {}
    else:
        head = reader.head()
        landed = head is not None and not work.keys().isdisjoint(_named_by(reader, head))
        named = {_plain(path) for path in reader.named()}
        discarded = {path: size for path, size in work.items() if path not in named}
    return replace(
        heard,
        landed=landed,
        rows_lost=sum(loss.rows_lost for _, loss in losses),
        rows_back=sum(loss.rows_back for _, loss in losses),
        refs_lost=tuple(kept.who for kept, loss in losses if loss.is_ref_lost),
        discarded_files=len(discarded),
        discarded_bytes=sum(discarded.values()),
        left_files=sum(Path(path).exists() for path in discarded),
        notes=tuple(loss.note for _, loss in losses if loss.note),
    )


class _Loss(NamedTuple):
    rows_lost: int
    rows_back: int
    is_ref_lost: bool = False
    note: str = ""


def _compared(reader: Reader, kept: Kept) -> _Loss:
    """What became of the rows that somebody must be able to read."""
    head = reader.head(kept.ref) if kept.ref else None
    if head is None:
        there = [path for path in kept.paths if Path(_plain(path)).exists()]
        gone = len(kept.paths) - len(there)
        lost = (kept.rows - reader.rows_of(there)).total()
        which = f"{gone} of the {len(kept.paths)} data files are gone" if gone else "all data files are there"
        if not kept.ref:
            return _Loss(lost, 0, note=f"{kept.who}: {which}" if gone else "")
        return _Loss(lost, 0, is_ref_lost=True, note=f"{kept.who}: the reference is gone, {which}")
    held = reader.held(head)
    if kept.ref == MAIN and not held.missing and not held.has_equality_deletes:
        by_other = foreign_rows(reader.location)
        if by_other != held.rows:
            raise AssertionError(f"PyIceberg reads {by_other.total()} rows, the suite's reader {held.rows.total()}")
    note = f"{kept.who}: {len(held.missing)} files are gone" if held.missing else ""
    return _Loss((kept.rows - held.rows).total(), (held.rows - kept.rows).total(), note=note)


def _named_by(reader: Reader, snapshot_id: int) -> set[str]:
    manifests = [manifest["manifest_path"] for manifest in reader.manifests(snapshot_id)]
    return {_plain(path) for path in (*manifests, *(entry.path for entry in reader.entries(snapshot_id)))}


def _plain(location: str) -> str:
    """A path of the local disk, however an engine writes it as a location."""
    return "/" + location.removeprefix("file:").lstrip("/")


def _is_list(location: str) -> bool:
    return location.rpartition("/")[2].startswith("snap-")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run: versions by tool, and all outcomes."""

    versions: Mapping[str, Mapping[str, str]]
    outcomes: tuple[Outcome, ...]

    @property
    def tools(self) -> list[str]:
        return list(self.versions)

    def cells(self) -> dict[str, list[str]]:
        """By case, what is said of each tool."""
        found = {(one.case, one.tool): one for one in self.outcomes}
        names = dict.fromkeys(one.case for one in self.outcomes)
        return {name: [cell(found.get((name, tool))) for tool in self.tools] for name in names}


def report(tools: Sequence[Tool], outcomes: Sequence[Outcome]) -> Report:
    return Report(versions={tool.name: dict(tool.versions()) for tool in tools}, outcomes=tuple(outcomes))


def cell(outcome: Outcome | None) -> str:
    """What became of a case: losses first, then what the tool did, then what of its work was thrown away."""
    if outcome is None:
        return ""
    losses = [
        f"{outcome.rows_lost:,} rows lost" if outcome.rows_lost else "",
        f"{outcome.rows_back:,} rows come back" if outcome.rows_back else "",
        *(f"{ref} lost" for ref in outcome.refs_lost),
    ]
    found = [f"**{loss}**" for loss in losses if loss]
    found.append(outcome.verdict)
    if outcome.discarded_files:
        stay = " (left on disk)" if outcome.left_files else ""
        found.append(f"discarded {_files(outcome.discarded_files)}{stay}")
    return ", ".join(found)


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def markdown(told: Report) -> str:
    """A table for a page."""
    titles = ["case", *(title(told, tool) for tool in told.tools)]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    lines += [f"| {' | '.join([f'`{name}`', *cells])} |" for name, cells in told.cells().items()]
    return "\n".join(lines) + "\n"


def title(told: Report, tool: str) -> str:
    return f"{tool}: {', '.join(f'{name} {text}' for name, text in told.versions[tool].items())}"


def print_report(told: Report, console: Console) -> None:
    """A table for a terminal; below, what each tool said where it did not do its work, and the bytes that it threw away."""
    columns = Columns()
    for name in ("case", *told.tools):
        columns.add_column(name)
    for name, cells in told.cells().items():
        columns.add_row(name, *(escape(text).replace("**", "") for text in cells))
    console.print(columns)
    for tool in told.tools:
        console.print(title(told, tool))
    for one in told.outcomes:
        said = [f"{answer.error}: {answer.message}" for answer in one.answers if answer.error]
        thrown = [f"{one.discarded_bytes:,} bytes discarded"] if one.discarded_files else []
        if details := [*one.notes, *thrown, *said]:
            console.print(escape(f"{one.tool}, {one.case} ({CASES[one.case].says}): {'; '.join(details)}"))
