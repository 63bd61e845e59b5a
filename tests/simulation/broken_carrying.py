"""Deletes that follow rows into new files, broken on purpose: see `mutants`."""

import threading
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.commit.attempt import Attempt
from icekeep.commit.changes import rewrites as rewrite_files
from icekeep.commit.changes.rewrites import AppliedDeletes, Carried, RewriteFiles
from icekeep.commit.manifests import ChangedDeletes
from icekeep.formats.row_moves import MovedPiece
from icekeep.maintenance.compact import carrying
from icekeep.maintenance.compact import commit as commits
from icekeep.maintenance.compact.carrying import CarriedDeletes
from icekeep.spec.manifests.structs import ManifestContent
from simulation.compaction_operations import CarriedRows
from simulation.replacing import replaced

_add, _carried, _remove_deletes = rewrite_files.add, RewriteFiles._carried, rewrite_files.remove_deletes
_changed, _ask = rewrite_files._changed, CarriedRows.carried


def carries_nothing() -> AbstractContextManager[Any]:
    """Lets positions pass that others have deleted, and forgets them."""
    return replaced(RewriteFiles, "_carried", lambda self, changed, base, attempt: ())


def carries_for_the_first_base() -> AbstractContextManager[Any]:
    """Takes what the first attempt has carried over for what all need."""
    first: dict[int, Any] = {}

    def carried(self: RewriteFiles, changed: Any, base: Any, attempt: Attempt) -> Any:
        if attempt.snapshot_id not in first:
            first[attempt.snapshot_id] = _carried(self, changed, base, attempt)
        attempt.name_delete_files(file.file_path for file in first[attempt.snapshot_id])
        return first[attempt.snapshot_id]

    return replaced(RewriteFiles, "_carried", carried)


def carries_what_was_planned() -> AbstractContextManager[Any]:
    """Looks at the deletes that were applied, not at those of the base."""

    def changed(reached: Any, path: str, difference: Any) -> ChangedDeletes | None:
        found = _changed(reached, path, difference)
        return found and replace(found, deletes=tuple(d for d in found.deletes if d not in difference.new))

    return replaced(rewrite_files, "_changed", changed)


def looks_at_new_deletes_alone() -> AbstractContextManager[Any]:
    """Does not ask whether what was applied is still deleted."""

    def changed(reached: Any, path: str, difference: Any) -> ChangedDeletes | None:
        found = _changed(reached, path, difference)
        return found and replace(found, lacks_positions=False, lacks_keys=False)

    return replaced(rewrite_files, "_changed", changed)


def believes_what_a_check_has_said() -> AbstractContextManager[Any]:
    """Asks no second time which deletes reach the files, though the base has others."""
    return replaced(AppliedDeletes, "key", property(lambda self: "the first base"))


def names_replaced_files() -> AbstractContextManager[Any]:
    """Adds the delete files of others again, as they are."""

    def carried(self: RewriteFiles, changed: Any, base: Any, attempt: Attempt) -> Any:
        found = _carried(self, changed, base, attempt)
        return tuple(replace(file, referenced_data_file=min(changed)) for file in found)

    return replaced(RewriteFiles, "_carried", carried)


def names_files_that_stay() -> AbstractContextManager[Any]:
    """Makes its deletes for the replaced files, in the hope that somebody objects."""

    def ask(self: CarriedRows, changed: Any, base: Any, noted: Any) -> Carried:
        found = _ask(self, changed, base, noted)
        return Carried(tuple(replace(f, referenced_data_file=min(changed)) for f in found.deletes), found.refusals)

    return replaced(CarriedRows, "carried", ask)


def numbers_deletes_as_the_data() -> AbstractContextManager[Any]:
    """Gives the carried deletes the starting sequence number.

    They reach the same rows, but a reader of what is new in the table would not see that they came with this snapshot.
    """

    # Writers take turns in the middle of a change, each in a thread of its own.
    current = threading.local()
    apply = RewriteFiles.apply

    def noted(self: RewriteFiles, base: Any, attempt: Attempt) -> Any:
        current.number = self.data_sequence_number
        try:
            return apply(self, base, attempt)
        finally:
            current.number = None

    def add(files: Any, *rest: Any, content: Any = ManifestContent.DATA, **given: Any) -> Any:
        number = getattr(current, "number", None)
        own = {} if number is None else {"sequence_number": number}
        return _add(files, *rest, content=content, **{**own, **given})

    stack = ExitStack()
    stack.enter_context(replaced(RewriteFiles, "apply", noted))
    stack.enter_context(replaced(rewrite_files, "add", add))
    return stack


