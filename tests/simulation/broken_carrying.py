"""Deletes that follow rows into new files, broken on purpose: see `mutants`."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from icekeep.commit.attempt import Attempt
from icekeep.commit.carrying import Carried, ChangedDeletes
from icekeep.commit.changes import rewrite_files
from icekeep.commit.changes.rewrite_files import AppliedDeletes, RewriteFiles
from icekeep.spec.manifests.structs import ManifestContent
from simulation.carrying import CarriedRows

_add, _carried, _remove_deletes = rewrite_files.add, RewriteFiles._carried, rewrite_files.remove_deletes
_changed, _ask = rewrite_files._changed, CarriedRows.carried


def carries_nothing() -> AbstractContextManager[Any]:
    """Lets positions pass that others have deleted, and forgets them."""
    return patch.object(RewriteFiles, "_carried", lambda self, changed, base, attempt: ())


def carries_for_the_first_base() -> AbstractContextManager[Any]:
    """Takes what the first attempt has carried over for what all need."""
    first: dict[int, Any] = {}

    def carried(self: RewriteFiles, changed: Any, base: Any, attempt: Attempt) -> Any:
        if attempt.snapshot_id not in first:
            first[attempt.snapshot_id] = _carried(self, changed, base, attempt)
        attempt.name_delete_files(file.file_path for file in first[attempt.snapshot_id])
        return first[attempt.snapshot_id]

    return patch.object(RewriteFiles, "_carried", carried)


def carries_what_was_planned() -> AbstractContextManager[Any]:
    """Looks at the deletes that were applied, not at those of the base."""

    def changed(reaching: Any, applied: Any) -> ChangedDeletes | None:
        found = _changed(reaching, applied)
        known = {(delete.file_path, delete.content_offset) for delete in applied}
        return found and replace(
            found,
            deletes=tuple(
                d for d in reaching if (d.data_file.file_path, d.data_file.content_offset) in known
            ),
        )  # fmt: skip

    return patch.object(rewrite_files, "_changed", changed)


def looks_at_new_deletes_alone() -> AbstractContextManager[Any]:
    """Does not ask whether what was applied is still deleted."""

    def changed(reaching: Any, applied: Any) -> ChangedDeletes | None:
        found = _changed(reaching, applied)
        return found and replace(found, lacks_positions=False, lacks_keys=False)

    return patch.object(rewrite_files, "_changed", changed)


def believes_what_a_check_has_said() -> AbstractContextManager[Any]:
    """Asks no second time which deletes reach the files, though the base has others."""
    return patch.object(AppliedDeletes, "key", property(lambda self: "the first base"))


def names_replaced_files() -> AbstractContextManager[Any]:
    """Adds the delete files of others again, as they are."""

    def carried(self: RewriteFiles, changed: Any, base: Any, attempt: Attempt) -> Any:
        found = _carried(self, changed, base, attempt)
        return tuple(replace(file, referenced_data_file=min(changed)) for file in found)

    return patch.object(RewriteFiles, "_carried", carried)


def names_files_that_stay() -> AbstractContextManager[Any]:
    """Makes its deletes for the replaced files, in the hope that somebody objects."""

    def ask(self: CarriedRows, changed: Any, base: Any, noted: Any) -> Carried:
        found = _ask(self, changed, base, noted)
        return Carried(tuple(replace(f, referenced_data_file=min(changed)) for f in found.deletes), found.refusals)

    return patch.object(CarriedRows, "carried", ask)


def numbers_deletes_as_the_data() -> AbstractContextManager[Any]:
    """Gives the carried deletes the starting sequence number.

    They reach the same rows, but a reader of what is new in the table would not see that they came with this snapshot.
    """

    def apply(self: RewriteFiles, base: Any, attempt: Attempt) -> Any:
        def add(files: Any, *rest: Any, content: Any = ManifestContent.DATA, **given: Any) -> Any:
            return _add(files, *rest, content=content, **{"sequence_number": self.data_sequence_number, **given})

        with patch.object(rewrite_files, "add", add):
            return _apply(self, base, attempt)

    _apply = RewriteFiles.apply
    return patch.object(RewriteFiles, "apply", apply)


def keeps_deletes_of_replaced_files() -> AbstractContextManager[Any]:
    """Leaves the vectors of the files that go."""

    def remove_deletes(manifests: Any, kept: Any, *rest: Any, **given: Any) -> Any:
        return _remove_deletes(manifests, replace(kept, paths=frozenset()), *rest, **given)

    return patch.object(rewrite_files, "remove_deletes", remove_deletes)


def removes_deletes_that_landed() -> AbstractContextManager[Any]:
    """Cleans up the delete files of every attempt, the last one's among them."""
    return patch.object(Attempt, "name_delete_files", lambda self, locations: None)


def leaves_deletes_of_attempts() -> AbstractContextManager[Any]:
    """Forgets which delete files it has written."""
    return patch.object(Attempt, "delete_file_written", lambda self, location: None)


def passes_over_refusals() -> AbstractContextManager[Any]:
    """Commits though the carrier has said that rows are back."""
    return patch.object(rewrite_files, "raise_refusals", lambda refusals: None)
