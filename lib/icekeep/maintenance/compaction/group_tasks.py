"""The tasks of groups whose rows need no other task: what all share travels once, a task is told a group and a number."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from icekeep.formats.rewrite.task import RewriteTask
from icekeep.maintenance.compaction.methods import GroupMethod
from icekeep.maintenance.compaction.plan import FileGroup, GroupFiles, group_files
from icekeep.maintenance.compaction.rewriting import Done, run_task
from icekeep.maintenance.compaction.stitched import Metrics, StitchTask, set_of, stitch_task
from icekeep.maintenance.compaction.tasks import GroupContext, ordering_of, rewrite_tasks, whole_task
from icekeep.maintenance.groups.file_sizes import FileSizes
from icekeep.storage.base import Storage


class GroupTask(NamedTuple):
    """One of the tasks of a group, by the numbers of both."""

    group_number: int
    number: int


class GroupWork(msgspec.Struct, frozen=True, kw_only=True):
    """What the tasks of some groups share.

    Attributes:
        groups, methods: by the number of the group.
        metrics: of the files that are put together byte for byte, by path.
        may_reencode: whether these may be encoded anew where that fails.
    """

    context: GroupContext
    sizes: FileSizes
    groups: Mapping[int, FileGroup]
    methods: Mapping[int, GroupMethod]
    metrics: Mapping[str, Metrics]
    may_reencode: bool
    storage: Storage

    def part(self, numbers: Collection[int]) -> "GroupWork":
        """What the tasks of some of the groups share."""
        return msgspec.structs.replace(
            self,
            groups={number: self.groups[number] for number in numbers},
            methods={number: self.methods[number] for number in numbers},
        )

    def tasks(self, group: FileGroup) -> Sequence[RewriteTask | StitchTask]:
        """All tasks of a group."""
        method, files = self.methods[group.number], group_files(group, self.storage)
        if ordering_of(group, self.context) is not None:
            return [whole_task(group, files, self.context)]
        copied = {position for some in method.stitched for position in some}
        left = tuple(file for position, file in enumerate(files.files) if position not in copied)
        tasks: list[RewriteTask | StitchTask] = []
        if left:
            tasks += rewrite_tasks(group, GroupFiles(left, files.deletes), self.context, self.sizes)
        if copied:
            whole = whole_task(group, files, self.context)
            for number, some in enumerate(method.stitched, start=len(tasks)):
                part = set_of(whole, some, number)
                tasks.append(stitch_task(part, self.metrics, may_reencode=self.may_reencode))
        return tasks


def run_group_task(one: GroupTask, work: GroupWork) -> Done:
    """Do one of the tasks."""
    return run_task(work.tasks(work.groups[one.group_number])[one.number], work.storage)
