"""Options and requests of jobs, and intervals."""

import inspect
from typing import Annotated, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, field

from icekeep.errors import OptionError, UsageError
from icekeep.events import SILENT
from icekeep.maintenance.intervals import Intervals
from icekeep.maintenance.jobs import JobRequest, takes
from icekeep.maintenance.options import Options, parse_options
from icekeep.runs import Run
from kit.cases import for_each
from kit.memory_catalog import MemoryCatalog
from kit.runtime import no_spark
from kit.tables import memory_table


class SomeOptions(Options, frozen=True, kw_only=True):
    count: Annotated[int, Meta(gt=0)] = field(name="min-input-files", default=5)
    limit: Annotated[int, Meta(gt=0)] | None = field(name="max-files", default=None)
    share: Annotated[float, Meta(gt=0, le=1)] = field(name="delete-ratio", default=0.3)
    all: bool = field(name="rewrite-all", default=False)
    order: Literal["none", "bytes-asc"] = field(name="job-order", default="none")
    size: Annotated[int, Meta(gt=0)] = field(name="target-bytes", default=1)


class OtherOptions(Options, frozen=True, kw_only=True):
    count: int = 1


def parsed(**given):
    return parse_options(SomeOptions, {name.replace("_", "-"): value for name, value in given.items()})


def test_what_is_not_given_has_its_default():
    assert parse_options(SomeOptions, {}) == SomeOptions(count=5, limit=None, share=0.3, all=False, order="none")


@for_each(
    ("text", "size"),
    [
        ("134217728", 2**27),
        ("128MB", 2**27),
        ("128 mib", 2**27),
        ("128m", 2**27),
        ("1.5GiB", 3 * 2**29),
        ("2 t", 2**41),
        ("7b", 7),
    ],
)
def test_size_units_are_powers_of_1024(text, size):
    assert parsed(target_bytes=text).size == size


