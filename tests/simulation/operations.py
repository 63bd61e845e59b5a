"""All that writers do.

To add an operation: a class with `run` (decide, write files, commit) and `effect` (which files of which branch come and
go), and a line here.
"""

from collections.abc import Callable

from simulation.file_operations import Append, Compact, Delete, DeleteByValue, DeleteRows, MergeManifests, Overwrite
from simulation.metadata_operations import (
    AddAColumn,
    DropBranchOrTag,
    Expire,
    ExpireAndReclaim,
    FastForward,
    MakeBranchOrTag,
    Rollback,
    SetCurrent,
    SetProperty,
    Upgrade,
)
from simulation.operation import Operation

Make = Callable[..., Operation]
OPERATIONS: dict[Make, int] = {
    Append: 30,
    Compact: 14,
    DeleteRows: 8,
    DeleteByValue: 4,
    Overwrite: 6,
    Delete: 4,
    MergeManifests: 7,
    Expire: 4,
    ExpireAndReclaim: 7,
    SetProperty: 5,
    AddAColumn: 3,
    Upgrade: 1,
    MakeBranchOrTag: 5,
    DropBranchOrTag: 3,
    Rollback: 4,
    SetCurrent: 2,
    FastForward: 3,
}
"""Each operation and how often it is chosen."""