def keeps_deletes_of_replaced_files() -> AbstractContextManager[Any]:
    """Leaves the vectors of the files that go."""

    def remove_deletes(manifests: Any, kept: Any, *rest: Any, **given: Any) -> Any:
        return _remove_deletes(manifests, replace(kept, paths=frozenset()), *rest, **given)

    return replaced(rewrite_files, "remove_deletes", remove_deletes)


def removes_deletes_that_landed() -> AbstractContextManager[Any]:
    """Cleans up the delete files of every attempt, the last one's among them."""
    return replaced(Attempt, "name_delete_files", lambda self, locations: None)


def leaves_deletes_of_attempts() -> AbstractContextManager[Any]:
    """Forgets which delete files it has written."""
    return replaced(Attempt, "delete_file_written", lambda self, location: None)


def passes_over_refusals() -> AbstractContextManager[Any]:
    """Commits though the carrier has said that rows are back."""
    return replaced(rewrite_files, "raise_refusals", lambda refusals: None)


_new_positions = carrying.new_positions
_deleted, _write_positions = CarriedDeletes._deleted_positions, CarriedDeletes._write_positions
_write_vectors = CarriedDeletes._write_vectors


def refuses_what_has_changed() -> AbstractContextManager[Any]:
    """Takes positions that others delete for a conflict: the group is planned anew."""
    checked = AppliedDeletes.checked
    return replaced(
        AppliedDeletes, "checked", lambda self, *rest: checked(replace(self, carries=False), *rest)
    )  # fmt: skip


def carries_no_positions() -> AbstractContextManager[Any]:
    """Finds the new places of rows, and writes nothing."""
    return replaced(CarriedDeletes, "_write", lambda self, moved, base, noted: ())


def reads_deletes_once_a_data_file() -> AbstractContextManager[Any]:
    """Takes what the first attempt has read of a data file's deletes for what there is to know."""
    known: dict[tuple[int, str], Any] = {}

    def deleted(self: CarriedDeletes, changed: Any) -> Any:
        return {path: known.setdefault((id(self), path), held) for path, held in _deleted(self, changed).items()}

    return replaced(CarriedDeletes, "_deleted_positions", deleted)


def writes_deletes_once_a_data_file() -> AbstractContextManager[Any]:
    """Takes the delete files of an earlier attempt for those of a later one."""
    known: dict[tuple[int, Any], Any] = {}

    def positions(self: CarriedDeletes, file: Any, *rest: Any) -> Any:
        key = id(self), file.file_path
        if key not in known:
            known[key] = _write_positions(self, file, *rest)
        return known[key]

    def vectors(self: CarriedDeletes, moved: Any, noted: Any) -> Any:
        key = id(self), tuple(file.file_path for file, _ in moved)
        if key not in known:
            known[key] = _write_vectors(self, moved, noted)
        return known[key]

    stack = ExitStack()
    stack.enter_context(replaced(CarriedDeletes, "_write_positions", positions))
    stack.enter_context(replaced(CarriedDeletes, "_write_vectors", vectors))
    return stack


def forgets_which_rows_were_dropped() -> AbstractContextManager[Any]:
    """Finds rows in the new files as if none had been left out before them."""

    def new_positions(outcomes: Any, storage: Any, wanted: Any) -> Any:
        found = _new_positions(outcomes, storage, wanted)
        moved = (piece for outcome in outcomes if outcome.moves is not None for piece in outcome.moves.pieces)
        if any(isinstance(piece, MovedPiece) and piece.dropped for piece in moved):
            return {path: BitMap64([position + 1 for position in held]) for path, held in found.items()}
        return found

    return replaced(carrying, "new_positions", new_positions)


def carries_a_group_at_most() -> AbstractContextManager[Any]:
    """Forgets the groups behind the first that has changed deletes."""
    by_group = CarriedDeletes._by_group
    return replaced(
        CarriedDeletes, "_by_group", lambda self, changed: dict(sorted(by_group(self, changed).items())[:1])
    )


def reuses_a_manifest_of_deletes() -> AbstractContextManager[Any]:
    """Writes the manifest of carried deletes once, for the first attempt that has some."""

    def add(*rest: Any, key: Any = "added", **given: Any) -> Any:
        return _add(*rest, key=key if key == "added" else "carried", **given)

    return replaced(rewrite_files, "add", add)


def leaves_what_tasks_told() -> AbstractContextManager[Any]:
    """Keeps under the run's directory where rows went."""
    return replaced(commits, "settle", lambda table, outcomes, written: None)
