"""What the results of jobs have in common."""

from typing import Any, ClassVar

from icekeep.rendered import Rendered


class JobResult(Rendered, frozen=True, kw_only=True):
    """What a run of a job did.

    Attributes:
        work: names of fields. One of them at least is neither 0 nor empty where the run did what the job is for, or has left it
            to a later run.
    """

    work: ClassVar[tuple[str, ...]]

    @property
    def is_idle(self) -> bool:
        """Whether the run did nothing of what the job is for, and left nothing of it to a later run."""
        return not any(_has_work(getattr(self, name)) for name in self.work)


def _has_work(value: Any) -> bool:
    return not value.is_idle if isinstance(value, JobResult) else bool(value)
