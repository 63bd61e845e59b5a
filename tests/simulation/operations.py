"""All that writers do.

To add an operation: a class with `run` (decide, write files, commit), `effect` (which files of which branch come and go)
and `check` (what else must hold of it), and a line here.
"""

from collections.abc import Callable

from simulation.compaction_operations import (
    Compact,
    CompactAndClean,
    CompactHoldingItsStart,
    CompactIntoAnotherSpec,
)
from simulation.definition_operations import (
    AddAColumn,
    ChangeOrder,
    ChangePartitioning,
    RemoveStatistics,
    SetProperty,
    SetStatistics,
    Upgrade,
)
from simulation.delete_operations import ConvertByValue, MergeDeletes
from simulation.file_operations import (
    Append,
    Delete,
    DeleteByFilter,
    DeleteByValue,
    DeleteRows,
    DeleteRowsUnnamed,
    Overwrite,
    OverwriteByFilter,
)
from simulation.manifest_operations import MergeManifests, MergeManifestsAndClean
from simulation.operation import Operation
from simulation.publishing_operations import Publish, Stage
from simulation.ref_operations import (
    DropBranchOrTag,
    FastForward,
    MakeBranchOrTag,
    MoveBranchOrTag,
    RenameABranch,
)
from simulation.snapshot_operations import Expire, ExpireAndReclaim, Rollback, SetCurrent

Make = Callable[..., Operation]
OPERATIONS: dict[Make, int] = {
    Append: 30,
    Compact: 10,
    CompactAndClean: 5,
    CompactIntoAnotherSpec: 3,
    CompactHoldingItsStart: 3,
    DeleteRows: 18,
    DeleteByValue: 6,
    ConvertByValue: 5,
    MergeDeletes: 5,
    Overwrite: 6,
    OverwriteByFilter: 5,
    Delete: 4,
    DeleteByFilter: 2,
    MergeManifests: 7,
    MergeManifestsAndClean: 3,
    Stage: 4,
    Publish: 5,
    Expire: 4,
    ExpireAndReclaim: 7,
    SetProperty: 5,
    AddAColumn: 3,
    ChangePartitioning: 3,
    ChangeOrder: 2,
    SetStatistics: 4,
    RemoveStatistics: 2,
    Upgrade: 1,
    MakeBranchOrTag: 7,
    MoveBranchOrTag: 2,
    RenameABranch: 2,
    DropBranchOrTag: 3,
    Rollback: 4,
    SetCurrent: 2,
    FastForward: 4,
}
"""Each operation and how often it is chosen."""

LIKED_ALONE: tuple[Make, ...] = (DeleteRowsUnnamed,)
"""Those that are chosen in histories that like them, and in no others."""
