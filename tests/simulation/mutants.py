"""The library, broken on purpose in one place: each of these the simulation must catch.

A mutant is a context manager: within it the library is wrong as its docstring says.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from simulation import (
    broken_carrying,
    broken_changes,
    broken_commits,
    broken_compaction,
    broken_deletion,
)
from simulation.codec import values_in_place_of_bytes
from simulation.compaction_operations import (
    Compact,
    CompactAndClean,
    CompactHoldingItsStart,
    CompactIntoAnotherSpec,
    ConvertByValue,
    MergeDeletes,
    MergeManifests,
    MergeManifestsAndClean,
)
from simulation.file_operations import (
    Append,
    Delete,
    DeleteByFilter,
    DeleteByValue,
    DeleteRows,
    DeleteRowsUnnamed,
    OverwriteByFilter,
)
from simulation.history import History
from simulation.operations import ChangePartitioning, Make, SetStatistics, Upgrade
from simulation.snapshot_operations import (
    Expire,
    ExpireAndReclaim,
    MakeBranchOrTag,
    MoveBranchOrTag,
    Publish,
    RegisterReader,
    RenameABranch,
    Restore,
    Rollback,
    SetCurrent,
    Stage,
)
from simulation.streaming import StreamingHistory
from simulation.world import DIRECTORY, FINDINGS, NOT_ICEKEEPS, NOTICED, POINTER, UPDATES, Violation

HISTORIES_MAX = 600
"""How many to look at for one that shows a mutant."""

Mutant = Callable[[], AbstractContextManager[Any]]


class Hunt(NamedTuple):
    """What a mutant is meant to break, by the letters and numbers of `model`, and where to look for a history that shows it.

    `at` is a history that has shown it: it is tried first. With `streams`, `orphans` or `credentials` it is one of those
    histories. All else that is not said is drawn. Where somebody must do a lot between two calls of another one, they are less
    restless.
    """

    breaks: str
    at: int = 0
    catalog: str | None = None
    share: float | None = None
    likes: tuple[Make, ...] = ()
    streams: bool = False
    orphans: bool = False
    credentials: bool = False
    restlessness: float | None = None

    def history(self, number: int) -> History | StreamingHistory:
        """One of the histories to look at."""
        if self.streams:
            return StreamingHistory(number)
        return History(
            number,
            catalog=self.catalog,
            share=self.share,
            likes=self.likes,
            with_orphans=self.orphans,
            with_credentials=self.credentials,
            restlessness=self.restlessness,
        )


DELETES_COME = (Compact, DeleteRows)
ROWS_COME_BACK = (Compact, DeleteRows, DeleteRows, Rollback, SetCurrent)
READERS = (RegisterReader, Expire, Append)
UNNAMED = (DeleteRowsUnnamed, CompactAndClean, MergeManifestsAndClean)
OTHERS_CHANGE_MANIFESTS = (MergeManifests, Delete, Append)

MUTANTS: dict[Mutant, Hunt] = {
    broken_commits.skips_requirements: Hunt("D1", at=3),
    broken_commits.does_not_apply_again: Hunt("D1 D3", at=2),
    broken_commits.cleans_up_after_unknown: Hunt("G1", at=21, share=0.08, catalog=POINTER),
    broken_commits.cleans_up_when_interrupted: Hunt("G1", at=4, share=0.08),
    broken_commits.takes_unknown_for_a_conflict: Hunt("C3 C4", at=11, share=0.08),
    broken_commits.believes_every_conflict: Hunt("G1", at=7, share=0.08, catalog=POINTER),
    broken_commits.takes_what_is_over_for_open: Hunt("C3", at=21, catalog=UPDATES),
    broken_commits.doubts_its_upgrade: Hunt("C3", at=34, catalog=UPDATES),
    broken_commits.deletes_before_the_commit: Hunt("G1", likes=(ExpireAndReclaim,)),
    broken_commits.does_not_prove_again: Hunt("G1", at=4657, likes=(ExpireAndReclaim, MakeBranchOrTag)),
    broken_commits.carries_out_what_was_never_committed: Hunt("G1", at=13, likes=(ExpireAndReclaim,), share=0.08),
    broken_commits.expires_by_the_first_base: Hunt("R2", at=178, likes=(Expire, MakeBranchOrTag, Rollback, SetCurrent)),
    broken_commits.forgets_its_readers: Hunt("R3", likes=READERS),
    broken_commits.reuses_a_manifest_list: Hunt("D1", at=1),
    broken_commits.replaces_without_looking: Hunt("D3", at=1, likes=(Compact,)),
    broken_commits.ignores_new_deletes: Hunt("D4", at=19, likes=DELETES_COME),
    broken_commits.deletes_rows_of_what_is_gone: Hunt("D4", at=18, likes=DELETES_COME),
    broken_commits.numbers_wrongly: Hunt("C9", likes=(Compact,)),
    broken_commits.gives_row_ids_twice: Hunt("D5"),
    broken_commits.rolls_back_unseen: Hunt("C5", at=18, likes=(Rollback,)),
    broken_commits.blanks_totals: Hunt("D8"),
    broken_commits.forgets_to_clean_up: Hunt("X3", at=1),
    broken_commits.removes_every_other_manifest: Hunt("G1", at=1),
    broken_changes.skips_the_look_after_a_commit: Hunt("C2", at=43, catalog=DIRECTORY, share=0.0),
    broken_changes.keeps_no_versions: Hunt("H2", at=1, catalog=DIRECTORY),
    broken_changes.takes_the_hint_for_the_head: Hunt("X1", at=0, catalog=DIRECTORY),
    broken_changes.takes_a_name_for_its_own: Hunt("C2", at=0, catalog=DIRECTORY, share=0.08),
    broken_changes.picks_what_was_picked: Hunt("C4", at=5, catalog=POINTER, share=0.0, likes=(Stage, Publish)),
    broken_changes.merges_and_drops: Hunt("D1"),
    broken_changes.merges_what_is_deleted: Hunt("D1", at=17, likes=(Delete,)),
    broken_changes.overwrites_unseen: Hunt("D1", at=2, likes=(OverwriteByFilter,)),
    broken_changes.overwrites_what_it_did_not_read: Hunt("D1", at=1, likes=(OverwriteByFilter, DeleteByFilter)),
    broken_changes.removes_files_that_match_in_part: Hunt("D1", at=1, likes=(Compact, DeleteByFilter)),
    broken_changes.renames_what_it_saw: Hunt("C10", likes=(MakeBranchOrTag, RenameABranch)),
    broken_changes.moves_refs_unseen: Hunt("C5", at=21, likes=(MakeBranchOrTag, MoveBranchOrTag)),
    broken_changes.removes_specs_in_use: Hunt("E1", at=1, catalog=POINTER, likes=(ChangePartitioning, Expire)),
    broken_changes.drops_other_statistics: Hunt("C10", at=1, likes=(SetStatistics,)),
    broken_compaction.moves_rows_past_deletes: Hunt(
        "D4", at=162, likes=(ChangePartitioning, DeleteByValue, CompactIntoAnotherSpec)
    ),
    broken_compaction.takes_moved_rows_for_reached: Hunt(
        "D4", at=19, likes=(ChangePartitioning, DeleteByValue, CompactIntoAnotherSpec)
    ),
    broken_compaction.takes_global_deletes_for_a_partitions: Hunt(
        "D4", at=7, likes=(ChangePartitioning, DeleteByValue, CompactAndClean)
    ),
    broken_compaction.takes_equal_numbers_for_too_old: Hunt("D4", at=78, likes=(DeleteRows, CompactAndClean)),
    broken_compaction.believes_bounds: Hunt("D4", at=1, catalog=POINTER, likes=UNNAMED),
    broken_compaction.leaves_deletes_that_name_no_file: Hunt("D7", at=1, catalog=POINTER, likes=UNNAMED),
    broken_compaction.forgets_what_it_adds: Hunt("D4", at=1, likes=(DeleteByValue, CompactAndClean)),
    broken_compaction.forgets_what_it_removes: Hunt("D7", at=25, likes=(DeleteByValue, CompactAndClean)),
    broken_compaction.finds_dangling_deletes_once: Hunt("D4", at=329, likes=(DeleteByValue, Compact, CompactAndClean)),
    broken_compaction.holds_nothing: Hunt("R1", at=1, likes=(CompactHoldingItsStart,)),
    broken_compaction.leaves_its_tag: Hunt("R1", at=1, likes=(CompactHoldingItsStart,)),
    broken_compaction.drops_tags_of_living_runs: Hunt("R1", at=1, likes=(CompactHoldingItsStart,)),
    broken_compaction.holds_for_no_time: Hunt("R1", at=1, likes=(CompactHoldingItsStart, Expire)),
    broken_carrying.carries_nothing: Hunt("D4", at=1, likes=DELETES_COME),
    broken_carrying.carries_for_the_first_base: Hunt("D4", at=21, likes=DELETES_COME),
    broken_carrying.carries_what_was_planned: Hunt("D4", at=1, likes=DELETES_COME),
    broken_carrying.looks_at_new_deletes_alone: Hunt("D1", at=22, likes=ROWS_COME_BACK),
    broken_carrying.believes_what_a_check_has_said: Hunt("D4", at=21, likes=DELETES_COME),
    broken_carrying.names_replaced_files: Hunt("D4", at=54, likes=DELETES_COME),
    broken_carrying.names_files_that_stay: Hunt("E1", at=1, likes=DELETES_COME),
    broken_carrying.numbers_deletes_as_the_data: Hunt("C9", at=11, likes=DELETES_COME),
    broken_carrying.keeps_deletes_of_replaced_files: Hunt("D7", at=1, likes=DELETES_COME),
    broken_carrying.removes_deletes_that_landed: Hunt("G1", at=1, likes=DELETES_COME),
    broken_carrying.leaves_deletes_of_attempts: Hunt("X3", at=21, likes=DELETES_COME),
    broken_carrying.passes_over_refusals: Hunt("D1", at=22, likes=ROWS_COME_BACK),
    broken_compaction.converts_what_it_looked_through: Hunt(
        "D4", at=114, likes=(DeleteByValue, ConvertByValue, Compact)
    ),
    broken_compaction.converts_past_new_positions: Hunt(
        "E1", at=38, share=0.0, likes=(DeleteRows, ConvertByValue, DeleteByValue, Append)
    ),
    broken_compaction.numbers_merged_deletes_anew: Hunt("C9", at=1, likes=(DeleteRows, MergeDeletes)),
    broken_compaction.upgrades_unseen: Hunt("D3", at=297, likes=(DeleteRows, MergeDeletes, Upgrade)),
    broken_compaction.lists_manifests_that_are_gone: Hunt("D1", at=1, likes=OTHERS_CHANGE_MANIFESTS),
    broken_compaction.leaves_what_it_had_no_use_for: Hunt(
        "X3", at=31, likes=(DeleteByValue, Compact, MergeManifestsAndClean)
    ),
    broken_compaction.finds_what_manifests_leave_once: Hunt(
        "D4", at=55, likes=(DeleteByValue, Compact, MergeManifestsAndClean)
    ),
    broken_deletion.forgets_what_waits: Hunt("G2", at=5, orphans=True),
    broken_deletion.takes_a_plan_from_a_run_at_work: Hunt(
        "G1", at=2379, catalog=POINTER, share=0.0, restlessness=0.03, likes=(ExpireAndReclaim, Restore)
    ),
    broken_deletion.deletes_what_another_plan_keeps: Hunt("G2", at=156, orphans=True),
    broken_deletion.asks_for_no_new_credentials: Hunt("V1", at=2, credentials=True),
    broken_carrying.refuses_what_has_changed: Hunt("C11", streams=True),
    broken_carrying.carries_no_positions: Hunt("D4", streams=True),
    broken_carrying.reads_deletes_once_a_data_file: Hunt("D4", at=1, streams=True),
    broken_carrying.writes_deletes_once_a_data_file: Hunt("D4", at=1, streams=True),
    broken_carrying.forgets_which_rows_were_dropped: Hunt("D1", streams=True),
    broken_carrying.carries_a_group_at_most: Hunt("D4", at=3, streams=True),
    broken_carrying.reuses_a_manifest_of_deletes: Hunt("D4", at=1, streams=True),
    broken_carrying.leaves_what_tasks_told: Hunt("X3", streams=True),
}


class Caught(NamedTuple):
    """The history that shows a mutant, and the invariant that does not hold in it."""

    history: int
    invariant: str


def kind_of(mutant: Mutant) -> str:
    """What of the library it breaks."""
    return mutant.__module__.split("_")[-1]


def caught_by(mutant: Mutant, histories: int = HISTORIES_MAX) -> Caught | None:
    """The first of so many histories in which the mutant breaks what it is meant to break; `None` if there is none.

    Raises what ends a history otherwise than by an invariant, such as a `TypeError`: that says that the mutant no longer
    fits the library, and nothing of the invariants.
    """
    hunt = MUTANTS[mutant]
    for number in dict.fromkeys((hunt.at, *range(histories))):
        # Each history has a mutant of its own: some remember what they have met.
        with nullcontext() if hunt.orphans else values_in_place_of_bytes(), mutant():
            invariant = broken_invariant(hunt.history(number))
        if invariant in hunt.breaks.split():
            return Caught(number, invariant)
    return None


def broken_invariant(history: History | StreamingHistory) -> str:
    """Run a history to its end: the first invariant that does not hold in it, nothing where all hold."""
    try:
        history.run()
    except Violation as violation:
        if violation.invariant == NOT_ICEKEEPS:
            raise
        return violation.invariant
    except FINDINGS:
        return NOTICED
    return ""
