"""What carries real deletes of positions into new files, broken on purpose: see `mutants`."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any

from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.commit.changes import rewrites as rewrite_files
from icekeep.commit.changes.rewrites import AppliedDeletes
from icekeep.formats.row_moves import MovedPiece
from icekeep.maintenance.compact import carrying
from icekeep.maintenance.compact import commit as commits
from icekeep.maintenance.compact.carrying import CarriedDeletes
from simulation.replacing import replaced

_add, _new_positions = rewrite_files.add, carrying.new_positions
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
