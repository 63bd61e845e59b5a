"""The library, broken on purpose in one place: each of these the simulation must catch.

A mutant is a context manager: within it the library is wrong as its docstring says.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from simulation import (
    broken_carrying,
    broken_changes,
    broken_commits,
    broken_compaction,
    broken_deletes,
    broken_following,
    broken_streaming,
)
from simulation.compaction_operations import Compact, CompactAndClean, CompactHoldingItsStart, CompactIntoAnotherSpec
from simulation.definition_operations import ChangePartitioning, SetStatistics, Upgrade
from simulation.delete_operations import ConvertByValue, MergeDeletes
from simulation.file_operations import (
    Append,
    Delete,
    DeleteByFilter,
    DeleteByValue,
    DeleteRows,
    OverwriteByFilter,
)
from simulation.history import History
from simulation.manifest_operations import MergeManifests, MergeManifestsAndClean
from simulation.operations import Make
from simulation.publishing_operations import Publish, Stage
from simulation.ref_operations import MakeBranchOrTag, MoveBranchOrTag, RenameABranch
from simulation.snapshot_operations import Expire, ExpireAndReclaim, Rollback, SetCurrent
from simulation.streaming import StreamingHistory
from simulation.world import DIRECTORY, POINTER

Mutant = Callable[[], AbstractContextManager[Any]]


class Hunt(NamedTuple):
    """Where to look for a history that shows a mutant: any will do, these save time."""

    first_seed: int = 0
    catalog: str | None = None
    share: float | None = None
    likes: tuple[Make, ...] = ()
    streams: bool = False

    def history(self, number: int) -> History | StreamingHistory:
        """One of the histories to look at."""
        if self.streams:
            return StreamingHistory(self.first_seed + number)
        return History(self.first_seed + number, catalog=self.catalog, share=self.share, likes=self.likes)


DELETES_COME = Hunt(likes=(Compact, DeleteRows))
ROWS_COME_BACK = Hunt(likes=(Compact, DeleteRows, DeleteRows, Rollback, SetCurrent))
OTHERS_CHANGE_MANIFESTS = Hunt(likes=(MergeManifests, Delete, Append))
STREAMING = Hunt(streams=True)

MUTANTS: dict[Mutant, Hunt] = {
    broken_commits.skips_requirements: Hunt(),
    broken_commits.does_not_apply_again: Hunt(),
    broken_commits.cleans_up_after_unknown: Hunt(share=0.08, catalog=POINTER),
    broken_commits.cleans_up_when_interrupted: Hunt(share=0.08),
    broken_commits.takes_unknown_for_a_conflict: Hunt(share=0.08),
    broken_commits.believes_every_conflict: Hunt(share=0.08, catalog=POINTER),
    broken_commits.deletes_before_the_commit: Hunt(likes=(ExpireAndReclaim,)),
    broken_commits.does_not_prove_again: Hunt(likes=(ExpireAndReclaim, MakeBranchOrTag)),
    broken_commits.carries_out_what_was_never_committed: Hunt(likes=(ExpireAndReclaim,), share=0.08),
    broken_commits.expires_by_the_first_base: Hunt(likes=(Expire, MakeBranchOrTag, Rollback, SetCurrent)),
    broken_commits.reuses_a_manifest_list: Hunt(),
    broken_commits.replaces_without_looking: Hunt(likes=(Compact,)),
    broken_commits.ignores_new_deletes: Hunt(likes=(Compact, DeleteRows)),
    broken_commits.deletes_rows_of_what_is_gone: Hunt(likes=(Compact, DeleteRows)),
    broken_commits.numbers_wrongly: Hunt(likes=(Compact,)),
    broken_commits.gives_row_ids_twice: Hunt(),
    broken_commits.rolls_back_unseen: Hunt(likes=(Rollback,)),
    broken_commits.blanks_totals: Hunt(),
    broken_commits.forgets_to_clean_up: Hunt(),
    broken_commits.removes_every_other_manifest: Hunt(),
    broken_changes.skips_the_look_after_a_commit: Hunt(catalog=DIRECTORY, share=0.0),
    broken_changes.keeps_no_versions: Hunt(catalog=DIRECTORY),
    broken_changes.takes_the_hint_for_the_head: Hunt(catalog=DIRECTORY),
    broken_changes.takes_a_name_for_its_own: Hunt(catalog=DIRECTORY, share=0.08),
    broken_changes.picks_what_was_picked: Hunt(catalog=POINTER, share=0.0, likes=(Stage, Publish)),
    broken_changes.merges_and_drops: Hunt(),
    broken_changes.merges_what_is_deleted: Hunt(likes=(Delete,)),
    broken_changes.overwrites_unseen: Hunt(likes=(OverwriteByFilter,)),
    broken_changes.overwrites_what_it_did_not_read: Hunt(likes=(OverwriteByFilter, DeleteByFilter)),
    broken_changes.removes_files_that_match_in_part: Hunt(likes=(Compact, DeleteByFilter)),
    broken_changes.renames_what_it_saw: Hunt(likes=(MakeBranchOrTag, RenameABranch)),
    broken_changes.moves_refs_unseen: Hunt(likes=(MakeBranchOrTag, MoveBranchOrTag)),
    broken_changes.removes_specs_in_use: Hunt(catalog=POINTER, likes=(ChangePartitioning, Expire)),
    broken_changes.drops_other_statistics: Hunt(likes=(SetStatistics,)),
    broken_compaction.moves_rows_past_deletes: Hunt(likes=(ChangePartitioning, DeleteByValue, CompactIntoAnotherSpec)),
    broken_compaction.takes_moved_rows_for_reached: Hunt(
        likes=(ChangePartitioning, DeleteByValue, CompactIntoAnotherSpec)
    ),
    broken_compaction.takes_global_deletes_for_a_partitions: Hunt(
        likes=(ChangePartitioning, DeleteByValue, CompactAndClean)
    ),
    broken_compaction.takes_equal_numbers_for_too_old: Hunt(likes=(DeleteRows, CompactAndClean)),
    broken_compaction.forgets_what_it_adds: Hunt(likes=(DeleteByValue, CompactAndClean)),
    broken_compaction.forgets_what_it_removes: Hunt(likes=(DeleteByValue, CompactAndClean)),
    broken_compaction.finds_dangling_deletes_once: Hunt(likes=(DeleteByValue, Compact, CompactAndClean)),
    broken_compaction.holds_nothing: Hunt(likes=(CompactHoldingItsStart,)),
    broken_compaction.leaves_its_tag: Hunt(likes=(CompactHoldingItsStart,)),
    broken_compaction.drops_tags_of_living_runs: Hunt(likes=(CompactHoldingItsStart,)),
    broken_compaction.holds_for_no_time: Hunt(likes=(CompactHoldingItsStart, Expire)),
    broken_carrying.carries_nothing: DELETES_COME,
    broken_carrying.carries_for_the_first_base: DELETES_COME,
    broken_carrying.carries_what_was_planned: DELETES_COME,
    broken_carrying.looks_at_new_deletes_alone: ROWS_COME_BACK,
    broken_carrying.believes_what_a_check_has_said: DELETES_COME,
    broken_carrying.names_replaced_files: DELETES_COME,
    broken_carrying.names_files_that_stay: DELETES_COME,
    broken_carrying.numbers_deletes_as_the_data: DELETES_COME,
    broken_carrying.keeps_deletes_of_replaced_files: DELETES_COME,
    broken_carrying.removes_deletes_that_landed: DELETES_COME,
    broken_carrying.leaves_deletes_of_attempts: DELETES_COME,
    broken_carrying.passes_over_refusals: ROWS_COME_BACK,
    broken_deletes.converts_what_it_looked_through: Hunt(likes=(DeleteByValue, ConvertByValue, Compact)),
    broken_deletes.converts_past_new_positions: Hunt(
        share=0.0, likes=(DeleteRows, ConvertByValue, DeleteByValue, Append)
    ),
    broken_deletes.numbers_merged_deletes_anew: Hunt(likes=(DeleteRows, MergeDeletes)),
    broken_deletes.upgrades_unseen: Hunt(likes=(DeleteRows, MergeDeletes, Upgrade)),
    broken_following.lists_manifests_that_are_gone: OTHERS_CHANGE_MANIFESTS,
    broken_following.keeps_what_others_removed: OTHERS_CHANGE_MANIFESTS,
    broken_following.lists_carried_files_twice: OTHERS_CHANGE_MANIFESTS,
    broken_following.forgets_what_is_beside: OTHERS_CHANGE_MANIFESTS,
    broken_following.follows_the_first_base: OTHERS_CHANGE_MANIFESTS,
    broken_following.reuses_a_manifest_that_lacks_other_files: OTHERS_CHANGE_MANIFESTS,
    broken_following.leaves_what_it_had_no_use_for: OTHERS_CHANGE_MANIFESTS,
    broken_following.finds_dangling_deletes_once: Hunt(likes=(DeleteByValue, Compact, MergeManifestsAndClean)),
    broken_streaming.refuses_what_has_changed: STREAMING,
    broken_streaming.carries_no_positions: STREAMING,
    broken_streaming.reads_deletes_once_a_data_file: STREAMING,
    broken_streaming.writes_deletes_once_a_data_file: STREAMING,
    broken_streaming.forgets_which_rows_were_dropped: STREAMING,
    broken_streaming.carries_a_group_at_most: STREAMING,
    broken_streaming.reuses_a_manifest_of_deletes: STREAMING,
    broken_streaming.leaves_what_tasks_told: STREAMING,
}


def caught_by(mutant: Mutant, histories: int) -> int | None:
    """The first of so many histories that shows the mutant; null if none does."""
    with mutant():
        for number in range(histories):
            try:
                MUTANTS[mutant].history(number).run()
            except Exception:  # noqa: BLE001 - a mutant may end anyhow but well
                return number
    return None
