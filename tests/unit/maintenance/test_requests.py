"""A job's arguments, as its public function takes them."""

import inspect

import msgspec
import pytest

from icekeep.errors import UsageError
from icekeep.events import SILENT
from icekeep.maintenance.jobs import JobRequest, takes
from icekeep.runs import Run
from kit.memory_catalog import MemoryCatalog
from kit.runtime import no_spark
from kit.tables import memory_table

TABLE = object()


class Asked(JobRequest, frozen=True, kw_only=True):
    where: str = "true"
    count: int | None = None


@takes(Asked)
def job(table: object, request: Asked) -> tuple[object, Asked]:
    """What the job does."""
    return table, request


def test_keyword_arguments_become_the_request():
    assert job(TABLE, no_spark, where="a = 1") == (TABLE, Asked(no_spark, where="a = 1"))
    assert job(table=TABLE, spark=None, count=3) == (TABLE, Asked(count=3))
    assert job(TABLE)[1].listener is SILENT


@pytest.mark.parametrize("wrong", [{"were": "a = 1"}, {"table": "u"}])
def test_an_argument_that_is_none_is_refused_with_the_job_s_name(wrong):
    with pytest.raises(TypeError, match=r"^job\(\)"):
        job(TABLE, **wrong)


def test_only_spark_may_be_given_without_its_name():
    with pytest.raises(TypeError, match=r"^job\(\): "):
        job(TABLE, None, "a = 1")


def test_what_is_no_session_is_refused():
    with pytest.raises(UsageError, match="no Spark session"):
        job(TABLE, "a = 1")


def test_help_shows_the_arguments():
    assert job.__doc__ == "What the job does."
    shown = inspect.signature(job)
    assert list(shown.parameters) == ["table", "spark", "listener", "where", "count"]
    assert shown.parameters["where"].default == "true"
    assert shown.return_annotation == tuple[object, Asked]


class Took(msgspec.Struct, frozen=True):
    elapsed_ms: int = 0


@takes(Asked)
def slow_job(table, request):
    table.runtime.pass_ms(1_500)
    return Took() if request.count is None else request.count


class Of(msgspec.Struct, frozen=True):
    run_id: str | None = None


def nested(table, request):
    return Of() if request.count else (table.run, inner(table, count=1), outer(table, count=1))


inner, outer = (takes(Asked, name)(nested) for name in ("inner", "outer"))


def test_a_table_gets_a_run_and_keeps_the_one_that_it_has():
    table = memory_table(MemoryCatalog())
    run, one, other = outer(table)
    assert (run.job, run.run_id[: len("outer-")], run.policy) == ("outer", "outer-", None)
    assert one.run_id == other.run_id == run.run_id
    assert outer(table)[0].run_id != run.run_id
    given = Run(run_id="outer-1", job="outer")
    assert outer(table.for_run(given))[:2] == (given, Of("outer-1"))


def test_a_run_is_of_one_call_of_its_own_job():
    table = memory_table(MemoryCatalog())
    given = Run(run_id="outer-1", job="outer")
    plan = takes(Asked, "outer")(plan_outer)
    assert plan(table.for_run(given)) == (given,)
    mine = table.for_run(given)
    assert outer(mine)[0] is given
    with pytest.raises(
        UsageError, match=r"^run 'outer-1' has been used already; give each call of outer a table of its"
    ):
        outer(table.for_run(given))
    with pytest.raises(
        UsageError, match=r"^run 'outer-1' is of the job 'outer', .* was given to inner; .*new_run\('inner'"
    ):
        inner(mine)
    # What is equal may come from another process, such as one that was killed.
    assert outer(table.for_run(Run(run_id="outer-1", job="outer")))[0] == given


def plan_outer(table, request):
    return (table.run,)


def test_a_result_that_has_a_place_for_it_says_how_long_the_run_took():
    table = memory_table(MemoryCatalog())
    assert slow_job(table) == Took(1_500)
    assert slow_job(table, count=3) == 3


def test_a_name_in_the_place_of_a_table_is_refused_with_how_to_load_it():
    with pytest.raises(
        UsageError, match=r"^nested\(\) takes a table, not its name; load it: load_catalog\(.*'db\.t'\)$"
    ):
        outer("db.t")
