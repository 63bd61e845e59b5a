"""What results of jobs have in common."""

from typing import Any, ClassVar

from icekeep.rendered import Rendered


class JobResult(Rendered, frozen=True, kw_only=True):
    """What a run of a job did.

    Attributes:
        work: names of the fields that are not empty where something of what the job is for was done, or left to a later run.
    """

    work: ClassVar[tuple[str, ...]]

    @property
    def is_idle(self) -> bool:
        """Whether the job found nothing to do, or did none of it."""
        return not any(_has_work(getattr(self, name)) for name in self.work)


def _has_work(value: Any) -> bool:
    return not value.is_idle if isinstance(value, JobResult) else bool(value)
