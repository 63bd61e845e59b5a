"""The tasks of groups whose rows need no other task: what all share travels once, a task is told a group and a number."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from icekeep.formats.rewrite.task import RewriteTask
from icekeep.maintenance.compaction.methods import GroupMethod, shares_of_group
from icekeep.maintenance.compaction.plan import FileGroup, group_files
from icekeep.maintenance.compaction.rewriting import Done, run_task
from icekeep.maintenance.compaction.stitched import Metrics, StitchTask, stitch_task
from icekeep.maintenance.compaction.tasks import GroupContext, ordering_of, share_task, whole_task
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

    def tasks(self, group: FileGroup) -> list[RewriteTask | StitchTask]:
        """All tasks of a group."""
        return [self._ready(task) for task in self._bare_tasks(group)]

    def task(self, one: GroupTask) -> RewriteTask | StitchTask:
        """One of the tasks of a group."""
        return self._ready(self._bare_tasks(self.groups[one.group_number])[one.number])

    def _bare_tasks(self, group: FileGroup) -> list[tuple[RewriteTask, bool]]:
        """All tasks of a group, each with whether it puts its files together byte for byte; without metrics, which are wide."""
        method, files = self.methods[group.number], group_files(group, self.storage)
        if ordering_of(group, self.context) is not None:
            return [(whole_task(group, files, self.context), False)]
        copied = {*method.stitched}
        return [
            (share_task(group, files, share, self.context, number), share.whole_files in copied)
            for number, share in enumerate(shares_of_group(files, method.stitched, self.context.sizes))
        ]

    def _ready(self, bare: tuple[RewriteTask, bool]) -> RewriteTask | StitchTask:
        task, is_stitched = bare
        return stitch_task(task, self.metrics, may_reencode=self.may_reencode) if is_stitched else task


def run_group_task(one: GroupTask, work: GroupWork) -> Done:
    """Do one of the tasks."""
    return run_task(work.task(one), work.storage)
