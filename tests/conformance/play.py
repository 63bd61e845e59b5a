"""A case played with a tool, and what came of it."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from conformance.cases import Case
from conformance.gate import Gate
from conformance.reading import Reader, foreign_rows
from conformance.tools.tool import COMPACT, EXPIRE, Answer, Target, Tool
from conformance.world import NAME, OLD_S, Kept, World
from icekeep.spec.snapshots import MAIN

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
