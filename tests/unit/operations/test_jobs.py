"""The list of all jobs."""

from importlib import import_module

from contracts.job_contract import JobContract
from icekeep.operations.jobs import JOBS
from icekeep.settings import Job
from kit.cases import for_each


@for_each("job", JOBS.values(), ids=lambda job: job.name)
def test_every_job_has_a_test_that_inherits_the_contract_of_jobs(job: Job) -> None:
    package = job.run.partition(":")[0].removeprefix("icekeep.").rpartition(".")[0]
    tests = vars(import_module(f"unit.{package}.test_job_contract")).values()
    assert [
        one for one in tests if isinstance(one, type) and issubclass(one, JobContract) and vars(one).get("job") is job
    ]