@for_each("text", ["128 miles", "MB", "-1MB", "1e3MB", "0MB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(OptionError, match="a whole number of bytes, such as 134217728 or 128MB"):
        parsed(target_bytes=text)
    with pytest.raises(OptionError):
        parsed(min_input_files="5k")


@pytest.mark.parametrize("form", [str, lambda value: value])
def test_values_are_taken_as_text_or_typed(form):
    options = parsed(
        min_input_files=form(7),
        max_files=form(9),
        delete_ratio=form(0.5),
        rewrite_all=form(True),
        job_order="bytes-asc",
    )
    assert options == SomeOptions(count=7, limit=9, share=0.5, all=True, order="bytes-asc")


@for_each("text", ["true", "TRUE", "True", "1"])
def test_true_is_written_in_several_ways(text):
    assert parsed(rewrite_all=text).all is True
    assert parsed(rewrite_all={"1": "0"}.get(text, "FALSE")).all is False


@pytest.mark.parametrize("text", ["bytes-asc", "BYTES-ASC", "Bytes-Asc", "BYTES_ASC", "bytes_asc"])
def test_choice_ignores_case_and_underscores(text):
    assert parsed(job_order=text).order == "bytes-asc"


def test_options_that_are_parsed_already_are_returned():
    options = SomeOptions(count=9)
    assert parse_options(SomeOptions, options) is options


@for_each(
    ("name", "given", "message"),
    [
        ("min-input-files", "0", "option min-input-files is '0'; give a whole number >= 1"),
        ("min-input-files", "-3", "option min-input-files is '-3'; give a whole number >= 1"),
        ("min-input-files", "many", "option min-input-files is 'many'; give a whole number"),
        ("min-input-files", "1.5", "option min-input-files is '1.5'; give a whole number"),
        ("min-input-files", "", "option min-input-files is ''; give a whole number"),
        ("min-input-files", True, "option min-input-files is True; give a whole number"),
        ("min-input-files", None, "option min-input-files is None; give a whole number"),
        ("max-files", "0", "option max-files is '0'; give a whole number >= 1"),
        ("max-files", "many", "option max-files is 'many'; give a whole number"),
        ("delete-ratio", "0", "option delete-ratio is '0'; give a number > 0.0"),
        ("delete-ratio", "1.01", "option delete-ratio is '1.01'; give a number <= 1.0"),
        ("delete-ratio", "nan", "option delete-ratio is 'nan'; give a number > 0.0"),
        ("rewrite-all", "yes", "option rewrite-all is 'yes'; give true or false"),
        ("job-order", "size", "option job-order is 'size'; give one of none, bytes-asc"),
        ("job-order", None, "option job-order is None; give one of none, bytes-asc"),
    ],
)
def test_bad_option_value_says_what_is_expected(name, given, message):
    with pytest.raises(OptionError) as raised:
        parse_options(SomeOptions, {name: given})
    assert raised.value.message == message
    assert raised.value.exit_status == 2
    assert raised.value.facts["option"] == name


KNOWN = "one of delete-ratio, job-order, max-files, min-input-files, rewrite-all, target-bytes"


@for_each(
    ("name", "hint"),
    [
        ("min_input_files", "did you mean 'min-input-files'?"),
        ("min-input-file", "did you mean 'min-input-files'?"),
        ("Rewrite-All", "did you mean 'rewrite-all'?"),
        ("colour", f"give {KNOWN}"),
        ("", f"give {KNOWN}"),
    ],
)
def test_unknown_option_suggests_a_known_one(name, hint):
    with pytest.raises(OptionError) as raised:
        parse_options(SomeOptions, {name: "1"})
    assert raised.value.message == f"there is no option {name!r}; {hint}"
    assert raised.value.facts == {"option": name, "given": "1", "expected": KNOWN}


def test_options_of_another_job_are_a_mistake_of_ours():
    with pytest.raises(AssertionError):
        parse_options(SomeOptions, OtherOptions())


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


def test_result_reports_the_elapsed_time():
    table = memory_table(MemoryCatalog())
    assert slow_job(table) == Took(1_500)
    assert slow_job(table, count=3) == 3


def test_table_name_instead_of_a_table_says_how_to_load_it():
    with pytest.raises(
        UsageError, match=r"^nested\(\) takes a table, not its name; load it: load_catalog\(.*'db\.t'\)$"
    ):
        outer("db.t")


EVERYTHING = (-1, 13)
PAIRS = st.lists(
    st.none() | st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda pair: (min(pair), max(pair))), max_size=12
)


def overlap(one, other):
    (low, high), (lower, upper) = one or EVERYTHING, other or EVERYTHING
    return low < upper and lower < high


@given(PAIRS, st.data())
def test_what_overlaps_is_what_shares_more_than_an_end(pairs, data):
    weights = data.draw(st.lists(st.integers(0, 2**60 // 12), min_size=len(pairs), max_size=len(pairs)))
    expected = [
        sum(weight for n, weight in enumerate(weights) if n == number or overlap(pairs[n], pair))
        for number, pair in enumerate(pairs)
    ]
    assert Intervals.of(pairs).overlapping(np.array(weights, np.int64)).tolist() == expected


@given(PAIRS, st.data())
def test_depth_counts_chosen_intervals_and_the_covered_span(pairs, data):
    among = data.draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    intervals = Intervals.of(pairs)
    covered = intervals.taken(~np.array(among, np.bool_)).span()
    found = intervals.depths(np.array(among, np.bool_), covered).tolist()
    places = [range(first, last + 1) for first, last in zip(intervals.first, intervals.last, strict=True)]

    def count(place):
        some = [places[n] for n, is_asked in enumerate(among) if is_asked and place in places[n]]
        are_points = [len(one) == 1 and one[0] % 2 == 0 for one in some]
        is_covered = covered is not None and covered[0] <= place <= covered[1]
        return are_points.count(False) + any(are_points) + is_covered

    assert found == [max(map(count, one)) for one in places]


def test_unknown_interval_overlaps_all_and_empty_has_no_span():
    intervals = Intervals.of([(5, 5), None, (5, 9), (9, 12)])
    assert intervals.are_points.tolist() == [True, False, False, False]
    assert intervals.depths().tolist() == [2, 2, 2, 2]
    assert intervals.span() == (intervals.first[1], intervals.last[1])
    nothing = Intervals.of([])
    assert (len(nothing), nothing.span(), nothing.depths().tolist()) == (0, None, [])
